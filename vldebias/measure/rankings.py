"""Rank a gallery and measure group skew among the first k results.

The skew is defined in Geyik et al., "Fairness-Aware Ranking in Search & Recommendation Systems"
(2019), equations 1-5, and used with the uniform prior of Berg et al. (2022) and chapter 7 of the
thesis. Values are in nats, and ties keep the order of the rows. A resample of the gallery does not
need to be sorted again: it contains row i w_i times, so its ranking is the original ranking with
repeated rows, of which only about k are examined.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf, sqrt
from numbers import Real
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, warn_of_input
from vldebias.measure.representation import counts_of_groups
from vldebias.measure.resampling import Values, codes, vectors
from vldebias.utils.arrays import Floats, Rows

if TYPE_CHECKING:
    from torch import Tensor

Groups = NDArray[np.integer]
# Exact scores (q, m) of the top items, best first, and these items' places.
Leaders = tuple[Floats, NDArray[np.int64]]
_SCORES = 1 << 24  # maximum number of scores in memory
_READ = 1 << 12  # maximum number of items loaded at once
# Scores are rounded to this number of decimals, so that identical images tie regardless of the
# order of summation.
_ROUND = 12


class Blocks(Protocol):
    """Represent rows (n, d) that can be split into blocks like a tensor."""

    def split(self, size: int) -> Iterable[Tensor]:
        """Return the rows in blocks of a given size."""


def max_skew(
    scores: Values,
    groups: Values,
    k: int,
    *,
    prior: str | Values = "uniform",
    n_groups: int | None = None,
) -> float:
    """Return MaxSkew@k = max_a log(r_{a,k} / p_a), which is 0 for a fair ranking.

    r_{a,k} is the share of group a among the k highest scores, and p_a is its prior.

    Args:
        scores: scores (n,). The highest score ranks first, and ties keep the order of the rows.
        groups: group labels (n,).
        k: number of top rows, 1 <= k <= n.
        prior: "uniform" (1 / number of groups), "dataset" (shares among all n rows), or positive
            shares (n_groups,) in the order of the sorted labels.
        n_groups: number of groups if some may not occur. Labels must then be 0 .. n_groups - 1.

    Returns:
        The skew in nats.

    Raises:
        InvalidInputError: If shapes do not match, k > n, group labels are fractions, or the prior
            is not a distribution.

    >>> # log 2, because one group fills both places
    >>> max_skew([0.9, 0.8, 0.7, 0.1], [0, 0, 1, 1], k=2)
    0.6931471805599453
    """
    return float(max_skews(*_ranking(scores, groups, k, prior, n_groups))[0])


def min_skew(
    scores: Values,
    groups: Values,
    k: int,
    *,
    prior: str | Values = "uniform",
    floor: float = 0.0,
    n_groups: int | None = None,
) -> float:
    """Return MinSkew@k = min_a log(r_{a,k} / p_a) <= 0, for the most underrepresented group.

    It is -inf if a group is missing and `floor` is 0.

    Args:
        scores: scores (n,); the highest ranks first.
        groups: group labels (n,).
        k: number of top rows, 1 <= k <= n.
        prior: "uniform", "dataset" or positive shares (n_groups,), the shares to compare with.
        floor: lower bound for the shares, such as 1 / (2 k), which is half an image.
        n_groups: number of groups if some may not occur.

    Returns:
        The skew in nats.

    Raises:
        InvalidInputError: If `floor` is not a share, or `max_skew` rejects an argument.

    >>> min_skew([0.9, 0.8, 0.7, 0.6, 0.1], [0, 0, 0, 1, 1], k=4)
    -0.6931471805599453
    """
    if not isinstance(floor, Real) or not 0 <= floor <= 1:
        raise InvalidInputError(
            f"floor: expected a share in [0, 1], such as 1 / (2 k) for half an image, got {floor!r}"
        )
    return float(min_skews(*_ranking(scores, groups, k, prior, n_groups), floor=floor)[0])


def ndkl(
    scores: Values,
    groups: Values,
    k: int | None = None,
    *,
    prior: str | Values = "uniform",
    n_groups: int | None = None,
) -> float:
    """Return NDKL = 1/Z sum_{i=1}^{k} KL(r_{.,i} || p) / log2(i + 1), which is 0 if fair.

    Here Z = sum_i 1 / log2(i + 1).

    Args:
        scores: scores (n,); the highest ranks first.
        groups: group labels (n,).
        k: number of top rows. If None, all n rows.
        prior: "uniform", "dataset" or positive shares (n_groups,), the shares to compare with.
        n_groups: number of groups if some may not occur.

    Returns:
        The divergence in nats.

    Raises:
        InvalidInputError: If `max_skew` rejects an argument.

    >>> round(ndkl([0.9, 0.8, 0.7, 0.6], [0, 1, 0, 1]), 3)
    0.282
    >>> round(ndkl([0.9, 0.8, 0.7, 0.6], [0, 0, 1, 1]), 3)
    0.452
    """
    return float(ndkls(*_ranking(scores, groups, k, prior, n_groups))[0])


def _ranking(
    scores: Values, groups: Values, k: int | None, prior: str | Values, n_groups: int | None
) -> tuple[Groups, Floats]:
    """Return the group codes (1, k) of the top k rows, and the prior (g,)."""
    score, group = vectors(scores=scores, groups=groups)
    names, index = codes(group, n_groups)
    if k is None:
        k = len(score)
    if score.dtype.kind not in "iufb":
        raise InvalidInputError(f"scores: expected numbers, got {score.dtype}")
    if not isinstance(k, (int, np.integer)) or k not in range(1, len(score) + 1):
        raise InvalidInputError(
            f"k: expected an integer from 1 to {len(score)}, the number of rows, got {k!r}"
        )
    # With only one group, every ranking has a skew of 0.
    if len(names) < 2:
        warn_of_input(
            f"groups: all rows are in {names.tolist()}, so every ranking is fair; pass n_groups="
            " if other groups may occur",
        )
    if not isinstance(prior, str):
        shares = vectors(prior=prior)[0]
    elif prior == "uniform":
        shares = np.ones(len(names)) / len(names)
    elif prior == "dataset":
        shares = np.bincount(index, minlength=len(names)) / len(index)
    else:
        raise InvalidInputError(
            f"prior: expected 'uniform', 'dataset' or an array of shares, got {prior!r}"
        )
    if len(shares) != len(names) or (shares <= 0).any() or abs(shares.sum() - 1) > 1e-6:
        raise InvalidInputError(
            f"prior: expected {len(names)} positive shares that sum to 1, for the groups"
            f" {names.tolist()}, got {shares.tolist()}; leave out groups that cannot occur"
        )
    # Sort negated scores, because reversing an ascending sort would also reverse ties.
    order = np.argsort(-score.astype(np.float64), kind="stable")
    return index[order][None, :k], shares


# ---- many rankings: group codes (r, k) of their first k rows, prior (g,) or (r, g) --------------


def max_skews(groups: Groups, prior: Floats) -> Floats:
    """Return the MaxSkew (r,) of each ranking.

    Args:
        groups: group codes (r, k).
        prior: shares (g,) or (r, g).
    """
    return np.nanmax(_log_ratios(groups, prior), axis=1)


def min_skews(groups: Groups, prior: Floats, floor: float | None = None) -> Floats:
    """Return the MinSkew (r,) of each ranking.

    Args:
        groups: group codes (r, k).
        prior: shares (g,) or (r, g).
        floor: lower bound for the shares. If None, the share of half an image.
    """
    if floor is None:
        floor = 1 / (2 * groups.shape[1])
    with np.errstate(divide="ignore"):
        # A missing group would make the skew, and thus its mean over queries, -inf.
        smallest = np.log(floor / prior)
    # Clip at 0, the maximum of MinSkew, because the floor may exceed the prior of a tiny group.
    return np.minimum(np.nanmin(np.maximum(_log_ratios(groups, prior), smallest), axis=1), 0.0)


def _log_ratios(groups: Groups, prior: Floats) -> Floats:
    """Return log(r_a / p_a) (r, g), or NaN for groups with prior 0."""
    shares = counts_of_groups(groups, prior.shape[-1]) / groups.shape[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        # A resample of the gallery may lack a group, whose share is then 0.
        return np.where(prior > 0, np.log(shares / prior), np.nan)


def ndkls(groups: Groups, prior: Floats) -> Floats:
    """Return the NDKL (r,) of each ranking, in time linear in k for any number of groups.

    Let c_a be the number of rows from group a among the first i. Then i KL_i = sum_a c_a log c_a -
    i log i - sum_a c_a log p_a. The row at place i adds f(c) - f(c - 1) - log p_a to the sums over
    a, where f(c) = c log c and c is the number of rows from its group so far. NDKL is therefore a
    weighted sum over places. If the rows are sorted by group, c counts up from 1 in each group.

    Args:
        groups: group codes (r, k).
        prior: shares (g,) or (r, g).
    """
    count, k = groups.shape
    g = prior.shape[-1]
    places = np.arange(1, k + 1)
    # The discounts sum to Z, so NDKL is a weighted mean over places, with the highest weights for
    # the first places.
    discount = 1 / np.log2(places + 1)
    # Total weight of place j in all prefixes that contain it.
    later = np.cumsum((discount / places)[::-1])[::-1]
    gains = np.diff(np.append(0.0, places * np.log(places)))
    counts = counts_of_groups(groups, g)
    sizes = counts.ravel()
    # Sorted by group, the rows of a group are contiguous, and c - 1 is the place within the group.
    so_far = np.arange(count * k) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    by_group = later[np.argsort(groups, axis=1, kind="stable")]
    total = np.einsum("rk,rk->r", by_group, gains[so_far].reshape(count, k))
    with np.errstate(divide="ignore"):
        logs = np.where(counts > 0, np.log(prior), 0.0)
    # Subtract c_a log p_a for each group, weighted by the places of its rows.
    total -= (counts_of_groups(groups, g, later) * logs).sum(axis=1)
    values = (total - discount @ np.log(places)) / discount.sum()
    return np.maximum(values, 0.0)  # The divergence is negative only because of rounding.


def leaders(queries: Tensor, items: Blocks, k: int, place: NDArray[np.int64]) -> Leaders:
    """Return the top k items for each query, with float64 scores rounded to 12 decimals.

    Args:
        queries: queries (q, d).
        items: all or some of the items (n, d).
        k: number of items.
        place: place (n,) of each item among all items, which breaks ties.

    Returns:
        The scores and places (q, m) of the top items, m <= k.
    """
    texts = queries.double()
    start = 0
    first: Leaders = np.empty((len(texts), 0)), np.empty((len(texts), 0), dtype=np.int64)
    rows_of_block = min(_READ, max(1, _SCORES // max(len(texts), 1)))
    for block in items.split(rows_of_block):
        scores = (texts @ block.double().T).numpy().round(_ROUND)
        if not np.isfinite(scores).all():
            raise InvalidInputError("queries and items: expected finite values, got NaN or inf")
        places = place[start : start + len(block)]
        start = start + len(block)
        if first[0].shape[1] == k:  # Skip items that cannot be in the top k of any query.
            # Keep ties, because the place decides between them.
            near = (scores >= first[0][:, -1:]).any(axis=0)
            scores = scores[:, near]
            places = places[near]
        first = merged(first, (scores, np.broadcast_to(places, scores.shape)), k)
    return first


def merged(first: Leaders, second: Leaders, k: int) -> Leaders:
    """Merge two sets of leaders. The order of merging does not affect the result.

    Args:
        first: leaders among some of the items.
        second: leaders among the remaining items.
        k: number of items to keep.
    """
    scores = np.concatenate([first[0], second[0]], axis=1)
    places = np.concatenate([first[1], second[1]], axis=1)
    # lexsort sorts by its last key first, so this sorts by score and then by place.
    best = np.lexsort((places, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, best, axis=1), np.take_along_axis(places, best, axis=1)


def reach(k: int, n: int) -> int:
    """Return how many top rows of n to keep, so that a resample finds its first k among them.

    The probability that a resample needs more rows is below 1e-14.

    Args:
        k: number of first rows of the resample that are needed.
        n: number of rows in the ranking and in a resample.
    """
    # m ranked rows occur m +- sqrt(m) times in a resample, so add eight standard deviations, and a
    # constant for small k.
    return min(n, k + ceil(8 * sqrt(k)) + 32)


def resampled_places(ranking: Rows, weights: Groups, k: int) -> Groups:
    """Return the places (b, k) in a ranking of each resample's first k rows.

    A row that was drawn twice appears twice. No more rows than necessary are examined.

    Args:
        ranking: ranked rows (m,).
        weights: number of times (b, n) that each row occurs in each resample.
        k: number of first rows.

    Raises:
        InvalidInputError: If a resample contains fewer than k of the rows.
    """
    n_read = 0
    sizes = np.zeros(1, dtype=np.intp)
    while n_read < len(ranking) and sizes.min() < k:
        n_read = min(len(ranking), max(reach(k, len(ranking)), 2 * n_read))
        times = weights.T[ranking[:n_read]].T  # Fast if a row's weights are contiguous.
        sizes = times.sum(axis=1, dtype=np.intp)
    if sizes.min() < k:
        raise InvalidInputError(
            f"k: expected at most {sizes.min()}, the number of rows in a resample, got {k}"
        )
    # Repeat each place (b, n_read) as often as its row occurs in the resample.
    place = np.broadcast_to(np.arange(n_read, dtype=np.min_scalar_type(n_read)), times.shape)
    repeated = place.ravel().repeat(times.ravel().astype(np.intp))
    # The places of all resamples are concatenated; `starts` is the offset of each resample.
    starts = np.cumsum(sizes) - sizes
    return repeated[starts[:, None] + np.arange(k)]


def resampled_quota(ranking: Rows, weights: Groups, k: int, labels: Groups) -> Groups:
    """Return the places (b, k) in a re-ranked list of each resample's first k rows.

    Each resample is re-ranked separately: every label keeps its places, which are filled with that
    label's first rows in the resample. If a label has too few rows for this in any resample, the
    list itself is resampled.

    Args:
        ranking: rows (m,) of the list.
        weights: number of times (b, n) that each row occurs in each resample.
        k: number of first rows.
        labels: labels (m,) of the rows in the list.
    """
    pattern = labels[:k]
    top = np.empty((len(weights), k), dtype=np.intp)
    for label in np.unique(pattern):
        places = np.flatnonzero(pattern == label)
        members = np.flatnonzero(labels == label)
        if len(members) < reach(len(places), len(weights.T)):
            return resampled_places(ranking, weights, k)
        top[:, places] = members[resampled_places(ranking[members], weights, len(places))]
    return top


def first_hits(queries: Tensor, items: Tensor, query_codes: Tensor, item_codes: Tensor) -> Tensor:
    """Return the number of items (q,) that rank ahead of each query's first relevant item.

    recall@k is the share of queries with fewer than k such items. Memory use is proportional to the
    number of items, not to q x n.

    Args:
        queries: queries (q, d), compared with the items by inner product.
        items: items (n, d). If scores tie, the earlier row ranks first.
        query_codes: codes (q,). Every query needs a relevant item.
        item_codes: codes (n,). An item is relevant to queries with the same code.
    """
    # Import torch here, because the rest of this module only needs arrays.
    import torch

    size = max(1, _SCORES // max(1, len(items)))
    place = torch.arange(len(items), device=items.device)
    ahead = []
    for rows, codes_of_rows in zip(queries.split(size), query_codes.split(size), strict=True):
        scores = rows @ items.T
        relevant = codes_of_rows[:, None] == item_codes
        # Count the items ahead of the best relevant item.
        best = scores.masked_fill(~relevant, -inf).max(dim=1, keepdim=True).values
        is_tied = scores == best
        first = (is_tied & relevant).int().argmax(dim=1, keepdim=True)
        is_ahead = (scores > best) | (is_tied & (place < first))
        ahead.append(is_ahead.sum(dim=1))
    return torch.cat(ahead)
