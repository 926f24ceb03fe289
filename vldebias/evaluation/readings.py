"""What a pipeline draws under a method, read by a judge: for "weighted-values" and "uce", which are fitted to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing import draw, identity
from vldebias.evaluation.judges import Judge, judge_images, stated_attribute
from vldebias.evaluation.plan import Plan, PlannedPrompt, folder_slug
from vldebias.evaluation.task import Count, Strict
from vldebias.evaluation.variants import Variant
from vldebias.methods import Method, Need, Problem, get_method
from vldebias.methods.method import LAM_OF_PIPELINES
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, load_prompts

RUN = -1  # the seeds of measured images are those of runs from 0 on: no noise is read that is measured


class Drawing(Strict):
    """How images are drawn for a fit: images of each prompt and round; the others as of `GenerationTask`."""

    images: Count = 4
    steps: Count = 50
    guidance: float = 7.5
    batch_size: Count = 8
    options: dict[str, Any] = Field(default_factory=dict)


def read_judged(
    pipe: Any,
    prompts: str | Path | PromptSet,
    judge: Judge,
    folder: str | Path,
    *,
    method: str | Method = "weighted-values",
    lam: float = LAM_OF_PIPELINES,
    drawing: Drawing = Drawing(),  # noqa: B008 - frozen
    model: str | None = None,
    progress: Progress = SILENT,
) -> tuple[Method, int]:
    """A method with what a judge read of the images that it asked for, ready for `debias`; and how many they were.

    The method says how many rounds there are, and of which prompts. Each has a folder of its own with a plan, is
    resumed, and is judged once. All start from the same noise, which no measured image has.

    Args:
        pipe: a diffusers pipeline without an attachment.
        prompts: the set that the method is fitted on; its class prompts are drawn.
        judge: reads an attribute with the values of the set.
        folder: for the images; made where it is missing.
        method: one of those whose needs have `Need.JUDGED`. lam: see `debias`.
        model: what the pipeline is called; by default where it came from.

    Raises:
        AlreadyAttachedError, InvalidInputError, PromptSetError: see `draw`; a method that reads no images, a judge
            of other values, images that say nothing, a folder of other settings.
    """
    chosen, given = get_method(method), load_prompts(prompts)
    if Need.JUDGED not in chosen.needs:
        raise InvalidInputError(f"method {chosen.name!r} needs no judged images; fit it with vldebias.debias")
    if not given.classes:
        raise InvalidInputError(f"{given.name}: expected class prompts, which are drawn for the fit, got none")
    attribute, code_of = stated_attribute(given, judge)
    names = dict(zip(given.classes, given.class_names, strict=True))
    how, about, counts = drawing.model_dump(), identity(pipe, model), list[int]()

    def show(one: Method, asked: Sequence[str]) -> dict[str, tuple[float, ...]]:
        """Draws a round of images and has them judged, see `Method.read`."""
        counts.append(0)
        progress.say(f"{one.name}, round {len(counts)}: {len(asked)} prompts are drawn and read for the fit")
        variant = Variant(prompts=(given,), method=one, lam=lam, keep_stated=False)
        plan = Plan(
            model=about,
            prompt_set=given.name,
            prompt_set_hash=given.hash,
            prompts=tuple(PlannedPrompt(prompt=p, concept=names.get(p, ""), part="train") for p in asked),
            variants={one.name: variant.planned},
            seeds=(RUN,),
            stated_images=how["images"],
            **how,
        )
        home = Path(folder) / f"{len(counts)}-{folder_slug(one.name)}"
        drawn = draw(pipe, plan, {one.name: variant}, home, progress=progress)
        counts[-1] = len(drawn)
        chances = judge_images(judge, drawn, progress=progress)[attribute]
        return _shares([image.prompt for image in drawn], chances[:, list(code_of.values())])

    return chosen.read(Problem.of(pipe, given, lam=lam), show), sum(counts)


def _shares(prompts: Sequence[str], chances: NDArray[np.float64]) -> dict[str, tuple[float, ...]]:
    """prompt -> mean probability of each value among its images that show one, leaving out what is none of them."""
    valued = chances.sum(1)
    known = chances.max(1) >= 1 - valued
    shares = {}
    for prompt in dict.fromkeys(prompts):
        at = known & (np.array(prompts) == prompt)
        if at.any():
            shares[prompt] = tuple((chances[at] / valued[at, None]).mean(0).tolist())
    return shares
