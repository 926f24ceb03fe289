"""Test predictions from records: they are either accurate or withheld."""

import numpy as np
import pytest

from apps.audit.records.forecast import (
    SHOWN,
    coverage_over_models,
    coverage_over_subjects,
    forecast,
    images_to_settle,
    known_models,
    line_of_model,
    shares_of,
)
from apps.audit.records.page import read_records
from apps.audit.records.schema import Model, PromptCounts, Record
from eval.record_sources import RECORDS
from tests.apps.audit.records.test_figures import made
from vldebias.errors import InvalidInputError
from vldebias.measure.resampling import wilson_interval

IMAGES = 200
SUBJECTS = [f"subject {i}" for i in range(40)]


def record_of(name: str, shares: np.ndarray, **model: object) -> Record:
    rows = [
        PromptCounts(subject=s, prompt=s, counts=(round(IMAGES * p), IMAGES - round(IMAGES * p)))
        for s, p in zip(SUBJECTS, shares, strict=False)
    ]
    described = Model.model_validate({"name": name, **model})
    return made([], name=name, model=described, counts=tuple(rows))


def similar_models(models: int, noise: float, seed: int = 0) -> list[Record]:
    """Return models whose shares differ from common shares by noise."""
    rng = np.random.default_rng(seed)
    common = rng.uniform(0.1, 0.9, len(SUBJECTS))
    return [
        record_of(f"m{i}", np.clip(common + rng.normal(0, noise, len(SUBJECTS)), 0, 1))
        for i in range(models)
    ]


def test_a_counted_subject_has_its_own_share() -> None:
    records = similar_models(3, 0.05)
    (row,), _ = forecast(records, ["Subject 3"], attribute="gender", value="female", model="m1")
    hits = records[1].counts[3].counts[0]
    assert row.kind == "counted"
    assert (row.low, row.high) == pytest.approx(wilson_interval(hits, IMAGES))
    is_settled = not wilson_interval(hits, IMAGES)[0] <= 0.5 <= wilson_interval(hits, IMAGES)[1]
    assert (row.images == 0) == is_settled


def test_a_new_subject_of_a_measured_model_is_predicted() -> None:
    records = similar_models(4, 0.03)
    without = records[0].model_copy(update={"counts": records[0].counts[1:]})
    (row,), coverage = forecast(
        [without, *records[1:]], [SUBJECTS[0]], attribute="gender", value="female", model="m0"
    )
    truth = records[0].counts[0].counts[0] / IMAGES
    assert coverage.is_shown
    assert row.kind == "predicted"
    assert row.low is not None
    assert row.high is not None
    assert row.low <= truth <= row.high
    assert row.high - row.low < 0.5


def test_a_new_model_is_predicted_from_many_models_but_not_from_few() -> None:
    (row,), coverage = forecast(
        similar_models(5, 0.03), [SUBJECTS[0]], attribute="gender", value="female", model="new"
    )
    assert coverage.tried == 5
    assert row.kind == "abstains"
    assert "may be below 80%" in row.reason
    assert row.share is None
    assert row.images is not None
    many = similar_models(33, 0.03)
    (row,), coverage = forecast(
        many, [SUBJECTS[0]], attribute="gender", value="female", model="new"
    )
    assert coverage.is_shown
    assert row.kind == "predicted"


def test_dissimilar_models_give_wide_intervals() -> None:
    rng = np.random.default_rng(1)
    records = [record_of(f"m{i}", rng.uniform(0, 1, len(SUBJECTS))) for i in range(4)]
    models = {n: shares_of(c) for n, c in known_models(records, "gender", "female").items()}
    coverage = coverage_over_subjects(line_of_model(models, "m0"))
    assert coverage.width > 0.7


def test_debiased_and_embedded_models_are_not_used_for_predictions() -> None:
    records = similar_models(3, 0.03)
    edited = record_of("edited", np.full(40, 0.5), method="uce", is_plain=False)
    toy = record_of("toy", np.full(40, 0.5), id="miniature")
    known = known_models([*records, edited, toy], "gender", "female")
    assert set(known) == {"m0", "m1", "m2"}


def test_subjects_without_counts_are_not_predicted() -> None:
    records = similar_models(4, 0.03)
    (row,), _ = forecast(records, ["sailor"], attribute="gender", value="female", model="m0")
    assert (row.kind, row.images) == ("abstains", None)
    assert row.reason == "fewer than 2 other models have counts for this subject"
    with pytest.raises(InvalidInputError, match="gender: \\['female', 'male'\\]"):
        forecast(records, SUBJECTS, attribute="gender", value="woman", model="m0")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4, 0.62, 1.0])
def test_images_to_settle_is_the_smallest_number_that_excludes_one_half(
    share: float,
) -> None:
    n = images_to_settle(share)
    low, high = wilson_interval(share * n, n)
    assert not low <= 0.5 <= high
    low, high = wilson_interval(share * (n - 1), n - 1)
    assert low <= 0.5 <= high


def test_the_committed_records_are_too_few_to_show_coverage_for_a_new_model() -> None:
    counts = known_models(read_records([RECORDS]), "gender", "female")
    coverage = coverage_over_models({name: shares_of(known) for name, known in counts.items()})
    assert not coverage.is_shown
    assert coverage.interval[0] < SHOWN


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_record_with_more_subjects_represents_its_model(is_reversed: bool) -> None:
    shares = np.linspace(0.1, 0.9, len(SUBJECTS))
    records = [record_of("model", shares), record_of("model", 1 - shares[:5])]
    given = records[::-1] if is_reversed else records
    assert known_models(given, "gender", "female") == known_models(records[:1], "gender", "female")
