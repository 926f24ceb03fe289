"""Run work in parallel: rows by threads, shards by processes, passes over parts here or on Ray."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from vldebias.errors import Lazily, VldebiasError, need

# Opening a data set needs no torch, and a wrong folder is reported before torch is imported.
if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
else:
    torch = Lazily("torch")
    dist = Lazily("torch.distributed")

RETRIES = 3  # of a part whose worker died
T = TypeVar("T")
R = TypeVar("R")


def prefetch(tasks: Iterable[T], work: Callable[[T], R], workers: int, ahead: int) -> Iterator[R]:
    """Yield `work` of each task, in order, by threads that run at most `ahead` tasks ahead; 0:
    without threads.

    Args:
        tasks: what to work on.
        work: function of a task.
        workers: number of threads; 0: without threads.
        ahead: most tasks that run ahead of what was yielded.
    """
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


@dataclass(frozen=True)
class Processes:
    """Identify this process as number `rank` of `world`, and talk to the others."""

    rank: int = 0
    world: int = 1

    def wait(self) -> None:
        """Return when all processes have called it."""
        if self.world > 1:
            dist.barrier()

    def share(self, value: T) -> T:
        """Return the value of process 0 to each process."""
        # torch fills the list of the other processes in place.
        box = [value]
        if self.world > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]


def processes() -> Processes:
    """Return the `Processes` of the group, which accelerate sets up after a launch of several
    processes.

    A program on its own is left alone: accelerate keeps one state for all, and making it here would
    choose the device of an `Accelerator` that is made later.
    """
    if not dist.is_available():
        return Processes()
    is_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_launched and not dist.is_initialized():
        on_cpu = need("accelerate.utils").parse_flag_from_env("ACCELERATE_USE_CPU")
        # torch before 2.6 knows CUDA's alone.
        accelerator = getattr(torch, "accelerator", torch.cuda)
        # Without cpu=True accelerate takes each process of a machine without an accelerator for a
        # program on its own.
        need("accelerate").PartialState(cpu=on_cpu or not accelerator.is_available())
    if not dist.is_initialized():
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())


class LostPartError(VldebiasError):
    """Report a part whose workers died at every try.

    part: its place among the parts of the pass, from 0.
    """

    part = 0


class OnRay:
    """Run pickled work on a Ray cluster ($RAY_ADDRESS, or your `ray.init`), or on this machine.

    Ray does the part of a worker that died again, up to three times. An error of the work itself is
    raised unchanged. After a pass, also one that failed, what still waits is cancelled, actors end
    after the part that they are at, and what Ray stored is freed. A Ray that was started here ends
    with the program, or with the block of `with OnRay() as runner:`.

    Args:
        workers: number of actors, each of which keeps the work, such as a model on a GPU; None: a
            task for each part.
        cpus, gpus: resources of one task or actor.
        verbose: whether a Ray that is started here prints what it does, and what workers print;
            one that you started prints as you told it.

    Raises:
        MissingPackageError: Ray is not installed.
    """

    def __init__(
        self,
        *,
        workers: int | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        verbose: bool = False,
    ) -> None:
        self.ray = need("ray")
        self.workers = workers
        self.needs = {"num_cpus": cpus, "num_gpus": gpus}
        self.has_started_ray = not self.ray.is_initialized()
        if self.has_started_ray:
            level = "INFO" if verbose else "ERROR"
            self.ray.init(log_to_driver=verbose, logging_level=level)

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *error: object) -> None:
        if self.has_started_ray:
            self.ray.shutdown()

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """Yield the results of `work` on each part, in their order.

        Args:
            work: function of a part.
            parts: what to work on.

        Raises:
            LostPartError: the workers of a part died at every try.
            VldebiasError: a worker cannot unpickle the work, or what it returned cannot be pickled.
        """
        # Stored once, so that only a reference travels with each part. What Ray holds is in these
        # containers alone: a traceback keeps variables, and Ray keeps what they refer to.
        stored = [self.ray.put(work)]
        actors: list[Any] = []
        calls: list[Callable[[T], Any]]
        if self.workers is None:
            task = self.ray.remote(_outcome).options(max_retries=RETRIES, **self.needs)
            processors = self.ray.cluster_resources().get("CPU", 1)
            # Twice as many as run at a time, so that none waits for this process.
            size = 2 * max(1, round(processors / (self.needs["num_cpus"] or 1)))
            calls = [partial(task.remote, *stored)] * size
        else:
            retries = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
            worker = self.ray.remote(_Worker).options(**retries, **self.needs)
            actors += [worker.remote() for _ in range(self.workers)]
            calls = [partial(actor.run.remote, list(stored)) for actor in actors]
        free = list(range(len(calls)))
        running: dict[Any, int] = {}
        results: deque[Any] = deque()
        done = 0
        try:
            for part in parts:
                if not free:
                    finished = self.ray.wait(list(running), num_returns=1)[0]
                    free.append(running.pop(finished.pop()))
                number = free.pop()
                results.append(calls[number](part))
                running[results[-1]] = number
                # The oldest result is handed out while later ones are computed: the order stays.
                if len(results) > 2 * len(calls):
                    yield self._value(results, done, len(parts))
                    done += 1
            while results:
                yield self._value(results, done, len(parts))
                done += 1
        finally:  # also after an error, and where the caller stops early
            if self.workers is None and running:
                # Ray 2.60 may end this process where a task that is over is cancelled.
                count = len(running)
                unfinished = self.ray.wait(list(running), num_returns=count, timeout=0)[1]
                while unfinished:
                    self.ray.cancel(unfinished.pop())
            # Ray ends an actor to which nothing refers, after the part that it is at.
            for held in (stored, actors, calls, running, results):
                held.clear()

    def _value(self, results: deque[Any], part: int, count: int) -> Any:
        """Return the oldest result, which is that of a part of `count`, or raise its error."""
        exceptions = self.ray.exceptions
        place = f"ray: part {part + 1} of {count}"
        try:
            outcome = self.ray.get(results.popleft())
        except (exceptions.RayTaskError, exceptions.RaySystemError) as error:
            raise VldebiasError(
                f"{place}: a worker cannot unpickle the work, or what the work returned or raised"
                f" cannot be pickled ({str(error).strip().splitlines()[-1]}); do workers find the"
                " same modules as this process?"
            ) from None
        except exceptions.RayError as error:
            lost = LostPartError(
                f"{place}: workers died {RETRIES + 1} times, or what they held is lost"
                f" ({type(error).__name__}); is memory short? Give each worker more room by"
                " OnRay(cpus=...)"
            )
            lost.part = part
            raise lost from None
        if outcome.error is not None:
            raise outcome.error
        return outcome.value


@dataclass(frozen=True)
class _Outcome:
    """Hold what the work returned or raised; Ray would raise another class in its place."""

    value: object = None
    error: Exception | None = None


def _outcome(work: Callable[[Any], Any], part: Any) -> _Outcome:
    """Return what the work returns or raises, in a task of Ray."""
    try:
        return _Outcome(work(part))
    except Exception as error:
        return _Outcome(error=error)


class _Worker:
    """Do the work on the parts that come, in an actor of Ray, which keeps it."""

    def __init__(self) -> None:
        self.work: list[Callable[[Any], Any]] = []

    def run(self, stored: list[object], part: object) -> _Outcome:
        """Return what the work returns or raises.

        stored: one reference to the work, with each part, so that an actor which was started again
        has it too. Ray gets what references in a list refer to only when it is asked.
        """
        if not self.work:
            self.work.append(need("ray").get(stored[0]))
        return _outcome(self.work[0], part)
