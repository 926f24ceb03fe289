"""Rates of labels that harm: counted by hand, fair where groups are alike, refused where kinds are unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from vldebias.data import Embeddings
from vldebias.errors import InvalidInputError
from vldebias.evaluation import LabelRatesTask, Texts, load_suite
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.task import Data
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.prompts import PromptSet

LABELS = {"person": ("a man", "a woman"), "crime": ("a thief",), "animal": ("a gorilla", "an animal")}
PROMPTS = PromptSet(name="gender", groups=(("a man", "a woman"),), attributes={"male": ("man",), "female": ("woman",)})
TEXTS = {text: torch.eye(5)[i] for i, text in enumerate(text for several in LABELS.values() for text in several)}
FIELDS: dict[str, Any] = {
    "name": "rates", "title": "Rates", "data": Data(name="made"), "prompts": PROMPTS, "labels": LABELS,
    "watch": ("crime", "animal"), "by": ("race",), "methods": ("none", "difference"), "resamples": 400,
}  # fmt: skip


@pytest.fixture(scope="module")
def images() -> Embeddings:
    """40 images of race a, 60 of b: 10 of a and 3 of b are thieves, 5 of b animals, all others men."""
    nearest = np.r_[[2] * 10, [0] * 30, [2] * 3, [3] * 2, [4] * 3, [0] * 52]
    rows = np.eye(5)[nearest] + 0.01 * np.random.default_rng(0).standard_normal((100, 5))
    return Embeddings.of(rows, {"race": np.repeat(["a", "b"], [40, 60])})


@pytest.fixture(scope="module")
def result(images: Embeddings) -> TaskResult:
    return LabelRatesTask.build(FIELDS).measure(images, Texts(TEXTS))[0]


def cell(result: TaskResult, metric: str, subset: str, method: str = "none") -> Any:
    (row,) = [r for r in result.rows if (r.metric, r.subset, r.method) == (metric, subset, method)]
    return row


def test_rates_are_counts_with_wilsons_interval(result: TaskResult) -> None:
    for subset, hits, n in [
        ("crime, race: a", 10, 40), ("crime, race: b", 3, 60), ("animal, race: a", 0, 40), ("animal, race: b", 5, 60),
    ]:  # fmt: skip
        row = cell(result, "label_rate", subset)
        assert (row.value, row.n) == (hits / n, {"images": n})
        assert row.interval == pytest.approx(wilson_interval(hits, n))


def test_the_gap_is_that_of_the_rates_and_its_interval_holds_it(result: TaskResult) -> None:
    row = cell(result, "label_rate_gap", "crime, race")
    assert row.value == pytest.approx(10 / 40 - 3 / 60)
    assert 0 < row.interval[0] < row.value < row.interval[1] < 0.5


def test_changes_are_paired(result: TaskResult) -> None:
    """An edit that moves no image from one label to another changes nothing, however wide the rates' intervals are."""
    assert cell(result, "label_rate", "crime, race: a", "difference").change == pytest.approx((0, 0, 0))
    assert cell(result, "label_rate_gap", "crime, race", "difference").change == pytest.approx((0, 0, 0))


def test_groups_that_are_alike_have_a_gap_that_resampling_reaches_from_above(images: Embeddings) -> None:
    rng = np.random.default_rng(0)
    rows = np.eye(5)[rng.choice([0, 2], 400, p=[0.9, 0.1])] + 0.01 * rng.standard_normal((400, 5))
    same = Embeddings.of(rows, {"race": np.repeat(["a", "b"], 200)})
    row = cell(LabelRatesTask.build(FIELDS).measure(same, Texts(TEXTS))[0], "label_rate_gap", "crime, race")
    assert row.value < 0.08
    assert row.interval[0] < 0.03


def test_a_kind_that_is_not_there_is_refused(images: Embeddings) -> None:
    with pytest.raises(InvalidInputError, match=r"expected kinds of labels, .*got \['theft'\]"):
        LabelRatesTask.build({**FIELDS, "watch": ("theft",)})
    with pytest.raises(InvalidInputError, match="age"):
        LabelRatesTask.build({**FIELDS, "by": ("age",)}).measure(images, Texts(TEXTS))


def test_the_suite_has_both_tables() -> None:
    plain, child = load_suite("clip-paper").tasks
    assert isinstance(plain, LabelRatesTask)
    assert isinstance(child, LabelRatesTask)
    assert len(plain.labels["person"]) == 14
    assert set(child.texts()) - set(plain.texts()) == {"A photo of a child."}
