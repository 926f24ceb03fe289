"""A module is its function with settings: same numbers, a temperature that learns, a state that travels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from slow_losses import unit_rows
from torch import nn

from vldebias import losses
from vldebias.errors import InvalidInputError

X, Y, LABELS = unit_rows(6, 4, seed=1), unit_rows(6, 4, seed=2), torch.tensor([0, 0, 1, 1, 2, 2])
OPTIONS: dict[str, Any] = {"temperature": 0.2, "reduction": "none", "chunk_size": 4, "within_view": True}
MODULES = [
    (losses.InfoNCELoss, losses.info_nce, {}, ()),
    (losses.RINCELoss, losses.rince, {"q": 0.3, "lam": 0.2}, ()),
    (losses.DebiasedContrastiveLoss, losses.debiased_contrastive, {"tau_plus": 0.3, "below_floor": "uncorrected"}, ()),
    (losses.HardNegativeContrastiveLoss, losses.hard_negative_contrastive, {"beta": 0.4, "form": "jsd"}, ()),
    (losses.SpreadLoss, losses.spread, {"alpha": 0.2}, (LABELS,)),
    (losses.SigmoidLoss, losses.sigmoid, {"bias": -2.0}, ()),
]


@pytest.mark.parametrize(("module", "function", "settings", "arguments"), MODULES)
def test_a_module_is_its_function(module: Any, function: Any, settings: Any, arguments: Any) -> None:
    ours = module(**settings, **OPTIONS)(X, Y, *arguments)
    torch.testing.assert_close(ours, function(X, Y, *arguments, **settings, **OPTIONS), rtol=1e-6, atol=1e-6)
    assert not torch.allclose(ours, module(**settings, **(OPTIONS | {"within_view": False}))(X, Y, *arguments))


@pytest.mark.parametrize(("module", "function", "settings", "arguments"), MODULES)
def test_a_module_tells_its_settings(module: Any, function: Any, settings: Any, arguments: Any) -> None:
    text = repr(module(**settings, **OPTIONS))
    assert "chunk_size=4" in text
    assert "Temperature(0.2" in text
    for name, value in settings.items():
        assert f"{name}={value!r}" in text or name == "bias"


def test_dcl_and_hcl_modules_take_positives() -> None:
    positives = unit_rows(12, 4, seed=3).reshape(6, 2, 4)
    for module in (losses.DebiasedContrastiveLoss(), losses.HardNegativeContrastiveLoss()):
        assert not torch.equal(module(X, Y, positives), module(X, Y))


@pytest.mark.parametrize("module", [losses.InfoNCELoss, losses.RINCELoss, losses.DebiasedContrastiveLoss])
def test_a_learned_temperature_follows_the_gradient_of_the_function(module: Any) -> None:
    loss = module(temperature=0.2, learnable_temperature=True)
    (parameter,) = loss.parameters()
    loss(X, Y).backward()
    step, function = 1e-6, type(loss)(temperature=0.2)
    moved = [type(function)(temperature=0.2 * math.exp(sign * step))(X, Y) for sign in (1, -1)]
    assert float(parameter.grad) == pytest.approx(float(moved[0] - moved[1]) / (2 * step), rel=1e-4)


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


def test_temperatures_that_make_no_sense() -> None:
    with pytest.raises(InvalidInputError, match=r"temperature: expected at least the minimum 0\.01, got 0\.005"):
        losses.InfoNCELoss(temperature=0.005, learnable_temperature=True)
    with pytest.raises(InvalidInputError, match="temperature: expected a positive number, got -1"):
        losses.Temperature(-1)


def test_settings_are_refused_when_the_module_is_made() -> None:
    with pytest.raises(InvalidInputError, match="q: expected"):
        losses.RINCELoss(q=2)
    with pytest.raises(InvalidInputError, match="tau_plus: expected"):
        losses.DebiasedContrastiveLoss(tau_plus=1)
    with pytest.raises(InvalidInputError, match="beta: expected"):
        losses.HardNegativeContrastiveLoss(beta=-1)
    with pytest.raises(InvalidInputError, match="alpha: expected"):
        losses.SpreadLoss(alpha=2)


def test_q_and_beta_follow_a_schedule() -> None:
    rince, hcl = losses.RINCELoss(q=0.01, temperature=0.2), losses.HardNegativeContrastiveLoss(temperature=0.2)
    rince.q, hcl.beta = losses.q_warmup(9, 10), losses.beta_annealing(9, 10, beta=2, changes=4)
    torch.testing.assert_close(rince(X, Y), losses.rince(X, Y, temperature=0.2, q=0.4))
    torch.testing.assert_close(hcl(X, Y), losses.hard_negative_contrastive(X, Y, temperature=0.2, beta=0.5))


def test_the_state_of_a_learned_module_travels(tmp_path: Path) -> None:
    loss = losses.SigmoidLoss(temperature=0.3, bias=-4.0)
    save_file(loss.state_dict(), tmp_path / "loss.safetensors")
    other = losses.SigmoidLoss()
    assert not torch.equal(other(X, Y), loss(X, Y))
    other.load_state_dict(load_file(tmp_path / "loss.safetensors"))
    assert torch.equal(other(X, Y), loss(X, Y))


def test_the_minimum_of_the_temperature_is_a_setting() -> None:
    loss = losses.InfoNCELoss(temperature=0.2, learnable_temperature=True, minimum_temperature=0.1)
    with torch.no_grad():
        loss.temperature.log_temperature.fill_(-9.0)  # type: ignore[union-attr]
    assert float(loss.options()["temperature"].detach()) == pytest.approx(0.1)
