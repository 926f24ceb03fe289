"""The benchmarks run on tiny sizes and compare paths that agree; times are never tested."""

from pathlib import Path

import pytest

from eval.benchmarks import projection, scale, speed, timing
from eval.experiments.records import rows_of
from vldebias.evaluation.result import Result

TINY = {"fits": [(16, 4, 2)], "applies": [(16, 3, 8)], "groups": [(4, 2)], "repetitions": 1}


def test_tiny_sizes_run_and_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = projection.run(**TINY)
    assert len(rows) == 3
    assert all(row["ours"] > 0 and row["plain"] > 0 and row["difference"] < 1e-5 for row in rows)
    timing.report("tiny", rows, tmp_path / "tiny.json")
    assert "times faster" in capsys.readouterr().out
    written = Result.read(tmp_path / "tiny.json")
    assert rows_of(written, "what") == rows
    assert written.versions["torch"]


def test_paths_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = projection.fit
    monkeypatch.setattr(projection, "fit", lambda *size: {**honest(*size), "difference": 1e-3})
    with pytest.raises(RuntimeError, match="fast and dense paths differ"):
        projection.run(**TINY)


def test_calls_are_timed_in_turn_after_one_each() -> None:
    seen: list[str] = []
    times = timing.medians({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 2)
    assert seen == ["a", "b"] * 3
    assert set(times) == {"a", "b"}


def test_passes_in_blocks_give_what_the_whole_gives() -> None:
    areas, *others = rows = scale.run(n=3000, few=1000, repetitions=1)
    assert areas["difference"] < 0.01
    assert [row["difference"] < 1e-6 for row in others] == [True] * 3
    assert all(row["ours"] > 0 and row["plain"] > 0 for row in rows)


def test_fast_paths_give_what_the_plain_ways_give() -> None:
    assert speed.ranks(2000, queries=3, k=50, repetitions=1)["differ"] < 0.01
    assert speed.intervals(3000, queries=3, resamples=60)["standard_errors"] < 5
    assert speed.few_rows(2000, resamples=500)["difference"] < 0.03
