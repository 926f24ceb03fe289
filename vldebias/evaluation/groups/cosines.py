"""Cosines of class prompts with spurious prompts, before and after a projection (Table 7.1): no image is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.evaluation.result import Figure
from vldebias.evaluation.texts import Texts
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

__all__ = ["cosine_figures", "spurious_by_value"]


def spurious_by_value(prompts: PromptSet) -> dict[str, tuple[str, ...]]:
    """Value of the attribute -> the spurious prompts that name it; prompts that name none are left out."""
    attributes = dict(chain.from_iterable(part.attributes.items() for part in (prompts.parts or (prompts,))))
    named = {prompt: _value(prompt, attributes) for prompt in prompts.spurious}
    found = {value: tuple(p for p, hit in named.items() if hit == value) for value in attributes}
    return {value: texts for value, texts in found.items() if texts}


def _value(prompt: str, attributes: Mapping[str, tuple[str, ...]]) -> str | None:
    """The value whose word stands in `prompt` as a whole word, in any case; of several words the longest decides."""
    words = [(len(word), value, word) for value, words in attributes.items() for word in words]
    named = [hit for hit in words if re.search(rf"(?<!\w){re.escape(hit[2])}(?!\w)", prompt, re.IGNORECASE)]
    return max(named)[1] if named else None


def cosine_figures(
    texts: Texts,
    prompts: PromptSet,
    projections: Mapping[str, CalibratedProjection | None],
    *,
    task: str,
    strength: float = 1.0,
    details: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Figure]:
    """Cosine of every class prompt, projected, with the spurious prompts of every value, as they are.

    Metrics: `cosine`, mean over the spurious prompts of a value, subset "class / value"; `cosine_spread`, the largest
    minus the smallest of a class over the values, subset = class, and its mean over classes, subset "". A class that
    leans to no value has spread 0. Nothing is drawn, so every interval is the value itself.

    projections: method -> projection, None for "none". details: method -> further fields of its figures.
    """
    by_value = spurious_by_value(prompts)
    if not by_value:
        return []
    values = {method: _cosines(texts, prompts, p, by_value, strength) for method, p in projections.items()}
    base = values.get("none")
    figures = []
    for method, found in values.items():
        for (metric, subset, n), value in found.items():
            change = None if base is None or method == "none" else value - base[metric, subset, n]
            figures.append(
                Figure(
                    task=task,
                    metric=metric,
                    method=method,
                    value=value,
                    interval=(value, value),
                    change=None if change is None else (change, change, change),
                    better="lower",
                    n={"spurious prompts": n},
                    subset=subset,
                    **(details or {}).get(method, {}),
                )
            )
    return figures


def _cosines(
    texts: Texts,
    prompts: PromptSet,
    projection: CalibratedProjection | None,
    by_value: Mapping[str, tuple[str, ...]],
    strength: float,
) -> dict[tuple[str, str, int], float]:
    """(metric, subset, number of spurious prompts) -> value."""
    classes = texts.under(prompts.classes, projection, strength=strength)
    columns = [(classes @ texts.embed(named).T).mean(1).numpy() for named in by_value.values()]
    table: NDArray[np.float64] = np.stack(columns, 1)
    used = sum(map(len, by_value.values()))
    spread = table.max(1) - table.min(1)
    found = {
        ("cosine", f"{name} / {value}", len(by_value[value])): float(table[i, j])
        for i, name in enumerate(prompts.class_names)
        for j, value in enumerate(by_value)
    }
    found |= {("cosine_spread", name, used): float(spread[i]) for i, name in enumerate(prompts.class_names)}
    return found | {("cosine_spread", "", used): float(spread.mean())}
