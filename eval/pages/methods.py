"""Write the benefits and costs of methods, defaults and re-ranking, for `docs/methods`."""

from __future__ import annotations

import textwrap
from collections.abc import Container, Mapping
from statistics import mean

from eval.tables import Rivals, moved, read, span, table
from vldebias.measure.rows import Measurement
from vldebias.methods.declared import DECLARED
from vldebias.report.result import Result

# The method that is attached by default for each task metric, and its name in tables.
ATTACHED = {
    "max_skew": {},
    "worst_group": {"difference": "the default"},
}
# The result and task of each data set for zero-shot classification.
GROUPS = {
    "photographs": ("rivals_real", "celeba age"),
    "birds": ("rivals_miniature", "birds"),
    "hair": ("rivals_miniature", "hair"),
}
# The methods in the tables, by name, of all that were measured.
LISTED = {
    "bend-vlm",
    "cali",
    "cali+equalise",
    "dat",
    "difference",
    "difference+equalise",
    "none",
    "orth",
    "orth-cali",
    "roboshot",
    "sfid",
    "spd",
}


def declared() -> str:
    """Write the table of all methods and the images that they need, from their declarations."""
    lines = [["name", "needs images", "what it does"]]
    for method in DECLARED.values():
        # The text above the table describes the default and the settings of the paper.
        if not method.name.startswith(("none", "default", "paper")):
            images = [need.removesuffix(" images") for need in method.needs if "images" in need]
            lines.append([f"`{method.name}`", ", ".join(images) or "-", method.about])
    return table(*lines)


def compared(result: Result, task: str, names: Container[str] | None = None) -> str:
    """Write the requirements, benefit and cost of each method for a task, the best first.

    Args:
        result: The result of all methods.
        task: The task.
        names: The names of the methods to list. None: all.
    """
    rows = Rivals(result, task)
    gain = "worst group"
    cost = "average"
    metric = "average"
    if rows.main == "max_skew":
        gain = "MaxSkew"
        cost = "retained hits"
        metric = "retained"
    lines = [["method", f"{gain} [95%]", cost, "change from none [95%]", "needs"]]
    for method in rows.methods:
        if names is not None and rows.fact(method, "name") not in names:
            continue
        main = rows.rows[rows.main, method]
        paid = f"{rows.rows[metric, method].value:.3f}"
        called, needs = described(rows, method)
        lines.append([called, span(main), paid, moved(main), needs])
    return table(*lines).strip()


def described(rows: Rivals, method: str) -> list[str]:
    """Return the name of a method, and the input that is hardest to get of those it needs."""
    attached = ATTACHED[rows.main]
    name = rows.fact(method, "name")
    called = f"`{name}`"
    if name in attached:
        called = f"**{called}, {attached[name]}**"
    needs = rows.fact(method, "needs") or []
    most = "**labels**" if "labels" in needs else needs[-1] if needs else "-"
    return [called, most]


def rivals(name: str, task: str) -> str:
    """Write the table for a task in a result, with its description and source."""
    result = read(name)
    about = Rivals(result, task).about
    source = f"From `eval/results/{name}.json`: {counts(about.n)}."
    return f"\n## {about.title}\n\n{compared(result, task, LISTED)}\n\n{source}\n\n"


def counts(n: Mapping[str, int]) -> str:
    """Format the number of units behind a task."""
    return ", ".join(f"{count:,} {counted}" for counted, count in n.items() if count)


def groups() -> str:
    """Write the change in worst-group accuracy by each method, with one column per data set."""
    tasks = {title: Rivals(read(name), task) for title, (name, task) in GROUPS.items()}
    photographs, *rendered = tasks
    lines = [["method", photographs, f"average on {photographs}", *rendered, "needs"]]
    methods = dict.fromkeys(method for rows in tasks.values() for method in rows.methods)
    for method in methods:
        facts = next(rows for rows in tasks.values() if method in rows.methods)
        # `difference+equalise` is fitted for searches.
        if facts.fact(method, "name") not in LISTED - {"difference+equalise"}:
            continue
        measured = [rows.rows.get(("worst_group", method)) for rows in tasks.values()]
        cells = ["" if row is None else moved(row) or f"{row.value:.3f}" for row in measured]
        average = tasks[photographs].rows.get(("average", method))
        cells.insert(1, "" if average is None else f"{average.value:.3f}")
        called, needs = described(facts, method)
        lines.append([called, *cells, needs])
    note = "; ".join(f"{title}: {counts(rows.about.n)}" for title, rows in tasks.items())
    return table(
        *lines,
        note=(
            "Change in worst-group accuracy with its 95% interval (`none`: the accuracy itself)."
            f" {note[0].upper()}{note[1:]}. From `eval/results/rivals_real.json` and"
            " `eval/results/rivals_miniature.json`."
        ),
    )


