"""Present a result: the frame in words, as text, as a page, and a comparison of two results.

All of it comes from the one data frame of `Result.to_pandas` and the provenance. Names of methods, groups and prompts
may hold anything: jinja2 and `for_matplotlib` escape them.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError, need, shortened
from vldebias.evaluation.result import CHANCE, COLUMNS, NONE, Result, TaskProvenance
from vldebias.evaluation.session import WORLDS
from vldebias.files import write_atomically
from vldebias.methods import METHODS
from vldebias.metrics.metric import METRICS, metric_of
from vldebias.pictures import INK, for_matplotlib, picture_metadata, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot

TEMPLATES = Path(__file__).parent / "templates"
DAGGER = "†"  # of methods that were given labels
ATTACHED = "default"  # the method that `debias` attaches where none is named: sentences are about it
FEW = 3  # parts with several measures each that still are a summary, such as train and unseen professions
ROOT = "discrepancy_squared"  # read as a root with its sign, so that it has the unit of the parity gap
MEANING = (
    "Values stand with 95 % intervals in brackets. Under each is its change from “none”, the model as it is, paired: "
    "the same images, queries and seeds. “Better” and “worse” are said only where the interval of the change "
    "excludes zero, “unclear” where it does not, “same” where nothing moved; nothing is said where none is no more "
    "biased than chance. A squared gap is free of the upward bias of few images; its root is shown with its sign. The "
    "intervals are not corrected for how many there are."
)
LABELS = f"{DAGGER} was given labels of training images; the other methods see prompts only."
MINIATURE = (
    "Measured on cartoon people and birds of the miniature world: the figures show the method at work and say "
    "nothing about another model."
)
PUBLISHED = "Tables 7.2 and 7.4 of the thesis (worst group, average, gap) and 7.5 (MaxSkew@1000 on FairFace)"
FRONT = ("task", "measure", "method", "none", "with it", "verdict", "chance", "cost")
GRID, LABELLED = "#e4e7eb", "#c9ccd1"  # of charts: lines, and methods that were given labels
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")  # methods that have no colour of their own
Change = tuple[float, float, float]

# ---- the frame in words --------------------------------------------------------------------------------------


def verdict(change: Change | None, better: str) -> str:
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


def _number(value: float, low: float, high: float, *, sign: str = "", of: float | None = None) -> str:
    """ "0.474 [0.444, 0.506]"; of: the value whose digits count."""
    form = f"{{:{sign}.{_digits(value if of is None else of)}f}}"
    return f"{form} [{form}, {form}]".format(value, low, high)


def _digits(value: float) -> int:
    return 3 if abs(value) < 10 else 1


def told(result: Result) -> pd.DataFrame:
    """Return the frame of a result with the columns that a reader sees.

    Additional columns: title and kind (of the metric), measure (the title with the part), name (of the method, with
    lambda where it has several), number, moved (the change), verdict, whole (of a summary, not one group or query),
    chance (value of random rankings), at_chance (none is no more biased than they are), published (of the paper).
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
        "" if fair else verdict((r.change, r.change_low, r.change_high), r.better)
        for r, fair in zip(rows, t.at_chance, strict=True)
    ]
    known = published(result.name, [one.model for one in result.provenance])
    own = (t.subset == "") & (t.lam.isna() | (t.lam == 1000))
    t["published"] = [known.get((r.task, r.metric, r.method), np.nan) for r in rows]
    t["published"] = t.published.where(own)
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


# ---- a line per task, and sentences --------------------------------------------------------------------------


