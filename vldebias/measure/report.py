"""Show a result as text, as a page, and compared with another result, from its data frame and
provenance alone.

Names of methods, groups and prompts may hold anything: jinja2 and `for_matplotlib` escape them.
"""

from __future__ import annotations

import base64
import contextlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError, need, shortened
from vldebias.files import write_atomically
from vldebias.measure.metric import get_metric
from vldebias.measure.result import CHANCE, COLUMNS, NONE, Result, TaskProvenance
from vldebias.methods import METHODS
from vldebias.miniature.words import WORLDS
from vldebias.pictures import INK, for_matplotlib, read_png, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot

TEMPLATES = Path(__file__).parent / "templates"
DAGGER = "†"  # of methods that were given labels
ATTACHED = (  # the method that `debias` attaches where none is named: sentences are about it
    "default"
)
# shown as a root with its sign, so that it has the unit of the parity gap
ROOT = "discrepancy_squared"
LEADS = (
    f"corrected_{ROOT}",
    "corrected_discrepancy",
    ROOT,
)  # corrected by people, then free of the bias of few images
RANK = {"better": -3, "changed": -2, "worse": -1}
LABELS = f"{DAGGER} was given labels of training images; the other methods see prompts only."
COMPARED = (
    "Differences are B less A, of two runs taken for independent: half-widths are added in squares"
    " (MOVER, Zou and Donner 2008), wider than a paired interval. “Equal” figures are the same"
    " number with the same interval."
)
GRID, LABELLED = "#e4e7eb", "#c9ccd1"  # of charts: lines, and methods that were given labels
OTHERS = ("#d9a441", "#b4656f", "#7d6b91", "#5f7a4f")  # methods that have no colour of their own
Measures = Sequence[tuple[str, str]]  # (task, metric) to show; all where there are none


def verdict(change: tuple[float, float, float] | None, better: str) -> str:
    """Return better or worse if the interval of a difference (value, low, high) excludes zero, else
    unclear.

    "same" where nothing changed, "changed" where neither direction is better, "" where there is no
    difference.
    """
    if change is None or np.isnan(change[0]):
        return ""
    _, low, high = change
    if low <= 0 <= high:
        return "same" if low == high else "unclear"
    if better not in ("higher", "lower"):
        return "changed"
    return "better" if (low > 0) == (better == "higher") else "worse"


def told(result: Result) -> pd.DataFrame:
    """Return the frame of a result with columns for readers.

    These are title and kind (of the metric), hint (which way is better), measure (title and part),
    name (of the method, with lambda where it has several), number, moved (the change), verdict,
    whole (of a summary, not one group or query), before (value of none), chance (of random
    rankings), at_chance (none is no more biased), published.
    """
    t, keys = result.to_pandas(), ["task", "metric", "subset"]
    about = {name: get_metric(name, strict=False) for name in t.metric.unique()}
    t["title"], t["kind"] = (
        t.metric.map(lambda name: about[name].title),
        t.metric.map(lambda name: about[name].kind),
    )
    t["hint"] = (" (" + t.better + " is better)").where(t.better != "neither", "")
    t["measure"] = t.title + t.subset.where(t.subset == "", ", " + t.subset)
    t["units"] = [tuple(row.n) for row in result.rows]
    t["whole"] = t.subset == ""
    # Of a task without wholes a few parts with several measures, such as train and unseen
    # professions; else all.
    for _, alike in t[~t.task.isin(t.task[t.whole])].groupby(["task", "units"]):
        t.loc[alike.index, "whole"] = alike.metric.nunique() > 1 and alike.subset.nunique() <= 3
    t["whole"] |= ~t.task.isin(t.task[t.whole])
    wholes = t[t.whole].drop_duplicates([*keys, "method"], keep="last").set_index(keys)
    none, chance = (
        t[keys].join(wholes[wholes.method == method], on=keys) for method in (NONE, CHANCE)
    )
    t["before"] = none.value.fillna((t.value - t.change).round(12))
    t["chance"] = (
        chance.value
    )  # nothing to remove where none is within it: no method is praised or blamed there
    t["at_chance"] = np.where(
        t.better == "higher", none.value >= chance.low, none.value <= chance.high
    )
    several = (
        t.groupby([*keys, "method"])[["lam", "strength"]].transform("nunique", dropna=False) > 1
    )
    t["name"] = t.method.replace(CHANCE, "chance") + np.where(t.uses_labels, DAGGER, "")
    for column, word in (("lam", ", λ = "), ("strength", ", strength ")):
        t["name"] += (word + t[column].map("{:g}".format)).where(
            several[column] & t[column].notna(), ""
        )
    known = published(result.name, result.provenance[0].model if result.provenance else "")
    shown: dict[str, list[Any]] = {name: [] for name in ("number", "moved", "verdict", "published")}
    for r in t.itertuples():
        form = "{:.3f} [{:.3f}, {:.3f}]" if abs(r.value) < 10 else "{:.1f} [{:.1f}, {:.1f}]"
        change = (r.change, r.change_low, r.change_high)
        shown["number"].append(form.format(r.value, r.low, r.high))
        shown["moved"].append("" if np.isnan(r.change) else form.replace(":", ":+").format(*change))
        shown["verdict"].append("" if r.at_chance else verdict(change, r.better))
        own = known.get((r.task, r.metric, r.method, r.subset), np.nan)
        shown["published"].append(own if np.isnan(r.lam) or r.lam == 1000 else np.nan)
    return t.assign(**shown)


