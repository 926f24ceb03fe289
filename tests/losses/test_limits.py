"""Laws between the losses: what becomes what when a setting goes to its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from slow_losses import unit_rows
from torch import Tensor

from vldebias import losses

T = 0.1


def _features(n: int = 7, d: int = 5) -> tuple[Tensor, Tensor]:
    x = unit_rows(n, d, seed=3)
    return x.requires_grad_(), torch.nn.functional.normalize(
        x.detach() + unit_rows(n, d, seed=4), dim=1
    ).requires_grad_()


def _value_and_gradient(loss: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    x, y = _features()
    value = loss(x, y)
    return [value.detach(), *torch.autograd.grad(value, (x, y))]


def _info_nce(**options: object) -> list[Tensor]:
    return _value_and_gradient(lambda x, y: losses.info_nce(x, y, temperature=T, **options))


def _assert_equal(ours: list[Tensor], expected: list[Tensor], atol: float = 1e-12) -> None:
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=atol, atol=atol)


@pytest.mark.parametrize("lam", [0.01, 0.5, 1.0])
def test_rince_goes_to_info_nce_plus_log_lam(lam: float) -> None:
    """Lemma 5.2, in value and gradient, and at the rate of q."""
    value, *gradients = _info_nce()
    expected = [value + torch.log(torch.tensor(lam, dtype=value.dtype)), *gradients]
    errors = []
    for q in (1e-3, 1e-4, 1e-6):
        ours = _value_and_gradient(lambda x, y, q=q: losses.rince(x, y, temperature=T, q=q, lam=lam))
        errors.append(max(float((a - b).abs().max()) for a, b in zip(ours, expected, strict=True)))
    assert errors[2] < 1e-3
    assert errors[0] > 5 * errors[1] > 25 * errors[2]


def test_rince_with_a_tiny_q_keeps_its_digits_in_float32() -> None:
    """e^{q s} - 1 is 1e-5 here; subtracted as exponentials and divided by q it would keep two digits."""
    x, y = (features.detach() for features in _features())
    ours = losses.rince(x.float(), y.float(), temperature=T, q=1e-6, lam=0.5)
    exact = losses.rince(x, y, temperature=T, q=1e-6, lam=0.5)
    assert float(ours) == pytest.approx(float(exact), abs=1e-6)


@pytest.mark.parametrize("within_view", [False, True])
def test_dcl_without_false_negatives_is_info_nce(within_view: bool) -> None:
    """N g is then the sum over the negatives, in both of their counts n - 1 and 2 (n - 1)."""
    dcl = _value_and_gradient(
        lambda x, y: losses.debiased_contrastive(x, y, temperature=T, tau_plus=0.0, within_view=within_view)
    )
    _assert_equal(dcl, _info_nce(within_view=within_view))


def test_hcl_with_large_beta_sees_the_hardest_negative() -> None:
    """Proposition 4.3 on a finite batch."""
    x, y = (features.detach() for features in _features())
    scores = x @ y.T / T
    hidden = scores.masked_fill(torch.eye(len(x), dtype=torch.bool), -torch.inf)
    count = torch.tensor(len(x) - 1.0, dtype=torch.float64)
    rows = [torch.nn.functional.softplus(count.log() + hidden.amax(k) - scores.diagonal()) for k in (0, 1)]
    ours = losses.hard_negative_contrastive(x, y, temperature=T, tau_plus=0.0, beta=200.0, reduction="none")
    torch.testing.assert_close(ours, (rows[0] + rows[1]) / 2, rtol=1e-6, atol=1e-6)


def test_a_zero_floor_serves_features_without_norm() -> None:
    """Their g may lie below e^{-1/t}, where the default floor would raise it; negative estimates are cut at 0."""
    x, y = (0.1 * features.detach() - 2 for features in _features())
    options = {"temperature": 1.0, "reduction": "none"}
    low = losses.debiased_contrastive(x, -y, tau_plus=0.05, floor=0.0, **options)
    raised = losses.debiased_contrastive(x, -y, tau_plus=0.05, **options)
    assert (low < raised).all()
    x, y = (features.detach() for features in _features())
    nothing_left = losses.debiased_contrastive(x, x, tau_plus=0.99, floor=0.0, **options)
    assert (nothing_left == 0).any()
    assert torch.isfinite(nothing_left).all()


def test_spread_of_one_class_without_attraction_is_info_nce() -> None:
    labels = torch.zeros(7, dtype=torch.long)
    for within in (False, True):
        ours = _value_and_gradient(
            lambda x, y, w=within: losses.spread(x, y, labels, temperature=T, alpha=0.0, within_view=w)
        )
        _assert_equal(ours, _info_nce(within_view=within))


def test_repulsion_pulls_a_collapsed_class_apart_and_attraction_does_not() -> None:
    """The reason of the loss: at a collapsed class, a little spread lowers L_repel and raises L_attract."""
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    centre = torch.eye(2, dtype=torch.float64)[labels]
    noise = 0.05 * unit_rows(6, 2, seed=5)
    spread_out = torch.nn.functional.normalize(centre + noise, dim=1)
    for alpha, better in ((0.0, True), (1.0, False)):
        collapsed, apart = (losses.spread(z, z, labels, temperature=0.5, alpha=alpha) for z in (centre, spread_out))
        assert (apart < collapsed) == better


def _gce(captions: Tensor, **options: object) -> list[Tensor]:
    return _value_and_gradient(lambda x, y: losses.generalized_cross_entropy(x, y, captions, temperature=T, **options))


@pytest.mark.parametrize("within_view", [False, True])
def test_gce_of_captions_that_all_differ_is_info_nce_at_q_0(within_view: bool) -> None:
    """Across the views. Within one, the own row is no negative of itself, and its caption has a row less."""
    ours = _gce(torch.arange(7), q=0.0, within_view=within_view)
    if not within_view:
        _assert_equal(ours, _info_nce())
    _assert_equal(_gce(torch.arange(7), q=1e-9, within_view=within_view), ours, atol=1e-6)


def test_gce_pushes_no_image_away_from_its_own_words() -> None:
    """Two rows that say the same: doubling a row of the batch changes the loss of none, and InfoNCE's of all."""
    x, y = (features.detach() for features in _features())
    twice = [torch.cat([rows, rows[:1]]) for rows in (x, y)]
    captions, options = torch.arange(8) % 7, {"temperature": T, "reduction": "none"}
    ours = losses.generalized_cross_entropy(*twice, captions, **options)
    torch.testing.assert_close(ours[:7], losses.generalized_cross_entropy(x, y, captions[:7], **options))
    assert (losses.info_nce(*twice, **options)[:7] > losses.info_nce(x, y, **options)).all()


