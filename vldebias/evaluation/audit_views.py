"""What an audit shows beside its figures: the list of prompts, and two plots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vldebias.errors import need
from vldebias.evaluation.predicted_shares import Asked, Calibrated
from vldebias.evaluation.share_tables import ShareTable
from vldebias.pictures import for_matplotlib, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot

SHOWN = 40  # prompts in the plot


def frame(asked: Iterable[Asked], table: ShareTable, against: ShareTable | None = None) -> pd.DataFrame:
    """A row per prompt, first what to look at first: advice, shares with intervals, lean, distance.

    Beside them what the calibration `table` itself judged of the same concept, and what `against` has of it.
    """
    rows, values = [], table.values
    beside = {"judged": table} if against is None else {"judged": table, "compared": against}
    for one in sorted(asked, key=lambda one: one.rank):
        row: dict[str, Any] = {"prompt": one.prompt, "advice": one.advice(values)}
        for i, value in enumerate(values):
            ends = (one.share[i], one.low[i], one.high[i]) if not one.stated else (np.nan,) * 3
            row |= dict(zip((value, f"{value} low", f"{value} high"), ends, strict=True))
            row |= {f"{value} above parity": np.nan if one.stated else one.chance[i], f"{value} lean": one.gap[i]}
            for name, other in beside.items():
                shares = other.find(one.prompt)
                row |= {f"{value} {name}": np.nan if shares is None else shares[other.values.index(value)]}
        rows.append(row | {"covered": one.covered, "distance": one.distance})
    return need("pandas").DataFrame(rows)


def plot_prompts(asked: Sequence[Asked], values: Sequence[str]) -> Plot:
    """The first prompts with their intervals."""
    shown = [one for one in sorted(asked, key=lambda one: one.rank) if not one.stated][:SHOWN]
    figure, (axis, *_) = subplots(1, 1, (8, 1.2 + 0.28 * max(len(shown), 1)))
    for y, one in enumerate(reversed(shown)):
        axis.plot([one.low[0], one.high[0]], [y, y], color="C0", linewidth=1.5, alpha=0.6)
        axis.plot([one.share[0]], [y], marker="o", color="C0", markerfacecolor="C0" if one.covered else "white")
    axis.axvline(1 / len(values), color="grey", linewidth=0.8, linestyle="--")
    names = [for_matplotlib(one.prompt if len(one.prompt) < 46 else one.prompt[:45] + "…") for one in reversed(shown)]
    axis.set_yticks(range(len(shown)), names)
    axis.set_xlim(-0.02, 1.02)
    axis.set_xlabel(for_matplotlib(f"predicted share of {values[0]}"))
    figure.tight_layout()
    return figure


def plot_line(known: Calibrated, asked: Sequence[Asked]) -> Plot:
    """Leans and shares of the calibration, and where the prompts lie."""
    line = known.lines[0]
    figure, (axis, *_) = subplots(1, 1, (8, 4.5))
    ends = np.linspace(line.x.min(), line.x.max(), 60)
    low, high = line.interval(ends, known.wider)
    axis.fill_between(ends, low, high, color="C0", alpha=0.12, linewidth=0)
    axis.plot(ends, line.at(ends), color="C0")
    axis.plot(line.x, line.y, "o", color="C1", markersize=4)
    axis.plot([one.gap[0] for one in asked], [-0.04] * len(asked), "^", color="C3", markersize=5, clip_on=False)
    axis.set_xlabel(for_matplotlib(f"lean of the text to {known.table.values[0]} (cosine)"))
    axis.set_ylabel(for_matplotlib(f"judged share of {known.table.values[0]}"))
    figure.tight_layout()
    return figure
