"""Every loss is its equation: value, per-sample value and gradients against the loops of slow_losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import slow_losses as slow
import torch
from torch import Tensor

from vldebias import losses

N, D = 6, 4
LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
POSITIVES = slow.unit_rows(N * 3, D, seed=9).reshape(N, 3, D)


LABELLED = ("spread", "generalized_cross_entropy")
CASES: list[tuple[str, dict[str, Any]]] = [
    ("info_nce", {}),
    *(("rince", {"q": q, "lam": lam}) for q, lam in ((0.01, 0.01), (0.5, 0.01), (1.0, 0.3), (0.3, 1.0))),
    ("debiased_contrastive", {"tau_plus": 0.1}),
    ("debiased_contrastive", {"tau_plus": 0.6}),
    ("debiased_contrastive", {"tau_plus": 0.6, "floor": 0.3}),
    ("debiased_contrastive", {"tau_plus": 0.2, "positives": POSITIVES}),
    *(("hard_negative_contrastive", {"beta": b, "tau_plus": p}) for b, p in ((0.0, 0.1), (1.0, 0.1), (0.5, 0.7))),
    ("hard_negative_contrastive", {"beta": 0.7, "tau_plus": 0.2, "positives": POSITIVES}),
    ("hard_negative_contrastive", {"beta": 0.5, "tau_plus": 0.6, "floor": 0.3}),
    *(("spread", {"alpha": alpha}) for alpha in (0.0, 0.4, 1.0)),
    *(
        ("generalized_cross_entropy", {"q": q, "smoothing": smoothing})
        for q, smoothing in ((0.0, 0.0), (0.7, 0.0), (1.0, 0.0), (0.0, 0.2), (0.5, 0.3))
    ),
]


def _equation(name: str, given: dict[str, Any], within: bool, x: Tensor, y: Tensor, t: Tensor) -> Tensor:
    if name in LABELLED:
        labelled = slow.spread if name == "spread" else slow.gce
        return labelled(x, y, LABELS.tolist(), t, *given.values(), within)
    row = slow.info_nce_row
    if name == "rince":
        row = slow.rince_row(**given)
    elif name != "info_nce":
        floor = given.get("floor")
        least = torch.exp(-1 / t) if floor is None else torch.tensor(floor, dtype=t.dtype)
        row = slow.hcl_row(given["tau_plus"], given.get("beta", 0.0), lambda: least)
    return slow.symmetric(row, x, y, t, within_view=within, positives=given.get("positives"))


def _inputs(t: float) -> tuple[Tensor, Tensor, Tensor]:
    """Half of the pairs fit, so that some rows are below the floor of g and some are not."""
    x, y = slow.unit_rows(N, D, seed=1), slow.unit_rows(N, D, seed=2)
    y[::2] = torch.nn.functional.normalize(3 * x[::2] + y[::2], dim=1)
    return x.requires_grad_(), y.requires_grad_(), torch.tensor(t, dtype=torch.float64, requires_grad=True)


def _evaluated(function: Callable[..., Tensor], t: float) -> tuple[Tensor, list[Tensor]]:
    """Per-sample losses, and the gradients of a weighted sum of them for features and temperature."""
    inputs = _inputs(t)
    values = function(*inputs)
    weights = torch.linspace(0.5, 1.5, len(values), dtype=torch.float64)
    return values.detach(), list(torch.autograd.grad((values * weights).sum(), inputs))


@pytest.mark.parametrize("t", [0.07, 0.5])
@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_loss_is_its_equation(name: str, given: dict[str, Any], within: bool, t: float) -> None:
    expected, expected_gradients = _evaluated(functools.partial(_equation, name, given, within), t)
    labels = (LABELS,) if name in LABELLED else ()
    for chunk_size in (None, 4):
        how = {"reduction": "none", "chunk_size": chunk_size, "within_view": within, **given}
        values, gradients = _evaluated(
            lambda x, y, t, how=how: getattr(losses, name)(x, y, *labels, temperature=t, **how), t
        )
        torch.testing.assert_close(values, expected, rtol=1e-9, atol=1e-9)
        for ours, reference in zip(gradients, expected_gradients, strict=True):
            torch.testing.assert_close(ours, reference, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("bias", [-10.0, 0.5])
def test_the_sigmoid_loss_is_its_equation(bias: float, chunk_size: int | None) -> None:
    inputs = (*_inputs(0.3), torch.tensor(bias, dtype=torch.float64, requires_grad=True))
    expected = slow.sigmoid(*inputs)
    ours = losses.sigmoid(*inputs[:2], temperature=inputs[2], bias=inputs[3], chunk_size=chunk_size)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    for got, want in zip(torch.autograd.grad(ours, inputs), torch.autograd.grad(expected, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("loss", ["debiased_contrastive", "hard_negative_contrastive"])
def test_the_positives_get_their_gradient(loss: str, chunk_size: int | None) -> None:
    """The M samples are encoded too: by finite differences, dense and in blocks."""
    x, y = (value.detach() for value in _inputs(0.5)[:2])
    positives = POSITIVES.clone().requires_grad_()
    function = functools.partial(getattr(losses, loss), tau_plus=0.05, temperature=0.5, chunk_size=chunk_size)
    assert torch.autograd.gradcheck(lambda v: function(x, y, positives=v), positives)
    (gradient,) = torch.autograd.grad(function(x, y, positives=positives), positives)
    assert (gradient.abs() > 1e-6).any(dim=(1, 2)).all()
