"""Measure a pilot: a few judged images of each prompt, from which an audit predicts."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError, need
from vldebias.hosts.loading import Loaded
from vldebias.judge.judges import ClipJudge, Judge, MiniatureJudge
from vldebias.judge.plan import Plan
from vldebias.judge.scores import judge_images
from vldebias.judge.stored import SURE, decide
from vldebias.prompts import PromptSet, load_prompts
from vldebias.report.result import NONE
from vldebias.study.inputs import Inputs
from vldebias.study.side_by_side import STEPS_AND_GUIDANCE, judged_as, plain_value
from vldebias.study.suite import load_suite
from vldebias.study.tasks.generation import GenerationTask
from vldebias.study.tasks.variants import generate
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.wording import balance_prompts

if TYPE_CHECKING:
    import pandas as pd

MOST_PROMPTS = 30  # of a pilot; shares of other prompts are predicted from these
BATCH_SIZE = 8


def images_for_width(width: float) -> tuple[int, int]:
    """Return how many images of a prompt Wilson's 95 % interval of its share takes to be at most
    `width` wide: where all images show one value, and where half of them do.

    >>> images_for_width(0.1)
    (35, 381)

    Raises:
        InvalidInputError: a width that is not between 0 and 1.
    """
    if not 0 < width < 1:
        raise InvalidInputError(f"width: got {width}; expected one between 0 and 1, such as 0.1")
    square = NormalDist().inv_cdf(0.975) ** 2
    # The interval is z / sqrt(n + z^2) wide at a share of a half, and z^2 / (n + z^2) at 0 and 1.
    n_alike = ceil(square * (1 / width - 1))
    n_mixed = ceil(square * (1 / width**2 - 1))
    return max(n_alike, 1), max(n_mixed, 1)


def widest_interval(images: int) -> float:
    """Return the width of Wilson's 95 % interval of a share of a half among so many images."""
    z = NormalDist().inv_cdf(0.975)
    return float(z / (images + z * z) ** 0.5)


def pilot_prompts(prompts: Sequence[str], attribute: PromptSet) -> list[str]:
    """Return the prompts to measure: of those that leave the value of one person open at most
    MOST_PROMPTS, evenly spaced over the list.

    Raises:
        InvalidInputError: no prompt leaves it open.
    """
    # "A nurse" and "a nurse" are one prompt.
    distinct = list({text.casefold(): text for text in reversed(prompts)}.values())[::-1]
    # By the rules of the generation task: a judge sees one value in a picture.
    reasons = balance_prompts(distinct, attribute, seed=0, groups="leave").reasons
    opened = [text for text, reason in zip(distinct, reasons, strict=True) if reason is None]
    if not opened:
        raise InvalidInputError(
            f"measure: none of {len(distinct)} prompts leaves {attribute.name} of one person open;"
            " add some, such as 'a photo of a nurse'"
        )
    n = min(len(opened), MOST_PROMPTS)
    return [opened[i * len(opened) // n] for i in range(n)]


def measure_prompts(
    pipe: Loaded,
    prompts: Sequence[str],
    attribute_set: str | Path | PromptSet,
    options: Options,
    *,
    images: int = 8,
    judge: Judge | None = None,
    guidance: float | None = None,
    progress: Progress = SILENT,
) -> pd.DataFrame:
    """Generate and judge images of each prompt, and return the counts that `vldebias.audit` takes
    as `calibration`.

    Args:
        pipe: of `vldebias.load_host`.
        prompts: texts, see `pilot_prompts`.
        attribute_set: the prompt set of the attribute, "gender".
        options: out, in whose folder "images" those that are there already are read; steps; the
            model of the judge and its device.
        images: of each prompt.
        judge: reads the images. Default: that of the suite "generation"; of the miniature its own.
        guidance: the scale. Default, as that of the steps: the pipeline's own.

    Returns:
        A row per prompt: `prompt`, a column of counts for each value, `model` and `guidance`.

    Raises:
        InvalidInputError: a judge that does not read the attribute, before anything is generated; a
            folder with images of other prompts or settings; no image whose value is known.
    """
    attribute = load_prompts(attribute_set)
    folder = options.out / "images"
    is_miniature = "miniature" in pipe.name
    if judge is None:
        judge = MiniatureJudge().ready() if is_miniature else _judge_of_suite(options, progress)
    name = judged_as(judge, attribute)
    if name is None:
        raise InvalidInputError(
            f"measure: judge {judge.name} reads {', '.join(judge.names)}; expected one of"
            f" {attribute.name} with the values {', '.join(attribute.attributes)}; label images by"
            " hand (--calibration FILE)"
        )
    steps, scale = STEPS_AND_GUIDANCE[is_miniature]
    if not is_miniature:
        steps = _default_of(pipe.host, "num_inference_steps", steps)
        scale = _default_of(pipe.host, "guidance_scale", scale)
    plan = Plan.build(
        {
            "model": {},
            "prompt_set": attribute.name,
            "prompt_set_hash": attribute.hash,
            # Each prompt is its own concept; nothing was fitted on it.
            "prompts": tuple((text, text, "unseen", None) for text in prompts),
            "variants": {NONE: {}},
            "seeds": (0,),
            "images": images,
            "stated_images": 0,
            "steps": options.steps or steps,
            "guidance": scale if guidance is None else guidance,
            "batch_size": BATCH_SIZE,
            "options": {},
        }
    )
    made = generate(pipe.host, plan, {}, folder, progress=progress)
    values = list(judge.names[name])
    codes = decide(judge_images(judge, made, progress)[name], values, SURE).codes
    pandas = need("pandas")
    judged = pandas.DataFrame({"prompt": [image.prompt for image in made], "code": codes})
    counts = pandas.crosstab(judged["prompt"], judged["code"])
    counts = counts.reindex(index=list(prompts), columns=range(len(values)), fill_value=0)
    if not counts.to_numpy().any():
        raise InvalidInputError(
            f"{folder}: the judge knows {attribute.name} in none of {len(made)} images; look at"
            " them, or name another judge (--judge)"
        )
    counts.columns = list(map(plain_value, values))
    measured = counts.rename_axis("prompt").reset_index()
    return measured.assign(model=pipe.name, guidance=plan.guidance)


def _judge_of_suite(options: Options, progress: Progress) -> Judge:
    """Return the judge of the suite "generation", with the model that the options name."""
    for task in load_suite("generation").tasks:
        if isinstance(task, GenerationTask) and isinstance(task.judge, ClipJudge):
            return task.judge.on(task.judge.loaded(Inputs(options, progress=progress)))
    raise InvalidInputError("measure: the suite 'generation' has no judge; give judge=")


def _default_of(pipe: Any, name: str, otherwise: Any) -> Any:
    """Return the default of an argument of a pipeline, else what is passed."""
    parameter = inspect.signature(type(pipe).__call__).parameters.get(name)
    if parameter is None or parameter.default in (None, inspect.Parameter.empty):
        return otherwise
    return parameter.default
