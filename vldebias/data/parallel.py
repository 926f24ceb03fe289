"""Work done side by side: rows prepared by threads that run ahead, shards dealt out to the processes of a launch."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

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


class Processes(NamedTuple):
    """This process is number `rank` of `world`.

    wait returns when all have called it; share gives to each what number 0 has called it with.
    """

    rank: int
    world: int
    wait: Callable[[], object]
    share: Callable[[Any], Any]


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

    return Processes(dist.get_rank(), dist.get_world_size(), dist.barrier, share)
