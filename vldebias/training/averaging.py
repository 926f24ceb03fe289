"""An exponential moving average of the weights (EMA), which is what a run evaluates and keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vldebias.losses.checks import check_interval
from vldebias.training.sharded import parameters_of, reshard

__all__ = ["Average"]


class Average:
    """Mean of a module's trainable parameters over its last 1 / (1 - decay) or so updates.

        mean <- d mean + (1 - d) theta      d = min(decay, (step + 1) / (step + 10))

    so that the memory is short at the beginning, and the first weights are soon forgotten. Buffers are not averaged:
    running statistics and the state of losses are those of the last step. Means of half-precision weights are kept
    in float32, which a decay of .999 needs. With FSDP2 each process averages its own shards; make the average after
    the module is wrapped.

    Args:
        module: which parameters; those that require no gradient now are left out.
        decay: in [0, 1).

    Raises:
        InvalidInputError: a decay outside its interval, a module of FSDP's first version.
    """

    def __init__(self, module: nn.Module, decay: float = 0.999) -> None:
        check_interval("decay", decay, "[0, 1)")
        self.decay = decay
        self._module = module
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


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
