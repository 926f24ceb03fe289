"""The state of a run in one safetensors file: weights, moments, averages and buffers, put in place in one move."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vldebias.errors import InvalidInputError
from vldebias.losses.processes import rank, world_size
from vldebias.training.averaging import Average
from vldebias.training.sharded import is_sharded, own_name, parameters_of, sharded_like, whole

__all__ = ["load_state", "read_metadata", "save_state"]

_ENTRY = "vldebias"  # of the header that safetensors keeps for its users
_SHOWN = 3  # tensors named in an error

Optimizer = torch.optim.Optimizer


def save_state(
    path: Path,
    module: nn.Module,
    optimizer: Optimizer,
    *,
    metadata: Mapping[str, Any],
    average: Average | None = None,
) -> None:
    """Writes all that a run needs to go on as if it had not stopped.

    These are the trainable parameters, all persistent buffers (running statistics, the u and zeta of a
    `GlobalContrastiveLoss`), the optimizer's moments and settings, and the average. Frozen parameters are not: they
    come from where the model came from. Every process must call this; shards are gathered one tensor at a time,
    and the first process writes. The file that was there stays until the new one is complete and on the disk.

        parameters/<name>   buffers/<name>   optimizer/<name of the parameter>/<moment>   average/<name>

    Args:
        path: of the file; its folder is made.
        module: wrapped (DistributedDataParallel, FSDP2, torch.compile) or not; names in the file are those of the
            module inside, so a state may be read under another wrapping.
        optimizer: of parameters of `module`, accelerate's wrapper included.
        metadata: anything that json takes.
        average: of `module`.

    Raises:
        InvalidInputError: a module of FSDP's first version, an optimizer of parameters that are not the module's or
            with a state that is neither tensors nor plain values.
    """
    moments, plain = _moments(module, optimizer)
    told = {"metadata": dict(metadata), "values": plain, **_groups(module, optimizer)}
    header = {_ENTRY: _as_json(told)}
    tensors = {}
    for name, tensor in {**_weights(module, average), **moments}.items():
        gathered = whole(tensor.detach())
        if rank() == 0:
            tensors[name] = gathered.to("cpu", copy=True).contiguous()  # safetensors refuses memory that is shared
    if rank() == 0:
        _write(path, tensors, header)
    if world_size() > 1:
        dist.barrier()  # when this returns, the file is there for all


def load_state(
    path: Path, module: nn.Module, optimizer: Optimizer, *, average: Average | None = None
) -> dict[str, Any]:
    """Puts back what `save_state` wrote, and returns its metadata; every process reads the file.

    Nothing is changed unless all of it fits.

    Raises:
        InvalidInputError: no readable state at `path`, or one of another model, optimizer or average; the error names
            the first tensors that are missing, unexpected or of another shape.
    """
    with _opened(path) as file:
        told = _told(path, file)
        weights = _weights(module, average)
        _refuse_other_weights(path, file, weights)
        _refuse_other_groups(path, told, _groups(module, optimizer))
        with torch.no_grad():
            for name, tensor in weights.items():
                tensor.copy_(sharded_like(file.get_tensor(name), tensor))
        _load_optimizer(file, told, module, optimizer)
    return dict(told["metadata"])


def read_metadata(path: Path) -> dict[str, Any] | None:
    """What `save_state` was told of the state at `path`, without reading it; None where there is none.

    Raises:
        InvalidInputError: the file is no state.
    """
    if not path.is_file():
        return None
    with _opened(path) as file:
        return dict(_told(path, file)["metadata"])


def _weights(module: nn.Module, average: Average | None) -> dict[str, Tensor]:
    """The tensors of the module and of the average, the live ones, under their names in the file."""
    parameters = {f"parameters/{name}": p for name, p in parameters_of(module).items() if p.requires_grad}
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    kept = inner.state_dict().keys()  # the persistent ones
    buffers = {f"buffers/{own_name(name)}": buffer for name, buffer in inner.named_buffers() if name in kept}
    means = {} if average is None else {f"average/{name}": mean for name, mean in average.means.items()}
    return {**parameters, **buffers, **means}


def _named(module: nn.Module, optimizer: Optimizer) -> dict[str, nn.Parameter]:
    """The optimizer's parameters by their names, in its order."""
    names = {id(parameter): name for name, parameter in parameters_of(module).items()}
    ours = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in names for parameter in ours)
    if strangers:
        raise InvalidInputError(
            f"optimizer: {strangers} of its {len(ours)} parameters are none of the module's; make it of the "
            "parameters that the module has after it is wrapped"
        )
    return {names[id(parameter)]: parameter for parameter in ours}


