r"""Compute a record's results from its counts.

The prompts in a protocol are fixed, and all of them have the same weight. Let :math:`s_j` be the
share of images for which the judge answers j, averaged over prompts, and :math:`\theta_{ja}` the
share of labelled images with this answer for which people answer a (the identity matrix if there
are no labels). The share of value a among images with a known value is

.. math:: R_a = \frac{\sum_j s_j \theta_{ja}}{\sum_j s_j \sum_{b \text{ known}} \theta_{jb}}.

By linearisation, its variance is the sum of the variance of the images within each prompt and the
variance of the labels within each of the judge's answers. The interval is the Wilson interval for
the number of independent images that would give the same variance (Korn and Graubard, 1998,
"Confidence intervals for proportions with small expected number of positive counts estimated from
survey data").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from vldebias.errors import need
from vldebias.measure.resampling import bootstrap_interval, wilson_interval
from vldebias.measure.shares import LEAST, LEVEL, discrepancies
from vldebias.utils.arrays import Floats

from .schema import Figure, LabelCounts, Metric, PromptCounts, Record

UNKNOWN = "unknown"


def figures_of(record: Record) -> tuple[Figure, ...]:
    """Compute all results from a record's counts.

    Args:
        record: the record, whose stored results are ignored.

    Returns:
        For each wording, the share of every value, the mean discrepancy over prompts, and the share
        of unknown images if it is known. If a wording has at least LEAST human labels, its shares
        are corrected with them. The discrepancy is never corrected.
    """
    rows_of_wording: defaultdict[str, list[PromptCounts]] = defaultdict(list)
    for row in record.counts:
        rows_of_wording[row.qualifier].append(row)
    figures: list[Figure] = []
    for qualifier, rows in rows_of_wording.items():
        labels = [row for row in record.labels if row.qualifier == qualifier]
        figures += _figures_of_wording(record, qualifier, rows, labels)
    return tuple(figures)


def _figures_of_wording(
    record: Record,
    qualifier: str,
    rows: Sequence[PromptCounts],
    labels: Sequence[LabelCounts],
) -> list[Figure]:
    """Compute the results for the prompts with one wording."""
    counts = count_matrix(rows)
    counts = counts[counts.sum(axis=1) > 0]
    n_values = len(record.values)
    if not counts[:, :n_values].any():
        return []
    n_labels = sum(sum(row.counts) + row.unknown for row in labels)
    people = None
    if n_labels >= LEAST:
        people = label_matrix(labels, record.values)
    else:
        n_labels = 0
    figures = []

    def add(metric: Metric, value: str, ends: tuple[float, float, float], labels: int) -> None:
        estimate, low, high = ends
        figures.append(
            Figure(
                metric=metric,
                value=value,
                qualifier=qualifier,
                estimate=estimate,
                low=low,
                high=high,
                images=int(counts.sum()),
                prompts=len(counts),
                labels=labels,
            )
        )

    for place, value in enumerate(record.values):
        add("share", value, share_with_interval(counts, place, people), n_labels)
    known = counts[:, :n_values]
    gaps = discrepancies(known[known.sum(axis=1) > 0])
    if len(gaps) > 1:
        add("discrepancy", "", bootstrap_interval(gaps), 0)
    if all(row.unknown is not None for row in rows):
        add("unknown", "", share_with_interval(counts, n_values, people), n_labels)
    return figures


def count_matrix(rows: Sequence[PromptCounts]) -> Floats:
    """Return image counts (prompts, values + 1), with unknown images in the last column.

    The count of unknown images is 0 if it was not recorded.
    """
    return np.array([[*row.counts, row.unknown or 0] for row in rows], dtype=float)


def label_matrix(labels: Sequence[LabelCounts], values: Sequence[str]) -> Floats:
    """Return the confusion matrix (judge's answers, human answers), with unknown last in both.

    Each row sums to Kish's effective sample size (sum w)^2 / sum w^2, which is smaller than the
    number of labels if their weights differ.

    Args:
        labels: labels for one wording.
        values: attribute values, in the order of their counts.
    """
    answers = [*values, UNKNOWN]
    matrix = np.zeros((len(answers), len(answers)))
    squares = np.zeros(len(answers))
    for row in labels:
        place = answers.index(row.judged)
        counts = np.array([*row.counts, row.unknown], dtype=float)
        matrix[place] += row.weight * counts
        squares[place] += row.weight**2 * counts.sum()
    total = matrix.sum(axis=1)
    return matrix * (total / np.maximum(squares, 1e-300))[:, None]


def share_with_interval(
    counts: Floats, place: int, people: Floats | None = None
) -> tuple[float, float, float]:
    """Return a share with its 95% interval.

    Args:
        counts: image counts (p, k + 1) by prompt and judge's answer, with unknown last. Every
            prompt needs at least one image.
        place: column of the answer. The share of a value is relative to images with a known value,
            and the share of unknown (the last column) is relative to all images.
        people: label counts (k + 1, k + 1) by judge's answer and human answer. If None, the judge
            is assumed to be correct.

    Returns:
        The share, and the lower and upper end of its interval.
    """
    images = counts.sum(axis=1)
    n_answers = counts.shape[1]
    judged = (counts / images[:, None]).mean(axis=0)
    truth = np.eye(n_answers) if people is None else _truth_by_answer(people)
    shares = judged @ truth
    # A value's share is relative to images with a known value, the unknown share to all images.
    is_counted = np.ones(n_answers)
    if place < n_answers - 1:
        is_counted[-1] = 0
    counted_share = float(shares @ is_counted)
    share = float(shares[place]) / counted_share
    # Derivative of the share with respect to the share of each human answer.
    effect = (np.eye(n_answers)[place] - share * is_counted) / counted_share
    variance = _variance_of_images(counts, truth @ effect)
    if people is not None:
        variance += _variance_of_labels(judged, people, effect)
    return share, *_interval(share, variance, float(images.sum()))


def _truth_by_answer(people: Floats) -> Floats:
    """Return the shares of human answers for each of the judge's answers.

    If an answer has no labels, the shares over all labels are used.
    """
    n = people.sum(axis=1, keepdims=True)
    overall = people.sum(axis=0) / people.sum()
    return np.where(n > 0, people / np.maximum(n, 1), overall)


def _variance_of_images(counts: Floats, effect: Floats) -> float:
    """Return the variance due to the finite number of images per prompt.

    `effect` (k + 1,) contains the derivative of the share with respect to each judge's answer.
    """
    images = counts.sum(axis=1)
    means = counts @ effect / images
    squares = counts @ effect**2 / images
    # Use the unbiased variance within each prompt. It is unknown for a prompt with a single image,
    # so use the variance over all images there.
    within = (squares - means**2) * images / np.maximum(images - 1, 1)
    overall = squares.mean() - means.mean() ** 2
    within = np.where(images > 1, within, overall)
    return float((within / images).sum()) / len(counts) ** 2


def _variance_of_labels(judged: Floats, people: Floats, effect: Floats) -> float:
    """Return the variance due to the finite number of labels for each of the judge's answers."""
    n = people.sum(axis=1)
    # Add one label, spread over all human answers, since errors that were not observed are still
    # possible.
    smoothed = (people + 1 / people.shape[1]) / (n + 1)[:, None]
    spread = smoothed @ effect**2 - (smoothed @ effect) ** 2
    variance = float((judged**2 * spread / np.maximum(n, 1)).sum())
    # With few labels, their spread is uncertain, so use Student's t instead of the normal quantile.
    stats = need("scipy.stats")
    upper = (1 + LEVEL) / 2
    return variance * float(stats.t.ppf(upper, n.sum() - 1) / stats.norm.ppf(upper)) ** 2


def _interval(share: float, variance: float, images: float) -> tuple[float, float]:
    """Return the Wilson interval of a share for the number of images that would give `variance`."""
    # Add half an image of each kind, so that the spread is positive even if all images show the
    # same value.
    middle = (share * images + 0.5) / (images + 1)
    spread = middle * (1 - middle)
    is_pure = share in (0.0, 1.0)
    # The variance must be at least as large as if a single image were different.
    least = spread / images if is_pure else 1 / images**2
    effective = spread / max(variance, least)
    low, high = wilson_interval(share * effective, effective)
    return max(0.0, min(low, share)), min(1.0, max(high, share))
