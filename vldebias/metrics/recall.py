"""Where the first relevant item of a ranking stands, for recall@k between images and their captions.

A query has one or more relevant items: those of its own code. Recall@k is the share of queries with a relevant item
among the first k, which image-text papers call recall and information retrieval calls hit rate or success. Scores are
computed in blocks: memory grows with the number of items, never with queries x items.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError

__all__ = ["first_hits"]

_BLOCK = 1 << 24  # scores that are held at once


def first_hits(queries: Tensor, items: Tensor, query_codes: Tensor, item_codes: Tensor) -> Tensor:
    """Items that rank ahead of the first relevant one, (q,) int64; recall@k is the mean of `first_hits(...) < k`.

    Args:
        queries, items: (q, d) and (n, d) embeddings of one space, compared by inner product.
        query_codes, item_codes: (q,) and (n,) integers; an item is relevant where the codes agree. Of items with equal
            scores the earlier row ranks ahead.

    Raises:
        InvalidInputError: shapes that do not fit, or a query that no item is relevant to.
    """
    if queries.ndim != 2 or items.ndim != 2 or queries.shape[1] != items.shape[1]:
        raise InvalidInputError(
            f"queries and items: expected (q, d) and (n, d), got {tuple(queries.shape)} and {tuple(items.shape)}"
        )
    if query_codes.shape != queries.shape[:1] or item_codes.shape != items.shape[:1]:
        raise InvalidInputError(
            f"codes: expected one per query ({len(queries)}) and item ({len(items)}), "
            f"got {tuple(query_codes.shape)} and {tuple(item_codes.shape)}"
        )
    alone = ~torch.isin(query_codes, item_codes)
    if alone.any():
        raise InvalidInputError(f"codes: no item is relevant to {int(alone.sum())} of {len(queries)} queries")
    rows = max(1, _BLOCK // max(1, len(items)))
    blocks = zip(queries.split(rows), query_codes.split(rows), strict=True)
    return torch.cat([_ahead(block @ items.T, codes[:, None] == item_codes) for block, codes in blocks])


def _ahead(scores: Tensor, relevant: Tensor) -> Tensor:
    """Items ahead of the first relevant one, (b,), from scores and relevance (b, n)."""
    best = scores.masked_fill(~relevant, -torch.inf).max(dim=1, keepdim=True)
    level = scores == best.values
    first = (level & relevant).int().argmax(dim=1, keepdim=True)
    earlier = torch.arange(scores.shape[1], device=scores.device) < first
    return ((scores > best.values) | (level & earlier)).sum(dim=1)
