"""What moves the weights: sharp gradients, averages, the learning rate."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.losses import GlobalContrastiveLoss
from vldebias.training.optim import (
    Average,
    Sharpness,
    build_optimizer,
    cosine_rate,
    frozen_statistics,
    parameter_groups,
    rates_of,
)
from vldebias.training.settings import Named

METHODS = ["sam", "asam"]


def rows(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def small() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 2)).double()


def mean_loss(module: nn.Module, x: Tensor) -> Tensor:
    return (module(x) ** 2).sum(dim=1).mean()


def backward_of(module: nn.Module, *micro: Tensor) -> Callable[[], Tensor]:
    def passes() -> Tensor:
        losses = [mean_loss(module, x) / len(micro) for x in micro]
        for loss in losses:
            loss.backward()
        return torch.stack(losses).sum().detach()

    return passes


def gradients_of(module: nn.Module) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in module.parameters()]


def climbed_by_hand(module: nn.Module, method: str, rho: float, eta: float) -> nn.Module:
    """A copy of the module at theta_a, entry by entry in plain numbers, from the gradients that it carries."""
    t, g = [], []
    for parameter in module.parameters():
        for value, gradient in zip(parameter.flatten().tolist(), parameter.grad.flatten().tolist(), strict=True):
            t.append(abs(value) + eta if method == "asam" and parameter.ndim >= 2 else 1.0)
            g.append(gradient)
    norm = math.sqrt(sum((a * b) ** 2 for a, b in zip(t, g, strict=True)))
    steps = iter(rho * a * a * b / norm for a, b in zip(t, g, strict=True))
    there = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in there.parameters():
            for index in range(parameter.numel()):
                parameter.view(-1)[index] += next(steps)
    there.zero_grad()
    return there


@pytest.mark.parametrize("method", METHODS)
def test_three_updates_are_those_computed_by_hand(method: str) -> None:
    rho, eta = 0.3, 0.05
    module, slow = small(), small()
    sharpness, optimizer = Sharpness(method, rho=rho, eta=eta), torch.optim.SGD(module.parameters(), lr=0.1)
    for step in range(3):  # without clearing the gradient of the step before
        x = rows(5, 3, seed=step)
        loss = sharpness.gradients(module, list(module.parameters()), backward_of(module, x))
        optimizer.step()
        slow.zero_grad()
        torch.testing.assert_close(loss, backward_of(slow, x)(), rtol=1e-12, atol=0)
        there = climbed_by_hand(slow, method, rho, eta)
        backward_of(there, x)()
        with torch.no_grad():
            for parameter, far in zip(slow.parameters(), there.parameters(), strict=True):
                parameter -= 0.1 * far.grad
        for ours, expected in zip(module.parameters(), slow.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_radius_zero_is_the_plain_gradient_in_one_pass(method: str) -> None:
    module, plain, calls = small(), small(), []
    passes = backward_of(module, rows(5, 3))

    def counted() -> Tensor:
        calls.append(1)
        return passes()

    Sharpness(method, rho=0.0).gradients(module, list(module.parameters()), counted)
    backward_of(plain, rows(5, 3))()
    assert len(calls) == 1
    assert all(torch.equal(a, b) for a, b in zip(gradients_of(module), gradients_of(plain), strict=True))


def test_asam_does_not_see_how_two_layers_share_a_factor() -> None:
    """What ASAM is for: (c A, B / c) computes what (A, B) does, and so does its climb; SAM's does not."""

    def far_loss(method: str, c: float) -> float:
        a, b = nn.Parameter(rows(3, 4, 1) * c), nn.Parameter(rows(4, 2, 2) / c)

        def passes() -> Tensor:
            loss = ((rows(5, 3) @ a @ b) ** 2).mean()
            loss.backward()
            values.append(float(loss.detach()))
            return loss.detach()

        values: list[float] = []
        Sharpness(method, rho=0.1, eta=0.0).gradients(nn.ParameterList([a, b]), [a, b], passes)
        return values[1]

    assert far_loss("asam", 8.0) == pytest.approx(far_loss("asam", 1.0), rel=1e-9)
    assert far_loss("sam", 8.0) != pytest.approx(far_loss("sam", 1.0), rel=1e-2)


