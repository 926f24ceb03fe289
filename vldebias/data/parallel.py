"""Run work in parallel: rows by threads, shards by processes, passes over parts here or on Ray."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from vldebias.errors import InvalidInputError, VldebiasError, need

T = TypeVar("T")
R = TypeVar("R")


def prefetch(tasks: Iterable[T], work: Callable[[T], R], workers: int, ahead: int) -> Iterator[R]:
    """Yield `work` of each task, in order, by threads that run at most `ahead` tasks ahead; 0: without threads."""
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


# ---- processes of one launch -----------------------------------------------------------------------------------------


class Processes(NamedTuple):
    """Identify this process as number `rank` of `world`.

    wait returns when all have called it; share returns to each the argument of number 0.
    """

    rank: int
    world: int
    wait: Callable[[], object]
    share: Callable[[Any], Any]


def processes() -> Processes:
    """Return the `Processes` of the group, which accelerate sets up after a launch of several processes.

    A program on its own is left alone: accelerate keeps one state for all, and making it here would choose the
    device of an `Accelerator` that is made later.
    """
    there = dist.is_available()
    if there and not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        on_cpu = need("accelerate.utils").parse_flag_from_env("ACCELERATE_USE_CPU")
        # Without cpu=True accelerate takes each process of a machine without an accelerator for a program on its own.
        need("accelerate").PartialState(cpu=on_cpu or not torch.accelerator.is_available())
    if not (there and dist.is_initialized()):
        return Processes(0, 1, lambda: None, lambda value: value)

    def share(value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    return Processes(dist.get_rank(), dist.get_world_size(), dist.barrier, share)


# ---- passes over parts: here, or on Ray ------------------------------------------------------------------------------


class OnRay:
    """Run work on workers of a Ray cluster, or of this machine; functions and parts are pickled.

    Workers that die are replaced and their parts done again, by Ray. An error of the work itself is not retried: it
    is raised unchanged. If Ray gives up, an error says why.

    Args:
        address: of `ray.init`: None is a cluster that runs already, else workers of this machine ("local").
        workers: actors that hold a model at the same time (`each`); None: one for each core or GPU of the cluster.
        cpus, gpus: resources of one task or actor.
        retries: how often the work of a worker that died is done again.
        timeout: seconds that a pass waits for the next part, before it ends with an error.

    Raises:
        MissingPackageError: Ray is not installed.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        retries: int = 3,
        timeout: float = 600.0,
    ) -> None:
        self.ray, self.workers, self.retries, self.timeout = need("ray"), workers, retries, timeout
        self.needs = {"num_cpus": cpus, "num_gpus": gpus}
        if not self.ray.is_initialized():
            try:
                self.ray.init(address, log_to_driver=False, logging_level="ERROR")
            except ConnectionError as error:
                raise InvalidInputError(
                    f"ray: no cluster answers at {address!r} ({error}); start one (ray start --head), name its "
                    "address, or say 'local' for the cores of this machine"
                ) from None

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """Yield the results of `work` on each part, in their order; one task for each."""
        one = self.ray.remote(_done).options(**self.needs, max_retries=self.retries)
        held = self.ray.put(work)
        waiting = [one.remote(held, part) for part in parts]
        while waiting:
            yield self._got(waiting.pop(0))

    def each(self, work: Callable[[int], int], tasks: Sequence[int]) -> Iterator[int]:
        """Yield the results of `work` on each number, in any order, by actors that keep its state, such as a model."""
        data = need("ray.data")
        context = data.DataContext.get_current()
        context.enable_progress_bars = False
        context.raise_original_map_exception = True  # else Ray Data wraps it, and the cause does not cross processes
        there, kinds = self.ray.cluster_resources(), {"num_cpus": "CPU", "num_gpus": "GPU"}
        room = min(int(there.get(kinds[name], 0) // n) for name, n in self.needs.items() if n)
        done = data.from_items(list(tasks), override_num_blocks=max(1, len(tasks))).map_batches(
            _Holder,
            fn_constructor_args=(self.ray.put(work),),
            batch_size=1,
            compute=data.ActorPoolStrategy(size=min(len(tasks), self.workers or max(1, room))),
            **self.needs,
        )
        try:
            for row in done.iter_rows():
                yield int(row["done"])
        except self.ray.exceptions.RayError as error:
            self._tell(error)

    def _got(self, result: Any) -> Any:
        """Return a result or raise the error of the work, within the timeout, since a lost node never answers."""
        if not self.ray.wait([result], timeout=self.timeout, fetch_local=False)[0]:
            problem = f"no worker gave a result for {self.timeout:g} seconds"
            self._give_up(problem, "see `ray status`, give parts more time by OnRay(timeout=...)")
        try:
            return self.ray.get(result)
        except self.ray.exceptions.RayError as error:
            self._tell(error)

    def _give_up(self, problem: str, remedy: str) -> NoReturn:
        gone = [str(node.get("NodeManagerAddress")) for node in self.ray.nodes() if not node.get("Alive")]
        lost = f"nodes that are gone: {', '.join(gone[:5])}; " if gone else ""
        raise VldebiasError(f"ray: {problem}; {lost}{remedy}, and start again")

    def _tell(self, error: Any) -> NoReturn:
        """Raise the error of the work itself, or one that says what happened to the workers."""
        chain = [error]  # errors of the work lie in those of Ray, several deep where Ray Data ran it
        while (inner := getattr(chain[-1], "cause", None) or chain[-1].__cause__) is not None:
            chain.append(inner)
        own = [one for one in chain if isinstance(one, Exception) and not isinstance(one, self.ray.exceptions.RayError)]
        if own:
            raise next((one for one in own if isinstance(one, VldebiasError)), own[0]) from None
        self._give_up(
            f"workers died at the same part {self.retries + 1} times, or what they held is lost "
            f"({type(error).__name__})",
            "look for a lack of memory in `ray status` and the logs, give tasks more room by OnRay(cpus=...)",
        )


def _done(work: Callable[[Any], Any], part: Any) -> Any:
    return work(part)


class _Holder:
    """Hold the work, and so a model, in an actor of Ray Data."""

    def __init__(self, work: Any) -> None:
        self.work = need("ray").get(work)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {"done": np.array([self.work(int(item)) for item in batch["item"]])}
