"""The curves and regrets of pareto.py: against loops on made values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_gallery import gallery

from eval.experiments import embeddings, pareto
from eval.experiments.embeddings import Sides, World, chance, protocol, skews, worst_group
from eval.experiments.pareto import BOTH, TEXT, Setting
from vldebias.evaluation.result import Measurement, Result, TaskResult
from vldebias.methods.auto import LAMS
from vldebias.metrics import max_skew
from vldebias.pictures import picture_metadata


def setting(better: str, **changed: Any) -> Setting:
    data = gallery(20)
    bias = {"lower": "max_skew", "higher": "worst_group"}[better]
    fields = {"metrics": (bias, "query_cosine"), "units": "queries", "trials": lambda: iter([])}
    given = {"task": "made", "title": "Made", **fields, **changed}
    return Setting(texts=data.texts, prompts=data.prompts, neutral=data.queries[::2], **given)


def regrets(s: Setting, bias: dict[Any, np.ndarray], fixed: set[Any]) -> dict[str, Measurement]:
    about = protocol(s.task, s.title, "", {}, {}, (s.texts, s.prompts))
    result = TaskResult(about)
    pareto.regrets(result, s, {"units": 30}, bias, (TEXT, None), fixed, "")
    return {row.metric: row for row in result.rows}


class TestRegret:
    base = np.linspace(0.4, 0.6, 30)

    def found(self, better: str, auto: float, cali: float) -> dict[str, Measurement]:
        shifts = {("cali", 10.0): cali, ("cali", 100.0): 0.2, (TEXT, None): auto}
        sign = 1 if better == "lower" else -1
        bias = {key: self.base + sign * by + 0.001 * np.arange(30) for key, by in shifts.items()}
        fixed = {("none", None), ("cali", 10.0), ("cali", 100.0)}
        return regrets(setting(better), {("none", None): self.base, **bias}, fixed)

    @pytest.mark.parametrize("better", ["lower", "higher"])
    def test_against_the_best_fixed_one_and_as_a_share_of_its_gain(self, better: str) -> None:
        drift = 0.001 * 14.5 * (1 if better == "lower" else -1)
        found = self.found(better, auto=-0.2, cali=-0.3)
        assert found["regret"].value == pytest.approx(0.1)
        assert found["missed"].value == pytest.approx(0.1 / (0.3 - drift))
        assert found["regret"].interval == pytest.approx((0.1, 0.1))

    def test_nothing_is_missed_where_nothing_helps(self) -> None:
        assert self.found("lower", auto=0.1, cali=0.1).keys() == {"regret"}

    def test_of_a_worst_group(self) -> None:
        groups, place = np.arange(400) % 4, np.arange(400) // 4  # place: in its group of 100
        wrong = {("none", None): 90, ("cali", 10.0): 40, (TEXT, None): 60}
        bias = {key: (place >= count).astype(float) for key, count in wrong.items()}
        s = setting("higher", statistic=worst_group, shared=(groups,))
        found = regrets(s, bias, {("none", None), ("cali", 10.0)})
        assert found["regret"].value == pytest.approx(0.6 - 0.4)
        assert found["missed"].value == pytest.approx(0.2 / 0.5)
        assert found["regret"].interval[0] < 0.2 < found["regret"].interval[1]


@pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")
def test_points_carry_their_lambda_and_their_change() -> None:
    data = gallery(200)
    queries = data.texts.embed(data.queries)

    def measure(side: Sides) -> tuple[np.ndarray, np.ndarray]:
        return 1 - side.cosines(queries), side.cosines(queries)

    result = pareto.of_setting(setting("lower", trials=lambda: iter([(data.rows, measure)])))
    bias = {(row.method, row.lam): row for row in result.rows if row.metric == "max_skew"}
    assert {("cali", lam) for lam in LAMS} | {("none", None), (TEXT, None), (BOTH, None)} <= set(bias)
    assert bias["none", None].change is None
    for row in bias.values():
        if row.method != "none":
            assert row.change is not None
            assert row.change[0] == pytest.approx(row.value - bias["none", None].value)


@pytest.mark.slow
def test_the_plot_is_drawn_from_the_result(tmp_path: Path) -> None:
    committed = Result.read(Path(__file__).parents[2] / "eval" / "results" / "pareto.json")
    some = [p for p in committed.provenance if p.task in ("celeba b32", "birds")]
    path = pareto.draw(committed.model_copy(update={"provenance": some}), tmp_path / "pareto.png")
    assert picture_metadata(path)["result"] == "pareto"


@settings(max_examples=10, deadline=None)
@given(sizes=st.tuples(st.integers(30, 200), st.integers(30, 200)), k=st.integers(5, 50))
def test_chance_is_that_of_random_rankings(sizes: tuple[int, int], k: int) -> None:
    share = np.random.default_rng(0).hypergeometric(*sizes, k, size=20_000) / k
    with np.errstate(divide="ignore"):
        expected = np.log(2 * np.maximum(share, 1 - share)).mean()
    assert chance(k, *sizes) == pytest.approx(expected, abs=0.015)


def test_halves_share_no_image_and_pools_are_balanced() -> None:
    data = gallery()
    halves = list(pareto.random_halves(data, 3))
    for seen, pools in halves:
        assert len(seen) == 200
        assert all(np.bincount(data.gender[pool]).tolist() == [len(pool) // 2] * 2 for pool in pools)
        assert not set(seen) & set(np.concatenate(pools))
    assert not np.array_equal(halves[0][0], halves[1][0])


def test_skew_is_that_of_the_package() -> None:
    data = gallery()
    queries, pools = data.texts.embed(data.queries), data.pools([0, 1])
    measured = skews(Sides(), queries, data.rows, data.images.column("gender"), 20, pools)
    for query, value in zip(queries, measured, strict=True):
        of_pools = [max_skew(data.rows[pool] @ query, data.gender[pool], 20, n_groups=2) for pool in pools]
        assert value == pytest.approx(np.mean(of_pools))


def test_missing_data_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = gallery(40)
    world = World("birds", made.texts, made.images, made.images)
    assert world.split == "birds, 40 renders, seed 9001; fitted on 40, seed 9011"
    monkeypatch.setenv("VLDEBIAS_REAL", str(tmp_path))
    monkeypatch.setattr(pareto, "worlds", lambda: {"birds": world, "portraits": world})
    for of in ("of_birds", "of_portraits"):
        monkeypatch.setattr(pareto, of, lambda *given: setting("lower", task=given[-1] if len(given) > 1 else "birds"))
    found = [one.task for one in pareto.settings()]
    assert found == ["birds", *pareto.PORTRAITS, "birds, loss 0.5", "portraits age, told"]
    assert f"SKIPPED: {tmp_path / embeddings.FILE} is missing; set VLDEBIAS_REAL" in capsys.readouterr().err
