"""Test that intervals have their nominal coverage, in theory and in the committed simulation."""

import math
from pathlib import Path

import numpy as np
import pytest

from eval.experiments import coverage as simulation
from eval.pages.evidence import RESAMPLED, lowest_by_size
from vldebias.report.result import Result
from vldebias.report.table import ENOUGH

METRICS = ("worst_group", "average", "gap")
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
# Kinds with a test of their own, and re-ranked shares, which other tests cover.
TESTED_APART = (
    *("groups", "shares, counted", "shares, corrected", "re-ranked shares"),
    *("edits of people", "captions"),
)
GROUPS = {case.name: case for case in simulation.group_cases()}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (
            "one worst group of 60 images",
            dict.fromkeys(
                (f"{prefix}{metric}" for prefix in ("", "change of ") for metric in METRICS),
                (0.91, 0.99),
            ),
        ),
        ("two groups tied", {"worst_group": (0.91, 1), "gap": (0.91, 1), "average": (0.9, 0.99)}),
        ("worst accuracy 0.005, of 100 images", {"worst_group": (0.95, 1)}),
    ],
)
def test_intervals_have_their_nominal_coverage_unless_known_otherwise(
    setting: str, expected: dict[str, tuple[float, float]]
) -> None:
    """Expect 0.95 plus or minus 3 standard errors.

    The minimum of tied groups is biased downwards, and the upper end of its interval is corrected
    for this. Wilson intervals are corrected at the boundary.
    """
    found = simulation.simulate(GROUPS[setting], sets=300 if "one" in setting else 150, seed=0)
    for name, (low, high) in expected.items():
        assert low <= found[name] <= high, name


def test_committed_intervals_of_groups_and_shares_have_their_nominal_coverage() -> None:
    """An interval may be too wide, but not too narrow, if its groups and samples are large enough.

    The average of groups with accuracies near 1 is the only exception.
    """
    rows = {}
    for row in Result.read(COMMITTED).rows:
        if row.metric == "coverage":
            rows[row.task, row.method, row.subset.partition(";")[0], row.subset] = row.value
    for (task, metric, setting, _), covered in rows.items():
        if task.startswith("shares") or (task == "groups" and setting in list(GROUPS)[:7]):
            assert covered >= 0.92, (task, metric, setting)
    # Known to fail, because a small group varies too little.
    (small,) = (
        covered
        for (_, metric, setting, _), covered in rows.items()
        if (metric, setting) == ("change of worst_group", "a worst group of 10 images")
    )
    assert small < 0.92


def test_committed_intervals_of_every_kind_have_their_nominal_coverage_at_the_usual_size() -> None:
    """Exceptions are listed in a table in `intervals.md`, which is generated from the
    simulation."""
    result = Result.read(COMMITTED)
    usual = {
        (about.task, subset) for about in result.provenance for subset in about.settings["usual"]
    }
    outside = set()
    for row in result.rows:
        is_usual = row.metric == "coverage" and (row.task, row.subset) in usual
        is_usual &= row.task not in TESTED_APART
        if is_usual and not 0.92 <= row.value <= 0.98:
            outside.add((row.task, row.method, row.subset.split("; ")[0]))
    assert outside == OUTSIDE


def test_committed_intervals_of_edits_and_captions_contain_rare_shares() -> None:
    """Known to fail: if changes are rare and some people have most of them, few people show it."""
    low = {}
    for row in Result.read(COMMITTED).rows:
        if row.task in ("edits of people", "captions") and row.value < 0.92:
            low[row.subset] = row.value
    assert list(low) == ["rate 0.02, varies (beta, 2); 40 people with 10 edits"]
    assert low.popitem()[1] > 0.91


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
    """Simulate one case of each kind: coverage is a share, and each verdict is counted."""
    kinds = set()
    for family in simulation.FAMILIES:
        for case in family():
            if case.kind in kinds or case.kind in ("probe", "ranking"):
                continue
            kinds.add(case.kind)
            for covered in simulation.simulate(case, 2, 0).values():
                assert covered in (0.0, 0.5, 1.0)
    assert len(kinds) == 12
    for scenario in simulation.scenarios():
        verdicts, _ = simulation.judged(scenario, np.random.default_rng(0), 12, 2)
        # With twelve units, two samples may be equal. With the committed sizes, they never are.
        assert set(verdicts) <= {*simulation.VERDICTS, "equal"}
