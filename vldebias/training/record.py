"""What a run leaves behind besides its model: its settings, what every step saw, and a picture of that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vldebias.training.loop import Entry

__all__ = ["draw_curves", "write_history", "write_outcome"]

_OWN = ("step", "loss", "lr", "temperature", "seconds")


def write_history(path: Path, history: Sequence[Entry]) -> None:
    """One line of JSON per step."""
    path.write_text("".join(json.dumps(entry) + "\n" for entry in history), encoding="utf-8")


def draw_curves(path: Path, history: Sequence[Entry]) -> None:
    """The loss of every step, and the scores where the model was scored."""
    from matplotlib.figure import Figure

    scored = [entry for entry in history if set(entry) - set(_OWN)]
    names = list(dict.fromkeys(name for entry in scored for name in entry if name not in _OWN))
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([entry["step"] for entry in history], [entry["loss"] for entry in history], color="#4c72b0", lw=0.9)
    left.set(xlabel="step", ylabel="loss", title="loss of every step")
    for name in names:
        own = [entry for entry in scored if name in entry]
        right.plot([entry["step"] for entry in own], [entry[name] for entry in own], marker=".", label=name)
    right.set(xlabel="step", title="scores on held-out data" if names else "no held-out data was given")
    if names:
        right.legend(fontsize=7)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110, metadata={"Title": "vldebias train"})


def write_outcome(path: Path, outcome: dict[str, Any]) -> None:
    """The outcome of a run as JSON."""
    path.write_text(json.dumps(outcome, indent=1, default=str) + "\n", encoding="utf-8")