class Line(NamedTuple):
    """Hold what one method does to the bias of a task, and what that costs.

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


def lines(t: pd.DataFrame, measures: Sequence[tuple[str, str]] = ()) -> list[Line]:
    """Return a line per task that has a bias measure with changes; measures: (task, metric) to choose instead.

    Only methods without labels count: the one that `debias` attaches if it was measured, else the one that gains most.
    """
    found = []
    for _, block in t.groupby("task", sort=False):
        own = block[block.whole & ~block.uses_labels]
        bias = _some(own[(own.kind == "bias") & own.change.notna()], measures)
        if bias.empty:
            continue
        metrics = list(bias.metric.unique())  # corrected by people leads, then what is free of the bias of few images
        leads = (f"corrected_{ROOT}", "corrected_discrepancy", ROOT)
        lead = bias[bias.metric == next((one for one in leads if one in metrics), metrics[0])]
        lead = lead[lead.subset == lead.subset.iloc[-1]].drop_duplicates("method")  # of train and unseen the last
        rank = {"worse": 1, "changed": 2, "better": 3}
        rows = list(lead.itertuples())
        most = max(rows, key=lambda r: (rank.get(r.verdict, 0), abs(r.change)))
        row = next((r for r in rows if r.method == ATTACHED), most)
        if row.metric == ROOT:  # whose value is shown as `_shown` does
            row = row._replace(measure=f"signed root of the {row.measure}")
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
    """Return the summary: where bias fell and under which method, where it did not, and what it cost.

    Distances between texts are left out if anything else was measured: they search, classify or generate nothing.
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


# ---- text -----------------------------------------------------------------------------------------------------


def _headline(t: pd.DataFrame, measures: Sequence[tuple[str, str]] = ()) -> pd.DataFrame:
    """The rows of the wholes, or those of some (task, metric), methods of a measure together."""
    some = _some(t[t.whole], measures)
    return some.iloc[np.argsort(some.groupby(["task", "metric", "subset"], sort=False).ngroup(), kind="stable")]


def _some(t: pd.DataFrame, measures: Sequence[tuple[str, str]]) -> pd.DataFrame:
    """The rows of some (task, metric); all of them where none is named."""
    return t[np.array([(r.task, r.metric) in measures for r in t.itertuples()], dtype=bool)] if measures else t


def text(result: Result, measures: Sequence[tuple[str, str]] = (), most: int = 40) -> str:
    """Return the summary rows as plain text of a limited number of lines, as `print(result)` and the terminal show.

    measures: only these (task, metric). If not all fit, the first measures of every task take priority.
    """
    t = told(result)
    some = _headline(t, measures)
    seen, places = dict[str, int](), list[tuple[int, int]]()
    blocks = list[list[str]]()
    for (task, measure), rows in some.groupby(["task", "measure"], sort=False):
        hint = f" ({rows.better.iloc[0]} is better)" if rows.better.iloc[0] != "neither" else ""
        body = [f"  {r.name:<19} {r.number:<22} {r.moved:<25} {r.verdict}".rstrip() for r in rows.itertuples()]
        paper = [f"  published: {r.name} {r.published:.3f}" for r in rows.itertuples() if r.published == r.published]
        fair = ["  nothing to remove: none is no more biased than random rankings are"] * bool(rows.at_chance.any())
        blocks.append([f"{task}: {measure}{hint}", *body, *paper, *fair])
        places.append((seen.setdefault(str(task), 0), len(places)))
        seen[str(task)] += 1
    notes = [LABELS] if some.uses_labels.any() else []
    room, chosen = most - 2 - len(notes), set[int]()
    for _, i in sorted(places):
        if len(blocks[i]) <= room or not chosen:
            blocks[i] = blocks[i][:room]
            room -= len(blocks[i])
            chosen.add(i)
    shown = [line for i, block in enumerate(blocks) if i in chosen for line in block]
    left = len(t) - sum(line.startswith("  ") for line in shown)
    notes += [f"{left} more figures: to_pandas(), plot(), write()"] if left > 0 else []
    return "\n".join([f"{result.name}: value, and change from none, with 95 % intervals", *shown, *notes])


