"""Skew of many rankings at once, and of rankings of resampled galleries: linear in what is looked at.

`max_skew`, `min_skew` and `ndkl` of `vldebias.metrics` take one query; the functions here take the first k results of r
rankings, be they of r queries or of one query on r bootstrap resamples of the gallery. Definitions: Geyik et al.,
"Fairness-Aware Ranking in Search & Recommendation Systems" (2019), equations 1-5.

A resample of the gallery needs no new sort: it holds row i of the gallery w_i times, so its ranking is the old one with
each row repeated w_i times (`resampled_rankings`), and only about k rows of it have to be read.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, sqrt

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError

__all__ = ["log_ratios", "ndkls", "random_rankings", "rankings", "resampled_rankings", "resampled_weights"]

Rows = NDArray[np.intp]
Floats = NDArray[np.float64]
_BLOCK = 1 << 23  # entries of a block of resamples: bounds the memory


def rankings(scores: NDArray[np.floating], *, ties: str = "stable", seed: int = 0) -> Rows:
    """Rows of the gallery from best to worst, (q, n), for scores (q, n).

    Args:
        ties: which of two equal scores comes first: "stable", the earlier row; "random", decided by one random order of
            the rows, the same for every query.
        seed: of that order.

    Raises:
        InvalidInputError: scores that are not (q, n) or have NaN, or another tie rule.
    """
    if scores.ndim != 2 or np.isnan(scores).any():
        raise InvalidInputError(f"scores: expected (q, n) without NaN, got shape {scores.shape}")
    if ties not in ("stable", "random"):
        raise InvalidInputError(f"ties: expected 'stable' or 'random', got {ties!r}")
    n = scores.shape[1]
    order = np.arange(n) if ties == "stable" else np.random.default_rng(seed).permutation(n)
    return order[np.argsort(-scores[:, order], axis=1, kind="stable")]


def log_ratios(groups: NDArray[np.integer], k: int, prior: Floats, *, floor: float = 0.0) -> Floats:
    """log(max(r_{a,k}, floor) / p_a) (r, g) of the first k of r rankings; MaxSkew@k is the maximum of a row.

    Args:
        groups: (r, m) group codes in the order of each ranking, m >= k.
        prior: p (g,), or (r, g) where it differs between rankings; a group that has no prior takes no part (NaN).
        floor: shares r_{a,k} below it count as `floor`.
    """
    top = groups[:, :k]
    if k < 1 or top.shape[1] < k:
        raise InvalidInputError(f"k: expected 1 .. {groups.shape[1]}, the length of the rankings, got {k}")
    count, g = len(top), prior.shape[-1]
    cell = np.arange(count)[:, None] * g + top
    shares = np.bincount(cell.ravel(), minlength=count * g).reshape(count, g) / k
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(prior > 0, np.log(np.maximum(shares, floor) / prior), np.nan)


def ndkls(groups: NDArray[np.integer], k: int, prior: Floats) -> Floats:
    """NDKL@k (r,) of r rankings; arguments as in `log_ratios`.

    With c_a the rows of group a among the first i, i KL_i = sum_a c_a log c_a - i log i - sum_a c_a log p_a. The row at
    place i adds f(c) - f(c - 1) - log p_a to the sums over a, f(c) = c log c, with c the rows of its group so far. So
    NDKL is a weighted sum over places: linear in k, whatever the number of groups.
    """
    top = groups[:, :k]
    if k < 1 or top.shape[1] < k:
        raise InvalidInputError(f"k: expected 1 .. {groups.shape[1]}, the length of the rankings, got {k}")
    places = np.arange(1, k + 1)
    discount = 1 / np.log2(places + 1)
    later = np.cumsum((discount / places)[::-1])[::-1]  # what a term of place j weighs in all prefixes that hold it
    c_log_c = np.append(0.0, places * np.log(places))
    with np.errstate(divide="ignore"):
        logs = np.broadcast_to(np.log(prior), (len(top), prior.shape[-1]))
    terms = np.diff(c_log_c)[_seen(top) - 1] - np.take_along_axis(logs, top.astype(np.intp), axis=1)
    found = (terms @ later - discount @ np.log(places)) / discount.sum()
    return np.maximum(found, 0.0)  # below 0 by rounding alone


def _seen(groups: NDArray[np.integer]) -> NDArray[np.intp]:
    """How many of the first i rows, row i included, have the group of row i; (r, k), from 1."""
    order = np.argsort(groups, axis=1, kind="stable")
    by_group = np.take_along_axis(groups, order, axis=1)
    place = np.arange(groups.shape[1])
    first = np.ones(groups.shape, dtype=bool)
    first[:, 1:] = by_group[:, 1:] != by_group[:, :-1]
    start = np.maximum.accumulate(np.where(first, place, 0), axis=1)
    seen = np.empty(groups.shape, dtype=np.intp)
    np.put_along_axis(seen, order, place - start + 1, axis=1)
    return seen


def resampled_weights(n: int, resamples: int, seed: int) -> Iterator[NDArray[np.int32]]:
    """How often each of n rows is in each bootstrap resample of n rows: blocks (b, n), whose rows sum to n."""
    rng = np.random.default_rng(seed)
    for b in _blocks(n, resamples):
        drawn = rng.integers(n, size=(b, n)) + np.arange(b)[:, None] * n
        yield np.bincount(drawn.ravel(), minlength=b * n).reshape(b, n).astype(np.int32)


def random_rankings(n: int, k: int, count: int, seed: int) -> Iterator[Rows]:
    """The first k rows of `count` random orders of n rows: blocks (b, k)."""
    rng = np.random.default_rng(seed)
    for b in _blocks(n, count):
        yield rng.permuted(np.tile(np.arange(n), (b, 1)), axis=1)[:, :k]


def _blocks(n: int, count: int) -> Iterator[int]:
    """Sizes that add up to `count`, such that a block of rows of n entries fits in memory."""
    size = max(1, _BLOCK // n)
    for start in range(0, count, size):
        yield min(size, count - start)


def resampled_rankings(ranking: Rows, weights: NDArray[np.integer], k: int) -> Rows:
    """The first k rows (b, k) of one ranking (n,) in each of b resamples of the gallery, weights (b, n).

    A row that was drawn twice stands twice: equal scores keep the order of the ranking. Only as many rows are read as
    hold k in every resample.
    """
    n = len(ranking)
    reach = min(n, k + ceil(8 * sqrt(k)) + 32)  # enough but for a chance of about 1e-14, looked after below
    while True:
        held = np.cumsum(weights[:, ranking[:reach]], axis=1)
        if reach == n or held[:, -1].min() >= k:
            break
        reach = min(n, 2 * reach)
    if held[:, -1].min() < k:
        raise InvalidInputError(f"k: expected at most the {held[:, -1].min()} rows that a resample holds, got {k}")
    taken = np.diff(np.minimum(held, k), axis=1, prepend=0)
    return np.repeat(np.broadcast_to(ranking[:reach], taken.shape).ravel(), taken.ravel()).reshape(len(taken), k)
