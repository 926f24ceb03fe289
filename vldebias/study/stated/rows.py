"""Compare what models state about images with the labels of the images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.measure.resampling import (
    Interval,
    percentile_interval,
    resampled_values,
    wilson_interval,
)
from vldebias.measure.rows import NONE, TaskResult
from vldebias.study.stated.reading import NOT_STATED, OTHER, SEVERAL, UNCLEAR
from vldebias.utils.arrays import Floats
from vldebias.utils.phrases import persons

ANSWERS = ("wrong", "right", "none", "several")
KEPT = (0.9, 0.8, 0.75, 0.5)  # shares of right values to keep by confidence
MOST_NOUNS = 20  # maximum number of nouns to report, most frequent first
LEAST = 5  # minimum number of images for reporting a noun
_CONFIDENCE_RESAMPLES = 500
Words = NDArray[np.str_]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class AnswerRows:
    """What models state about the same n images, from which rows are computed.

    Attributes:
        result: the result to add rows to.
        answers: model -> the value that it states about each image (n,), or another answer.
        labels: label of each image (n,): a value, UNCLEAR, SEVERAL, or "" if there is none.
        values: values of the attribute.
        resamples: number of bootstrap resamples.
        seed: bootstrap seed.
    """

    result: TaskResult
    answers: Mapping[str, Words]
    labels: Words
    values: Sequence[str]
    resamples: int = 2000
    seed: int = 0

    @property
    def clear(self) -> Mask:
        """Return which images (n,) have a value as their label."""
        return np.isin(self.labels, self.values)

    def hits(self, answer: str, images: Mask) -> dict[str, Mask]:
        """Return about which images each model states the "right" value, a "wrong" one, and so on.

        Args:
            answer: one of `ANSWERS`.
            images: images to select (n,).
        """
        labels = self.labels[images]
        hits: dict[str, Mask] = {}
        for model, words in self.answers.items():
            answers = words[images]
            is_value = np.isin(answers, self.values)
            hits[model] = {
                "wrong": is_value & (answers != labels),
                "right": answers == labels,
                "none": answers == NOT_STATED,
                "several": np.isin(answers, (SEVERAL, OTHER)),
            }[answer]
        return hits

    def add_clear(self, nouns: Words) -> None:
        """Add the answers about images with a clear label: all, by label, and by noun (n,)."""
        parts = {"": self.clear} | {value: self.labels == value for value in self.values}
        for noun, count in Counter(nouns[self.clear].tolist()).most_common(MOST_NOUNS):
            if noun and count >= LEAST:
                parts[noun] = self.clear & (nouns == noun)
        for subset, images in parts.items():
            for answer in ANSWERS if images.any() else ():
                self._add_share(f"said_{answer}", self.hits(answer, images), "images", subset)
            if not subset:
                self._add_gap()

    def _add_share(
        self, metric: str, hits: Mapping[str, Mask], unit: str, subset: str = ""
    ) -> None:
        """Add each model's share of hits with its Wilson interval, and its paired change."""
        draws = self._draws(hits, self.seed)
        for model, hit in hits.items():
            change = None
            if model != NONE:
                difference = hit.mean() - hits[NONE].mean()
                change = (difference, *percentile_interval(draws[model] - draws[NONE]))
            ends = wilson_interval(hit.sum(), len(hit))
            n = {unit: len(hit)}
            self.result.add(metric, model, hit.mean(), ends, n=n, change=change, subset=subset)

    def _draws(self, hits: Mapping[str, Mask], seed: int) -> dict[str, Floats]:
        """Return each model's share of hits in resamples of the images that all models share."""
        numbers = {model: hit.astype(float) for model, hit in hits.items()}
        return resampled_values(numbers, resamples=self.resamples, seed=seed)[1]

    def _add_gap(self) -> None:
        """Add the last value's share of wrong answers minus the first value's.

        For gender, this is the share of women who are called men minus that of men who are called
        women. Nothing is added unless there are two values, both with labelled images.
        """
        if len(self.values) != 2 or not np.isin(self.values, self.labels).all():
            return
        first, last = (self.hits("wrong", self.labels == value) for value in self.values)
        # The groups consist of different images, so they are resampled independently.
        draws_first, draws_last = self._draws(first, self.seed), self._draws(last, self.seed + 1)
        n = {persons(value): int((self.labels == value).sum()) for value in self.values}
        for model in self.answers:
            gap = last[model].mean() - first[model].mean()
            change = None
            if model != NONE:
                draws = {name: draws_last[name] - draws_first[name] for name in (model, NONE)}
                before = last[NONE].mean() - first[NONE].mean()
                change = (gap - before, *percentile_interval(draws[model] - draws[NONE]))
            ends = percentile_interval(draws_last[model] - draws_first[model])
            if not (first[model].any() and last[model].any()):  # resamples would not vary
                shares = [share_of(hits[model].sum(), hits[model].size) for hits in (first, last)]
                ends = difference_interval(*shares)
            self.result.add("said_gap", model, gap, ends, n=n, change=change)

    def add_unclear(self) -> None:
        """Add how often a value is stated about unclear images, and which one it is."""
        unclear = self.labels == UNCLEAR
        stated = {model: ~hit for model, hit in self.hits("none", unclear).items()}
        self._add_share("unclear_said", stated, "unclear images")
        for model, answers in self.answers.items():
            known = answers[unclear & np.isin(answers, self.values)]
            for value in self.values if len(known) else ():
                share = share_of((known == value).sum(), len(known))
                n = {"with a stated value": len(known)}
                self.result.add("share", model, share.value, share[1:], n=n, subset=value)

    def add_kept(self, model: str, confidences: Floats) -> None:
        """Add how many wrong values are left if only confident values are stated.

        Args:
            model: name of the model.
            confidences: confidence (n,) in the text of each image, or NaN if unknown.
        """
        known = self.clear & np.isfinite(confidences)
        right = self.hits("right", known)[model]
        wrong = self.hits("wrong", known)[model]
        if not right.any() or not wrong.any():
            return
        rng = np.random.default_rng(self.seed)
        draws = []
        for _ in range(_CONFIDENCE_RESAMPLES):
            rows = rng.integers(len(right), size=len(right))
            draws.append(_wrong_left(confidences[known][rows], right[rows], wrong[rows]))
        n = {"wrong": int(wrong.sum()), "right": int(right.sum())}
        left = _wrong_left(confidences[known], right, wrong)
        for share, value, column in zip(KEPT, left, np.transpose(draws), strict=True):
            # With few wrong values, resamples hardly vary.
            drawn = percentile_interval(column[np.isfinite(column)])
            low, high = wilson_interval(value * wrong.sum(), int(wrong.sum()))
            ends = (min(low, drawn[0]), max(high, drawn[1]))
            subset = f"{share:.0%} of the right values kept"
            self.result.add("wrong_left", model, value, ends, n=n, subset=subset)