def published(suite: str, model: str) -> dict[tuple[str, str, str, str], float]:
    """Return the paper's figures for a suite on a model: (task, metric, method, subset) -> value;
    {} for others."""
    name = "".join(filter(str.isalnum, model.lower()))
    t = need("pandas").read_csv(TEMPLATES / "published.csv", keep_default_na=False)
    own = t.model.map(
        lambda spelt: bool(re.search(spelt, name))
    )  # as letters and digits of the name
    rows = t[(t.suite == suite) & own & (re.search("laion|datacomp|336", name) is None)]
    return {(r.task, r.metric, r.method, r.subset): float(r.value) for r in rows.itertuples()}


def _some(t: pd.DataFrame, measures: Measures) -> pd.DataFrame:
    """Return the rows of some (task, metric); all of them where none is named."""
    return t[[key in measures for key in zip(t.task, t.metric, strict=True)]] if measures else t


def _rooted(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with squared gaps as roots with their sign."""
    squared, ends = rows.metric == ROOT, ["value", "low", "high", "chance", "before"]
    roots = np.sign(rows[ends]) * rows[ends].abs() ** 0.5
    measure = rows.measure.where(~squared, "signed root of the " + rows.measure)
    return rows.assign(measure=measure, **roots.where(squared, rows[ends], axis=0))


def lines(t: pd.DataFrame, measures: Measures = ()) -> list[Any]:
    """Return what a method does to the bias of each task that has a measure of it, what that costs,
    and who got worse.

    Only methods without labels count: the one that `debias` attaches if it was measured, else the
    one that gains most. A line has its row of the frame, and as texts before, after, chance,
    verdict, costs and worse.
    """
    found = []
    for _, block in t[t.change.notna()].groupby("task", sort=False):
        own = block[block.whole & ~block.uses_labels]
        bias = _some(own[own.kind == "bias"], measures)
        if bias.empty:
            continue
        lead = bias[
            bias.metric
            == next((one for one in LEADS if one in set(bias.metric)), bias.metric.iloc[0])
        ]
        lead = lead[lead.subset == lead.subset.iloc[-1]]  # of train and unseen the last
        ranked = sorted(
            _rooted(lead).itertuples(), key=lambda r: (RANK.get(r.verdict, 0), -abs(r.change))
        )
        row = next((r for r in ranked if r.method == ATTACHED), ranked[0])
        form = ".3f" if abs(row.value) < 10 else ".1f"
        chance = "0" if row.metric == ROOT else "" if np.isnan(row.chance) else f"{row.chance:.3f}"
        costs = own[(own.kind == "utility") & (own.method == row.method)].drop_duplicates(
            "metric", keep="last"
        )
        costs = costs[(costs.metric != "average") | ("average_reweighted" not in set(costs.metric))]
        said = [f"{one.title} {one.moved}" for one in costs[costs.verdict == "worse"].itertuples()]
        said = (
            said
            or [f"{one.title} {one.moved} {one.verdict}" for one in costs[:1].itertuples()]
            or ["not measured"]
        )
        parts, worse = block[~block.whole & (block.method == row.method)], ""
        lost = parts[parts.verdict == "worse"]
        if len(lost):
            most = lost.loc[lost.change.abs().idxmax()]
            alike = parts[(parts.metric == most.metric) & (parts.units == most.units)]
            of = f"{(alike.verdict == 'worse').sum()} of {len(alike)} parts under {most['name']}"
            worse = f"{most.title} got worse in {of}, most {most.subset}: {most.moved}"
        judged = "nothing to remove" if row.at_chance else row.verdict
        shown = {
            "before": f"{row.before:{form}}",
            "after": f"{row.value:{form}}",
            "chance": chance,
            "verdict": judged,
        }
        found.append(SimpleNamespace(row=row, **shown, costs="; ".join(said), worse=worse))
    return found


def opening(t: pd.DataFrame, measures: Measures = ()) -> list[str]:
    """Return a sentence per task: what its bias was and is, under which method, beside chance, and
    what that costs.

    Distances between texts are left out if anything else was measured: they search, classify or
    generate nothing.
    """
    found = lines(t, measures)
    return [
        f"{one.row.measure} of {one.row.task}: {one.verdict}, from {one.before} to {one.after}"
        f" under {one.row.name}{f' (chance {one.chance})' if one.chance else ''}; cost:"
        f" {one.costs}."
        for one in [one for one in found if get_metric(one.row.metric, strict=False).of != "texts"]
        or found
    ]


def text(result: Result, measures: Measures = (), most: int = 40) -> str:
    """Return the summary rows as text of about `most` lines, for `print`: the first measures of
    every task first."""
    t = told(result)
    some, every = _some(t[t.whole], measures), list[str]()
    some = some.assign(place=some.groupby("task").measure.transform(lambda of: of.factorize()[0]))
    some = some.sort_values("place", kind="stable")
    for (_, task, measure), rows in some.groupby(["place", "task", "measure"], sort=False):
        every.append(f"{task}: {measure}{rows.hint.iloc[0]}")
        every += [
            f"  {r.name:<19} {r.number:<22} {r.moved:<25} {r.verdict}".rstrip()
            for r in rows.itertuples()
        ]
        every += [
            f"  published: {r.name} {r.published:.3f}"
            for r in rows[rows.published.notna()].itertuples()
        ]
        every += ["  nothing to remove: none is no more biased than random rankings are"] * bool(
            rows.at_chance.any()
        )
    notes = [LABELS] if some.uses_labels.any() else []
    shown = every[: most - 2 - len(notes)]
    left = len(t) - sum(line.startswith("  ") for line in shown)
    notes += [f"{left} more figures: to_pandas(), plot(), write()"] if left > 0 else []
    return "\n".join(
        [f"{result.name}: value, and change from none, with 95 % intervals", *shown, *notes]
    )


def tab_rows(
    result: Result, measures: Measures = ()
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the head and the summary rows with all digits, for programs that read them."""
    t = told(result)
    columns = (*COLUMNS[:4], "lam", *COLUMNS[4:10], "better", "verdict")
    some = (
        _some(t[t.whole], measures)
        .replace({"method": {CHANCE: "chance"}})[list(columns)]
        .astype(object)
    )
    return columns, list(some.where(some.notna(), None).itertuples(index=False, name=None))


def plain(value: Any) -> str:
    """Return a setting in readable form, without braces and quotes."""
    if isinstance(value, Mapping):
        return "; ".join(
            f"{k}: {plain(v)}" if v not in ({}, None) else str(k) for k, v in value.items()
        )
    if isinstance(value, (list, tuple)):
        return ", ".join(map(plain, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def grids(
    block: pd.DataFrame,
) -> Iterator[tuple[str, list[str], list[tuple[str, list[Any]]], bool]]:
    """Yield (caption, heads, rows of cells, or None, whether of parts): methods by measures, parts
    by methods."""
    block = block.assign(title=block.title + block.hint.where(block.whole, ""))
    for parts, of, down, across in (
        (False, "subset", "name", "title"),
        (True, "title", "subset", "name"),
    ):
        for caption, own in block[block.whole != parts].groupby(of, sort=False):
            there = {(getattr(r, down), getattr(r, across)): r for r in own.itertuples()}
            heads = list(own[across].unique())
            rows = [
                (name, [there.get((name, head)) for head in heads]) for name in own[down].unique()
            ]
            yield f"{caption} by part" if parts else str(caption) or "By method", heads, rows, parts


def render(result: Result, path: Path, *, beside: Path) -> Path:
    """Write the page of a result: one HTML file with tables, a plot and pictures inside, and the
    rows as CSV.

    beside: the folder with the run's pictures that cannot be drawn from rows, such as images of the
    same seeds.
    """
    files = sorted(
        beside.glob("*.png"), key=lambda one: ("side-by-side" not in one.stem, one)
    )  # images come first
    there = []
    for one in files:
        with contextlib.suppress(OSError):  # a file of somebody else that is no PNG
            metadata = read_png(one, pixels=False)[1]
            if metadata.get("run") == result.name and "caption" in metadata:
                there.append((metadata, one.read_bytes()))
    t, known = told(result), {one.task: one for one in result.provenance}
    found, blocks = lines(t), []
    for task, block in t.groupby("task", sort=False):
        about = known.get(str(task)) or TaskProvenance(task=str(task), description="")
        own = [picture for picture in there[1:] if picture[0].get("task") == task]
        blocks.append({"about": about, "pictures": own, "grids": list(grids(block))})
    first = [(one.row.task, one.row.metric, one.row.subset) for one in found]
    front = t[[key in first for key in zip(t.task, t.metric, t.subset, strict=True)]]
    of_worlds = [
        p.split.split(" ")[0] in WORLDS or p.model.split(" ")[0] == "miniature"
        for p in result.provenance
    ]
    models, plot = dict.fromkeys(one.model for one in result.provenance if one.model), io.BytesIO()
    if found:
        dots(front).savefig(plot, format="png")
    values = {
        "result": result,
        "models": list(models),
        "lines": found,
        "lead": there[:1],
        "blocks": blocks,
    }
    values |= {
        "dots": plot.getvalue(),
        "cartoons": of_worlds and all(of_worlds),
        "published": any(t.published.notna()),
    }
    values |= {
        "labels": LABELS if t.uses_labels.any() else "",
        "csv": result.to_csv(path.with_suffix(".csv")).name,
    }
    return write_page(path, "report", values)


def write_page(path: Path, template: str, values: Mapping[str, Any]) -> Path:
    """Fill a template (report or paper) and write it as one HTML file; no network needed."""
    jinja2 = need("jinja2")
    loader = jinja2.FileSystemLoader(TEMPLATES)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"plain": plain, "inline": lambda png: base64.b64encode(png).decode()}
    return write_atomically(path, environment.get_template(f"{template}.html.jinja").render(values))


def dots(rows: pd.DataFrame) -> Plot:
    """Draw a panel per summary measure: a line per method, its value with its interval, and the
    value at chance.

    A measure has one scale, whatever the task: that of its bounds, else from 0 to the largest end
    of all its rows.
    """
    rows = _rooted(rows)
    panels = list(rows.groupby(["task", "title", "subset"], sort=False))
    across = min(len(panels), 3)
    down, high = -(-len(panels) // across), max(panel.name.nunique() for _, panel in panels)
    plot, axes = subplots(down, across, (1.4 + 3.1 * across, (0.8 + 0.24 * high) * down))
    for axis, ((task, _, _), panel) in zip(axes, panels, strict=False):
        points = panel[panel.method != CHANCE].drop_duplicates("name")
        for r in panel[panel.method == CHANCE].itertuples():
            axis.axvspan(r.low, r.high, color=GRID, zorder=0)
        for r in points[points.method == NONE].itertuples():
            axis.axvline(r.value, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1)
        for place, r in enumerate(points.itertuples()):
            shade = (
                METHODS[r.method].color
                if r.method in METHODS
                else OTHERS[sum(r.method.encode()) % len(OTHERS)]
            )
            shade, ends = (
                LABELLED if r.uses_labels else shade,
                np.maximum([[r.value - r.low], [r.high - r.value]], 0),
            )
            axis.errorbar(
                [r.value], [place], xerr=ends, fmt="o", markersize=4.5, color=shade, capsize=2
            )
        axis.set_yticks(range(len(points)), list(map(for_matplotlib, points.name)))
        axis.set_ylim(len(points) - 0.5, -0.5)
        first = panel.iloc[0]
        same, (low, high) = (
            rows[rows.metric == first.metric],
            get_metric(first.metric, strict=False).bounds,
        )
        low = low if np.isfinite(low) else min(0.0, same.low.min())
        high = high if np.isfinite(high) else max(0.0, same.high.max())
        margin = 0.02 * ((high - low) or 1)
        axis.set_xlim(low - margin, high + margin)
        title = (
            fill(for_matplotlib(f"{task}: {first.measure}"), 44)
            + f"\n{first.hint.strip(' ()')}".rstrip()
        )
        axis.set_title(title, fontsize=8.5, color=INK)
        axis.grid(axis="x", color=GRID, linewidth=0.7, zorder=0)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=8, colors=INK, length=0)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.spines["bottom"].set_color(GRID)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    plot.tight_layout()
    return plot


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Hold two results side by side.

    names: what they are called. frame: a row for each figure that both have: its names, the values
    a and b with their intervals, difference, low, high and verdict. only: what one of them has
    alone, by "A, its name" and "B, its name".
    warnings: what differs beyond the figures.
    """

    names: tuple[str, str]
    frame: pd.DataFrame
    only: Mapping[str, list[str]]
    warnings: tuple[str, ...]

    def __repr__(self) -> str:
        """Return how many figures changed, the first of the warnings, and the wholes of each task
        that moved."""
        counts = self.frame.verdict.value_counts().items()
        out = [
            f"Of {len(self.frame)} figures that both have, in B:"
            f" {', '.join(f'{n} {name}' for name, n in counts)}."
        ]
        more = f" (and {len(self.warnings) - 1} more)" if len(self.warnings) > 1 else ""
        out += [
            f"The two differ in more than the figures: {one}{more}" for one in self.warnings[:1]
        ]
        moved = self.frame[self.frame.verdict != "equal"]
        for task, rows in (moved[moved.whole] if moved.whole.any() else moved).groupby(
            "task", sort=False
        ):
            out.append("\n{}: A is {}, B is {}".format(task, *self.names))
            out += [
                f"  {r.measure}, {r.name}: A {r.number_a}, B {r.number}, {r.moved} {r.verdict}"
                for r in rows.itertuples()
            ]
        out += [
            f"\nonly in {name}: {shortened('; '.join(some), 600)}"
            for name, some in self.only.items()
        ]
        return "\n".join([*out, f"\n{COMPARED}"] if len(moved) else out)

    def to_pandas(self) -> pd.DataFrame:
        """Return names, both values with their intervals, difference and verdict, a row per shared
        figure."""
        sides = ["a", "low_a", "high_a", "b", "low_b", "high_b"]
        return self.frame[
            [
                "task",
                "metric",
                "method",
                "subset",
                "lam",
                *sides,
                "difference",
                "low",
                "high",
                "verdict",
            ]
        ]


def compare(a: Result, b: Result, names: tuple[str, str] | None = None) -> Comparison:
    """Match rows by task, metric, part and method, with lambda and strength where a method has
    several; B less A.

    a, b: two results, such as of two models or before and after a change. names: what to call them.
    Results without a shared row, and two rows of the same names in one of them, raise
    InvalidInputError.
    """
    names = names or (a.name, b.name)
    one, two = (
        told(side).set_index(["task", "metric", "subset", "name"], drop=False) for side in (a, b)
    )
    sides = {f"A, {names[0]}": one, f"B, {names[1]}": two}
    for called, side in sides.items():
        if len(twice := side.index[side.index.duplicated()]):
            raise InvalidInputError(f"{called}: got the figure {twice[0]} twice; expected it once")
    shared = two.index.intersection(one.index, sort=False)
    if shared.empty:
        tasks = f"A has tasks {list(one.task.unique())}, B {list(two.task.unique())}"
        raise InvalidInputError(
            f"got no figure in both: {tasks}; expected two results of the same suite"
        )
    x, y = one.loc[shared], two.loc[shared]
    t = y.assign(
        a=x.value,
        low_a=x.low,
        high_a=x.high,
        number_a=x.number,
        b=y.value,
        low_b=y.low,
        high_b=y.high,
    )
    t = t.assign(difference=t.b - t.a).reset_index(drop=True)
    t["low"] = t.difference - np.hypot(t.b - t.low_b, t.high_a - t.a)
    t["high"] = t.difference + np.hypot(t.high_b - t.b, t.a - t.low_a)
    moved = list(zip(t.difference, t.low, t.high, strict=True))
    t["verdict"] = [verdict(by, better) for by, better in zip(moved, t.better, strict=True)]
    t["moved"] = ["{:+.3f} [{:+.3f}, {:+.3f}]".format(*by) for by in moved]
    t.loc[(t.a == t.b) & (t.low_a == t.low_b) & (t.high_a == t.high_b), ["verdict", "moved"]] = [
        "equal",
        "",
    ]
    alone = {
        called: rest
        for called, side in sides.items()
        if len(rest := side[~side.index.isin(shared)])
    }
    only = {
        called: [f"{r.task}: {r.measure}, {r.name}" for r in rest.itertuples()]
        for called, rest in alone.items()
    }
    return Comparison(names, t, only, tuple(dict.fromkeys(_notes(a, b))))


def _notes(a: Result, b: Result) -> Iterator[str]:
    """Yield what differs between two runs beyond the numbers."""

    def differing(where: str, *settings: dict[str, Any]) -> Iterator[str]:
        x, y = (need("pandas").json_normalize(one, sep=", ").iloc[0].map(plain) for one in settings)
        for name in dict.fromkeys([*x.index, *y.index]):
            if (here := x.get(name, "none")) != (there := y.get(name, "none")):
                yield (
                    f"{where}, {name} differs: {shortened(here, 90)} in A, {shortened(there, 90)}"
                    " in B"
                )

    yield from differing(
        "the run", *(one.model_dump(include={"commit", "versions"}) for one in (a, b))
    )
    before, texts = (
        {one.task: one for one in a.provenance},
        {"task", "title", "description", "fingerprint"},
    )
    for two in (two for two in b.provenance if two.task in before):
        both = before[two.task], two
        yield from differing(two.task, *(one.model_dump(exclude=texts) for one in both))
        mine, other = (
            None if one.fingerprint is None else Fingerprint(**one.fingerprint) for one in both
        )
        if mine is not None and not mine.matches(other):
            yield f"{two.task}: fingerprint of the weights differs"
