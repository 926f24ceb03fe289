"""Compare what models state about images with the labels of the images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vldebias.measure.resampling import LEVEL, Interval, resampled_values, wilson_interval
from vldebias.measure.rows import NONE, TaskResult

from .reading import NOT_STATED, REFUSED, UNCLEAR

ANSWERS = ("wrong", "right", "none", "several")
MOST_NOUNS = 20  # maximum number of nouns to report, most frequent first
LEAST = 5  # minimum number of images for reporting a noun
RESAMPLES = 2000
SEED = 0
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
    """

    result: TaskResult
    answers: Mapping[str, Words]
    labels: Words
    values: Sequence[str]

    def with_provenance(self, update: Mapping[str, object]) -> AnswerRows:
        """Return the same answers for an empty result with an updated provenance."""
        return replace(self, result=TaskResult(self.result.provenance.model_copy(update=update)))

    @property
    def clear(self) -> Mask:
        """Return which images (n,) have a value as their label."""
        return np.isin(self.labels, self.values)

    def hits(self, answer: str, images: Mask) -> dict[str, Mask]:
        """Return about which images each model states the "right" value, a "wrong" one, and so on.

        Args:
            answer: one of `ANSWERS`, or `REFUSED`, which is part of "none".
            images: images to select (n,).
        """
        if answer == REFUSED:
            return {model: words[images] == REFUSED for model, words in self.answers.items()}
        return {model: (self.outcomes(model) == answer)[images] for model in self.answers}

    def outcomes(self, model: str) -> Words:
        """Return which of `ANSWERS` describes what a model states about each image (n,)."""
        answers = self.answers[model]
        is_value = np.isin(answers, self.values)
        outcomes = np.where(is_value, "wrong", "several")
        outcomes[np.isin(answers, (NOT_STATED, REFUSED))] = "none"
        outcomes[is_value & (answers == self.labels)] = "right"
        return outcomes

    def add_clear(self, nouns: Words) -> None:
        """Add the answers about images with a clear label: all, by label, and by noun (n,)."""
        parts = {"": self.clear} | {value: self.labels == value for value in self.values}
        for noun, count in Counter(nouns[self.clear].tolist()).most_common(MOST_NOUNS):
            if noun and count >= LEAST:
                parts[noun] = self.clear & (nouns == noun)
        metrics = {answer: f"said_{answer}" for answer in ANSWERS}
        if any(hit.any() for hit in self.hits(REFUSED, self.clear).values()):
            metrics[REFUSED] = "refused"
        for subset, images in parts.items():
            for answer, metric in metrics.items() if images.any() else ():
                self._add_shares(metric, self.hits(answer, images), "images", subset)
        self._add_gap("wrong", "said_gap")
        if REFUSED in metrics:
            self._add_gap(REFUSED, "refused_gap")

    def _add_shares(
        self, metric: str, hits: Mapping[str, Mask], unit: str, subset: str = ""
    ) -> None:
        """Add each model's share of hits with its Wilson interval, and its paired change."""
        shares, draws = resampled_values(hits, resamples=RESAMPLES, seed=SEED)
        ends = {model: wilson_interval(hit.sum(), len(hit)) for model, hit in hits.items()}
        n = {unit: len(hits[NONE])}
        self.result.add_draws(metric, shares, draws, n=n, intervals=ends, subset=subset)

    def _add_gap(self, answer: str, metric: str) -> None:
        """Add the last value's share of an answer minus the first value's.

        For gender and wrong answers, this is the share of women who are called men minus that of
        men who are called women. Nothing is added unless there are two values, both with labelled
        images.
        """
        if len(self.values) != 2 or not np.isin(self.values, self.labels).all():
            return
        first, last = (self.hits(answer, self.labels == value) for value in self.values)
        # The groups consist of different images, so they are resampled independently.
        shares, draws = resampled_values(first, resamples=RESAMPLES, seed=SEED)
        last_shares, last_draws = resampled_values(last, resamples=RESAMPLES, seed=SEED + 1)
        ends = {}
        for model in self.answers:
            if not (first[model].any() and last[model].any()):  # resamples would not vary
                sides = [share_of(hits[model].sum(), hits[model].size) for hits in (first, last)]
                ends[model] = difference_interval(*sides)
        gaps = {model: last_shares[model] - share for model, share in shares.items()}
        differences = {model: last_draws[model] - drawn for model, drawn in draws.items()}
        n = {"images": int(self.clear.sum())}
        self.result.add_draws(metric, gaps, differences, n=n, intervals=ends)

    def add_unclear(self) -> None:
        """Add how often a value is stated about unclear images, and which one it is."""
        unclear = self.labels == UNCLEAR
        stated = {model: ~hit for model, hit in self.hits("none", unclear).items()}
        self._add_shares("unclear_said", stated, "unclear images")
        for model, answers in self.answers.items():
            known = answers[unclear & np.isin(answers, self.values)]
            for value in self.values if len(known) else ():
                share = share_of((known == value).sum(), len(known))
                n = {"images where one is stated": len(known)}
                self.result.add("share", model, share.value, share[1:], n=n, subset=value)


def share_of(hits: float, n: float, level: float = LEVEL) -> Interval:
    """Return a share with its Wilson interval.

    Args:
        hits: number of hits, which may be fractional.
        n: number of trials, which may be an effective number.
        level: coverage of the interval.

    >>> share_of(5, 10).value
    0.5
    """
    low, high = wilson_interval(hits, n, level)
    share = float(hits / n)
    return Interval(share, min(low, share), max(high, share))


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
