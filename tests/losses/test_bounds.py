"""Test the bounds of chapter 6 with exact expectations in small worlds and random encoders."""

import itertools
import math
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from slow_losses import unit_rows
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses import info_nce, mutual_information_bound, rince, wasserstein_dependency_bound

ITEMS = 3


def _joint(weights: list[float]) -> Tensor:
    """Return a joint distribution (3, 3) of images and captions."""
    table = torch.tensor(weights, dtype=torch.float64).reshape(ITEMS, ITEMS)
    return table / table.sum()


def _independent(joint: Tensor) -> Tensor:
    return joint.sum(1)[:, None] * joint.sum(0)


def _expected_loss(loss: object, joint: Tensor, x: Tensor, v: Tensor, n: int) -> float:
    """Return the exact expectation over batches of n independent pairs."""
    cells = list(itertools.product(range(ITEMS), repeat=2))
    total = 0.0
    for batch in itertools.product(cells, repeat=n):
        probability = math.prod(float(joint[cell]) for cell in batch)
        rows = [list(index) for index in zip(*batch, strict=True)]
        total += probability * float(loss(x[rows[0]], v[rows[1]]))  # type: ignore[operator]
    return total


def _wasserstein_dependency(joint: Tensor, x: Tensor, v: Tensor) -> float:
    """Return I_W by linear programming over the couplings of P_XV and P_X P_V."""
    cells = list(itertools.product(range(ITEMS), repeat=2))
    cost = [
        float((x[a] - x[c]).norm() + (v[b] - v[d]).norm())
        for (a, b), (c, d) in product(cells, cells)
    ]
    size = len(cells)
    rows = torch.kron(torch.eye(size), torch.ones(1, size))
    columns = torch.kron(torch.ones(1, size), torch.eye(size))
    marginals = torch.cat([joint.flatten(), _independent(joint).flatten()])
    result = linprog(
        cost, A_eq=torch.cat([rows, columns]).numpy(), b_eq=marginals.numpy(), bounds=(0, None)
    )
    assert result.success
    return float(result.fun)


# An example costs 81 losses, so failing ones are not shrunk.
quick = {
    "deadline": None,
    "phases": (Phase.generate,),
    "database": None,
}
weights = st.lists(st.floats(0.01, 1), min_size=ITEMS**2, max_size=ITEMS**2)
diagonal = [8.0, 0.1, 0.1, 0.1, 8.0, 0.1, 0.1, 0.1, 8.0]


@settings(max_examples=6, **quick)
@given(
    weights=weights | st.just(diagonal), seed=st.integers(0, 99), t=st.sampled_from([0.2, 0.5, 1.0])
)
def test_info_nce_bounds_the_mutual_information(weights: list[float], seed: int, t: float) -> None:
    joint = _joint(weights)
    information = float((joint * (joint / _independent(joint)).log()).sum())
    x = unit_rows(ITEMS, 3, seed=seed)
    v = unit_rows(ITEMS, 3, seed=seed + 100)
    expected = _expected_loss(lambda a, b: info_nce(a, b, temperature=t), joint, x, v, 2)
    assert mutual_information_bound(expected, negatives=1) == -expected <= information + 1e-12
    assert math.log(2) - expected <= information + 1e-12  # the tighter bound of the docstring


@settings(max_examples=6, **quick)
@given(
    weights=weights | st.just(diagonal),
    seed=st.integers(0, 99),
    t=st.sampled_from([0.3, 1.0]),
    eta=st.sampled_from([0.0, 0.3, 0.8]),
    slack=st.floats(0, 0.9),
)
def test_rince_bounds_the_wasserstein_dependency_without_the_noise(
    weights: list[float], seed: int, t: float, eta: float, slack: float
) -> None:
    """Test theorems 6.1 and 6.2 from the smallest lam that theorem 6.1 allows."""
    clean = _joint(weights)
    noisy = (1 - eta) * clean + eta * _independent(clean)
    x = unit_rows(ITEMS, 3, seed=seed)
    v = unit_rows(ITEMS, 3, seed=seed + 100)
    dependency = _wasserstein_dependency(clean, x, v)
    lam = 0.5 + slack * 0.5
    expected = _expected_loss(
        lambda a, b: rince(a, b, temperature=t, q=1.0, lam=lam), noisy, x, v, 2
    )
    bound = wasserstein_dependency_bound(expected, negatives=1, temperature=t, lam=lam, eta=eta)
    assert bound <= dependency + 1e-9


def test_the_wasserstein_bound_is_positive_for_correct_pairs_and_corrects_for_noise() -> None:
    joint = _joint(diagonal)
    x = torch.eye(ITEMS, dtype=torch.float64)
    lam = 1 / 2

    def bound(eta: float) -> float:
        noisy = (1 - eta) * joint + eta * _independent(joint)
        expected = _expected_loss(
            lambda a, b: rince(a, b, temperature=1.0, q=1.0, lam=lam), noisy, x, x, 2
        )
        return wasserstein_dependency_bound(
            expected, negatives=1, temperature=1.0, lam=lam, eta=eta
        )

    assert bound(0.0) > 0.1
    settings = {"negatives": 3, "temperature": 0.5, "lam": 0.4, "eta": 0.2}
    by_hand = 3 * 0.5 * math.exp(-2) / (0.8 * 0.6)
    assert wasserstein_dependency_bound(-3.0, **settings) == pytest.approx(by_hand)
    assert wasserstein_dependency_bound(-3.0, **settings, lipschitz=2.0) == pytest.approx(
        by_hand / 2
    )
    # At lam K = 1 - lam, the loss only depends on the difference of the two expectations, which is
    # proportional to 1 - eta.
    assert bound(0.5) == pytest.approx(bound(0.0), rel=1e-9)


def test_the_bound_fails_without_the_condition_on_lam() -> None:
    """Independent pairs have I_W = 0, but -L is positive for a small lam, which is therefore not
    allowed."""
    joint = _independent(_joint(diagonal))
    x = unit_rows(ITEMS, 3)
    lam = 0.05
    expected = _expected_loss(
        lambda a, b: rince(a, b, temperature=1.0, q=1.0, lam=lam), joint, x, x, 2
    )
    assert -expected > 0
    settings: dict[str, Any] = {"negatives": 1, "temperature": 1.0, "lam": 0.6}
    outside = {"temperature": 0.0, "negatives": 0, "lam": 1.0, "eta": 1.0, "lipschitz": 0.0}
    for name, value in [("lam", lam), *outside.items()]:
        with pytest.raises(InvalidInputError, match=rf"^{name}: expected .*{value}"):
            wasserstein_dependency_bound(expected, **(settings | {name: value}))
    with pytest.raises(InvalidInputError, match="negatives: expected"):
        mutual_information_bound(expected, negatives=0)
