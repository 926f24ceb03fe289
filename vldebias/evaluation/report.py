"""Everything that is shown of a result but its page: the frame in words, terminal, text, Markdown, LaTeX, comparison.

All of it comes from the one data frame of `Result.to_pandas` and the provenance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError, need, shortened
from vldebias.evaluation.result import CHANCE, NONE, Measurement, Result, TaskProvenance
from vldebias.metrics.metric import METRICS, metric_of

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

TEMPLATES = Path(__file__).parent / "templates"
DAGGER = "†"  # of methods that were given labels
ATTACHED = "default"  # the method that `debias` attaches where none is named: sentences are about it
FEW = 3  # parts with several measures each that still are a summary, such as train and unseen professions
MANY, WIDE = 6, 5  # more parts than this run down a table; measures side by side
ROOT = "discrepancy_squared"  # read as a root with its sign, so that it has the unit of the parity gap
MEANING = (
    "Values stand with 95 % intervals in brackets. Under each is its change from “none”, the model as it is, paired: "
    "the same images, queries and seeds. “Better” and “worse” are said only where the interval of the change "
    "excludes zero, “unclear” where it does not, “same” where nothing moved; nothing is said where none is no more "
    "biased than chance. A squared gap is free of the upward bias of few images; its root is shown with its sign. The "
    "intervals are not corrected for how many there are."
)
LABELS = f"{DAGGER} was given labels of training images; the other methods see prompts only."
PUBLISHED = "Tables 7.2 and 7.4 of the thesis (worst group, average, gap) and 7.5 (MaxSkew@1000 on FairFace)"
HEAD = ("task", "measure", "method", "value [95 %]", "change from none [95 %]")
FRONT = ("task", "measure", "method", "none", "with it", "verdict", "chance", "cost")

# ---- the frame in words --------------------------------------------------------------------------------------


def verdict(row: Measurement) -> str:
    """Return better or worse where the interval of the paired difference excludes zero, else unclear; same if equal."""
    return "" if row.change is None else verdict_on(row.change, row.better)


def verdict_on(difference: tuple[float, float, float], better: str) -> str:
    """Return the verdict on a difference (value, low, high); "changed" where neither "higher" nor "lower" is better."""
    _, low, high = difference
    if low <= 0 <= high:
        return "same" if low == high else "unclear"
    if better not in ("higher", "lower"):
        return "changed"
    return "better" if (low > 0) == (better == "higher") else "worse"


def _digits(value: float) -> int:
    return 3 if abs(value) < 10 else 1


def _number(value: float, low: float, high: float, *, sign: str = "", of: float | None = None) -> str:
    """ "0.474 [0.444, 0.506]"; of: the value whose digits count."""
    form = f"{{:{sign}.{_digits(value if of is None else of)}f}}"
    return f"{form} [{form}, {form}]".format(value, low, high)


def told(result: Result) -> pd.DataFrame:
    """Return the frame of a result with what a reader sees.

    Columns beside its own: title and kind (of the metric), measure (the title with the part), name (of the method, with
    lambda where it has several), number, moved (the change), verdict, whole (of a summary, not one group or query),
    chance (value of random rankings), published (a figure of the paper, or NaN).
    """
    t = result.to_pandas()
    about = {name: metric_of(name) for name in t.metric.unique()}
    t["title"], t["kind"] = [about[name].title for name in t.metric], [about[name].kind for name in t.metric]
    rows = list(t.itertuples())
    t["measure"] = [", ".join(filter(None, (r.title, r.subset))) for r in rows]
    alike = t.groupby(["task", "metric", "method", "subset"])[["lam", "strength"]]
    several = alike.transform("nunique", dropna=False) > 1
    t["name"] = [
        ("chance" if r.method == CHANCE else r.method)
        + (DAGGER if r.uses_labels else "")
        + (f", λ = {r.lam:g}" if lam and r.lam == r.lam else "")
        + (f", strength {r.strength:g}" if strength and r.strength == r.strength else "")
        for r, lam, strength in zip(rows, several.lam, several.strength, strict=True)
    ]
    t["number"] = [_number(r.value, r.low, r.high) for r in rows]
    t["moved"] = [
        "" if np.isnan(r.change) else _number(r.change, r.change_low, r.change_high, sign="+", of=r.value) for r in rows
    ]
    t["units"] = [tuple(row.n) for row in result.rows]
    t["whole"] = _wholes(t)
    keys = ["task", "metric", "subset"]
    wholes = t[t.whole].drop_duplicates([*keys, "method"], keep="last").set_index(keys)
    chance = t[keys].join(wholes[wholes.method == CHANCE][["value", "low", "high"]], on=keys)
    none = t[keys].join(wholes[wholes.method == NONE].value, on=keys).value
    t["chance"] = chance.value  # nothing to remove where none is within it: no method is praised or blamed there
    t["at_chance"] = np.where(t.better == "higher", none >= chance.low, none <= chance.high)
    t["verdict"] = [
        "" if np.isnan(r.change) or fair else verdict_on((r.change, r.change_low, r.change_high), r.better)
        for r, fair in zip(rows, t.at_chance, strict=True)
    ]
    known = published(result.name, [one.model for one in result.provenance])
    of_paper = (t.subset == "") & (t.lam.isna() | (t.lam == 1000))
    t["published"] = [known.get((r.task, r.metric, r.method), np.nan) if own else np.nan
                      for r, own in zip(rows, of_paper, strict=True)]  # fmt: skip
    return t


def _wholes(t: pd.DataFrame) -> pd.Series:
    """Rows of the whole; of a task without any those of a few parts that have several measures each, else all."""
    whole = t.subset == ""
    for _, task in t[~t.task.isin(t.task[whole].unique())].groupby("task", sort=False):
        for _, alike in task.groupby("units", sort=False):
            if alike.metric.nunique() > 1 and alike.subset.nunique() <= FEW:
                whole[alike.index] = True
    return whole | ~t.task.isin(t.task[whole].unique())


def published(suite: str, models: Sequence[str]) -> dict[tuple[str, str, str], float]:
    """Return the paper's figures for a suite on a model: (task, metric, method) -> value; none for others."""
    name = "".join(filter(str.isalnum, models[0].lower())) if models else ""
    spelt = {"rn50": ("rn50openai",), "vitb32": ("vitb32", "vitbasepatch32"), "vitl14": ("vitl14", "vitlargepatch14")}
    own = [model for model, ways in spelt.items() if name == model or any(one in name for one in ways)]
    if not own or any(other in name for other in ("laion", "datacomp", "336")):
        return {}
    t = _figures()
    rows = t[(t.suite == suite) & (t.model == own[0])]
    return {(r.task, r.metric, r.method): float(r.value) for r in rows.itertuples()}


