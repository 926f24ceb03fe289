"""Batches from tensors in memory: for worlds small enough to be rendered once, at next to no cost per batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import count

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.training.batch import Batch
from vldebias.training.sampling import Sampler, torch_generator
from vldebias.training.tokens import Tokenize, TokenTable

__all__ = ["BatchAugment", "TensorBatches"]

BatchAugment = Callable[[Tensor, torch.Generator], Tensor]
"""Images (b, 3, h, w) -> images; all its randomness must be the generator's, which is on the CPU."""


class TensorBatches:
    """Micro-batches of images that are all in memory; see `vldebias.training.batch.Batches`.

    With `augment` every process augments the joint batch and keeps its share of it, so that several processes see what
    one would.

    Args:
        images: (n, 3, h, w), as the image tower reads them.
        captions: n texts (with `tokenize`), or the arguments of the text tower, (n, length) each; None for two views.
        tokenize: of the towers; called once with every different text.
        labels: (n,) integers, the class of each pair.
        augment: applied to every batch, such as `vldebias.training.noise.CropNoise`.
        two_views: contrast two augmentations of each image; captions are then not read.
        batch_size, seed, rank, world: see `vldebias.training.sampling.Sampler`.

    Raises:
        InvalidInputError: captions or labels of another number than images, captions without `tokenize`, two views
            without `augment`, fewer images than a batch takes.
    """

    def __init__(
        self,
        images: Tensor,
        captions: Sequence[str] | Mapping[str, Tensor] | None = None,
        *,
        batch_size: int,
        tokenize: Tokenize | None = None,
        labels: Tensor | None = None,
        augment: BatchAugment | None = None,
        two_views: bool = False,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
    ) -> None:
        if images.ndim != 4:
            raise InvalidInputError(f"images: expected (n, 3, h, w), got {tuple(images.shape)}")
        if two_views and augment is None:
            raise InvalidInputError("two_views needs augment: without it both views are the same image")
        self.images, self.labels, self.augment, self.two_views = images, labels, augment, two_views
        self.sampler = Sampler(len(images), batch_size, seed, rank, world)
        self.tokens = None if two_views else _tokens(captions, tokenize)
        lengths = {"labels": labels, "captions": None if self.tokens is None else self.tokens.row}
        wrong = {name: len(rows) for name, rows in lengths.items() if rows is not None and len(rows) != len(images)}
        if wrong:
            raise InvalidInputError(f"expected {len(images)} rows, one per image, got {wrong}")

    @property
    def items(self) -> int:
        """Rows of the data set."""
        return len(self.images)

    @property
    def per_epoch(self) -> int:
        """Micro-batches of this process in an epoch."""
        return self.sampler.per_epoch

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Micro-batches `first`, `first` + 1, ... without end."""
        return (self.batch(number) for number in count(first))

    def batch(self, number: int) -> Batch:
        """Micro-batch `number` of this process."""
        rows = torch.from_numpy(self.sampler.rows(number))
        return Batch(
            images=self._images(number, 0),
            texts={} if self.tokens is None else self.tokens(rows),
            index=rows,
            labels=None if self.labels is None else self.labels.index_select(0, rows),
            views=self._images(number, 1) if self.two_views else None,
        )

    def _images(self, number: int, view: int) -> Tensor:
        if self.augment is None:
            return self._rows(self.sampler.rows(number))
        generator = torch_generator("augmentation", self.sampler.seed, number, view)
        return self.augment(self._rows(self.sampler.joint(number)), generator)[self.sampler.share]

    def _rows(self, rows: object) -> Tensor:
        return self.images.index_select(0, torch.as_tensor(rows, device=self.images.device))


def _tokens(captions: Sequence[str] | Mapping[str, Tensor] | None, tokenize: Tokenize | None) -> TokenTable:
    if isinstance(captions, Mapping) and captions:
        return TokenTable(captions, torch.arange(min(len(values) for values in captions.values())))
    if captions is None or isinstance(captions, Mapping):
        raise InvalidInputError("captions: expected texts or their tokens; only two_views=True does without")
    if tokenize is None:
        raise InvalidInputError("captions: texts need tokenize, the function that the towers come with")
    return TokenTable.of(captions, tokenize)
