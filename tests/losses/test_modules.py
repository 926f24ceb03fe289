"""Modules: a temperature that learns, a state that travels, and settings that follow a schedule."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from slow_losses import unit_rows
from torch import nn

from vldebias import losses
from vldebias.errors import InvalidInputError
from vldebias.losses import beta_annealing, q_warmup

X, Y = unit_rows(6, 4, seed=1), unit_rows(6, 4, seed=2)


def test_dcl_and_hcl_modules_take_positives() -> None:
    positives = unit_rows(12, 4, seed=3).reshape(6, 2, 4)
    for module in (losses.DebiasedContrastiveLoss(), losses.HardNegativeContrastiveLoss()):
        assert not torch.equal(module(X, Y, positives), module(X, Y))


def test_a_temperature_comes_back_from_its_minimum() -> None:
    """A clamp in the graph would have no gradient below the bound, and the parameter would stay there."""
    temperature = losses.Temperature(0.02, learnable=True, minimum=0.01)
    parameter: nn.Parameter = temperature.log_temperature  # type: ignore[assignment]
    with torch.no_grad():
        parameter.fill_(math.log(0.001))
    value = temperature()
    assert float(value.detach()) == pytest.approx(0.01)
    value.backward()
    assert float(parameter.grad) == pytest.approx(0.01)


def test_a_fixed_temperature_is_no_parameter() -> None:
    assert list(losses.InfoNCELoss(temperature=0.1).parameters()) == []
    assert losses.Temperature(0.1)() == 0.1


def test_the_defaults_are_those_of_the_papers() -> None:
    """Thesis section 5.3.3 for rince; SigLIP learns its temperature and its bias."""
    torch.testing.assert_close(
        losses.rince(X, Y, temperature=0.2), losses.rince(X, Y, temperature=0.2, q=0.5, lam=0.01)
    )
    learned = {name: float(value.exp() if "log" in name else value) for name, value in named(losses.SigmoidLoss())}
    assert learned == pytest.approx({"bias": -10.0, "temperature.log_temperature": 0.1})


def named(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [(name, value.detach()) for name, value in module.named_parameters()]


def test_a_bias_that_is_not_learned_is_state_all_the_same() -> None:
    loss = losses.SigmoidLoss(learnable_bias=False, learnable_temperature=False, temperature=0.2, bias=-4.0)
    assert named(loss) == []
    assert float(loss.state_dict()["bias"]) == -4.0
    assert torch.equal(loss(X, Y), losses.sigmoid(X, Y, temperature=0.2, bias=-4.0))


def test_temperatures_that_make_no_sense() -> None:
    with pytest.raises(InvalidInputError, match=r"temperature: expected at least the minimum 0\.01, got 0\.005"):
        losses.InfoNCELoss(temperature=0.005, learnable_temperature=True)
    with pytest.raises(InvalidInputError, match="temperature: expected a positive number, got -1"):
        losses.Temperature(-1)
    with pytest.raises(InvalidInputError, match="temperature: expected a positive number, got None"):
        losses.info_nce(X, Y, temperature=None)  # type: ignore[typeddict-item]


def test_q_and_beta_follow_a_schedule() -> None:
    rince, hcl = losses.RINCELoss(q=0.01, temperature=0.2), losses.HardNegativeContrastiveLoss(temperature=0.2)
    rince.q, hcl.beta = losses.q_warmup(9, 10), losses.beta_annealing(9, 10, beta=2, changes=4)
    torch.testing.assert_close(rince(X, Y), losses.rince(X, Y, temperature=0.2, q=0.4))
    torch.testing.assert_close(hcl(X, Y), losses.hard_negative_contrastive(X, Y, temperature=0.2, beta=0.5))


def test_q_warms_up_linearly_from_its_start_to_its_end() -> None:
    """Section 5.3.3: q starts at .01 and increases linearly to .4 until the last epoch."""
    values = [q_warmup(step, 40) for step in range(40)]
    steps = [b - a for a, b in itertools.pairwise(values)]
    assert (values[0], values[-1]) == pytest.approx((0.01, 0.4))
    assert steps == pytest.approx([steps[0]] * 39)
    assert q_warmup(0, 1) == 0.01


def test_beta_goes_down_in_equal_stairs() -> None:
    """Appendix A.2.2: switch from beta_i to beta_i - beta / l in epoch i e / l."""
    epochs, beta, changes = 400, 1.5, 5
    values = [beta_annealing(epoch, epochs, beta=beta, changes=changes) for epoch in range(epochs)]
    for i in range(changes):
        switch = i * epochs // changes
        assert values[switch : switch + epochs // changes] == pytest.approx([beta - i * beta / changes] * 80)


def test_steps_that_are_not_in_the_training() -> None:
    with pytest.raises(InvalidInputError, match=r"step: expected a number in \[0, 10\), got 10"):
        q_warmup(10, 10)
    with pytest.raises(InvalidInputError, match=r"epoch: expected a number in \[0, 10\), got -1"):
        beta_annealing(-1, 10, beta=1, changes=2)
    with pytest.raises(InvalidInputError, match=r"changes: expected a number in \[1, inf\), got 0"):
        beta_annealing(0, 10, beta=1, changes=0)
    with pytest.raises(InvalidInputError, match=r"start: expected a number in \(0, 1\], got 0"):
        q_warmup(0, 10, start=0)
