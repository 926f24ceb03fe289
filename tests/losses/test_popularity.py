"""Popularity: the optimum of eq. 8, its equation 9, and the truth it approximates."""

from __future__ import annotations

import doctest

import pytest
import torch
from slow_losses import unit_rows
from torch import Tensor

from tests.refusals import refused
from vldebias.errors import VldebiasWarning
from vldebias.losses import estimate_popularity, global_contrastive

TAU = 0.2


def _similarity(n: int = 15, seed: int = 1) -> Tensor:
    return unit_rows(n, 3, seed=seed) @ unit_rows(n, 3, seed=seed + 50).T


def popularity_objective(zeta: Tensor, similarity: Tensor, *, temperature: float) -> Tensor:
    """Eq. 8 of Wang et al. (2025), term by term: convex in zeta (n,) and constant along zeta + c."""
    shares = ((similarity - zeta) / temperature).softmax(dim=1)
    weights = shares.diagonal() * (zeta / temperature).exp()  # e^{E_ii/tau} over the sum
    return (zeta - temperature * weights.log()).mean()


def test_the_gradient_vanishes_and_no_direction_leads_lower() -> None:
    e = _similarity()
    found = estimate_popularity(e, temperature=TAU)
    zeta = found.zeta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(popularity_objective(zeta, e, temperature=TAU), zeta)
    assert float(gradient.norm()) <= 2e-12
    assert abs(float(found.zeta.mean())) < 1e-12  # of all constants that could be added
    best = popularity_objective(found.zeta, e, temperature=TAU)
    for seed in range(20):
        step = 0.05 * torch.randn(15, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        assert popularity_objective(found.zeta + step, e, temperature=TAU) > best


def test_equation_9_holds_and_its_matrix_is_doubly_stochastic() -> None:
    k, q = torch.exp(_similarity() / TAU), estimate_popularity(_similarity(), temperature=TAU).log_popularity.exp()
    share = k / (k / q).sum(1, keepdim=True)
    torch.testing.assert_close(share.sum(0), q, rtol=1e-9, atol=0)
    torch.testing.assert_close((share / q).sum(1), torch.ones(15, dtype=torch.float64))


def test_the_true_popularity_is_found_where_it_can_be_computed() -> None:
    """Section 3.3: x in a half disc, y in a square, p(y | x) known. Uniform popularity is much further off."""
    generator = torch.Generator().manual_seed(0)
    n, draws = 300, torch.rand(3000, 2, generator=generator, dtype=torch.float64)
    disc = draws * torch.tensor([2.0, 1.0], dtype=torch.float64) - torch.tensor([1.0, 0.0], dtype=torch.float64)
    x = disc[disc.square().sum(1) <= 1][:n]
    slope = x / TAU
    total = torch.expm1(slope) / slope  # per axis: the integral of e^{x y / tau} over [0, 1], and its inverse
    y = torch.log1p(torch.rand(n, 2, generator=generator, dtype=torch.float64) * torch.expm1(slope)) / slope
    true = (torch.exp(x @ y.T / TAU) / total.prod(1)[:, None]).sum(0).log()
    found = estimate_popularity(x @ y.T, temperature=TAU).log_popularity
    error, uniform_error = (found - true).std(), true.std()
    assert error < 0.2 * uniform_error


def test_a_search_that_ends_too_early_says_so() -> None:
    with pytest.warns(VldebiasWarning, match=r"gradient norm .* after 2 iterations, asked for 1.0e-12"):
        found = estimate_popularity(_similarity(), temperature=0.05, max_iterations=2)
    assert found.iterations == 2
    assert found.gradient_norm > 1e-12


@refused(
    (torch.zeros(3, 4), r"similarity: expected shape \(n, n\) with n >= 2, got \(3, 4\)"),
    (torch.zeros(1, 1), r"similarity: expected shape \(n, n\) with n >= 2"),
    (torch.zeros(3, 3, dtype=torch.long), r"similarity: expected a floating point tensor \(n, n\), got torch.int64"),
    (torch.full((3, 3), torch.nan), "similarity: some values are NaN or infinite"),
)
def test_similarities_that_do_not_fit(similarity: Tensor) -> None:
    estimate_popularity(similarity, temperature=TAU)


@pytest.mark.parametrize("module", [global_contrastive])
def test_the_examples_in_the_docstrings(module: object) -> None:
    result = doctest.testmod(module, extraglobs={"torch": torch})  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0


def test_it_stops_at_the_tolerance_and_tells_the_norm_of_the_gradient() -> None:
    e = _similarity()
    rough, fine = (estimate_popularity(e, temperature=TAU, tolerance=tolerance) for tolerance in (1e-3, 1e-12))
    assert rough.iterations < fine.iterations
    zeta = rough.zeta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(popularity_objective(zeta, e, temperature=TAU), zeta)
    assert rough.gradient_norm == pytest.approx(float(gradient.norm()), rel=1e-6)
    assert fine.gradient_norm <= 1e-12 < rough.gradient_norm <= 1e-3