@cache
def _figures() -> pd.DataFrame:
    return need("pandas").read_csv(TEMPLATES / "published.csv")


# ---- a line per task, and sentences --------------------------------------------------------------------------


class Line(NamedTuple):
    """What one method does to the bias of a task, and what that costs.

    row: of the frame, of the method. cost: rows of measures of utility of this method. worse: who got worse.
    """

    row: Any
    cost: tuple[Any, ...]
    before: str
    after: str
    chance: str
    verdict: str
    costs: str
    worse: str

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the cells under `FRONT`."""
        row = self.row
        return (row.task, row.measure, row.name, self.before, self.after, self.verdict, self.chance, self.costs)


def lines(t: pd.DataFrame, measures: Sequence[tuple[str, str]] = ()) -> list[Line]:
    """Return a line per task that has a measure of bias with changes; measures: (task, metric) to speak of instead.

    Of methods without labels; the one that `debias` attaches where it was measured, else the one that gains most.
    """
    found = []
    for _, block in t.groupby("task", sort=False):
        own = block[block.whole & ~block.uses_labels]
        bias = own[(own.kind == "bias") & own.change.notna()]
        bias = _some(bias, measures)
        if bias.empty:
            continue
        metrics = list(bias.metric.unique())  # corrected by people leads, then what is free of the bias of few images
        leads = (f"corrected_{ROOT}", "corrected_discrepancy", ROOT)
        lead = bias[bias.metric == next((one for one in leads if one in metrics), metrics[0])]
        lead = lead[lead.subset == lead.subset.iloc[-1]].drop_duplicates("method")  # of train and unseen the last
        rank = {"worse": 1, "changed": 2, "better": 3}
        rows = list(lead.itertuples())
        row = next(
            (r for r in rows if r.method == ATTACHED), max(rows, key=lambda r: (rank.get(r.verdict, 0), abs(r.change)))
        )
        none = own[(own.metric == row.metric) & (own.subset == row.subset) & (own.method == NONE)].value.iloc[0]
        cost = own[(own.kind == "utility") & own.change.notna() & (own.method == row.method)]
        cost = cost[(cost.metric != "average") | ("average_reweighted" not in set(cost.metric))]
        order = {name: i for i, name in enumerate(METRICS)}
        costs = list(cost[~cost.duplicated("metric", keep="last")].itertuples())
        costs.sort(key=lambda one: order.get(one.metric.partition("@")[0], 0))
        fell = [one for one in costs if one.verdict == "worse"]
        said = [f"{one.title} {one.moved}" + ("" if fell else f" {one.verdict}") for one in fell or costs[:1]]
        chance = "0" if row.metric == ROOT else "" if np.isnan(row.chance) else f"{row.chance:.3f}"
        moved = _shown(row.metric, none), _shown(row.metric, row.value)
        said_of = "nothing to remove" if row.at_chance else row.verdict
        lost = _worse(block, row.method)
        found.append(Line(row, tuple(costs), *moved, chance, said_of, "; ".join(said) or "not measured", lost))
    return found


def _shown(metric: str, value: float) -> str:
    """A value of a table; of a squared gap its root with the sign."""
    return f"{np.sign(value) * abs(value) ** 0.5:.3f}" if metric == ROOT else f"{value:.{_digits(value)}f}"


def _worse(block: pd.DataFrame, method: str) -> str:
    """The part that lost most beyond its interval under a method, with how many did; "" where none did."""
    parts = block[~block.whole & (block.method == method) & block.change.notna()]
    worse = parts[parts.verdict == "worse"]
    if worse.empty:
        return ""
    row = worse.loc[worse.change.abs().idxmax()]
    alike = parts[(parts.metric == row.metric) & (parts.units == row.units)]
    lost = int((alike.verdict == "worse").sum())
    return f"{row.title} got worse in {lost} of {len(alike)} parts under {row['name']}, most {row.subset}: {row.moved}"


def opening(t: pd.DataFrame, measures: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Return what a reader asks first: where bias fell and under which method, where it did not, and what it cost.

    Texts that moved among themselves are no task: nothing was searched, classified or generated.
    """
    found = lines(t, measures)
    every = [one for one in found if metric_of(one.row.metric).of != "texts"] or found
    if not every:
        return []
    fell, stayed = ([one for one in every if (one.verdict == "better") == kind] for kind in (True, False))
    lost = [f"{c.title} of {one.row.task} {c.moved}" for one in fell for c in one.cost if c.verdict == "worse"]
    measured = any(one.cost for one in fell)
    cost = f"It cost: {'; '.join(lost)}." if lost else "It cost nothing beyond its interval." if measured else ""
    return [
        f"Bias fell: {'; '.join(map(_end, fell))}." if fell else "Bias fell nowhere beyond its interval.",
        *([f"It did not clearly fall: {'; '.join(map(_end, stayed))}."] if stayed else []),
        *([cost] if fell and cost else []),
    ]