def tab_rows(
    result: Result, measures: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the head and the summary rows with all digits, for programs that read them."""
    some = _headline(told(result), measures)
    some = some.assign(method=some.method.replace(CHANCE, "chance")).astype(object)
    columns = [*COLUMNS[:4], "lam", *COLUMNS[4:10], "better", "verdict"]
    return tuple(columns), list(some.where(some.notna(), None)[columns].itertuples(index=False, name=None))


# ---- how it was made -----------------------------------------------------------------------------------------


def evidence(result: Result) -> list[tuple[str, Any]]:
    """Return how the run was made, by name: when, by which command, where, with what."""
    names = {"measured": "date", "machine": "platform", "packages": "versions"}
    said = {name: getattr(result, names.get(name, name)) for name in (*names, "seconds", "command", "commit")}
    return [(name, value or "not recorded") for name, value in said.items()]


def facts(about: TaskProvenance) -> list[tuple[str, Any]]:
    """Return what a reader needs to repeat a task, by name; weights appear as the hash of their structure."""
    own = about.model_dump(exclude={"task", "title", "description", "settings", "fingerprint"}) | about.settings
    own |= {"weights fingerprint": (about.fingerprint or {}).get("structure", "not known")}
    return [(name.replace("_", " "), value) for name, value in own.items() if value and name != "advice"]


def plain(value: Any) -> str:
    """Return a setting in readable form, without braces and quotes."""
    if isinstance(value, Mapping):
        return "; ".join(f"{k}: {plain(v)}" if v not in ({}, None) else str(k) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# ---- the page ------------------------------------------------------------------------------------------------


class Grid(NamedTuple):
    """Hold a table of the page; cells: rows of the frame, or None. parts: of groups, queries, prompts; folded."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Any, ...]], ...]
    parts: bool


def grids(block: pd.DataFrame) -> Iterator[Grid]:
    """Yield the tables of a task: methods by summary measures, then parts by methods for each measure."""
    for subset, own in block[block.whole].groupby("subset", sort=False):
        yield Grid(str(subset) or "By method", *_cells(own, "name", "title"), parts=False)
    for title, own in block[~block.whole].groupby("title", sort=False):
        yield Grid(f"{title} by part", *_cells(own, "subset", "name"), parts=True)


def _cells(frame: pd.DataFrame, down: str, across: str) -> tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]:
    cells = {(getattr(r, down), getattr(r, across)): r for r in frame.itertuples()}
    better = dict(zip(frame[across], frame.better, strict=True)) if across == "title" else {}
    hints = {key: f" ({way} is better)" for key, way in better.items() if way != "neither"}
    keys, names = list(frame[across].unique()), frame[down].unique()
    rows = tuple((name, tuple(cells.get((name, key)) for key in keys)) for name in names)
    return tuple(f"{key}{hints.get(key, '')}" for key in keys), rows


def render(result: Result, path: Path, *, beside: Path) -> Path:
    """Write the page of a result: one HTML file with tables, a plot and pictures inside, and the rows as CSV.

    beside: the folder with the run's pictures that cannot be drawn from rows, such as images of the same seeds.
    """
    there = {one: picture_metadata(one) for one in sorted(beside.glob("*.png"))}
    pictures = [(about, p) for p, about in there.items() if about.get("run") == result.name and "caption" in about]
    pictures.sort(key=lambda one: "side-by-side" not in one[1].stem)  # images open the page, before plots about them
    t, about = told(result), {one.task: one for one in result.provenance}
    found, blocks = lines(t), []
    for task, block in t.groupby("task", sort=False):
        of = about.get(str(task)) or TaskProvenance(task=str(task), description="")
        own = [one for one in sorted(pictures[1:], key=itemgetter(1)) if one[0].get("task") == task]
        shown = {"pictures": [_shown_picture(*one) for one in own], "grids": list(grids(block)), "facts": facts(of)}
        advice = list(of.settings.get("advice", ()))
        named = {"task": task, "title": of.title or task, "description": of.description, "advice": advice}
        blocks.append(named | shown)
    first = [(one.row.task, one.row.metric, one.row.subset) for one in found]
    front = t[np.array([key in first for key in zip(t.task, t.metric, t.subset, strict=True)], dtype=bool)]
    notes = {MEANING: True, LABELS: t.uses_labels.any(), MINIATURE: _is_cartoon(result)}
    values = {
        "result": result,
        "models": list(dict.fromkeys(one.model for one in result.provenance if one.model)),
        "opening": opening(t),
        "heads": FRONT,
        "lines": found,
        "lead": [_shown_picture(*one) for one in pictures[:1]],
        "dots": _png(dots(front)) if found else "",
        "blocks": blocks,
        "evidence": evidence(result),
        "notes": [note for note, applies in notes.items() if applies],
        "published": PUBLISHED if t.published.notna().any() else "",
        "csv": result.to_csv(path.with_suffix(".csv")).name,
    }
    return write_page(path, "report", values)


