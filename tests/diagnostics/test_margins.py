"""Margins and the sources' statements: autograd for the closed form, every matching for W1, laws as properties."""

from __future__ import annotations

from itertools import combinations, permutations
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.diagnostics.theory import (
    biased_floor,
    farthest_points,
    nearest_centre_risk,
    noisy_risk,
    sampling_error,
    separation,
    worst_case_loss,
)
from vldebias.diagnostics import margins
from vldebias.errors import InvalidInputError


@pytest.fixture(scope="module")
def data() -> tuple[torch.Tensor, torch.Tensor]:
    codes = torch.arange(60) % 3
    rows = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    return rows + 2 * nn.functional.one_hot(codes, 5), codes


@pytest.fixture(scope="module")
def head() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(5, 3).double()


class TestMargins:
    def test_the_closed_form_is_autograd(self, data: Any, head: nn.Linear) -> None:
        rows, codes = data[0].double(), data[1]
        closed = margins(head, rows, codes)
        by_autograd = margins(lambda z: head(z), rows, codes)
        np.testing.assert_allclose(closed.margin, by_autograd.margin, atol=1e-9)
        np.testing.assert_allclose(closed.kv_gn, by_autograd.kv_gn, atol=1e-9)
        np.testing.assert_allclose(closed.lipschitz, by_autograd.lipschitz, atol=1e-9)

    def test_normalised_is_the_distance_to_the_border_of_a_linear_head(self, data: Any, head: nn.Linear) -> None:
        found = margins(head, data[0].double(), data[1])
        weight = head.weight.detach().numpy()
        i = int(np.flatnonzero(found.margin > 0)[0])
        y = found.codes[i]
        scores = head(data[0].double()).detach().numpy()[i]
        rival = max((c for c in range(3) if c != y), key=lambda c: scores[c])
        moved = data[0].double().numpy()[i] - found.normalised[i] * (weight[y] - weight[rival]) / np.linalg.norm(
            weight[y] - weight[rival]
        )
        there = weight @ moved + head.bias.detach().numpy()
        assert there[y] == pytest.approx(there[rival], abs=1e-4)

    @settings(max_examples=15, deadline=None)
    @given(st.integers(0, 1000), st.floats(0.1, 20), st.floats(0.1, 20))
    def test_kv_margins_know_no_rotation_and_no_scale(self, seed: int, of_rows: float, of_head: float) -> None:
        torch.manual_seed(0)
        codes = torch.arange(24) % 2
        rows = torch.randn(24, 4, dtype=torch.float64) + codes[:, None]
        weight, bias = torch.randn(2, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        turn = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))[0]
        one = margins((weight, bias), rows, codes)
        other = margins((of_head * weight @ turn, bias), of_rows * rows @ turn, codes)
        np.testing.assert_allclose(one.kv, other.kv, rtol=1e-4, atol=1e-8)
        np.testing.assert_allclose(one.kv_gn, other.kv_gn, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(one.tv_gn, other.tv_gn, rtol=1e-4, atol=1e-6)

    def test_total_variance_is_not_that_of_lengths(self, data: Any, head: nn.Linear) -> None:
        unit = nn.functional.normalize(data[0].double(), dim=1)
        assert margins(head, unit, data[1]).total == pytest.approx(
            float((unit - unit.mean(0)).norm(dim=1).square().mean().sqrt())
        )

    def test_a_module_is_asked_in_eval_mode_and_left_as_it_was(self, data: Any) -> None:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 3))
        net[0].eval()
        one, other = (margins(net, *data).margin for _ in range(2))
        np.testing.assert_array_equal(one, other)
        assert net.training
        assert net[1].training
        assert not net[0].training
        assert all(p.grad is None for p in net.parameters())

    def test_the_terms_of_the_bound(self, data: Any, head: nn.Linear) -> None:
        found = margins(head, data[0].double(), data[1])
        wrong, spread, rest = found.bound(0.5, delta=0.1)
        assert wrong == (found.margin <= 0.5).mean()
        assert spread == pytest.approx(np.mean(found.lipschitz * found.variance) / 0.5)
        assert rest == pytest.approx(np.sqrt(np.log(10) / 120))
        empirical = found.empirical_bound(0.5, diameter=2.0, k=10, draws=1, delta=0.1)
        assert empirical[0] == wrong
        assert empirical[1] > spread
        assert found.bound(1.0)[1] == pytest.approx(found.bound(0.5)[1] / 2)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"head": (np.ones((3, 4)), np.ones(3))}, r"expected weight \(k, 5\)"),
            ({"head": 3}, "a function from features to scores, got 3"),
            ({"head": lambda z: z[:, :2]}, r"for classes up to 2"),
            ({"head": lambda z: z.detach()}, "no gradient reaches the features"),
            ({"labels": np.full(60, -1)}, "expected every one to be known"),
            ({"labels": np.r_[np.zeros(59, int), 1]}, "a class of one row"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, data: Any, head: nn.Linear, change: Any, message: str) -> None:
        given_ = {"head": head, "features": data[0].double(), "labels": data[1], **change}
        with pytest.raises(InvalidInputError, match=message):
            margins(**given_)


def transported(one: np.ndarray, other: np.ndarray) -> float:
    """W1 of two small sets of equal size, over every matching."""
    return min(
        float(np.mean([np.linalg.norm(a - b) for a, b in zip(one, matched, strict=True)]))
        for matched in permutations(other)
    )


