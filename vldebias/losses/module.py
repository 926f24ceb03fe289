"""What the modules share: a loss function holds the mathematics, its module holds the settings."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses.contrast import Reduction, check_options

__all__ = ["ContrastiveLoss", "Temperature"]


class Temperature(nn.Module):
    """A temperature, fixed or learned as CLIP learns it: in the logarithm, and never below `minimum`.

    The parameter is put back into its range before it is used, as CLIP clamps its logit scale after a step. A clamp
    inside the graph would instead stop its gradient for good once it had crossed the bound. Keep it out of weight
    decay, which would pull the temperature towards 1.

    Raises:
        InvalidInputError: temperature not positive, or learnable and below `minimum`.
    """

    def __init__(self, temperature: float, *, learnable: bool = False, minimum: float = 0.01) -> None:
        super().__init__()
        if not 0 < temperature < math.inf:
            raise InvalidInputError(f"temperature: expected a positive number, got {temperature}")
        if learnable and temperature < minimum:
            raise InvalidInputError(f"temperature: expected at least the minimum {minimum}, got {temperature}")
        self.fixed, self.minimum = temperature, minimum
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature))) if learnable else None

    def forward(self) -> float | Tensor:
        """The number, or the tensor () to differentiate."""
        if self.log_temperature is None:
            return self.fixed
        with torch.no_grad():
            self.log_temperature.clamp_(min=math.log(self.minimum))
        return self.log_temperature.exp()

    def extra_repr(self) -> str:
        """The value of now, and whether it learns."""
        value = self.fixed if self.log_temperature is None else math.exp(self.log_temperature.detach())
        return f"{value:.4g}, learnable={self.log_temperature is not None}"


class ContrastiveLoss(nn.Module):
    """Settings that all losses take; see `vldebias.losses.info_nce` for their meaning.

    A loss with parameters belongs inside the module that DistributedDataParallel wraps: outside of it each process
    would learn a temperature of its own.

    Args:
        temperature: t, or its first value if it is learned.
        learnable_temperature: t becomes a parameter, kept at or above `minimum_temperature`.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.07,
        learnable_temperature: bool = False,
        minimum_temperature: float = 0.01,
        reduction: Reduction = "mean",
        chunk_size: int | None = None,
        gather: bool = False,
        within_view: bool = False,
    ) -> None:
        super().__init__()
        check_options(temperature, reduction, chunk_size)
        self.temperature = Temperature(temperature, learnable=learnable_temperature, minimum=minimum_temperature)
        self.reduction: Reduction = reduction
        self.chunk_size, self.gather, self.within_view = chunk_size, gather, within_view

    def options(self) -> dict[str, Any]:
        """The keywords of the loss function, with the temperature of this step."""
        return {
            "temperature": self.temperature(),
            "reduction": self.reduction,
            "chunk_size": self.chunk_size,
            "gather": self.gather,
            "within_view": self.within_view,
        }

    def extra_repr(self) -> str:
        """The settings."""
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and k != "training"}
        return ", ".join(f"{name}={value!r}" for name, value in settings.items())
