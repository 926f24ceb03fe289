"""Test sharpness-aware gradients and moving averages."""

import copy
import math
import weakref
from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from torch import Tensor, nn

from vldebias.losses import NUCLR
from vldebias.training.optim import Average, StartingWeights, climbed, still

methods = pytest.mark.parametrize("method", ["sam", "asam"])


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2)).double()


def backward_of(module: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    def passes() -> Tensor:
        loss = (module(x) ** 2).sum(dim=1).mean()
        loss.backward()
        return loss.detach()

    return passes


def sharp(
    module: nn.Module, passes: Callable[[], Tensor], method: str = "sam", rho: float = 0.3
) -> Tensor:
    """Run the two passes of a training step, which leaves the gradient of the perturbed weights."""
    module.zero_grad()
    loss = passes()
    with climbed(list(module.parameters()), method, rho), still(module):
        module.zero_grad()
        passes()
    return loss


def climbed_by_hand(module: nn.Module, method: str, rho: float, eta: float) -> nn.Module:
    """Return a copy of the module at theta_a, computed entry by entry from its gradients."""
    t = []
    g = []
    for parameter in module.parameters():
        for value, gradient in zip(
            parameter.flatten().tolist(), parameter.grad.flatten().tolist(), strict=True
        ):
            t.append(abs(value) + eta if method == "asam" and parameter.ndim >= 2 else 1.0)
            g.append(gradient)
    norm = math.sqrt(sum((a * b) ** 2 for a, b in zip(t, g, strict=True)))
    steps = iter(rho * a * a * b / norm for a, b in zip(t, g, strict=True))
    climbed = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in climbed.parameters():
            for index in range(parameter.numel()):
                parameter.view(-1)[index] += next(steps)
    climbed.zero_grad()
    return climbed


@methods
def test_three_updates_match_a_manual_computation(method: str) -> None:
    module = small()
    slow = small()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(3):  # the gradient of the previous step is not cleared
        x = rows(5, 3, seed=step)
        loss = sharp(module, backward_of(module, x), method)
        optimizer.step()
        slow.zero_grad()
        torch.testing.assert_close(loss, backward_of(slow, x)(), rtol=1e-12, atol=0)
        climbed = climbed_by_hand(slow, method, 0.3, 0.01)
        backward_of(climbed, x)()
        with torch.no_grad():
            for parameter, far in zip(slow.parameters(), climbed.parameters(), strict=True):
                parameter -= 0.1 * far.grad
        for ours, expected in zip(module.parameters(), slow.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@methods
def test_weights_are_restored_exactly_and_frozen_weights_never_change(method: str) -> None:
    """Subtracting the step again would cause rounding errors, since one weight is a million times
    larger."""
    module = small().float()
    module[0].requires_grad_(False)
    with torch.no_grad():
        module[3].weight[0, 0] = 1e6
    module.register_parameter("unused", nn.Parameter(torch.ones(2)))
    before = copy.deepcopy(module.state_dict())
    seen = list[Tensor]()

    def passes() -> Tensor:
        seen.append(module[0].weight.clone())
        return backward_of(module, rows(5, 3).float())()

    sharp(module, passes, method)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(*seen)
    assert module.unused.grad is module[0].weight.grad is None


@methods
def test_half_precision_weights_climb_in_single_precision_and_are_rounded_once(method: str) -> None:
    weight = nn.Parameter(rows(6, 5).bfloat16())
    weight.grad = rows(6, 5, 1).bfloat16()
    start = weight.detach().float()
    slope = weight.grad.float()
    scale = start.abs() + 0.01 if method == "asam" else torch.ones_like(start)
    with climbed([weight], method, 0.3):
        held = weakref.ref(weight.grad)
        weight.grad = None
        assert held() is None, "the second pass would store two gradients"
        expected = start + scale**2 * slope * (0.3 / (scale * slope).norm())
        assert torch.equal(weight.detach(), expected.bfloat16())


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(2, momentum=None), nn.InstanceNorm1d(2, track_running_stats=True)]
)
def test_running_statistics_are_updated_once_and_both_passes_use_batch_statistics(
    norm: nn.Module,
) -> None:
    module = nn.Sequential(
        nn.Linear(3, 6), nn.Unflatten(1, (2, 3)), norm, nn.Flatten(), nn.Linear(6, 2)
    ).double()
    once = copy.deepcopy(module)
    x = rows(6, 3)
    for _ in range(2):
        sharp(module, backward_of(module, x), rho=0.4)
        once.zero_grad()
        backward_of(once, x)()
    climbed = climbed_by_hand(once, "sam", 0.4, 0.0)
    backward_of(climbed, x)()
    for ours, expected in zip(module.parameters(), climbed.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-10, atol=1e-12)
    for (name, buffer), expected in zip(module.named_buffers(), once.buffers(), strict=True):
        assert torch.equal(buffer, expected), name


