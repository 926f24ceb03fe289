"""Test predicted gaps against plain loops, and their relation to the shares in a ranking."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch import Tensor

from tests.methods.made import normal, unit
from vldebias.errors import InvalidInputError
from vldebias.methods import predicted_gap
from vldebias.methods.predicted_gap import PredictedGap

DIM = 8


def gap(rows: Tensor, *codes: Tensor, resamples: int = 0, **how: Any) -> PredictedGap:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicted_gap, "RESAMPLES", resamples)
        return PredictedGap(rows, *codes, **how)


def codes(n: int, kinds: int, seed: int) -> Tensor:
    drawn_codes = torch.from_numpy(np.random.default_rng(seed).integers(kinds, size=n))
    drawn_codes[: 2 * kinds] = torch.arange(kinds).repeat(2)
    return drawn_codes


def naive_differences(x: Tensor, values: Tensor, classes: Tensor) -> list[Tensor]:
    """Compute sum_c w_c (mean_ca - mean_cb) / sum_c w_c for every pair of values with loops."""
    differences = []
    for a, b in combinations(range(int(values.max()) + 1), 2):
        total = torch.zeros(DIM, dtype=torch.float64)
        weights = 0.0
        for c in classes.unique():
            first = x[(classes == c) & (values == a)]
            second = x[(classes == c) & (values == b)]
            if len(first) and len(second):
                w = len(first) * len(second) / (len(first) + len(second))
                total = total + w * (first.mean(0) - second.mean(0))
                weights = weights + w
        differences.append(total / weights if weights else total)
    return differences


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), n=st.integers(12, 60), a=st.integers(2, 3), c=st.integers(1, 4))
def test_differences_match_a_plain_loop(seed: int, n: int, a: int, c: int) -> None:
    x = unit(n, DIM, seed=seed)
    values = codes(n, a, seed)
    classes = codes(n, c, seed + 1)
    pool = gap(x, values, classes, resamples=3, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predicted_gap, "RESAMPLES", 3)
        drawn = predicted_gap.draw_counts(n, seed)
    assert (drawn.sum(1) == n).all()
    assert (drawn[0] == 1).all()
    for difference, times in zip(pool.differences, drawn, strict=True):
        index = torch.arange(n).repeat_interleave(times.long())
        expected = naive_differences(x[index], values[index], classes[index])
        padded = expected + [torch.zeros(DIM, dtype=torch.float64)] * (
            len(difference) - len(expected)
        )
        torch.testing.assert_close(difference, torch.stack(padded))


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_gaps_are_the_largest_pairwise_differences_in_units_of_the_spread(seed: int) -> None:
    x = unit(30, DIM, seed=seed)
    values = codes(30, 3, seed)
    texts = unit(4, DIM, seed=seed + 1)
    gaps = gap(x, values).of_texts(texts)
    for q, text in enumerate(texts):
        differences = naive_differences(x, values, torch.zeros(30))
        expected = max(abs(float(d @ text)) for d in differences) / float((x @ text).std())
        assert float(gaps[0, q]) == pytest.approx(expected)


def test_the_gap_between_normal_scores_determines_the_share_at_the_top() -> None:
    """With scores N(0, 1) and N(delta, 1) in two groups, the gap is delta over their common
    deviation."""
    draw = torch.Generator().manual_seed(0)
    delta = 0.6
    n = 100_000
    values = torch.arange(n) % 2
    x = torch.randn(n, 2, generator=draw, dtype=torch.float64)
    x[:, 0] += delta * values
    text = torch.tensor([[1.0, 0.0]])
    measured_gap = float(gap(x, values).of_texts(text)[0, 0])
    assert measured_gap == pytest.approx(delta / (1 + delta**2 / 4) ** 0.5, abs=0.02)
    top = x[:, 0].topk(n // 10).indices
    cut = float(x[top, 0].min())
    share = norm.sf(cut - delta) / (norm.sf(cut) + norm.sf(cut - delta))
    assert float(values[top].double().mean()) == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("concepts", [2, 3, 20])
def test_resampled_classes_have_the_variance_of_their_mean(concepts: int) -> None:
    """For any number of classes, the variance over resamples is the variance of a mean, s^2 / n."""
    x = normal(2 * concepts, DIM, seed=concepts)
    values = torch.arange(2).repeat(concepts)
    classes = torch.arange(concepts).repeat_interleave(2)
    pool = gap(x, values, classes, resamples=4000, resamples_classes=True)
    pair_differences = x[0::2] - x[1::2]
    torch.testing.assert_close(pool.differences[0, 0], pair_differences.mean(0))
    torch.testing.assert_close(
        pool.differences[1:, 0].var(0), pair_differences.var(0) / concepts, rtol=0.12, atol=0
    )
    torn = gap(x, values, classes, resamples=4000)
    if concepts == 20:
        assert (
            float((torn.differences[1:, 0].var(0) / (pair_differences.var(0) / concepts)).mean())
            > 1.5
        )


def test_a_single_value_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match=r"\[\[4\]\]"):
        gap(unit(4, DIM, seed=0), torch.zeros(4, dtype=torch.long))
