"""Batches of images that are all in memory: for worlds small enough to be rendered once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import count

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.training.batches import Batch, Tokenize, codes_of
from vldebias.training.sampling import Sampler, torch_generator


class TensorBatches:
    """Micro-batches of images that are all in memory; see `Batches`. For worlds small enough to be rendered once.

    Args:
        images: (n, 3, h, w), as the image tower reads them.
        captions: n texts, with `tokenize`; None for two views.
        tokenize: of the towers; called once with every different text.
        labels: (n,) integers, the class of each pair.
        groups: (n,) integers, the group of each pair.
        augment: images (b, 3, h, w) -> images; all its randomness is the generator's.
        two_views: contrast two augmentations of each image; captions are then not read.
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
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        two_views: bool = False,
        seed: int = 0,
    ) -> None:
        if images.ndim != 4:
            raise InvalidInputError(f"images: expected (n, 3, h, w), got {tuple(images.shape)}")
        if two_views and augment is None:
            raise InvalidInputError("two_views needs augment: without it both views are the same image")
        self.images, self.labels, self.augment, self.two_views = images, labels, augment, two_views
        self.groups = groups
        self.sampler = Sampler(len(images), batch_size, seed)
        self.items: int | None = len(images)
        self.per_epoch: int | None = self.sampler.per_epoch
        lengths = {"labels": labels, "captions": captions}
        wrong = {name: len(rows) for name, rows in lengths.items() if rows is not None and len(rows) != len(images)}
        if wrong:
            raise InvalidInputError(f"expected {len(images)} rows, one per image, got {wrong}")
        self._tokens: dict[str, Tensor] = {}
        self.captions: Tensor | None = None
        if not two_views:
            if captions is None or tokenize is None:
                raise InvalidInputError("expected captions and tokenize, which the towers come with, or two_views=True")
            place = {text: row for row, text in enumerate(dict.fromkeys(captions))}
            each = torch.tensor([place[text] for text in captions])
            self._tokens = {name: tokens[each] for name, tokens in tokenize(list(place)).items()}
            self.captions = codes_of(captions)

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Micro-batches `first`, `first` + 1, ... without end."""
        return (self.batch(number) for number in count(first))

    def batch(self, number: int) -> Batch:
        """Micro-batch `number`."""
        sampler = self.sampler
        rows = torch.from_numpy(sampler.rows(number))
        views = []
        for view in range(1 + self.two_views):
            images = self.images.index_select(0, rows.to(self.images.device))
            if self.augment is not None:
                images = self.augment(images, torch_generator("augmentation", sampler.seed, number, view))
            views.append(images)
        return Batch(
            images=views[0],
            views=views[1] if self.two_views else None,
            texts={name: tokens.index_select(0, rows) for name, tokens in self._tokens.items()},
            index=rows,
            labels=None if self.labels is None else self.labels.index_select(0, rows),
            captions=None if self.captions is None else self.captions.index_select(0, rows),
            groups=None if self.groups is None else self.groups.index_select(0, rows),
        )
