"""The state of a run in one safetensors file: weights, moments, averages and buffers, put in place in one move.

A model that is split over many processes is gathered, a tensor at a time; any number of processes reads it.

accelerate's `save_state` writes pickles, without a checksum.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.files import write_atomically
from vldebias.losses.processes import rank, world_size
from vldebias.training.optim import Average
from vldebias.training.sharded import inner_module, is_sharded, own_name, parameters_of, sharded_like, whole

_ENTRY = "vldebias"  # of the header that safetensors keeps for its users
_SHOWN = 3  # tensors named in an error
_DAMAGED = "{}: this state is damaged, its checksum does not fit; delete it to begin anew"

Optimizer = torch.optim.Optimizer


def save_state(
    path: Path,
    module: nn.Module,
    optimizer: Optimizer,
    *,
    metadata: Mapping[str, Any],
    averages: Mapping[str, Average] | None = None,
) -> None:
    """Writes all that a run needs to go on as if it had not stopped.

    These are the trainable parameters, all persistent buffers (running statistics, the u and zeta of a
    `GlobalContrastiveLoss`), the optimizer's moments, and averages; not the optimizer's settings, which are given anew,
    nor frozen parameters, which come from where the model came from. Every process must call this; shards are gathered
    one tensor at a time, and the first process writes. The file that was there stays until the new one, with a SHA-256
    of all that it holds, is complete and on the disk.

        parameters/<name>   buffers/<name>   optimizer/<name of the parameter>/<moment>   <average>/<name>

    Args:
        module: wrapped (DistributedDataParallel, FSDP2, torch.compile) or not; names in the file are those of the
            module inside, so a state may be read under another wrapping.
        optimizer: of parameters of `module`, accelerate's wrapper included; what it keeps are tensors, as torch's do.
        metadata: anything that json takes. safetensors allows 100 MB of it in all.
        averages: of `module`, by their names in the file.

    Raises:
        InvalidInputError: a module of FSDP's first version, an optimizer of parameters that are not the module's,
            metadata that json does not take.
    """
    from safetensors.torch import save_file

    live = _weights(module, averages)
    for name, parameter in _named(module, optimizer).items():
        moments = optimizer.state.get(parameter, {})
        live |= {f"optimizer/{name}/{key}": value for key, value in moments.items() if value is not None}
    about: dict[str, Any] = {"metadata": dict(metadata)}
    try:
        _sha256_of(about)
    except TypeError as error:
        raise InvalidInputError(f"metadata: expected what json takes; {error}") from None
    tensors = {}
    for name, tensor in live.items():
        gathered = whole(tensor.detach())
        if rank() == 0:
            tensors[name] = gathered.to("cpu", copy=True).contiguous()  # safetensors refuses memory that is shared
    if rank() == 0:
        about["tensors"] = _digest(tensors)
        header = {_ENTRY: json.dumps({"state": about, "sha256": _sha256_of(about)})}
        for leftover in path.parent.glob(f".{path.name}.*.partial"):  # of a run that was killed, of any size
            leftover.unlink(missing_ok=True)
        write_atomically(path, lambda partial: save_file(tensors, partial, metadata=header))
    if world_size() > 1:
        dist.barrier()  # when this returns, the file is there for all


def load_state(
    path: Path, module: nn.Module, optimizer: Optimizer, *, averages: Mapping[str, Average] | None = None
) -> dict[str, Any]:
    """Puts back what `save_state` wrote, and returns its metadata; every process reads the file.

    Nothing is changed unless all of it fits.

    Raises:
        InvalidInputError: no readable state at `path`, a damaged one, or one of another model or averages.
    """
    named, weights = _named(module, optimizer), _weights(module, averages)
    with _opened(path) as (file, stored):
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if stored["tensors"] != _digest(tensors):
        raise InvalidInputError(_DAMAGED.format(path))
    _check_names(path, {name: tuple(tensor.shape) for name, tensor in tensors.items()}, weights)
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(sharded_like(tensors[name], tensor))
    state: dict[str, dict[str, Tensor]] = {}
    for name, moment in tensors.items():
        if name.startswith("optimizer/"):
            owner, _, key = name.removeprefix("optimizer/").rpartition("/")
            like = named[owner]
            split = is_sharded(like) and moment.shape == like.shape  # exp_avg, not the number of steps
            state.setdefault(owner, {})[key] = sharded_like(moment, like) if split else moment
    bare = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's
    by_number = {number: state[name] for number, name in enumerate(named) if name in state}
    bare.load_state_dict({"state": by_number, "param_groups": bare.state_dict()["param_groups"]})
    return dict(stored["metadata"])


def read_metadata(path: Path) -> dict[str, Any] | None:
    """What `save_state` was given as metadata of the state at `path`, without reading its tensors; None without one.

    Raises:
        InvalidInputError: the file is no state, or one in parts, as earlier versions could write it.
    """
    parts = path.with_suffix("")
    if any((folder / "about.json").is_file() for folder in (parts, parts.with_name(parts.name + ".before"))):
        raise InvalidInputError(
            f"{parts}: a state in parts (state: sharded), which this version does not read; end the run with the "
            "version that began it, or delete the folder to begin anew"
        )
    if not path.is_file():
        return None
    with _opened(path) as (_, about):
        return dict(about["metadata"])


def _weights(module: nn.Module, averages: Mapping[str, Average] | None) -> dict[str, Tensor]:
    """The tensors of the module and of the averages, the live ones, under their names in the file."""
    tensors: dict[str, Tensor] = {f"parameters/{n}": p for n, p in parameters_of(module).items() if p.requires_grad}
    inner = inner_module(module)
    kept = inner.state_dict().keys()  # the persistent ones
    tensors |= {f"buffers/{own_name(name)}": buffer for name, buffer in inner.named_buffers() if name in kept}
    for kind, average in (averages or {}).items():
        tensors |= {f"{kind}/{name}": mean for name, mean in average.means.items()}
    return tensors


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


def _check_names(path: Path, stored: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]) -> None:
    """Raises InvalidInputError where a state is not of these weights, with the first tensors that say so."""
    theirs = {name: stored[name] for name in sorted(stored) if not name.startswith("optimizer/")}
    ours = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    problems = {
        "missing": [name for name in ours if name not in theirs],
        "unexpected": [name for name in theirs if name not in ours],
        "of another shape": [f"{n} {theirs[n]} instead of {s}" for n, s in ours.items() if theirs.get(n, s) != s],
    }
    listed = [
        f"{len(names)} {problem}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for problem, names in problems.items()
        if names
    ]
    if listed:
        differ = "; ".join(listed)
        raise InvalidInputError(f"{path}: this state is not of the model, loss and averages at hand; {differ}")


def _sha256_of(about: Mapping[str, Any]) -> str:
    """Of what json takes, in hexadecimal; TypeError of anything else."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _digest(tensors: Mapping[str, Tensor]) -> str:
    state = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        state.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        state.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The file, and what its header says of the state."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InvalidInputError(f"no state at {path}")
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {}).get(_ENTRY, "{}"))
            if not isinstance(header, dict) or header.keys() != {"state", "sha256"}:
                raise InvalidInputError(f"{path}: tensors, but not the state of a run of this version; delete it")
            if _sha256_of(header["state"]) != header["sha256"]:
                raise InvalidInputError(_DAMAGED.format(path))
            yield file, header["state"]
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: no readable state ({error}); delete it to begin anew") from None
