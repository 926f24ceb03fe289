"""Derive random generators and micro-batch rows from nothing but the seed and the position."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError


def _seeds(purpose: str, numbers: tuple[int, ...]) -> np.random.SeedSequence:
    """Return a seed sequence for a purpose and a position.

    The length of `numbers` is part of the seed, because numpy pads short sequences with zeros.
    """
    # Use little-endian 32-bit words, so that every machine gives the same seed.
    words = np.array([zlib.crc32(purpose.encode()), len(numbers), *numbers], dtype=np.uint64)
    return np.random.SeedSequence(words.astype("<u8").view("<u4"))


def numpy_generator(purpose: str, *numbers: int) -> np.random.Generator:
    """Return the random generator for a purpose and a position, such as ("order", seed, epoch)."""
    return np.random.default_rng(_seeds(purpose, numbers))


def torch_generator(purpose: str, *numbers: int) -> torch.Generator:
    """Return a torch CPU generator for a purpose and a position, such as ("order", seed, epoch)."""
    seed = int(_seeds(purpose, numbers).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(seed % 2**63)


@dataclass
class Sampler:
    """Select the rows of each micro-batch for one of `world` processes.

    A joint micro-batch consists of `batch_size * world` consecutive rows in the epoch's order, like
    a batch of that size in a single process. Each process gets an equal part, in the order of their
    ranks. The last incomplete batch is dropped.

    Args:
        items: number of rows.
        batch_size: number of rows per micro-batch and process.
        seed: seed of the run.
        rank: rank of this process.
        world: number of processes.
    """

    items: int
    batch_size: int
    seed: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        self.joint_size = self.batch_size * self.world
        if self.items < self.joint_size:
            raise InvalidInputError(
                f"the data has {self.items} rows, fewer than the {self.joint_size} of one batch"
                f" ({self.batch_size} per process, {self.world} processes); lower batch_size or use"
                " more data"
            )
        self.per_epoch = self.items // self.joint_size

    @staticmethod
    @lru_cache(maxsize=2)  # The current epoch, and the next one for reading ahead.
    def order(items: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return rows 0 .. items - 1 in an epoch's order, as a read-only array (items,).

        Args:
            items: number of rows.
            seed: seed of the run.
            epoch: number of the epoch.
        """
        order = numpy_generator("order", seed, epoch).permutation(items)
        order.flags.writeable = False
        return order

    def epoch(self, number: int) -> int:
        """Return the epoch of micro-batch `number`."""
        return number // self.per_epoch

    def _place(self, number: int) -> tuple[NDArray[np.int64], int]:
        """Return the row order in the epoch of a micro-batch, and the micro-batch's position."""
        order = self.order(self.items, self.seed, self.epoch(number))
        return order, number % self.per_epoch * self.joint_size

    def rows(self, number: int) -> NDArray[np.int64]:
        """Return this process's rows (batch_size,) in micro-batch `number`."""
        order, first = self._place(number)
        return order[first + self.rank * self.batch_size :][: self.batch_size].copy()

    def spares(self, number: int) -> Iterator[int]:
        """Yield rows with which this process can replace unreadable rows in a micro-batch.

        They come from other batches in the epoch and differ between processes. A row therefore
        occurs at most once in a joint batch, as required by losses that store a state per row.
        """
        order, first = self._place(number)
        # Processes take turns, so that no two processes use the same row.
        spares = np.delete(order, np.s_[first : first + self.joint_size])
        yield from spares[self.rank :: self.world].tolist()


def turn(count: int, seed: int, epoch: int, image: int) -> int:
    """Return the index of the caption to use for an image in an epoch.

    Epochs cycle through all captions, starting with a random one.

    Args:
        count: number of captions for the image.
        seed: seed of the run.
        epoch: number of the epoch.
        image: index of the image.
    """
    if count == 1:
        return 0
    # Start with a different caption for each image, so that every epoch mixes first and last
    # captions.
    first = int(numpy_generator("caption", seed, image).integers(count))
    return (epoch + first) % count
