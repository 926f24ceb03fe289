"""The tables of docs/methods and the plot of gain against cost, from what `rivals.py` measured.

python -m eval.readme                                                    # the tables, with all others
python -m eval.experiments.rivals_table --plot eval/results/rivals.png   # the plot
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from eval import tables
from eval.tables import fills, moved, read, rows_in, span
from vldebias.evaluation.result import Measurement, Result
from vldebias.methods import METHODS

SEARCH = (("self-similarity of queries", "query_cosine"),)
GROUPS = (("average", "average"),)
MEASURED = ("rivals_real", "rivals_miniature")
OURS, THEIRS, LABELLED = "#2a78b5", "#d9822b", "#7a7a7a"


# The forms that are attached where no method is named, and what a table says beside them.
ATTACHED = {"difference": "the default", "cali+equalise, lam 100": "the default with `reference=`"}
RENAMED = {"default": "cali, lam 100"}  # what was attached when these results were measured


class Rows:
    """The rows of one task by metric and method; a metric may be named without its k."""

    def __init__(self, result: Result, task: str) -> None:
        (self.about,) = (p for p in result.provenance if p.task == task)
        self.rows: dict[tuple[str, str], Measurement] = {}
        for row in result.rows:
            if row.task == task:
                name, comma, rest = row.metric.partition(", ")
                for metric in (row.metric, name.partition("@")[0] + comma + rest):
                    self.rows[metric, row.method] = row
        self.main = "max_skew" if ("max_skew", "none") in self.rows else "worst_group"
        sign = 1 if self.main == "max_skew" else -1
        there = [method for metric, method in self.rows if metric == self.main]
        self.methods = sorted(there, key=lambda method: sign * self.rows[self.main, method].value)

    def get(self, metric: str, method: str) -> Measurement | None:
        return self.rows.get((metric, method))

    def fact(self, method: str, name: str) -> Any:
        told = self.about.methods.get(method, {}).get(name)
        return RENAMED.get(told, told) if name == "name" else told

    def there_is(self, method: str) -> bool:
        """Tell whether the package still has a method; some that were measured went."""
        called = str(self.fact(method, "name"))
        return "leaning" not in called and all(name in METHODS for name in called.partition(",")[0].split("+"))

    def kind(self, method: str) -> str:
        """ "labels" of images, "ours" and "theirs" without."""
        if self.fact(method, "labels") == "given":
            return "labels"
        return "ours" if self.fact(method, "source") in (None, "this package") or self._paper(method) else "theirs"

    def _paper(self, method: str) -> bool:
        return "Chuang" in str(self.fact(method, "source"))


def needs(rows: Rows, method: str) -> str:
    """What a method was given: texts, images, true or zero-shot labels, training."""
    words = [word for word in rows.fact(method, "needs") or () if word != "labels"]
    labels = {"given": ["images", "**labels**"], "zero-shot": ["images", "zero-shot labels"]}
    words += [word for word in labels.get(rows.fact(method, "labels"), []) if word not in words]
    return ", ".join(words) or "-"


def table(result: Result, task: str) -> str:
    """Write one task as Markdown, the best first: what each method that there still is needs, gains and costs."""
    rows = Rows(result, task)
    extra = [(title, metric) for title, metric in (SEARCH if rows.main == "max_skew" else GROUPS)]
    extra = [(title, metric) for title, metric in extra if any((metric, m) in rows.rows for m in rows.methods)]
    gain = "MaxSkew" if rows.main == "max_skew" else "worst group"
    lines = [["method", "needs", f"{gain} [95 %]", "change from none [95 %]", *(title for title, _ in extra)]]
    for method in filter(rows.there_is, rows.methods):
        main, called = rows.rows[rows.main, method], rows.fact(method, "name")
        attached = f", {ATTACHED[called]}" if called in ATTACHED else ""
        alone = method.rpartition(", ")[2] if method.endswith(" alone") else ""  # a side of a method for both
        name = f"`{called}`{attached}{alone and ', '}{alone}"
        cells = [f"**{name}**" if rows.kind(method) == "ours" and method != "none" else name, needs(rows, method)]
        lines.append([*cells, span(main), moved(main), *(number(rows.get(metric, method)) for _, metric in extra)])
    return tables.table(*lines).strip()


def number(row: Measurement | None) -> str:
    return "" if row is None else f"{row.value:.3f}"


def block(*tasks: tuple[str, str]) -> str:
    """Write the tables of tasks, (result, task) each, with what they are and where they come from."""
    parts = []
    for name, task in tasks:
        result = read(name)
        about = next(one for one in result.provenance if one.task == task)
        n = ", ".join(f"{count:,} {what}" for what, count in about.n.items() if count)
        source = f"From `eval/results/{name}.json`, commit {result.commit}: {n}."
        parts.append(f"## {about.title}\n\n{table(result, task)}\n\n{source}")
    return "\n" + "\n\n".join(parts) + "\n\n"


def draw(results: Mapping[str, Result], path: Path) -> Path:
    """Gain against cost: one panel per task, a point per method with the interval of its gain."""
    from vldebias.pictures import save_png, subplots

    tasks = [(result, about.task) for result in results.values() for about in result.provenance]
    plot, axes = subplots(2, -(-len(tasks) // 2), (4.6 * -(-len(tasks) // 2), 7.6))
    colors = {"ours": OURS, "theirs": THEIRS, "labels": LABELLED}
    for axis, (result, task) in zip(axes, tasks, strict=False):
        rows = Rows(result, task)
        sign, names = -1 if rows.main == "max_skew" else 1, dict[tuple[float, float], list[str]]()
        for method in rows.methods:
            main, kept = rows.rows[rows.main, method], rows.get("order_kept", method)
            if main.change is None or kept is None:
                continue
            gain, ends = sign * main.change[0], sorted(sign * end for end in main.change[1:])
            color, x = colors[rows.kind(method)], 1 - kept.value
            axis.vlines(x, *ends, color=color, linewidth=0.8, alpha=0.25)
            open_ = rows.fact(method, "labels") == "zero-shot"
            axis.scatter(x, gain, s=16, color="white" if open_ else color, edgecolors=color, zorder=3)
            if not open_:  # methods that do the same here share a label
                names.setdefault((round(x, 3), round(gain, 3)), []).append(rows.fact(method, "name"))
        for place, alike in names.items():
            axis.annotate(", ".join(alike), place, (3, 2), textcoords="offset points", fontsize=6)
        if sorted(x for x, _ in names)[len(names) // 2] < 0.1:  # most cost little: show how little
            axis.set_xscale("symlog", linthresh=0.01)
        axis.set_xlim(left=-0.001)
        axis.axhline(0, color="0.6", linewidth=0.7)
        axis.set_title(task, fontsize=9, parse_math=False)
        axis.set_xlabel("cost: order inside a group that is lost", fontsize=8)
        axis.set_ylabel("gain: " + ("MaxSkew" if sign < 0 else "worst group"), fontsize=8)
        axis.tick_params(labelsize=7)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[len(tasks) :]:
        axis.set_visible(False)
    kinds = {"ours": "ours and the paper's", "theirs": "the field's", "labels": "given labels"}
    handles = [axes[0].scatter([], [], s=16, color=color, label=kinds[kind]) for kind, color in colors.items()]
    plot.legend(handles=handles, loc="lower center", ncols=3, fontsize=8, frameon=False)
    plot.tight_layout(rect=(0, 0.04, 1, 1))
    return save_png(plot, path, {"results": {name: result.commit for name, result in results.items()}})


fills("docs/methods/search.md", "rivals_real")(partial(block, ("rivals_real", "celeba professions")))
fills("docs/methods/groups.md", "rivals_groups")(
    partial(block, ("rivals_real", "celeba age"), ("rivals_miniature", "birds"))
)


@fills("docs/methods/search.md", "few")
def few_block() -> str:
    """MaxSkew by the number of reference images, a row for each method."""
    result = read("rivals_few")
    about = {p.task: p for p in result.provenance}
    found = {
        name: {m: row for (m, metric), row in rows_in(result, name).items() if metric == "max_skew@50"}
        for name in about
    }
    names = {method: told["name"] for p in about.values() for method, told in p.methods.items()}
    lines = [["MaxSkew@50 of 51 professions", *found]]
    for method in next(iter(found.values())):
        if method in names:
            lines.append([f"`{names[method]}`", *(span(rows[method]) for rows in found.values())])
    return tables.table(*lines, note="From `eval/results/rivals_few.json`, halves of the photographs.")


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--plot", type=Path, required=True, help="where to write the plot")
    given = options.parse_args(arguments)
    names = [name for name in MEASURED if tables.measured(name)]
    draw({name: read(name) for name in names}, given.plot)


if __name__ == "__main__":
    main()
