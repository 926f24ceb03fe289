"""Accelerators as the loop wants them, on one CPU or many GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from accelerate import Accelerator

__all__ = ["make_accelerator", "refuse_learned_scalars"]


def make_accelerator(**options: Any) -> Accelerator:
    """An accelerator as the loop wants it; options are accelerate's.

    Autocast is the loop's own. Buffers are not sent around before every forward pass: the state of a global loss has
    an entry per pair and is the same on all processes anyway.
    """
    from accelerate import Accelerator, DistributedDataParallelKwargs

    alone = DistributedDataParallelKwargs(broadcast_buffers=False)
    return Accelerator(mixed_precision="no", kwargs_handlers=[alone], **options)


def refuse_learned_scalars(trainee: nn.Module, accelerator: Accelerator) -> None:
    """FSDP splits no parameter that has no dimension.

    Raises:
        InvalidInputError: a temperature or a bias that is learned, under FSDP.
    """
    names = [name for name, parameter in trainee.named_parameters() if parameter.ndim == 0]
    if names and accelerator.distributed_type.value == "FSDP":
        raise InvalidInputError(
            f"FSDP cannot hold {', '.join(names)}; fix the temperature (learn_temperature=False, and another loss than "
            "sigmoid), or launch without FSDP"
        )
