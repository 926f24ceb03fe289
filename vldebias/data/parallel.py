"""Run work in parallel: rows by threads, shards by processes, passes over parts here or on Ray."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from vldebias.errors import VldebiasError, need

RETRIES = 3  # of a part whose worker died
T = TypeVar("T")
R = TypeVar("R")


def prefetch(tasks: Iterable[T], work: Callable[[T], R], workers: int, ahead: int) -> Iterator[R]:
    """Yield `work` of each task, in order, by threads that run at most `ahead` tasks ahead; 0:
    without threads."""
    if workers == 0:
        yield from map(work, tasks)
        return
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[R]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            # The oldest result is handed out while later ones are computed: the order stays.
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # also where the caller stops early, such as on Ctrl-C
        pool.shutdown(wait=True, cancel_futures=True)


class Processes(NamedTuple):
    """Identify this process as number `rank` of `world`.

    wait returns when all have called it; share returns to each the argument of number 0.
    """

    rank: int
    world: int
    wait: Callable[[], object]
    share: Callable[[Any], Any]


_LONE = Processes(0, 1, wait=lambda: None, share=lambda value: value)


def processes() -> Processes:
    """Return the `Processes` of the group, which accelerate sets up after a launch of several
    processes.

    A program on its own is left alone: accelerate keeps one state for all, and making it here would
    choose the device of an `Accelerator` that is made later.
    """
    if not dist.is_available():
        return _LONE
    is_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_launched and not dist.is_initialized():
        on_cpu = need("accelerate.utils").parse_flag_from_env("ACCELERATE_USE_CPU")
        # torch before 2.6 knows CUDA's alone.
        accelerator = getattr(torch, "accelerator", torch.cuda)
        # Without cpu=True accelerate takes each process of a machine without an accelerator for a
        # program on its own.
        need("accelerate").PartialState(cpu=on_cpu or not accelerator.is_available())
    if not dist.is_initialized():
        return _LONE

    def share(value: Any) -> Any:
        # torch fills the list of the other processes in place.
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    return Processes(dist.get_rank(), dist.get_world_size(), dist.barrier, share)


class OnRay:
    """Run pickled work on a Ray cluster ($RAY_ADDRESS, or your `ray.init`), or on this machine, by
    Ray Data.

    Ray does the part of a worker that died again, up to three times. An error of the work itself is
    raised unchanged.

    Args:
        workers: number of actors, each of which keeps the work, such as a model on a GPU; None: a
            task for each part.
        cpus, gpus: resources of one task or actor.

    Raises:
        MissingPackageError: Ray is not installed.
    """

    def __init__(self, *, workers: int | None = None, cpus: float = 1.0, gpus: float = 0.0) -> None:
        self.ray = need("ray")
        self.workers = workers
        self.needs = {"num_cpus": cpus, "num_gpus": gpus}
        if not self.ray.is_initialized():
            self.ray.init(log_to_driver=False, logging_level="ERROR")

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """Yield the results of `work` on each part, in their order."""
        data = need("ray.data")
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
        # Stored once, so that only references travel with each task.
        stored: Any = (self.ray.put(work), [self.ray.put(part) for part in parts])
        # Ray Data alone would try for ever.
        settings: dict[str, Any]
        if self.workers is None:
            settings = {"fn": _Worker(*stored)}
            retries = {"max_retries": RETRIES}
        else:
            settings = {
                "fn": _Worker,
                "fn_constructor_args": stored,
                "compute": data.ActorPoolStrategy(size=self.workers),
            }
            retries = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
        settings |= {"batch_size": 1, "ray_remote_args_fn": lambda: retries, **self.needs}
        # One block for each part: a block is what Ray gives to a worker, and does again.
        numbers = data.from_items(list(range(len(parts))), override_num_blocks=max(1, len(parts)))
        try:
            for row in numbers.map_batches(**settings).iter_rows():
                outcome = row["outcome"]
                if outcome.error is not None:
                    raise outcome.error
                yield outcome.value
        except Exception as error:
            # Errors of the work come back as outcomes and
            # are raised above; Ray's own are of its workers.
            if not type(error).__module__.startswith("ray."):
                raise
            raise VldebiasError(
                f"ray: workers died {RETRIES + 1} times at the same part, or what they held is lost"
                f" ({type(error).__name__}); is memory short? Give each worker more room by"
                " OnRay(cpus=...)"
            ) from None


@dataclass(frozen=True)
class _Outcome:
    """Hold what the work returned, or raised: a pass that raises would keep its actors."""

    value: Any = None
    error: Exception | None = None


class _Worker:
    """Do the work on the parts whose numbers come, in a task or an actor of Ray Data."""

    def __init__(self, work: Any, parts: list[Any]) -> None:
        self._work = work
        self.parts = parts

    @cached_property
    def work(self) -> Any:
        """Return the work, unpickled once."""
        return need("ray").get(self._work)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return what the work found in each part, as Python objects, which Ray carries as they
        are."""
        # An array of objects, or numpy would make rows of results that are arrays.
        outcomes = np.empty(len(batch["item"]), dtype=object)
        for place, number in enumerate(batch["item"]):
            try:
                part = need("ray").get(self.parts[int(number)])
                outcomes[place] = _Outcome(self.work(part))
            except Exception as error:
                outcomes[place] = _Outcome(error=error)
        return {"outcome": outcomes}
