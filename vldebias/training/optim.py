"""Update weights: moving average, sharpness-aware gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from vldebias.losses import GlobalContrastiveLoss, GroupWeights

RHO = {"sam": 0.05, "asam": 2.0}  # as in SSA-CLR, section 6.1
_ETA = 0.01  # added to |theta| by ASAM


@contextmanager
def _restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore the present values of tensors, bit for bit, when the block ends."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)


class Average:
    """Keep the mean of a module's trainable parameters over about its last 1 / (1 - decay) updates.

        mean <- d mean + (1 - d) theta      d = min(decay, (step + 1) / (step + 10))

    Buffers are those of the last step. Means of half-precision weights are in float32, which a
    decay of .999 needs.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.live = parameters
        self.means = {name: _wide(p.detach()).clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move the mean towards the weights after step `step`, counted from 0."""
        # A short memory at first, or the mean would keep
        # the untrained weights for 1 / (1 - d) steps.
        weight = 1 - min(self.decay, (step + 1) / (step + 10))
        for name, parameter in self.live.items():
            self.means[name].lerp_(_wide(parameter.detach()), weight)

    @torch.no_grad()
    def copy_to_live(self) -> None:
        """Replace the weights by their mean, for good."""
        for name, parameter in self.live.items():
            parameter.copy_(self.means[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the module its averaged weights inside the block, and its own afterwards."""
        with _restored(self.live.values()):
            self.copy_to_live()
            yield


class StartingWeights:
    """Keep copies of a model's trainable parameters, with which they are averaged after training:
    WiSE-FT, Wortsman et al. (2022).

    share: weight of the trained parameters in the average.
    """

    def __init__(self, model: nn.Module, share: float) -> None:
        self.share = share
        self.copies: list[tuple[nn.Parameter, Tensor]] = []
        for parameter in model.parameters():
            if parameter.requires_grad:
                self.copies.append((parameter, parameter.detach().clone()))

    @torch.no_grad()
    def average_with_live(self) -> None:
        """Replace the weights by their average with the copies, for good."""
        for parameter, copy in self.copies:
            parameter.copy_(torch.lerp(copy, parameter, self.share))


@contextmanager
def climbed(parameters: Sequence[nn.Parameter], method: str, rho: float) -> Iterator[None]:
    """Move the parameters one step up their gradients inside the block, and restore them exactly
    afterwards.

        theta_a = theta + rho g / |g|               SAM, Foret et al. (2021)
        theta_a = theta + rho T^2 g / |T g|         ASAM, Kwon et al. (2021), with T = |theta| + .01

    g is the gradient of all parameters together, so its norm is one number for the whole model
    (SSA-CLR, Tran et al., 2023, section 4.3); T is 1 for vectors and scalars. The scale of g does
    not matter, so a scaler of the loss may be left on.

    Args:
        parameters: the weights, with gradients.
        method: "sam" or "asam".
        rho: length of the step.
    """

    def scaled(parameter: nn.Parameter, vector: Any) -> Tensor:
        wide = _wide(vector)
        if method == "sam" or parameter.ndim < 2:
            return wide
        return wide * (parameter.to(wide.dtype).abs() + _ETA)

    # Nothing here holds their gradients, which the block may free.
    moving = [parameter for parameter in parameters if parameter.grad is not None]
    with _restored(moving):
        with torch.no_grad():
            # T g, whose norm is |T g|; the step below is T (T g).
            norms = []
            for parameter in moving:
                norms.append(torch.linalg.vector_norm(scaled(parameter, parameter.grad)))
            norm = torch.linalg.vector_norm(torch.stack(norms))
            if norm > 0:  # where all is flat there is nowhere to climb
                for parameter in moving:
                    step = scaled(parameter, scaled(parameter, parameter.grad))
                    parameter.add_(step * (rho / norm))
        yield


@contextmanager
def still(module: nn.Module) -> Iterator[None]:
    """Keep running statistics and the state of losses constant inside the block; results do not
    change."""
    # Batch norms learn their statistics in every pass, and would count the second one too.
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    stateful = (GlobalContrastiveLoss, GroupWeights)
    losses = [part for part in module.modules() if isinstance(part, stateful) and part.training]
    with _restored(chain.from_iterable(part.buffers(recurse=False) for part in norms)):
        try:
            for loss in losses:
                loss.training = False
            yield
        finally:
            for loss in losses:
                loss.training = True


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
