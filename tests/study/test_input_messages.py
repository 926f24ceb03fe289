"""Test that error messages for diagnose and shares name the invalid input."""

import warnings

import numpy as np
import pytest

import vldebias
from apps.shares.task import SharesTask
from vldebias.data import Embeddings
from vldebias.errors import InvalidInputError, SuspectInputWarning

ROWS = 60
NOISE = np.random.default_rng(0)
FEATURES = NOISE.normal(size=(ROWS, 8)).astype(np.float32)
LABELS = np.array(["a", "b"] * (ROWS // 2))
GROUPS = np.array(["x", "y", "y"] * (ROWS // 3))


def measured(**columns: object) -> list[str]:
    """Measure a table and return its warnings."""
    roles = {role: role for role in ("method", "weight") if role in columns}
    task = SharesTask(name="shares", **roles)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        task.measure(columns)
    return [
        str(warning.message)
        for warning in caught
        if issubclass(warning.category, SuspectInputWarning)
    ]


def test_too_few_groups_are_reported_as_groups_rather_than_labels() -> None:
    with pytest.raises(InvalidInputError, match=f"^groups: expected {ROWS}.* got 5"):
        vldebias.diagnose(FEATURES, LABELS, groups=GROUPS[:5])
    with pytest.raises(InvalidInputError, match=f"^labels: expected {ROWS}.* got 5"):
        vldebias.diagnose(FEATURES, LABELS[:5], groups=GROUPS)


def test_all_zero_and_nan_rows_are_counted() -> None:
    features = np.ones((10_000, 4), dtype=np.float32)
    features[::100] = np.nan
    features[1] = 0
    with pytest.raises(InvalidInputError, match="101 of 10000 rows"):
        vldebias.diagnose(Embeddings.from_arrays(features), np.array(["a", "b"] * 5000))


def test_scores_are_not_accepted_as_groups() -> None:
    with pytest.raises(InvalidInputError, match="float64; convert scores to classes"):
        vldebias.diagnose(FEATURES, LABELS, groups=NOISE.normal(size=ROWS))


@pytest.mark.parametrize("slip", ["femle", "femalee"])
def test_a_single_misspelt_value_among_forty_is_reported(slip: str) -> None:
    prompts = ["p1", "p2"] * 20
    values = ["female"] * 19 + [slip] + ["male"] * 20
    (message,) = measured(prompt=prompts, value=values)
    assert f"got '{slip}'; the values of gender are female, male" in message
    assert "did you mean 'female'?" in message
    assert measured(prompt=prompts, value=["female", "male"] * 20) == []


def test_a_column_can_have_only_one_role() -> None:
    with pytest.raises(InvalidInputError, match="'value' is used both as value and as method"):
        SharesTask(name="shares", method="value").measure({"prompt": ["p"], "value": ["a"]})
