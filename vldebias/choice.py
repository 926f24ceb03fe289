"""What "auto" chose and why: every candidate with what was predicted for it, as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from vldebias.projection import CalibratedProjection

__all__ = ["Candidate", "Choice"]


@dataclass(frozen=True)
class Candidate:
    """One method at one lam.

    gaps: evidence ("texts", "images") -> predicted gap, as a share of what it is without a projection.
    gap: their mean. change: (value, low, high), `gap` - 1 with its 95 % interval, of the images where there are any.
    loss: mean 1 - cosine of a neutral text with its projection; signal_kept: of the distance between the classes.
    refused: why it was not eligible, or "".
    """

    method: str
    lam: float | tuple[float, ...]
    gaps: Mapping[str, float]
    gap: float
    change: tuple[float, float, float]
    loss: float
    signal_kept: float | None
    refused: str


@dataclass(frozen=True)
class Choice:
    """The decision for one role: `method` and `lam`, "none" where nothing is expected to help.

    evidence: kind -> what it rests on (rows, texts). projection: the one fitted on everything, the identity for "none".
    """

    prompts: str
    method: str
    lam: float | tuple[float, ...]
    reason: str
    candidates: tuple[Candidate, ...]
    evidence: Mapping[str, Mapping[str, int]]
    settings: Mapping[str, Any]
    projection: CalibratedProjection = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without the projection."""
        kept = {name: getattr(self, name) for name in ("prompts", "method", "lam", "reason")}
        told = {"evidence": {k: dict(v) for k, v in self.evidence.items()}, "settings": dict(self.settings)}
        return {**kept, **told, "candidates": [asdict(candidate) for candidate in self.candidates]}

    def __str__(self) -> str:
        """The decision and the table it rests on, best candidate first."""
        rows = sorted(self.candidates, key=lambda c: (bool(c.refused), c.gap))
        lines = [f"{self.prompts}: auto: {self.method}. {self.reason}"]
        if rows:
            lines.append(f"{'method':<20}{'lam':>10}{'gap':>8}{'change to none':>26}{'loss':>8}  ")
        return "\n".join([*lines, *map(_row, rows)])


def _row(c: Candidate) -> str:
    value, low, high = c.change
    change = f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"
    lam = " ".join(f"{x:g}" for x in c.lam) if isinstance(c.lam, tuple) else f"{c.lam:g}"
    return f"{c.method:<20}{lam:>10}{c.gap:>8.3f}{change:>26}{c.loss:>8.3f}  {c.refused}".rstrip()
