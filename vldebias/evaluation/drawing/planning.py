"""From a prompt set and variants to a plan: which prompts there are, and whether all of it fits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.plan import (
    NONE,
    NOT_KEPT,
    SEED_STEP,
    Part,
    Plan,
    PlannedPrompt,
    PlannedVariant,
    Variant,
    slug,
)
from vldebias.prompts import PromptSet
from vldebias.stated import StatedWords

__all__ = ["make_plan"]

PARTS: dict[str, tuple[Part, ...]] = {"train": ("train",), "unseen": ("unseen",), "both": ("train", "unseen")}
OWN = ("prompt", "generator", "num_inference_steps", "guidance_scale", "output_type", "num_images_per_prompt")


def make_plan(
    model: Mapping[str, Any],
    prompts: PromptSet,
    variants: Mapping[str, Variant],
    *,
    concepts: str,
    stated: bool,
    images: int,
    stated_images: int,
    seeds: Sequence[int],
    steps: int,
    guidance: float,
    batch_size: int,
    options: Mapping[str, Any],
) -> Plan:
    """The plan of `evaluate_generation`; arguments as there, `model` as of `vldebias.evaluation.drawing.run.identity`.

    Raises:
        InvalidInputError: no prompts, no variants, counts below one, seeds that repeat, options that are no plain
            values or set by the plan, a variant called "none", two whose folders would have one name.
    """
    _check_counts(images=images, stated_images=stated_images, steps=steps, batch_size=batch_size)
    _check_names(variants)
    _check_options(options)
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InvalidInputError(f"seeds: expected different numbers from 0 on, got {list(seeds)}")
    if concepts not in PARTS:
        raise InvalidInputError(f"concepts: expected one of {', '.join(PARTS)}, got {concepts!r}")
    planned = [p for part in PARTS[concepts] for p in _plain(prompts, part)]
    if not planned:
        raise InvalidInputError(f"{prompts.name}: has no {concepts} classes, so there is no prompt to draw")
    if stated:
        planned += [p for part in PARTS[concepts] for p in _stated(prompts, part)]
    return Plan(
        model=dict(model),
        prompt_set=prompts.name,
        prompt_set_hash=prompts.hash,
        prompts=tuple(planned),
        variants={NONE: None, **_planned_variants(variants, stated)},
        seeds=tuple(seeds),
        images=images,
        stated_images=min(images, stated_images),
        steps=steps,
        guidance=guidance,
        batch_size=batch_size,
        options=dict(options),
    )


def _planned_variants(variants: Mapping[str, Variant], stated: bool) -> dict[str, PlannedVariant]:
    """Each variant; beside one that leaves stated prompts alone, what becomes of them without that."""
    found = {name: _planned(variant) for name, variant in variants.items()}
    if stated:
        bare = {"keep_stated": False, "only_stated": True}
        found |= {f"{n}{NOT_KEPT}": v.model_copy(update=bare) for n, v in list(found.items()) if v.keep_stated}
    return found


def _planned(variant: Variant) -> PlannedVariant:
    return PlannedVariant(
        sets={prompts.name: prompts.hash for prompts in variant.sets},
        method=variant.method,
        lam=variant.lam,
        strength=variant.strength,
        keep_stated=variant.keep_stated,
    )


def _plain(prompts: PromptSet, part: Part) -> list[PlannedPrompt]:
    train = part == "train"
    texts = prompts.classes if train else prompts.held_out_classes
    names = prompts.class_names if train else prompts.held_out_class_names
    return [PlannedPrompt(prompt=p, concept=n, part=part) for p, n in zip(texts, names, strict=True)]


def _stated(prompts: PromptSet, part: Part) -> list[PlannedPrompt]:
    """The prompts of the pairs, each with the value that it states and the concept it is about."""
    groups = prompts.groups if part == "train" else prompts.held_out_groups
    concepts = StatedWords(prompts.class_names if part == "train" else prompts.held_out_class_names)
    values = {value: StatedWords(words) for value, words in prompts.attributes.items()}
    if not groups or not values:
        raise InvalidInputError(
            f"{prompts.name}: stated=True needs {part} pairs and attribute words; draw with stated=False"
        )
    planned = []
    for prompt in dict.fromkeys(p for group in groups for p in group):
        named = [value for value, words in values.items() if words.match(prompt)]
        if len(named) != 1:
            raise InvalidInputError(
                f"{prompts.name}: {prompt!r} names {named or 'none'} of the values {list(values)}, expected one; "
                "draw with stated=False"
            )
        about = concepts.find(prompt)
        planned.append(PlannedPrompt(prompt=prompt, concept=about[0] if about else "", part=part, stated=named[0]))
    return planned


def _check_counts(**counts: int) -> None:
    wrong = {name: value for name, value in counts.items() if value < 1}
    if wrong:
        raise InvalidInputError(f"expected at least 1, got {wrong}")
    if counts["images"] > SEED_STEP:
        raise InvalidInputError(f"images: expected at most {SEED_STEP} per seed, got {counts['images']}; add seeds")


def _check_options(options: Mapping[str, Any]) -> None:
    taken = [name for name in options if name in OWN]
    if taken:
        raise InvalidInputError(f"options: {taken} are set by the plan; use steps=, guidance=, images= and prompts")
    try:
        json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"options: expected values that JSON can write, got {dict(options)}: {error}"
        ) from error


def _check_names(variants: Mapping[str, Variant]) -> None:
    if not variants:
        raise InvalidInputError("variants: expected at least one to compare with the pipeline as it is")
    folders = [slug(name) for name in (NONE, *variants, *(f"{name}{NOT_KEPT}" for name in variants))]
    if len(set(folders)) < len(folders) or "" in folders or NONE in variants:
        raise InvalidInputError(
            "variants: expected names of letters and digits that stay different as names of folders, and not "
            f"{NONE!r}, which is drawn always; got {list(variants)}"
        )
