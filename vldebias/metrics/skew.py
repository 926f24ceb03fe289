"""Skew of a ranking: are the first k results spread over the groups as they should be?

Source: Geyik et al., "Fairness-Aware Ranking in Search & Recommendation Systems" (2019), equations 1-5, with the
uniform prior that Berg et al. (2022) and chapter 7 of the thesis use for retrieval. All values are in nats; ties keep
the order of the rows. `max_skew`, `min_skew` and `ndkl` take one query, the figures of papers are means over queries;
`log_ratios` and `ndkls` take the groups of the first results of r rankings (`vldebias.metrics.rankings`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, SuspectInputWarning, warn
from vldebias.metrics.arrays import Values, codes, vector, vectors

Floats = NDArray[np.float64]


def max_skew(
    scores: Values,
    groups: Values,
    k: int,
    *,
    prior: str | Values = "uniform",
    floor: float = 0.0,
    n_groups: int | None = None,
) -> float:
    """MaxSkew@k = max_a log(r_{a,k} / p_a), with r_{a,k} the share of group a among the k highest scores; 0 is fair.

    Args:
        scores: (n,), one per row, higher is ranked first; equal scores keep the order of the rows.
        groups: (n,) labels.
        k: rows that are looked at, 1 <= k <= n.
        prior: p_a: "uniform" (1 / number of groups), "dataset" (shares among all n rows), or shares (n_groups,) in
            the order of the sorted labels.
        floor: shares r_{a,k} below it count as `floor`.
        n_groups: number of groups where some may not occur; labels are then 0 .. n_groups - 1.

    Raises:
        InvalidInputError: shapes, k > n, groups that are fractions, a prior that is no distribution or
            gives a group nothing.

    Warns:
        SuspectInputWarning: a single group, without `n_groups`: its skew is 0 whatever the ranking.

    >>> max_skew([0.9, 0.8, 0.7, 0.1], [0, 0, 1, 1], k=2)  # log 2: one group where there should be two
    0.6931471805599453
    """
    return float(_log_ratios(scores, groups, k, prior, floor, n_groups).max())


def min_skew(
    scores: Values,
    groups: Values,
    k: int,
    *,
    prior: str | Values = "uniform",
    floor: float = 0.0,
    n_groups: int | None = None,
) -> float:
    """MinSkew@k = min_a log(r_{a,k} / p_a) <= 0: how far the worst served group falls short.

    With floor = 0 it is -inf where a group is missing from the first k; a floor such as 1 / (2 k) keeps means over
    queries finite. Arguments and Raises: see `max_skew`.
    """
    return float(_log_ratios(scores, groups, k, prior, floor, n_groups).min())


def ndkl(
    scores: Values,
    groups: Values,
    k: int | None = None,
    *,
    prior: str | Values = "uniform",
    n_groups: int | None = None,
) -> float:
    """NDKL = 1/Z sum_{i=1}^{k} KL(r_{.,i} || p) / log2(i + 1), Z = sum_i 1 / log2(i + 1); 0 is fair.

    k: length of the ranking that is looked at; None for all n rows. Other arguments and Raises: see `max_skew`.
    """
    ranked, p = _ranking(scores, groups, prior, n_groups)
    return float(ndkls(ranked, ranked.shape[1] if k is None else k, p)[0])


def log_ratios(groups: NDArray[np.integer], k: int, prior: Floats, *, floor: float = 0.0) -> Floats:
    """log(max(r_{a,k}, floor) / p_a) (r, g) of the first k of r rankings; MaxSkew@k is the maximum of a row.

    Args:
        groups: (r, m) group codes in the order of each ranking, m >= k.
        prior: p (g,), or (r, g) where it differs between rankings; a group that has no prior takes no part (NaN).
        floor: shares r_{a,k} below it count as `floor`.

    Raises:
        InvalidInputError: k outside 1 .. m.
    """
    top = _first(groups, k)
    count, g = len(top), prior.shape[-1]
    cell = np.arange(count)[:, None] * g + top
    shares = np.bincount(cell.ravel(), minlength=count * g).reshape(count, g) / k
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(prior > 0, np.log(np.maximum(shares, floor) / prior), np.nan)


def ndkls(groups: NDArray[np.integer], k: int, prior: Floats) -> Floats:
    """NDKL@k (r,) of r rankings; arguments and Raises as in `log_ratios`.

    With c_a the rows of group a among the first i, i KL_i = sum_a c_a log c_a - i log i - sum_a c_a log p_a. The row at
    place i adds f(c) - f(c - 1) - log p_a to the sums over a, f(c) = c log c, with c the rows of its group so far. So
    NDKL is a weighted sum over places: linear in k, whatever the number of groups. Sorted by group, c counts up from 1.
    """
    top = _first(groups, k)
    count, g = len(top), prior.shape[-1]
    places = np.arange(1, k + 1)
    discount = 1 / np.log2(places + 1)
    later = np.cumsum((discount / places)[::-1])[::-1]  # what a term of place j weighs in all prefixes that hold it
    gains = np.diff(np.append(0.0, places * np.log(places)))
    cell = (np.arange(count)[:, None] * g + top).ravel()
    held = np.bincount(cell, minlength=count * g)
    so_far = np.arange(count * k) - np.repeat(np.cumsum(held) - held, held)
    by_group = later[np.argsort(top, axis=1, kind="stable")]
    total = np.einsum("rk,rk->r", by_group, gains[so_far].reshape(count, k))
    with np.errstate(divide="ignore"):
        logs = np.broadcast_to(np.log(prior), (count, g))
    held = held.reshape(count, g)
    if prior.ndim == 1 and (prior == prior[0]).all():
        total -= logs[0, 0] * later.sum()
    else:
        weighed = np.bincount(cell, weights=np.tile(later, count), minlength=count * g).reshape(count, g)
        total -= (weighed * np.where(held > 0, logs, 0.0)).sum(axis=1)
    values = (total - discount @ np.log(places)) / discount.sum()
    return np.maximum(values, 0.0)  # below 0 by rounding alone


def _first(groups: NDArray[np.integer], k: int) -> NDArray[np.integer]:
    length = groups.shape[1]
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= length:
        raise InvalidInputError(f"k: expected an integer between 1 and the {length} rows that are ranked, got {k!r}")
    return groups[:, :k]


def _log_ratios(
    scores: Values, groups: Values, k: int, prior: str | Values, floor: float, n_groups: int | None
) -> Floats:
    """log(max(r_{a,k}, floor) / p_a) (g,) of one query."""
    if not 0 <= floor <= 1:
        raise InvalidInputError(f"floor: expected a share in [0, 1], got {floor}")
    ranked, p = _ranking(scores, groups, prior, n_groups)
    return log_ratios(ranked, k, p, floor=floor)[0]


def _ranking(
    scores: Values, groups: Values, prior: str | Values, n_groups: int | None
) -> tuple[NDArray[np.intp], Floats]:
    """Group codes (1, n) in the order of the ranking, and the prior (g,)."""
    score, group = vectors(scores=scores, groups=groups)
    names, index = codes(group, n_groups)
    if len(names) < 2:
        warn(
            f"groups: all rows are of {names.tolist()}, so every ranking is fair; say n_groups= where others may occur",
            SuspectInputWarning,
        )
    order = np.argsort(-score.astype(np.float64), kind="stable")
    return index[order][None], _prior(prior, names, index)


def _prior(prior: str | Values, names: np.ndarray, index: np.ndarray) -> np.ndarray:
    if isinstance(prior, str):
        if prior not in ("uniform", "dataset"):
            raise InvalidInputError(f"prior: expected 'uniform', 'dataset' or an array of shares, got {prior!r}")
        counts = np.ones(len(names)) if prior == "uniform" else np.bincount(index, minlength=len(names))
        shares = counts / counts.sum()
    else:
        shares = vector(prior, "prior").astype(np.float64)
    if len(shares) != len(names) or (shares <= 0).any() or abs(shares.sum() - 1) > 1e-6:
        raise InvalidInputError(
            f"prior: expected {len(names)} positive shares that sum to 1, for the groups {names.tolist()}, "
            f"got {shares.tolist()}; leave out groups that cannot occur"
        )
    return shares
