"""Conclude from the held-out scores of each image what a training made better or worse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vldebias.measure.classification import interval_of, lowest_accuracy, mean_accuracy
from vldebias.measure.resampling import (
    percentile_interval,
    resampled_counts,
    wilson_interval,
)
from vldebias.report.conclusion import Conclusion, paid, worded
from vldebias.report.phrases import quantity
from vldebias.report.table import TOO_FEW, UNCLEAR, Change, enough_units, verdict
from vldebias.training.loop import Entry
from vldebias.training.monitor import TO_IMAGE

Floats = NDArray[np.float32]
Codes = NDArray[np.int64]
RESAMPLES = 2000
TASK = "held-out data"
METHOD = "training"
COSINE = "positive_score"  # of an image with its caption; nobody trains for it
TITLES = {
    "zero_shot_accuracy": "zero-shot accuracy",
    "zero_shot_worst_class": "worst-class accuracy",
    "zero_shot_worst_group": "worst-group accuracy",
    COSINE: "cosine with the caption",
}
"""What readers call a score; the others go by their names."""

WATCHED = ("zero_shot_accuracy", "recall@1 image->text")
"""The scores that show whether a training harms the model: the first one that was measured counts,
retrieval if the held-out data have no classes."""

# The scores that people train for.
LEADS = ("zero_shot_accuracy", "zero_shot_worst_group", "recall@1 image->text")


def conclusions_of_training(
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    cells: Mapping[str, Tensor],
    query_images: Tensor | None = None,
) -> list[Conclusion]:
    """Return a conclusion for each score, with an interval of its change.

    Changes are paired: images are resampled, each with its score before and after, and with all its
    captions. The worst class and the worst group are picked again in each resample.

    Args:
        before: name -> score (n,) of each image, 0 or 1, NaN if it has none, as `Monitor.rows`
            returns them; cosines are left out.
        after: the same after the training.
        cells: name of a lowest accuracy -> class or group (n,) of each image, negative where it is
            in none, as `Monitor.cells` returns them.
        query_images: (q,) the image of each caption, which the scores text->image are of; None
            where every image has one.
    """
    changes = {}
    for name, old, new, groups in _compared(before, after, cells):
        if name.endswith(TO_IMAGE) and query_images is not None:
            measured = _measured_of_captions(name, old, new, query_images.numpy())
        else:
            measured = _measured(name, old, new, groups)
        if measured is not None:
            changes[name] = measured
    conclusions = []
    for name, facts in changes.items():
        lost = []
        for cost_name, cost in changes.items():
            if cost_name != name and cost["verdict"] == "worse":
                lost.append(paid(cost["measure"], cost["before"], cost["after"], cost["change"]))
        facts = facts | {"cost": "; ".join(lost)}
        conclusion = Conclusion(**facts, sentence="")
        sentence = worded(conclusion)
        conclusions.append(conclusion.model_copy(update={"sentence": sentence}))
    return conclusions


def change_since_start(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Entry:
    """Return how far the watched score moved since the start of the training, for its history.

    Args:
        before: name -> score (n,) of each image, as `conclusions_of_training` takes them.
        after: the same now.

    Returns:
        "NAME change", "NAME change_low" and "NAME change_high", the paired 95 % interval, and
        "below_start", whether the whole interval lies below 0. Empty if nothing was scored.
    """
    for name, old, new, groups in _compared(before, after, {}):
        facts = _measured(name, old, new, groups) if name in WATCHED else None
        if facts is not None:
            change, low, high = facts["change"]
            return {
                f"{name} change": change,
                f"{name} change_low": low,
                f"{name} change_high": high,
                "below_start": facts["verdict"] == "worse",
            }
    return {}


def fall_below_start(
    conclusions: Sequence[Conclusion], history: Sequence[Entry]
) -> dict[str, Any] | None:
    """Return what is known about a training that left its watched score below the start, else None.

    Args:
        conclusions: about the change of each score.
        history: entries of all steps.

    Returns:
        The name of the score, its value before and after, its change with the 95 % interval, and
        the number of steps after which the history shows it below its start for the first time;
        None if only the last model, whose weights may be averages, is below.
    """
    watched = [found for found in conclusions if found.metric in WATCHED]
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


def counted(conclusions: Sequence[Conclusion]) -> str:
    """Write how many scores moved which way: "Of 9 scores on held-out data 2 got better, 1 worse;
    6 show no clear change."."""
    number_of_verdict = Counter(found.verdict for found in conclusions)
    better = number_of_verdict["better"]
    worse = number_of_verdict["worse"]
    unclear = len(conclusions) - better - worse
    return (
        f"Of {quantity(len(conclusions), 'score')} on held-out data {better or 'none'} got better,"
        f" {worse or 'none'} worse; {unclear or 'none'} without a clear change."
    )


def leading(conclusions: list[Conclusion]) -> list[Conclusion]:
    """Return the conclusions to say in words: of scores that clearly moved; where none did, of the
    scores that people train for."""
    clear = [found for found in conclusions if found.verdict in ("better", "worse")]
    return clear or [found for found in conclusions if found.metric in LEADS]


