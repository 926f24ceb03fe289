"""Show a result: as text, as a page, and beside another result.

All of it comes from the data frame of `Result.to_pandas` and the provenance. Names of methods, groups and prompts may
hold anything: jinja2 and `for_matplotlib` escape them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vldebias.errors import need
from vldebias.evaluation.result import CHANCE, COLUMNS, NONE, Result, TaskProvenance
from vldebias.evaluation.session import WORLDS
from vldebias.files import write_atomically
from vldebias.methods import METHODS
from vldebias.metrics.metric import metric_of
from vldebias.pictures import INK, for_matplotlib, picture_metadata, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot

TEMPLATES = Path(__file__).parent / "templates"
DAGGER = "†"  # of methods that were given labels
ATTACHED = "default"  # the method that `debias` attaches where none is named: sentences are about it
ROOT = "discrepancy_squared"  # shown as a root with its sign, so that it has the unit of the parity gap
LEADS = (f"corrected_{ROOT}", "corrected_discrepancy", ROOT)  # corrected by people, then free of the bias of few images
RANK = {"worse": 1, "changed": 2, "better": 3}
LABELS = f"{DAGGER} was given labels of training images; the other methods see prompts only."
GRID, LABELLED = "#e4e7eb", "#c9ccd1"  # of charts: lines, and methods that were given labels
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")  # methods that have no colour of their own
Measures = Sequence[tuple[str, str]]  # (task, metric) to show; all where there are none

# ---- the frame in words --------------------------------------------------------------------------------------


def verdict(change: tuple[float, float, float] | None, better: str) -> str:
    """Return better or worse if the interval of a difference (value, low, high) excludes zero, else unclear.

    "same" where nothing changed, "changed" where neither direction is better, "" where there is no difference.
    """
    if change is None or np.isnan(change[0]):
        return ""
    _, low, high = change
    if low <= 0 <= high:
        return "same" if low == high else "unclear"
    if better not in ("higher", "lower"):
        return "changed"
    return "better" if (low > 0) == (better == "higher") else "worse"


def _number(value: float, low: float, high: float, sign: str = "", of: float | None = None) -> str:
    """Return "0.474 [0.444, 0.506]"; of: the value whose digits count."""
    form = f"{{:{sign}.{3 if abs(value if of is None else of) < 10 else 1}f}}"
    return f"{form} [{form}, {form}]".format(value, low, high)


def told(result: Result) -> pd.DataFrame:
    """Return the frame of a result with the columns that a reader sees.

    Additional columns: title and kind (of the metric), measure (the title with the part), name (of the method, with
    lambda where it has several), number, moved (the change), verdict, whole (of a summary, not one group or query),
    chance (value of random rankings), at_chance (none is no more biased than they are), published (of the paper).
    """
    t, keys = result.to_pandas(), ["task", "metric", "subset"]
    about = {name: metric_of(name) for name in t.metric.unique()}
    t["title"], t["kind"] = [about[name].title for name in t.metric], [about[name].kind for name in t.metric]
    t["measure"] = t.title + t.subset.where(t.subset == "", ", " + t.subset)
    t["units"] = [tuple(row.n) for row in result.rows]
    t["whole"] = _wholes(t)
    wholes = t[t.whole].drop_duplicates([*keys, "method"], keep="last").set_index(keys)
    chance = t[keys].join(wholes[wholes.method == CHANCE][["value", "low", "high"]], on=keys)
    none = t[keys].join(wholes[wholes.method == NONE].value, on=keys).value
    t["chance"] = chance.value  # nothing to remove where none is within it: no method is praised or blamed there
    t["at_chance"] = np.where(t.better == "higher", none >= chance.low, none <= chance.high)
    several = t.groupby([*keys, "method"])[["lam", "strength"]].transform("nunique", dropna=False) > 1
    known = published(result.name, [one.model for one in result.provenance])
    shown: dict[str, list[Any]] = {name: [] for name in ("name", "number", "moved", "verdict", "published")}
    for r, lam, strength in zip(t.itertuples(), several.lam, several.strength, strict=True):
        change, own = (r.change, r.change_low, r.change_high), r.subset == "" and (np.isnan(r.lam) or r.lam == 1000)
        shown["name"].append(
            ("chance" if r.method == CHANCE else r.method)
            + (DAGGER if r.uses_labels else "")
            + (f", λ = {r.lam:g}" if lam and r.lam == r.lam else "")
            + (f", strength {r.strength:g}" if strength and r.strength == r.strength else "")
        )
        shown["number"].append(_number(r.value, r.low, r.high))
        shown["moved"].append("" if np.isnan(r.change) else _number(*change, "+", r.value))
        shown["verdict"].append("" if r.at_chance else verdict(change, r.better))
        shown["published"].append(known.get((r.task, r.metric, r.method), np.nan) if own else np.nan)
    return t.assign(**shown)


def _wholes(t: pd.DataFrame) -> pd.Series:
    """Return which rows are wholes; of a task without any those of a few parts with several measures, else all."""
    whole = t.subset == ""
    for _, alike in t[~t.task.isin(t.task[whole])].groupby(["task", "units"], sort=False):
        whole[alike.index] = alike.metric.nunique() > 1 and alike.subset.nunique() <= 3  # as train and unseen
    return whole | ~t.task.isin(t.task[whole])


def published(suite: str, models: Sequence[str]) -> dict[tuple[str, str, str], float]:
    """Return the paper's figures for a suite on a model, (task, metric, method) -> value; none for other models."""
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