def closed_form() -> str:
    """Write how much P0 and the two lemmas remove and preserve with CLIP."""
    space = "CLIP ViT-B/32, CelebA"
    lines = [["edit", "held-out pair: distance", "query: cosine", "MaxSkew@50"]]
    rows: dict[str, dict[str, Measurement]] = {}
    for row in read("closed_form").rows:
        if row.task == space:
            rows.setdefault(row.method, {})[row.metric] = row
    for method, row_of_metric in rows.items():
        if method in ("none", "orth") or method.endswith((" 100", " 1000")):
            metrics = ("pair_distance", "query_cosine", "max_skew@50")
            lines.append([method, *(span(row_of_metric[metric]) for metric in metrics)])
    (n,) = [part.n for part in read("closed_form").provenance if part.task == space]
    note = (
        f"{space}: means over {n['pairs']} held-out pairs or queries, and {n['images']} images,"
        " half of them of men. `orth` is P0, `cali` Lemma 7.2, `orth-cali` Lemma 7.1. From"
        " `eval/results/closed_form.json`, which also has the miniature."
    )
    return table(*lines, note=note)


# The checked candidates in the table, of those that were measured.
CHECKED = (
    "30 of the list, k 50",
    "100 of the lists of other queries, k 50",
    "100 of the whole gallery, k 50",
    "error rates of the gallery, k 50",
)


def true_shares() -> str:
    """Write the coverage of intervals for true shares on photographs."""
    result = read("photographs_rerank")
    (task,) = {row.task for row in result.rows}
    lines = [["checked candidates", "coverage", "mean width"]]
    for method in CHECKED:
        width = result.row(task, "width", method)
        lines.append([method, span(result.row(task, "coverage", method)), f"{width.value:.2f}"])
    return table(*lines, note="From `eval/results/photographs_rerank.json`.")


def reranked() -> str:
    """Write what re-ranking and query edits leave of the skew, and their cost."""
    names = {"re-rank": "re-ranking", "query edit": "edit of the query"}
    rows = read("rerank").rows
    value = {(row.task, row.metric, row.method): row.value for row in rows}
    lines = [["galleries", *names.values()]]
    for task in dict.fromkeys(task for task, *_ in value if task.startswith("all: collections")):
        cells = []
        for method in names:
            metrics = ("left", "left_most", "retained", "stay")
            left, worst, retained, stay = (value[task, metric, method] for metric in metrics)
            cells.append(f"{left:.2f} (worst {worst:.2f})<br>hits {retained:.2f}, stay {stay:.2f}")
        lines.append([task.removeprefix("all: collections, "), *cells])
    cells = []
    for method in names:
        samples = [
            row.value
            for row in rows
            if row.task.startswith("flickr, gender, 20% female")
            and (row.metric, row.method) == ("left", method)
        ]
        cells.append(f"{min(samples):.2f} to {max(samples):.2f}")
    lines.append(["Flickr8k, 20% women", *cells])
    note = (
        "The share of the skew above chance that is left (1: the unedited search), as a mean over"
        " galleries, with the worst of them; in the last row, over samples. The cost: retained"
        " hits, and the share of the first k results that stay. From `eval/results/rerank.json`."
    )
    return table(*lines, note=note)


GENDER_INDEXES = ("index: ", "rare: ")
SHOWN = (10, 50)  # how many first results the page shows
# Indexes in the file that the table leaves out, because a similar one is shown. The range over all
# indexes is a table of its own.
SIMILAR = (
    "snapshots, women 50%",
    "all photographs, women 40%, scenes 20%",
    "portraits, women 50%, scenes 90%",
    "portraits, women 35%, scenes 95%",
    "portraits, women 2%",
    "portraits, women 4%",
    "faces, women 6%",
    "web, men 10%",
    "web, women 60%, scenes 50%",
    "faces not labelled white, men 5%",
)
# The kinds of indexes in the table, with the methods that are shown for them.
SEARCH, WITHIN, COLLECTION = "queries.search", "queries.search, within", "rerank"
KINDS = {
    "index": (SEARCH,),
    "filter": (SEARCH, WITHIN),
    "rare": (SEARCH,),
    "other": (SEARCH, COLLECTION),
}


