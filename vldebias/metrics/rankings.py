"""Rankings of a gallery: of its images by queries, of its resamples, and by chance; linear in what is looked at.

A resample of the gallery needs no new sort: it holds row i of the gallery w_i times, so its ranking is the old one with
each row repeated w_i times (`resampled_places`), and only about k rows of it have to be read. Nor does a gallery have
to be sorted whole: `top_rankings` has the first k of millions of rows from blocks of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import ceil, sqrt
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError

Rows = NDArray[np.intp]
_BLOCK = 1 << 23  # entries of a block of rankings: bounds the memory
_SCORES = 1 << 24  # scores that are held at once
_READ = 1 << 14  # items that are read at once
_ROUND = 12  # decimals of an exact score: far below its meaning, so that equal images tie whatever the order of sums


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
    order = _order(scores.shape[1], ties, seed)
    return order[np.argsort(-scores[:, order], axis=1, kind="stable")]


class Items(Protocol):
    """Embeddings (n, d) in blocks, and of some rows by indices: a tensor, or rows that are read when they are used."""

    @property
    def shape(self) -> Any: ...  # noqa: D102
    @property
    def split(self) -> Callable[[int], Iterable[Tensor]]: ...  # noqa: D102
    def __getitem__(self, rows: Any, /) -> Tensor: ...


def top_rankings(queries: Tensor, items: Items, k: int, *, ties: str = "stable", seed: int = 0) -> Rows:
    """The first k rows (q, k) of `rankings` by inner product in float64, without sorting or keeping all scores.

    Candidates come from float32 products in blocks of rows; they are ordered by float64 products, rounded to twelve
    decimals. A float32 product errs by less than (d + 2) 2^-24 ||a|| ||b||: where a row that is no candidate could be
    among the first k by that bound, there are more candidates, so the ranks are exact. Items are read once for all
    queries, and again for those that need more candidates.

    Args:
        queries, items: (q, d) and (n, d) embeddings of one space.
        k: 1 .. n.
        ties, seed: see `rankings`.

    Raises:
        InvalidInputError: shapes that do not fit, values that are not finite, k outside 1 .. n, or another tie rule.
    """
    check_top(queries, items, k)
    order, place = tie_order(items.shape[0], ties, seed)
    first = leaders(queries, items, k, place).places
    return first if order is None else order[first]


class Leaders(NamedTuple):
    """The first rows of some items for each query, best first.

    scores: (q, m) exact. places: (q, m) where each of the rows stands among all items if all scores were equal.
    """

    scores: NDArray[np.float64]
    places: NDArray[np.int64]

    @classmethod
    def merged(cls, parts: Sequence[Leaders], k: int) -> Leaders:
        """The first k of all parts together; merging in any order and any grouping gives the same."""
        scores, places = (np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True))
        best = np.lexsort((places, -scores), axis=1)[:, :k]
        return cls(np.take_along_axis(scores, best, axis=1), np.take_along_axis(places, best, axis=1))


def leaders(queries: Tensor, items: Items, k: int, place: NDArray[np.int64] | int | None = None) -> Leaders:
    """The first k of items (n, d), a part of what is ranked or all of it, as exactly as `top_rankings`.

    Args:
        place: (n,) the place of each item among all where scores are equal; a number is that of the first of items
            that follow one another; None is 0.
    """
    n, d = items.shape
    lengths = torch.linalg.vector_norm(queries.double(), dim=1)
    scores, places = np.empty((len(queries), k)), np.empty((len(queries), k), dtype=np.int64)
    open_, candidates = torch.arange(len(queries)), min(n, k + 64)
    while len(open_):
        least, rows, longest = _candidates(queries[open_], items, candidates)
        error = 1.001 * (d + 2) * 2.0**-24 * longest * lengths  # a float32 length is off by less than a thousandth
        if not torch.isfinite(error).all():
            raise InvalidInputError("queries and items: expected finite values")
        undecided = []
        for query, threshold, found in zip(open_.tolist(), least.tolist(), rows, strict=True):
            exact = (items[found].double() @ queries[query].double()).numpy().round(_ROUND)
            own = place[found.numpy()] if isinstance(place, np.ndarray) else found.numpy() + (place or 0)
            best = np.lexsort((own, -exact))[:k]
            scores[query], places[query] = exact[best], own[best]
            if candidates < n and exact[best[-1]] <= threshold + float(error[query]) + 10.0**-_ROUND:
                undecided.append(query)
        open_, candidates = torch.tensor(undecided, dtype=torch.int64), min(n, 4 * candidates)
    return Leaders(scores, places)


def check_top(queries: Tensor, items: Items, k: int) -> None:
    """Refuse shapes that do not fit, and k outside 1 .. n."""
    _check_pair(queries, items)
    if not 1 <= k <= items.shape[0]:
        raise InvalidInputError(f"k: expected 1 .. {items.shape[0]}, the rows that are ranked, got {k}")


def tie_order(n: int, ties: str, seed: int) -> tuple[Rows | None, NDArray[np.int64] | None]:
    """The order (n,) in which rows of equal scores stand, and the place (n,) of each row in it; None: as they come."""
    if ties == "stable":
        return None, None
    order = _order(n, ties, seed)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    return order, place


def _candidates(queries: Tensor, items: Items, m: int) -> tuple[Tensor, Tensor, float]:
    """The m highest float32 products of every query: the lowest of them (q,), their rows (q, m), the longest item."""
    texts, block = queries.float(), min(_READ, max(1, _SCORES // max(len(queries), 1)))
    values, rows = texts.new_empty(len(texts), 0), torch.empty(len(texts), 0, dtype=torch.int64)
    start, longest = 0, 0.0
    for some in items.split(block):
        some = some.float()  # lengths of float16 would overflow
        longest = max(longest, float(torch.linalg.vector_norm(some, dim=1).nan_to_num(nan=torch.inf).max()))
        scores = texts @ some.T
        most = scores.shape[1]
        if values.shape[1] == m:  # those above the lowest so far alone: soon a few, which are found in one walk
            most = int((scores > values.amin(1, keepdim=True)).sum(1).max())
        if most:
            best, index = scores.topk(min(m, most), dim=1, sorted=False)
            both = torch.cat([values, best], dim=1)
            values, kept = both.topk(min(m, both.shape[1]), dim=1, sorted=False)
            rows = torch.cat([rows, index + start], dim=1).gather(1, kept)
        start += len(some)
    return values.amin(1), rows, longest


def _order(n: int, ties: str, seed: int) -> Rows:
    """The order (n,) in which rows of equal scores stand."""
    if ties not in ("stable", "random"):
        raise InvalidInputError(f"ties: expected 'stable' or 'random', got {ties!r}")
    return np.arange(n) if ties == "stable" else np.random.default_rng(seed).permutation(n)


def random_rankings(n: int, k: int, count: int, seed: int) -> Iterator[Rows]:
    """The first k rows of `count` random orders of n rows: blocks (b, k).

    Where k is a small part of n, k rows are drawn one by one, at a cost that does not grow with n; else n are permuted.
    """
    rng = np.random.default_rng(seed)
    few = n > 10_000 and n > 50 * k  # where `Generator.choice` draws k rows without an array of n
    width = k if few else n
    size = max(1, _BLOCK // width)
    for start in range(0, count, size):
        b = min(size, count - start)
        if few:
            yield np.stack([rng.choice(n, k, replace=False) for _ in range(b)])
        else:
            yield rng.permuted(np.tile(np.arange(n), (b, 1)), axis=1)[:, :k]


def reach(k: int, n: int) -> int:
    """Rows of a ranking of n that hold k rows of a resample, but for a chance of about 1e-14."""
    return min(n, k + ceil(8 * sqrt(k)) + 32)


def resampled_places(ranking: Rows, weights: NDArray[np.integer], k: int) -> NDArray[np.integer]:
    """Places (b, k) in one ranking (m,) of the first k rows in each of b resamples, whose rows weigh (b, n).

    A row that was drawn twice stands twice: equal scores keep the order of the ranking. Only as many rows are read as
    hold k in every resample.

    Raises:
        InvalidInputError: a resample holds fewer than k rows of the ranking.
    """
    m = len(ranking)
    read = reach(k, m)
    while True:
        times = weights.T[ranking[:read]].T  # fast where the weights of a row lie together
        held = times.sum(axis=1, dtype=np.intp)
        if read == m or held.min() >= k:
            break
        read = min(m, 2 * read)
    if held.min() < k:
        raise InvalidInputError(f"k: expected at most the {held.min()} rows that a resample holds, got {k}")
    place = np.broadcast_to(np.arange(read, dtype=np.min_scalar_type(read)), times.shape)
    starts = np.cumsum(held) - held
    return place.ravel().repeat(times.ravel().astype(np.intp))[starts[:, None] + np.arange(k)]


def first_hits(queries: Tensor, items: Tensor, query_codes: Tensor, item_codes: Tensor) -> Tensor:
    """Items that rank ahead of the first relevant one, (q,) int64; recall@k is the mean of `first_hits(...) < k`.

    Recall@k is the share of queries with a relevant item among the first k, which image-text papers call recall and
    information retrieval calls hit rate or success. Memory grows with the number of items, never with queries x items.

    Args:
        queries, items: (q, d) and (n, d) embeddings of one space, compared by inner product.
        query_codes, item_codes: (q,) and (n,) integers; an item is relevant where the codes agree. Of items with equal
            scores the earlier row ranks ahead.

    Raises:
        InvalidInputError: shapes that do not fit, or a query that no item is relevant to.
    """
    _check_pair(queries, items)
    if query_codes.shape != queries.shape[:1] or item_codes.shape != items.shape[:1]:
        raise InvalidInputError(
            f"codes: expected one per query ({len(queries)}) and item ({len(items)}), "
            f"got {tuple(query_codes.shape)} and {tuple(item_codes.shape)}"
        )
    alone = ~torch.isin(query_codes, item_codes)
    if alone.any():
        raise InvalidInputError(f"codes: no item is relevant to {int(alone.sum())} of {len(queries)} queries")
    size, place = max(1, _SCORES // max(1, len(items))), torch.arange(len(items), device=items.device)
    ahead = []
    for some, codes in zip(queries.split(size), query_codes.split(size), strict=True):
        scores, relevant = some @ items.T, codes[:, None] == item_codes
        best = scores.masked_fill(~relevant, -torch.inf).max(dim=1, keepdim=True).values
        level = scores == best
        first = (level & relevant).int().argmax(dim=1, keepdim=True)
        ahead.append(((scores > best) | (level & (place < first))).sum(dim=1))
    return torch.cat(ahead)


def _check_pair(queries: Tensor, items: Items) -> None:
    if queries.ndim != 2 or len(items.shape) != 2 or queries.shape[1] != items.shape[1]:
        raise InvalidInputError(
            f"queries and items: expected (q, d) and (n, d), got {tuple(queries.shape)} and {tuple(items.shape)}"
        )
