"""Run a pilot: judge a few images per prompt."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from vldebias.data import Labels
from vldebias.errors import InvalidInputError, need
from vldebias.hosts.loading import Loaded
from vldebias.judge.judges import ClipJudge, Judge, MiniatureJudge
from vldebias.judge.plan import PLAN, GeneratedImages, Plan
from vldebias.judge.scores import judge_images
from vldebias.judge.stored import SURE, decide
from vldebias.measure.rows import NONE
from vldebias.methods.cross_attention import measured_clarity
from vldebias.prompts import PromptSet, load_prompts
from vldebias.study.inputs import Inputs
from vldebias.study.suite import load_suite
from vldebias.study.tasks.generation import GenerationTask
from vldebias.study.tasks.variants import generate
from vldebias.utils.options import Options
from vldebias.utils.progress import SILENT, Progress
from vldebias.wording import balance_prompts

from ..generate.side_by_side import STEPS_AND_GUIDANCE, judged_as, plain_value
from .counts import FEWEST_EVEN, images_to_settle, is_clearly_above, read_counts, show_several
from .recorded import record_of_images
from .records.protocol import load_protocol
from .records.schema import NEUTRAL, Record
from .section import AuditedImage

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from diffusers import DiffusionPipeline

MOST_PROMPTS = 30  # maximum number of pilot prompts
BATCH_SIZE = 8
MEASURED = "measured.csv"  # file of counts in the output folder
T = TypeVar("T")


@dataclass(frozen=True)
class Pilot:
    """Judged images of a few prompts.

    Attributes:
        counts: counts for `vldebias.audit(counts=...)`, with one row per prompt (`prompt`, a
            column of counts per value, `model` and `guidance`).
        record: a record of the images.
        images: for each prompt, its judged images. An answer is "unclear" if the judge does not
            recognise a value.
        clarity: how clearly the pipeline responds to the words for each value; empty if unknown
            (see `vldebias.methods.cross_attention.measured_clarity`).
    """

    counts: pd.DataFrame
    record: Record
    images: dict[str, list[AuditedImage]]
    clarity: dict[str, float]


def pilot_prompts(prompts: Sequence[str], attribute: PromptSet) -> list[str]:
    """Select the prompts whose images the pilot judges.

    Up to MOST_PROMPTS prompts are selected at even intervals from those that describe one person
    without stating a value. If all of these are protocol prompts, all of them are selected.

    Args:
        prompts: candidate prompts.
        attribute: the attribute's prompt set.

    Raises:
        InvalidInputError: If no prompt leaves the value open.
    """
    # Treat "A nurse" and "a nurse" as the same prompt.
    distinct = list({text.casefold(): text for text in reversed(prompts)}.values())[::-1]
    # As in the generation task, exclude prompts about groups, since a judge assigns one value per
    # image.
    reasons = balance_prompts(distinct, attribute, seed=0, people="leave").reasons
    rows = zip(distinct, reasons, show_several(distinct, attribute), strict=True)
    opened = [text for text, reason, is_several in rows if reason is None and not is_several]
    if not opened:
        raise InvalidInputError(
            f"measure: none of {len(distinct)} prompts describes one person and leaves"
            f" {attribute.name} open; add prompts such as 'a photo of a nurse'"
        )
    n = min(len(opened), MOST_PROMPTS)
    if set(opened) <= {prompt.text for prompt in load_protocol().prompts()}:
        n = len(opened)
    return [opened[i * len(opened) // n] for i in range(n)]


def images_to_reach(
    prompts: Sequence[str], attribute: PromptSet, folder: Path, images: int
) -> dict[str, int]:
    """Return how many images a run should reach for each prompt, including earlier ones.

    A prompt keeps the images of an earlier run if they clearly show one value, or look even in
    FEWEST_EVEN images. In a run of the entire protocol, all prompts get the same number, because
    records are compared.

    Args:
        prompts: prompts to measure, as selected by `pilot_prompts`.
        attribute: the attribute's prompt set.
        folder: output folder of the run, and of an earlier one if there was one.
        images: number of images for all other prompts.
    """
    numbers = dict.fromkeys(prompts, images)
    counts_file = folder / MEASURED
    protocol = load_protocol().prompts()
    neutral = {prompt.text for prompt in protocol if prompt.qualifier == NEUTRAL}
    if neutral <= set(prompts) or not (
        counts_file.exists() and (folder / "images" / PLAN).exists()
    ):
        return numbers
    plan = GeneratedImages.open(folder / "images").plan
    counts = read_counts(counts_file, attribute)
    for prompt in counts.index.intersection(prompts):
        row = counts.loc[prompt]
        n = int(row.sum())
        hits = int(row.max())
        equal_share = 1 / len(row)
        is_even = n >= FEWEST_EVEN and images_to_settle(hits / n, n, equal_share) is None
        if is_even or is_clearly_above(equal_share, hits, n):
            numbers[prompt] = min(images, plan.images_of_prompt.get(prompt, plan.images))
    return numbers


def measure_prompts(
    pipe: Loaded,
    prompts: Sequence[str],
    attribute_set: str | Path | PromptSet,
    options: Options,
    *,
    images: int | Mapping[str, int] = 8,
    judge: Judge | None = None,
    guidance: float | None = None,
    progress: Progress = SILENT,
) -> Pilot:
    """Generate and judge images for each prompt.

    Args:
        pipe: a pipeline loaded by `vldebias.load_host`.
        prompts: prompts to measure, as selected by `pilot_prompts`.
        attribute_set: the attribute's prompt set, such as "gender".
        options: run options. `out` is the output folder, whose subfolder "images" may contain
            images from an earlier run, with at most as many images per prompt; `steps`, `judge`
            and `device` are also used.
        images: number of images, for all prompts or for each of them (`images_to_reach`).
        judge: the judge. Default: the judge from the suite "generation", or the miniature judge for
            the miniature pipeline.
        guidance: guidance scale. Default: the pipeline's default.
        progress: object that shows progress bars.

    Returns:
        The pilot: counts by prompt, a record, and the images with the judge's answers.

    Raises:
        InvalidInputError: If the judge does not know the attribute (checked before anything is
            generated), the folder contains images for different prompts or settings, or no image
            has a known value.
    """
    attribute = load_prompts(attribute_set)
    folder = options.out / "images"
    is_miniature = "miniature" in pipe.name
    if judge is None:
        if is_miniature and options.judge in (None, "miniature"):
            judge = MiniatureJudge().ready()
        else:
            judge = suite_judge(options, progress)
    name = judged_as(judge, attribute)
    if name is None:
        raise InvalidInputError(
            f"measure: judge {judge.name} recognises {', '.join(judge.names)}; expected a judge for"
            f" {attribute.name} with the values {', '.join(attribute.attributes)}; use a different"
            " judge, or label images by hand (vldebias label)"
        )
    steps, scale = STEPS_AND_GUIDANCE[is_miniature]
    if not is_miniature:
        steps = _default_of(pipe.host, "num_inference_steps", steps)
        scale = _default_of(pipe.host, "guidance_scale", scale)
    if isinstance(images, int):
        images = dict.fromkeys(prompts, images)
    most = max(images.values())
    plan = Plan.build(
        {
            "model": {},
            "prompt_set": attribute.name,
            "prompt_set_hash": attribute.hash,
            # Treat each prompt as a separate concept that nothing was fitted on.
            "prompts": tuple((text, text, "unseen", None) for text in prompts),
            "variants": {NONE: {}},
            "images": most,
            "images_of_prompt": {text: n for text, n in images.items() if n < most},
            "steps": options.steps or steps,
            "guidance": scale if guidance is None else guidance,
            "batch_size": BATCH_SIZE,
        }
    )
    generated = generate(pipe.host, plan, {}, folder, progress=progress)
    values = list(judge.names[name])
    probabilities = judge_images(judge, generated, progress)[name]
    labels = decide(probabilities, values, SURE)
    if (labels.codes < 0).all():
        raise InvalidInputError(
            f"{folder}: the judge recognises {attribute.name} in none of {len(generated)} images;"
            " look at the images, or use a different judge (--judge)"
        )
    named = Labels(labels.codes, tuple(map(plain_value, values)))
    record = record_of_images(generated, named, attribute=name, judge=judge, model=pipe.name)
    assert record is not None  # every prompt in the plan leaves the value open
    rows = []
    for row in record.counts:
        columns = dict(zip(record.values, row.counts, strict=True))
        rows.append({"prompt": row.prompt, **columns})
    counts = need("pandas").DataFrame(rows).assign(model=pipe.name, guidance=plan.guidance)
    judged = _images_by_prompt(generated, named, probabilities.max(axis=1))
    return Pilot(counts, record, judged, measured_clarity(pipe.host, attribute))


def _images_by_prompt(
    generated: GeneratedImages, labels: Labels, probabilities: np.ndarray
) -> dict[str, list[AuditedImage]]:
    """Return the judged images of each prompt.

    Args:
        generated: n images.
        labels: the judge's answers.
        probabilities: (n,), the probability of each image's likeliest value.
    """
    judged: dict[str, list[AuditedImage]] = {}
    rows = zip(generated, labels.codes.tolist(), probabilities.tolist(), strict=True)
    for image, code, probability in rows:
        answer = labels.names[code] if code >= 0 else "unclear"
        shown = AuditedImage(f"images/{image.path}", answer, round(probability, 3), image.seed)
        judged.setdefault(image.prompt, []).append(shown)
    return judged


def suite_judge(options: Options, progress: Progress = SILENT) -> Judge:
    """Return the judge from the suite "generation", with the model from the options if given.

    Args:
        options: run options; `judge` is the name of a CLIP model.
        progress: object that shows progress bars.
    """
    for task in load_suite("generation").tasks:
        if isinstance(task, GenerationTask) and isinstance(task.judge, ClipJudge):
            return task.judge.on(task.judge.loaded(Inputs(options, progress=progress)))
    raise InvalidInputError("measure: the suite 'generation' has no judge; pass judge=")


def _default_of(pipe: DiffusionPipeline, name: str, fallback: T) -> T:
    """Return a pipeline argument's default value, or the fallback if it has none."""
    parameter = inspect.signature(type(pipe).__call__).parameters.get(name)
    if parameter is None or parameter.default in (None, inspect.Parameter.empty):
        return fallback
    default: T = parameter.default
    return default
