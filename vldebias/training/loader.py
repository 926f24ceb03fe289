"""Batches of images that are read, decoded and augmented as training goes, by worker processes that run ahead."""

from __future__ import annotations

import multiprocessing
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vldebias.errors import InvalidInputError
from vldebias.training.augmentation import Augment
from vldebias.training.batch import Batch
from vldebias.training.pairs import PairSource
from vldebias.training.sampling import Numbers, Sampler, torch_generator
from vldebias.training.tensors import TensorBatches
from vldebias.training.tokens import Tokenize, Tokens, tokens_of
from vldebias.training.unreadable import OnError, Unreadable, readable

__all__ = ["MapBatches", "TensorBatches"]


class MapBatches:
    """Micro-batches of pairs that are read at random; see `vldebias.training.batch.Batches`.

    What a batch holds depends on its number alone, not on the workers, so loading starts anywhere at once.

    Args:
        pairs: images and captions.
        augment: image -> tensor; see `vldebias.training.augmentation.augmentation`.
        tokenize: of the towers; not needed for two views.
        two_views: contrast two augmentations of each image; captions are then not read.
        on_error: in place of an image that cannot be read another row is taken ("skip"), so that one file does not end
            a run of hours: the 1st, 10th, 100th are told at once, their number when the iterator is closed, and
            `unreadable` holds them all. Or training stops there ("raise").
        workers: processes that read; 0 reads in this one.
        prefetch: batches that each worker is ahead.
        batch_size, seed, rank, world: see `vldebias.training.sampling.Sampler`.

    Raises:
        InvalidInputError: no captions or no `tokenize` without `two_views`; fewer pairs than a batch takes; workers on
            a system without fork.
    """

    def __init__(
        self,
        pairs: PairSource,
        augment: Augment,
        *,
        batch_size: int,
        tokenize: Tokenize | None = None,
        two_views: bool = False,
        on_error: OnError = "skip",
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        workers: int = 0,
        prefetch: int = 2,
    ) -> None:
        if not two_views and (tokenize is None or not pairs.captions):
            raise InvalidInputError(f"{pairs.name}: expected captions and tokenize, or two_views=True")
        if workers and "fork" not in multiprocessing.get_all_start_methods():
            raise InvalidInputError(f"workers: this system cannot fork processes; expected 0, got {workers}")
        self.unreadable = Unreadable(pairs.name)
        self._workers, self._prefetch = workers, prefetch
        self._batches = _NumberedBatches(
            pairs,
            augment,
            Sampler(pairs.items, batch_size, seed, rank, world),
            None if two_views or tokenize is None else tokens_of(pairs.captions, tokenize),
            None if pairs.labels is None else torch.from_numpy(pairs.labels.codes),
            on_error,
        )

    @property
    def items(self) -> int:
        """Rows of the data set."""
        return self._batches.sampler.items

    @property
    def per_epoch(self) -> int:
        """Micro-batches of this process in an epoch."""
        return self._batches.sampler.per_epoch

    def starting(self, first: int) -> Generator[Batch, None, None]:
        """Micro-batches `first`, `first` + 1, ... without end; close the iterator to stop the workers."""
        loader: DataLoader[dict[str, Any]] = DataLoader(
            self._batches,
            batch_size=None,  # a number is a whole batch
            sampler=Numbers(first),
            collate_fn=_as_it_is,
            num_workers=self._workers,
            prefetch_factor=self._prefetch if self._workers else None,
            pin_memory=torch.cuda.is_available(),
            multiprocessing_context="fork" if self._workers else None,  # readers are closures, which do not pickle
            generator=torch.Generator(),  # its own, or the workers' seed would be drawn from the global one
        )
        try:
            for parts in loader:
                if "error" in parts:
                    raise InvalidInputError(parts["error"])
                self.unreadable.add(parts.pop("unreadable"))
                yield Batch(**parts)
        finally:
            self.unreadable.report()


def _as_it_is(parts: Any) -> Any:
    return parts


@dataclass(frozen=True, eq=False)
class _NumberedBatches(Dataset[dict[str, Any]]):
    """Number of a micro-batch -> the parts of a Batch, and `unreadable`: id -> reason; or `error`: what is wrong.

    An error is handed over as a text: one that is raised in a worker arrives inside a traceback of the loader's.
    """

    pairs: PairSource
    augment: Augment
    sampler: Sampler
    tokens: Tokens | None
    labels: Tensor | None
    on_error: OnError

    def __getitem__(self, number: int) -> dict[str, Any]:
        try:
            return self._parts(number)
        except InvalidInputError as error:
            return {"error": str(error)}

    def _parts(self, number: int) -> dict[str, Any]:
        spares = self.sampler.spares(number)
        read = [self._row(int(row), number, spares) for row in self.sampler.rows(number)]
        rows = torch.tensor([row for row, _, _ in read])
        images = torch.stack([pixels for _, pixels, _ in read], dim=1)
        return {
            "images": images[0],
            "texts": {} if self.tokens is None else self.tokens(rows),
            "index": rows,
            "labels": None if self.labels is None else self.labels[rows],
            "views": images[1] if self.tokens is None else None,
            "unreadable": {row: reason for _, _, failed in read for row, reason in failed.items()},
        }

    def _row(self, row: int, number: int, spares: Iterator[int]) -> tuple[int, Tensor, dict[str, str]]:
        """The row that is taken, its views (v, 3, h, w), and the rows that could not be."""
        sampler = self.sampler
        taken, image, failed = readable(
            row,
            self.pairs.image,
            spares=spares,
            ids=self.pairs.ids.__getitem__,
            on_error=self.on_error,
        )
        where = (sampler.seed, sampler.epoch(number), taken)
        views = range(1 if self.tokens is not None else 2)
        pixels = [self.augment(image, torch_generator("augmentation", *where, view)) for view in views]
        return taken, torch.stack(pixels), failed
