"""Test that no default is clearly behind a simple rival without a reason on the page."""

from pathlib import Path

import numpy as np
import pytest

from eval.experiments.simple_rivals import (
    AHEAD,
    LABELLED,
    OFFSETS,
    RECALL,
    WRONG,
    _balanced,
    _listed_nouns,
    _outcome,
    change_of_worst,
    family,
    worst,
)
from eval.pages.rivals import REASONS, RESULT, UNTESTED, ahead_of, behind
from eval.tables import read
from vldebias.measure.rows import NONE

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "results.md"


def test_a_default_that_is_clearly_behind_a_rival_has_a_reason_on_the_page() -> None:
    result = read(RESULT)
    assert behind(result) <= REASONS.keys() <= ahead_of(result).keys()
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    for task, rival in behind(result):
        _, _, cases = page.partition(f"`{rival}` is clearly better than the default with ")
        inputs, _, family = task.partition(", ")[2].partition(": ")
        _, _, families = cases.partition(f"{inputs} (")
        assert family in families.partition(")")[0].split("; ")
        assert REASONS[task, rival] in page


def test_the_price_of_the_test_on_left_out_images_is_the_one_on_the_page() -> None:
    rows = [row for row in read(RESULT).rows if ", 20 labelled images:" in row.task]

    def total(metric: str, method: str) -> int:
        return int(sum(row.value for row in rows if (row.metric, row.method) == (metric, method)))

    gains = [-row.value for row in rows if (row.metric, row.method) == (AHEAD.name, OFFSETS)]
    assert f"another {min(gains):.2f} to {max(gains):.2f} and" in UNTESTED
    for metric in ("better", "worse"):
        counts = total(metric, OFFSETS), total(metric, LABELLED)
        assert "{} rows instead of {}".format(*counts) in UNTESTED


@pytest.mark.parametrize(("metric", "sign"), [(RECALL, 1), (WRONG, -1)])
def test_a_default_is_ahead_by_the_mean_difference_in_the_better_direction(metric, sign) -> None:
    rng = np.random.default_rng(0)
    values = {name: rng.random(40) for name in (NONE, "default", "rival")}
    values["rival"] = values["default"] + 0.1
    clusters = [str(row // 2) for row in range(40)]
    done = family("search", "f", "default", {metric: values}, clusters, "about")
    ahead = {row.method: row for row in done.rows if row.metric == AHEAD.name}
    assert ahead.keys() == {NONE, "rival"}
    assert ahead["rival"].value == pytest.approx(-0.1 * sign)
    assert ahead["rival"].interval == pytest.approx((-0.1 * sign, -0.1 * sign))
    mean = np.mean(values["default"] - values[NONE])
    assert ahead[NONE].value == pytest.approx(sign * mean)
    assert ahead[NONE].interval[0] < ahead[NONE].value < ahead[NONE].interval[1]
    assert done.provenance.n == {"clusters": 20, "rows": 40}


def test_the_worst_group_and_its_change_ignore_tiny_groups() -> None:
    groups = np.repeat([0, 1, 2], [20, 20, 4])
    before = np.r_[np.ones(20), np.zeros(20), np.zeros(4)].astype(int)
    after = np.r_[np.ones(20), np.tile([0, 1], 10), np.zeros(4)].astype(int)
    assert (worst(before, groups), worst(after, groups)) == (0.0, 0.5)
    low, high = change_of_worst(before, after, groups)
    assert 0 < low < 0.5 < high


def test_prompts_score_one_for_a_right_change_and_minus_ten_for_a_wrong_one() -> None:
    nurse = {"prompt": "A photo of a nurse."}
    nurse |= {value: [f"A photo of a {value} nurse."] for value in ("female", "male")}
    scrubs = {"prompt": "A nurse dress.", "female": ["A nurse dress."], "male": ["A nurse dress."]}
    nouns = _listed_nouns()
    assert [_outcome(row, nouns) for row in (nurse, scrubs)] == [1.0, -10.0]
    assert _outcome(nurse, _balanced) == 1.0
    assert _outcome(nurse, lambda prompt, value: prompt) == 0.0
