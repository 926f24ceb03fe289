"""The moving average of the weights: its recursion, and three states, live, averaged and live again."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vldebias.errors import InvalidInputError
from vldebias.training.averaging import Average


def small() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[2].requires_grad_(False)
    return module


def shake(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))


def test_it_is_the_recursion_in_plain_numbers() -> None:
    module = small().double()
    average, mean = Average(module, decay=0.4), module[0].bias.tolist()
    for step in range(9):
        shake(module)
        average.update(step)
        d = min(0.4, (step + 1) / (step + 10))
        mean = [d * m + (1 - d) * value for m, value in zip(mean, module[0].bias.tolist(), strict=True)]
        assert average.means["0.bias"].tolist() == pytest.approx(mean, rel=1e-12)


def test_decay_zero_is_the_last_weights_and_equal_weights_are_their_own_mean() -> None:
    module = small()
    last, constant = Average(module, decay=0.0), Average(module)
    constant.update(0)
    assert torch.equal(constant.means["0.weight"], module[0].weight)
    shake(module)
    last.update(0)
    assert torch.equal(last.means["0.weight"], module[0].weight)


def test_the_memory_is_short_at_first() -> None:
    """After ten steps at new weights the old ones are forgotten, though the decay is .999."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    average = Average(module, decay=0.999)
    nn.init.ones_(module.weight)
    for step in range(10):
        average.update(step)
    assert average.means["weight"].item() > 0.99


def test_live_averaged_and_live_again() -> None:
    module, x = small().eval(), torch.randn(5, 3)
    average = Average(module, decay=0.9)
    for step in range(3):
        shake(module)
        average.update(step)
    live, buffers = copy.deepcopy(module.state_dict()), dict(module.named_buffers())
    by_hand = copy.deepcopy(module)
    by_hand.load_state_dict({**live, **average.means})
    before = module(x)
    with average.applied():
        during = module(x)
        assert all(torch.equal(p, average.means.get(name, live[name])) for name, p in module.named_parameters())
    assert torch.equal(during, by_hand(x))
    assert not torch.allclose(during, before)
    assert torch.equal(module(x), before)
    assert all(torch.equal(tensor, live[name]) for name, tensor in module.state_dict().items())
    assert all(buffer is buffers[name] for name, buffer in module.named_buffers())


def test_weights_come_back_after_an_error() -> None:
    module = small()
    average = Average(module)
    shake(module)
    live = module[0].weight.detach().clone()
    with pytest.raises(RuntimeError, match="stop"), average.applied():
        raise RuntimeError("stop")
    assert torch.equal(module[0].weight, live)


def test_the_mean_may_stay_for_good() -> None:
    module = small()
    average = Average(module, decay=0.9)
    shake(module)
    average.update(0)
    average.copy_to_live()
    assert torch.equal(module[0].weight, average.means["0.weight"])
    shake(module)
    assert not torch.equal(module[0].weight, average.means["0.weight"])  # a copy, not the same memory


def test_frozen_parameters_and_buffers_are_left_alone() -> None:
    assert list(Average(small()).means) == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_a_mean_of_half_precision_still_moves() -> None:
    """Steps of a thousandth are lost in bfloat16, which has eight bits."""
    module = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.ones_(module.weight)
    average = Average(module, decay=0.999)
    nn.init.constant_(module.weight, 2.0)
    for step in range(20_000, 20_010):
        average.update(step)
    assert average.means["weight"].item() == pytest.approx(2 - 0.999**10, rel=1e-5)
    with average.applied():
        assert module.weight.dtype == torch.bfloat16


def test_names_do_not_know_of_wrappers() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    module = small()
    module[0] = checkpoint_wrapper(module[0])
    assert list(Average(torch.compile(module)).means) == list(Average(small()).means)


def test_a_decay_outside_its_interval_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"decay: expected a number in \[0, 1\), got 1.0"):
        Average(small(), decay=1.0)