def test_weights_and_running_statistics_go_half_way_and_come_back_exactly() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[2].requires_grad_(False)
    module.register_buffer("mask", torch.tensor([-torch.inf, 0.0]))
    begin = copy.deepcopy(module.state_dict())
    start = StartingWeights(module)
    module[0].weight.data.mul_(1.7)
    module(rows(5, 3).float())
    end = copy.deepcopy(module.state_dict())
    with start.half_way():
        half = copy.deepcopy(module.state_dict())
    assert all(torch.equal(tensor, end[name]) for name, tensor in module.state_dict().items())
    counter = "1.num_batches_tracked"
    for name, tensor in half.items():
        expected = end[name] if name == counter else (begin[name] + end[name]) / 2
        torch.testing.assert_close(tensor, expected)
    assert not torch.equal(half["1.running_mean"], end["1.running_mean"])
    assert half[counter] == 1


def test_the_state_of_a_global_loss_is_updated_once() -> None:
    losses = [NUCLR(9, temperature=0.3, popularity_lr=0.5).double() for _ in range(2)]
    x, y = (nn.functional.normalize(rows(4, 3, seed)).requires_grad_() for seed in (1, 2))
    for items in (torch.tensor([0, 3, 5, 8]), torch.tensor([5, 1, 0, 2])):
        for loss in losses:
            loss(x, y, items)
        with still(losses[0]):
            losses[0](y, x, items)
    for (name, ours), expected in zip(losses[0].named_buffers(), losses[1].buffers(), strict=True):
        assert torch.equal(ours, expected), name
    assert losses[0].training


def averaged(decay: float) -> tuple[nn.Module, Average]:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).double()
    module[2].requires_grad_(False)
    return module, Average(
        {name: p for name, p in module.named_parameters() if p.requires_grad}, decay
    )


def shake(module: nn.Module) -> None:
    for parameter in filter(lambda parameter: parameter.requires_grad, module.parameters()):
        nn.init.normal_(parameter)


def test_the_average_matches_its_recursion() -> None:
    module, average = averaged(0.4)
    mean = module[0].bias.tolist()
    for step in range(9):
        shake(module)
        average.update(step)
        d = min(0.4, (step + 1) / (step + 10))
        mean = [
            d * m + (1 - d) * value for m, value in zip(mean, module[0].bias.tolist(), strict=True)
        ]
        assert average.means["0.bias"].tolist() == pytest.approx(mean, rel=1e-12)


def test_weights_are_restored_after_applying_the_average() -> None:
    module, average = averaged(0.9)
    module.eval()
    for step in range(3):
        shake(module)
        average.update(step)
    x = rows(5, 3)
    live = copy.deepcopy(module.state_dict())
    by_hand = copy.deepcopy(module)
    by_hand.load_state_dict({**live, **average.means})

    with suppress(RuntimeError), average.applied():
        assert torch.equal(module(x), by_hand(x))
        raise RuntimeError
    assert not torch.allclose(by_hand(x), module(x))
    assert all(torch.equal(tensor, live[name]) for name, tensor in module.state_dict().items())
    average.copy_to_live()
    assert torch.equal(module(x), by_hand(x))
    shake(module)
    assert not torch.equal(module[0].weight, average.means["0.weight"]), (
        "a copy that does not share memory"
    )


def test_the_mean_of_half_precision_weights_changes() -> None:
    """Steps of a thousandth are lost in bfloat16, which has eight significant bits."""
    weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    average = Average({"weight": weight}, 0.999)
    nn.init.constant_(weight, 2.0)
    for step in range(20_000, 20_010):
        average.update(step)
    assert average.means["weight"].item() == pytest.approx(2 - 0.999**10, rel=1e-5)
    with average.applied():
        assert weight.dtype == torch.bfloat16
