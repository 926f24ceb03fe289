"""Forward and backward of a step: plain, or with the negatives of all its micro-batches; and in which precision."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, need
from vldebias.training.batches import Batch
from vldebias.training.objective import FROZEN, Trainee
from vldebias.training.optim import frozen_statistics
from vldebias.training.settings import LoopSettings

if TYPE_CHECKING:
    from accelerate import Accelerator

_TYPES = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """Autocast to a type, and for float16 a scale of the loss that keeps small gradients from vanishing.

    Not accelerate's autocast, which keeps one precision for all runs of a process. name: "no", "bf16" or "fp16";
    not float16 where FSDP has `sharded` the gradients, whose parts would scale apart.
    """

    def __init__(self, name: str, device: torch.device, *, sharded: bool = False) -> None:
        if name == "fp16" and sharded:
            raise InvalidInputError("precision fp16: FSDP's shards would each have a scale of their own; use bf16")
        self.name, self.device = name, device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> torch.autocast:
        """Products in the chosen type."""
        return torch.autocast(self.device.type, _TYPES[self.name], enabled=self.name != "no")

    def step(self, optimizer: Any) -> None:
        """Moves the weights, or where the scaled gradients overflowed only lowers the scale."""
        self.scaler.step(optimizer)
        self.scaler.update()

    @property
    def spent(self) -> bool:
        """The gradients overflow however small the scale is: not the scale is to blame."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < 1


@dataclass(frozen=True)
class Passes:
    """Adds the gradient of one step's loss to `.grad`; called with the step's number and micro-batches.

    With negatives "micro" the loss of a step is the mean of those of its micro-batches, and a pair has the negatives
    of its own one. With "step" it is the loss of all of them together, in the memory of one (GradCache, Gao et al.,
    2021): features of every micro-batch without a graph, the loss of all and its gradient in the features, and then
    every micro-batch again, with that gradient. Both passes draw the same dropout and mixing, running statistics move
    in the second alone, and the state of a loss once.

    Processes exchange gradients with the last micro-batch; `Accelerator.accumulate` counts calls, which may be two.
    """

    accelerator: Accelerator
    module: nn.Module
    trainee: Trainee
    settings: LoopSettings
    precision: Precision

    def __call__(self, step: int, micro: Sequence[Batch]) -> Tensor:
        """The loss () of the step."""
        together = self.settings.negatives == "step" and len(micro) > 1
        return self._together(step, micro) if together else self._apart(step, micro)

    def _apart(self, step: int, micro: Sequence[Batch]) -> Tensor:
        total = torch.zeros((), device=self.accelerator.device)
        for number, batch in enumerate(micro):
            self._seed(step, number)
            with self._exchanging(number == len(micro) - 1):
                with self.precision.autocast():
                    loss = self.module(self._there(batch)) / len(micro)
                self.accelerator.backward(self.precision.scaler.scale(loss))
            total += loss.detach()
        return total

    @torch.no_grad()
    def features(self, step: int, micro: Sequence[Batch]) -> dict[str, Tensor]:
        """What the loss of all micro-batches together reads, without a graph."""
        parts = []
        with frozen_statistics(self.module):
            for number, batch in enumerate(micro):
                self._seed(step, number)
                with self.precision.autocast():
                    parts.append(self.module(self._there(batch), features=True))
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _together(self, step: int, micro: Sequence[Batch]) -> Tensor:
        every = self.features(step, micro)
        learning = {name: part.requires_grad_() for name, part in every.items() if name not in FROZEN}
        objective = self.trainee.objective
        own = [parameter for parameter in objective.parameters() if parameter.requires_grad]
        with self.precision.autocast():
            loss = objective(**every, batch=self._there(Batch.joined(micro)))
        slopes = torch.autograd.grad(loss, [*learning.values(), *own], materialize_grads=True)
        sizes = [len(batch) for batch in micro]
        wanted = zip(*(slope.split(sizes) for slope, _ in zip(slopes, learning, strict=False)), strict=True)
        for number, (batch, pulls) in enumerate(zip(micro, wanted, strict=True)):
            self._seed(step, number)
            last = number == len(micro) - 1
            with self._exchanging(last):
                with self.precision.autocast():
                    parts = self.module(self._there(batch), features=True)
                    pulled = sum((parts[name] * pull).sum() for name, pull in zip(learning, pulls, strict=True))
                    if last:  # the loss's own parameters too go the way that processes exchange
                        rest = slopes[len(learning) :]
                        pulled = pulled + sum((p * slope).sum() for p, slope in zip(own, rest, strict=True))
                self.accelerator.backward(self.precision.scaler.scale(pulled))
        return loss.detach()

    def _seed(self, step: int, number: int) -> None:
        """Dropout and mixing draw from the global generators, which therefore follow from where the run is."""
        place = (self.settings.seed * 1_000_003 + step) * 1009 + number
        torch.manual_seed((place * 65_537 + self.accelerator.process_index) % 2**63)

    def _exchanging(self, last: bool) -> Any:
        return nullcontext() if last else self.accelerator.no_sync(self.module)

    def _there(self, batch: Batch) -> Batch:
        return Batch(**need("accelerate.utils").send_to_device(vars(batch), self.accelerator.device, non_blocking=True))
