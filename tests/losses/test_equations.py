"""Every loss is its equation: value, per-sample value and gradients against the loops of slow_losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import slow_losses as slow
import torch
from torch import Tensor

from vldebias import losses

N, D = 6, 4
LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
POSITIVES = slow.unit_rows(N * 3, D, seed=9).reshape(N, 3, D)


@dataclass(frozen=True)
class Case:
    name: str
    fast: Callable[..., Tensor]
    slow: Callable[[Tensor, Tensor, Tensor], Tensor]


def _floor(t: Tensor, floor: float | None) -> Callable[[], Tensor]:
    return lambda: torch.exp(-1 / t) if floor is None else torch.tensor(floor, dtype=t.dtype)


SOFTMAX: list[tuple[str, dict[str, Any]]] = [
    ("info_nce", {}),
    *(("rince", {"q": q, "lam": lam}) for q, lam in ((0.01, 0.01), (0.5, 0.01), (1.0, 0.3), (0.3, 1.0))),
    ("debiased_contrastive", {"tau_plus": 0.1}),
    ("debiased_contrastive", {"tau_plus": 0.6}),
    ("debiased_contrastive", {"tau_plus": 0.6, "floor": 0.3}),
    ("debiased_contrastive", {"tau_plus": 0.2, "positives": POSITIVES}),
    *(
        ("hard_negative_contrastive", settings)
        for settings in (
            {"beta": 0.0, "tau_plus": 0.1},
            {"beta": 1.0, "tau_plus": 0.1},
            {"beta": 0.5, "tau_plus": 0.7},
            {"beta": 0.7, "tau_plus": 0.2, "positives": POSITIVES},
            {"beta": 0.5, "tau_plus": 0.6, "floor": 0.3},
        )
    ),
]


def _softmax_row(name: str, settings: dict[str, Any], t: Tensor) -> slow.Row:
    if name == "info_nce":
        return slow.info_nce_row
    if name == "rince":
        return slow.rince_row(**settings)
    return slow.hcl_row(settings["tau_plus"], settings.get("beta", 0.0), _floor(t, settings.get("floor")))


def _softmax_case(name: str, settings: dict[str, Any], within: bool) -> Case:
    told = "-".join(key if key == "positives" else f"{value}" for key, value in settings.items())
    positives = settings.get("positives")
    return Case(
        f"{name}-{told}{'-within' if within else ''}",
        functools.partial(getattr(losses, name), within_view=within, **settings),
        lambda x, y, t: slow.symmetric(
            _softmax_row(name, settings, t), x, y, t, within_view=within, positives=positives
        ),
    )


def _spread_cases(within: bool) -> list[Case]:
    return [
        Case(
            f"spread-{alpha}{'-within' if within else ''}",
            lambda x, y, a=alpha, **options: losses.spread(x, y, LABELS, alpha=a, within_view=within, **options),
            lambda x, y, t, a=alpha: slow.spread(x, y, LABELS.tolist(), t, a, within),
        )
        for alpha in (0.0, 0.4, 1.0)
    ]


def _gce_cases(within: bool) -> list[Case]:
    return [
        Case(
            f"gce-{q}-{smoothing}{'-within' if within else ''}",
            lambda x, y, own=(q, smoothing), **options: losses.generalized_cross_entropy(
                x, y, LABELS, q=own[0], smoothing=own[1], within_view=within, **options
            ),
            lambda x, y, t, own=(q, smoothing): slow.gce(x, y, LABELS.tolist(), t, *own, within),
        )
        for q, smoothing in ((0.0, 0.0), (0.7, 0.0), (1.0, 0.0), (0.0, 0.2), (0.5, 0.3))
    ]


CASES = [_softmax_case(*one, within) for within in (False, True) for one in SOFTMAX]
CASES += _spread_cases(False) + _spread_cases(True) + _gce_cases(False) + _gce_cases(True)


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
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_loss_is_its_equation(case: Case, t: float) -> None:
    expected, expected_gradients = _evaluated(case.slow, t)
    for chunk_size in (None, 4):
        fast = functools.partial(case.fast, reduction="none", chunk_size=chunk_size)
        values, gradients = _evaluated(lambda x, y, t, fast=fast: fast(x, y, temperature=t), t)
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
