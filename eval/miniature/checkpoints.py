"""Store the state of a stage, with weights, moments and averages, in a single file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vldebias.errors import InvalidInputError
from vldebias.training.optim import Average
from vldebias.utils.files import write_atomically


def save_state(
    path: Path,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    metadata: Mapping[str, Any],
    averages: Mapping[str, Average],
) -> None:
    """Write the complete state of a stage, so that a resumed run gives identical results."""
    state = {
        "metadata": dict(metadata),
        "module": module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "averages": {name: average.means for name, average in averages.items()},
    }
    write_atomically(path, lambda partial: torch.save(state, partial))


def read_state(path: Path) -> dict[str, Any] | None:
    """Return the state written by `save_state`, or None if there is no file."""
    if not path.is_file():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return {**state, "metadata": dict(state["metadata"])}
    except Exception as error:
        raise InvalidInputError(
            f"{path}: unreadable checkpoint ({error}). Delete it to start again"
        ) from None


def load_state(
    state: Mapping[str, Any],
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Mapping[str, Average],
) -> None:
    """Load a state into a module, an optimizer and averages."""
    module.load_state_dict(state["module"])
    optimizer.load_state_dict(state["optimizer"])
    for name, average in averages.items():
        for key, mean in state["averages"][name].items():
            average.means[key].copy_(mean)