def _some(t: pd.DataFrame, measures: Measures) -> pd.DataFrame:
    """Return the rows of some (task, metric); all of them where none is named."""
    return t[[key in measures for key in zip(t.task, t.metric, strict=True)]] if measures else t


def _rooted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with squared gaps as roots with their sign."""
    squared, ends = rows.metric == ROOT, ["value", "low", "high", "chance"]
    roots = np.sign(rows[ends]) * rows[ends].abs() ** 0.5
    measure = rows.measure.where(~squared, "signed root of the " + rows.measure)
    return rows.assign(measure=measure, **roots.where(squared, rows[ends], axis=0))


# ---- a line per task, and sentences --------------------------------------------------------------------------


class Line(NamedTuple):
    """Hold what one method (a row of the frame) does to the bias of a task, what that costs, and who got worse."""

    row: Any
    before: str
    after: str
    chance: str
    verdict: str
    costs: str
    worse: str


def lines(t: pd.DataFrame, measures: Measures = ()) -> list[Line]:
    """Return a line per task that has a bias measure with changes.

    Only methods without labels count: the one that `debias` attaches if it was measured, else the one that gains most.
    """
    found = []
    for _, block in t.groupby("task", sort=False):
        own = block[block.whole & ~block.uses_labels]
        bias = _some(own[(own.kind == "bias") & own.change.notna()], measures)
        if bias.empty:
            continue
        lead = bias[bias.metric == next((one for one in LEADS if one in set(bias.metric)), bias.metric.iloc[0])]
        lead = lead[lead.subset == lead.subset.iloc[-1]]  # of train and unseen the last
        rows = sorted(_rooted(lead).itertuples(), key=lambda r: (-RANK.get(r.verdict, 0), -abs(r.change)))
        row = next((r for r in rows if r.method == ATTACHED), rows[0])
        none = _rooted(own[(own.metric == row.metric) & (own.subset == row.subset) & (own.method == NONE)])
        form = ".3f" if abs(row.value) < 10 else ".1f"
        chance = "0" if row.metric == ROOT else "" if np.isnan(row.chance) else f"{row.chance:.3f}"
        cost = own[(own.kind == "utility") & own.change.notna() & (own.method == row.method)]
        cost = cost[(cost.metric != "average") | ("average_reweighted" not in set(cost.metric))]
        costs = list(cost.drop_duplicates("metric", keep="last").itertuples())
        said = [f"{one.title} {one.moved}" for one in costs if one.verdict == "worse"]
        said = said or [f"{one.title} {one.moved} {one.verdict}" for one in costs[:1]] or ["not measured"]
        parts = block[~block.whole & (block.method == row.method) & block.change.notna()]
        lost = parts[parts.verdict == "worse"]
        worse = ""
        if len(lost):
            most = lost.loc[lost.change.abs().idxmax()]
            alike = parts[(parts.metric == most.metric) & (parts.units == most.units)]
            of = f"{int((alike.verdict == 'worse').sum())} of {len(alike)} parts under {most['name']}"
            worse = f"{most.title} got worse in {of}, most {most.subset}: {most.moved}"
        moved = f"{none.value.iloc[0]:{form}}", f"{row.value:{form}}"
        judged = "nothing to remove" if row.at_chance else row.verdict
        found.append(Line(row, *moved, chance, judged, "; ".join(said), worse))
    return found


def opening(t: pd.DataFrame, measures: Measures = ()) -> list[str]:
    """Return a sentence per task: what its bias was and is, under which method, beside chance, and what that costs.

    Distances between texts are left out if anything else was measured: they search, classify or generate nothing.
    """
    found = lines(t, measures)
    return [
        f"{one.row.measure} of {one.row.task}: {one.verdict}, from {one.before} to {one.after} under {one.row.name}"
        f"{f' (chance {one.chance})' if one.chance else ''}; cost: {one.costs}."
        for one in [one for one in found if metric_of(one.row.metric).of != "texts"] or found
    ]


# ---- text -----------------------------------------------------------------------------------------------------


def _headline(t: pd.DataFrame, measures: Measures = ()) -> pd.DataFrame:
    """Return the rows of the wholes, or those of some measures, methods of a measure together."""
    some = _some(t[t.whole], measures)
    return some.iloc[np.argsort(some.groupby(["task", "metric", "subset"], sort=False).ngroup(), kind="stable")]


def text(result: Result, measures: Measures = (), most: int = 40) -> str:
    """Return the summary rows as plain text of a limited number of lines, as `print(result)` and the terminal show.

    The first measures of every task come first.
    """
    t = told(result)
    some = _headline(t, measures)
    blocks: list[tuple[int, list[str]]] = []  # the place of a measure in its task, and its lines
    for (task, measure), rows in some.groupby(["task", "measure"], sort=False):
        hint = f" ({rows.better.iloc[0]} is better)" if rows.better.iloc[0] != "neither" else ""
        body = [f"  {r.name:<19} {r.number:<22} {r.moved:<25} {r.verdict}".rstrip() for r in rows.itertuples()]
        body += [f"  published: {r.name} {r.published:.3f}" for r in rows[rows.published.notna()].itertuples()]
        body += ["  nothing to remove: none is no more biased than random rankings are"] * bool(rows.at_chance.any())
        place = sum(block[0].startswith(f"{task}: ") for _, block in blocks)
        blocks.append((place, [f"{task}: {measure}{hint}", *body]))
    every = [line for _, block in sorted(blocks, key=itemgetter(0)) for line in block]
    notes = [LABELS] if some.uses_labels.any() else []
    shown = every[: most - 2 - len(notes)]
    left = len(t) - sum(line.startswith("  ") for line in shown)
    notes += [f"{left} more figures: to_pandas(), plot(), write()"] if left > 0 else []
    return "\n".join([f"{result.name}: value, and change from none, with 95 % intervals", *shown, *notes])


def tab_rows(result: Result, measures: Measures = ()) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the head and the summary rows with all digits, for programs that read them."""
    some = _headline(told(result), measures)
    columns = [*COLUMNS[:4], "lam", *COLUMNS[4:10], "better", "verdict"]
    some = some.assign(method=some.method.replace(CHANCE, "chance"))[columns].astype(object)
    return tuple(columns), list(some.where(some.notna(), None).itertuples(index=False, name=None))


