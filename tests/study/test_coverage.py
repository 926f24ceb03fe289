"""Test that intervals have their nominal coverage, in theory and in the committed simulation."""

import math
from pathlib import Path

import numpy as np
import pytest

from eval.experiments import coverage as study
from eval.experiments import coverage_kinds, coverage_verdicts
from eval.pages.evidence import RESAMPLED, lowest_by_size
from vldebias.report.result import Result
from vldebias.report.table import ENOUGH

COMMITTED = Path(__file__).parents[2] / "eval" / "results" / "coverage.json"
# Intervals whose coverage at the usual size is outside 0.92 to 0.98, as documented on the page.
OUTSIDE = {
    ("means over prompts", "change of deviation_ratio", "two values, even in the mean"),
    ("means over prompts", "change of discrepancy", "two values, even in the mean"),
    ("means over prompts", "change of discrepancy_squared", "five values, skewed"),
    ("means over prompts", "change of kl_from_uniform", "two values, .95 and .05"),
    ("means over prompts", "change of kl_from_uniform", "two values, even in the mean"),
    ("means over prompts", "deviation_ratio", "two values, .95 and .05"),
    ("means over prompts", "discrepancy", "two values, .95 and .05"),
    ("means over prompts", "discrepancy_squared", "two values, .95 and .05"),
    ("means over prompts", "kl_from_uniform", "two values, .95 and .05"),
    ("means over prompts", "share", "two values, .95 and .05"),
    ("means over prompts", "share", "two values, even in the mean"),
    ("probe", "linear_probe", "one in ten"),
    ("probe", "neighbour_probe", "even"),
    ("ranking", "awrf", "one in ten of a group"),
    ("ranking", "change of max_skew", "one in ten of a group"),
    ("ranking", "change of mpr", "one in ten of a group"),
    ("ranking", "max_skew", "one in ten of a group"),
    ("ranking", "min_skew", "one in ten of a group"),
    ("ranking", "mpr", "one in ten of a group"),
    ("ranking", "ndkl", "even groups"),
    ("ranking", "ndkl", "one in ten of a group"),
}
BY_NAME = {setting.name: setting for setting in study.SETTINGS}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (
            "one worst group of 60 images",
            dict.fromkeys([*study.ALL, f"{study.HARDEST}, Wilson"], (0.91, 0.99)),
        ),
        (
            "four groups tied",
            {
                "worst_group": (0.91, 1),
                "gap": (0.91, 1),
                "worst_group, percentile alone": (0, 0.7),
                "gap, percentile alone": (0, 0),
                "average": (0.9, 0.99),
            },
        ),
        (
            "worst accuracy 0.005, of 100 images",
            {"worst_group, percentile alone": (0, 0.6), "worst_group": (0.95, 1)},
        ),
    ],
)
def test_intervals_have_their_nominal_coverage_unless_known_otherwise(
    setting: str, expected: dict[str, tuple[float, float]]
) -> None:
    """Expect 0.95 plus or minus 3 standard errors.

    The minimum of tied groups is biased downwards, and the upper end of its interval is corrected
    for this. Wilson intervals are corrected at the boundary.
    """
    coverage_of_interval = study.simulate(
        BY_NAME[setting], sets=300 if "one" in setting else 150, resamples=200
    )
    for name, (low, high) in expected.items():
        assert low <= coverage_of_interval[name]["coverage"] <= high, name
    if setting == "four groups tied":
        assert coverage_of_interval["worst_group"]["bias"] < -0.02
        assert coverage_of_interval["worst_group, percentile alone"]["interval_below"] > 0.3