def _moments(module: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Tensor], dict[str, dict[str, Any]]]:
    """What the optimizer keeps per parameter: the tensors, and the plain values by parameter."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {}
    for name, parameter in _named(module, optimizer).items():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{name}/{key}"] = value
            elif value is None or isinstance(value, (bool, int, float, str)):
                values.setdefault(name, {})[key] = value
            else:
                raise InvalidInputError(
                    f"optimizer: expected tensors and plain values as its state, got {key!r} of type "
                    f"{type(value).__name__} for {name}"
                )
    return tensors, values


def _groups(module: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    """Kind of the optimizer, and its groups: names of parameters, and settings."""
    names = iter(_named(module, optimizer))
    groups = [
        {
            "parameters": [next(names) for _ in group["params"]],
            "settings": {key: _plain(value) for key, value in group.items() if key != "params"},
        }
        for group in optimizer.param_groups
    ]
    return {"optimizer": type(_bare(optimizer)).__name__, "groups": groups}


def _load_optimizer(file: Any, told: dict[str, Any], module: nn.Module, optimizer: Optimizer) -> None:
    named = _named(module, optimizer)
    state: dict[str, dict[str, Any]] = {name: dict(values) for name, values in told["values"].items()}
    for name in sorted(file.keys()):
        if name.startswith("optimizer/"):
            owner, _, key = name.removeprefix("optimizer/").rpartition("/")
            moment, parameter = file.get_tensor(name).clone(), named[owner]  # a copy, or the file stays open
            split = is_sharded(parameter) and moment.shape == parameter.shape  # exp_avg, but not the number of steps
            state.setdefault(owner, {})[key] = sharded_like(moment, parameter) if split else moment
    groups = _bare(optimizer).state_dict()["param_groups"]
    for group, stored in zip(groups, told["groups"], strict=True):
        group.update({key: _like(value, group.get(key)) for key, value in stored["settings"].items()})
    numbers = {name: number for number, name in enumerate(named)}
    by_number = {numbers[name]: moments for name, moments in state.items()}
    _bare(optimizer).load_state_dict({"state": by_number, "param_groups": groups})


def _bare(optimizer: Optimizer) -> Optimizer:
    """The optimizer inside accelerate's."""
    return getattr(optimizer, "optimizer", optimizer)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value


def _like(value: Any, model: Any) -> Any:
    """What json made a list or a number, as what the optimizer has there."""
    if isinstance(model, Tensor):
        return torch.full_like(model, value)
    return tuple(value) if isinstance(model, tuple) else value


def _refuse_other_weights(path: Path, file: Any, ours: dict[str, Tensor]) -> None:
    names = [name for name in sorted(file.keys()) if not name.startswith("optimizer/")]
    theirs = {name: tuple(file.get_slice(name).get_shape()) for name in names}
    problems = {
        "missing": [name for name in ours if name not in theirs],
        "unexpected": [name for name in theirs if name not in ours],
        "of another shape": [
            f"{name} {theirs[name]} instead of {tuple(tensor.shape)}"
            for name, tensor in ours.items()
            if name in theirs and theirs[name] != tuple(tensor.shape)
        ],
    }
    said = [f"{len(names)} {problem}: {_some(names)}" for problem, names in problems.items() if names]
    if said:
        raise InvalidInputError(f"{path}: this state is not of the model, loss and average at hand; {'; '.join(said)}")


def _refuse_other_groups(path: Path, told: dict[str, Any], ours: dict[str, Any]) -> None:
    if told["optimizer"] != ours["optimizer"]:
        raise InvalidInputError(f"{path}: this is a state of {told['optimizer']}, the optimizer is {ours['optimizer']}")
    there, here = ([group["parameters"] for group in groups["groups"]] for groups in (told, ours))
    if there != here:
        raise InvalidInputError(
            f"{path}: the optimizer's groups of parameters are others there: of {[len(names) for names in there]} "
            f"parameters, here of {[len(names) for names in here]}"
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InvalidInputError(f"no state at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise InvalidInputError(f"{path}: no readable state ({error}); delete it to begin anew") from None


def _told(path: Path, file: Any) -> dict[str, Any]:
    told = json.loads((file.metadata() or {}).get(_ENTRY, "{}"))
    if "groups" not in told:
        raise InvalidInputError(f"{path}: these are tensors, but not the state of a run")
    return dict(told)


def _as_json(told: dict[str, Any]) -> str:
    try:
        return json.dumps(told)
    except TypeError as error:
        raise InvalidInputError(f"metadata and settings of the optimizer: expected what json takes; {error}") from None


def _write(path: Path, tensors: dict[str, Tensor], header: dict[str, str]) -> None:
    """The file in one move, and on the disk when this returns."""
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")  # one name, so that what a kill leaves is written over
    save_file(tensors, partial, metadata=header)
    partial.chmod(0o644)
    _sync(partial)
    os.replace(partial, path)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        _sync(path.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
