"""Average weights, and compute gradients at perturbed weights (SAM)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from vldebias.losses import GroupWeights, SogCLR

RHO = {"sam": 0.05, "asam": 2.0}  # Values from SSA-CLR, section 6.1.
_ETA = 0.01  # ASAM adds this to |theta|.


@contextmanager
def _restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore the exact values of tensors when the block ends."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)


class Average:
    """Average a module's trainable parameters over about 1 / (1 - decay) updates.

        mean <- d mean + (1 - d) theta,   d = min(decay, (step + 1) / (step + 10))

    Buffers are not averaged. Means of half-precision weights are stored in float32, because half
    precision cannot represent the small updates of a decay such as 0.999.

    Args:
        parameters: trainable parameters by name.
        decay: decay d of the average, below 1.
    """

    def __init__(self, parameters: dict[str, nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.live = parameters
        self.means = {name: _wide(p.detach()).clone() for name, p in parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the mean after a step, counted from 0."""
        # Use a smaller decay at first, because the mean would otherwise include the initial weights
        # for about 1 / (1 - d) steps.
        weight = 1 - min(self.decay, (step + 1) / (step + 10))
        for name, parameter in self.live.items():
            self.means[name].lerp_(_wide(parameter.detach()), weight)

    @torch.no_grad()
    def copy_to_live(self) -> None:
        """Replace the weights with their mean."""
        for name, parameter in self.live.items():
            parameter.copy_(self.means[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the weights with their mean inside the block, and restore them afterwards."""
        with _restored(self.live.values()):
            self.copy_to_live()
            yield


class StartingWeights:
    """Copies of the initial weights, to go half way back to them after training.

    This is WiSE-FT (Wortsman et al., 2022), whose default weight of the trained model is 1/2.
    The running statistics of norms are averaged like the parameters.

    Args:
        model: the model before training.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors: list[Tensor] = [part for part in model.parameters() if part.requires_grad]
        for norm in model.modules():
            if isinstance(norm, _NormBase):
                tensors += [part for part in norm.buffers() if part.is_floating_point()]
        # On the CPU, because the copies are only needed at the end.
        self.copies = [(part, part.detach().to("cpu", copy=True)) for part in tensors]

    @torch.no_grad()
    def go_half_way(self) -> None:
        """Replace the weights with the mean of the weights and their copies."""
        for tensor, copy in self.copies:
            tensor.copy_(torch.lerp(copy.to(tensor.device), tensor, 0.5))

    @contextmanager
    def half_way(self) -> Iterator[None]:
        """Go half way back to the initial weights inside the block, and return afterwards."""
        with _restored(tensor for tensor, _ in self.copies):
            self.go_half_way()
            yield


@contextmanager
def climbed(parameters: Sequence[nn.Parameter], method: str, rho: float) -> Iterator[None]:
    """Move parameters one step along their gradients inside the block, then restore them.

        theta_a = theta + rho g / |g|               SAM, Foret et al. (2021)
        theta_a = theta + rho T^2 g / |T g|         ASAM, Kwon et al. (2021), with T = |theta| + .01

    g is the joint gradient of all parameters, so its norm is a single number for the entire model
    (SSA-CLR, Tran et al., 2023, section 4.3). T is 1 for vectors and scalars. The scale of g does
    not matter, so the loss may be scaled.

    Args:
        parameters: parameters with gradients.
        method: "sam" or "asam".
        rho: length of the step.
    """
    moving = [parameter for parameter in parameters if parameter.grad is not None]
    with _restored(moving):
        # Do not keep a reference to the gradients, because the block may free them.
        _climb(moving, method, rho)
        yield


@torch.no_grad()
def _climb(parameters: Sequence[nn.Parameter], method: str, rho: float) -> None:
    """Take the step of `climbed` for parameters that have gradients."""

    def scaled(parameter: nn.Parameter, vector: Tensor | None) -> Tensor:
        """Return T times a vector."""
        assert vector is not None
        wide = _wide(vector)
        if method == "sam" or parameter.ndim < 2:
            return wide
        return wide * (parameter.to(wide.dtype).abs() + _ETA)

    # Compute T g twice, because storing it would take as much memory as the weights.
    norms = [torch.linalg.vector_norm(scaled(p, p.grad)) for p in parameters]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    # If all gradients are zero, there is no direction to move in.
    if norm > 0:
        for parameter in parameters:
            step = scaled(parameter, scaled(parameter, parameter.grad))
            parameter.add_(step * (rho / norm))


@contextmanager
def still(module: nn.Module) -> Iterator[None]:
    """Freeze running statistics and loss states inside the block."""
    # Batch norms update their statistics in every forward pass, so an extra pass would count twice.
    norms = [part for part in module.modules() if isinstance(part, _NormBase)]
    stateful = (SogCLR, GroupWeights)
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