def test_gce_is_at_most_1_over_q() -> None:
    x, y = (features.detach() for features in _features())
    for q in (0.3, 1.0):
        worst = losses.generalized_cross_entropy(x, -y, torch.arange(7), q=q, temperature=0.01, reduction="none")
        assert float(worst.max()) <= 1 / q
        assert float(worst.max()) > 0.99 / q


@pytest.mark.parametrize(
    ("temperature", "q", "dtype", "lost"),
    [
        (0.001, 0.5, torch.float32, True),
        (0.01, 1.0, torch.float16, True),
        (0.01, 0.5, torch.float32, False),
        (0.02, 0.9, torch.float16, False),
        (0.01, 1.0, torch.float64, False),
    ],
)
def test_rince_says_where_its_gradient_is_lost(
    temperature: float, q: float, dtype: torch.dtype, lost: bool, recwarn: pytest.WarningsRecorder
) -> None:
    """Told are exactly the settings at which pairs of cosine 0 have none whose square float32 can hold."""
    x = torch.eye(4, 8, dtype=dtype).requires_grad_()
    y = torch.eye(4, 8, dtype=dtype).roll(4, 1)  # every cosine is 0
    (gradient,) = torch.autograd.grad(losses.rince(x, y, temperature=temperature, q=q), x)
    told = [str(one.message) for one in recwarn if "have a gradient of 0" in str(one.message)]
    assert bool(told) == lost
    squared = gradient.float().square() if dtype == torch.float32 else gradient
    assert bool((squared == 0).all()) == lost


def test_rince_says_that_features_are_not_normalised() -> None:
    x, y = (features.detach().float() for features in _features())
    with pytest.warns(UserWarning, match=r"rince: rows of norm 10, expected 1: .* normalise the features"):
        losses.rince(x, 10 * y, temperature=T)
