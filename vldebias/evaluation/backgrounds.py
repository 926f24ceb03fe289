"""Animals and backgrounds (section 7.6.4, Figure 7-6): does "a photo of a waterbird" still always show water?

The edit comes from pairs of other animals in water and on land (the prompt set "backgrounds"); the subject, such as a
waterbird, is not among them: `GenerationTask(prompts="backgrounds", subjects=["waterbird"], attributes=["background"])`
draws it. The questions of the judge are about scenes and name no animal, for a CLIP that is asked about a waterbird
answers "water" whatever is behind it: the very correlation that is measured. It may still read the bird instead of the
background, so compare with labels of people.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.evaluation.judges import ClipJudge, Question
from vldebias.evaluation.task import Prompts
from vldebias.prompts import PromptSet, fill, load_prompts

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
    name: str | None = None,
) -> ClipJudge:
    """A zero-shot judge of `background` (water, land), and of `animal`: whether the subject is still to be seen.

    Args:
        model, preprocess, tokenizer: any open_clip or transformers image-text model.
        subjects, others: the animals that are drawn, and what else there may be.
        scenes: background -> words for it.
        name: of the model, for reports.

    Raises:
        InvalidInputError: no subjects or others, or one that is both; see also `ClipJudge`.
    """
    if not subjects or not others or set(subjects) & set(others):
        raise InvalidInputError(
            f"judge: expected subjects and other things to tell them from, got {list(subjects)} and {list(others)}"
        )
    questions = {
        "background": Question.of(scenes, reject=NO_SCENE),
        "animal": Question.of((*subjects, *others)),
    }
    return ClipJudge(model, preprocess, tokenizer, questions=questions, name=name)


def subject_prompts(subjects: Sequence[str] = ("waterbird",), prompts: Prompts = "backgrounds") -> PromptSet:
    """The prompt set with these subjects in the place of its unseen animals.

    Their prompts are those of section 7.6.4, "a photo of a waterbird", and as unseen pairs "a photo of a waterbird
    with water background" and the same with land.

    Raises:
        InvalidInputError: no subject, one twice, or an animal that the edit is fitted on.
    """
    prompt_set = load_prompts(prompts)
    known = sorted(set(subjects) & set(prompt_set.class_names))
    if not subjects or known or len(set(subjects)) < len(subjects):
        raise InvalidInputError(
            f"subjects: expected different animals that {prompt_set.name!r} does not fit on, got {list(subjects)}"
            + (f"; it fits on {known}" if known else "")
        )
    values = [words[0] for words in prompt_set.attributes.values()]
    pair = prompt_set.templates[0]
    return replace(
        prompt_set,
        name=f"{prompt_set.name}, {', '.join(subjects)}",
        held_out_class_names=tuple(subjects),
        held_out_classes=tuple(fill("a photo of a {concept}", concept=subject) for subject in subjects),
        held_out_groups=tuple(tuple(fill(pair, concept=s, attribute=value) for value in values) for s in subjects),
    )
