"""Test how well counts from some models predict those of a held-out model."""

import pandas as pd
import pytest

from eval.experiments.audit_other_models import (
    compared,
    lean,
    measure,
    shipped_counts,
    stable_bias_counts,
)
from eval.tables import read


def counts(**women_of_ten: int) -> pd.DataFrame:
    table = pd.DataFrame({"female": women_of_ten})
    return table.assign(male=10 - table["female"])


@pytest.mark.parametrize(("female", "expected"), [(10, 1), (9, 1), (8, 0), (5, 0), (1, -1)])
def test_an_occupation_leans_if_even_shares_would_rarely_give_its_counts(
    female: int, expected: int
) -> None:
    assert lean(counts(nurse=female).loc["nurse"]) == expected


def test_other_models_agree_only_if_all_that_counted_the_occupation_do() -> None:
    others = {"a": counts(nurse=10, pilot=0, cook=10, baker=5), "b": counts(nurse=9, cook=0)}
    table = compared(counts(nurse=0, pilot=0, cook=10, baker=10, miner=0), others)
    assert list(table.index) == ["nurse", "pilot", "cook", "baker"]
    assert list(table["lean_of_others"]) == [1, -1, 0, 0]
    assert list(table["lean"]) == [-1, -1, 1, 1]
    assert list(table["n"]) == [2, 1, 2, 1]
    nurse = table.loc["nurse"]
    assert (nurse["low"], nurse["high"], nurse["mean"]) == pytest.approx((0.9, 1.0, 0.95))


def test_the_counts_of_stable_bias_include_at_most_210_images() -> None:
    for table in stable_bias_counts().values():
        assert len(table) == 10
        # An image whose caption names both genders is counted in both columns.
        assert table.sum(axis=1).between(30, 215).all()
    assert not set(stable_bias_counts()) & set(shipped_counts())


def test_the_committed_result_matches_the_tables() -> None:
    committed = read("audit_other_models").rows
    again = [row for task in measure() for row in task.rows]
    assert len(again) == len(committed)
    for row, old in zip(again, committed, strict=True):
        assert (row.task, row.metric, row.subset) == (old.task, old.metric, old.subset)
        assert row.value == pytest.approx(old.value)
        assert row.interval == pytest.approx(old.interval)


def test_agreement_among_models_does_not_predict_a_new_model() -> None:
    """Agreement cannot be used as a predictor, so the audit does not give a verdict on a model
    without counts."""
    (opposite,) = [
        row
        for row in read("audit_other_models").rows
        if (row.task, row.metric) == ("all models", "opposite_lean") and "two" in row.subset
    ]
    assert opposite.interval[0] > 0.05
