"""Work done side by side: rows prepared by threads that run ahead, shards dealt out to processes, passes over parts."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.distributed as dist

from vldebias.errors import need

T = TypeVar("T")
R = TypeVar("R")


def prefetch(tasks: Iterable[T], work: Callable[[T], R], workers: int, ahead: int) -> Iterator[R]:
    """`work` of each task, in order, done by threads that run at most `ahead` tasks ahead; 0: by the caller."""
    if workers == 0:
        yield from map(work, tasks)
        return
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[R]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also where the caller stops early, such as on Ctrl-C
        pool.shutdown(wait=True, cancel_futures=True)


class Runner(Protocol):
    """Where passes over the parts of something large run, and work that is done once for each of many numbers.

    Whatever the runner, the results are the same, in the same order; functions and parts must be picklable where it
    has processes of its own.
    """

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """`work` of each part, in their order."""
        ...

    def fold(self, work: Callable[[T], R], merge: Callable[[Sequence[R]], R], parts: Sequence[T]) -> R:
        """What `merge` makes of `work` of all parts: results are merged a few at a time, in a tree."""
        ...

    def each(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """`work` of each task, in any order; what `work` holds, such as a model, is kept between them.

        Tasks are drawn when somebody is free to do them.
        """
        ...


class Here:
    """Parts one after another in this process: no more than one part and a few results are held."""

    fan = 8  # results that are merged at once

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """See `Runner`."""
        return map(work, parts)

    def fold(self, work: Callable[[T], R], merge: Callable[[Sequence[R]], R], parts: Sequence[T]) -> R:
        """See `Runner`."""
        levels: list[list[R]] = [[]]  # of results that each stand for fan ** level parts
        for part in parts:
            levels[0].append(work(part))
            for level, held in enumerate(levels):
                if len(held) < self.fan:
                    break
                if level + 1 == len(levels):
                    levels.append([])
                levels[level + 1].append(merge(held))
                held.clear()
        return merge([result for held in reversed(levels) for result in held])

    def each(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """See `Runner`."""
        return map(work, tasks)


HERE = Here()


class Processes(NamedTuple):
    """This process is number `rank` of `world`.

    wait returns when all have called it; share gives to each what number 0 has called it with; deal gives to each its
    own of a list that number 0 has called it with.
    """

    rank: int
    world: int
    wait: Callable[[], object]
    share: Callable[[Any], Any]
    deal: Callable[[Any], Any] = lambda hand: hand[0]


def processes() -> Processes:
    """Those of the process group, which accelerate sets up where the program was launched with several processes.

    A program on its own is left alone: accelerate keeps one state for all, and making it here would choose the
    device of an `Accelerator` that is made later.
    """
    alone = Processes(0, 1, lambda: None, lambda value: value)
    if not dist.is_available():
        return alone
    if not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        PartialState = need("accelerate").PartialState
        parse_flag_from_env = need("accelerate.utils").parse_flag_from_env

        # Without cpu=True accelerate takes each process of a machine without an accelerator for a program on its own.
        PartialState(cpu=parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available())
    if not dist.is_initialized():
        return alone

    def share(value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def deal(hand: Any) -> Any:
        box: list[Any] = [None]
        dist.scatter_object_list(box, hand, src=0)
        return box[0]

    return Processes(dist.get_rank(), dist.get_world_size(), dist.barrier, share, deal)


def dealt(tasks: Iterable[T], group: Processes) -> Iterator[T]:
    """The share of this process of tasks that number 0 draws, each once, and deals out in turn until none is left."""
    drawn = iter(tasks if group.rank == 0 else ())
    more = True
    while more:
        hand = list(islice(drawn, group.world)) if group.rank == 0 else []
        full = len(hand) == group.world
        dealt_out = [(full, hand[i : i + 1]) for i in range(group.world)] if group.rank == 0 else None
        more, own = group.deal(dealt_out)
        yield from own
