"""Figures of human labels: means over prompts, and every prompt by itself with an interval over its images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.evaluation.human.labelled import Labelled
from vldebias.evaluation.human.votes import Counts, Measure, measures
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.result import Figure

__all__ = ["HumanFigures", "radius"]


@dataclass(frozen=True)
class HumanFigures:
    """Turns labels into figures of one task. details: variant -> lam and strength, as figures carry them.

    Means are resampled over prompts, each with all its images: the noise of few images is part of the spread between
    prompts, and drawing images anew as well would count it twice. Where there is one prompt its images are resampled.
    """

    labelled: Labelled
    task: str
    resamples: int
    seed: int
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def all(self) -> list[Figure]:
        """The whole first, then the discrepancy of each prompt.

        Raises:
            InvalidInputError: one prompt, and no seed of it is labelled under every variant.
        """
        prompts = self.labelled.prompts
        if len(prompts) > 1:
            of_each = [figure for p, concept in prompts.items() for figure in self._discrepancy(p, concept)]
            return [*self._means(), *of_each]
        (prompt,) = prompts
        whole = list(self._discrepancy(prompt, ""))
        if not whole:
            raise InvalidInputError(
                f"annotations: no image of {prompt!r} is labelled under every variant; label the same seeds"
            )
        return [*whole, *self._rates(prompt)]

    def _means(self) -> Iterator[Figure]:
        totals = {variant: self.labelled.by_prompt(variant) for variant in self.labelled.variants}
        n = {"prompts": len(self.labelled.prompts), "labelled images": self.labelled.images}
        for metric, subset, better, of in measures(self.labelled.names):
            values = {variant: of(counts) for variant, counts in totals.items()}
            yield from self._figures(
                Measured(self.task, metric, better, n, values, subset=subset, details=self.details)
            )

    def _rates(self, prompt: str) -> Iterator[Figure]:
        """Shares and rates of the images of one prompt; linear in the images, so that they may be drawn anew."""
        rows = self.labelled.of_prompt(prompt)
        n = {"images": len(next(iter(rows.values())))}
        for metric, subset, better, of in measures(self.labelled.names)[1:]:
            measured = Measured(self.task, metric, better, n, rows, _of_sums(of), subset=subset, details=self.details)
            yield from self._figures(measured)

    def _figures(self, measured: Measured) -> list[Figure]:
        found = figures(measured, resamples=self.resamples, seed=self.seed)
        # A share is neither better high nor low: it has no verdict, the discrepancy has.
        return [f.model_copy(update={"change": None}) if f.better == "neither" else f for f in found]

    def _discrepancy(self, prompt: str, subset: str) -> Iterator[Figure]:
        """Discrepancy of one prompt, from the seeds that are labelled under every variant; see `radius`."""
        rows, k = self.labelled.of_prompt(prompt), len(self.labelled.names)
        of, largest = measures(self.labelled.names)[0][3], float(np.sqrt(1 - 1 / k))
        n = {"images": len(next(iter(rows.values())))}
        if n["images"] == 0:
            return
        value = {variant: float(of(counts.sum(0))) for variant, counts in rows.items()}
        by = {variant: radius(c, k, resamples=self.resamples, seed=self.seed) for variant, c in rows.items()}
        for variant, here in value.items():
            change = None
            if variant != "none" and "none" in value:
                moved, around = here - value["none"], by[variant] + by["none"]
                change = (moved, max(-largest, moved - around), min(largest, moved + around))
            yield Figure(
                task=self.task,
                metric="discrepancy",
                method=variant,
                value=here,
                interval=(max(0.0, here - by[variant]), min(largest, here + by[variant])),
                change=change,
                better="lower",
                n=n,
                subset=subset,
                **self.details.get(variant, {}),
            )


def radius(rows: Counts, n_names: int, *, resamples: int, seed: int) -> float:
    """How far the shares of one prompt may be from the true ones, as an L2 distance with 95 % confidence.

    By the triangle inequality the discrepancy is within it too. Resampled discrepancies would not do: they inherit
    the upward bias, and their interval can miss the value that was measured. Nor would resampled shares: 25 equal
    answers of 25 would be certain. Images get Dirichlet weights (Rubin's Bayesian bootstrap), with half an image more
    for every value: one answer per image gives the posterior of Jeffreys' prior. Its coverage swings
    around 95 % where images are few, as that of all such intervals does (Brown et al., "Interval Estimation for a
    Binomial Proportion", 2001).

    Args:
        rows: counts (images, c), of whose columns the first `n_names` name a value.

    Returns:
        The 95 % quantile of the distances; sqrt(1 - 1/|A|), no bound at all, where no image names a value.
    """
    known = rows[:, :n_names]
    known = known[known.any(1)]
    if len(known) == 0:
        return float(np.sqrt(1 - 1 / n_names))
    values = np.concatenate([known, np.eye(n_names) * known.sum() / len(known)])
    weights = np.random.default_rng(seed).dirichlet([1.0] * len(known) + [0.5] * n_names, size=resamples)
    drawn = weights @ values
    distances = np.linalg.norm(drawn / drawn.sum(1, keepdims=True) - known.sum(0) / known.sum(), axis=1)
    return float(np.quantile(distances, 0.95))


def _of_sums(of: Measure) -> Measure:
    return lambda drawn: of(drawn.sum(1))
