"""Batches of images that are all in memory: for worlds small enough to be rendered once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import count

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.training.batches import Batch, Tokenize, Tokens, codes_of, looks_of, tokens_of
from vldebias.training.sampling import Sampler, torch_generator


class TensorBatches:
    """Micro-batches of images that are all in memory; see `Batches`. For worlds small enough to be rendered once.

    Args:
        images: (n, 3, h, w), as the image tower reads them.
        captions: n texts, with `tokenize`; None for two views.
        tokenize: of the towers; called once with every different text.
        labels: (n,) integers, the class of each pair.
        groups: (n,) integers, the group of each pair. balance: each batch has the groups alike often.
        augment: images (b, 3, h, w) -> images; all its randomness is the generator's.
        two_views: contrast two augmentations of each image; captions are then not read.
        further: more augmentations of each image, for losses that take further positives.
        batch_size, seed: see `vldebias.training.sampling.Sampler`.

    Raises:
        InvalidInputError: captions or labels of another number than images, no captions or no `tokenize` without
            `two_views`, two views without `augment`, fewer images than a batch takes.
    """

    def __init__(
        self,
        images: Tensor,
        captions: Sequence[str] | None = None,
        *,
        batch_size: int,
        tokenize: Tokenize | None = None,
        labels: Tensor | None = None,
        groups: Tensor | None = None,
        balance: bool = False,
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        two_views: bool = False,
        further: int = 0,
        seed: int = 0,
    ) -> None:
        if images.ndim != 4:
            raise InvalidInputError(f"images: expected (n, 3, h, w), got {tuple(images.shape)}")
        if two_views and augment is None:
            raise InvalidInputError("two_views needs augment: without it both views are the same image")
        if further and augment is None:
            raise InvalidInputError("further needs augment: without it they are the same image")
        self.images, self.labels, self.augment, self.two_views = images, labels, augment, two_views
        self.looks = 1 + two_views + further
        self.groups = groups
        codes = groups.numpy() if balance and groups is not None else None
        self.sampler = Sampler(len(images), batch_size, seed, groups=codes)
        self.items, self.per_epoch = len(images), self.sampler.per_epoch
        lengths = {"labels": labels, "captions": captions}
        wrong = {name: len(rows) for name, rows in lengths.items() if rows is not None and len(rows) != len(images)}
        if wrong:
            raise InvalidInputError(f"expected {len(images)} rows, one per image, got {wrong}")
        self._tokens: Tokens = lambda rows: {}
        self.captions: Tensor | None = None
        if not two_views:
            if captions is None or tokenize is None:
                raise InvalidInputError("expected captions and tokenize, which the towers come with, or two_views=True")
            self._tokens = tokens_of(captions, tokenize)
            self.captions = codes_of(captions)

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Micro-batches `first`, `first` + 1, ... without end."""
        return (self.batch(number) for number in count(first))

    def batch(self, number: int) -> Batch:
        """Micro-batch `number`."""
        sampler = self.sampler
        rows = torch.from_numpy(sampler.rows(number))
        views = []
        for view in range(self.looks):
            images = self.images.index_select(0, rows.to(self.images.device))
            if self.augment is not None:
                images = self.augment(images, torch_generator("augmentation", sampler.seed, number, view))
            views.append(images)
        return Batch(
            **looks_of(torch.stack(views, dim=1), self.two_views),
            texts=self._tokens(rows),
            index=rows,
            labels=None if self.labels is None else self.labels.index_select(0, rows),
            captions=None if self.captions is None else self.captions.index_select(0, rows),
            groups=None if self.groups is None else self.groups.index_select(0, rows),
        )
