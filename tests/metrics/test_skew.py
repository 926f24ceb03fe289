"""Skew and NDKL against naive twins, with every convention pinned."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.errors import SuspectInputWarning
from vldebias.metrics import max_skew, min_skew, ndkl

laws = settings(max_examples=60, deadline=None, derandomize=True)
N_GROUPS = 3


@st.composite
def rankings(draw: st.DrawFn) -> tuple[list[float], list[int], int]:
    n = draw(st.integers(1, 30))
    scores = draw(st.lists(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 2.0]), min_size=n, max_size=n))  # many ties
    groups = draw(st.lists(st.integers(0, N_GROUPS - 1), min_size=n, max_size=n))
    return scores, groups, draw(st.integers(1, n))


def top_shares(scores: list[float], groups: list[int], k: int) -> list[float]:
    ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    return [sum(groups[i] == a for i in ranked) / k for a in range(N_GROUPS)]


@laws
@given(rankings())
def test_skew_agrees_with_a_naive_twin(ranking: tuple[list[float], list[int], int]) -> None:
    scores, groups, k = ranking
    ratios = [math.log(r / (1 / N_GROUPS)) if r else -math.inf for r in top_shares(scores, groups, k)]
    assert max_skew(scores, groups, k, n_groups=N_GROUPS) == pytest.approx(max(ratios))
    assert min_skew(scores, groups, k, n_groups=N_GROUPS) == pytest.approx(min(ratios))


def test_by_hand() -> None:
    scores, groups = [0.9, 0.8, 0.7, 0.6], ["f", "m", "m", "m"]
    assert max_skew(scores, groups, 4) == pytest.approx(math.log(0.75 / 0.5))
    assert min_skew(scores, groups, 4) == pytest.approx(math.log(0.25 / 0.5))
    assert max_skew(scores, groups, 2) == 0
    assert max_skew(scores, groups, 4, prior="dataset") == 0
    assert max_skew(scores, groups, 1, prior="dataset") == pytest.approx(math.log(1 / 0.25))
    assert max_skew(scores, groups, 1, prior=[0.1, 0.9]) == pytest.approx(math.log(10))
    assert ndkl(scores, groups, 1) == pytest.approx(math.log(2))


def test_an_empty_group() -> None:
    scores, groups = [3.0, 2.0, 1.0], [0, 0, 1]
    assert min_skew(scores, groups, 2) == -math.inf
    assert min_skew(scores, groups, 2, floor=1 / 4) == pytest.approx(math.log(0.5))
    assert max_skew(scores, groups, 2, n_groups=4) == pytest.approx(math.log(4))
    assert max_skew(scores, groups, 2, prior=[0.9, 0.1], floor=0.5) == pytest.approx(math.log(5))


@pytest.mark.parametrize("measure", [partial(max_skew, k=1), partial(min_skew, k=1), ndkl])
def test_one_group_is_never_skewed_and_a_warning_says_why(measure: Callable[..., float]) -> None:
    with pytest.warns(SuspectInputWarning, match=r"all rows are of \[5\], so every ranking is fair; say n_groups="):
        assert measure([1.0, 2.0], [5, 5]) == 0
    assert measure([1.0, 2.0], [1, 1], n_groups=2) != 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_tensors_are_taken(dtype: torch.dtype) -> None:
    scores, groups = torch.tensor([0.5, 0.25, 0.75], dtype=dtype, requires_grad=True), torch.tensor([0, 1, 1])
    found = max_skew(scores, groups, 2)
    assert found == max_skew(np.array([0.5, 0.25, 0.75]), [0, 1, 1], 2)
    assert isinstance(found, float)


@refused(
    ({"k": 4}, r"k: expected an integer between 1 and the 3 rows that are ranked, got 4"),
    ({"k": 0}, r"k: .* got 0"),
    ({"k": 1.5}, r"k: .* got 1.5"),
    ({"k": True}, r"k: .* got True"),
    ({"groups": [0.5, 0.25, 0.5]}, r"groups: expected labels, got fractions such as \[0.25, 0.5\]"),
    ({"groups": [0, 1]}, r"one length, got {'scores': 3, 'groups': 2}"),
    ({"scores": [0.0, float("nan"), 1.0]}, r"scores: 1 of 3 values are NaN"),
    ({"prior": "flat"}, r"prior: expected 'uniform', 'dataset' or an array of shares, got 'flat'"),
    ({"prior": [0.5, 0.4]}, r"prior: expected 2 positive shares that sum to 1, .* got \[0.5, 0.4\]"),
    ({"prior": [1.0, 0.0]}, r"prior: expected 2 positive shares"),
    ({"prior": "dataset", "n_groups": 3}, r"prior: .* leave out groups that cannot occur"),
    ({"n_groups": 1}, r"groups: with n_groups=1 expected integers 0 .. 0, got \[0, 1\]"),
    ({"floor": -1.0}, r"floor: expected a share in \[0, 1\], got -1.0"),
)
def test_errors(change: dict) -> None:
    arguments = {"scores": [0.1, 0.2, 0.3], "groups": [0, 1, 0], "k": 2, **change}
    max_skew(**arguments)
