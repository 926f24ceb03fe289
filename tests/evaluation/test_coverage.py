"""Intervals cover the truth as often as they say, where theory says that they can; and the committed simulation."""

from pathlib import Path

import pytest

from eval.experiments import coverage as study
from vldebias.evaluation.result import Result

BY_NAME = {setting.name: setting for setting in study.SETTINGS}


def test_one_clear_worst_group_is_covered() -> None:
    found = study.simulate(BY_NAME["one worst group of 60 images"], sets=300, resamples=200)
    for name in (*study.ALL, f"{study.HARDEST}, Wilson"):
        assert 0.91 <= found[name]["coverage"] <= 0.99, name  # 0.95 +- 3 standard errors


def test_the_simulation_can_fail() -> None:
    """Four tied groups: the minimum is biased downwards and the interval misses the truth about half of the time."""
    found = study.simulate(BY_NAME["four groups tied"], sets=150, resamples=200)
    assert found["worst_group"]["coverage"] < 0.7
    assert found["worst_group"]["bias"] < -0.02
    assert found["worst_group"]["interval_below"] > 0.3
    assert found["gap"]["coverage"] == 0
    assert 0.9 <= found["average"]["coverage"] <= 0.99


def test_wilson_mends_the_boundary() -> None:
    found = study.simulate(BY_NAME["worst accuracy 0.005, of 100 images"], sets=150, resamples=200)
    assert found["worst_group, percentile alone"]["coverage"] < 0.6
    assert found["worst_group"]["coverage"] > 0.95


COMMITTED = Path(__file__).parents[2] / "eval" / "results" / "coverage.json"


@pytest.mark.slow
def test_the_committed_simulation_holds_what_the_documentation_says() -> None:
    committed = Result.read(COMMITTED)
    assert {one.task for one in committed.provenance} == BY_NAME.keys()
    for one in committed.provenance:
        assert one.n["data sets"] >= 1000
        assert tuple(one.settings["after"]) == BY_NAME[one.task].after
        for interval, about in one.methods.items():
            if about["expected"]:
                assert 0.92 <= committed.row(one.task, "coverage", interval).value <= 0.98, (one.task, interval)

    def covered(setting: str, interval: str) -> float:
        return committed.row(setting, "coverage", interval).value

    assert covered("four groups tied", "worst_group") < 0.7
    assert covered("fourteen groups tied", "worst_group") < 0.05
    assert covered("a worst group of 10 images", "change of worst_group") < 0.92
    assert covered("worst accuracy 0.04, of 50 images", "change of worst_group") < 0.8
