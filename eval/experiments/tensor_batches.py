"""Provide batches of images that are held in memory, for small worlds that are rendered once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import count

import torch
from torch import Tensor

from vldebias.training.batches import Batch, Tokenize
from vldebias.training.sampling import Sampler, torch_generator


class TensorBatches:
    """Micro-batches of image tower inputs (n, 3, h, w), see `Batches`.

    Attributes:
        captions: The n captions, which require the towers' `tokenize`.
        labels, groups: Integers (n,).
        weights: Weights (n,) of the pairs in the loss.
        augment: A function that augments images (b, 3, h, w) using the given generator.
        two_views: Whether to use two augmentations of each image instead of captions.
        more_views: The number of further augmentations of each image.
    """

    more_views = 0

    def __init__(
        self,
        images: Tensor,
        captions: Sequence[str] = (),
        *,
        batch_size: int,
        tokenize: Tokenize | None = None,
        labels: Tensor | None = None,
        groups: Tensor | None = None,
        weights: Tensor | None = None,
        augment: Callable[[Tensor, torch.Generator], Tensor] | None = None,
        two_views: bool = False,
        seed: int = 0,
    ) -> None:
        self.images, self.augment, self.two_views = images, augment, two_views
        self.sampler = Sampler(len(images), batch_size, seed)
        self.items: int | None = len(images)
        self.per_epoch: int | None = self.sampler.per_epoch
        self.columns = {"labels": labels, "groups": groups, "weights": weights, "captions": None}
        self.tokens: dict[str, Tensor] = {}
        if not two_views:
            assert tokenize is not None
            place = {text: row for row, text in enumerate(dict.fromkeys(captions))}
            rows = torch.tensor([place[text] for text in captions])
            self.tokens = {name: tokens[rows] for name, tokens in tokenize(list(place)).items()}
            self.columns["captions"] = Batch.codes(captions)

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Yield the micro-batches `first`, `first` + 1, ... endlessly."""
        return (self.batch(number) for number in count(first))

    def batch(self, number: int) -> Batch:
        """Return micro-batch `number`."""
        rows = torch.from_numpy(self.sampler.rows(number))
        contrasted = 1 + self.two_views
        views = [self.images[rows] for _ in range(contrasted + self.more_views)]
        if self.augment is not None:
            seeds = [
                torch_generator("augmentation", self.sampler.seed, number, view)
                for view in range(len(views))
            ]
            views = [self.augment(images, seed) for images, seed in zip(views, seeds, strict=True)]
        return Batch(
            images=views[0],
            views=views[1] if self.two_views else None,
            more_views=torch.stack(views[contrasted:], 1) if self.more_views else None,
            texts={name: tokens[rows] for name, tokens in self.tokens.items()},
            index=rows,
            **{
                name: None if column is None else column[rows]
                for name, column in self.columns.items()
            },
        )
