"""Make rows of the numbers of images that show each value: shares and gaps from even shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from vldebias.measure.metric import Metric, computed
from vldebias.measure.resampling import percentile_interval, wilson_interval
from vldebias.measure.shares import discrepancies, shares_radius
from vldebias.report.result import CHANCE, DEALT, NONE, TaskResult

Floats = NDArray[np.float64]
GAPS = ("discrepancy", "discrepancy_squared")
ABOUT_GAP = (
    "Discrepancy is the distance of the shares from uniform (eq. 7.2), averaged over prompts and"
    " resampled over prompts with all their images; few images per prompt bias it upwards,"
    " discrepancy_squared is corrected for that."
)


@dataclass(frozen=True)
class ShareRows:
    """Hold numbers of images by method, prompt and value, and make rows of them.

    Means are resampled over prompts, each with all its images: the noise of few images is part of
    the spread between prompts, and resampling images as well would count it twice. The interval of
    one prompt is over its images.

    result: where the rows go. names: the values.
    counts: method -> (p, values + 1) images of each prompt by what they show, unknown last.
    prompts: what the rows of each are called.
    subset: what all prompts are called: "" for the whole, which has the mean shares too, else a
        part, "unseen professions", of which the worst prompt is a row.
    noun: what prompts are called in the numbers of rows.
    resamples, seed: of the bootstrap.
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
        """Add the means over prompts of every metric of shares, then each prompt by itself.

        recognised: method -> (p,) share of the images that show their concept.
        """
        if self.has_means:
            self.add_gaps()
            self.add_dealt()
            unknown = {method: shares[:, -1] for method, shares in self.shares.items()}
            self.add_means("unknown", unknown)
            if recognised is not None:
                self.add_means("recognised", recognised)
            if self.subset:
                # A part has a worst prompt in addition to its mean; the shares of its prompts would
                # add up unlike things ("nurse", "carpenter").
                self.add_worst(recognised)
            else:
                self.add_mean_shares()
        self.add_prompts()

    @property
    def has_means(self) -> bool:
        """Whether there are rows over all prompts: the only prompt of a whole says it itself."""
        return self.subset != "" or len(self.prompts) > 1

    @cached_property
    def known(self) -> dict[str, Floats]:
        """Method -> numbers of images of known value (p, values)."""
        return {method: counts[:, :-1] for method, counts in self.counts.items()}

    @cached_property
    def shares(self) -> dict[str, Floats]:
        """Method -> shares of the values and of unknown (p, values + 1)."""
        return {
            method: counts / counts.sum(1, keepdims=True) for method, counts in self.counts.items()
        }

    @cached_property
    def gaps(self) -> dict[str, Floats]:
        """Method -> distance from even shares of each prompt (p,)."""
        return {method: discrepancies(known) for method, known in self.known.items()}

    @cached_property
    def radius(self) -> dict[str, Floats]:
        """Method -> half the interval of the gap of each prompt (p,), over its images."""
        radius = {}
        for method, known in self.known.items():
            radius[method] = shares_radius(known, resamples=self.resamples, seed=self.seed)
        return radius

    @property
    def widest(self) -> float:
        """The gap of images that all show the same value."""
        return float(np.sqrt(1 - 1 / len(self.names)))

    def gap_change(self, method: str, i: int) -> tuple[float, float, float]:
        """Return by how much a method moves the gap of prompt i from that without a method, with
        the ends of its interval.

        Args:
            method: name of the method.
            i: number of the prompt.
        """
        moved = float(self.gaps[method][i] - self.gaps[NONE][i])
        # The radii are added: one prompt has no resample over prompts by which two methods could
        # be paired, so the change is bounded instead.
        around = float(self.radius[method][i] + self.radius[NONE][i])
        return moved, max(-self.widest, moved - around), min(self.widest, moved + around)

    @cached_property
    def n(self) -> dict[str, int]:
        """Numbers of prompts and images of rows over all prompts."""
        first = next(iter(self.counts.values()))
        if self.subset:
            # Prompts of a part have as many images each.
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
        """Add the mean over prompts, or another statistic, of the values (p,) of each method.

        Args:
            metric: what the values are.
            values: method -> values (p,) of the prompts.
            n: numbers of prompts and images.
            subset: part of the prompts; None: this part.
            statistic: of the values; None: their mean.
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
        """Add every metric of shares, and for the gaps what even shares give by chance."""
        first = next(iter(self.known.values()))
        # Numbers of images that could be told, of the first method: chance depends on them alone.
        sizes = first.sum(1).round().astype(int)
        for metric, compute in computed("shares"):
            self.add_means(metric, {m: compute(known) for m, known in self.known.items()})
            # Even shares of 8 images are seldom 4 and 4: a gap of .2 may be nothing but that.
            if metric.name in GAPS and sizes.any():
                even = np.full(len(self.names), 1 / len(self.names))
                rng = np.random.default_rng(self.seed)
                draws = []
                for size in sizes[sizes > 0]:
                    images = rng.multinomial(size, even, self.resamples).astype(float)
                    draws.append(compute(images))
                # (resamples,) means over prompts whose images are of even shares
                means = np.mean(draws, axis=0)
                interval = percentile_interval(means)
                value = float(means.mean())
                self.result.add(metric, CHANCE, value, interval, n=self.n, subset=self.subset)

        # Tables 7.7 and 7.8 give it after their means: over all prompts, which are no sample of
        # more.
        self.add_means(
            "discrepancy_deviation",
            self.gaps,
            statistic=lambda gaps: np.asarray(gaps.std(axis=-1)),
        )

    def add_dealt(self) -> None:
        """Add the gap of values that are dealt evenly, where a method deals them."""
        facts = self.result.provenance.methods
        dealing = [method for method in self.counts if facts.get(method, {}).get("deals")]
        if not dealing:
            return
        # One stands for all methods that deal: they have as many images, and chance differs by the
        # unknown ones alone.
        counts = self.counts[dealing[0]]
        means = dealt_gaps(counts, resamples=self.resamples, seed=self.seed).mean(axis=1)
        self.result.add(
            "discrepancy",
            DEALT,
            float(means.mean()),
            percentile_interval(means),
            n=self.n,
            subset=self.subset,
        )

    def add_worst(self, recognised: Mapping[str, Floats] | None) -> None:
        """Add the prompt with the widest gap, and the least recognised one."""
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
        """Add the mean share over prompts of each value."""
        for code, value in enumerate(self.names):
            shares = {method: shares[:, code] for method, shares in self.shares.items()}
            self.add_means("share", shares, subset=f"mean over prompts: {value}")

    def add_prompts(self) -> None:
        """Add gap and shares of each prompt, the shares with Wilson's intervals."""
        # Of two values the first share says all; shares of intersections are many and thin.
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
                    # Effective counts are fractions; Wilson's interval is defined for whole
                    # numbers, and is widened to hold the share itself.
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


def dealt_gaps(counts: Floats, *, resamples: int = 2000, seed: int = 0) -> Floats:
    """Return gaps from even shares (resamples, p) of values that are dealt evenly.

    The images that the judge cannot tell are left out at random, which makes even shares uneven.
    Where the deal has a remainder, the first values have one image more.

    Args:
        counts: (p, values + 1) images of each prompt by what they show, unknown last.
        resamples: number of draws.
        seed: of the draws.
    """
    rng = np.random.default_rng(seed)
    values = counts.shape[1] - 1
    gaps = np.zeros((resamples, len(counts)))
    for place, images in enumerate(counts.round().astype(int)):
        total = int(images.sum())
        dealt = np.full(values, total // values)
        dealt[: total % values] += 1
        # Drawn without replacement: which of the dealt images can be told is all that is left to
        # chance.
        known = rng.multivariate_hypergeometric(dealt, int(images[:-1].sum()), size=resamples)
        gaps[:, place] = discrepancies(known)
    return gaps
