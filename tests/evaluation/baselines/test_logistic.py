"""Logistic regression: scikit-learn is the oracle, and what does not change the problem does not change the answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from vldebias.errors import VldebiasWarning
from vldebias.evaluation.baselines import logistic
from vldebias.evaluation.baselines.logistic import Coefficients, Scaling, logistic_regression

TIGHT = 1e-8


def data(classes: int, n: int = 90, dim: int = 6) -> tuple[Tensor, np.ndarray]:
    """Classes that overlap, in columns of unequal scale and with a mean that is not 0."""
    draw = np.random.default_rng(classes)
    labels = draw.integers(0, classes, n)
    centres = draw.normal(size=(classes, dim))
    scales = np.array([0.1, 0.5, 1, 2, 3, 1.0])[:dim]
    return torch.from_numpy((centres[labels] + 1.5 * draw.normal(size=(n, dim)) + 1) * scales), labels


def fit(features: Tensor, labels: np.ndarray, classes: int, **options: Any) -> Coefficients:
    return logistic_regression(features, labels, classes, **({"c": 0.7, "tolerance": TIGHT} | options))


def assert_same(ours: Coefficients, weight: Any, bias: Any, tolerance: float = 1e-6) -> None:
    np.testing.assert_allclose(ours.weight.numpy(), weight, atol=tolerance, rtol=tolerance)
    np.testing.assert_allclose(ours.bias.numpy(), bias, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("c", "counted"), [(0.01, True), (1.0, False), (50.0, True)])
@pytest.mark.parametrize("classes", [2, 3])
def test_l2_is_that_of_scikit_learn(classes: int, c: float, counted: bool) -> None:
    x, y = data(classes)
    counts = np.random.default_rng(0).integers(1, 5, len(y)) if counted else None
    theirs = LogisticRegression(C=c, tol=1e-10, max_iter=20000, solver="newton-cg")
    theirs.fit(x.numpy(), y, sample_weight=counts)
    ours = fit(x, y, classes, c=c, counts=counts)
    bias = theirs.intercept_
    if classes > 2:  # a bias that all classes share says nothing, and nothing penalises it
        ours = Coefficients(ours.weight, ours.bias - ours.bias.mean())
        bias = bias - bias.mean()
    assert_same(ours, theirs.coef_, bias)


@pytest.mark.parametrize("c", [0.02, 1.0])
def test_l1_is_that_of_scikit_learn(c: float) -> None:
    x, y = data(2)
    theirs = LogisticRegression(C=c, l1_ratio=1.0, tol=1e-9, max_iter=100000, solver="saga", random_state=0)
    theirs.fit(x.numpy(), y)
    ours = fit(x, y, 2, c=c, penalty="l1")
    assert_same(ours, theirs.coef_, theirs.intercept_, 1e-4)
    assert (theirs.coef_ == 0).any() == (c == 0.02)
    np.testing.assert_array_equal(ours.weight.numpy() == 0, theirs.coef_ == 0)


def test_l1_of_three_classes_is_at_a_minimum() -> None:
    """Optimality: |gradient| = 1 / c where a weight is not 0, at most that where it is."""
    x, y = data(3)
    ours = fit(x, y, 3, c=0.05, penalty="l1")
    p = torch.softmax(x @ ours.weight.T + ours.bias, 1) - torch.nn.functional.one_hot(torch.from_numpy(y), 3)
    gradient, active = p.T @ x, ours.weight != 0
    assert 0 < int(active.sum()) < active.numel()
    torch.testing.assert_close(gradient[active], -torch.sign(ours.weight[active]) / 0.05, atol=1e-5, rtol=0)
    assert bool((gradient[~active].abs() <= 20 + 1e-5).all())
    assert float(p.sum(0).abs().max()) < 1e-6


@pytest.mark.parametrize("classes", [2, 3])
def test_a_strong_l1_penalty_leaves_the_shares_of_the_classes(classes: int) -> None:
    x, y = data(classes)
    ours = fit(x, y, classes, c=1e-4, penalty="l1")
    assert not ours.weight.any()
    _, bias = ours.head()
    np.testing.assert_allclose(torch.softmax(bias, 0).numpy(), np.bincount(y) / len(y), atol=1e-6)


@pytest.mark.parametrize("penalty", ["l1", "l2"])
@pytest.mark.parametrize("classes", [2, 3])
class TestWhatDoesNotMatter:
    def test_counts_are_copies(self, classes: int, penalty: Any) -> None:
        x, y = data(classes)
        counts = np.random.default_rng(1).integers(1, 4, len(y))
        copies = fit(x.repeat_interleave(torch.from_numpy(counts), 0), np.repeat(y, counts), classes, penalty=penalty)
        assert_same(fit(x, y, classes, penalty=penalty, counts=counts), copies.weight, _pinned(copies, classes))

    def test_the_start(self, classes: int, penalty: Any) -> None:
        x, y = data(classes)
        cold = fit(x, y, classes, penalty=penalty)
        far = Coefficients(torch.randn(cold.weight.shape).double(), torch.zeros(cold.bias.shape).double())
        assert_same(fit(x, y, classes, penalty=penalty, start=far), cold.weight, _pinned(cold, classes))

    def test_the_chunks(self, classes: int, penalty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        x, y = data(classes)
        whole = fit(x, y, classes, penalty=penalty, scaling=Scaling.standard(x), counts=np.arange(len(y)) % 3 + 1)
        monkeypatch.setattr(logistic, "_CHUNK", 7)
        parts = fit(x, y, classes, penalty=penalty, scaling=Scaling.standard(x), counts=np.arange(len(y)) % 3 + 1)
        assert_same(parts, whole.weight, _pinned(whole, classes))

    def test_folding_the_scaling_in(self, classes: int, penalty: Any) -> None:
        x, y = data(classes)
        scaling = Scaling.standard(x)
        scaled = fit((x - scaling.shift) / scaling.scale, y, classes, penalty=penalty)
        folded = fit(x, y, classes, penalty=penalty, scaling=scaling)
        assert_same(folded, scaled.weight, _pinned(scaled, classes))
        raw = folded.unscaled(scaling)
        logits = (x - scaling.shift) / scaling.scale @ folded.weight.T + folded.bias
        torch.testing.assert_close(x @ raw.weight.T + raw.bias, logits)


def _pinned(coefficients: Coefficients, classes: int) -> Tensor:
    """The bias: L-BFGS keeps the mean over classes at its start, which is 0 in every test here."""
    assert classes == 2 or float(coefficients.bias.sum().abs()) < 1e-9
    return coefficients.bias


def test_standard_scaling_is_that_of_numpy_and_keeps_constant_columns() -> None:
    x = torch.cat([data(2)[0], torch.full((90, 1), 3.0).double()], 1)
    scaling = Scaling.standard(x)
    np.testing.assert_allclose(scaling.shift.numpy(), x.numpy().mean(0))
    np.testing.assert_allclose(scaling.scale.numpy(), [*x.numpy()[:, :-1].std(0), 1.0])


def test_half_precision_is_read_as_it_is() -> None:
    x, y = data(2)
    half = x.half()
    double = fit(half.double(), y, 2)
    assert_same(fit(half, y, 2), double.weight, double.bias)


def test_the_head_of_two_classes_has_the_probabilities_of_the_sigmoid() -> None:
    x, y = data(2)
    found = fit(x, y, 2)
    weight, bias = found.head()
    logits = x @ weight.T + bias
    torch.testing.assert_close(logits.sum(1), torch.zeros(90).double())
    sigmoid = torch.sigmoid(x @ found.weight[0] + found.bias)
    torch.testing.assert_close(torch.softmax(logits, 1)[:, 1], sigmoid)


def test_stopping_too_early_warns() -> None:
    x, y = data(2)
    with pytest.warns(VldebiasWarning, match=r"c = 100.*is left after 3 iterations.*Choose a smaller c"):
        fit(x, y, 2, c=100.0, max_iterations=3)