@pytest.mark.slow
def test_the_committed_simulation_supports_the_documentation() -> None:
    committed = Result.read(COMMITTED)
    assert {protocol.task for protocol in committed.provenance} == BY_NAME.keys()
    for protocol in committed.provenance:
        assert protocol.n["data sets"] >= 1000
        assert tuple(protocol.settings["after"]) == BY_NAME[protocol.task].after
        for interval, settings in protocol.methods.items():
            if settings["expected"]:
                assert 0.92 <= committed.row(protocol.task, "coverage", interval).value <= 0.98, (
                    protocol.task,
                    interval,
                )

    def covered(setting: str, interval: str) -> float:
        return committed.row(setting, "coverage", interval).value

    # If groups are tied, the percentile interval fails, because the worst group is selected again
    # in each resample.
    for setting in ("two groups tied", "four groups tied", "fourteen groups tied"):
        for interval in ("worst_group", "gap"):
            assert covered(setting, interval) >= 0.92
            assert covered(setting, f"{interval}, percentile alone") < 0.9
    # Known to fail, because small groups vary too little.
    assert covered("a worst group of 10 images", "change of worst_group") < 0.92
    assert covered("worst accuracy 0.04, of 50 images", "change of worst_group") < 0.8


def test_committed_intervals_of_shares_have_their_nominal_coverage() -> None:
    """This excludes the interval of MaxSkew for a gallery of 100 with five images from the rarer
    group, which resamples repeat."""
    result = Result.read(COMMITTED.with_name("coverage_shares.json"))
    rows = {
        (row.task, row.method, row.subset): row.value
        for row in result.rows
        if row.metric == "coverage"
    }
    # Four truths; 30, 100 or 300 labels, counted or corrected; share, gap and MaxSkew.
    assert len(rows) == 4 * (3 * 2 * 3 + 2)
    assert rows.pop(("2 values, skewed", "gallery of 100", "MaxSkew")) > 0.85
    assert min(rows.values()) >= 0.92


def test_committed_intervals_of_every_kind_have_their_nominal_coverage_at_the_usual_size() -> None:
    """Exceptions are listed in `intervals.md` and `eval/README.md`, in tables generated from the
    simulation."""
    result = Result.read(COMMITTED.with_name("coverage_kinds.json"))
    usual = {
        (about.task, subset) for about in result.provenance for subset in about.settings["usual"]
    }
    outside = set()
    for row in result.rows:
        is_usual = row.metric == "coverage" and (row.task, row.subset) in usual
        if is_usual and not 0.92 <= row.value <= 0.98:
            outside.add((row.task, row.method, row.subset.split("; ")[0]))
    assert outside == OUTSIDE


def test_pages_mark_the_sizes_at_which_a_simulated_interval_undercovers() -> None:
    lowest = lowest_by_size()
    marked = set()
    for (what, metric), coverage in lowest.items():
        enough = math.inf
        # Start at the largest size, and continue as long as the interval has its nominal coverage.
        for units in sorted(coverage, reverse=True):
            if coverage[units] < 0.92:
                break
            enough = units
        assert ENOUGH[RESAMPLED[what]][metric] == enough, (what, metric)
        marked.add((RESAMPLED[what], metric))
    assert {unit for unit, _ in marked} == ENOUGH.keys()
    assert len(marked) == 13
    # Every kind with lower coverage at the usual size is included here.
    assert {kind for kind, _, _ in OUTSIDE} <= RESAMPLED.keys()


def test_committed_verdicts_are_rarely_wrong_if_nothing_was_done() -> None:
    result = Result.read(COMMITTED.with_name("coverage_verdicts.json"))
    shares = {(row.task, row.method, row.metric): row.value for row in result.rows}
    for task in {row.task for row in result.rows}:
        assert shares[task, "no effect", "better"] + shares[task, "no effect", "worse"] < 0.08
        assert shares[task, "as in README", "better"] > 0.8


def test_the_code_of_the_simulations_runs() -> None:
    """Simulate one case of each kind: the value is finite, and each verdict is counted."""
    kinds = set()
    for family in coverage_kinds.FAMILIES:
        for case in family():
            if case.kind in kinds or case.kind in ("probe", "ranking"):
                continue
            kinds.add(case.kind)
            for covered, width in coverage_kinds.simulate(case, 2, 0).values():
                assert covered in (0.0, 0.5, 1.0)
                assert width >= 0
    assert len(kinds) == 7
    for scenario in coverage_verdicts.scenarios():
        verdicts, _ = coverage_verdicts.judged(scenario, np.random.default_rng(0), 12, 2)
        # With twelve units, two samples may be equal. With the committed sizes, they never are.
        assert set(verdicts) <= {*coverage_verdicts.VERDICTS, "equal"}