def write_page(path: Path, template: str, values: Mapping[str, Any]) -> Path:
    """Fill a template (report or paper) and write it as one HTML file; no network needed."""
    page: str = _templates(need("jinja2"), need("markupsafe")).get_template(f"{template}.html.jinja").render(values)
    return write_atomically(path, page)


@cache
def _templates(jinja2: Any, markupsafe: Any) -> Any:
    """The environment, which keeps what it has compiled."""

    def soft(text: str) -> Any:
        """May break after a slash or an underscore: names of groups and columns are long on a telephone."""
        return markupsafe.Markup(str(markupsafe.escape(text)).replace("/", "/<wbr>").replace("_", "_<wbr>"))

    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"plain": plain, "soft": soft}
    return environment


def _png(plot: Any) -> str:
    buffer = io.BytesIO()
    plot.savefig(buffer, format="png")
    return base64.b64encode(buffer.getvalue()).decode()


def _shown_picture(about: Mapping[str, Any], path: Path) -> tuple[str, str]:
    return str(about["caption"]), base64.b64encode(path.read_bytes()).decode()


def _is_cartoon(result: Result) -> bool:
    """Whether every task is of the embedded world: of its renders, or of its own models."""
    return bool(result.provenance) and all(
        one.split.split(" ")[0] in WORLDS or one.model.split(" ")[0] == "miniature" for one in result.provenance
    )


