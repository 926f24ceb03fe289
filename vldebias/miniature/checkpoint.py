"""Weights and training states as safetensors files that are replaced in one move, so a kill never leaves half."""

import json
import os
from pathlib import Path

import torch
from torch import nn

from vldebias.errors import InvalidInputError

__all__ = ["load_state", "load_weights", "read_metadata", "save_state", "save_weights"]

Tensors = dict[str, torch.Tensor]


def save_weights(module: nn.Module, path: Path, metadata: dict[str, object]) -> None:
    """Writes the weights in half precision, which is all that these models need."""
    half = {name: t.half() if t.is_floating_point() else t for name, t in module.state_dict().items()}
    _write(half, path, metadata)


def load_weights(path: Path) -> Tensors:
    """Reads weights into single precision.

    Raises:
        InvalidInputError: there is no such file.
    """
    from safetensors.torch import load_file

    if not path.is_file():
        raise InvalidInputError(
            f"no weights at {path}; build them with vldebias.miniature.build({str(path.parent)!r}), or unset "
            "VLDEBIAS_MINIATURE to use the ones that ship with the package"
        )
    return {name: t.float() if t.is_floating_point() else t for name, t in load_file(path).items()}


def read_metadata(path: Path) -> dict[str, object] | None:
    """What a file says of how it was made; None where there is no file."""
    from safetensors import safe_open

    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        return json.loads((file.metadata() or {}).get("vldebias", "{}"))


def save_state(
    path: Path,
    modules: dict[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    metadata: dict[str, object],
) -> None:
    """Writes all modules and the optimizer's moments, in full precision, under flat names."""
    tensors = {f"{part}/{name}": t for part, module in modules.items() for name, t in module.state_dict().items()}
    for index, moments in optimizer.state_dict()["state"].items():
        tensors.update({f"optimizer/{index}/{name}": t for name, t in moments.items()})
    _write(tensors, path, metadata)


def load_state(path: Path, modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer) -> None:
    """Puts back what `save_state` wrote."""
    from safetensors.torch import load_file

    tensors = load_file(path)
    for part, module in modules.items():
        module.load_state_dict(_under(tensors, f"{part}/"))
    state: dict[int, Tensors] = {}
    for name, tensor in _under(tensors, "optimizer/").items():
        index, _, moment = name.partition("/")
        state.setdefault(int(index), {})[moment] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def _under(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _write(tensors: Tensors, path: Path, metadata: dict[str, object]) -> None:
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    # A copy of each tensor: safetensors refuses views that share memory.
    plain = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    save_file(plain, beside, metadata={"vldebias": json.dumps(metadata, sort_keys=True)})
    beside.chmod(0o644)
    os.replace(beside, path)
