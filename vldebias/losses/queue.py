"""Negatives of earlier batches: the queue of MoCo, filled with features of a slowly moving copy of the model."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses.checks import check_interval
from vldebias.losses.processes import gather_rows


class NegativeQueue(nn.Module):
    """The newest `rows` pairs of features that were pushed, for the option `queue` of a loss.

    He et al., Momentum Contrast (2020), section 3.2: a loss sees more negatives than a batch has, which are from a
    model that moves slowly, so that those of earlier batches still fit. Positives stay those of the batch. A pair that
    comes again while it is in the queue meets itself as a negative, as in the paper: keep the queue shorter than the
    data set.

    The features are in the buffers images and texts (rows, dim), of which the first `len` are filled, so a checkpoint
    of the module resumes exactly. Every process keeps the same queue.

    Raises:
        InvalidInputError: rows or dim < 1.
    """

    images: Tensor
    texts: Tensor
    pushed: Tensor

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        check_interval("rows", rows, "[1, inf)")
        check_interval("dim", dim, "[1, inf)")
        self.register_buffer("images", torch.zeros(rows, dim))
        self.register_buffer("texts", torch.zeros(rows, dim))
        self.register_buffer("pushed", torch.zeros((), dtype=torch.long))

    def __len__(self) -> int:
        return min(int(self.pushed), len(self.images))

    def negatives(self) -> tuple[Tensor, Tensor]:
        """Images and texts (Q, d) that are in it now; Q is 0 before the first push."""
        return self.images[: len(self)], self.texts[: len(self)]

    @torch.no_grad()
    def push(self, images: Tensor, texts: Tensor) -> None:
        """Takes in the pairs (n, d) of all processes in place of the oldest; of more than `rows` the last.

        Raises:
            InvalidInputError: features of another shape.
        """
        if images.shape != texts.shape or images.ndim != 2 or images.shape[1] != self.images.shape[1]:
            raise InvalidInputError(
                f"queue: expected images and texts (n, {self.images.shape[1]}), got {tuple(images.shape)} and "
                f"{tuple(texts.shape)}"
            )
        both = [gather_rows(rows.detach())[-len(self.images) :] for rows in (images, texts)]
        places = (self.pushed + torch.arange(len(both[0]), device=self.pushed.device)) % len(self.images)
        for buffer, rows in zip((self.images, self.texts), both, strict=True):
            buffer[places] = rows.to(buffer)
        self.pushed += len(both[0])
