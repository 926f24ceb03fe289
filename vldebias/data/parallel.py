"""Run work in parallel, in threads, in several processes or on a Ray cluster."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from vldebias.errors import Lazily, VldebiasError, need

# Opening a data set does not import torch, so that an invalid folder is reported immediately.
if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from ray import ObjectRef
    from ray.actor import ActorHandle
else:
    torch = Lazily("torch")
    dist = Lazily("torch.distributed")

RETRIES = 3  # number of retries for a part whose worker died
T = TypeVar("T")
R = TypeVar("R")


def prefetch(tasks: Iterable[T], work: Callable[[T], R], workers: int, ahead: int) -> Iterator[R]:
    """Yield `work(task)` for each task in order, computed in advance by threads.

    Args:
        tasks: arguments of `work`; a generator is consumed only as far as `ahead` requires.
        work: function to apply to each task.
        workers: number of threads. If 0, each result is computed on request.
        ahead: maximum number of tasks computed in advance.
    """
    if workers == 0:
        yield from map(work, tasks)
        return
    pool = ThreadPoolExecutor(workers)
    waiting: deque[Future[R]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            # Yield the oldest result while later ones are computed, which preserves the order.
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # runs even if the caller stops early, for example on Ctrl-C
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True)
class Processes:
    """Describe a process group: this process's rank and the number of processes."""

    rank: int = 0
    world: int = 1

    def wait(self) -> None:
        """Wait until all processes have called this method."""
        if self.world > 1:
            dist.barrier()

    def share(self, value: T) -> T:
        """Broadcast process 0's value to every process."""
        # torch overwrites the list in the other processes.
        box = [value]
        if self.world > 1:
            dist.broadcast_object_list(box, src=0)
        return box[0]


def processes() -> Processes:
    """Return the process group, which accelerate initialises if several processes were launched.

    In a single process, accelerate is not initialised, because its global state would determine the
    device of any `Accelerator` created later.
    """
    if not dist.is_available():
        return Processes()
    is_launched = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_launched and not dist.is_initialized():
        on_cpu = need("accelerate.utils").parse_flag_from_env("ACCELERATE_USE_CPU")
        # Before version 2.6, torch has no `accelerator` module, and only CUDA is supported.
        accelerator = getattr(torch, "accelerator", torch.cuda)
        # Without cpu=True, accelerate does not form a process group on machines without an
        # accelerator.
        need("accelerate").PartialState(cpu=on_cpu or not accelerator.is_available())
    if not dist.is_initialized():
        return Processes()
    return Processes(dist.get_rank(), dist.get_world_size())


class LostPartError(VldebiasError):
    """Raised if every attempt to process a part ended with its worker's death.

    Attributes:
        part: zero-based index of the part.
    """

    part = 0


