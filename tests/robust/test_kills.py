"""`python -m tests.robust.kills` in short: every kind of work, killed and begun again; and that it can fail."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.robust import kills


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(kills.WORKS))
def test_work_that_is_killed_ends_as_work_that_is_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spawn = multiprocessing.get_context("spawn")  # a fork of a process that has trained before cannot train
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(1, spawn) as fresh:
        found = fresh.submit(kills.kill, name, 2, seed=1).result()
    assert (found["kills"], found["lost"], found["other"], found["what"]) == (2, 0, 0, [])


def test_what_is_lost_or_other_is_counted_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter(
        [
            {"kills": 0, "left": {"model": "1", "history": "1"}, "seconds": 1.0},
            {"kills": 1, "left": {"model": "1", "history": "1"}},
            {"kills": 2, "left": {"model": "2"}},
            {"kills": 1, "lost": "InvalidInputError: damaged"},
        ]
    )
    monkeypatch.setattr(kills, "outlive", lambda *_: next(runs))
    found = kills.kill("train", 4)
    assert (found["kills"], found["runs"], found["lost"], found["other"]) == (4, 3, 1, 1)
    assert found["what"] == ["InvalidInputError: damaged", "history, model"]
