"""Randomness by its purpose and place, and which rows stand in which micro-batch: functions of numbers alone."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.losses.processes import rank as own_rank
from vldebias.losses.processes import world_size


def numpy_generator(purpose: str, *numbers: int) -> np.random.Generator:
    """The source of randomness of one purpose at one place, such as ("order", seed, epoch); no number is negative."""
    return np.random.default_rng(_entropy(purpose, numbers))


def torch_generator(purpose: str, *numbers: int) -> torch.Generator:
    """The same for torch, on the CPU."""
    state = np.random.SeedSequence(_entropy(purpose, numbers)).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(state[0]) % 2**63)


def _entropy(purpose: str, numbers: tuple[int, ...]) -> NDArray[np.uint32]:
    """Words that no other place has: numpy pads with zeros, so the length is a word too and widths are fixed."""
    if not all(0 <= number < 2**63 for number in numbers):
        raise InvalidInputError(f"{purpose}: expected a seed and places of at least 0, got {numbers}")
    words = np.array([zlib.crc32(purpose.encode()), len(numbers), *numbers], dtype=np.uint64)
    return words.astype("<u8").view("<u4")


@lru_cache(maxsize=2)  # the epoch that is read, and the next one where loading runs ahead
def epoch_order(items: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The rows 0 .. items - 1 in the order of one epoch, (items,), read-only."""
    order = numpy_generator("order", seed, epoch).permutation(items)
    order.flags.writeable = False
    return order


def balanced_order(groups: NDArray[np.int64], seed: int, epoch: int) -> NDArray[np.int64]:
    """Rows of one epoch in which any G that follow each other from a multiple of G on are one of each group.

    groups: (n,) codes of G groups, negative where unknown; such rows have no part. An epoch has n // G rows of each
    group: of a small group each row several times, as far apart as the group has rows; of a large one some rows.
    """
    order = epoch_order(len(groups), seed, epoch)
    codes = np.unique(groups[groups >= 0])
    each = int((groups >= 0).sum()) // len(codes)
    return np.stack([np.resize(order[groups[order] == code], each) for code in codes], axis=1).flatten()


class Sampler:
    """Rows of the micro-batches of one of `world` processes.

    A joint micro-batch is `batch_size * world` rows that follow each other in the order of the epoch; process r has the
    r-th `batch_size` of them. So the joint batches, and their order by rank, are those that one process with the joint
    batch size would have. What does not fill a joint batch at the end of an epoch is left out of that epoch.

    batch_size: rows per process. rank, world: of this process, by default those of torch.distributed where it is
    initialised, else 0 of 1. joint_size: rows of a joint micro-batch. per_epoch: joint micro-batches in an epoch.
    share: which rows of a joint micro-batch are this process's. groups: (items,) for batches that have them alike
    often; see `balanced_order`.

    Raises:
        InvalidInputError: fewer rows than a joint batch takes, in all or of a group; a rank outside the world.
    """

    def __init__(
        self,
        items: int,
        batch_size: int,
        seed: int = 0,
        rank: int | None = None,
        world: int | None = None,
        *,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        self.items, self.batch_size, self.seed = items, batch_size, seed
        self.rank = own_rank() if rank is None else rank
        self.world = world_size() if world is None else world
        if batch_size < 1 or not 0 <= self.rank < self.world:
            raise InvalidInputError(
                f"expected batch_size of at least 1 and rank < world, got {batch_size}, {self.rank}, {self.world}"
            )
        self.joint_size = batch_size * self.world
        if items < self.joint_size:
            raise InvalidInputError(
                f"the data has {items} rows, fewer than the {self.joint_size} of one batch ({batch_size} per process, "
                f"{self.world} processes); lower batch_size or give more data"
            )
        self.groups = groups
        self._balanced: tuple[int, NDArray[np.int64]] | None = None
        self.per_epoch = items // self.joint_size
        if groups is not None:
            sizes = np.bincount(groups[groups >= 0], minlength=1)
            sizes = sizes[sizes > 0]
            count = -(-self.joint_size // max(len(sizes), 1)) + 1
            if len(sizes) < 2 or sizes.min() < count:
                raise InvalidInputError(
                    f"balance: a batch of {self.joint_size} takes up to {count} rows of each of {len(sizes)} groups, "
                    f"of which the smallest has {sizes.min(initial=items)}; expected two groups or more with as many: "
                    "lower batch_size, or name fewer columns"
                )
            self.per_epoch = len(self.order(0)) // self.joint_size
        self.share = slice(self.rank * batch_size, (self.rank + 1) * batch_size)

    def order(self, epoch: int) -> NDArray[np.int64]:
        """The rows of an epoch in their order."""
        if self.groups is None:
            return epoch_order(self.items, self.seed, epoch)
        if self._balanced is None or self._balanced[0] != epoch:
            self._balanced = epoch, balanced_order(self.groups, self.seed, epoch)
        return self._balanced[1]

    def epoch(self, number: int) -> int:
        """The epoch that micro-batch `number` belongs to."""
        return number // self.per_epoch

    def joint(self, number: int) -> NDArray[np.int64]:
        """Rows of all processes in micro-batch `number`, (batch_size * world,), in order of ranks."""
        first = number % self.per_epoch * self.joint_size
        return self.order(self.epoch(number))[first : first + self.joint_size].copy()

    def rows(self, number: int) -> NDArray[np.int64]:
        """Rows of this process in micro-batch `number`, (batch_size,)."""
        return self.joint(number)[self.share]

    def spares(self, number: int) -> Iterator[int]:
        """Rows for this process to take, in turn, where rows of joint micro-batch `number` cannot be read.

        They are rows of other batches of the epoch, and of no two processes the same: a row stands at most once in a
        joint batch, which losses with a state per row rely on. Nothing is computed before the first is asked for.
        """
        first = number % self.per_epoch * self.joint_size
        others = np.delete(self.order(self.epoch(number)), np.s_[first : first + self.joint_size])
        if self.groups is not None:  # where a row may stand several times in an epoch
            others = np.array(list(dict.fromkeys(others[~np.isin(others, self.joint(number))].tolist())), np.int64)
        yield from others[self.rank :: self.world].tolist()


def turns(count: int, further: int, seed: int, epoch: int, image: int) -> list[int]:
    """Which of its `count` captions an image has in an epoch, and `further` others, repeated where there are fewer.

    It goes through them in turn from one drawn by the seed: in `count` epochs each is the first once.
    """
    if count == 1:
        return [0] * (1 + further)
    first = epoch + int(numpy_generator("caption", seed, image).integers(count))
    return [(first + step) % count for step in (0, *(1 + k % (count - 1) for k in range(further)))]


def folds_of(n: int, folds: int, seed: int) -> NDArray[np.int64]:
    """(n,) fold of every row, drawn at random; the sizes of the folds differ by 1 at most."""
    if not 2 <= folds <= n:
        raise InvalidInputError(f"folds: expected 2 .. {n}, the number of pairs, got {folds}")
    return np.asarray(numpy_generator("folds", seed).permutation(n) % folds, dtype=np.int64)