def _end(line: Line) -> str:
    """ "worst-group accuracy of birds from 0.380 to 0.860 under cali"."""
    row, worse = line.row, ", worse" if line.verdict == "worse" else ""
    chance = f" (chance {line.chance})" if line.chance else ""
    return f"{row.measure} of {row.task} from {line.before} to {line.after}{worse} under {row.name}{chance}"


# ---- tables --------------------------------------------------------------------------------------------------


class Grid(NamedTuple):
    """Methods down and measures across, or parts down and methods across. cells: rows of the frame, or None.

    parts: of groups, queries or prompts, which a page folds.
    """

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Any, ...]], ...]
    parts: bool


def grids(block: pd.DataFrame) -> Iterator[Grid]:
    """Yield the tables of one task: the wholes, bias before utility, then a table of parts for each measure."""
    for subset, part in block[block.whole].groupby("subset", sort=False):
        for kind in dict.fromkeys(part.kind) if part.metric.nunique() > WIDE else [""]:
            own = part[part.kind == kind] if kind else part
            metrics = list(own.metric.unique())
            for start in range(0, len(metrics), WIDE):
                some = own[own.metric.isin(metrics[start : start + WIDE])]
                yield _grid(some, ": ".join(filter(None, (str(subset) or "By method", kind))), "title", parts=False)
    for title, part in block[~block.whole].groupby("title", sort=False):
        better = part.better.iloc[0]
        hint = f" ({better} is better)" if better != "neither" else ""
        yield _grid(part, f"{str(title)[:1].upper()}{str(title)[1:]} by part{hint}", "subset", parts=True)


