"""The processes of a launch as threads: each has its rank, all meet where processes would, and one may be lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vldebias.data import cache as run_module
from vldebias.data.parallel import Processes, processes

PATIENCE = 60  # seconds until a test that hangs fails


class Launch:
    """`world` ranks that meet at a barrier; where one is lost, the others end there, as a launcher ends them."""

    def __init__(self, world: int) -> None:
        self.world, self._barrier, self._box = world, threading.Barrier(world, timeout=PATIENCE), [None]
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}

    def group(self, rank: int) -> Processes:
        def share(value: Any) -> Any:
            if rank == 0:
                self._box[0] = value
            self._barrier.wait()
            shared = self._box[0]
            self._barrier.wait()
            return shared

        def deal(hand: Any) -> Any:
            return share(hand)[rank]  # type: ignore[index]

        return Processes(rank, self.world, self._barrier.wait, share, deal)

    def run(self, work: Callable[[int], Any], own: threading.local) -> list[threading.Thread]:
        """Threads, started: `work` of each rank."""

        def one(rank: int) -> None:
            own.group = self.group(rank)
            try:
                self.results[rank] = work(rank)
            except BaseException as error:
                self.errors[rank] = error
                self._barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.world)]
        for thread in threads:
            thread.start()
        return threads


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Launch]]:
    """Launches of so many ranks each, at the same time, run to their end: (worlds, work of a launch and a rank)."""
    own = threading.local()
    monkeypatch.setattr(run_module, "processes", lambda: getattr(own, "group", None) or processes())

    def started(worlds: Sequence[int], work: Callable[[int, int], Any]) -> list[Launch]:
        launches = [Launch(world) for world in worlds]
        threads = [
            thread
            for which, one in enumerate(launches)
            for thread in one.run(lambda rank, which=which: work(which, rank), own)  # type: ignore[misc]
        ]
        for thread in threads:
            thread.join(PATIENCE)
        return launches

    return started
