"""Sharpness-aware minimisation (SAM, ASAM): the gradient where the loss is worst nearby, in two passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from vldebias.errors import InvalidInputError
from vldebias.losses import GlobalContrastiveLoss
from vldebias.losses.checks import check_choice, check_interval
from vldebias.training.sharded import refuse_flat, total_norm

__all__ = ["Sharpness", "frozen_statistics"]


class Sharpness:
    """Updates with the gradient of the worst point nearby instead of that here (SSA-CLR, section 4.3).

        theta_a = theta + rho g / |g|               SAM, Foret et al. (2021)
        theta_a = theta + rho T^2 g / |T g|         ASAM, Kwon et al. (2021), with T = |theta| + eta

    where g is the gradient of the whole step at theta and | | the norm over all parameters together. The gradient at
    theta_a is then applied to theta. ASAM's T is that of each entry for tensors of two and more dimensions, and 1 for
    vectors and scalars (biases, gains, the temperature). The authors scale whatever is named "weight", which are also
    the gains; those are near 1, where the two conventions agree.

    Under autocast the weights stay in float32, and so does the norm; weights kept in bfloat16 would swallow much of
    so small a step. The direction does not depend on the scale of g, so a scaler of the loss may be left on.

        loss = sharpness.gradients(module, parameters, one_step_of_backward_passes)
        clip_grad_norm_(parameters, 1.0); optimizer.step()

    Args:
        method: "sam" or "asam".
        rho: radius, >= 0; by default .05 for SAM and 2 for ASAM, as in SSA-CLR, section 6.1. 0 is the plain gradient.
        eta: added to |theta| by ASAM, >= 0.

    Raises:
        InvalidInputError: an unknown method, a negative rho or eta.
    """

    def __init__(self, method: Literal["sam", "asam"] = "sam", *, rho: float | None = None, eta: float = 0.01) -> None:
        check_choice("method", method, ("sam", "asam"))
        self.method = method
        self.rho = {"sam": 0.05, "asam": 2.0}[method] if rho is None else rho
        self.eta = eta
        check_interval("rho", self.rho, "[0, inf)")
        check_interval("eta", self.eta, "[0, inf)")
        self._before: list[tuple[nn.Parameter, Tensor]] | None = None

    def gradients(self, module: nn.Module, parameters: Sequence[nn.Parameter], passes: Callable[[], Tensor]) -> Tensor:
        """Leaves the sharp gradient in `.grad` and the weights as they were.

        `passes` is called twice (once for rho = 0) and must add to `.grad` the gradient of one whole step: all its
        micro-batches, exchanged between the processes (DistributedDataParallel and FSDP2 do so with the last of
        them), so that every process climbs to the same point. Both calls draw the same random numbers from torch's
        generators of the CPU and of the parameters' GPU. Running statistics and the state of losses move in the
        first call only.

        Args:
            module: what `passes` trains, wrapped or not.
            parameters: those of the optimizer. Their gradients are cleared first; one without a gradient, frozen or
                unused, takes no part.
            passes: forward and backward; returns the loss.

        Returns:
            The loss at theta, what the first call returned.

        Raises:
            InvalidInputError: a module of FSDP's first version.
        """
        refuse_flat(module)
        _clear(parameters)
        if self.rho == 0:
            return passes()
        with torch.random.fork_rng(**_generators(parameters)):
            loss = passes()
        try:
            self.ascend(parameters)
            _clear(parameters)
            with frozen_statistics(module):
                passes()
        finally:
            self.restore()
        return loss

    @torch.no_grad()
    def ascend(self, parameters: Sequence[nn.Parameter]) -> None:
        """Moves the parameters to theta_a along their gradients, and keeps copies of what they were.

        Raises:
            InvalidInputError: called twice without `restore`.
        """
        if self._before is not None:
            raise InvalidInputError("ascend: the parameters have climbed already; call restore() first")
        moving = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        self._before = [(parameter, parameter.detach().clone()) for parameter, _ in moving]
        if not moving:
            return
        norm = total_norm([self._scaled(parameter, gradient) for parameter, gradient in moving])
        length = torch.where(norm > 0, self.rho / norm, 0.0)  # where all is flat there is nowhere to climb
        for parameter, gradient in moving:
            parameter.add_(self._scaled(parameter, self._scaled(parameter, gradient)) * length)

    @torch.no_grad()
    def restore(self) -> None:
        """Puts back the exact weights from before `ascend`; without one it does nothing."""
        before, self._before = self._before or [], None
        for parameter, kept in before:
            parameter.copy_(kept)

    def _scaled(self, parameter: nn.Parameter, vector: Tensor) -> Tensor:
        """T vector, in float32 at least."""
        wide = vector.to(torch.promote_types(vector.dtype, torch.float32))
        if self.method == "sam" or parameter.ndim < 2:
            return wide
        return wide * (parameter.to(wide.dtype).abs() + self.eta)


@contextmanager
def frozen_statistics(module: nn.Module) -> Iterator[None]:
    """Running statistics, and the state of losses, are afterwards what they were; what is computed does not change.

    Normalisation in training mode goes on to use the statistics of the batch.
    """
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    kept = [(buffer, buffer.clone()) for part in norms for buffer in part.buffers(recurse=False)]
    losses = [part for part in module.modules() if isinstance(part, GlobalContrastiveLoss) and part.training]
    try:
        for loss in losses:
            loss.training = False
        yield
    finally:
        for loss in losses:
            loss.training = True
        for buffer, value in kept:
            buffer.copy_(value)


def _clear(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _generators(parameters: Sequence[nn.Parameter]) -> dict[str, Any]:
    """Which generators besides the CPU's the parameters' device draws from, as `torch.random.fork_rng` takes it."""
    devices = {parameter.device for parameter in parameters if parameter.device.type in ("cuda", "xpu")}
    if not devices:
        return {"devices": []}
    return {"devices": sorted(device.index for device in devices), "device_type": devices.pop().type}
