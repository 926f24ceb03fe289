"""What moves the weights: learning rate, groups of parameters, their moving average, sharpness-aware gradients."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from vldebias.errors import InvalidInputError, did_you_mean, need
from vldebias.losses import GlobalContrastiveLoss, GroupWeights
from vldebias.losses.checks import check_choice, check_interval
from vldebias.training.settings import Named
from vldebias.training.sharded import parameters_of, refuse_flat, reshard, whole

_OWN_SCHEDULES = ("cosine", "linear", "constant")


def cosine_rate(
    step: int, steps: int, *, peak: float, warmup: float = 0.0, end: float = 0.0, schedule: str = "cosine"
) -> float:
    """Linear rise to `peak` over the first share `warmup` of `steps`, then half a cosine towards `end`.

    schedule: "linear" falls on a line instead, "constant" stays at the peak. The end is where step `steps` would be.

    Raises:
        InvalidInputError: step outside 0 .. steps - 1.

    >>> [round(cosine_rate(step, 5, peak=1.0, warmup=0.4), 2) for step in range(5)]
    [0.5, 1.0, 1.0, 0.75, 0.25]
    """
    if not 0 <= step < steps:
        raise InvalidInputError(f"step: expected 0 .. {steps - 1}, got {step}")
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    passed = (step - rising) / (steps - rising)
    left = {"cosine": (1 + math.cos(math.pi * passed)) / 2, "linear": 1 - passed, "constant": 1.0}[schedule]
    return end + (peak - end) * left


def keep_frozen_still(module: nn.Module) -> None:
    """After `module.train()`: what has weights and learns none of them goes back to evaluation mode.

    There dropout would only add noise, and batch normalisation would move statistics that belong to the loaded tower.
    """
    for part in module.modules():
        weights = list(part.parameters())
        if weights and not any(weight.requires_grad for weight in weights):
            part.eval()


def parameter_groups(
    module: nn.Module, weight_decay: float, rates: Mapping[nn.Parameter, float] | None = None
) -> list[dict[str, Any]]:
    """Groups for an optimizer: the parameters that learn, and of these the vectors and scalars without decay.

    Vectors are biases, gains of norms, class embeddings, popularities; scalars are temperatures: pulling them to 0 is
    no regularisation. Call it before FSDP flattens parameters. rates: of some parameters, times that of the others.
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if parameter.requires_grad:
            groups.setdefault((parameter.ndim < 2, (rates or {}).get(parameter, 1.0)), []).append(parameter)
    return [
        {"params": own, "weight_decay": 0.0 if vectors else weight_decay, "rate": rate}
        for (vectors, rate), own in sorted(groups.items(), key=lambda item: (item[0][0], -item[0][1]))
    ]


def build_optimizer(chosen: Named, groups: list[dict[str, Any]], **usual: Any) -> torch.optim.Optimizer:
    """The optimizer of torch.optim that is named, with its options, and of `usual` ones those that it has.

    Raises:
        InvalidInputError: no such optimizer, one that calls the loss itself (LBFGS), options that it refuses.
    """
    kinds = {name: kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    kind: Any = kinds.get(chosen.name)
    if kind is None or chosen.name in ("Optimizer", "LBFGS"):
        names = sorted(set(kinds) - {"Optimizer", "LBFGS"})
        raise InvalidInputError(
            f"optimizer: expected one of torch.optim ({', '.join(names)}), got {chosen.name!r}; "
            f"{did_you_mean(chosen.name, names)}"
        )
    has = inspect.signature(kind).parameters
    try:
        made: torch.optim.Optimizer = kind(groups, **{n: v for n, v in usual.items() if n in has} | chosen.options)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"optimizer: {chosen.name}: {error}") from None
    return made


