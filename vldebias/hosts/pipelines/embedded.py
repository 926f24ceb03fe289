"""Recognise embeddings from an attached `encode_prompt` when they are passed to a pipeline call."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from vldebias.hosts.call_log import KEPT, CallRecord

_SAMPLES = 64  # number of entries that are compared per row
_NOISE = 1e-6

Origin = tuple[CallRecord | None, int]
"""The record of the call that encoded a row (None if it sampled no values), and its image index."""


class KnownEmbeddings:
    """Remember the rows of recently computed embeddings, recognised by a few of their entries.

    A row is recognised by its numbers, so it may be a view, or may have been concatenated with
    others, moved to a different device or cast. A modified row, such as one that was weighted or
    joined with a different row along the token axis, is not recognised.
    """

    def __init__(self) -> None:
        self._rows: deque[tuple[torch.Size, Tensor, Origin]] = deque(maxlen=KEPT)

    def remember(self, embeddings: object, record: CallRecord | None) -> None:
        """Remember the rows of embeddings, one per image of a call.

        Args:
            embeddings: a tensor or a list of tensors.
            record: the record of the call, or None if no values are sampled.
        """
        rows = rows_of(embeddings)
        if record is not None and len(rows) != len(record.values):
            return  # the rows cover both guidance branches, or one row belongs to several images
        for number, row in enumerate(rows):
            self._rows.append((row.shape, _entries(row), (record, number)))

    def find(self, embeddings: object) -> list[Origin | None]:
        """Return the origin of each row of embeddings, or None if unknown."""
        known = list(self._rows)[::-1]
        origins: list[Origin | None] = []
        for row in rows_of(embeddings):
            entries = _entries(row)
            # Changing the precision rounds the entries.
            tolerance = torch.finfo(row.dtype).eps * entries.abs() + _NOISE
            for shape, known_entries, origin in known:
                if shape == row.shape and ((known_entries - entries).abs() <= tolerance).all():
                    origins.append(origin)
                    break
            else:
                origins.append(None)
        return origins


def rows_of(embeddings: object) -> Sequence[Tensor]:
    """Return the rows of embeddings, a tensor (b, ...) or a list of tensors."""
    rows: list[Tensor] = list(embeddings) if isinstance(embeddings, Tensor | list | tuple) else []
    are_rows = [isinstance(row, Tensor) and row.is_floating_point() and row.ndim for row in rows]
    return rows if all(are_rows) else []


def _entries(row: Tensor) -> Tensor:
    """Return `_SAMPLES` evenly spaced entries of a row, as float32 on the CPU."""
    flat = row.detach().flatten()
    places = torch.linspace(0, len(flat) - 1, _SAMPLES, device=flat.device).long()
    return flat[places].to("cpu", torch.float32)
