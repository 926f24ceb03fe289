"""A line from the lean of a text to the share of what is drawn, with intervals by leaving prompts out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.metrics.bootstrap import percentile_interval

LEVEL = 0.95
LEAST = 8  # prompts that a calibration needs
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ShareLine:
    """Least squares of shares y (n,) on gaps x (n,), cut at 0 and 1; every statement on it is out of sample.

    Intervals are those of jackknife+: of the lines that leave one prompt out, each with how far it was off at the
    prompt that it left out (Barber, Candes, Ramdas and Tibshirani, 2021, "Predictive inference with the jackknife+",
    eq. 1.4). For prompts that are exchangeable with those of the calibration they cover in at least 2 LEVEL - 1 of
    cases, and about LEVEL in practice. With fewer than 1 / (1 - LEVEL) - 1 prompts they are all of [0, 1].

    Raises:
        InvalidInputError: fewer than LEAST prompts, or gaps that are all alike.
    """

    x: Floats
    y: Floats

    def __post_init__(self) -> None:
        if len(self.x) < LEAST or len(self.x) != len(self.y):
            raise InvalidInputError(
                f"calibration: expected {LEAST} prompts or more whose texts and shares are known, got {len(self.x)}; "
                "30 prompts with 8 images each will do"
            )
        if float(np.ptp(self.x)) < 1e-9:
            raise InvalidInputError("calibration: all its texts lean alike, so there is nothing to predict from")

    @cached_property
    def lines(self) -> tuple[Floats, Floats]:
        """Slopes and intercepts (n,) of the lines that leave each prompt out."""
        n = len(self.x) - 1
        sx, sy = self.x.sum() - self.x, self.y.sum() - self.y
        sxx, sxy = (self.x**2).sum() - self.x**2, (self.x * self.y).sum() - self.x * self.y
        spread = sxx - sx**2 / n
        slope = np.divide(sxy - sx * sy / n, spread, out=np.zeros_like(spread), where=spread > 1e-12)
        return slope, (sy - slope * sx) / n

    @cached_property
    def left_out(self) -> Floats:
        """(n,) each share as predicted from the other prompts."""
        slope, intercept = self.lines
        return np.clip(slope * self.x + intercept, 0, 1)

    def at(self, x: Floats) -> Floats:
        """Predicted shares (m,) at gaps (m,)."""
        slope, intercept = np.polyfit(self.x, self.y, 1)
        return np.clip(slope * np.asarray(x) + intercept, 0, 1)

    def interval(self, x: Floats, wider: float = 1.0) -> tuple[Floats, Floats]:
        """Ends (m,), (m,) around `at`; wider: what the residuals are multiplied with."""
        slope, intercept = self.lines
        n = len(self.x)
        predicted = np.clip(np.outer(np.asarray(x), slope) + intercept, 0, 1)  # (m, n)
        off = wider * np.abs(self.y - self.left_out)
        rank = int(np.ceil(LEVEL * (n + 1)))
        if rank > n:
            return np.zeros(len(predicted)), np.ones(len(predicted))
        low = np.sort(predicted - off, axis=1)[:, n - rank]
        high = np.sort(predicted + off, axis=1)[:, rank - 1]
        middle = self.at(x)
        return np.clip(np.minimum(low, middle), 0, 1), np.clip(np.maximum(high, middle), 0, 1)

    def chance(self, x: Floats, parity: float, wider: float = 1.0) -> Floats:
        """Chances (m,) that the shares at gaps (m,) are above parity: of the same lines, each moved by how far it was
        off, in which direction it was."""
        slope, intercept = self.lines
        moved = np.clip(np.outer(np.asarray(x), slope) + intercept, 0, 1) + wider * (self.y - self.left_out)
        count: Floats = (moved > parity).sum(1) + 0.5 * (moved == parity).sum(1)
        return (count + 0.5) / (len(self.x) + 1)

    @property
    def r2(self) -> float:
        """1 - squared error of `left_out` over that of the mean; below 0 where the mean predicts better."""
        return 1 - float(((self.left_out - self.y) ** 2).sum() / max(((self.y - self.y.mean()) ** 2).sum(), 1e-12))

    def right_side(self, parity: float) -> tuple[int, int]:
        """Prompts whose share is predicted on its side of parity, and all that have one."""
        sided = self.y != parity
        return int(((self.left_out > parity) == (self.y > parity))[sided].sum()), int(sided.sum())

    def correlation(self, resamples: int = 2000, seed: int = 0) -> tuple[float, tuple[float, float]]:
        """Pearson's r of gaps and shares with its percentile interval over prompts."""
        rng, n = np.random.default_rng(seed), len(self.x)
        rows = np.vstack([np.arange(n), rng.integers(n, size=(resamples, n))])
        x, y = self.x[rows], self.y[rows]
        x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
        size = np.sqrt((x**2).sum(1) * (y**2).sum(1))
        r = np.divide((x * y).sum(1), size, out=np.zeros(len(rows)), where=size > 1e-12)
        return float(r[0]), percentile_interval(r[1:])

    def coverage(self, splits: int = 200, seed: int = 0) -> tuple[float, tuple[float, float], float]:
        """Shares inside of the intervals of lines that were fitted on two thirds of the prompts.

        Returns:
            Mean over random splits, the middle 95 % of them, and the mean width.
        """
        rng, n = np.random.default_rng(seed), len(self.x)
        inside, width = [], []
        for _ in range(splits):
            order = rng.permutation(n)
            fitted, held = order[: max(LEAST, 2 * n // 3)], order[max(LEAST, 2 * n // 3) :]
            if not len(held) or float(np.ptp(self.x[fitted])) < 1e-9:
                continue
            low, high = ShareLine(self.x[fitted], self.y[fitted]).interval(self.x[held])
            inside.append(float(((self.y[held] >= low - 1e-9) & (self.y[held] <= high + 1e-9)).mean()))
            width.append(float((high - low).mean()))
        if not inside:
            return 1.0, (0.0, 1.0), 1.0
        return float(np.mean(inside)), percentile_interval(np.array(inside)), float(np.mean(width))
