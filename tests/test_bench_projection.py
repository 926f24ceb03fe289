"""The benchmark runs on tiny sizes and compares paths that agree; times are never tested."""

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_projection", ROOT / "eval" / "bench_projection.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_projection"] = module
    spec.loader.exec_module(module)
    return module


bench = load_script()
TINY = {"fits": [(16, 4, 2)], "applies": [(16, 3, 8)], "groups": [(4, 2)], "repetitions": 1}


def test_tiny_sizes_run_and_agree(capsys: pytest.CaptureFixture[str]) -> None:
    timings = bench.run(**TINY)
    assert len(timings) == 3
    assert all(t.fast >= 0 and t.dense >= 0 and t.difference < 1e-5 for t in timings)
    bench.print_timings(timings)
    assert "times faster" in capsys.readouterr().out


def test_paths_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = bench.time_fit
    monkeypatch.setattr(bench, "time_fit", lambda *size: replace(honest(*size), difference=1e-3))
    with pytest.raises(RuntimeError, match="fast and dense paths differ"):
        bench.run(**TINY)


def test_the_json_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--json", str(tmp_path / "bench.json")])
    timings = [bench.Timing("fit", "d 16", 0.5, 2.0, 0.0)]
    monkeypatch.setattr(bench, "run", lambda repetitions: timings)
    assert bench.main() == 0
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [t["ratio"] for t in written["timings"]] == [4.0]
    assert written["versions"]["torch"]


def test_the_committed_timings_are_of_the_sizes_in_the_script() -> None:
    committed = json.loads((ROOT / "eval" / "results" / "bench_projection.json").read_text())
    assert len(committed["timings"]) == len(bench.FITS) + len(bench.APPLIES) + len(bench.GROUPS)
    assert all(t["ratio"] == pytest.approx(t["dense"] / t["fast"]) for t in committed["timings"])
