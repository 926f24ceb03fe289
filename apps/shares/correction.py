"""Correct a judge's shares with human labels for some of the images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vldebias.errors import warn_of_input
from vldebias.measure.resampling import Interval
from vldebias.measure.rows import NONE, TaskResult
from vldebias.measure.shares import (
    LEAST,
    NOT_LABELLED,
    as_judged,
    corrected_shares,
    corrected_squares,
    independent,
    squared_discrepancies,
)
from vldebias.utils.arrays import Floats

if TYPE_CHECKING:
    import pandas as pd

# Settings key of a corrected block. Its value maps methods to numbers of labels.
MORE_LABELS = "labels to add, sampled in the same way, to halve the interval"
ABOUT_CORRECTED = (
    "A judge labelled every image, and people labelled some. The corrected results are valid"
    " regardless of the judge's errors if the labelled images were chosen at random"
    " (prediction-powered inference). Shares are computed over all images, including unknown ones;"
    " the gap from equal shares and MaxSkew are computed over images with a known value. The"
    " unbiased squared gap is averaged over prompts with two or more labels for every method."
)


def corrected_block(
    raw: TaskResult,
    names: Sequence[str],
    images: pd.DataFrame,
    counts: Mapping[str, Floats],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> list[TaskResult]:
    """Return a block with a judge's results, corrected with human labels.

    Args:
        raw: block with the judge's results.
        names: names of the attribute's values.
        images: one row per image, with the method, the prompt number, the judge's and the human
            label as codes (`value` and `people`), and the weight.
        counts: method -> counts (p, values + 1).
        resamples: number of bootstrap resamples.
        seed: bootstrap seed.

    Returns:
        A list with the block, or an empty list if no method has enough labels.
    """
    labels = {}
    for method in counts:
        has_label = images[images.method == method].people != NOT_LABELLED
        labels[method] = int(has_label.sum())
    # If some methods lack labels, still correct the others.
    few = {method: n for method, n in labels.items() if n < LEAST}
    if few:
        warn_of_input(
            f"labels: expected {LEAST} or more per method, got {few}; these methods are not"
            " corrected; label more images",
        )
    images_of_method = {
        method: images[images.method == method] for method in counts if method not in few
    }
    if not images_of_method:
        return []
    update = {
        "task": f"{raw.provenance.task} corrected",
        "title": "Corrected by people",
        "description": ABOUT_CORRECTED,
    }
    result = TaskResult(raw.provenance.model_copy(update=update))
    more_labels = _add_figures(result, names, images_of_method, labels)
    n_labels = sum(labels[method] for method in images_of_method)
    _add_squares(
        result,
        images_of_method,
        {method: counts[method][:, : len(names)] for method in images_of_method},
        n_labels,
        resamples=resamples,
        seed=seed,
    )
    result.provenance.settings = {
        **raw.provenance.settings,
        "labelled images": labels,
        MORE_LABELS: more_labels,
    }
    return [result]


def _add_figures(
    result: TaskResult,
    names: Sequence[str],
    images_of_method: Mapping[str, pd.DataFrame],
    labels: Mapping[str, int],
) -> dict[str, int | str]:
    """Add the judge's and the corrected results, and return how many more labels are needed.

    Different methods have different labelled images, so their estimates are treated as independent.
    """
    k = len(names)
    metrics = [("share", name) for name in names]
    metrics += [("discrepancy", ""), ("max_skew", "")]
    # The order is the one in `as_judged`, followed by `figures`: shares, gap and MaxSkew, first as
    # judged, then corrected.
    metrics += [(f"corrected_{metric}", subset) for metric, subset in metrics]
    more_labels: dict[str, int | str] = {}
    before: Mapping[tuple[str, str], Interval] = {}
    for method, images in images_of_method.items():
        judged = images["value"].to_numpy()
        people = images["people"].to_numpy()
        corrected = corrected_shares(judged, people, k + 1, weights=images["weight"].to_numpy())
        intervals = [*as_judged(judged, k), *corrected.figures(k)]
        figures = dict(zip(metrics, intervals, strict=True))
        if method == NONE:
            before = figures
        n = {"images": len(images), "labels": labels[method]}
        for (metric, subset), figure in figures.items():
            change = independent(figure, before[metric, subset]) if before else None
            ends = (figure.low, figure.high)
            result.add(metric, method, figure.value, ends, n=n, change=change, subset=subset)
        more_labels[method] = corrected.more_labels() or "more than there are images"
    return more_labels


def _add_squares(
    result: TaskResult,
    images_of_method: Mapping[str, pd.DataFrame],
    known: Mapping[str, Floats],
    n_labels: int,
    *,
    resamples: int,
    seed: int,
) -> None:
    """Add the unbiased squared gap, as judged and corrected.

    It is averaged over the prompts for which it is defined for every method. `known` maps each
    method to the number of images per prompt and value (p, values), according to the judge.
    """
    judged: dict[str, Floats] = {}
    corrected: dict[str, Floats] = {}
    for method, images in images_of_method.items():
        judged[method] = squared_discrepancies(known[method])
        corrected[method] = corrected_squares(
            images["number"].to_numpy(),
            images["value"].to_numpy(),
            images["people"].to_numpy(),
            known[method].shape[1],
            weights=images["weight"].to_numpy(),
        )
    # Use the same prompts for every method, so that the means can be compared.
    finite = [np.isfinite(square) for square in (*judged.values(), *corrected.values())]
    is_complete = np.all(finite, axis=0)
    if is_complete.sum() < 2:
        return
    n = {"prompts": int(is_complete.sum()), "labels": n_labels}
    squares = {"discrepancy_squared": judged, "corrected_discrepancy_squared": corrected}
    for metric, square_of_method in squares.items():
        complete = {method: square[is_complete] for method, square in square_of_method.items()}
        result.add_resampled(metric, complete, n=n, resamples=resamples, seed=seed)
