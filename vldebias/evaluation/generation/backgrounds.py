"""Animals and backgrounds (section 7.6.4, Figure 7-6): does "a photo of a waterbird" still always show water?

The projection comes from pairs of other animals in water and on land (the prompt set "backgrounds"); the subject, such
as a waterbird, is not among them. A judge reads the background of every image, drawn from the same noise without and
with the projection. The questions are about scenes and name no animal, for a CLIP that is asked about a waterbird
answers "water" whatever is behind it: the very correlation that is measured. It may still read the bird instead of the
background, so compare with labels of people (`vldebias.evaluation.human.evaluator`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.plan import Variant
from vldebias.evaluation.generation.evaluator import evaluate_generation
from vldebias.evaluation.judging.clip import ClipJudge, Question
from vldebias.evaluation.judging.judges import Judge
from vldebias.evaluation.part import Part
from vldebias.prompts import PromptSet, load_prompts
from vldebias.templates import fill

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["NO_SCENE", "OTHER_SUBJECTS", "SCENES", "background_judge", "evaluate_backgrounds", "subject_prompts"]

SET = "backgrounds"
SCENES: dict[str, tuple[str, ...]] = {
    "water": ("ocean", "lake", "river", "pond", "beach"),
    "land": ("forest", "meadow", "field", "desert", "mountain"),
}
"""Words for the two backgrounds; a picture of the sky alone, or of a studio, is neither."""
NO_SCENE = ("a photo of the sky", "a photo of a plain backdrop", "a photo of a room")
OTHER_SUBJECTS = ("landscape", "person", "dog", "car", "building")
"""What an image may show instead of the animal that was asked for."""


def background_judge(
    model: Any,
    preprocess: Any,
    tokenizer: Any = None,
    *,
    subjects: Sequence[str] = ("waterbird",),
    others: Sequence[str] = OTHER_SUBJECTS,
    scenes: Mapping[str, Sequence[str]] = SCENES,
    templates: Sequence[str] = ("a photo of a {value}",),
    reject: Sequence[str] = NO_SCENE,
    name: str | None = None,
) -> ClipJudge:
    """A zero-shot judge of `background` (water, land), and of `animal`: whether the subject is still to be seen.

    Args:
        model, preprocess, tokenizer: any open_clip or transformers image-text model.
        subjects, others: the animals that are drawn, and what else there may be.
        scenes: background -> words for it.
        templates: of the questions, with {value}.
        reject: texts for images with neither background.
        name: of the model, for reports.

    Raises:
        InvalidInputError: no subjects or others, or one that is both; see also `ClipJudge`.
    """
    if not subjects or not others or set(subjects) & set(others):
        raise InvalidInputError(
            f"judge: expected subjects and other things to tell them from, got {list(subjects)} and {list(others)}"
        )
    questions = {
        "background": Question.of(scenes, templates, reject=reject),
        "animal": Question.of((*subjects, *others), templates),
    }
    return ClipJudge(model, preprocess, tokenizer, questions=questions, name=name)


def subject_prompts(subjects: Sequence[str] = ("waterbird",), name_or_set: str | PromptSet = SET) -> PromptSet:
    """The prompt set with these subjects in the place of its unseen animals.

    Their prompts are those of section 7.6.4, "a photo of a waterbird", and as unseen pairs "a photo of a waterbird
    with water background" and the same with land.

    Raises:
        InvalidInputError: no subject, one twice, or an animal that the projection is fitted on.
    """
    prompts = load_prompts(name_or_set)
    known = sorted(set(subjects) & set(prompts.class_names))
    if not subjects or known or len(set(subjects)) < len(subjects):
        raise InvalidInputError(
            f"subjects: expected different animals that {prompts.name!r} does not fit on, got {list(subjects)}"
            + (f"; it fits on {known}" if known else "")
        )
    values = [words[0] for words in prompts.attributes.values()]
    pair = prompts.templates[0]
    return replace(
        prompts,
        name=f"{prompts.name}, {', '.join(subjects)}",
        held_out_class_names=tuple(subjects),
        held_out_classes=tuple(fill("a photo of a {concept}", concept=subject) for subject in subjects),
        held_out_groups=tuple(tuple(fill(pair, concept=s, attribute=value) for value in values) for s in subjects),
    )


def evaluate_backgrounds(
    pipe: Any,
    judge: Judge,
    folder: str | Path,
    *,
    subjects: Sequence[str] = ("waterbird",),
    prompts: str | PromptSet = SET,
    variants: Mapping[str, Variant] | None = None,
    task: str = "backgrounds",
    images: int = 100,
    seeds: Sequence[int] = (0,),
    stated: bool = True,
    steps: int = 50,
    guidance: float = 7.5,
    batch_size: int = 8,
    options: Mapping[str, Any] | None = None,
    sure: float = 0.8,
    resamples: int = 2000,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Part]:
    """Draw the subjects before and after, and measure their backgrounds; resumes where a run stopped.

    Gives what `evaluate_generation` gives, for the attribute `background`: shares, discrepancy, unknown, whether the
    subject is recognised, whether a stated background is kept, the distance of the pairs, rows of images from the same
    seeds (Figure 7-6). Arguments and Raises: see there, and `subject_prompts`.

    Args:
        pipe: a diffusers pipeline without an attachment.
        judge: reads `background`, such as `background_judge`; where one of its attributes knows the subjects, whether
            they are recognised is measured too.
        folder: for the images.
        subjects: animals to draw.
        prompts: the set that the projection is fitted on.
        variants: name -> how to debias; by default "cali" with that set and the paper's lam = 500.
    """
    return evaluate_generation(
        pipe,
        subject_prompts(subjects, prompts),
        judge,
        folder,
        task=task,
        attributes=("background",),
        variants=variants or {"cali": Variant(prompts=(prompts,))},
        images=images,
        seeds=seeds,
        concepts="unseen",
        stated=stated,
        noun="animals",
        steps=steps,
        guidance=guidance,
        batch_size=batch_size,
        options=options,
        sure=sure,
        resamples=resamples,
        seed=seed,
        progress=progress,
    )