def _grid(frame: pd.DataFrame, caption: str, across: str, *, parts: bool) -> Grid:
    cells = {(r.name, getattr(r, across)): r for r in frame.itertuples()}
    names, keys = list(frame.name.unique()), list(frame[across].unique())
    if parts and len(keys) > MANY:
        return Grid(caption, tuple(names), tuple((k, tuple(cells.get((n, k)) for n in names)) for k in keys), parts)
    better = dict(zip(frame[across], frame.better, strict=True))
    heads = (f"{k} ({better[k]} is better)" if not parts and better[k] != "neither" else str(k) for k in keys)
    return Grid(caption, tuple(heads), tuple((n, tuple(cells.get((n, k)) for k in keys)) for n in names), parts)


def _headline(t: pd.DataFrame, measures: Sequence[tuple[str, str]] = ()) -> pd.DataFrame:
    """The rows of the wholes, or those of some (task, metric), methods of a measure together."""
    some = _some(t[t.whole], measures)
    return some.iloc[np.argsort(some.groupby(["task", "metric", "subset"], sort=False).ngroup(), kind="stable")]


def _some(t: pd.DataFrame, measures: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """The rows of some (task, metric); all of them where none is named."""
    return t[np.array([(r.task, r.metric) in measures for r in t.itertuples()], dtype=bool)] if measures else t


def print_table(result: Result, console: Console, measures: Sequence[tuple[str, str]] = ()) -> None:
    """Print the wholes, a table per measure, in 80 columns; measures: only these (task, metric)."""
    from rich.markup import escape
    from rich.table import Table

    console.print(f"[bold]{escape(result.name)}[/bold]: value, and change from none, with 95 % intervals")
    t = told(result)
    some = _headline(t, measures)
    for (task, measure), rows in some.groupby(["task", "measure"], sort=False):
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
        for width in (19, 23, 23, 7):
            table.add_column(width=width, overflow="fold")
        for r in rows.itertuples():
            paper = "" if np.isnan(r.published) else f"\npublished {r.published:.3f}"
            style = _STYLES.get(r.verdict)
            table.add_row(escape(r.name), r.number + paper, r.moved, r.verdict, style=style)
        hint = f" ({rows.better.iloc[0]} is better)" if rows.better.iloc[0] != "neither" else ""
        console.print(f"\n[bold]{escape(f'{task}: {measure}')}[/bold]{hint}", highlight=False)
        console.print(table)
        if rows.at_chance.any():
            console.print("Nothing to remove: none is no more biased than random rankings are.", highlight=False)
    notes = [LABELS] if some.uses_labels.any() else []
    notes += [f"Published: {PUBLISHED}."] if some.published.notna().any() else []
    notes += [f"{len(t) - len(some)} more figures are in the page."] if len(some) < len(t) else []
    for note in notes:
        console.print(f"\n{note}", highlight=False)


_STYLES = {"better": "green", "worse": "red"}


def tab_rows(
    result: Result, measures: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the head and the rows of `print_table` with all digits, for programs that read them."""
    some = _headline(told(result), measures)
    some = some.assign(method=some.method.replace(CHANCE, "chance")).astype(object)
    columns = ("task", "metric", "subset", "method", "lam", "value", "low", "high", "change", "change_low",
               "change_high", "better", "verdict")  # fmt: skip
    rows = some.where(some.notna(), None)[list(columns)].itertuples(index=False, name=None)
    return tuple({"metric": "measure", "subset": "part"}.get(name, name) for name in columns), list(rows)


def text(result: Result, most: int = 40) -> str:
    """Return the wholes as plain text of at most so many lines: what `print(result)` shows."""
    t = told(result)
    some = _headline(t)
    # Where not all fit, the first measures of every task do, not all measures of the first task.
    order = {task: list(block.metric.unique()) for task, block in some.groupby("task", sort=False)}
    place = np.array([order[r.task].index(r.metric) for r in some.itertuples()])
    depth = max((d for d in range(1, place.max() + 2) if (place < d).sum() <= most - 3), default=1)
    shown = some[place < depth].head(most - 3).itertuples()
    rows = [HEAD, *((r.task, r.measure, r.name, r.number, f"{r.moved} {r.verdict}".rstrip()) for r in shown)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    body = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    left = len(t) - len(rows) + 1
    more = [f"{left} more rows: to_pandas(), plot(), write()"] if left else []
    return "\n".join([f"{result.name}: value, and change from none, with 95 % intervals", *body, *more])


# ---- Markdown and LaTeX --------------------------------------------------------------------------------------


def markdown_table(result: Result, measures: Sequence[tuple[str, ...]]) -> str:
    """Return chosen rows as one flat Markdown table: (task, metric) for a whole, (task, metric, subset) for a part."""
    chosen = {(task, metric, "".join(subset)) for task, metric, *subset in measures}
    rows = [(r.task, f"{r.measure} ({r.better} is better)", r.method, r.number, r.moved)
            for r in told(result).itertuples() if (r.task, r.metric, r.subset) in chosen]  # fmt: skip
    return _markdown(HEAD, rows)


def markdown(result: Result) -> str:
    """Return the whole result as Markdown: what came out, every table, and how it was measured."""
    t, about = told(result), {one.task: one for one in result.provenance}
    found = lines(t)
    worse = [f"- {one.row.task}: {one.worse}." for one in found if one.worse]
    front = _markdown(FRONT, [one.cells for one in found]) if found else ""
    parts = [f"# {result.name}", " ".join(opening(t)), front, "\n".join(worse), MEANING]
    parts += [LABELS] if t.uses_labels.any() else []
    for task, block in t.groupby("task", sort=False):
        of = about.get(str(task))
        parts += [f"## {(of.title if of else '') or task}", of.description if of else ""]
        for grid in grids(block):
            body = [(name, *map(_markdown_cell, cells)) for name, cells in grid.rows]
            parts += [f"**{grid.caption}**", _markdown(("", *grid.heads), body)]
        parts += [_markdown(("protocol", ""), [(k, plain(v)) for k, v in facts(of)])] if of else []
    parts.append(_markdown(("how it was made", ""), evidence(result)))
    return "\n\n".join(part for part in parts if part) + "\n"


def _markdown_cell(row: Any) -> str:
    if row is None:
        return ""
    paper = "" if np.isnan(row.published) else f"<br>published {row.published:.3f}"
    return row.number + (f"<br>{row.moved} {row.verdict}" if row.moved else "") + paper


def _markdown(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(one.replace("|", r"\|") for one in row) + " |" for row in rows)


_TEX = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "λ": r"$\lambda$",
    DAGGER: r"$\dagger$",
}  # fmt: skip


def latex(result: Result) -> str:
    """Return the tables for a paper, each a `table` with booktabs; tables of parts are left to the page."""
    titles = {one.task: one.title for one in result.provenance}
    made = " ".join((result.command or result.name).split())
    out = [f"% vldebias {result.versions.get('vldebias', '')}: {made}", "% \\usepackage{booktabs}"]
    for task, block in told(result).groupby("task", sort=False):
        for grid in (one for one in grids(block) if not one.parts):
            note = "values with 95 % intervals, an asterisk where that of the change from none leaves out zero."
            caption = f"{titles.get(str(task)) or task}: {grid.caption.lower()}; {note}"
            rows = [(name, *map(_latex_cell, cells)) for name, cells in grid.rows]
            out += ["", "\\begin{table}", f"\\caption{{{_tex(caption)}}}",
                    f"\\begin{{tabular}}{{l{'r' * len(grid.heads)}}}", "\\toprule",
                    " & ".join(map(_tex, ("method", *grid.heads))) + r" \\", "\\midrule",
                    *(" & ".join(map(_tex, row)) + r" \\" for row in rows),
                    "\\bottomrule", "\\end{tabular}", "\\end{table}"]  # fmt: skip
    return "\n".join(out) + "\n"


def _latex_cell(row: Any) -> str:
    return "" if row is None else row.number + "*" * (row.verdict in ("better", "worse", "changed"))


def _tex(given: str) -> str:
    """A text of which LaTeX reads nothing as its own."""
    return "".join(_TEX.get(sign, sign) for sign in " ".join(given.split()))


# ---- how it was made -----------------------------------------------------------------------------------------


def evidence(result: Result) -> list[tuple[str, str]]:
    """Return what an auditor asks first, by name: when, by which command, with what, on which weights and data."""
    about = result.provenance
    seconds = f", {round(result.seconds):,} s" if result.seconds else ""
    named = {
        "measured": [f"{result.date or 'date not recorded'}{seconds}"],
        "command": [result.command or "not recorded"],
        "machine": [result.platform or "not recorded"],
        "code": [f"commit {result.commit}" if result.commit else "commit not recorded"],
        "packages": [", ".join(f"{name} {version}" for name, version in result.versions.items())],
        "weights": [f"{p.model}: {_structure(p)}" for p in about],
        "prompts": [f"{p.prompts} {p.prompts_hash[:12]}" for p in about],
        "data": [f"{name}: {digest[:12]}" for p in about for name, digest in p.data.items()],
        "counted": [
            f"{p.split}: " + ", ".join(f"{n:,} {unit}" for unit, n in p.n.items() if n) + _groups(p.settings)
            for p in about
        ],
    }
    return [(name, "; ".join(dict.fromkeys(texts)) or "no digest recorded") for name, texts in named.items()]


def _structure(provenance: TaskProvenance) -> Any:
    return (provenance.fingerprint or {}).get("structure", "fingerprint not known")


def _groups(settings: Mapping[str, Any]) -> str:
    """Numbers of the groups that share the images out among them."""
    data = settings.get("data")
    groups = settings.get("groups") or (data.get("images per group") if isinstance(data, Mapping) else None)
    return f" ({', '.join(f'{name} {n:,}' for name, n in groups.items())})" if isinstance(groups, Mapping) else ""


def facts(provenance: TaskProvenance) -> list[tuple[str, Any]]:
    """Return what a reader needs to repeat a task, by name; settings come one by one."""
    return [
        ("model", provenance.model),
        ("weights fingerprint", _structure(provenance)),
        ("prompts", f"{provenance.prompts}, hash {provenance.prompts_hash[:12]}"),
        ("split", provenance.split),
        *([("data", provenance.data)] if provenance.data else []),
        ("counts", provenance.n),
        ("methods", provenance.methods),
        ("seeds", provenance.seeds),
        *((name.replace("_", " "), value) for name, value in provenance.settings.items() if name != "advice"),
    ]


def plain(value: Any) -> str:
    """Return a setting as a reader would write it: no braces, no quotes."""
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {plain(v)}" if v not in ({}, None) else str(k) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# ---- two results ---------------------------------------------------------------------------------------------

COMPARED = (
    "Each difference is B less A. The two runs are taken for independent: the half-width towards each side is the root "
    "of the sum of the squared half-widths (MOVER, Zou and Donner 2008), so where both used the same images the "
    "interval is wider than a paired one. “Equal” figures are the same number with the same interval."
)
CONVENTIONS = ("model", "prompts", "prompts_hash", "split", "n", "seeds", "data")
NAMES = ["task", "metric", "method", "subset"]
KEYS = [*NAMES, "lam", "strength"]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Two results side by side.

    Attributes:
        a, b: what they are called.
        frame: a row for each figure that both have: its names, the values a and b with their intervals, difference,
            low, high and verdict.
        only_a, only_b: rows of the frame of one of them alone.
        warnings: what differs beyond the figures.
    """

    a: str
    b: str
    frame: pd.DataFrame
    only_a: pd.DataFrame
    only_b: pd.DataFrame
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Comparison({self.a!r}, {self.b!r}: {len(self.frame)} rows that both have; to_pandas())"

    @property
    def same(self) -> bool:
        """Tell whether both have the same figures, every one the same number with the same interval."""
        return not len(self.only_a) and not len(self.only_b) and bool((self.frame.verdict == "equal").all())

    @property
    def sentence(self) -> str:
        """Return what a reader asks first."""
        if self.same:
            return f"Same: all {len(self.frame)} figures are equal."
        counts = self.frame.verdict.value_counts().to_dict()
        order = ("better", "worse", "changed", "unclear", "same", "equal")
        said = ", ".join(f"{counts[name]} {name}" for name in order if name in counts)
        alone = len(self.only_a) + len(self.only_b)
        end = f"; {alone} in one alone." if alone else "."
        return f"Of {len(self.frame)} figures that both have, {said} in B{end}"

    @property
    def warned(self) -> str:
        """Return one line about what differs beyond the figures; "" where nothing does."""
        more = f" (and {len(self.warnings) - 1} more)" if len(self.warnings) > 1 else ""
        return f"The two differ in more than the figures: {self.warnings[0]}{more}" if self.warnings else ""

    @property
    def only(self) -> dict[str, list[str]]:
        """Return what one side has alone, by the name of the side."""
        sides = {f"A, {self.a}": self.only_a, f"B, {self.b}": self.only_b}
        return {name: [f"{r.task}: {r.measure}, {r.name}" for r in of.itertuples()] for name, of in sides.items()
                if len(of)}  # fmt: skip

    def to_pandas(self) -> pd.DataFrame:
        """Return names, values a and b, difference with its interval, and verdict, a row for each that both have."""
        return self.frame[[*KEYS, "a", "b", "difference", "low", "high", "verdict"]].copy()

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        sides = ("a", "low_a", "high_a", "b", "low_b", "high_b")
        figures = self.frame[[*KEYS, "better", *sides, "difference", "low", "high", "verdict"]].astype(object)
        alone = {f"only_{side}": of[NAMES].to_dict("records") for side, of in (("a", self.only_a), ("b", self.only_b))}
        about = {"same": self.same, "a": self.a, "b": self.b, "method": COMPARED, "warnings": list(self.warnings)}
        return {**about, "figures": figures.where(figures.notna(), None).to_dict("records"), **alone}

    def _repr_html_(self) -> str:
        """Return the opening sentence, the line of warnings, then the frame."""
        table = self.to_pandas().to_html(index=False, na_rep="", float_format="{:.3f}".format)
        return f"<p>{escape(self.sentence)}</p><p>{escape(self.warned)}</p>{table}"


def compare(a: Result, b: Result, names: tuple[str, str] | None = None) -> Comparison:
    """Match rows by task, metric, method, subset, lambda and strength, and subtract A from B.

    Rows left over are matched without lambda and strength where that leaves no choice; a warning says so.

    Args:
        a, b: two results, such as of two models or before and after a change.
        names: what to call them; by default their own names.

    Raises:
        InvalidInputError: no row is in both, or one result has two rows of the same names.
    """
    pd = need("pandas")
    sides = [told(one).reset_index(names="place") for one in (a, b)]
    for one, side in zip((a, b), sides, strict=True):
        if len(twice := side[side.duplicated(KEYS)]):
            raise InvalidInputError(f"{one.name}: the figure {tuple(twice[KEYS].iloc[0])} is there twice; expected one")
    exact = sides[1].merge(sides[0], on=KEYS, suffixes=("_b", "_a"))
    rest = [side[~side.place.isin(exact[f"place_{name}"])] for side, name in zip(sides, "ab", strict=True)]
    alone = [side[~side.duplicated(NAMES, keep=False)] for side in rest]
    loose = alone[1].merge(alone[0], on=NAMES, suffixes=("_b", "_a"))
    rest = [side[~side.place.isin(loose[f"place_{name}"])] for side, name in zip(rest, "ab", strict=True)]
    notes = list(_notes(a, b))
    for row in loose.itertuples():
        notes += _differs(row.task, f"lam of {row.method}", row.lam_a, row.lam_b)
        notes += _differs(row.task, f"strength of {row.method}", row.strength_a, row.strength_b)
    loose = loose.rename(columns={"lam_b": "lam", "strength_b": "strength"})
    both = (pd.concat([exact, loose]) if len(loose) else exact).sort_values("place_b")
    if both.empty:
        tasks = [list(dict.fromkeys(row.task for row in one.rows)) for one in (a, b)]
        raise InvalidInputError(
            f"no figure is in both {a.name!r} and {b.name!r}: tasks are {tasks[0]} and {tasks[1]}; "
            "expected two results of the same suite"
        )
    for row in both[both.better_a != both.better_b].itertuples():
        notes += _differs(row.task, f"which {row.title_b} is better", row.better_a, row.better_b)
    called = {"value_a": "a", "value_b": "b"} | {f"{one}_b": one for one in ("better", "whole", "measure", "name")}
    frame = both.rename(columns=called).reset_index(drop=True)
    frame["difference"] = frame.b - frame.a
    frame["low"] = frame.difference - np.hypot(frame.b - frame.low_b, frame.high_a - frame.a)
    frame["high"] = frame.difference + np.hypot(frame.high_b - frame.b, frame.a - frame.low_a)
    equal = (frame.a == frame.b) & (frame.low_a == frame.low_b) & (frame.high_a == frame.high_b)
    moved = list(zip(frame.difference, frame.low, frame.high, strict=True))
    frame["verdict"] = [
        "equal" if same else verdict_on(by, better) for same, by, better in zip(equal, moved, frame.better, strict=True)
    ]
    frame["moved"] = ["" if same else f"{by[0]:+.3f} [{by[1]:+.3f}, {by[2]:+.3f}]"
                      for same, by in zip(equal, moved, strict=True)]  # fmt: skip
    frame["name"] = [name if lam != lam or "λ" in name else f"{name}, λ = {lam:g}"
                     for name, lam in zip(frame.name, frame.lam, strict=True)]  # fmt: skip
    first, second = names or (a.name, b.name)
    return Comparison(first, second, frame, rest[0], rest[1], tuple(dict.fromkeys(notes)))


def _differs(where: str, what: str, a: Any, b: Any) -> Iterator[str]:
    if a != b and not (a != a and b != b):
        yield f"{where}: {what} differs: {_short(a)} in A, {_short(b)} in B"


def _short(value: Any) -> str:
    return shortened(", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value), 90)


def _notes(a: Result, b: Result) -> Iterator[str]:
    """What differs between two runs beyond the numbers."""
    for name in dict.fromkeys([*a.versions, *b.versions]):
        yield from _differs("the run", f"version of {name}", a.versions.get(name), b.versions.get(name))
    yield from _differs("the run", "commit", a.commit, b.commit)
    there = {one.task: one for one in a.provenance}
    for two in b.provenance:
        if two.task not in there:
            continue
        one = there[two.task]
        for what in CONVENTIONS:
            yield from _differs(two.task, what.replace("_", " "), getattr(one, what), getattr(two, what))
        mine, other = Fingerprint.of(one.fingerprint), Fingerprint.of(two.fingerprint)
        if mine is not None and not mine.matches(other):
            texts = [_short(_structure(each)) for each in (one, two)]
            yield f"{two.task}: fingerprint of the weights differs: {texts[0]} in A, {texts[1]} in B"
        for what, first, second in (("setting", one.settings, two.settings), ("method", one.methods, two.methods)):
            for name in dict.fromkeys([*first, *second]):
                yield from _differs(two.task, f"{what} {name}", first.get(name), second.get(name))


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Print the sentence, a line of warnings, and one table of the wholes, unless all figures are the same."""
    from rich.markup import escape
    from rich.table import Table

    if comparison.warned:
        console.print(f"[yellow]warning:[/yellow] {escape(comparison.warned)}", highlight=False)
    console.print(escape(comparison.sentence), highlight=False)
    if comparison.same:
        return
    whole = comparison.frame[comparison.frame.whole]
    for task, rows in (whole if len(whole) else comparison.frame).groupby("task", sort=False):
        table = Table(title=escape(str(task)), title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
        for head in ("", f"A: {comparison.a}", f"B: {comparison.b}", "B less A", ""):
            table.add_column(escape(head), overflow="fold")
        for r in rows.itertuples():
            cells = (escape(f"{r.measure}, {r.name}"), r.number_a, r.number_b, r.moved, r.verdict)
            table.add_row(*cells, style=_STYLES.get(r.verdict))
        console.print()
        console.print(table)
    for name, some in comparison.only.items():
        more = f"; and {len(some) - 8} more" if len(some) > 8 else ""
        console.print(f"\nonly in {escape(name)}: {escape('; '.join(some[:8]))}{more}", highlight=False)
    console.print(f"\n{COMPARED}", highlight=False)
