"""Passes over shards, and work that holds a model, on a Ray cluster or on the cores of one machine.

Workers that die are replaced and their parts done again, by Ray; what was done is not lost. An error of the work
itself is not tried again: it comes back as it was raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, need

T = TypeVar("T")
R = TypeVar("R")
_TO_END = 10.0  # seconds that tasks under way have before their actors are killed


class OnRay:
    """A runner (`vldebias.data.parallel.Runner`) whose work is done by Ray's workers.

    Args:
        address: of a cluster, "auto" for the one that is running here or that the environment names, "local" for
            workers of this machine alone. None: what `ray.init` has started, else as "auto", else "local".
        workers: actors that hold a model at the same time (`each`); None: one for each core or GPU of the cluster.
        cpus, gpus: what one task or actor asks for.
        retries: how often the work of a worker that died is done again.

    Raises:
        MissingPackageError: Ray is not installed.
    """

    fan = 8  # results that one task merges

    def __init__(
        self,
        address: str | None = None,
        *,
        workers: int | None = None,
        cpus: float = 1.0,
        gpus: float = 0.0,
        retries: int = 3,
    ) -> None:
        self.ray, self.workers, self.retries = need("ray"), workers, retries
        self.needs = {"num_cpus": cpus, "num_gpus": gpus}
        if not self.ray.is_initialized():
            self._start(address)

    def _start(self, address: str | None) -> None:
        quiet = {"log_to_driver": False, "include_dashboard": False, "logging_level": "ERROR"}
        if address in (None, "auto"):
            try:
                self.ray.init("auto", log_to_driver=False, logging_level="ERROR")
                return
            except ConnectionError:
                if address == "auto":
                    raise InvalidInputError(
                        "ray: no cluster is running here and none is named by RAY_ADDRESS; start one (ray start "
                        "--head), name its address, or say 'local' for the cores of this machine"
                    ) from None
        self.ray.init("local", **quiet) if address in (None, "local") else self.ray.init(address, log_to_driver=False)

    def map(self, work: Callable[[T], R], parts: Sequence[T]) -> Iterator[R]:
        """See `Runner`; one task for each part, in whose order the results come."""
        waiting = self._tasks(work, parts)
        while waiting:
            yield self._got(waiting.pop(0))

    def fold(self, work: Callable[[T], R], merge: Callable[[Sequence[R]], R], parts: Sequence[T]) -> R:
        """See `Runner`; results are merged by the workers, so that one of them reaches this process."""
        held, joined = self._tasks(work, parts), self._task(_joined)
        by = self.ray.put(merge)
        while True:
            held = [joined.remote(by, *held[i : i + self.fan]) for i in range(0, len(held), self.fan)]
            if len(held) == 1:
                result: R = self._got(held[0])
                return result

    def each(self, work: Callable[[T], R], tasks: Iterable[T]) -> Iterator[R]:
        """See `Runner`; a pool of actors, each of which holds `work` for as long as it lives."""
        drawn = iter(tasks)
        first = list(islice(drawn, self.workers or self._room()))
        if not first:
            return
        held, kind = self.ray.put(work), self.ray.remote(_Holder)
        again = {"max_restarts": -1, "max_task_retries": self.retries}
        actors = [kind.options(**self.needs, **again).remote(held) for _ in first]
        running = dict[Any, Any]()
        try:
            running |= {actor.do.remote(task): actor for actor, task in zip(actors, first, strict=True)}
            while running:
                (done,), _ = self.ray.wait(list(running), num_returns=1)
                actor = running.pop(done)
                for task in islice(drawn, 1):
                    running[actor.do.remote(task)] = actor
                yield self._got(done)
        finally:
            try:
                if running:  # one task has failed: the others end theirs, so that no file is left half written
                    self.ray.wait(list(running), num_returns=len(running), timeout=_TO_END)
            finally:  # whoever does not wait for that, by a second Ctrl-C, leaves no actor behind either
                for actor in actors:
                    self.ray.kill(actor)

    def _room(self) -> int:
        """Actors that find room in the cluster at once."""
        there, needed = self.ray.cluster_resources(), {"CPU": self.needs["num_cpus"], "GPU": self.needs["num_gpus"]}
        return max(1, min(int(there.get(name, 0) // n) for name, n in needed.items() if n))

    def _task(self, function: Callable[..., Any]) -> Any:
        return self.ray.remote(function).options(**self.needs, max_retries=self.retries)

    def _tasks(self, work: Callable[[T], Any], parts: Sequence[T]) -> list[Any]:
        one, held = self._task(_done), self.ray.put(work)
        return [one.remote(held, part, *_held_by(part)) for part in parts]

    def _got(self, result: Any) -> Any:
        """A result, or the error that the work raised."""
        try:
            return self.ray.get(result)
        except self.ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None


class BlockRows:
    """A block (n, d) of a Ray data set, which stands where an array does; read where it is asked for."""

    ndim = 2

    def __init__(self, held: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
        self.held, self.shape, self.dtype = held, shape, dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """The rows at a slice or at indices."""
        return np.asarray(_stacked(need("ray").get(self.held))[rows])


def blocks_of(dataset: Any, column: str) -> list[BlockRows]:
    """The blocks of a `ray.data.Dataset` with rows, in their order; the data set is made once."""
    ray = need("ray")
    names = dataset.columns()
    if column not in (names or []):
        raise InvalidInputError(f"ray data set: expected a column {column!r}, found {names}")
    held = dataset.materialize().to_numpy_refs(column=column)
    shapes = ray.get([ray.remote(_told).remote(one) for one in held])
    blocks = [BlockRows(one, *facts) for one, facts in zip(held, shapes, strict=True) if facts[0][0]]
    if not blocks:
        raise InvalidInputError("ray data set: has no rows")
    return blocks


def _stacked(block: Any) -> NDArray[Any]:
    """(n, d), also of a column of lists."""
    return block if block.dtype != object else np.stack(list(block)) if len(block) else np.empty((0, 0))


def _told(block: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    rows = _stacked(block)
    return tuple(rows.shape), rows.dtype


def _held_by(part: Any) -> list[Any]:
    """The block that a part reads, if it is one, so that Ray brings the work to it."""
    for one in part if isinstance(part, tuple) else (part,):
        held = getattr(getattr(one, "features", one), "held", None)
        if held is not None:
            return [held]
    return []


def _done(work: Callable[[Any], Any], part: Any, *held: Any) -> Any:
    return work(part)


def _joined(merge: Callable[[Sequence[Any]], Any], *results: Any) -> Any:
    return merge(results)


class _Holder:
    """An actor: holds the work, which holds a model."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.work = work

    def do(self, task: Any) -> Any:
        return self.work(task)
