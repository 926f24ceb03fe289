"""Estimate the true shares of groups among re-ranked results, where labels are sometimes wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import Interval
from vldebias.reranking.candidates import Floats, as_floats

_CHAINS = 600
_STEPS = 40


def confusion_of(accuracy: Any, names: Sequence[str]) -> tuple[Floats, bool]:
    """Return the confusion (g, g) of labels, true groups in rows, and whether it is counts.

    Args:
        accuracy: the share of images of a group whose label is right: one number, or group ->
            number (errors fall evenly on the other groups); or (g, g) counts of a labelled sample,
            true groups in rows and labels in columns, or shares that sum to 1 in each row.

    Raises:
        InvalidInputError: other groups, or numbers outside [0, 1].
    """
    g = len(names)
    if isinstance(accuracy, Mapping):
        if set(accuracy) != set(names):
            raise InvalidInputError(
                f"accuracy: expected a number for each of {list(names)}, got {list(accuracy)}"
            )
        accuracy = [accuracy[name] for name in names]
    right = as_floats(accuracy, "accuracy")
    if right.shape == (g, g):
        if not right.min() >= 0 or (right.sum(axis=1) <= 0).any():
            raise InvalidInputError("accuracy: expected counts, some of them for every true group")
        is_counts = not np.allclose(right.sum(axis=1), 1)
        return right, is_counts
    is_share = (right >= 0) & (right <= 1)  # not so where it is NaN
    if right.shape not in ((), (g,)) or not is_share.all():
        raise InvalidInputError(
            f"accuracy: expected numbers in [0, 1], one or one of each of {list(names)}, or a"
            f" confusion of shape ({g}, {g}), got {accuracy!r}"
        )
    right = np.broadcast_to(right, (g,))
    confusion = np.repeat(((1 - right) / max(g - 1, 1))[:, None], g, axis=1)
    confusion[np.arange(g), np.arange(g)] = right
    return confusion, False


def expected_shares(
    scores: Floats,
    codes: NDArray[np.integer],
    first: NDArray[np.integer],
    names: Sequence[str],
    accuracy: Any,
    *,
    seed: int = 0,
) -> dict[str, Interval]:
    """Return group -> true share among the first results of known label, with its 95 % interval.

    A label says less about the first results than about all: where a query prefers men, the best of
    those labelled as women are men more often than others. So for each label only the candidates
    down to its last selected one count. The labels of all groups above that score are counts of a
    multinomial that is observed through the confusion. Gibbs sampling, with a uniform prior of the
    shares, samples in turn the true group of each candidate given its label, and the shares. The
    true groups of the selected candidates are counted. It assumes that errors depend on the true
    group alone.

    Args:
        scores, codes: (n,) of all candidates, codes by their labels, -1 where unknown.
        first: rows of the results.
        names: of the groups. accuracy: see `confusion_of`.
        seed: of the sampling.
    """
    confusion, is_counts = confusion_of(accuracy, names)
    rng = np.random.default_rng(seed)
    g = len(names)
    labels_of_first = codes[first]
    total = int((labels_of_first >= 0).sum())
    drawn = np.zeros((_CHAINS, g))
    if is_counts:
        # Rows of a labelled sample: what it leaves open is a Dirichlet law (Jeffreys' prior).
        right = np.stack([rng.dirichlet(row + 0.5, size=_CHAINS) for row in confusion], axis=1)
    else:
        right = np.broadcast_to(confusion, (_CHAINS, g, g))
    for label in range(g):
        rows = first[labels_of_first == label]
        if not len(rows):
            continue
        region = codes[(scores >= scores[rows].min()) & (codes >= 0)]
        # A candidate that ties with the last one may not have been selected.
        counts = np.bincount(region, minlength=g)
        counts[label] = len(rows)
        drawn += _true_groups(counts, right, label, rng)
    # A count is a whole number: half a candidate to either side makes the law continuous.
    shares = (drawn + rng.uniform(-0.5, 0.5, size=drawn.shape)) / total
    return _shares(shares, drawn.mean(axis=0) / total, names)


def _true_groups(
    counts: NDArray[np.integer], confusion: Floats, label: int, rng: np.random.Generator
) -> Floats:
    """Return the true groups (chains, g) of the candidates with one label, given the counts (g,) of
    all labels and the confusion (chains, g, g)."""
    chains, g = confusion.shape[:2]
    shares = np.full((chains, g), 1 / g)
    true_of_label = np.zeros((chains, g))
    for _ in range(_STEPS):
        totals = np.zeros((chains, g))
        for seen, count in enumerate(counts):
            # P(true a | label b) is proportional to pi_a R[a, b].
            weights = shares * confusion[:, :, seen] + 1e-300
            weights /= weights.sum(axis=1, keepdims=True)
            true = rng.multinomial(int(count), weights)
            totals += true
            if seen == label:
                true_of_label = true.astype(np.float64)
        gammas = rng.standard_gamma(totals + 1)
        shares = gammas / gammas.sum(axis=1, keepdims=True)
    return true_of_label


def shares_by_probabilities(
    probabilities: Floats, names: Sequence[str], *, seed: int = 0
) -> dict[str, Interval]:
    """Return group -> true share among results, with its 95 % interval. The true group of each
    result has its calibrated probabilities (k, g), independently of the others."""
    rng = np.random.default_rng(seed)
    k = len(probabilities)
    drawn = np.zeros((_CHAINS, len(names)))
    for row in probabilities:
        drawn += rng.multinomial(1, row / row.sum(), size=_CHAINS)
    shares = (drawn + rng.uniform(-0.5, 0.5, size=drawn.shape)) / k
    return _shares(shares, probabilities.mean(axis=0), names)


def _shares(draws: Floats, means: Floats, names: Sequence[str]) -> dict[str, Interval]:
    """Return group -> mean and middle 95 % of its draws (b, g)."""
    low, high = np.clip(np.quantile(draws, [0.025, 0.975], axis=0), 0, 1)
    shares = {}
    for place, name in enumerate(names):
        shares[name] = Interval(float(means[place]), float(low[place]), float(high[place]))
    return shares
