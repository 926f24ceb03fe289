"""The curves and regrets of eval/pareto.py: against loops on made values, and what the committed result must show."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vldebias.choosing import LAMS
from vldebias.evaluation.intervals import worst_group
from vldebias.evaluation.report.pictures import read_metadata
from vldebias.evaluation.result import Figure, Result

ROOT = Path(__file__).parents[1]
COMMITTED = ROOT / "eval" / "results" / "pareto.json"
sys.path.append(str(ROOT / "eval"))

import pareto  # noqa: E402
from pareto_plot import draw  # noqa: E402
from pareto_settings import Setting  # noqa: E402

AUTO = ("auto, texts", "auto, texts and images")


def setting(better: str, **changed: Any) -> Setting:
    made: dict[str, Any] = {"metrics": ("bias", "query_cosine"), "better": better, "units": "queries"}
    return Setting("made", "Made", None, None, (), trials=lambda: iter([]), **made, **changed)  # type: ignore[arg-type]


def shifted(base: np.ndarray, by: float) -> np.ndarray:
    return base + by + 0.001 * np.arange(len(base))


class TestRegret:
    base = np.linspace(0.4, 0.6, 30)
    fixed = frozenset({("none", None), ("cali", 10.0), ("cali", 100.0)})

    def found(self, better: str, auto: float, cali: float) -> dict[str, Figure]:
        sign = 1 if better == "lower" else -1
        bias = {
            ("none", None): self.base,
            ("cali", 10.0): shifted(self.base, sign * cali),
            ("cali", 100.0): shifted(self.base, sign * 0.2),
            ("auto, texts", None): shifted(self.base, sign * auto),
        }
        made = pareto.regrets(setting(better), {"queries": 30}, bias, ("auto, texts", None), self.fixed, "")
        return {figure.metric: figure for figure in made}

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
        groups = np.arange(400) % 4
        place = np.arange(400) // 4  # in its group of 100
        right = {name: place >= wrong for name, wrong in (("none", 90), ("cali", 40), ("auto", 60))}
        bias = {
            ("none", None): right["none"].astype(float),
            ("cali", 10.0): right["cali"].astype(float),
            ("auto, texts", None): right["auto"].astype(float),
        }
        of = setting("higher", statistic=worst_group, shared=(groups,))
        fixed = {("none", None), ("cali", 10.0)}
        regret, missed = pareto.regrets(of, {"images": 400}, bias, ("auto, texts", None), fixed, "")
        assert regret.value == pytest.approx(0.6 - 0.4)
        assert missed.value == pytest.approx(0.2 / 0.5)
        assert regret.interval[0] < 0.2 < regret.interval[1]


def test_points_carry_their_lambda_and_their_change() -> None:
    base = np.linspace(0.4, 0.6, 30)
    values = {("none", None): base, ("cali", 10.0): base - 0.1, ("cali", 100.0): base - 0.2}
    made = pareto.points(setting("lower"), "bias", "lower", {"queries": 30}, values, pareto.mean, ())
    assert [(f.method, f.lam) for f in made] == list(values)
    assert made[0].change is None
    assert made[2].change == pytest.approx((-0.2, -0.2, -0.2))


@pytest.fixture(scope="module")
def committed() -> Result:
    return Result.read(COMMITTED)


def test_auto_is_never_worse_than_none_beyond_its_interval(committed: Result) -> None:
    settings = {protocol.task for protocol in committed.protocols}
    assert len(settings) >= 13
    assert {"celeba b32", "birds", "portraits gender", "texts l14 openai"} <= settings
    judged = 0
    for figure in committed.figures:
        if figure.method in AUTO and figure.change is not None and figure.metric not in pareto.UTILITIES:
            judged += 1
            assert not (figure.change[1] > 0 if figure.better == "lower" else figure.change[2] < 0), figure
    assert judged >= len(settings)
    for name in AUTO:
        assert committed.figure("auto", "worse_than_none", name).value == 0


def test_the_summary_is_that_of_the_settings(committed: Result) -> None:
    for name in AUTO:
        each = [f.value for f in committed.figures if (f.metric, f.method, f.subset) == ("missed", name, "")]
        *values, mean = each
        summed = committed.figure("auto", "missed", name)
        assert mean == summed.value == pytest.approx(np.mean(values))
        assert summed.n == {"settings": len(values)}


def test_curves_are_complete(committed: Result) -> None:
    for protocol in committed.protocols:
        bias = [f for f in committed.figures if f.task == protocol.task and f.metric not in pareto.UTILITIES]
        assert set(LAMS) <= {f.lam for f in bias if f.method == "cali" and f.metric != "regret"}
    found = {f.method for f in committed.figures if f.task == "celeba b32"}
    assert {"none", "cali", "orth-cali", "equalise", "cali+equalise", "difference", *AUTO} <= found


def test_a_bound_is_kept_by_the_texts_that_were_measured_in_the_mean(committed: Result) -> None:
    """The guarantee is about the neutral texts; here, other texts of the same kind."""
    for loss in pareto.BOUNDS:
        figure = committed.figure("celeba b32", "query_cosine", f"cali, loss at most {loss}")
        assert figure.value >= 1 - 1.1 * loss


def test_the_plot_is_drawn_from_the_result(committed: Result, tmp_path: Path) -> None:
    panels = [("celeba b32", "CelebA", "max_skew@50", "query_cosine"), ("birds", "Birds", "worst_group", "average")]
    path = draw(committed, panels, tmp_path / "pareto.png")
    assert read_metadata(path)["result"] == "pareto"