# ---- the page ------------------------------------------------------------------------------------------------


def plain(value: Any) -> str:
    """Return a setting in readable form, without braces and quotes."""
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {plain(v)}" if v not in ({}, None) else str(k) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


class Grid(NamedTuple):
    """Hold a table of the page; cells: rows of the frame, or None. parts: of groups, queries, prompts; folded."""

    caption: str
    heads: tuple[str, ...]
    rows: list[tuple[str, list[Any]]]
    parts: bool


def grids(block: pd.DataFrame) -> Iterator[Grid]:
    """Yield the tables of a task: methods by summary measures, then parts by methods for each measure."""

    def cells(frame: pd.DataFrame, down: str, across: str) -> list[tuple[str, list[Any]]]:
        there = {(getattr(r, down), getattr(r, across)): r for r in frame.itertuples()}
        return [(name, [there.get((name, key)) for key in frame[across].unique()]) for name in frame[down].unique()]

    for subset, own in block[block.whole].groupby("subset", sort=False):
        better = own.drop_duplicates("title").set_index("title").better
        heads = tuple(f"{title} ({way} is better)" if way != "neither" else title for title, way in better.items())
        yield Grid(str(subset) or "By method", heads, cells(own, "name", "title"), parts=False)
    for title, own in block[~block.whole].groupby("title", sort=False):
        yield Grid(f"{title} by part", tuple(own.name.unique()), cells(own, "subset", "name"), parts=True)


