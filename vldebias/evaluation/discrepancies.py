"""What drawn and judged images say: discrepancy, what cannot be told, shares, and what the edit cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.data import UNKNOWN, Labels
from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.plan import PlannedPrompt
from vldebias.evaluation.result import TaskResult
from vldebias.metrics.agreement import agreement
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.metrics.discrepancy import discrepancies, shares_radius
from vldebias.metrics.metric import computed

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Counts:
    """How often each attribute value occurs among the images of each prompt.

    known: (prompts, values); total: images of each prompt, those included that cannot be told.
    """

    known: Codes
    total: int

    @classmethod
    def of(cls, codes: Codes, values: int) -> Counts:
        """From codes (prompts, images) in 0 .. values - 1 or UNKNOWN."""
        return cls((codes[..., None] == np.arange(values)).sum(axis=1), codes.shape[1])

    @property
    def n(self) -> Codes:
        """(prompts,) images whose value is known."""
        return self.known.sum(axis=-1)

    @property
    def unknown_rate(self) -> Floats:
        """(prompts,) share of images that cannot be told."""
        return 1 - self.n / self.total

    @property
    def undecidable(self) -> int:
        """Prompts none of whose images can be told; they count with the largest discrepancy there is."""
        return int((self.n == 0).sum())

    @property
    def shares(self) -> Floats:
        """(prompts, values) shares among the images that can be told; NaN where there is none."""
        n = self.n[..., None]
        return np.divide(self.known, n, out=np.full(self.known.shape, np.nan), where=n > 0)


# ---- images by prompt, seed and variant ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sheet:
    """Prompts of one part, "train" or "unseen", that all state their attribute or all do not.

    rows: variant -> (prompts, seeds), the place of each image in the drawn set.
    """

    part: str
    prompts: tuple[PlannedPrompt, ...]
    rows: Mapping[str, Codes]

    @property
    def concepts(self) -> list[str]:
        """What each prompt asks for."""
        return [prompt.concept for prompt in self.prompts]

    @property
    def images_each(self) -> int:
        """Images of each prompt under one variant."""
        return next(iter(self.rows.values())).shape[1]

    def hits(self, codes: Codes, asked: Codes) -> dict[str, Floats]:
        """variant -> (prompts,) share of images whose code is the one that the prompt asks for."""
        return {name: (codes[rows] == asked[:, None]).mean(1) for name, rows in self.rows.items()}


def sheets(drawn: DrawnSet, *, stated: bool) -> list[Sheet]:
    """One sheet for each part that was drawn: plain prompts, or those that state their attribute."""
    plan = drawn.plan
    place = {(image.variant, image.prompt, image.seed): i for i, image in enumerate(drawn)}
    names = [n for n, variant in plan.variants.items() if stated or variant is None or not variant.only_stated]
    tables = []
    for part in ("train", "unseen"):
        prompts = tuple(p for p in plan.prompts if p.part == part and (p.stated is not None) == stated)
        if prompts:
            rows = {n: np.array([[place[n, p.prompt, s] for s in plan.seeds_of(p)] for p in prompts]) for n in names}
            tables.append(Sheet(part, prompts, rows))
    return tables


@dataclass(frozen=True, eq=False)
class Shown:
    """Which concept every image shows most likely, (images,), and the code of each concept."""

    codes: Codes
    code_of: Mapping[str, int]

    def hits(self, sheet: Sheet) -> dict[str, Floats] | None:
        """See `Sheet.hits`; None where a prompt asks for no concept."""
        if not all(sheet.concepts):
            return None
        return sheet.hits(self.codes, np.array([self.code_of[concept] for concept in sheet.concepts]))


# ---- measurements --------------------------------------------------------------------------------------------


def add_bias(
    result: TaskResult, sheet: Sheet, labels: Labels, shown: Shown | None, *, noun: str, resamples: int, seed: int
) -> dict[str, Counts]:
    """Rows of one attribute on a sheet of plain prompts: the means over prompts, then every prompt by itself.

    The means are of every metric of shares: beside the discrepancy what others report of the same counts, such as
    `vldebias.metrics.kl_from_uniform`.

    Means are resampled over prompts, each with all its images: the noise of few images is part of the spread between
    prompts, and drawing images anew as well would count it twice. The interval of one prompt is over its images, see
    `shares_radius`. Shares are of all images of a prompt, with Wilson's interval: of two values the first alone; of
    intersections none, they are many and thin.

    Returns:
        Variant -> its counts.
    """
    values, boot = len(labels.names), {"resamples": resamples, "seed": seed}
    counts = {name: Counts.of(labels.codes[rows], values) for name, rows in sheet.rows.items()}
    about: dict[str, Any] = {"n": {noun: len(sheet.prompts), "images each": sheet.images_each}, **boot}
    about["subset"] = f"{sheet.part} {noun}"
    for metric, of in computed("shares"):
        result.add_resampled(metric, {name: of(one.known) for name, one in counts.items()}, **about)
    result.add_resampled("unknown", {name: one.unknown_rate for name, one in counts.items()}, **about)
    right = shown.hits(sheet) if shown is not None else None
    if right is not None:
        result.add_resampled("recognised", right, **about)

    own = {name: discrepancies(one.known) for name, one in counts.items()}
    most = float(np.sqrt(1 - 1 / values))
    radius = {name: shares_radius(one.known, resamples=resamples, seed=seed) for name, one in counts.items()}
    for i, concept in enumerate(sheet.concepts):
        here, by = ({name: float(of[i]) for name, of in table.items()} for table in (own, radius))
        result.add_within("discrepancy", here, by, most=most, n={"images": sheet.images_each}, subset=concept)
    if " x " in result.provenance.task:
        return counts
    for i, concept in enumerate(sheet.concepts):
        for code, value in enumerate(labels.names[: 1 if values == 2 else None]):
            for name, one in counts.items():
                hits = int(one.known[i, code])
                interval, n = wilson_interval(hits, one.total), {"images": one.total}
                subset = f"{concept}: {value}"
                result.add("share", name, hits / one.total, interval, n=n, subset=subset)
    return counts


def add_agreement(result: TaskResult, drawn: DrawnSet, labels: Labels, others: Labels) -> None:
    """Rows of how often two judges name the same value, among plain images of which both name one, and their alpha.

    Raises:
        InvalidInputError: judges that call the values differently.
    """
    if set(labels.names) != set(others.names):
        raise InvalidInputError(
            f"second judge: expected the values {list(labels.names)}, got {list(others.names)}; say which of its "
            "labels means which value"
        )
    place = np.array([*(labels.names.index(name) for name in others.names), UNKNOWN])
    first, second = labels.codes, place[others.codes]
    for name in drawn.plan.variants:
        chosen = [i for i, image in enumerate(drawn) if image.variant == name and image.stated is None]
        pair = np.stack([first[chosen], second[chosen]])
        both = pair[:, (pair != UNKNOWN).all(axis=0)]
        if both.size:
            hits, n = int((both[0] == both[1]).sum()), {"images": both.shape[1]}
            result.add("judges_agree", name, hits / n["images"], wilson_interval(hits, n["images"]), n=n)
        if both.size and len(np.unique(both)) > 1:
            alpha = agreement(both, missing=UNKNOWN).alpha
            result.add("judges_alpha", name, alpha.value, (alpha.low, alpha.high), n=n)


def add_fidelity(
    result: TaskResult,
    sheet: Sheet,
    labels: Labels,
    code_of: Mapping[str, int],
    shown: Shown | None,
    *,
    noun: str,
    resamples: int,
    seed: int,
) -> None:
    """Does a prompt that states its attribute get it? Rows of a sheet of such prompts, over all and by value.

    code_of: stated value -> its code. Unknown counts as wrong. Resampled over concepts: the prompts of one share it.
    """
    stated = np.array([code_of[str(prompt.stated)] for prompt in sheet.prompts])
    units = np.array([prompt.concept or prompt.prompt for prompt in sheet.prompts])

    def add(metric: str, hits: Mapping[str, Floats], chosen: NDArray[np.bool_], which: str) -> None:
        names, index, count = np.unique(units[chosen], return_inverse=True, return_counts=True)
        values = {name: np.bincount(index, weights=each[chosen]) / count for name, each in hits.items()}
        n = {noun: len(names), "stated prompts": int(chosen.sum()), "images each": sheet.images_each}
        subset = f"{sheet.part} {noun}{which}"
        result.add_resampled(metric, values, n=n, subset=subset, resamples=resamples, seed=seed)

    right, every = sheet.hits(labels.codes, stated), np.ones(len(stated), dtype=bool)
    add("stated_right", right, every, "")
    for code, value in enumerate(labels.names):
        if (stated == code).any():
            add("stated_right", right, stated == code, f", stated {value}")
    recognised = shown.hits(sheet) if shown is not None else None
    if recognised is not None:
        add("stated_recognised", recognised, every, "")