@pytest.mark.parametrize("method", METHODS)
def test_one_climb_per_step_whatever_the_micro_batches(method: str) -> None:
    module, joint, x = small(), small(), rows(8, 3)
    a = Sharpness(method, rho=0.5).gradients(module, list(module.parameters()), backward_of(module, *x.chunk(4)))
    b = Sharpness(method, rho=0.5).gradients(joint, list(joint.parameters()), backward_of(joint, x))
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    for ours, expected in zip(gradients_of(module), gradients_of(joint), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_weights_come_back_exactly_and_frozen_ones_never_move(method: str) -> None:
    """Subtracting the climb again would round: one weight is a million times as large as the rest."""
    module = small().float()
    module[0].requires_grad_(False)
    with torch.no_grad():
        module[3].weight[0, 0] = 1e6
    unused = nn.Parameter(torch.ones(2))
    module.register_parameter("unused", unused)
    before = copy.deepcopy(module.state_dict())
    frozen_seen = []

    def passes() -> Tensor:
        frozen_seen.append(module[0].weight.clone())
        return backward_of(module, rows(5, 3).float())()

    Sharpness(method, rho=0.37).gradients(module, list(module.parameters()), passes)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(frozen_seen[0], frozen_seen[1])
    assert unused.grad is None
    assert module[0].weight.grad is None


@pytest.mark.parametrize("method", METHODS)
def test_where_the_loss_is_flat_nothing_moves_and_nothing_is_nan(method: str) -> None:
    theta = nn.Parameter(torch.ones(2, 2))
    theta.grad = torch.zeros(2, 2)
    sharpness = Sharpness(method, rho=1e6)
    with sharpness.climbed([theta]):
        assert torch.equal(theta.detach(), torch.ones(2, 2))
    sharpness.gradients(nn.ParameterList([theta]), [theta], lambda: torch.zeros(()))  # no gradient at all
    assert theta.grad is None


def test_under_autocast_the_climb_is_in_single_precision() -> None:
    module, twin, x = small().float(), small().float(), rows(6, 3).float()

    def passes(each: nn.Module) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mean_loss(each, x)
        loss.backward()
        return loss.detach()

    Sharpness("sam", rho=0.5).gradients(module, list(module.parameters()), lambda: passes(module))
    passes(twin)
    norm = torch.cat([parameter.grad.double().flatten() for parameter in twin.parameters()]).norm().float()
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter += 0.5 * parameter.grad / norm
            parameter.grad = None
    passes(twin)
    for ours, expected in zip(gradients_of(module), gradients_of(twin), strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, expected, rtol=2e-2, atol=1e-4)  # bfloat16 may round either way


@pytest.mark.parametrize("method", METHODS)
def test_weights_in_half_precision_are_rounded_once(method: str) -> None:
    theta = nn.Parameter(rows(40, 40).bfloat16())
    theta.grad = rows(40, 40, seed=1).bfloat16()
    t = theta.detach().float().abs() + 0.01 if method == "asam" else torch.ones(40, 40)
    g = theta.grad.float()
    exact = theta.detach().float() + 3 * t**2 * g / (t * g).norm()
    with Sharpness(method, rho=3.0).climbed([theta]):
        off = (theta.detach().float() - exact).abs()
    assert bool((off <= exact.abs() * 2**-8 * 1.001).all())


def test_both_passes_drop_the_same_units() -> None:
    masks = []

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(50, 50))

        def forward(self) -> Tensor:
            mask = nn.functional.dropout(torch.ones(50), 0.5)
            masks.append(mask)
            return ((self.weight @ mask) ** 2).mean()

    module = Dropping()

    def passes() -> Tensor:
        for _ in range(2):
            module().backward()
        return torch.zeros(())

    torch.manual_seed(3)
    Sharpness("sam").gradients(module, list(module.parameters()), passes)
    after = torch.get_rng_state()
    assert torch.equal(masks[0], masks[2])
    assert torch.equal(masks[1], masks[3])
    assert not torch.equal(masks[0], masks[1])
    torch.manual_seed(3)
    passes()
    assert torch.equal(after, torch.get_rng_state())  # the next step draws what it would have drawn


NORMS = {
    "batch": lambda: nn.BatchNorm1d(2),
    "batch, cumulative": lambda: nn.BatchNorm1d(2, momentum=None),
    "instance": lambda: nn.InstanceNorm1d(2, track_running_stats=True),
}


