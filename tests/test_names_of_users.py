"""Test names of users that are also names of ours: they are kept apart, or refused in words."""

from typing import Any

import numpy as np
import pytest

import vldebias
from vldebias.errors import InvalidInputError
from vldebias.measure.rows import NONE
from vldebias.prompts import PromptSet, make_prompt_set

KNOWN = ("default", "all", "debiased", "search", "original", "overall", "mean")
UNKNOWN = ("", "none", "unknown")  # labels that are read as no group
SCORES = np.linspace(1, 0, 12)


def two_values(name: str) -> PromptSet:
    """Return a set with a value of this name."""
    phrase = {name: "who is blind", "b": "who is deaf"}
    return make_prompt_set("mine", {name: ["blind"], "b": ["deaf"]}, ["doctor"], phrase=phrase)


def captions(models: tuple[str, str], attribute: Any = "gender", label: str = "male") -> Any:
    """Return the result of two models' captions."""
    texts = ["A man runs.", "A person.", "A woman.", "A girl."]
    table = {
        "image": [f"{n}.jpg" for n in range(4)] * 2,
        "caption": texts * 2,
        "label": [label, label, "b", "b"] * 2 if attribute != "gender" else ["male", "female"] * 4,
        "model": [models[0]] * 4 + [models[1]] * 4,
    }
    return vldebias.evaluate_captions(table, attribute=attribute)


@pytest.mark.parametrize("name", KNOWN)
def test_a_group_with_one_of_our_names_is_a_group(name: str) -> None:
    labels = [name, "x", "x", "x"] * 3
    shares = {name: 0.5, "x": 0.5}
    expected = vldebias.rerank(SCORES, 6, labels=[label[:1] for label in labels])
    named = vldebias.rerank(SCORES, 6, labels=labels)
    assert list(named) == list(expected)
    assert sorted(named.report.candidates.names) == sorted([name, "x"])
    assert [labels[row] for row in vldebias.rerank(SCORES, 6, labels=labels, shares=shares)].count(
        name
    ) == 3


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_share_of_an_unknown_group_is_refused(name: str) -> None:
    labels = [name, "x", "x", "x"] * 3
    assert vldebias.rerank(SCORES, 6, labels=labels).report.candidates.names == ("x",)
    with pytest.raises(InvalidInputError, match=f"^shares: got a share of '{name}'"):
        vldebias.rerank(SCORES, 6, labels=labels, shares={name: 0.5, "x": 0.5})
    without = vldebias.rerank(SCORES, 6, labels=labels, shares={name: 0, "x": 1})
    assert list(without) == list(range(6))


@pytest.mark.parametrize("name", [*KNOWN, *UNKNOWN[1:]])
def test_a_value_with_one_of_our_names_is_assigned(name: str) -> None:
    balanced = vldebias.balance_prompts(["A photo of a doctor."] * 4, two_values(name), seed=0)
    assert sorted(map(str, balanced.values)) == sorted([name, name, "b", "b"])


def test_a_value_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least 1 character"):
        two_values("")


@pytest.mark.parametrize("name", [*KNOWN, "unknown"])
def test_a_model_with_one_of_our_names_has_its_rows(name: str) -> None:
    methods = {row.method for row in captions(("x", name)).rows}
    assert methods == {NONE, name}


def test_a_second_model_called_none_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^model: got the name 'none'"):
        captions(("x", NONE))
    assert {row.method for row in captions((NONE, "x")).rows} == {NONE, "x"}


@pytest.mark.parametrize("name", KNOWN)
def test_captions_count_a_value_with_one_of_our_names(name: str) -> None:
    subsets = {row.subset for row in captions(("x", "y"), two_values(name), name).rows}
    assert name in subsets


@pytest.mark.parametrize("name", ["none", "unknown", "several", "other", "unclear"])
def test_captions_refuse_a_value_that_means_no_value(name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^mine: the value '{name}' cannot be counted"):
        captions(("x", "y"), two_values(name), name)
