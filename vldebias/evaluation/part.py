"""What one evaluator gives: figures, the protocol behind them, captioned plots to show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vldebias.evaluation.result import Figure, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

__all__ = ["Part"]


@dataclass(frozen=True)
class Part:
    """Figures of one task with their protocol; plots: file stem -> (caption, plot)."""

    figures: list[Figure]
    protocol: Protocol
    plots: Mapping[str, tuple[str, Plot]] = field(default_factory=dict)