def rates_of(schedule: Named, steps: int, *, peak: float, warmup: float, end: float) -> Callable[[int], float]:
    """Step -> learning rate, by the name of a schedule: of `cosine_rate`, torch.optim.lr_scheduler or transformers.

    torch's follow the linear rise over the share `warmup`, and are told how long they are and how high (total_steps,
    total_iters, T_max, max_lr) where their options do not say. transformers' rise themselves. Neither reads `end`.

    Raises:
        InvalidInputError: no such schedule, one that waits for scores, options that it refuses, or an `end`.
    """
    if schedule.name in _OWN_SCHEDULES and not schedule.options:
        return lambda step: cosine_rate(step, steps, peak=peak, warmup=warmup, end=end, schedule=schedule.name)
    rising = round(warmup * steps)
    left = steps - rising
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], lr=peak)
    kind: Any = getattr(torch.optim.lr_scheduler, schedule.name, None)
    try:
        if end:
            raise ValueError("does not read lr_end; give its own option, or use cosine or linear")
        if isinstance(kind, type):
            lengths = dict.fromkeys(("total_steps", "total_iters", "T_max"), left)
            has = inspect.signature(kind).parameters
            known = {name: value for name, value in {**lengths, "max_lr": peak}.items() if name in has}
            scheduler, first = kind(optimizer, **known | schedule.options), rising
        else:
            get_scheduler = need("transformers").get_scheduler

            options: Any = schedule.options
            scheduler, first = get_scheduler(schedule.name, optimizer, rising, steps, options), 0
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ValueError("waits for scores, and a step here is a function of its number alone")
        rates = [peak * (step + 1) / rising for step in range(first)]
        for _ in range(steps - first):
            rates.append(float(optimizer.param_groups[0]["lr"]))
            optimizer.step()
            scheduler.step()
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(f"schedule: {schedule.name}: {error}") from None
    return rates.__getitem__


