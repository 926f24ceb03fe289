"""The benchmarks run on tiny sizes and compare paths that agree; times are never tested. What the house counts."""

import ast
import json
from pathlib import Path

import pytest

from eval import house
from eval.benchmarks import projection, startup, timing

RESULTS = Path(__file__).parents[2] / "eval" / "results"
TINY = {"fits": [(16, 4, 2)], "applies": [(16, 3, 8)], "groups": [(4, 2)], "repetitions": 1}


def test_tiny_sizes_run_and_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = projection.run(**TINY)
    assert len(rows) == 3
    assert all(row["ours"] > 0 and row["plain"] > 0 and row["difference"] < 1e-5 for row in rows)
    timing.report("tiny", rows, tmp_path / "tiny.json")
    assert "times faster" in capsys.readouterr().out
    written = json.loads((tmp_path / "tiny.json").read_text())
    assert written["rows"] == rows
    assert written["versions"]["torch"]


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


def test_a_ratio_is_how_many_times_faster_ours_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "medians", lambda calls, repetitions: {"ours": 0.5, "plain": 2.0})
    row = timing.compared("fit", "d 16", int, int, 1, difference=0.0)
    assert row == {"what": "fit", "size": "d 16", "ours": 0.5, "plain": 2.0, "ratio": 4.0, "difference": 0.0}


def test_a_process_costs_its_own_time() -> None:
    assert startup.seconds(["-c", "sum(range(10**7))"]) > startup.seconds(["-c", ""])


@pytest.mark.parametrize("name", ["projection", "attachment", "embedding_cache", "training", "startup"])
def test_committed_ratios_are_those_of_the_times(name: str) -> None:
    committed = json.loads((RESULTS / f"bench_{name}.json").read_text())
    assert committed["rows"]
    assert all(row["ratio"] == pytest.approx(row["plain"] / row["ours"]) for row in committed["rows"])


class TestHouse:
    def test_private_functions_are_counted_where_they_are_read(self) -> None:
        tree = ast.parse("def _a():\n    return _a()\ndef _b(): ...\ndef c():\n    return _a() + _b() + _b()")
        assert house.uses_of_private(tree) == {"_a": 1, "_b": 2}

    def test_parameters_passed_on_under_their_own_name(self) -> None:
        assert house.copied(ast.parse("f(k=k, seed=settings.seed, lam=2, n=m, **rest)")) == 2

    @pytest.mark.parametrize("annotation", ["Suite", "'Suite'", "Suite | None", "list[Suite]", "'dict[str, Suite]'"])
    def test_a_type_is_found_in_an_annotation(self, annotation: str) -> None:
        function = ast.parse(f"def f(self, x: {annotation}): ...").body[0]
        assert [arg.arg for arg in house.parameters(function)] == ["x"]
        assert "Suite" in house.names_in(house.parameters(function)[0].annotation)

    @pytest.mark.slow
    def test_this_checkout_is_counted(self) -> None:
        counts = house.count(house.ROOT)
        assert counts["lines"]["vldebias"] == sum(counts["lines per part"].values())
        assert counts["private functions used once"] <= counts["private functions"] <= counts["functions of modules"]
