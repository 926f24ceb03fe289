"""Determine which held-out scores improved or worsened during training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vldebias.measure.classification import interval_of, lowest_accuracy, mean_accuracy
from vldebias.measure.resampling import (
    percentile_interval,
    resampled_counts,
    wilson_interval,
)
from vldebias.report.conclusion import Conclusion, worded
from vldebias.report.table import TOO_FEW, UNCLEAR, Change, enough_units, from_to, verdict
from vldebias.training.loop import Entry
from vldebias.training.monitor import TO_IMAGE
from vldebias.utils.phrases import capitalised, quantity

Floats = NDArray[np.float32]
Codes = NDArray[np.int64]
RESAMPLES = 2000
TASK = "held-out data"
METHOD = "training"
# Cosine between an image and its captions, which is not a goal in itself.
COSINE = "positive_score"
TITLES = {
    "zero_shot_accuracy": "zero-shot accuracy",
    "zero_shot_worst_class": "worst-class accuracy",
    "zero_shot_worst_group": "worst-group accuracy",
    COSINE: "cosine with the caption",
}
"""Display names of scores on pages and in messages. Other scores are shown as they are."""

WATCHED = ("zero_shot_accuracy", "recall@1 image->text")
"""Scores that show whether training harms the model. The first one that was measured is used, which
is retrieval if the held-out data have no classes."""

END, HALFWAY = "end", "half way"
"""Names of the checkpoints between which a run with held-out data chooses."""

# Scores that training is meant to improve.
LEADS = ("zero_shot_accuracy", "zero_shot_worst_group", "recall@1 image->text")


class Fall(TypedDict):
    """A score that fell during training, as returned by `fall_below_start`."""

    score: str
    before: float
    after: float
    change: list[float]
    first_seen: int | None


def conclusions_of_training(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    cells: Mapping[str, Tensor],
    query_images: Tensor | None = None,
) -> list[Conclusion]:
    """Return a conclusion about each score's change, with its interval.

    Changes are paired: images are resampled together with their scores before and after training
    and with all their captions. The worst class and group are determined again in each resample.

    Args:
        before: scores (n,) of all images by name, as returned by `Monitor.rows`. They are 0 or 1,
            or NaN for images without a score. Cosines are ignored.
        after: scores (n,) of all images after training, in the same form.
        cells: for each worst-case metric, the class or group of each image (n,), as returned by
            `Monitor.cells`. Negative values mean that the image has none.
        query_images: (q,), image of each caption for text->image scores. If None, every image has
            one caption.
    """
    changes: dict[str, Conclusion] = {}
    for name, old, new, groups in _compared(before, after, cells):
        if name.endswith(TO_IMAGE) and query_images is not None:
            measured = _measured_of_captions(name, old, new, query_images.numpy())
        else:
            measured = _measured(name, old, new, groups)
        if measured is not None:
            changes[name] = measured
    conclusions = []
    for name, conclusion in changes.items():
        paying = [cost for cost in changes.values() if cost.metric != name]
        worse = [cost for cost in paying if cost.verdict == "worse"]
        costs = [
            f"{cost.measure} {from_to(cost.before, cost.after, cost.change)}" for cost in worse
        ]
        conclusion = conclusion.model_copy(update={"cost": "; ".join(costs)})
        conclusions.append(conclusion.model_copy(update={"sentence": worded(conclusion)}))
    return conclusions


def change_since_start(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Entry:
    """Return the change in the watched score since the start of training, for the history.

    Args:
        before: scores (n,) of all images by name, as for `conclusions_of_training`.
        after: scores (n,) of all images at the current step, in the same form.

    Returns:
        A dictionary with the change and its paired 95% interval ("NAME change", "NAME change_low"
        and "NAME change_high"), and "below_start", which is True if the entire interval is below 0.
        It is empty if nothing was scored.
    """
    for name, old, new, groups in _compared(before, after, {}):
        measured = _measured(name, old, new, groups) if name in WATCHED else None
        if measured is not None:
            change, low, high = measured.change
            return {
                f"{name} change": change,
                f"{name} change_low": low,
                f"{name} change_high": high,
                "below_start": measured.verdict == "worse",
            }
    return {}


def fall_below_start(conclusions: Sequence[Conclusion], history: Sequence[Entry]) -> Fall | None:
    """Describe the fall of the watched score, or return None if it did not fall.

    Args:
        conclusions: conclusions about the change of each score.
        history: history entries of all steps.

    Returns:
        The name of the score, its values before and after training, its change with a 95% interval,
        and the number of steps after which it first fell below its initial value. The number is
        None if only the final model, whose weights may be averages, is below it.
    """
    watched = [conclusion for conclusion in conclusions if conclusion.metric in WATCHED]
    if not watched or watched[0].verdict != "worse":
        return None
    below = [int(entry["step"]) + 1 for entry in history if entry.get("below_start")]
    return {
        "score": watched[0].metric,
        "before": watched[0].before,
        "after": watched[0].after,
        "change": list(watched[0].change),
        "first_seen": below[0] if below else None,
    }


class Checkpoints(TypedDict):
    """Held-out scores of the two checkpoints between which a run chooses.

    Attributes:
        saved: the checkpoint that is saved, "end" or "half way".
        score: name of the score that decides.
        images: number of held-out images that decide.
        choice: this score of each checkpoint on these images.
        end: all scores at the end of training, on the other images.
        halfway: all scores half way between start and end, on the other images.
    """

    saved: str
    score: str
    images: int
    choice: dict[str, float]
    end: dict[str, float]
    halfway: dict[str, float]


def deciding_score(scores: Mapping[str, float]) -> tuple[str, float]:
    """Return the name and value of the score by which checkpoints are compared.

    This is zero-shot accuracy. Without classes, it is the mean of all recalls, as in VSE++ (Faghri
    et al., 2018), because few pairs can distinguish models by a single recall. The value is 0 if
    features are not finite.

    Args:
        scores: held-out scores, as returned by `Monitor.summary`.
    """
    accuracy = scores.get("zero_shot_accuracy", math.nan)
    if math.isfinite(accuracy):
        return "zero_shot_accuracy", accuracy
    recalls = [value for name, value in scores.items() if name.startswith("recall")]
    return "mean recall", float(np.nan_to_num(np.mean(recalls or 0)))


def describe_choice(checkpoints: Checkpoints) -> str:
    """Return a sentence with the scores of both checkpoints on both halves of the held-out data."""
    name = checkpoints["score"]
    choice = checkpoints["choice"]
    _, end = deciding_score(checkpoints["end"])
    _, halfway = deciding_score(checkpoints["halfway"])
    return (
        f"weights saved: {checkpoints['saved']}. {capitalised(TITLES.get(name, name))} on the"
        f" {checkpoints['images']:,} held-out images that decide is {choice[END]:.3f} at the end of"
        f" training and {choice[HALFWAY]:.3f} half way between its start and end; on the other"
        f" images, it is {end:.3f} and {halfway:.3f}"
    )


def counted(conclusions: Sequence[Conclusion]) -> str:
    """Count scores by verdict: "Of 9 scores on held-out data, 2 improved, 1 worsened; ..."."""
    number_of_verdict = Counter(conclusion.verdict for conclusion in conclusions)
    better = number_of_verdict["better"]
    worse = number_of_verdict["worse"]
    unclear = len(conclusions) - better - worse
    show = "shows" if unclear == 1 else "show"
    return (
        f"Of {quantity(len(conclusions), 'score')} on held-out data, {better or 'none'} improved,"
        f" {worse or 'none'} worsened; {unclear or 'none'} {show} no clear change."
    )


def leading(conclusions: list[Conclusion]) -> list[Conclusion]:
    """Return the conclusions to print, for scores that clearly changed or else the main scores."""
    clear = [conclusion for conclusion in conclusions if conclusion.verdict in ("better", "worse")]
    return clear or [conclusion for conclusion in conclusions if conclusion.metric in LEADS]


def _compared(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], cells: Mapping[str, Tensor]
) -> Iterator[tuple[str, Floats, Floats, Codes]]:
    """Yield the name, values before, values after and cells (n,) of each score in both mappings."""
    for name, scores in before.items():
        if name != COSINE and name in after:
            everywhere = np.zeros(len(scores), dtype=np.int64)
            yield name, scores.numpy(), after[name].numpy(), everywhere
    for name, groups in cells.items():
        if "zero_shot_accuracy" in before:
            scores = before["zero_shot_accuracy"]
            yield name, scores.numpy(), after["zero_shot_accuracy"].numpy(), groups.numpy()


def _measured(name: str, before: Floats, after: Floats, groups: Codes) -> Conclusion | None:
    """Return a conclusion, its cost and sentence not yet set, or None if no image had a score.

    `before` and `after` (n,) are 0 or 1, or NaN for images without a score. `groups` (n,) is
    negative for images without a group.
    """
    scored = np.isfinite(before) & (groups >= 0)
    n = int(scored.sum())
    if n == 0:
        return None
    counts = _counted(before[scored], after[scored], groups[scored])
    drawn = np.concatenate(list(resampled_counts(counts, RESAMPLES, seed=0)))
    if name.startswith("zero_shot_worst"):
        value, interval, change = interval_of(lowest_accuracy, "lowest", counts, drawn)
    else:
        value, interval, change = interval_of(mean_accuracy, "mean", counts, drawn)
    is_finite = bool(np.isfinite(after[scored]).all())
    return _concluded(
        name, value, interval, change, n=n, counted=f"{n:,} images", is_finite=is_finite
    )


def _measured_of_captions(
    name: str, before: Floats, after: Floats, query_images: Codes
) -> Conclusion | None:
    """Return a conclusion about recall over captions if images have several captions.

    `before` and `after` (q,) are 0 or 1. `after` is NaN if features are not finite. `query_images`
    (q,) contains the image of each caption.
    """
    if not len(before):
        return None
    # For each image, count its captions and how many of them are correct before and after. Images
    # with the same three numbers form a cell, so that only cell counts must be resampled.
    _, owners = np.unique(query_images, return_inverse=True)
    columns = (np.ones(len(before)), before, np.nan_to_num(after))
    sums = np.stack([np.bincount(owners, column) for column in columns], axis=1)
    cells, counts = np.unique(sums, axis=0, return_counts=True)
    drawn = np.concatenate(list(resampled_counts(counts, RESAMPLES, seed=0)))
    n_captions, right_before, right_after = counts @ cells
    # Recall before and after in each resample (resamples, 2).
    draws = drawn @ cells[:, 1:] / (drawn @ cells[:, :1])
    value = float(right_after / n_captions)
    n = int(counts.sum())
    interval = percentile_interval(draws[:, 1])
    if value in (0.0, 1.0):
        # If resamples do not vary, use the interval for n independent images.
        interval = wilson_interval(int(value * n), n)
    low, high = percentile_interval(draws[:, 1] - draws[:, 0])
    change = (value - float(right_before / n_captions), low, high)
    queries = f"{len(before):,} captions of {n:,} images"
    is_finite = bool(np.isfinite(after).all())
    return _concluded(name, value, interval, change, n=n, counted=queries, is_finite=is_finite)


def _concluded(
    name: str,
    value: float,
    interval: tuple[float, float],
    change: Change,
    *,
    n: int,
    counted: str,
    is_finite: bool,
) -> Conclusion:
    """Return a conclusion whose cost and sentence are not yet set.

    Args:
        name: name of the score.
        value: score after training.
        interval: interval of the score after training.
        change: change of the score, with its interval.
        n: number of images.
        counted: number of queries, in words.
        is_finite: whether all features after training are finite.
    """
    # The largest possible increase over the score before training.
    to_gain = 1 - (value - change[0])
    judged = verdict(change, "higher")
    if not is_finite:
        judged = "worse"
    elif judged == UNCLEAR and change[2] - change[1] >= to_gain:
        judged = TOO_FEW
    measure = TITLES.get(name, name)
    return Conclusion(
        task=TASK,
        question=f"Did training change the {measure} on held-out data?",
        metric=name,
        subset="",
        measure=measure,
        method=METHOD,
        before=value - change[0],
        after=value,
        interval=interval,
        change=change,
        n=counted,
        enough=enough_units(n, change, to_gain) if judged == TOO_FEW else None,
        verdict=judged,
    )


def _counted(before: Floats, after: Floats, groups: Codes) -> NDArray[np.int64]:
    """Count images (g, 2, 2) by group and by correctness before and after training."""
    _, codes = np.unique(groups, return_inverse=True)
    counts = np.zeros((codes.max() + 1, 2, 2), dtype=np.int64)
    # If features are not finite, answers count as wrong.
    right_after = np.nan_to_num(after).astype(np.int64)
    np.add.at(counts, (codes, before.astype(np.int64), right_after), 1)
    return counts
