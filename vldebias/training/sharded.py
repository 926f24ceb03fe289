"""Parameters that are split over processes (DTensor, as FSDP2 makes them), and how to see them whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vldebias.errors import InvalidInputError

_WRAPPERS = {"_orig_mod", "_checkpoint_wrapped_module"}  # of torch.compile and of activation checkpointing


def own_name(name: str) -> str:
    """The name of a parameter without what torch.compile and activation checkpointing put in between."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def inner_module(module: nn.Module) -> nn.Module:
    """What DistributedDataParallel wraps."""
    return module.module if isinstance(module, DistributedDataParallel) else module


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter]:
    """All parameters by their own names, the same for a module that is wrapped and one that is not."""
    refuse_flat(module)
    reshard(module)
    return {own_name(name): parameter for name, parameter in inner_module(module).named_parameters()}


def refuse_flat(module: nn.Module) -> None:
    """FSDP's first version flattens parameters and hides who holds what: no norm can be told from a shard."""
    if not _distributed():
        return
    from torch.distributed.fsdp import FullyShardedDataParallel

    if any(isinstance(part, FullyShardedDataParallel) for part in module.modules()):
        raise InvalidInputError(
            "FSDP: expected its second version (fully_shard), got FullyShardedDataParallel; launch with "
            "`accelerate launch --use_fsdp --fsdp_version 2`"
        )


def _split_parts(module: nn.Module) -> list[Any]:
    """The parts that FSDP2 splits; they have `reshard` and `unshard`."""
    if not _distributed():
        return []
    from torch.distributed.fsdp import FSDPModule

    return [part for part in module.modules() if isinstance(part, FSDPModule)]


def reshard(module: nn.Module) -> None:
    """Frees the gathered weights that FSDP2 keeps after a forward pass, which would outlive a change of the shards."""
    for part in _split_parts(module):
        part.reshard()


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """FSDP2's weights are whole while this lasts, for calls that go past its `forward`; every process must enter it."""
    for part in _split_parts(module):
        part.unshard()
    try:
        yield
    finally:
        reshard(module)


def is_sharded(tensor: Tensor) -> bool:
    """Whether this process holds only a part of it."""
    return hasattr(tensor, "full_tensor")  # DTensor, whose import costs more than this module is worth


def whole(tensor: Tensor) -> Tensor:
    """The tensor with the shards of all processes, each of which must call this; a plain one as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def sharded_like(tensor: Tensor, model: Tensor) -> Tensor:
    """`tensor`, whole on every process, split as `model` is; each process must call this."""
    if not is_sharded(model):
        return tensor.to(model.device)
    from torch.distributed.tensor import distribute_tensor

    layout: Any = model
    return distribute_tensor(tensor.to(model.device), layout.device_mesh, layout.placements)


@contextmanager
def scalars_held(module: nn.Module) -> Iterator[None]:
    """Frozen scalar parameters are buffers while this lasts, since FSDP refuses them; the state dict stays the same."""
    held: list[tuple[nn.Module, str]] = []
    for part in list(module.modules()):
        for name, parameter in list(part.named_parameters(recurse=False)):
            if parameter.ndim == 0 and not parameter.requires_grad:
                delattr(part, name)
                part.register_buffer(name, parameter.data)
                held.append((part, name))

    try:
        yield
    finally:
        for part, name in held:
            data = getattr(part, name)
            delattr(part, name)
            part.register_parameter(name, nn.Parameter(data, requires_grad=False))


def _distributed() -> bool:
    return dist.is_available() and dist.is_initialized()
