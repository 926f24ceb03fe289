"""Test human counts of what Stable Diffusion 3.5 shows when a prompt states a value."""

import numpy as np
import pytest

from apps.audit.counts import CALIBRATIONS, FOLDER, read_counts
from eval.experiments.stated_values import (
    BALANCED,
    ETHNICITIES,
    GAP_FROM_HALF,
    GENDERS,
    SLIP,
    clustered_interval,
    measure,
    read_images,
)
from eval.tables import read
from vldebias.measure.resampling import wilson_interval
from vldebias.prompts import load_prompts


def test_the_tables_have_ten_images_per_prompt_except_for_one() -> None:
    images = read_images()
    assert len(images) == 258
    assert SLIP not in images.index
    genders = images[list(GENDERS)].sum(axis=1)
    ethnicities = images[list(ETHNICITIES)].sum(axis=1)
    assert genders.max() == ethnicities.max() == 10
    assert (genders < 10).sum() <= 2, "few images have no known gender"
    assert images["recognised"].max() == 10
    stated = set(images["gender"]) - {""}
    assert stated == {name.lower() for name in GENDERS}


def test_the_effective_number_of_images_is_smaller_if_prompts_differ() -> None:
    totals = np.full(12, 10.0)
    same = np.full(12, 5.0)
    assert clustered_interval(same, totals) == wilson_interval(60, 120)
    apart = np.array([0.0, 10.0] * 6)
    low, high = clustered_interval(apart, totals)
    wilson_low, wilson_high = wilson_interval(60, 120)
    assert low < wilson_low - 0.1
    assert high > wilson_high + 0.1
    # If the images for a prompt are all 0 or all 1, a prompt is worth about one image.
    assert (low, high) == pytest.approx(wilson_interval(6, 12), abs=0.02)
    assert clustered_interval(totals, totals) == wilson_interval(120, 120)


def test_clustered_intervals_cover_a_share_that_varies_between_prompts() -> None:
    rng = np.random.default_rng(0)
    totals = np.full(40, 10.0)
    inside = 0
    independent = 0
    for _ in range(400):
        hits = rng.binomial(10, rng.beta(1.4, 0.6, size=40)).astype(float)
        low, high = clustered_interval(hits, totals)
        inside += low <= 0.7 <= high
        low, high = wilson_interval(round(hits.sum()), 400)
        independent += low <= 0.7 <= high
    assert 0.92 <= inside / 400 <= 0.98
    assert independent / 400 < 0.8, (
        "treating images as independent gives intervals that are too narrow"
    )


def test_the_committed_result_matches_the_tables() -> None:
    committed = [(r.task, r.metric, r.method, r.subset) for r in read("stated_values").rows]
    again = [row for task in measure() for row in task.rows]
    assert [(r.task, r.metric, r.method, r.subset) for r in again] == committed
    for row, old in zip(again, read("stated_values").rows, strict=True):
        assert row.value == pytest.approx(old.value)
        assert row.interval == pytest.approx(old.interval)
        assert row.interval[0] <= row.value <= row.interval[1]


def test_a_gap_of_zero_has_an_interval_that_shows_the_smallest_detectable_gap() -> None:
    rows = {(r.metric, r.method): r for r in next(iter(measure())).rows}
    none = rows[GAP_FROM_HALF.name, "none"]
    balanced = rows[GAP_FROM_HALF.name, BALANCED]
    assert balanced.value == 0
    assert balanced.interval[1] == pytest.approx(wilson_interval(0, 240)[1])
    assert balanced.change[0] == pytest.approx(-none.value)
    assert balanced.change[1] <= balanced.change[0] <= balanced.change[2] < 0


def test_the_audit_uses_the_counts_of_prompts_that_state_no_value() -> None:
    assert "Erik V." in (FOLDER / "sd35.LICENSE").read_text(encoding="utf-8")
    (sd35,) = (calibration for calibration in CALIBRATIONS if calibration.name == "sd35")
    counts = read_counts(sd35, load_prompts("gender"))
    images = read_images()
    plain = images[(images["gender"] == "") & (images["ethnicity"] == "")]
    plain = plain[plain["profession"] != ""].set_index("profession")
    assert counts["female"].to_dict() == plain["Female"].to_dict()
    assert counts["male"].to_dict() == plain["Male"].to_dict()