def dots(rows: pd.DataFrame) -> Plot:
    """Draw a panel per summary measure: a line per method, its value with its interval, and the value at chance.

    A measure has one scale, whatever the task: that of its bounds, else from 0 to the largest end of all its rows.
    """
    panels = list(rows.groupby(["task", "title", "subset"], sort=False))
    scales = {metric: _scale(str(metric), own) for metric, own in rows.groupby("metric")}
    across = min(len(panels), 3)
    down, high = -(-len(panels) // across), max(panel.name.nunique() for _, panel in panels)
    plot, axes = subplots(down, across, (1.4 + 3.1 * across, (0.8 + 0.24 * high) * down))
    for axis, ((task, _, _), panel) in zip(axes, panels, strict=False):
        methods = panel[panel.method != CHANCE].drop_duplicates("name", keep="last")
        names = list(panel[panel.method != CHANCE].name.unique())
        for r in methods.itertuples():
            shade, ends = _colour(r), [[max(r.value - r.low, 0)], [max(r.high - r.value, 0)]]
            style = {"markersize": 4.5, "color": shade, "ecolor": shade, "capsize": 2.2}
            axis.errorbar([r.value], [names.index(r.name)], xerr=ends, fmt="o", **style)
        for r in panel[panel.method == CHANCE].itertuples():
            axis.axvspan(r.low, r.high, color=GRID, zorder=0)
        for r in panel[panel.method == NONE].itertuples():
            axis.axvline(r.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
        axis.set_yticks(range(len(names)), list(map(for_matplotlib, names)))
        axis.set_ylim(len(names) - 0.5, -0.5)
        axis.set_xlim(*scales[panel.metric.iloc[0]])
        first = panel.iloc[0]
        hint = f"\n{first.better} is better" if first.better != "neither" else ""
        axis.set_title(for_matplotlib(f"{task}: {first.measure}") + hint, fontsize=8.5, color=INK)
        axis.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color(GRID)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot


def _scale(metric: str, rows: pd.DataFrame) -> tuple[float, float]:
    low, high = metric_of(metric).bounds
    low = low if np.isfinite(low) else min(0.0, float(rows.low.min()))
    high = high if np.isfinite(high) else max(0.0, float(rows.high.max()))
    room = 0.02 * ((high - low) or 1.0)
    return low - room, high + room


def _colour(row: Any) -> str:
    """The method's own colour; of other names one that stays the same."""
    if row.uses_labels:
        return LABELLED
    return METHODS[row.method].color if row.method in METHODS else OTHERS[sum(row.method.encode()) % len(OTHERS)]


# ---- two results ---------------------------------------------------------------------------------------------

COMPARED = (
    "Each difference is B less A. The two runs are taken for independent: the half-width towards each side is the root "
    "of the sum of the squared half-widths (MOVER, Zou and Donner 2008), so where both used the same images the "
    "interval is wider than a paired one. “Equal” figures are the same number with the same interval."
)
CONVENTIONS = ("model", "prompts", "prompts_hash", "split", "n", "seeds", "data")
KEYS = ["task", "metric", "subset", "name"]  # the name of a method says lambda and strength where it has several


@dataclass(frozen=True, eq=False)
class Comparison:
    """Hold two results side by side.

    Attributes:
        a, b: what they are called.
        frame: a row for each figure that both have: its names, the values a and b with their intervals, difference,
            low, high and verdict.
        only: what one of them has alone, by "A, its name" and "B, its name".
        warnings: what differs beyond the figures.
    """

    a: str
    b: str
    frame: pd.DataFrame
    only: Mapping[str, list[str]]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Comparison({self.a!r}, {self.b!r}): {self.sentence}"

    def __str__(self) -> str:
        """Return the sentence, the first of the warnings, and the wholes of each task that moved."""
        more = f" (and {len(self.warnings) - 1} more)" if len(self.warnings) > 1 else ""
        out = [self.sentence, *(f"The two differ in more than the figures: {one}{more}" for one in self.warnings[:1])]
        moved = self.frame[self.frame.verdict != "equal"]
        for task, rows in (moved[moved.whole] if moved.whole.any() else moved).groupby("task", sort=False):
            out += [f"\n{task}: A is {self.a}, B is {self.b}"]
            out += [f"  {r.measure}, {r.name}: A {r.number_a}, B {r.number_b}, {r.moved} {r.verdict}"
                    for r in rows.itertuples()]  # fmt: skip
        for name, some in self.only.items():
            more = f"; and {len(some) - 8} more" if len(some) > 8 else ""
            out += [f"\nonly in {name}: {'; '.join(some[:8])}{more}"]
        return "\n".join([*out, f"\n{COMPARED}"] if len(moved) else out)

    @property
    def sentence(self) -> str:
        """Return a summary: how many figures changed, and in which direction."""
        counts, alone = self.frame.verdict.value_counts().to_dict(), sum(map(len, self.only.values()))
        if set(counts) == {"equal"} and not alone:
            return f"Same: all {len(self.frame)} figures are equal."
        order = ("better", "worse", "changed", "unclear", "same", "equal")
        said = ", ".join(f"{counts[name]} {name}" for name in order if name in counts)
        end = f"; {alone} in one alone." if alone else "."
        return f"Of {len(self.frame)} figures that both have, {said} in B{end}"

    def to_pandas(self) -> pd.DataFrame:
        """Return names, both values with their intervals, difference and verdict, a row per shared figure."""
        sides = ["a", "low_a", "high_a", "b", "low_b", "high_b"]
        return self.frame[["task", "metric", "method", "subset", "lam", *sides, "difference", "low", "high", "verdict"]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        figures = self.to_pandas().astype(object)
        about = {"a": self.a, "b": self.b, "method": COMPARED, "warnings": list(self.warnings)}
        return {**about, "figures": figures.where(figures.notna(), None).to_dict("records"), "only": dict(self.only)}


def compare(a: Result, b: Result, names: tuple[str, str] | None = None) -> Comparison:
    """Match rows by task, metric, part and method, with lambda and strength where a method has several; B less A.

    Args:
        a, b: two results, such as of two models or before and after a change.
        names: what to call them; by default their own names.

    Raises:
        InvalidInputError: no row is in both, or one result has two rows of the same names.
    """
    sides = [told(one) for one in (a, b)]
    for one, side in zip((a, b), sides, strict=True):
        if len(twice := side[side.duplicated(KEYS)]):
            raise InvalidInputError(f"{one.name}: the figure {tuple(twice[KEYS].iloc[0])} is there twice; expected one")
    both = sides[1].merge(sides[0], on=KEYS, suffixes=("_b", "_a"))
    if both.empty:
        tasks = [list(dict.fromkeys(row.task for row in one.rows)) for one in (a, b)]
        raise InvalidInputError(
            f"no figure is in both {a.name!r} and {b.name!r}: tasks are {tasks[0]} and {tasks[1]}; "
            "expected two results of the same suite"
        )
    frame = both.rename(columns={"value_a": "a", "value_b": "b"})
    frame = frame.rename(columns={f"{one}_b": one for one in ("method", "lam", "better", "whole", "measure")})
    frame["difference"] = frame.b - frame.a
    frame["low"] = frame.difference - np.hypot(frame.b - frame.low_b, frame.high_a - frame.a)
    frame["high"] = frame.difference + np.hypot(frame.high_b - frame.b, frame.a - frame.low_a)
    equal = (frame.a == frame.b) & (frame.low_a == frame.low_b) & (frame.high_a == frame.high_b)
    moved = list(zip(frame.difference, frame.low, frame.high, strict=True))
    frame["verdict"] = [
        "equal" if same else verdict(by, better) for same, by, better in zip(equal, moved, frame.better, strict=True)
    ]
    frame["moved"] = ["" if same else f"{by[0]:+.3f} [{by[1]:+.3f}, {by[2]:+.3f}]"
                      for same, by in zip(equal, moved, strict=True)]  # fmt: skip
    first, second = names or (a.name, b.name)
    there = set(frame[KEYS].itertuples(index=False, name=None))
    only = {called: [f"{r.task}: {r.measure}, {r.name}" for r in side.itertuples()
                     if (r.task, r.metric, r.subset, r.name) not in there]
            for called, side in zip((f"A, {first}", f"B, {second}"), sides, strict=True)}  # fmt: skip
    notes = tuple(dict.fromkeys(_notes(a, b)))
    return Comparison(first, second, frame, {called: some for called, some in only.items() if some}, notes)


def _notes(a: Result, b: Result) -> Iterator[str]:
    """What differs between two runs beyond the numbers."""
    pairs: list[tuple[str, str, Any, Any]] = [("the run", "commit", a.commit, b.commit)]
    for name in dict.fromkeys([*a.versions, *b.versions]):
        pairs.append(("the run", f"version of {name}", a.versions.get(name), b.versions.get(name)))
    there = {one.task: one for one in a.provenance}
    for two in (one for one in b.provenance if one.task in there):
        one = there[two.task]
        pairs += [(two.task, what.replace("_", " "), getattr(one, what), getattr(two, what)) for what in CONVENTIONS]
        mine, other = Fingerprint.of(one.fingerprint), Fingerprint.of(two.fingerprint)
        if mine is not None and not mine.matches(other):
            pairs.append((two.task, "fingerprint of the weights", one.fingerprint, two.fingerprint))
        for what, first, second in (("setting", one.settings, two.settings), ("method", one.methods, two.methods)):
            names = dict.fromkeys([*first, *second])
            pairs += [(two.task, f"{what} {name}", first.get(name), second.get(name)) for name in names]
    for where, what, first, second in pairs:
        if first != second:
            said = [shortened(plain(value), 90) for value in (first, second)]
            yield f"{where}: {what} differs: {said[0]} in A, {said[1]} in B"