@pytest.mark.parametrize("kind", NORMS)
def test_running_statistics_move_once_and_both_passes_use_those_of_the_batch(kind: str) -> None:
    module = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3)), NORMS[kind](), nn.Flatten(), nn.Linear(6, 2))
    module.double()
    once, x = copy.deepcopy(module), rows(6, 3)
    for _ in range(2):
        Sharpness("sam", rho=0.4).gradients(module, list(module.parameters()), backward_of(module, x))
        once.zero_grad()
        backward_of(once, x)()
    there = climbed_by_hand(once, "sam", 0.4, 0.0)
    backward_of(there, x)()
    for ours, expected in zip(gradients_of(module), gradients_of(there), strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    for (name, ours), expected in zip(module.named_buffers(), once.buffers(), strict=True):
        assert torch.equal(ours, expected), name


def test_statistics_that_are_frozen_already_stay_in_use() -> None:
    module, x = nn.BatchNorm1d(3).double().eval(), rows(6, 3) + 5
    with frozen_statistics(module):
        inside = module(x)
    assert torch.equal(inside, module(x))
    assert not torch.allclose(module.train()(x), inside, atol=1.0)  # those of the batch are others


def test_the_state_of_a_global_loss_moves_once() -> None:
    class Trainee(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(2)
            self.image, self.text = nn.Linear(3, 4).double(), nn.Linear(3, 4).double()
            self.loss = GlobalContrastiveLoss(9, temperature=0.3, popularity_lr=0.5).double()

        def forward(self, x: Tensor, y: Tensor, index: Tensor) -> Tensor:
            unit = nn.functional.normalize
            value: Tensor = self.loss(unit(self.image(x)), unit(self.text(y)), index)
            return value

    module, once = Trainee(), Trainee()
    for items in (torch.tensor([0, 3, 5, 8]), torch.tensor([5, 1, 0, 2])):

        def passes(each: nn.Module, items: Tensor = items) -> Tensor:
            loss = each(rows(4, 3, 1), rows(4, 3, 2), items)
            loss.backward()
            return loss.detach()

        Sharpness("sam", rho=0.3).gradients(module, list(module.parameters()), lambda: passes(module))
        once.zero_grad()
        passes(once)
    for (name, ours), expected in zip(module.named_buffers(), once.buffers(), strict=True):
        assert torch.equal(ours, expected), name
    assert module.loss.training


def test_a_pass_that_fails_leaves_weights_and_modes_as_they_were() -> None:
    module = nn.ModuleList([nn.Linear(3, 4), GlobalContrastiveLoss(9)]).double()
    before, calls = copy.deepcopy(module.state_dict()), []

    def passes() -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return backward_of(module[0], rows(5, 3))()

    sharpness = Sharpness("sam")
    with pytest.raises(RuntimeError, match="out of memory"):
        sharpness.gradients(module, list(module.parameters()), passes)
    assert torch.equal(module[0].weight, before["0.weight"])
    assert module[1].training
    sharpness.gradients(
        module, list(module.parameters()), backward_of(module[0], rows(5, 3))
    )  # and it may be used again


@refused(
    ({"method": "sma"}, "method: expected one of 'sam', 'asam', got 'sma'"),
    ({"rho": -0.1}, r"rho: expected a number in \[0, inf\), got -0.1"),
    ({"eta": -1.0}, r"eta: expected a number in \[0, inf\), got -1.0"),
)
def test_other_settings_are_refused(options: dict[str, Any]) -> None:
    Sharpness(**options)


def averaged() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    module[2].requires_grad_(False)
    return module


def shake(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))


def test_it_is_the_recursion_in_plain_numbers() -> None:
    module = averaged().double()
    average, mean = Average(module, decay=0.4), module[0].bias.tolist()
    for step in range(9):
        shake(module)
        average.update(step)
        d = min(0.4, (step + 1) / (step + 10))
        mean = [d * m + (1 - d) * value for m, value in zip(mean, module[0].bias.tolist(), strict=True)]
        assert average.means["0.bias"].tolist() == pytest.approx(mean, rel=1e-12)


def test_live_averaged_and_live_again() -> None:
    module, x = averaged().eval(), torch.randn(5, 3)
    average = Average(module, decay=0.9)
    for step in range(3):
        shake(module)
        average.update(step)
    live, buffers = copy.deepcopy(module.state_dict()), dict(module.named_buffers())
    by_hand = copy.deepcopy(module)
    by_hand.load_state_dict({**live, **average.means})
    before, seen = module(x), list[Tensor]()

    def use() -> None:
        with average.applied():
            seen.append(module(x))
            assert all(torch.equal(p, average.means.get(name, live[name])) for name, p in module.named_parameters())
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        use()
    (during,) = seen
    assert torch.equal(during, by_hand(x))
    assert not torch.allclose(during, before)
    assert torch.equal(module(x), before)
    assert all(torch.equal(tensor, live[name]) for name, tensor in module.state_dict().items())
    assert all(buffer is buffers[name] for name, buffer in module.named_buffers())
    average.copy_to_live()
    assert torch.equal(module(x), during)
    shake(module)
    assert not torch.equal(module[0].weight, average.means["0.weight"])  # a copy, not the same memory


def test_frozen_parameters_and_buffers_are_left_alone() -> None:
    assert list(Average(averaged()).means) == ["0.weight", "0.bias", "1.weight", "1.bias"]


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

    module = averaged()
    module[0] = checkpoint_wrapper(module[0])
    compiled = nn.ModuleDict({"_orig_mod": module})  # the name that torch.compile puts in between
    assert list(Average(compiled).means) == list(Average(averaged()).means)


def test_a_decay_outside_its_interval_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"decay: expected a number in \[0, 1\), got 1.0"):
        Average(averaged(), decay=1.0)