def searched() -> str:
    """Write what searches of indexes leave of the skew, and how many results and queries suffer."""
    result = read("search_index")
    value = {(row.task, row.method, row.subset, row.metric): row.value for row in result.rows}
    lines = [["index", "first 10: left, stay, worse", "first 50", "error of the share"]]
    for task in dict.fromkeys(task for task, *_ in value):
        kind, _, title = task.partition(": ")
        if title in SIMILAR:
            continue
        for method in KINDS.get(kind, ()):
            if (task, method, "k = 10", "left") not in value:
                continue
            name = f"{kind}: {title}" if kind == "filter" else title
            cells = [f"{name}, with `within`" if method == WITHIN else name]
            for k in SHOWN:
                subset = f"k = {k}"
                if value.get((task, method, subset, "refused")):
                    cells.append("unchanged: labels unreliable")
                elif (task, method, subset, "left") in value:
                    figures = [value[task, method, subset, m] for m in ("left", "stay", "worse")]
                    cells.append("{:.2f}, {:.2f}, {:.0%}".format(*figures))
                else:
                    cells.append("")
            true, held = value[task, "none", "", "true"], value[task, SEARCH, "", "held"]
            cells.append(f"{held - true:+.2f}")
            lines.append(cells)
    averaged = {
        "indexes and collections": f"{_number('index')} indexes without rare groups,"
        f" {_number('filter')} filters with `within`, {_number('collection')} collections",
        "rare groups": f"{_number('rare')} indexes with a rare group",
    }
    for title, cases in averaged.items():
        for method in METHOD:
            cells = [f"**mean of {cases}**, {METHOD[method]}"]
            for k in SHOWN:
                place = (f"all: {title}", method, f"k = {k}")
                cells.append(
                    "{:.2f}, {:.2f}, {:.0%}".format(
                        *(value[*place, metric] for metric in ("left", "stay", "worse"))
                    )
                )
            error = value.get((f"all: {title}", method, "", "error"))
            cells.append("" if error is None else f"{error:.2f}")
            lines.append(cells)
    explained = textwrap.fill(
        "Each cell has three figures: the skew above chance that is left among the people in the"
        " first results (1: the unedited search), the share of these results that stay, and the"
        " share of the 40 queries that get worse, because their shares move away from the index's"
        " by more than 0.05. Error of the share: the share of men (or old or White people) in the"
        " index that `queries.search` estimates from its labels, minus the true share.",
        150,
    )
    source = (
        f"From `eval/results/search_index.json`, which also has {len(SIMILAR)} more indexes and the"
        " collections."
    )
    return f"\n{explained}\n{table(*lines, note=source)}"


def _number(kind: str) -> int:
    """Return the number of indexes, filters or collections that were searched."""
    return len({row.task for row in read("search_index").rows if row.task.startswith(f"{kind}: ")})


def few_labels() -> str:
    """Write what labels gain in searches and classes, for labels that are new to the rule."""
    found = {}
    for row in read("few_labels").rows:
        family, _, labels = row.task.rpartition(", ")
        if row.subset in ("", "k = 50"):
            found[family, labels, row.method, row.metric] = row.value
    heads = (
        "reach, 20 labels",
        "100",
        "20, if they pass",
        "pass",
        "worst group, text",
        "20",
        "100",
    )
    lines = [["images", *heads]]
    for family in dict.fromkeys(family for family, *_ in found):
        lines.append(
            [
                family,
                f"{found[family, '20 labels', 'rule', 'reach']:.2f}",
                f"{found[family, '100 labels', 'rule', 'reach']:.2f}",
                f"{found[family, '20 labels', 'rule, if it passes the test', 'reach']:.2f}",
                f"{found[family, '20 labels', 'rule', 'accepted']:.0%}",
                f"{found[family, '20 labels', 'texts', 'worst']:.2f}",
                f"{found[family, '20 labels', 'default', 'worst']:.2f}",
                f"{found[family, '100 labels', 'default', 'worst']:.2f}",
            ]
        )
    accepted = [value for key, value in found.items() if key[3] == "random accepted"]
    note = (
        "From `eval/results/few_labels.json` (`python -m eval.experiments.few_labels`). True labels"
        f" reach 1, unchanged results 0. Of random labels, the test accepts {mean(accepted):.1%}."
    )
    return table(*lines, note=note)


def search_range() -> str:
    """Write the mean and the range over indexes of what a search leaves, keeps and worsens."""
    rows = [row for row in read("search_index").rows if row.task.startswith(GENDER_INDEXES)]
    heads = ["", "skew left, images", "skew left, captions", "worst index"]
    columns = [[*heads, "queries that get worse", "results that stay"]]
    for k in SHOWN:
        cells: dict[str, dict[str, float]] = {"left": {}, "stay": {}, "worse": {}}
        for row in rows:
            is_shown = (row.method, row.subset) == (SEARCH, f"k = {k}")
            if is_shown and row.metric in cells:
                cells[row.metric][row.task.partition(": ")[2]] = row.value
        captions = cells["left"].pop("captions")  # a mean must not count it against the others
        left, stay, worse = (values.values() for values in cells.values())
        columns.append(
            [
                f"first {k}",
                f"{mean(left):.2f} ({min(left):.2f} to {max(left):.2f})",
                f"{captions:.2f}",
                max(cells["left"], key=cells["left"].__getitem__),
                f"{mean(worse):.0%} (up to {max(worse):.0%})",
                f"{mean(stay):.0%} ({min(stay):.0%} to {max(stay):.0%})",
            ]
        )
    count = len({row.task for row in rows})
    note = (
        f"Means over {count} indexes by gender, {_number('rare')} of them with a rare group and one"
        " of captions, and their ranges. Below 0: more even than chance."
    )
    return table(*zip(*columns, strict=True), note=note)


METHOD = {
    "this version": "`queries.search`",
    "labels alone": "a quota by labels alone",
}
