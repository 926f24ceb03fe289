"""RINCE where its exponents are large, and InfoNCE where its losses are: the digits that float32 and float64 keep."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from slow_losses import unit_rows
from torch import Tensor

from vldebias import losses

T, N = 0.01, 8
# q = 1 at the temperature of CLIP is where it says that pairs that do not fit have no gradient
pytestmark = pytest.mark.filterwarnings("ignore:rince. q / temperature is 100")


def _pairs(kind: str) -> tuple[Tensor, Tensor]:
    x, y = unit_rows(N, 16, seed=1), unit_rows(N, 16, seed=2)
    return {"random": (x, y), "perfect": (x, x.clone()), "opposite": (x, -x)}[kind]


def test_hard_pairs_keep_the_digits_of_float64() -> None:
    """Losses above 20, where torch's softplus would leave out the last e^-20."""
    x, y = _pairs("opposite")
    logits = x @ y.T / 0.05
    expected = (torch.logsumexp(logits, 1) + torch.logsumexp(logits, 0)) / 2 - logits.diagonal()
    assert (expected > 20).any()
    torch.testing.assert_close(losses.info_nce(x, y, temperature=0.05, reduction="none"), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("q", [0.5, 1.0])
def test_the_scale_of_rince_changes_no_direction(q: float) -> None:
    """Above the limit of float32 the loss is a constant multiple of the equation's, e^{30 - q/t}, as are its gradients,
    for a learned temperature too.
    """
    x, y = _pairs("random")

    def derived(dtype: torch.dtype) -> list[Tensor]:
        rows, t = x.to(dtype).requires_grad_(), torch.tensor(T, dtype=dtype, requires_grad=True)
        value = losses.rince(rows, y.to(dtype), temperature=t, q=q, lam=0.1)
        return [value.detach().double(), *(one.double() for one in torch.autograd.grad(value, (rows, t)))]

    for ours, exact in zip(derived(torch.float32), derived(torch.float64), strict=True):
        torch.testing.assert_close(ours, exact * math.exp(30 - q / T), rtol=1e-3, atol=1e-3)


def test_the_gradient_of_rince_survives_a_square_in_float32() -> None:
    """Adam and gradient clipping square it."""
    x = _pairs("perfect")[0].float().requires_grad_()
    (gradient,) = torch.autograd.grad(losses.rince(x, x.detach(), temperature=T, q=1.0), x)
    assert gradient.abs().max() > 0
    assert torch.isfinite(gradient.square().sum())


def test_rince_learns_at_the_temperature_of_clip() -> None:
    """Not only finite: two matrices of random rows find each other by Adam, with the warm-up of the thesis."""
    x, y = (features.float().requires_grad_() for features in _pairs("random"))
    optimizer = torch.optim.Adam([x, y], lr=0.02)
    unit = functools.partial(torch.nn.functional.normalize, dim=1)

    def hits() -> float:
        return float((unit(x) @ unit(y).T).argmax(1).eq(torch.arange(N)).float().mean())

    assert hits() < 0.5
    for step in range(100):
        optimizer.zero_grad()
        losses.rince(unit(x), unit(y), temperature=T, q=losses.q_warmup(step, 100), lam=0.01).backward()
        optimizer.step()
    assert hits() == 1.0
