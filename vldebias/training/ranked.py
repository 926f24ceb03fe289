"""Pairs in the order of suspicion: the lowest positive score first, as a table and with the truth where it is known."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.metrics.detection import auroc, precision_among_lowest
from vldebias.training.pairs import Pairs, PairSource

__all__ = ["COLUMNS", "RankedPairs", "detection", "rank_pairs", "write_table"]

SHARES = (0.01, 0.05, 0.1, 0.2)
COLUMNS = ("rank", "percentile", "score", "id", "caption", "wrong", "original")


@dataclass(frozen=True, eq=False)
class RankedPairs:
    """Pairs from the lowest positive score, the most suspicious, to the highest.

    Attributes:
        pairs: what was scored.
        scores: (n,), NaN where an image could not be read.
        order: (m,) rows of the pairs that have a score, the lowest first; equal scores in the order of the rows.
        wrong: (n,) bool, captions known to be another row's; None where nothing is known.
    """

    pairs: PairSource
    scores: NDArray[np.floating[Any]]
    order: NDArray[np.int64]
    wrong: NDArray[np.bool_] | None

    @property
    def percentile(self) -> NDArray[np.float64]:
        """(m,) for each of `order`: percent of the scored pairs that have a lower score, ties counted half."""
        ordered = self.scores[self.order]
        below, upto = np.searchsorted(ordered, ordered, "left"), np.searchsorted(ordered, ordered, "right")
        found: NDArray[np.float64] = 50 * (below + upto) / max(1, len(ordered))
        return found

    def lowest(self, share: float) -> NDArray[np.int64]:
        """Rows of the share of pairs with the lowest scores, to look at or to train without."""
        if not 0 <= share <= 1:
            raise InvalidInputError(f"share: expected a share in [0, 1], got {share}")
        return self.order[: round(share * len(self.order))]

    def original(self, row: int) -> str:
        """What the source says of a row before any noise; "" where that is not known."""
        return self.pairs.own.captions[row] if isinstance(self.pairs, Pairs) else ""


def rank_pairs(pairs: PairSource, scores: NDArray[Any] | Tensor) -> RankedPairs:
    """Pairs in the order of suspicion. The truth is known of `Pairs` with noise that changed something.

    Raises:
        InvalidInputError: scores of another number than pairs, or none that is finite.
    """
    values = scores.detach().cpu().float().numpy() if isinstance(scores, Tensor) else np.asarray(scores)
    if values.shape != (pairs.items,):
        raise InvalidInputError(f"scores: expected one per pair, ({pairs.items},), got {values.shape}")
    order = np.argsort(values, kind="stable")  # NaN is put last
    order = order[np.isfinite(values[order])]
    if not len(order):
        raise InvalidInputError(f"scores: expected finite ones, got none among {pairs.items}")
    wrong = pairs.wrong if isinstance(pairs, Pairs) and pairs.wrong.any() else None
    return RankedPairs(pairs, values, order, wrong)


def write_table(path: str | Path, ranked: RankedPairs) -> Path:
    """A csv, the most suspicious pair first: rank, percentile, score, id, caption, wrong, original.

    wrong (yes, no) and original, the caption before noise, are empty where nothing is known; rank, percentile and score
    are empty for pairs whose image cannot be read, which come last. The file appears when it is complete.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.partial")
    with beside.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:  # ids may be bytes of paths
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(_lines(ranked))
    os.replace(beside, path)
    return path


def detection(ranked: RankedPairs, *, resamples: int = 2000, seed: int = 0) -> dict[str, Any]:
    """How well low scores find wrong captions, with intervals; for JSON.

    Keys: pairs and scored (numbers), wrong (share among the scored), auroc, and precision at shares of the lowest
    scores: {"0.05": {...}, ...}.

    Raises:
        InvalidInputError: nothing is known of which captions are wrong.
    """
    if ranked.wrong is None:
        raise InvalidInputError(f"{ranked.pairs.name}: expected pairs with noise; no caption is known to be wrong")
    scores, wrong = ranked.scores[ranked.order], ranked.wrong[ranked.order]
    how: dict[str, Any] = {"resamples": resamples, "seed": seed}
    return {
        "pairs": ranked.pairs.items,
        "scored": len(scores),
        "wrong": float(wrong.mean()),
        "auroc": auroc(scores, wrong, **how).to_dict(),
        "precision": {f"{s:g}": precision_among_lowest(scores, wrong, s, **how).to_dict() for s in SHARES},
    }


def _lines(ranked: RankedPairs) -> Iterator[tuple[Any, ...]]:
    for place, (row, percentile) in enumerate(zip(ranked.order.tolist(), ranked.percentile, strict=True), start=1):
        yield (place, f"{percentile:.4f}", f"{ranked.scores[row]:.6f}", *_told(ranked, row))
    for row in np.flatnonzero(~np.isfinite(ranked.scores)).tolist():
        yield ("", "", "", *_told(ranked, row))


def _told(ranked: RankedPairs, row: int) -> tuple[str, str, str, str]:
    pairs, wrong = ranked.pairs, ranked.wrong
    if wrong is None:
        return pairs.ids[row], pairs.captions[row], "", ""
    return pairs.ids[row], pairs.captions[row], "yes" if wrong[row] else "no", ranked.original(row)
