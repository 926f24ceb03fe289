"""The state of a run in parts: every process writes its own shards, and any number of processes reads them.

Written by torch.distributed.checkpoint as safetensors, never as pickles. Nothing is gathered, so neither time nor
memory grows with the size of the whole model.

    state/shard-0000R-....safetensors    what process R - 1 holds
    state/about.json                     metadata, name, shape and type of every tensor, SHA-256 of every file
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.files import digest, sync
from vldebias.losses.processes import rank, world_size
from vldebias.training.saving import replacing
from vldebias.training.sharded import is_sharded

_ABOUT = "about.json"
_SHOWN = 3  # tensors named in an error
DAMAGED = "{}: this state is damaged, its checksum does not fit; delete it to begin anew"


def save_shards(folder: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
    """Writes tensors, split over the processes or the same on each, into `folder`, whole or not at all.

    Every process must call it, with the same names.

    Raises:
        InvalidInputError: a torch whose distributed checkpoints are pickles (before 2.8).
    """
    writer = _storage("HuggingFaceStorageWriter")
    from torch.distributed.checkpoint import save

    first = rank() == 0
    with replacing(folder) if first else nullcontext(folder.with_name(folder.name + ".part")) as beside:
        _wait()  # until the folder is there
        with _quiet():
            save({name: _flat(t.detach()) for name, t in tensors.items()}, storage_writer=writer(beside, None, 1, True))
        every: list[Any] = [None] * world_size()
        own = {file.name: digest(file) for file in beside.glob(f"shard-{rank() + 1:05d}-*.safetensors")}
        if world_size() > 1:
            dist.all_gather_object(every, own)
        else:
            every = [own]
        if first:
            held = {
                "tensors": {name: [list(t.shape), str(t.dtype).removeprefix("torch.")] for name, t in tensors.items()},
                "files": {name: said for part in every for name, said in part.items()},
                **about,
            }
            path = beside / _ABOUT
            path.write_text(json.dumps({"state": held, "sha256": sha256_of(held)}), encoding="utf-8")
            sync(path)
        _wait()  # nobody goes on before all is written
    _wait()


def load_shards(
    folder: Path, weights: Mapping[str, Tensor], named: Mapping[str, nn.Parameter]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Reads into `weights`, in place; returns the metadata and the moments, split as their parameters are.

    Every process must call it; there may be another number of them than wrote. Nothing is changed unless all fits.

    Raises:
        InvalidInputError: a damaged state, or one of other weights.
    """
    about = read_about(folder)
    files = sorted(about["files"].items())[rank() :: world_size()]
    good = all((folder / name).is_file() and digest(folder / name) == said for name, said in files)
    if world_size() > 1:
        votes: list[Any] = [None] * world_size()
        dist.all_gather_object(votes, good)
        good = all(votes)
    if not good:
        raise InvalidInputError(DAMAGED.format(folder))
    stored = {name: (tuple(shape), getattr(torch, kind)) for name, (shape, kind) in about["tensors"].items()}
    check_names(folder, {name: shape for name, (shape, _) in stored.items()}, weights)
    moments: dict[str, Tensor] = {}
    for name, (shape, kind) in stored.items():
        if name.startswith("optimizer/"):
            owner = named[name.removeprefix("optimizer/").rpartition("/")[0]]
            split = is_sharded(owner) and shape == tuple(owner.shape)
            moments[name] = torch.zeros_like(owner, dtype=kind) if split else torch.zeros(shape, dtype=kind)
            moments[name].requires_grad_(False)
    from torch.distributed.checkpoint import load

    target = {name: _flat(tensor.detach()) for name, tensor in {**weights, **moments}.items()}
    with _quiet(), torch.no_grad():
        load(target, storage_reader=_storage("HuggingFaceStorageReader")(folder))
    return dict(about["metadata"]), moments


def read_about(folder: Path) -> dict[str, Any]:
    """What the state in `folder` says of itself.

    Raises:
        InvalidInputError: it is damaged.
    """
    try:
        content = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
        if sha256_of(content["state"]) != content["sha256"]:
            raise ValueError
        return dict(content["state"])
    except (OSError, ValueError, KeyError, TypeError):
        raise InvalidInputError(DAMAGED.format(folder)) from None


def check_names(path: Path, stored: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]) -> None:
    """Raises InvalidInputError where a state is not of these weights, with the first tensors that say so."""
    theirs = {name: stored[name] for name in sorted(stored) if not name.startswith("optimizer/")}
    ours = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    problems = {
        "missing": [name for name in ours if name not in theirs],
        "unexpected": [name for name in theirs if name not in ours],
        "of another shape": [
            f"{name} {theirs[name]} instead of {shape}"
            for name, shape in ours.items()
            if theirs.get(name, shape) != shape
        ],
    }
    listed = [
        f"{len(names)} {problem}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        for problem, names in problems.items()
        if names
    ]
    if listed:
        differ = "; ".join(listed)
        raise InvalidInputError(f"{path}: this state is not of the model, loss and averages at hand; {differ}")


def sha256_of(about: Mapping[str, Any]) -> str:
    """Of what json takes, in hexadecimal; TypeError of anything else."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _storage(name: str) -> Any:
    try:
        from torch.distributed.checkpoint import hf_storage
    except ImportError:
        hf_storage = None  # type: ignore[assignment]
    if not hasattr(hf_storage, name):
        raise InvalidInputError(
            f"state 'sharded': torch {torch.__version__} writes distributed checkpoints as pickles alone; "
            "expected 2.8 or newer, or state 'whole'"
        )
    return getattr(hf_storage, name)


def _flat(tensor: Tensor) -> Tensor:
    """With a dimension at least, in the same memory: shards have offsets."""
    return tensor if tensor.ndim else tensor.view(1)


def _wait() -> None:
    if world_size() > 1:
        dist.barrier()


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning of torch that one process is alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
