"""Fixtures of the tests of data: stand-ins for the real data sets, and the processes of a launch as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_parts import celeba, fairface, waterbirds

from vldebias.data import cache
from vldebias.data.parallel import Processes, processes

PATIENCE = 60  # seconds until a test that hangs fails


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """A folder with waterbirds, celeba and fairface in the layouts and file names of the releases, of tiny images."""
    waterbirds(tmp_path / "waterbirds/waterbird_complete95_forest2water2", [*product((0, 1), (0, 1, 2), (0, 1))] * 2)
    root, values = tmp_path / "celeba", np.random.default_rng(0).integers(0, 2, (24, 40)) * 2 - 1
    celeba(root / "Anno", root / "Img/img_align_celeba", values, [0, 1, 2] * 8)
    (root / "Eval").mkdir()
    (root / "Anno/list_eval_partition.txt").rename(root / "Eval/list_eval_partition.txt")
    races = ("White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian", "Middle Eastern")
    rows = [("20-29", gender, race) for race in races for gender in ("Male", "Female")]
    for part in ("train", "val"):
        fairface(tmp_path / "fairface", part, rows, tmp_path / "fairface/fairface-img-margin025-trainval")
    return tmp_path


@pytest.fixture
def hf_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caches of `datasets` in a folder of the test."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()


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

        return Processes(rank, self.world, self._barrier.wait, share)

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
    monkeypatch.setattr(cache, "processes", lambda: getattr(own, "group", None) or processes())

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
