"""Figures of a retrieval: intervals over queries, or over the images of the gallery.

Over queries (`vldebias.evaluation.intervals`): the queries are a sample of what people ask, such as professions; the
gallery is taken as it is. Over images: the queries are fixed by the protocol, such as the ten of FairFace, and the
gallery is a sample.

An interval over images needs care. A resampled gallery repeats images, so its first k hold fewer different ones and a
maximum over groups strays further up: resampled MaxSkew, MinSkew and NDKL lie away from fairness by about as much again
as the value of a finite gallery does itself, and percentiles of them can miss the value altogether. So the resampled
values are moved to have their mean at the value, and percentiles are taken then (`recentred`). The interval covers the
expected value of the metric on a gallery of this size; it says nothing of a gallery of infinite size, whose MaxSkew is
lower. `eval/bench_skew.py` simulates the coverage of both kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.result import Figure

__all__ = ["Task", "recentred"]

Floats = NDArray[np.float64]
_BOUNDS = {"max_skew": (0.0, np.inf), "min_skew": (-np.inf, 0.0), "ndkl": (0.0, np.inf)}


def recentred(
    value: float, drawn: Floats, bounds: tuple[float, float] = (-np.inf, np.inf), level: float = 0.95
) -> tuple[float, float]:
    """Percentile interval of resampled values (b,), moved so that their mean is `value`, cut at the metric's range.

    `value` itself is never cut off.
    """
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]) + (value - drawn.mean())
    return float(min(value, max(low, bounds[0]))), float(max(value, min(high, bounds[1])))


@dataclass(frozen=True)
class Task:
    """What the figures of one attribute share: name, counts, method -> lam and strength, resampling."""

    name: str
    n: Mapping[str, int]
    details: Mapping[str, Mapping[str, Any]]
    resamples: int
    seed: int

    def over_queries(self, metric: str, better: str, values: Mapping[str, Floats]) -> list[Figure]:
        """Means over queries, with intervals over queries: method -> values (q,)."""
        measured = Measured(self.name, metric, better, dict(self.n), values, details=self.details)
        return figures(measured, resamples=self.resamples, seed=self.seed)

    def over_draws(
        self,
        metric: str,
        better: str,
        values: Mapping[str, float],
        drawn: Mapping[str, Floats],
        *,
        subset: str = "",
        n: Mapping[str, int] | None = None,
    ) -> list[Figure]:
        """A value per method with the interval of its draws (b,), and that of the paired difference to "none"."""
        bounds = _BOUNDS.get(metric.split("@")[0], (0.0, 1.0))
        found = []
        for method, value in values.items():
            change = None
            if method != "none":
                difference = value - values["none"]
                change = (difference, *recentred(difference, drawn[method] - drawn["none"]))
            interval = recentred(value, drawn[method], bounds)
            found.append(self._figure(metric, better, method, value, interval, change, subset, n))
        return found

    def exact(self, metric: str, better: str, values: Mapping[str, float]) -> list[Figure]:
        """Values that no resampling changes, such as the cosine of a fixed query with itself."""
        base = values["none"]
        return [
            self._figure(metric, better, method, v, (v, v), None if method == "none" else (v - base,) * 3)
            for method, v in values.items()
        ]

    def at_random(self, metric: str, better: str, drawn: Floats, queries: int) -> Figure:
        """The expectation under random rankings, with the middle 95 % of a mean over that many queries."""
        rng = np.random.default_rng(self.seed)
        means = rng.choice(drawn, size=(self.resamples, queries)).mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        return self._figure(metric, better, "random", float(drawn.mean()), (float(low), float(high)))

    def each_query(
        self,
        metric: str,
        better: str,
        values: Mapping[str, Floats],
        drawn: Mapping[str, Floats],
        queries: tuple[str, ...],
    ) -> Iterator[Figure]:
        """One figure per query and method, with intervals over images: values (q,), draws (q, b)."""
        for i, query in enumerate(queries):
            one = {method: float(found[i]) for method, found in values.items()}
            yield from self.over_draws(metric, better, one, {m: d[i] for m, d in drawn.items()}, subset=query)

    def _figure(
        self,
        metric: str,
        better: str,
        method: str,
        value: float,
        interval: tuple[float, float],
        change: tuple[float, float, float] | None = None,
        subset: str = "",
        n: Mapping[str, int] | None = None,
    ) -> Figure:
        return Figure(
            task=self.name,
            metric=metric,
            method=method,
            value=value,
            interval=interval,
            change=change,
            better=better,
            n=dict(self.n if n is None else n),
            subset=subset,
            **self.details.get(method, {}),
        )
