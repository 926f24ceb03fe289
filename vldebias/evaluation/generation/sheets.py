"""Drawn images in tables: prompts down, seeds across, one for each variant, to be compared image by image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vldebias.evaluation.drawing.drawn import DrawnSet
from vldebias.evaluation.drawing.plan import PlannedPrompt

__all__ = ["Sheet", "sheets"]


@dataclass(frozen=True, eq=False)
class Sheet:
    """Prompts of one part, "train" or "unseen", that all state their attribute or all do not.

    rows: variant -> (prompts, seeds), the place of each image in the drawn set.
    """

    part: str
    stated: bool
    prompts: tuple[PlannedPrompt, ...]
    rows: Mapping[str, NDArray[np.int64]]

    @property
    def concepts(self) -> list[str]:
        """What each prompt asks for."""
        return [prompt.concept for prompt in self.prompts]

    @property
    def images_each(self) -> int:
        """Images of each prompt under one variant."""
        return next(iter(self.rows.values())).shape[1]


def sheets(drawn: DrawnSet, *, stated: bool) -> list[Sheet]:
    """One sheet for each part that was drawn: plain prompts, or those that state their attribute."""
    plan = drawn.plan
    place = {(image.variant, image.prompt, image.seed): i for i, image in enumerate(drawn)}
    found = []
    for part in ("train", "unseen"):
        prompts = tuple(p for p in plan.prompts if p.part == part and (p.stated is not None) == stated)
        if prompts:
            found.append(Sheet(part, stated, prompts, _rows(drawn, prompts, place, stated)))
    return found


def _rows(
    drawn: DrawnSet, prompts: tuple[PlannedPrompt, ...], place: Mapping[tuple[str, str, int], int], stated: bool
) -> dict[str, NDArray[np.int64]]:
    plan = drawn.plan
    names = [n for n, variant in plan.variants.items() if stated or variant is None or not variant.only_stated]
    return {n: np.array([[place[n, p.prompt, s] for s in plan.seeds_of(p)] for p in prompts]) for n in names}
