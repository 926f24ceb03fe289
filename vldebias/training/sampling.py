"""Derive random generators and the rows of each micro-batch from numbers alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError


def _seeds(purpose: str, numbers: tuple[int, ...]) -> np.random.SeedSequence:
    """Return seeds unique to a purpose and place; the length is included, since numpy pads with
    zeros."""
    # Words of 32 bits, little-endian on every machine: the seed is the same everywhere.
    words = np.array([zlib.crc32(purpose.encode()), len(numbers), *numbers], dtype=np.uint64)
    return np.random.SeedSequence(words.astype("<u8").view("<u4"))


def numpy_generator(purpose: str, *numbers: int) -> np.random.Generator:
    """Return the random generator of one purpose at one place, such as ("order", seed, epoch)."""
    return np.random.default_rng(_seeds(purpose, numbers))


def torch_generator(purpose: str, *numbers: int) -> torch.Generator:
    """Return a torch generator on the CPU, of one purpose at one place, as `numpy_generator`."""
    seed = int(_seeds(purpose, numbers).generate_state(1, np.uint64)[0])
    return torch.Generator().manual_seed(seed % 2**63)


class Sampler:
    """Choose the rows of the micro-batches of one of `world` processes.

    A joint micro-batch is `batch_size * world` rows that follow each other in the order of the
    epoch, as one process with the joint batch size would have; process `rank` has the rank-th
    share. An incomplete last batch is left out.
    """

    def __init__(
        self, items: int, batch_size: int, seed: int = 0, rank: int = 0, world: int = 1
    ) -> None:
        self.items = items
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world = world
        self.joint_size = batch_size * world
        if items < self.joint_size:
            raise InvalidInputError(
                f"the data has {items} rows, fewer than the {self.joint_size} of one batch"
                f" ({batch_size} per process, {world} processes); lower batch_size or give more"
                " data"
            )
        self.per_epoch = items // self.joint_size

    @staticmethod
    @lru_cache(maxsize=2)  # the epoch that is read, and the next one where loading runs ahead
    def order(items: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the rows 0 .. items - 1 in the order of one epoch, (items,), read-only.

        Args:
            items: number of rows.
            seed: of the run.
            epoch: number of the epoch.
        """
        order = numpy_generator("order", seed, epoch).permutation(items)
        order.flags.writeable = False
        return order

    def epoch(self, number: int) -> int:
        """Return the epoch that micro-batch `number` belongs to."""
        return number // self.per_epoch

    def _place(self, number: int) -> tuple[NDArray[np.int64], int]:
        """Return the order of the epoch of micro-batch `number`, and where the joint batch begins
        in it."""
        order = self.order(self.items, self.seed, self.epoch(number))
        return order, number % self.per_epoch * self.joint_size

    def rows(self, number: int) -> NDArray[np.int64]:
        """Return the rows of this process in micro-batch `number`, (batch_size,)."""
        order, first = self._place(number)
        return order[first + self.rank * self.batch_size :][: self.batch_size].copy()

    def spares(self, number: int) -> Iterator[int]:
        """Yield replacement rows for this process, in turn, where rows of joint micro-batch
        `number` cannot be read.

        They are rows of other batches of the epoch, and of no two processes the same: a row stands
        at most once in a joint batch, which losses with a state per row rely on.
        """
        order, first = self._place(number)
        # Every world-th from the rank on: no two processes take the same.
        spares = np.delete(order, np.s_[first : first + self.joint_size])
        yield from spares[self.rank :: self.world].tolist()


def turn(count: int, seed: int, epoch: int, image: int) -> int:
    """Return which of its `count` captions an image has in an epoch: each once in `count` epochs,
    from a random one.

    Args:
        count: number of captions of the image.
        seed: of the run.
        epoch: number of the epoch.
        image: number of the image.
    """
    if count == 1:
        return 0
    # Images begin at different captions, so that an epoch has first and last ones mixed.
    first = int(numpy_generator("caption", seed, image).integers(count))
    return (epoch + first) % count
