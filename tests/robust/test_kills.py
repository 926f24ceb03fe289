"""Run a short version of `python -m tests.robust.kills`: every kind of work, killed and
restarted."""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.robust import kills


@pytest.fixture(scope="module")
def fresh() -> Iterator[ProcessPoolExecutor]:
    """Return a process that only forks, because a fork of a process that has trained cannot
    train."""
    spawn = multiprocessing.get_context("spawn")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with ProcessPoolExecutor(1, spawn) as pool:
            yield pool


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(kills.WORKS))
def test_killed_and_resumed_work_matches_uninterrupted_work(
    name: str, fresh: ProcessPoolExecutor
) -> None:
    report = fresh.submit(kills.kill, name, 2, seed=1).result()
    assert (report["kills"], report["lost"], report["other"], report["what"]) == (2, 0, 0, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(kills.WORKS))
def test_work_on_a_full_disk_says_so_and_continues(name: str, fresh: ProcessPoolExecutor) -> None:
    report = fresh.submit(kills.kill, name, 2, seed=1, full=True).result()
    assert (report["lost"], report["other"], report["what"]) == (0, 0, [])
    assert report["kills"] >= 1