def render(result: Result, path: Path, *, beside: Path) -> Path:
    """Write the page of a result: one HTML file with tables, a plot and pictures inside, and the rows as CSV.

    beside: the folder with the run's pictures that cannot be drawn from rows, such as images of the same seeds.
    """
    there = [(picture_metadata(one), one) for one in sorted(beside.glob("*.png"))]
    there = [(about, one) for about, one in there if about.get("run") == result.name and "caption" in about]
    there.sort(key=lambda one: "side-by-side" not in one[1].stem)  # images open the page, before plots about them
    t, known = told(result), {one.task: one for one in result.provenance}
    found, blocks = lines(t), []
    for task, block in t.groupby("task", sort=False):
        about = known.get(str(task)) or TaskProvenance(task=str(task), description="")
        own = [picture for picture in there[1:] if picture[0].get("task") == task]
        blocks.append({"about": about, "pictures": own, "grids": list(grids(block))})
    first = [(one.row.task, one.row.metric, one.row.subset) for one in found]
    front = t[[key in first for key in zip(t.task, t.metric, t.subset, strict=True)]]
    of_worlds = [p.split.split(" ")[0] in WORLDS or p.model.split(" ")[0] == "miniature" for p in result.provenance]
    values = {
        "result": result,
        "models": list(dict.fromkeys(one.model for one in result.provenance if one.model)),
        "lines": found,
        "lead": there[:1],
        "dots": dots(front) if found else None,
        "blocks": blocks,
        "labels": LABELS if t.uses_labels.any() else "",
        "cartoons": of_worlds and all(of_worlds),
        "published": t.published.notna().any(),
        "csv": result.to_csv(path.with_suffix(".csv")).name,
    }
    return write_page(path, "report", values)


def write_page(path: Path, template: str, values: Mapping[str, Any]) -> Path:
    """Fill a template (report or paper) and write it as one HTML file; no network needed."""
    jinja2 = need("jinja2")
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": plain, "inline": _inline}
    return write_atomically(path, environment.get_template(f"{template}.html.jinja").render(values))


def _inline(picture: Any) -> str:
    """Return a plot, or a file, as base64."""
    buffer = io.BytesIO(picture.read_bytes() if isinstance(picture, Path) else b"")
    if not isinstance(picture, Path):
        picture.savefig(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def dots(rows: pd.DataFrame) -> Plot:
    """Draw a panel per summary measure: a line per method, its value with its interval, and the value at chance.

    A measure has one scale, whatever the task: that of its bounds, else from 0 to the largest end of all its rows.
    """
    rows = _rooted(rows)
    panels = list(rows.groupby(["task", "title", "subset"], sort=False))
    across = min(len(panels), 3)
    down, high = -(-len(panels) // across), max(panel.name.nunique() for _, panel in panels)
    plot, axes = subplots(down, across, (1.4 + 3.1 * across, (0.8 + 0.24 * high) * down))
    for axis, ((task, _, _), panel) in zip(axes, panels, strict=False):
        first, names = panel.iloc[0], list(panel[panel.method != CHANCE].name.unique())
        for r in panel.drop_duplicates("name", keep="last").itertuples():
            if r.method == CHANCE:
                axis.axvspan(r.low, r.high, color=GRID, zorder=0)
                continue
            if r.method == NONE:
                axis.axvline(r.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
            shade = METHODS[r.method].color if r.method in METHODS else OTHERS[sum(r.method.encode()) % len(OTHERS)]
            shade, ends = LABELLED if r.uses_labels else shade, np.maximum([[r.value - r.low], [r.high - r.value]], 0)
            axis.errorbar([r.value], [names.index(r.name)], xerr=ends, fmt="o", markersize=4.5, color=shade, capsize=2)
        axis.set_yticks(range(len(names)), list(map(for_matplotlib, names)))
        axis.set_ylim(len(names) - 0.5, -0.5)
        low, high = metric_of(first.metric).bounds
        same = rows[rows.metric == first.metric]  # one scale of a measure, whatever the task
        low = low if np.isfinite(low) else min(0.0, same.low.min())
        high = high if np.isfinite(high) else max(0.0, same.high.max())
        axis.set_xlim(low - 0.02 * ((high - low) or 1), high + 0.02 * ((high - low) or 1))
        hint = f"\n{first.better} is better" if first.better != "neither" else ""
        axis.set_title(fill(for_matplotlib(f"{task}: {first.measure}"), 44) + hint, fontsize=8.5, color=INK)
        axis.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color(GRID)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot
