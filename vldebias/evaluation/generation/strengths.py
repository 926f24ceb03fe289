"""The same noise at several strengths of a projection, side by side: where a picture turns, and what else turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from vldebias.api import debias
from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.plan import Variant
from vldebias.evaluation.generation.evaluator import generate
from vldebias.evaluation.report.pictures import strength_strips
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Plot

__all__ = ["draw_strengths", "prompts_of"]


def draw_strengths(
    pipe: Any,
    prompts: Sequence[tuple[str, str]],
    variant: Variant,
    *,
    strengths: Sequence[float],
    seeds: Sequence[int],
    steps: int,
    guidance: float,
    on_step: Callable[[str], None] | None = None,
) -> Plot:
    """One row per (name, prompt) and seed, one column per strength. Strength 0 is the pipeline as it is.

    The variant's own strength does not count; the projection is fitted once.
    """
    texts, noise = zip(*[(prompt, seed) for _, prompt in prompts for seed in seeds], strict=True)
    columns = []
    with debias(
        pipe, variant.sets, method=variant.method, lam=variant.lam, keep_stated=variant.keep_stated
    ) as attachment:
        for strength in strengths:
            if on_step is not None:
                on_step(f"strength {strength:g}")
            attachment.strength = strength
            columns.append(generate(pipe, texts, noise, steps=steps, guidance=guidance, batch_size=len(texts)))
    images = torch.stack(columns, dim=1)  # (prompts x seeds, strengths, 3, h, w)
    names = [name if i == 0 else "" for name, _ in prompts for i in range(len(seeds))]
    return strength_strips(list(zip(names, images, strict=True)), strengths)


def prompts_of(prompts: PromptSet, concepts: Sequence[str]) -> list[tuple[str, str]]:
    """(concept, its class prompt) of concepts of a prompt set, held out or not.

    Raises:
        InvalidInputError: a concept that the set does not have.
    """
    there = dict(zip(prompts.class_names, prompts.classes, strict=True))
    there |= zip(prompts.held_out_class_names, prompts.held_out_classes, strict=True)
    missing = [concept for concept in concepts if concept not in there]
    if missing:
        raise InvalidInputError(f"strips: {prompts.name!r} has no {missing}; its concepts are {list(there)}")
    return [(concept, there[concept]) for concept in concepts]