class Average:
    """Mean of a module's trainable parameters over its last 1 / (1 - decay) or so updates.

        mean <- d mean + (1 - d) theta      d = min(decay, (step + 1) / (step + 10))

    so that the first weights are soon forgotten. Buffers (running statistics, the state of losses) are those of the
    last step. Means of half-precision weights are kept in float32, which a decay of .999 needs. With FSDP2 each process
    averages its own shards; make the average after the module is wrapped.

    Args:
        module: which parameters, of those that require gradients now.
        decay: in [0, 1).
    """

    def __init__(self, module: nn.Module, decay: float = 0.999) -> None:
        check_interval("decay", decay, "[0, 1)")
        self.decay, self._module = decay, module
        self._live = {name: p for name, p in parameters_of(module).items() if p.requires_grad}
        self.means: dict[str, Tensor] = {name: _wide(p.detach()).clone() for name, p in self._live.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Moves the mean towards the weights after step `step`, counted from 0."""
        weight = 1 - min(self.decay, (step + 1) / (step + 10))
        for name, parameter in self._live.items():
            self.means[name].lerp_(_wide(parameter.detach()), weight)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module has its averaged weights while this lasts, and its own afterwards, whatever happens."""
        own = {name: parameter.detach().clone() for name, parameter in self._live.items()}
        try:
            self.copy_to_live()
            yield
        finally:
            self._put(own)

    def copy_to_live(self) -> None:
        """Replaces the weights by their mean, for good."""
        self._put(self.means)

    @torch.no_grad()
    def _put(self, values: dict[str, Tensor]) -> None:
        reshard(self._module)
        for name, parameter in self._live.items():
            parameter.copy_(values[name])


class Sharpness:
    """Updates with the gradient of the worst point nearby instead of that here (SSA-CLR, section 4.3).

        theta_a = theta + rho g / |g|               SAM, Foret et al. (2021)
        theta_a = theta + rho T^2 g / |T g|         ASAM, Kwon et al. (2021), with T = |theta| + eta

    where g is the gradient of the whole step at theta and | | the norm over all parameters together. The gradient at
    theta_a is then applied to theta. T is that of each entry for tensors of two and more dimensions, and 1 for vectors
    and scalars (the authors scale whatever is named "weight": also gains, which are near 1).

    The norm is in float32 at least; weights kept in bfloat16 would swallow much of so small a step. The direction does
    not depend on the scale of g, so a scaler of the loss may be left on.

        loss = sharpness.gradients(module, parameters, one_step_of_backward_passes)
        clip_grad_norm_(parameters, 1.0); optimizer.step()

    Args:
        method: "sam" or "asam".
        rho: radius, >= 0; by default .05 for SAM and 2 for ASAM, as in SSA-CLR, section 6.1. 0 is the plain gradient.
        eta: added to |theta| by ASAM, >= 0.
    """

    def __init__(self, method: Literal["sam", "asam"] = "sam", *, rho: float | None = None, eta: float = 0.01) -> None:
        check_choice("method", method, ("sam", "asam"))
        self.method, self.eta = method, eta
        self.rho = {"sam": 0.05, "asam": 2.0}[method] if rho is None else rho
        check_interval("rho", self.rho, "[0, inf)")
        check_interval("eta", self.eta, "[0, inf)")

    def gradients(self, module: nn.Module, parameters: Sequence[nn.Parameter], passes: Callable[[], Tensor]) -> Tensor:
        """Leaves the sharp gradient in `.grad` and the weights as they were.

        `passes` is called twice (once for rho = 0) and must add to `.grad` the gradient of one whole step: all its
        micro-batches, exchanged between the processes, so that every process climbs to the same point. Both calls draw
        the same random numbers from torch's generators of the CPU and of the parameters' GPU. Running statistics and
        the state of losses move in the first call only.

        Args:
            module: what `passes` trains, wrapped or not.
            parameters: those of the optimizer; one without a gradient, frozen or unused, takes no part.
            passes: forward and backward; returns the loss.

        Returns:
            The loss at theta, what the first call returned.

        Raises:
            InvalidInputError: a module of FSDP's first version.
        """
        refuse_flat(module)
        module.zero_grad()
        if self.rho == 0:
            return passes()
        devices = {parameter.device for parameter in parameters if parameter.device.type in ("cuda", "xpu")}
        drawing: dict[str, Any] = {"devices": sorted(device.index for device in devices)}
        if devices:
            drawing["device_type"] = devices.pop().type
        with torch.random.fork_rng(**drawing):
            loss = passes()
        with self.climbed(parameters), frozen_statistics(module):
            module.zero_grad()
            passes()
        return loss

    @contextmanager
    def climbed(self, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
        """The parameters are at theta_a along their gradients while this lasts, exactly what they were afterwards."""
        moving = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        before = [(parameter, parameter.detach().clone()) for parameter, _ in moving]
        try:
            with torch.no_grad():
                if moving:
                    norm = whole(nn.utils.get_total_norm(self._scaled(*one) for one in moving))
                    length = torch.where(norm > 0, self.rho / norm, 0.0)  # where all is flat there is nowhere to climb
                for parameter, gradient in moving:
                    parameter.add_(self._scaled(parameter, self._scaled(parameter, gradient)) * length)
            moving.clear()  # or the second pass would hold two gradients
            yield
        finally:
            with torch.no_grad():
                for parameter, kept in before:
                    parameter.copy_(kept)

    def _scaled(self, parameter: nn.Parameter, vector: Tensor) -> Tensor:
        """T vector, in float32 at least."""
        wide = _wide(vector)
        if self.method == "sam" or parameter.ndim < 2:
            return wide
        return wide * (parameter.to(wide.dtype).abs() + self.eta)


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Running statistics, and the state of losses, are afterwards what they were; what is computed does not change."""
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    kept = [(buffer, buffer.clone()) for part in norms for buffer in part.buffers(recurse=False)]
    stateful = (GlobalContrastiveLoss, GroupWeights)
    losses = [part for part in module.modules() if isinstance(part, stateful) and part.training]
    try:
        for loss in losses:
            loss.training = False
        yield
    finally:
        for loss in losses:
            loss.training = True
        for buffer, value in kept:
            buffer.copy_(value)


def _wide(tensor: Tensor) -> Tensor:
    """In float32 at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
