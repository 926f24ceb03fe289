"""Which rows stand in which micro-batch: a function of the seed and of its number, and of nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.losses.processes import rank as own_rank
from vldebias.losses.processes import world_size

__all__ = ["Numbers", "Sampler", "epoch_order", "numpy_generator", "torch_generator"]


def numpy_generator(purpose: str, *numbers: int) -> np.random.Generator:
    """The source of randomness of one purpose at one place, such as ("order", seed, epoch).

    Raises:
        InvalidInputError: a negative number.
    """
    return np.random.default_rng(_entropy(purpose, numbers))


def torch_generator(purpose: str, *numbers: int) -> torch.Generator:
    """The same for torch, on the CPU."""
    state = np.random.SeedSequence(_entropy(purpose, numbers)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) % 2**63)


def _entropy(purpose: str, numbers: tuple[int, ...]) -> NDArray[np.uint32]:
    """Words that no other place has: numpy pads with zeros, so lengths are told and widths are fixed."""
    if not all(0 <= number < 2**63 for number in numbers):
        raise InvalidInputError(f"{purpose}: expected a seed and places of at least 0, got {numbers}")
    words = np.array([zlib.crc32(purpose.encode()), len(numbers), *numbers], dtype=np.uint64)
    return words.astype("<u8").view("<u4")


def epoch_order(items: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The rows 0 .. items - 1 in the order of one epoch, (items,)."""
    return numpy_generator("order", seed, epoch).permutation(items)


@lru_cache(maxsize=2)  # the epoch that is read, and the next one where loading runs ahead
def _remembered_order(items: int, seed: int, epoch: int) -> NDArray[np.int64]:
    return epoch_order(items, seed, epoch)


@dataclass(frozen=True)
class Sampler:
    """Rows of the micro-batches of one of `world` processes.

    A joint micro-batch is `batch_size * world` rows that follow each other in the order of the epoch; process r has the
    r-th `batch_size` of them. So the joint batches, and their order by rank, are those that one process with the joint
    batch size would have. What does not fill a joint batch at the end of an epoch is left out of that epoch.

    items: rows of the data set. batch_size: rows per process. rank, world: of this process, by default those of
    torch.distributed where it is initialised, else 0 of 1.

    Raises:
        InvalidInputError: fewer rows than a joint batch takes, a rank outside the world.
    """

    items: int
    batch_size: int
    seed: int = 0
    rank: int | None = None
    world: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "world", world_size() if self.world is None else self.world)
        object.__setattr__(self, "rank", own_rank() if self.rank is None else self.rank)
        if self.batch_size < 1 or not 0 <= self.place < self.processes:
            raise InvalidInputError(
                f"expected batch_size of at least 1 and rank < world, got {self.batch_size}, {self.rank}, {self.world}"
            )
        if self.items < self.joint_size:
            raise InvalidInputError(
                f"the data has {self.items} rows, fewer than the {self.joint_size} of one batch ({self.batch_size} per "
                f"process, {self.processes} processes); lower batch_size or give more data"
            )

    @property
    def processes(self) -> int:
        """Number of processes."""
        return self.world or 1

    @property
    def place(self) -> int:
        """Rank of this process."""
        return self.rank or 0

    @property
    def joint_size(self) -> int:
        """Rows of a joint micro-batch."""
        return self.batch_size * self.processes

    @property
    def per_epoch(self) -> int:
        """Joint micro-batches in an epoch."""
        return self.items // self.joint_size

    @property
    def share(self) -> slice:
        """Which rows of a joint micro-batch are this process's."""
        return slice(self.place * self.batch_size, (self.place + 1) * self.batch_size)

    def epoch(self, number: int) -> int:
        """The epoch that micro-batch `number` belongs to."""
        return number // self.per_epoch

    def joint(self, number: int) -> NDArray[np.int64]:
        """Rows of all processes in micro-batch `number`, (batch_size * world,), in order of ranks."""
        first = number % self.per_epoch * self.joint_size
        order = _remembered_order(self.items, self.seed, self.epoch(number))
        return order[first : first + self.joint_size].copy()

    def rows(self, number: int) -> NDArray[np.int64]:
        """Rows of this process in micro-batch `number`, (batch_size,)."""
        return self.joint(number)[self.share]

    def spares(self, number: int) -> Iterator[int]:
        """Rows for this process to take, in turn, where rows of joint micro-batch `number` cannot be read.

        They are rows of other batches of the epoch, and of no two processes the same: a row stands at most once in a
        joint batch, which losses with a state per row rely on. Nothing is computed before the first is asked for.
        """
        order = _remembered_order(self.items, self.seed, self.epoch(number))
        first = number % self.per_epoch * self.joint_size
        others = np.delete(order, np.s_[first : first + self.joint_size])
        yield from others[self.place :: self.processes].tolist()


@dataclass(frozen=True)
class Numbers:
    """first, first + 1, ... without end, as often as asked."""

    first: int

    def __iter__(self) -> Iterator[int]:
        return count(self.first)
