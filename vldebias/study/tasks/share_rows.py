"""Compute shares and gaps from the number of images that show each value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from vldebias.measure.metric import Metric, computed
from vldebias.measure.resampling import percentile_interval, wilson_interval
from vldebias.measure.rows import CHANCE, EVEN_ASSIGNMENT, NONE, TaskResult
from vldebias.measure.shares import discrepancies, shares_radius
from vldebias.utils.arrays import Floats

GAPS = ("discrepancy", "discrepancy_squared")
ABOUT_GAP = (
    "Discrepancy is the distance between the shares and equal shares (eq. 7.2), averaged over"
    " prompts. Its interval resamples prompts with all of their images. It is biased upwards if"
    " there are few images per prompt; discrepancy_squared is corrected for this bias."
)


@dataclass(frozen=True)
class ShareRows:
    """Image counts by method, prompt and value, from which rows are computed.

    For means, the bootstrap resamples prompts together with all of their images. The spread between
    prompts already includes the noise from having few images per prompt, so resampling images as
    well would count it twice. For individual prompts, the interval is computed over images.

    Attributes:
        result: the result to add rows to.
        names: names of the attribute's values.
        counts: method -> (p, values + 1) image counts per prompt and value, unknown last.
        prompts: prompt names used in the rows.
        subset: name of the prompt subset: "" for all prompts, which also get mean shares, or a part
            such as "unseen professions", which also gets a row for its worst prompt.
        noun: noun for the prompts in sample sizes.
        resamples: number of bootstrap resamples.
        seed: bootstrap seed.
    """

    result: TaskResult
    names: Sequence[str]
    counts: Mapping[str, Floats]
    prompts: Sequence[str]
    subset: str = ""
    noun: str = "prompts"
    resamples: int = 2000
    seed: int = 0

    def add(self, recognised: Mapping[str, Floats] | None = None) -> None:
        """Add the mean over prompts for every share metric, followed by rows for each prompt.

        Args:
            recognised: method -> (p,) share of images that show their concept.
        """
        if self.has_means:
            self.add_gaps()
            self.add_even_assignment()
            unknown = {method: shares[:, -1] for method, shares in self.shares.items()}
            self.add_means("unknown", unknown)
            if recognised is not None:
                self.add_means("recognised", recognised)
            if self.subset:
                # A part gets a row for its worst prompt. It gets no mean shares, because they would
                # average over unrelated prompts ("nurse", "carpenter").
                self.add_worst(recognised)
            else:
                self.add_mean_shares()
        self.add_prompts()

    @property
    def has_means(self) -> bool:
        """Return whether to add means over prompts, which a single prompt does not need."""
        return self.subset != "" or len(self.prompts) > 1

    @cached_property
    def known(self) -> dict[str, Floats]:
        """Return, by method, the number of images (p, values) that show each value."""
        return {method: counts[:, :-1] for method, counts in self.counts.items()}

    @cached_property
    def shares(self) -> dict[str, Floats]:
        """Return, by method, each value's share of the images (p, values + 1), unknown last."""
        return {
            method: counts / counts.sum(1, keepdims=True) for method, counts in self.counts.items()
        }

    @cached_property
    def gaps(self) -> dict[str, Floats]:
        """Return, by method, each prompt's gap (p,) from equal shares."""
        return {method: discrepancies(known) for method, known in self.known.items()}

    @cached_property
    def radius(self) -> dict[str, Floats]:
        """Return, by method, the half-width (p,) of the interval for each prompt's gap."""
        radius = {}
        for method, known in self.known.items():
            radius[method] = shares_radius(known, resamples=self.resamples, seed=self.seed)
        return radius

    @property
    def widest(self) -> float:
        """Return the largest possible gap, which occurs if all images show the same value."""
        return float(np.sqrt(1 - 1 / len(self.names)))

    def gap_change(self, method: str, i: int) -> tuple[float, float, float]:
        """Return how much a method changes a prompt's gap, with the ends of the interval.

        Args:
            method: name of the method.
            i: index of the prompt.
        """
        moved = float(self.gaps[method][i] - self.gaps[NONE][i])
        # The methods cannot be paired by resampling a single prompt, so use the sum of both radii,
        # which is conservative.
        around = float(self.radius[method][i] + self.radius[NONE][i])
        return moved, max(-self.widest, moved - around), min(self.widest, moved + around)

    @cached_property
    def n(self) -> dict[str, int]:
        """Return the sample sizes of a mean over prompts: the numbers of prompts and of images."""
        first = next(iter(self.counts.values()))
        if self.subset:
            # All prompts in a part have the same number of images.
            return {self.noun: len(self.prompts), "images each": round(float(first[:1].sum()))}
        images = sum(float(counts.sum()) for counts in self.counts.values())
        return {self.noun: len(self.prompts), "images": round(images)}

    def add_means(
        self,
        metric: str | Metric,
        values: Mapping[str, Floats],
        *,
        n: Mapping[str, int] | None = None,
        subset: str | None = None,
        statistic: Callable[[Floats], Floats] | None = None,
    ) -> None:
        """Add each method's mean over prompts, or a different statistic of its values (p,).

        Args:
            metric: a metric or its name.
            values: method -> values (p,), one per prompt.
            n: number of prompts and images; `self.n` by default.
            subset: name of the prompt subset; `self.subset` by default.
            statistic: function that aggregates the values; their mean by default.
        """
        self.result.add_resampled(
            metric,
            values,
            n=self.n if n is None else n,
            subset=self.subset if subset is None else subset,
            statistic=statistic,
            resamples=self.resamples,
            seed=self.seed,
        )

    def add_gaps(self) -> None:
        """Add every share metric, and the gaps that are expected by chance under equal shares."""
        first = next(iter(self.known.values()))
        # The gaps expected by chance only depend on the number of images with a known value, so use
        # the first method's counts.
        sizes = first.sum(1).round().astype(int)
        for metric, compute in computed("shares"):
            self.add_means(metric, {m: compute(known) for m, known in self.known.items()})
            # Even with equal shares, 8 images rarely split 4 to 4, so a gap of 0.2 may be due to
            # chance.
            if metric.name in GAPS and sizes.any():
                even = np.full(len(self.names), 1 / len(self.names))
                rng = np.random.default_rng(self.seed)
                draws = []
                for size in sizes[sizes > 0]:
                    images = rng.multinomial(size, even, self.resamples).astype(float)
                    draws.append(compute(images))
                # (resamples,): means over prompts, with images sampled from equal shares
                means = np.mean(draws, axis=0)
                interval = percentile_interval(means)
                value = float(means.mean())
                self.result.add(metric, CHANCE, value, interval, n=self.n, subset=self.subset)

        # Tables 7.7 and 7.8 report standard deviations in addition to the means. They use the
        # population formula, because the prompts are not a sample from a larger set.
        self.add_means(
            "discrepancy_deviation",
            self.gaps,
            statistic=lambda gaps: np.asarray(gaps.std(axis=-1)),
        )

    def add_even_assignment(self) -> None:
        """If a method assigns values evenly, add the gap that is expected from chance alone."""
        facts = self.result.provenance.methods
        assigning = [name for name in self.counts if facts.get(name, {}).get("assigns_values")]
        if not assigning:
            return
        # All such methods have the same number of images, and only differ in which images are
        # unknown, so one row computed from the first method's counts serves for all of them.
        counts = self.counts[assigning[0]]
        means = assigned_gaps(counts, resamples=self.resamples, seed=self.seed).mean(axis=1)
        self.result.add(
            "discrepancy",
            EVEN_ASSIGNMENT,
            float(means.mean()),
            percentile_interval(means),
            n=self.n,
            subset=self.subset,
        )

    def add_worst(self, recognised: Mapping[str, Floats] | None) -> None:
        """Add rows for the prompts with the widest gap and the lowest recognition rate."""
        worst = f"{self.subset}, the worst"
        count = len(self.prompts)
        n = {f"{self.noun}, the one with the widest gap of": count}
        largest = partial(np.max, axis=-1)
        self.add_means("discrepancy", self.gaps, statistic=largest, n=n, subset=worst)
        if recognised is not None:
            n = {f"{self.noun}, the least recognised of": count}
            smallest = partial(np.min, axis=-1)
            self.add_means("recognised", recognised, statistic=smallest, n=n, subset=worst)

    def add_mean_shares(self) -> None:
        """Add each value's mean share over prompts."""
        for code, value in enumerate(self.names):
            shares = {method: shares[:, code] for method, shares in self.shares.items()}
            self.add_means("share", shares, subset=f"mean over prompts: {value}")

    def add_prompts(self) -> None:
        """Add the gap and the shares for each prompt. Shares have Wilson intervals."""
        # With two values, the first share determines the second. Intersections are left out,
        # because they would have many shares that are based on few images each.
        shown = self.names[:1] if len(self.names) == 2 else self.names
        if " x " in self.result.provenance.task:
            shown = ()
        for i, prompt in enumerate(self.prompts):
            for method, counts in self.counts.items():
                size = round(float(counts[i].sum()))
                gap = float(self.gaps[method][i])
                radius_of_prompt = float(self.radius[method][i])
                change = self.gap_change(method, i) if NONE in self.gaps else None
                self.result.add(
                    "discrepancy",
                    method,
                    gap,
                    (max(0.0, gap - radius_of_prompt), min(self.widest, gap + radius_of_prompt)),
                    n={"images": size},
                    change=change,
                    subset=prompt if self.has_means else "",
                )
                for code, name in enumerate(shown):
                    share = float(self.shares[method][i, code])
                    n = max(1, size)
                    # Effective counts are fractional, but are rounded for the Wilson interval. The
                    # interval is then widened to include the share itself.
                    hits = min(n, round(float(counts[i, code])))
                    low, high = wilson_interval(hits, n)
                    self.result.add(
                        "share",
                        method,
                        share,
                        (min(share, low), max(share, high)),
                        n={"images": size},
                        subset=f"{prompt}: {name}",
                    )


def assigned_gaps(counts: Floats, *, resamples: int = 2000, seed: int = 0) -> Floats:
    """Simulate gaps from equal shares (resamples, p) for evenly assigned values.

    Images that the judge cannot label are removed at random, so that shares become uneven. If the
    number of images is not divisible by the number of values, the first values get one more image.

    Args:
        counts: image counts (p, values + 1) per prompt and value, unknown last.
        resamples: number of simulations.
        seed: random seed.
    """
    rng = np.random.default_rng(seed)
    values = counts.shape[1] - 1
    gaps = np.zeros((resamples, len(counts)))
    for place, images in enumerate(counts.round().astype(int)):
        total = int(images.sum())
        assigned = np.full(values, total // values)
        assigned[: total % values] += 1
        # Sample without replacement, because the assigned values are fixed, and only the selection
        # of images that can be labelled is random.
        known = rng.multivariate_hypergeometric(assigned, int(images[:-1].sum()), size=resamples)
        gaps[:, place] = discrepancies(known)
    return gaps
