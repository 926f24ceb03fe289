"""What the losses refuse, and with which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from slow_losses import unit_rows
from torch import Tensor

from vldebias import losses
from vldebias.errors import InvalidInputError

X = unit_rows(4, 3)
FUNCTIONS: list[Callable[..., Tensor]] = [
    losses.info_nce,
    losses.rince,
    losses.debiased_contrastive,
    losses.hard_negative_contrastive,
    lambda x, y, **options: losses.spread(x, y, torch.arange(len(x)), **options),
    losses.sigmoid,
    lambda x, y, temperature, **options: losses.GlobalContrastiveLoss(9, temperature=temperature, **options)(
        x, y, torch.arange(len(x))
    ),
]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (X, X[:3], r"one shape, row i belonging with row i, got \(4, 3\) and \(3, 3\)"),
        (X[0], X[0], r"image_features: expected shape \(n, d\), got \(3,\)"),
        (X, X.float(), r"one dtype, got torch.float64 and torch.float32"),
        (X.long(), X.long(), r"image_features: expected floating point features, got torch.int64"),
        (X[:1], X[:1], r"expected n >= 2 rows, since the other rows are the negatives, got n = 1"),
    ],
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_features_that_do_not_fit(function: Callable[..., Tensor], x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        function(x, y, temperature=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature: expected a positive number, got 0.0"),
        ({"temperature": 0.1, "reduction": "sum"}, "reduction: expected one of 'mean', 'none', got 'sum'"),
        ({"temperature": 0.1, "chunk_size": 0}, "chunk_size: expected a positive number of rows or None, got 0"),
    ],
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_options_that_no_loss_takes(function: Callable[..., Tensor], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        function(X, X, **options)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (losses.rince, {"q": 0.0}, r"q: expected a number in \(0, 1\], got 0.0"),
        (losses.rince, {"q": 1.1}, r"q: expected a number in \(0, 1\], got 1.1"),
        (losses.rince, {"lam": 0.0}, r"lam: expected a number in \(0, 1\], got 0.0"),
        (losses.debiased_contrastive, {"tau_plus": 1.0}, r"tau_plus: expected a number in \[0, 1\), got 1.0"),
        (losses.debiased_contrastive, {"tau_plus": -0.1}, r"tau_plus: expected a number in \[0, 1\), got -0.1"),
        (losses.debiased_contrastive, {"floor": -1.0}, r"floor: expected None .* or a number in \[0, inf\), got -1.0"),
        (losses.debiased_contrastive, {"below_floor": "skip"}, "below_floor: expected one of 'clamp', 'uncorrected'"),
        (losses.debiased_contrastive, {"positives": X}, r"positives: expected shape \(4, M, 3\) with M >= 1"),
        (losses.debiased_contrastive, {"positives": X[:, :0, None]}, r"positives: expected shape \(4, M, 3\)"),
        (losses.hard_negative_contrastive, {"beta": -1.0}, r"beta: expected a number in \[0, inf\), got -1.0"),
        (losses.hard_negative_contrastive, {"form": "kl"}, "form: expected one of 'nce', 'jsd', got 'kl'"),
        (losses.sigmoid, {"bias": torch.zeros(2)}, r"bias: expected a number or a tensor of shape \(\)"),
        (losses.info_nce, {"temperature": torch.ones(1)}, r"temperature: .* tensor of shape \(\), got .*\(1,\)"),
        (losses.info_nce, {"temperature": torch.tensor(1)}, "temperature: .* floating point .* torch.int64"),
    ],
)
def test_settings_outside_their_interval(function: Callable[..., Tensor], options: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        function(X, X, **({"temperature": 0.1} | options))


@pytest.mark.parametrize("labels", [torch.zeros(4), torch.zeros(3, dtype=torch.long), torch.zeros(4, 1).long(), [0, 1]])
def test_labels_that_do_not_fit(labels: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"labels: expected an integer tensor of shape \(4,\)"):
        losses.spread(X, X, labels, temperature=0.1)
    with pytest.raises(InvalidInputError, match=r"alpha: expected a number in \[0, 1\], got 1.5"):
        losses.spread(X, X, torch.zeros(4).long(), temperature=0.1, alpha=1.5)


def test_something_that_is_no_tensor() -> None:
    with pytest.raises(InvalidInputError, match=r"text_features: expected a tensor \(n, d\), got ndarray"):
        losses.info_nce(X, X.numpy(), temperature=0.1)  # type: ignore[arg-type]
