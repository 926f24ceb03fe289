"""Group DRO: Algorithm 1 of Sagawa et al. (2020), its state, and rows whose group is unknown."""

from __future__ import annotations

import pytest
import torch

from vldebias.losses import GroupWeights

LOSSES = torch.tensor([1.0, 3.0, 2.0, 5.0, 9.0], dtype=torch.float64)
GROUPS = torch.tensor([0, 0, 2, 2, -1])


def test_it_is_algorithm_1() -> None:
    weights = GroupWeights(3, step=0.1).double()
    q = [1 / 3] * 3
    for _ in range(4):
        means = [2.0, 0.0, 3.5]
        q = [value * 2.718281828459045 ** (0.1 * mean) for value, mean in zip(q, means, strict=True)]
        q = [value / sum(q) for value in q]
        losses = LOSSES.clone().requires_grad_()
        value = weights(losses, GROUPS)
        assert float(value.detach()) == pytest.approx(sum(a * b for a, b in zip(q, means, strict=True)))
        (gradient,) = torch.autograd.grad(value, losses)
        assert gradient.tolist() == pytest.approx([q[0] / 2, q[0] / 2, q[2] / 2, q[2] / 2, 0.0])
    assert weights.log_weights.exp().tolist() == pytest.approx(q)


def test_its_state_is_a_buffer_that_stands_still_in_evaluation() -> None:
    weights = GroupWeights(3)
    assert set(weights.state_dict()) == {"log_weights"}
    weights(LOSSES, GROUPS)
    before = weights.log_weights.clone()
    with torch.no_grad():
        weights(LOSSES, GROUPS)
    weights.eval()(LOSSES, GROUPS)
    assert torch.equal(weights.log_weights, before)
    assert before[2] > before[0] > before[1]
