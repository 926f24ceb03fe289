"""Figures of a judge beside those that people's labels correct, and by how much the judge moves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import NONE, TaskResult
from vldebias.metrics.bootstrap import Interval
from vldebias.metrics.corrected import CorrectedShares, corrected_shares, corrected_squares, independent
from vldebias.metrics.discrepancy import squared_discrepancies

ABOUT = (
    "A judge answered about every image and people about some. Corrected figures are right whatever the judge does, if "
    "the labelled images were chosen by lot (prediction-powered inference); the judge decides how wide they are. "
    "Shares are those of all images, unknown ones included. Parity gap and MaxSkew are of all images together, among "
    "those whose value can be told; the squared parity gap is the mean over prompts with two or more labels under "
    "every method. What the judge moves is its figure less the corrected one, of these very images."
)


@dataclass(frozen=True, eq=False)
class JudgedImages:
    """The images of one method.

    Attributes:
        prompts: (n,) codes 0 .. p - 1. judged: (n,) codes of the judge, one beyond the values for unknown.
        people: (n, c) shares of raters that gave each answer, the values first; zeros where nobody was asked.
        weights: (n,) one over the probability of being asked; None: all alike.
    """

    prompts: NDArray[np.int64]
    judged: NDArray[np.int64]
    people: NDArray[np.float64]
    weights: NDArray[np.float64] | None = None

    @property
    def labelled(self) -> int:
        """How many images people were asked about."""
        return int((self.people.sum(1) > 0).sum())

    def corrected(self) -> CorrectedShares:
        """The shares of the answers; InvalidInputError where nothing is labelled."""
        return corrected_shares(self.judged, self.people, self.people.shape[1], weights=self.weights)

    def as_judged(self, values: int) -> CorrectedShares:
        """The same of the judge alone, as if it were right about every image."""
        counts = np.bincount(self.judged, minlength=values + 1).astype(np.float64)
        whole = np.ones(1), np.array([counts.sum()]), (counts / counts.sum())[None]
        return CorrectedShares(*whole, np.inf, len(self.judged))

    def squares(self, values: int) -> NDArray[np.float64]:
        """(p, 2) squared discrepancy of each prompt, by the judge and corrected."""
        counts = np.zeros((int(self.prompts.max()) + 1, values + 1))
        np.add.at(counts, (self.prompts, self.judged), 1.0)
        answers = self.people.shape[1]
        mended = corrected_squares(self.prompts, self.judged, self.people, answers, values, weights=self.weights)
        return np.stack([squared_discrepancies(counts[:, :values]), mended], axis=1)


def add_corrected(
    result: TaskResult,
    names: Sequence[str],
    images: Mapping[str, JudgedImages],
    *,
    subset: str = "",
    resamples: int = 2000,
    seed: int = 0,
) -> dict[str, Any]:
    """Rows of each method: its figures by the judge, corrected, and what the judge moves; returns settings of them.

    names: the values. images: method -> its images; prompts have the same codes under all of them.

    Raises:
        InvalidInputError: a method of which no image is labelled, or no value of one could be told.
    """
    values = len(names)
    bare = [method for method, one in images.items() if not one.labelled]
    if bare:
        raise InvalidInputError(f"labels: no image of {', '.join(bare)} is labelled; draw the sample over all methods")
    mended = {method: one.corrected() for method, one in images.items()}
    judged = {method: one.as_judged(values) for method, one in images.items()}
    for code, value in enumerate(names):
        by = {m: (judged[m].interval(code), one.interval(code), _here(one).interval(code)) for m, one in mended.items()}
        _add(result, "share", by, images, f"{subset}: {value}" if subset else value)
    for metric, of in (("discrepancy", CorrectedShares.discrepancy), ("max_skew", CorrectedShares.max_skew)):
        by = {m: (of(judged[m], values), of(one, values), of(_here(one), values)) for m, one in mended.items()}
        _add(result, metric, by, images, subset)
    squares = {method: one.squares(values) for method, one in images.items()}
    whole = np.all([np.isfinite(one).all(1) for one in squares.values()], axis=0)
    if whole.sum() > 1:
        n = {"prompts": int(whole.sum()), "labels": sum(one.labelled for one in images.values())}
        parts = {m: one[whole] for m, one in squares.items()}
        for metric, column in (("discrepancy_squared", 0), ("corrected_discrepancy_squared", 1)):
            each = {m: one[:, column] for m, one in parts.items()}
            result.add_resampled(metric, each, n=n, subset=subset, resamples=resamples, seed=seed)
        moved = {m: one[:, 0] - one[:, 1] for m, one in parts.items()}
        metric = "judge_moves_discrepancy_squared"
        result.add_resampled(metric, moved, n=n, subset=subset, resamples=resamples, seed=seed)
    about: dict[str, Any] = {}
    about["labelled images"] = {method: one.labelled for method, one in images.items()}
    about["prompts without two labels under every method, left out of the squared gap"] = int((~whole).sum())
    about["more labels, drawn likewise, that halve the interval"] = {
        m: "more than there are images" if (more := one.more_labels()) is None else more for m, one in mended.items()
    }
    return about


def _here(found: CorrectedShares) -> CorrectedShares:
    """About these very images: of what the pipeline draws they are a sample, of themselves they are not."""
    return replace(found, images=np.inf)


def _add(
    result: TaskResult,
    metric: str,
    by: Mapping[str, tuple[Interval, Interval, Interval]],
    images: Mapping[str, JudgedImages],
    subset: str,
) -> None:
    """Three rows of each method: by the judge, corrected, and the difference."""
    first = by.get(NONE)
    for method, (said, mended, here) in by.items():
        n = {"images": len(images[method].judged), "labels": images[method].labelled}
        for name, place, one in ((metric, 0, said), (f"corrected_{metric}", 1, mended)):
            change = None if first is None else independent(one, first[place])
            result.add(name, method, one.value, (one.low, one.high), n=n, change=change, subset=subset)
        moved = said.value - here.value
        interval = said.value - here.high, said.value - here.low
        result.add(f"judge_moves_{metric}", method, moved, interval, n=n, subset=subset)


def corrected_block(
    raw: TaskResult, names: Sequence[str], parts: Mapping[str, Mapping[str, JudgedImages]], **boot: int
) -> TaskResult | None:
    """A block of its own behind that of a judge; None where nothing is labelled.

    parts: subset -> method -> its images; methods without labels are left out and named.
    """
    fields = {"task": f"{raw.provenance.task} corrected", "title": "Corrected by people", "description": ABOUT}
    mended = TaskResult(raw.provenance.model_copy(update=fields), details=raw.details)
    settings: dict[str, Any] = {}
    for subset, images in parts.items():
        some = {method: one for method, one in images.items() if one.labelled}
        if some:
            about = add_corrected(mended, names, some, subset=subset, **boot)
            without = {"methods without labels, left out": sorted(set(images) - set(some))}
            settings |= {f"{subset}: {key}" if subset else key: value for key, value in {**about, **without}.items()}
    mended.provenance.settings = {**raw.provenance.settings, **settings}
    return mended if mended.rows else None