class TestStatements:
    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 10_000), st.floats(0.1, 5))
    def test_separation_is_never_above_w1(self, seed: int, gamma: float) -> None:
        rng = np.random.default_rng(seed)
        rows, codes = rng.standard_normal((8, 3)), np.repeat([0, 1], 4)
        rows[codes == 1] += 2
        weight = rng.standard_normal((2, 3))
        slope = np.linalg.norm(weight, axis=1).max()
        least = separation(rows @ weight.T, codes, (0, 1), gamma, slope)
        assert least <= transported(rows[:4], rows[4:]) + 1e-9

    def test_lemma_8_11_is_8_12_where_every_margin_is_reached(self) -> None:
        scores = np.array([[2.0, 0.0], [3.0, 0.0], [0.0, 2.5], [0.0, 4.0]])
        assert separation(scores, np.array([0, 0, 1, 1]), (0, 1), 2.0, 0.5) == pytest.approx(2.0 / 0.5)

    @pytest.mark.parametrize(("k", "d"), [(2, 1), (3, 2), (4, 7), (8, 7)])
    def test_the_simplex_beats_every_other_set_of_points(self, k: int, d: int) -> None:
        points = farthest_points(k, d, radius=2.0).numpy()
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 2.0)
        apart = [np.linalg.norm(points[i] - points[j]) for i, j in combinations(range(k), 2)]
        assert max(apart) - min(apart) < 1e-9
        assert min(apart) == pytest.approx(2.0 * np.sqrt(2 * k / (k - 1)))
        rng = np.random.default_rng(0)
        for _ in range(20):
            others = rng.standard_normal((k, d))
            others *= 2.0 / np.linalg.norm(others, axis=1, keepdims=True)
            least = min(np.linalg.norm(others[i] - others[j]) for i, j in combinations(range(k), 2))
            assert least <= min(apart) + 1e-9

    def test_the_debiased_loss_errs_by_less_than_theorem_3_3_and_less_with_more(self) -> None:
        rng = np.random.default_rng(0)
        x = rng.standard_normal((200, 3))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        products = np.exp(x[:50] @ x.T)
        limit = np.mean(np.log1p(64 * products.mean(1) / products[:, 0]))
        drawn = [
            np.mean(
                np.log1p(products[np.arange(50)[:, None], rng.integers(200, size=(50, 64))].sum(1) / products[:, 0])
            )
            for _ in range(50)
        ]
        assert abs(np.mean(drawn) - limit) <= sampling_error(64, 64, 0.0)
        assert sampling_error(4 * 64, 4 * 64, 0.1) == pytest.approx(sampling_error(64, 64, 0.1) / 2)

    @settings(max_examples=20, deadline=None)
    @given(st.integers(0, 1000))
    def test_the_biased_loss_stays_above_its_floor(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        centres = rng.standard_normal((2, 4))
        codes = np.arange(80) % 2
        x = centres[codes] + rng.standard_normal((80, 4))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        h, n = np.exp(x @ x.T), 40
        same = np.stack([h[i, codes == codes[i]] for i in range(80)])
        other = np.stack([h[i, codes != codes[i]] for i in range(80)])
        positive = same[np.arange(80), rng.integers(40, size=80)]
        unbiased = np.mean(np.log1p(n * other.mean(1) / positive))
        biased = np.mean(np.log1p(h[np.arange(80)[:, None], rng.integers(80, size=(80, n))].sum(1) / positive))
        assert biased >= biased_floor(unbiased, same, other, n)

    def test_hard_negatives_reach_the_worst_case_as_beta_grows(self) -> None:
        rng = np.random.default_rng(0)
        positive, negatives, q = rng.uniform(-1, 1, 30), rng.uniform(-1, 1, (30, 20)), 20.0
        gaps = []
        for beta in (0.0, 10.0, 100.0, 1000.0):
            weights = np.exp(beta * (negatives - negatives.max(1, keepdims=True)))
            mean = (weights * np.exp(negatives)).sum(1) / weights.sum(1)
            gaps.append(worst_case_loss(positive, negatives, q) - np.mean(np.log1p(q * mean / np.exp(positive))))
        assert gaps == sorted(gaps, reverse=True)
        assert 0 <= gaps[-1] < 1e-2 < gaps[0]

    def test_the_risk_of_theorem_4_5_is_the_minimum_of_its_proof(self) -> None:
        xi, excess, classes, t = 1.5, 1e-4, 4, 1.0
        inner = xi**2 - 2 * classes * (1 + 1 / t) * np.sqrt(excess)
        delta = np.linspace(1e-3, np.sqrt(inner), 100_000)[:-1]
        proof = 2 * excess / delta**2 + 2 * excess / (np.sqrt(inner) - delta) ** 2
        assert nearest_centre_risk(excess, xi, classes, t) == pytest.approx(proof.min(), rel=1e-3)
        assert nearest_centre_risk(0.5, 1.0, 10) == 1.0

    def test_noise_raises_the_risk_and_none_changes_nothing(self) -> None:
        assert noisy_risk(0.3, 0.0, 1.0) == 0.3
        assert noisy_risk(0.3, 0.2, 1.0) < noisy_risk(0.3, 0.3, 1.0)

    @settings(max_examples=30, deadline=None)
    @given(st.integers(0, 1000), st.floats(0, 0.45))
    def test_the_noisy_minimiser_keeps_corollary_5_1(self, seed: int, noise: float) -> None:
        """Every function on three points whose scores are one of a grid: the risk of the noisy minimiser is bounded."""
        rng = np.random.default_rng(seed)
        labels, grid = rng.choice([-1, 1], 3), np.array([-1.0, 0.0, 1.0])
        rates = rng.uniform(0, noise, 3)
        scores = np.stack(np.meshgrid(grid, grid, grid), -1).reshape(-1, 3)
        loss = -labels * np.exp(scores)
        clean = loss.mean(1)
        noisy = ((1 - rates) * loss - rates * loss).mean(1)
        assert clean[noisy.argmin()] <= noisy_risk(clean.min(), float(rates.max()), 1.0) + 1e-9
