"""Test that error messages for diagnose and shares name the invalid input."""

import numpy as np
import pytest

import vldebias
from apps.shares.task import SharesTask
from vldebias.errors import InvalidInputError

ROWS = 60
NOISE = np.random.default_rng(0)
FEATURES = NOISE.normal(size=(ROWS, 8)).astype(np.float32)
LABELS = np.array(["a", "b"] * (ROWS // 2))
GROUPS = np.array(["x", "y", "y"] * (ROWS // 3))


def test_too_few_groups_are_reported_as_groups_rather_than_labels() -> None:
    with pytest.raises(InvalidInputError, match=f"^groups: expected {ROWS}.* got 5"):
        vldebias.diagnose(FEATURES, LABELS, groups=GROUPS[:5])
    with pytest.raises(InvalidInputError, match=f"^labels: expected {ROWS}.* got 5"):
        vldebias.diagnose(FEATURES, LABELS[:5], groups=GROUPS)


def test_a_column_can_have_only_one_role() -> None:
    with pytest.raises(InvalidInputError, match="'value' is used both as value and as method"):
        SharesTask(name="shares", method="value").measure({"prompt": ["p"], "value": ["a"]})
