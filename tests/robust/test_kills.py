"""`python -m tests.robust.kills` in short: every kind of work, killed and begun again."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.robust import kills


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(kills.WORKS))
def test_work_that_is_killed_ends_as_work_that_is_not(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = multiprocessing.get_context(
        "spawn"
    )  # a fork of a process that has trained before cannot train
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(1, spawn) as fresh:
        report = fresh.submit(kills.kill, name, 2, seed=1).result()
    assert (report["kills"], report["lost"], report["other"], report["what"]) == (2, 0, 0, [])