def share_of(hits: float, n: int) -> Interval:
    """Return a share with its Wilson interval.

    Args:
        hits: number of hits, which may be fractional.
        n: number of trials.

    >>> share_of(5, 10).value
    0.5
    """
    low, high = wilson_interval(hits, n)
    share = float(hits / n)
    return Interval(share, min(low, share), max(high, share))


def _wrong_left(confidences: Floats, right: Mask, wrong: Mask) -> Floats:
    """Return the share of wrong values above each threshold that keeps a share in `KEPT`."""
    if not right.any() or not wrong.any():
        return np.full(len(KEPT), np.nan)
    thresholds = np.quantile(confidences[right], 1 - np.array(KEPT))
    return np.asarray((confidences[wrong][:, None] >= thresholds).mean(axis=0))


def difference_interval(first: Interval, last: Interval) -> tuple[float, float]:
    """Return the interval of `last` minus `first`, from the Wilson intervals of both shares.

    Source: Newcombe, "Interval estimation for the difference between independent proportions"
    (1998), method 10.

    Args:
        first: the share to subtract, with its interval.
        last: the other share, with its interval.

    >>> low, high = difference_interval(Interval(0.0, 0.0, 0.1), Interval(0.5, 0.4, 0.6))
    >>> round(low, 2), round(high, 2)
    (0.36, 0.6)
    """
    gap = last.value - first.value
    below = np.hypot(last.value - last.low, first.high - first.value)
    above = np.hypot(last.high - last.value, first.value - first.low)
    return float(gap - below), float(gap + above)