@given(steps=st.integers(1, 400), warmup=st.floats(0, 0.9), end=st.floats(0, 1))
def test_it_rises_then_falls_to_the_end(steps: int, warmup: float, end: float) -> None:
    rates = [cosine_rate(step, steps, peak=1.0, warmup=warmup, end=end) for step in range(steps)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert all(a >= b - 1e-12 for a, b in zip(rates[top:], rates[top + 1 :], strict=False))
    assert all(0 <= rate <= 1 + 1e-12 for rate in rates)
    assert rates[-1] > end * (1 - 1e-12)
    assert rates[0] > 0


@refused((-1, r"step: expected 0 \.\. 9"), (10, r"step: expected 0 \.\. 9"))
def test_steps_outside_are_refused(step: int) -> None:
    cosine_rate(step, 10, peak=1.0)


def test_an_optimizer_of_torch_with_its_options() -> None:
    groups = parameter_groups(torch.nn.Linear(2, 2), 0.1)
    made = build_optimizer(Named(name="SGD", momentum=0.7), groups, lr=0.1, betas=(0.9, 0.98))
    assert isinstance(made, torch.optim.SGD)
    assert [(group["momentum"], group["weight_decay"]) for group in made.param_groups] == [(0.7, 0.1), (0.7, 0.0)]
    adam = build_optimizer(Named(name="NAdam"), groups, lr=0.1, betas=(0.8, 0.98))
    assert adam.param_groups[0]["betas"] == (0.8, 0.98)


@refused(
    ({"name": "Adamv"}, r"expected one of torch.optim .*, got 'Adamv'; did you mean 'Adam'"),
    ({"name": "LBFGS"}, "expected one of torch.optim"),
    ({"name": "SGD", "momentun": 0.9}, "optimizer: SGD: .*momentun"),
    ({"name": "SGD", "momentum": -1}, "optimizer: SGD: Invalid momentum value: -1"),
)
def test_optimizers_that_are_refused(chosen: dict[str, Any]) -> None:
    build_optimizer(Named(**chosen), parameter_groups(torch.nn.Linear(2, 2), 0.1), lr=0.1)


def test_own_schedules_are_the_cosine_s() -> None:
    for name in ("cosine", "linear", "constant"):
        rate = rates_of(Named(name=name), 9, peak=2.0, warmup=0.3, end=0.1)
        expected = [cosine_rate(k, 9, peak=2.0, warmup=0.3, end=0.1, schedule=name) for k in range(9)]
        assert [rate(k) for k in range(9)] == expected


def test_a_schedule_of_torch_follows_the_rise() -> None:
    rate = rates_of(Named(name="ExponentialLR", gamma=0.5), 6, peak=1.0, warmup=1 / 3, end=0.0)
    assert [rate(k) for k in range(6)] == pytest.approx([0.5, 1, 1, 0.5, 0.25, 0.125])
    cosine = rates_of(Named(name="CosineAnnealingLR"), 8, peak=1.0, warmup=0.0, end=0.0)
    assert [cosine(k) for k in range(8)] == pytest.approx([cosine_rate(k, 8, peak=1.0) for k in range(8)])


def test_a_schedule_of_transformers_is_its_own() -> None:
    rate = rates_of(Named(name="polynomial", power=2.0), 10, peak=1.0, warmup=0.2, end=0.0)
    assert [rate(0), rate(1), rate(2)] == pytest.approx([0.0, 0.5, 1.0])
    assert rate(6) == pytest.approx(0.25, abs=1e-5)


@refused(
    ({"name": "cosin"}, 0.0, "schedule: cosin: "),
    ({"name": "ReduceLROnPlateau"}, 0.0, "waits for scores"),
    ({"name": "ExponentialLR"}, 0.0, "schedule: ExponentialLR: .*gamma"),
    ({"name": "OneCycleLR"}, 0.1, "does not read lr_end"),
    ({"name": "linear", "power": 2}, 0.0, "schedule: linear: .*power"),
)
def test_schedules_that_are_refused(chosen: dict[str, Any], end: float) -> None:
    rates_of(Named(**chosen), 5, peak=1.0, warmup=0.0, end=end)
