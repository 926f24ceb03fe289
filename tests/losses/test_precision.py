"""The losses at CLIP's temperature: finite and right in float32 and half precision, whatever the features."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import pytest
import torch
from slow_losses import unit_rows
from torch import Tensor

from vldebias import losses

T, N = 0.01, 8
LABELS = torch.tensor([0, 1, 0, 1, 2, 2, 0, 1])

LOSSES: dict[str, Callable[..., Tensor]] = {
    "info_nce": losses.info_nce,
    "rince-warm": functools.partial(losses.rince, q=0.01),
    "rince": functools.partial(losses.rince, q=0.5),
    "rince-symmetric": functools.partial(losses.rince, q=1.0),
    "dcl": losses.debiased_contrastive,
    "dcl-uncorrected": functools.partial(losses.debiased_contrastive, tau_plus=0.5, below_floor="uncorrected"),
    "dcl-zero": functools.partial(losses.debiased_contrastive, tau_plus=0.5, floor=0.0),
    "hcl": functools.partial(losses.hard_negative_contrastive, beta=2.0),
    "hcl-jsd": functools.partial(losses.hard_negative_contrastive, form="jsd", beta=1.0),
    "spread": lambda x, y, **options: losses.spread(x, y, LABELS, **options),
    "sigmoid": losses.sigmoid,
}


def _pairs(kind: str) -> tuple[Tensor, Tensor]:
    x, y = unit_rows(N, 16, seed=1), unit_rows(N, 16, seed=2)
    same = x[:1].expand(N, -1).clone()
    return {"random": (x, y), "perfect": (x, x.clone()), "opposite": (x, -x), "collapsed": (same, same.clone())}[kind]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["random", "perfect", "opposite", "collapsed"])
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient_are_finite_at_the_temperature_of_clip(name: str, kind: str, dtype: torch.dtype) -> None:
    x, y = (features.to(dtype).requires_grad_() for features in _pairs(kind))
    t = torch.tensor(T, requires_grad=True)
    for within_view in (False, True):
        value = LOSSES[name](x, y, temperature=t, within_view=within_view)
        assert value.dtype == torch.float32
        assert torch.isfinite(value)
        for gradient in torch.autograd.grad(value, (x, y, t)):
            # float16 holds no gradient above 65504; it gets there through the scaler, not through the loss
            assert torch.isfinite(gradient).all() or (dtype == torch.float16 and name.startswith("rince"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in LOSSES if name not in ("rince", "rince-symmetric")])
def test_half_precision_features_cost_no_precision_of_the_loss(name: str, dtype: torch.dtype) -> None:
    """The value of the rounded features to 1e-4, where logits rounded to bfloat16 would be off by .25."""
    x, y = (features.to(dtype) for features in _pairs("random"))
    exact = LOSSES[name](x.double(), y.double(), temperature=T, reduction="none")
    ours = LOSSES[name](x, y, temperature=T, reduction="none")
    torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
def test_the_widest_gap_of_two_scores_is_finite(name: str) -> None:
    """Pairs at cosine 1 and negatives at -1: e^{200} between them, in both directions of the subtraction."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    for y in (x.detach(), -x.detach()):
        loss = losses.spread if name == "spread" else LOSSES[name]
        extra = (torch.arange(2),) if name == "spread" else ()
        value = loss(x, y, *extra, temperature=T, within_view=False)
        (gradient,) = torch.autograd.grad(value, x)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()


def test_hard_pairs_keep_the_digits_of_float64() -> None:
    """Losses above 20, where torch's softplus would leave out the last e^-20."""
    x, y = _pairs("opposite")
    logits = x @ y.T / 0.05
    expected = (torch.logsumexp(logits, 1) + torch.logsumexp(logits, 0)) / 2 - logits.diagonal()
    assert (expected > 20).any()
    torch.testing.assert_close(losses.info_nce(x, y, temperature=0.05, reduction="none"), expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("name", LOSSES)
def test_autocast_leaves_the_loss_alone(name: str) -> None:
    x, y = (features.float() for features in _pairs("random"))
    plain = LOSSES[name](x, y, temperature=T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (x @ y.T).dtype == torch.bfloat16  # the law has something to hold against
        assert torch.equal(LOSSES[name](x, y, temperature=T), plain)


@pytest.mark.parametrize("q", [0.5, 1.0])
def test_the_scale_of_rince_changes_no_direction(q: float) -> None:
    """Above the limit of float32 the loss is a constant multiple of the equation's, e^{30 - q/t}."""
    x, y = _pairs("random")
    exact_x = x.clone().requires_grad_()
    exact = losses.rince(exact_x, y, temperature=T, q=q, lam=0.1)
    (exact_gradient,) = torch.autograd.grad(exact, exact_x)
    single_x = x.float().requires_grad_()
    single = losses.rince(single_x, y.float(), temperature=T, q=q, lam=0.1)
    (gradient,) = torch.autograd.grad(single, single_x)
    constant = torch.exp(torch.tensor(30 - q / T, dtype=torch.float64))
    torch.testing.assert_close(single.double(), exact * constant, rtol=1e-4, atol=0)
    torch.testing.assert_close(gradient.double(), exact_gradient * constant, rtol=1e-3, atol=1e-3)


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


@pytest.mark.parametrize("q", [0.5, 1.0])
def test_the_scale_of_rince_is_a_constant_to_the_temperature_too(q: float) -> None:
    """A learned temperature gets the gradient of the equation times that constant, not that of the constant."""
    x, y = _pairs("random")
    t = torch.tensor(T, requires_grad=True)
    (ours,) = torch.autograd.grad(losses.rince(x.float(), y.float(), temperature=t, q=q, lam=0.1), t)
    exact_t = torch.tensor(T, dtype=torch.float64, requires_grad=True)
    (exact,) = torch.autograd.grad(losses.rince(x, y, temperature=exact_t, q=q, lam=0.1), exact_t)
    assert float(ours) == pytest.approx(float(exact) * math.exp(30 - q / T), rel=1e-3)
