"""Generated images before and after: how far their attributes are from balanced, and what that cost (section 7.6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vldebias.evaluation.drawing.folder import identity
from vldebias.evaluation.drawing.plan import Variant
from vldebias.evaluation.drawing.planning import make_plan
from vldebias.evaluation.drawing.run import draw
from vldebias.evaluation.generation.pair_distances import pair_distances
from vldebias.evaluation.generation.parts import check_attributes, measure_drawn, protocol_of, stated_attribute
from vldebias.evaluation.judging.judges import Judge
from vldebias.evaluation.part import Part
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["evaluate_generation", "generate"]

PAIRS_TOLD = (
    "Mean distance of two prompts that differ in the attribute alone, without and with the projection; pairs that it "
    "was fitted on and pairs of concepts that it was not. Resampled over concepts."
)


def evaluate_generation(
    pipe: Any,
    prompts: PromptSet,
    judge: Judge,
    folder: str | Path,
    *,
    task: str,
    attributes: Sequence[str],
    variants: Mapping[str, Variant],
    images: int,
    seeds: Sequence[int] = (0,),
    concepts: str = "unseen",
    stated: bool = True,
    stated_images: int = 8,
    pair_table: bool = True,
    noun: str = "professions",
    steps: int = 20,
    guidance: float = 3.0,
    batch_size: int = 8,
    model: str | None = None,
    options: Mapping[str, Any] | None = None,
    sure: float = 0.8,
    resamples: int = 2000,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Part]:
    """Draw with and without projections, judge, measure (Tables 7.6 and 7.7); resumes where a run stopped.

    One Part for each attribute, one for the distances of pairs. In several processes all return the same Parts: let
    the first one write them.

    Args:
        pipe: a diffusers pipeline without an attachment.
        prompts: what is drawn: its classes, and where `stated` its pairs.
        judge: reads the images, see `vldebias.evaluation.judging.judges`. Where one of its attributes knows every
            concept of the prompts, the share of images that show their concept is measured too.
        folder: for the images; see `vldebias.evaluation.drawing.run.draw`.
        task: first word of the tasks: "generation" gives "generation gender" and "generation pairs"; a task that is
            called like its attribute keeps that name.
        attributes: of the judge; "gender x race" for their intersections.
        variants: name -> how to debias. The unprojected pipeline, "none", is drawn always.
        images: per prompt and seed. seeds: of runs; image i of a run has the seed 10,000 x run + i.
        concepts: "train" (the prompts that a projection is fitted on), "unseen" or "both".
        stated: draw prompts that state their attribute as well, with and without keeping them as they are.
        stated_images: per such prompt and seed; at most `images`.
        pair_table: measure the distances of pairs too, from texts alone.
        noun: what concepts are called in a report.
        steps, guidance, options: of the pipeline; options are further arguments such as {"height": 512}.
        batch_size: images that go through the pipeline at once.
        model: what the pipeline is called; by default where it came from.
        sure: smallest probability with which the judge's answer counts; see `decide`.
        resamples, seed: of the bootstrap.

    Raises:
        AlreadyAttachedError, InvalidInputError: see `draw`, `make_plan`, `judge_images`.
    """
    check_attributes(judge, attributes)
    plan = make_plan(
        identity(pipe, model),
        prompts,
        variants,
        concepts=concepts,
        stated=stated,
        images=images,
        stated_images=stated_images,
        seeds=seeds,
        steps=steps,
        guidance=guidance,
        batch_size=batch_size,
        options=options or {},
    )
    if stated:
        stated_attribute(prompts, judge)  # before hours of drawing
    drawn = draw(pipe, plan, variants, folder, progress=progress)
    bootstrap = {"resamples": resamples, "seed": seed}
    parts = measure_drawn(
        drawn, judge, prompts, task=task, attributes=attributes, noun=noun, sure=sure, **bootstrap, progress=progress
    )
    if not pair_table:
        return parts
    pairs = f"{task} pairs"
    found = pair_distances(pipe, prompts, variants, task=pairs, noun=noun, **bootstrap)
    told = protocol_of(drawn.plan, pairs, "Distance of pairs (Table 7.6)", PAIRS_TOLD, "texts", bootstrap)
    return [*parts, Part(found, told)]


def generate(
    pipe: Any,
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    steps: int = 20,
    guidance: float = 3.0,
    batch_size: int = 64,
    on_batch: Callable[[int], None] | None = None,
) -> Tensor:
    """One image per (prompt, seed) of the two equally long lists: (n, 3, height, width) in [0, 1] on the CPU.

    Every image has a generator of its own, so an image depends on its prompt and seed and not on its batch:
    methods are compared on the same initial noise.
    """
    images = []
    for start in range(0, len(prompts), batch_size):
        batch = slice(start, start + batch_size)
        generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds[batch]]
        done = pipe(
            list(prompts[batch]),
            generator=generators,
            num_inference_steps=steps,
            guidance_scale=guidance,
            output_type="pt",
        )
        images.append(done.images.float().cpu().clamp(0, 1))
        if on_batch is not None:
            on_batch(len(generators))
    return torch.cat(images)