class OnRay:
    """Run pickled work on a Ray cluster ($RAY_ADDRESS or an earlier `ray.init`) or locally.

    If a worker dies, Ray retries its part up to three times. Errors raised by the work itself are
    re-raised unchanged. When iteration ends or fails, pending parts are cancelled, actors exit
    after their current part, and Ray's objects are freed. If this object started Ray, Ray shuts
    down when the program exits, or at the end of a `with OnRay() as runner:` block.

    Args:
        workers: number of actors. Each keeps the work in memory, for example a model on a GPU.
            Default: one Ray task per part.
        cpus, gpus: resources per task or actor.

    Raises:
        MissingPackageError: If Ray is not installed.

    >>> from vldebias.data import Shards
    >>> with OnRay() as runner:  # doctest: +SKIP
    ...     shards = Shards.open("shards/*.npy", runner=runner)
    """

    def __init__(self, *, workers: int | None = None, cpus: float = 1.0, gpus: float = 0.0) -> None:
        self.ray = need("ray")
        self.workers = workers
        self.needs = {"num_cpus": cpus, "num_gpus": gpus}
        self.has_started_ray = not self.ray.is_initialized()
        if self.has_started_ray:
            self.ray.init(log_to_driver=False, logging_level="ERROR")

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *error: object) -> None:
        if self.has_started_ray:
            self.ray.shutdown()

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """Yield `work(part)` for each part in order.

        Args:
            work: function to apply to each part.
            parts: picklable arguments, one per call.

        Raises:
            LostPartError: If a worker died at every attempt to process a part.
            VldebiasError: If a worker cannot unpickle the work, or its result cannot be pickled.
        """
        # Store the work once, so that each part only carries a reference to it. Keep references to
        # Ray objects only in these containers: a traceback keeps local variables alive, and would
        # keep the objects alive with them.
        stored = [self.ray.put(work)]
        actors: list[ActorHandle] = []
        calls: list[Callable[[T], ObjectRef]]
        if self.workers is None:
            task = self.ray.remote(_outcome).options(max_retries=RETRIES, **self.needs)
            processors = self.ray.cluster_resources().get("CPU", 1)
            # Submit twice as many tasks as can run at once, so that workers never wait for this
            # process.
            size = 2 * max(1, round(processors / (self.needs["num_cpus"] or 1)))
            calls = [partial(task.remote, *stored)] * size
        else:
            retries = {"max_restarts": RETRIES, "max_task_retries": RETRIES}
            worker = self.ray.remote(_Worker).options(**retries, **self.needs)
            actors += [worker.remote() for _ in range(self.workers)]
            calls = [partial(actor.run.remote, list(stored)) for actor in actors]
        free = list(range(len(calls)))
        running: dict[ObjectRef, int] = {}
        results: deque[ObjectRef] = deque()
        done = 0
        try:
            for part in parts:
                if not free:
                    finished = self.ray.wait(list(running), num_returns=1)[0]
                    free.append(running.pop(finished.pop()))
                number = free.pop()
                results.append(calls[number](part))
                running[results[-1]] = number
                # Yield the oldest result while later ones are computed, which preserves the order.
                if len(results) > 2 * len(calls):
                    yield self._value(results, done, len(parts))
                    done += 1
            while results:
                yield self._value(results, done, len(parts))
                done += 1
        finally:  # runs even after an error, or if the caller stops early
            if self.workers is None and running:
                # Cancelling a finished task can terminate this process in Ray 2.60.
                count = len(running)
                unfinished = self.ray.wait(list(running), num_returns=count, timeout=0)[1]
                while unfinished:
                    self.ray.cancel(unfinished.pop())
            # Ray terminates unreferenced actors after their current part.
            for container in (stored, actors, calls, running, results):
                container.clear()

    def _value(self, results: deque[ObjectRef], part: int, count: int) -> Any:
        """Return the oldest result, for part `part` of `count`, or raise its error."""
        exceptions = self.ray.exceptions
        place = f"ray: part {part + 1} of {count}"
        try:
            outcome = self.ray.get(results.popleft())
        except (exceptions.RayTaskError, exceptions.RaySystemError) as error:
            raise VldebiasError(
                f"{place}: a worker cannot unpickle the work, or its result or exception cannot be"
                f" pickled ({str(error).strip().splitlines()[-1]}); check that workers can import"
                " the same modules as this process"
            ) from None
        except exceptions.RayError as error:
            lost = LostPartError(
                f"{place}: workers died {RETRIES + 1} times, or their objects were lost"
                f" ({type(error).__name__}); if they ran out of memory, run fewer at a time with"
                " OnRay(cpus=...)"
            )
            lost.part = part
            raise lost from None
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]


def _outcome(work: Callable[[T], object], part: T) -> tuple[object, Exception | None]:
    """Run the work in a Ray task, and return its result and exception.

    Ray would change the class of a raised exception.
    """
    try:
        return work(part), None
    except Exception as error:
        return None, error


class _Worker:
    """Ray actor that keeps the work in memory."""

    def __init__(self) -> None:
        self.work: list[Callable[[object], object]] = []

    def run(self, stored: list[object], part: object) -> tuple[object, Exception | None]:
        """Run the work, and return its result or exception.

        Args:
            stored: a list with a reference to the work (Ray does not resolve references inside
                lists). Passed with every call in case the actor was restarted.
            part: the argument for the work, such as a range of rows.
        """
        if not self.work:
            self.work.append(need("ray").get(stored[0]))
        return _outcome(self.work[0], part)
