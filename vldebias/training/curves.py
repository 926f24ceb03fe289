"""Draw the loss and the held-out scores of a training run."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from vldebias.errors import need
from vldebias.training.changes import LEADS, TITLES
from vldebias.training.loop import Entry
from vldebias.utils.files import write_atomically
from vldebias.utils.pictures import subplots

CURVES = "history.svg"


def write_curves(
    history: Sequence[Entry],
    before: Mapping[str, float],
    half_way: Mapping[str, float],
    folder: Path,
    loss: str,
) -> str:
    """Plot a run's loss and held-out scores, and write the plot to a file.

    Args:
        history: one entry per step.
        before: the held-out scores before training; empty if there are no held-out data.
        half_way: the held-out scores half way between start and end; empty if not measured.
        folder: folder for the plot.
        loss: name of the loss.

    Returns:
        The name of the file.
    """
    panels = 2 if before else 1
    with need("matplotlib").rc_context({"svg.hashsalt": "vldebias"}):
        plot, axes = subplots(1, panels, (5 * panels, 3.5))
        losses = [entry["loss"] for entry in history]
        # The first entry, step 0, describes the model after one step.
        axes[0].plot([entry["step"] + 1 for entry in history], losses)
        is_negative = min(losses) < 0
        axes[0].set_title(f"loss: {loss}" + (", which may be negative" if is_negative else ""))
        # All scores are in the history, so only plot the main ones.
        for name in [name for name in LEADS if name in before] or list(before):
            scored = [entry for entry in history if name in entry]
            steps = [0.0, *(entry["step"] + 1 for entry in scored)]
            scores = [before[name], *(entry[name] for entry in scored)]
            title = TITLES.get(name, name)
            (line,) = axes[1].plot(steps, scores, marker=".", label=title)
            if name in half_way:
                color = line.get_color()
                label = f"{title}, half way"
                axes[1].plot(steps[-1], half_way[name], "*", color=color, label=label)
        if before:
            axes[1].set_title("scores on held-out data")
            axes[1].legend(fontsize="small")
        for axis in axes:
            axis.set_xlabel("step")
            axis.grid(alpha=0.3)
        plot.tight_layout()
        content = io.BytesIO()
        plot.savefig(content, format="svg", metadata={"Date": None})
    write_atomically(folder / CURVES, content.getvalue())
    return CURVES
