"""The curves and regrets of pareto.py: against loops on made values, and what the committed result must show."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_gallery import gallery

from eval.experiments import pareto
from eval.experiments.embeddings import Sides, protocol, worst_group
from eval.experiments.pareto import BOTH, TEXT, Setting
from vldebias.evaluation.result import Measurement, Result, TaskResult
from vldebias.methods.auto import LAMS
from vldebias.pictures import picture_metadata

COMMITTED = Path(__file__).parents[2] / "eval" / "results" / "pareto.json"
AUTO = (TEXT, BOTH)


def setting(better: str, **changed: Any) -> Setting:
    data = gallery(20)
    bias = {"lower": "max_skew", "higher": "worst_group"}[better]
    fields = {"metrics": (bias, "query_cosine"), "units": "queries", "trials": lambda: iter([])}
    return Setting("made", "Made", data.texts, data.prompts, data.queries[::2], **{**fields, **changed})


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


@pytest.fixture(scope="module")
def committed() -> Result:
    return Result.read(COMMITTED)


@pytest.mark.slow
class TestCommitted:
    def test_auto_is_never_worse_than_none_beyond_its_interval(self, committed: Result) -> None:
        settings = {one.task for one in committed.provenance}
        assert len(settings) >= 13
        assert {"celeba b32", "birds", "portraits gender", "texts l14 openai"} <= settings
        judged = 0
        for row in committed.rows:
            if row.method in AUTO and row.change is not None and row.metric not in pareto.UTILITIES:
                judged += 1
                assert not (row.change[1] > 0 if row.better == "lower" else row.change[2] < 0), row
        assert judged >= len(settings)
        for name in AUTO:
            assert committed.row("auto", "worse_than_none", name).value == 0

    def test_the_summary_is_that_of_the_settings(self, committed: Result) -> None:
        for name in AUTO:
            each = [r.value for r in committed.rows if (r.metric, r.method, r.subset) == ("missed", name, "")]
            *values, mean = each
            summed = committed.row("auto", "missed", name)
            assert mean == summed.value == pytest.approx(np.mean(values))
            assert summed.n == {"settings": len(values)}

    def test_curves_are_complete(self, committed: Result) -> None:
        for task in {one.task for one in committed.provenance} - {"auto"}:
            bias = [r for r in committed.rows if r.task == task and r.metric not in pareto.UTILITIES]
            assert set(LAMS) <= {r.lam for r in bias if r.method == "cali" and r.metric != "regret"}
        found = {r.method for r in committed.rows if r.task == "celeba b32"}
        assert {"none", "cali", "orth-cali", "equalise", "cali+equalise", "difference", *AUTO} <= found

    def test_a_bound_is_kept_by_the_texts_that_were_measured_in_the_mean(self, committed: Result) -> None:
        """The guarantee is about the neutral texts; here, other texts of the same kind."""
        for loss in pareto.BOUNDS:
            row = committed.row("celeba b32", "query_cosine", f"cali, loss at most {loss}")
            assert row.value >= 1 - 1.1 * loss

    def test_the_plot_is_drawn_from_the_result(self, committed: Result, tmp_path: Path) -> None:
        some = [p for p in committed.provenance if p.task in ("celeba b32", "birds")]
        path = pareto.draw(committed.model_copy(update={"provenance": some}), tmp_path / "pareto.png")
        assert picture_metadata(path)["result"] == "pareto"
