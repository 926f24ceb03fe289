"""Figures of drawn and judged images: discrepancy, what cannot be told, shares, and what the projection cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from vldebias.data import Labels
from vldebias.evaluation.drawing.plan import NONE, Plan
from vldebias.evaluation.generation.discrepancies import Counts
from vldebias.evaluation.generation.sheets import Sheet
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.result import Figure

__all__ = ["Bias", "Fidelity", "details"]


def details(plan: Plan) -> dict[str, dict[str, Any]]:
    """Variant -> lam and strength, as figures carry them."""
    return {n: {"lam": v.lam, "strength": v.strength} for n, v in plan.variants.items() if v is not None}


@dataclass(frozen=True, eq=False)
class Bias:
    """The figures of one attribute on one sheet of plain prompts.

    labels: of all drawn images. concepts: labels of what the images show, with the code that each prompt asks for;
    None where the judge cannot tell. crossed: the values are intersections.

    Means over prompts are resampled over prompts, each with all its images: the noise of few images is part of the
    spread between prompts, and drawing images anew as well would count it twice.
    """

    task: str
    noun: str
    sheet: Sheet
    labels: Labels
    concepts: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    details: Mapping[str, Mapping[str, Any]]
    resamples: int
    seed: int
    crossed: bool = False
    counts: Mapping[str, Counts] = field(init=False)

    def __post_init__(self) -> None:
        values = len(self.labels.names)
        counts = {name: Counts.of(self.labels.codes[rows], values) for name, rows in self.sheet.rows.items()}
        object.__setattr__(self, "counts", counts)

    @property
    def subset(self) -> str:
        """ "unseen professions"."""
        return f"{self.sheet.part} {self.noun}"

    def figures(self) -> list[Figure]:
        """The means over prompts, then every prompt by itself."""
        means = [figure for measured in self._means() for figure in self._resampled(measured)]
        return means + list(self._of_prompts()) + list(self._shares())

    def _means(self) -> Iterator[Measured]:
        counts = self.counts.items()
        yield self._measured("discrepancy", "lower", {name: c.discrepancy for name, c in counts})
        yield self._measured("discrepancy_squared", "lower", {name: c.squared for name, c in counts})
        yield self._measured("unknown", "lower", {name: c.unknown_rate for name, c in counts})
        if self.concepts is not None:
            shown, wanted = self.concepts
            right = {name: (shown[rows] == wanted[:, None]).mean(1) for name, rows in self.sheet.rows.items()}
            yield self._measured("recognised", "higher", right)

    def _measured(self, metric: str, better: str, values: Mapping[str, NDArray[np.float64]]) -> Measured:
        n = {self.noun: len(self.sheet.prompts), "images each": self.sheet.images_each}
        return Measured(self.task, metric, better, n, values, subset=self.subset, details=self.details)

    def _resampled(self, measured: Measured) -> list[Figure]:
        return figures(measured, resamples=self.resamples, seed=self.seed)

    def _of_prompts(self) -> Iterator[Figure]:
        """Discrepancy of each prompt; its interval is over the images of the prompt, see `Counts.radius`."""
        largest = float(np.sqrt(1 - 1 / len(self.labels.names)))
        radius = {name: c.radius(resamples=self.resamples, seed=self.seed) for name, c in self.counts.items()}
        value = {name: c.discrepancy for name, c in self.counts.items()}
        for i, concept in enumerate(self.sheet.concepts):
            for name in self.counts:
                here, by = float(value[name][i]), float(radius[name][i])
                moved, around = here - float(value[NONE][i]), by + float(radius[NONE][i])
                yield Figure(
                    task=self.task,
                    metric="discrepancy",
                    method=name,
                    value=here,
                    interval=(max(0.0, here - by), min(largest, here + by)),
                    change=None
                    if name == NONE
                    else (moved, max(-largest, moved - around), min(largest, moved + around)),
                    better="lower",
                    n={"images": self.sheet.images_each},
                    subset=concept,
                    **self.details.get(name, {}),
                )

    def _shares(self) -> Iterator[Figure]:
        """Share of each value among all images of each prompt; what they lack to one cannot be told.

        Of two values the first alone; of intersections none, they are many and thin. A share is neither better high
        nor low, so it has no verdict and no change. Intervals are Wilson's.
        """
        names = self.labels.names
        if self.crossed:
            return
        for i, concept in enumerate(self.sheet.concepts):
            for code, value in enumerate(names[: 1 if len(names) == 2 else None]):
                for name, counts in self.counts.items():
                    found = binomtest(int(counts.known[i, code]), counts.total)
                    low, high = found.proportion_ci(method="wilson")
                    yield Figure(
                        task=self.task,
                        metric="share",
                        method=name,
                        value=float(found.statistic),
                        interval=(float(low), float(high)),
                        change=None,
                        better="neither",
                        n={"images": counts.total},
                        subset=f"{concept}: {value}",
                        **self.details.get(name, {}),
                    )


@dataclass(frozen=True, eq=False)
class Fidelity:
    """Does a prompt that states its attribute get it? Figures of one sheet of such prompts.

    wanted: the code of the value that each prompt states. concepts: see Bias. Resampled over concepts, for the prompts
    of one concept share it. Unknown counts as wrong.
    """

    task: str
    noun: str
    sheet: Sheet
    labels: Labels
    wanted: NDArray[np.int64]
    concepts: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    details: Mapping[str, Mapping[str, Any]]
    resamples: int
    seed: int

    def figures(self) -> list[Figure]:
        """Share of images with the stated value, over all prompts and by value; share that shows the concept."""
        right = self._hits(self.labels.codes, self.wanted)
        found = self._of("stated_right", right, np.ones(len(self.sheet.prompts), dtype=bool), "")
        for code, value in enumerate(self.labels.names):
            chosen = self.wanted == code
            if chosen.any():
                found += self._of("stated_right", right, chosen, f", stated {value}")
        if self.concepts is not None:
            shown, asked = self.concepts
            found += self._of("stated_recognised", self._hits(shown, asked), np.ones(len(asked), dtype=bool), "")
        return found

    def _hits(self, codes: NDArray[np.int64], wanted: NDArray[np.int64]) -> dict[str, NDArray[np.float64]]:
        return {name: (codes[rows] == wanted[:, None]).mean(1) for name, rows in self.sheet.rows.items()}

    def _of(
        self, metric: str, hits: Mapping[str, NDArray[np.float64]], chosen: NDArray[np.bool_], which: str
    ) -> list[Figure]:
        units = [p.concept or p.prompt for p, c in zip(self.sheet.prompts, chosen, strict=True) if c]
        values = {name: _mean_by(units, each[chosen]) for name, each in hits.items()}
        n = {self.noun: len(set(units)), "stated prompts": int(chosen.sum()), "images each": self.sheet.images_each}
        subset = f"{self.sheet.part} {self.noun}{which}"
        measured = Measured(self.task, metric, "higher", n, values, subset=subset, details=self.details)
        return figures(measured, resamples=self.resamples, seed=self.seed)


def _mean_by(units: Sequence[str], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of the values of each unit, in the order of the names of the units."""
    _, index, count = np.unique(units, return_inverse=True, return_counts=True)
    return np.bincount(index, weights=values) / count