def _compared(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], cells: Mapping[str, Tensor]
) -> Iterator[tuple[str, Floats, Floats, Codes]]:
    """Yield name, score before, score after and cell (n,) of what both have."""
    for name, scores in before.items():
        if name != COSINE and name in after:
            everywhere = np.zeros(len(scores), dtype=np.int64)
            yield name, scores.numpy(), after[name].numpy(), everywhere
    for name, groups in cells.items():
        if "zero_shot_accuracy" in before:
            scores = before["zero_shot_accuracy"]
            yield name, scores.numpy(), after["zero_shot_accuracy"].numpy(), groups.numpy()


def _measured(name: str, before: Floats, after: Floats, groups: Codes) -> dict[str, Any] | None:
    """Return the facts of a conclusion without its cost; None where no image was scored before.

    before, after: (n,) 0 or 1, NaN where there is no score. groups: (n,), negative for none.
    """
    scored = np.isfinite(before) & (groups >= 0)
    n = int(scored.sum())
    if n == 0:
        return None
    counts = _counted(before[scored], after[scored], groups[scored])
    drawn = np.concatenate(list(resampled_counts(counts, RESAMPLES, seed=0)))
    is_lowest = name.startswith("zero_shot_worst")
    statistic = lowest_accuracy if is_lowest else mean_accuracy
    value, interval, change = interval_of(statistic, counts, drawn)
    is_finite = bool(np.isfinite(after[scored]).all())
    return _facts(name, value, interval, change, n=n, counted=f"{n:,} images", is_finite=is_finite)


def _measured_of_captions(
    name: str, before: Floats, after: Floats, query_images: Codes
) -> dict[str, Any] | None:
    """Return the facts of a conclusion about recall over captions, of which an image has several.

    before, after: (q,) 0 or 1, after NaN where the model gives no numbers. query_images: (q,).
    """
    if not len(before):
        return None
    # Of each image its captions, and how many are right before and after: (images, 3). Images that
    # agree in all three form one cell, so resampling draws the counts of the cells.
    _, owners = np.unique(query_images, return_inverse=True)
    columns = (np.ones(len(before)), before, np.nan_to_num(after))
    sums = np.stack([np.bincount(owners, column) for column in columns], axis=1)
    cells, counts = np.unique(sums, axis=0, return_counts=True)
    drawn = np.concatenate(list(resampled_counts(counts, RESAMPLES, seed=0)))
    n_captions, right_before, right_after = counts @ cells
    # (resamples, 2): recall before and after
    draws = drawn @ cells[:, 1:] / (drawn @ cells[:, :1])
    value = float(right_after / n_captions)
    n = int(counts.sum())
    interval = percentile_interval(draws[:, 1])
    if value in (0.0, 1.0):
        # Nothing varies; the images are what is independent.
        interval = wilson_interval(int(value * n), n)
    low, high = percentile_interval(draws[:, 1] - draws[:, 0])
    change = (value - float(right_before / n_captions), low, high)
    queries = f"{len(before):,} captions of {n:,} images"
    is_finite = bool(np.isfinite(after).all())
    return _facts(name, value, interval, change, n=n, counted=queries, is_finite=is_finite)


def _facts(
    name: str,
    value: float,
    interval: tuple[float, float],
    change: Change,
    *,
    n: int,
    counted: str,
    is_finite: bool,
) -> dict[str, Any]:
    """Return the facts of a conclusion without its cost.

    n: number of images. counted: the queries in words. is_finite: whether the model gives numbers.
    """
    # How far the score was from 1 before the change.
    to_gain = 1 - (value - change[0])
    judged = verdict(change, "higher")
    if not is_finite:
        judged = "worse"
    elif judged == UNCLEAR and change[2] - change[1] >= to_gain:
        judged = TOO_FEW
    measure = TITLES.get(name, name)
    return {
        "task": TASK,
        "question": f"Did training change the {measure} on held-out data?",
        "metric": name,
        "subset": "",
        "measure": measure,
        "method": METHOD,
        "before": value - change[0],
        "after": value,
        "interval": interval,
        "change": change,
        "chance": None,
        "chance_after": None,
        "paper": "",
        "on_val": "",
        "baseline": "",
        "worse": "",
        "other_prior": "",
        "n": counted,
        "enough": enough_units(n, change, to_gain) if judged == TOO_FEW else None,
        "verdict": judged,
    }


def _counted(before: Floats, after: Floats, groups: Codes) -> NDArray[np.int64]:
    """Return the counts (g, 2, 2) of group, right before, right after of scores (n,)."""
    _, codes = np.unique(groups, return_inverse=True)
    counts = np.zeros((codes.max() + 1, 2, 2), dtype=np.int64)
    # Where the model after training gives no numbers, none of its answers is right.
    right_after = np.nan_to_num(after).astype(np.int64)
    np.add.at(counts, (codes, before.astype(np.int64), right_after), 1)
    return counts
