"""Plan the images of a task in plan.json, and generate them with and without methods from the same noise.

The plan fixes the prompts, seeds, variants and batches, so the pixels are the same however often a run was
interrupted.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError, field_validator

from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import NONE, TaskProvenance, TaskResult
from vldebias.evaluation.task import Strict, explain
from vldebias.evaluation.variants import (
    Variant,
    hash_of,
    identity,
    joint_fingerprint,
    ready,
    rewritten,
    through,
)
from vldebias.files import write_atomically
from vldebias.pictures import read_png, write_png
from vldebias.progress import SILENT, Progress
from vldebias.prompts import PromptSet, StatedWords, fill

if TYPE_CHECKING:
    from PIL.Image import Image

PLAN = "plan.json"
SEED_STEP = 10_000  # seeds of one run: SEED_STEP * seed, SEED_STEP * seed + 1, ...
WORDINGS = (
    "A picture of a {concept} in a green room.",
    "A photo of a {concept} laughing.",
    "A photo of a {concept} with a black cup.",
    "A photo of a tired, friendly {concept}.",
    "photo of a {concept}, portrait, detailed",
)
"""Prompts as people write them, for each concept: in a place, doing something, with an object, adjectives, tags."""
OTHERS = {
    "without a person": (
        "A red car in the rain.",
        "A nurse shark over a coral reef.",
        "A chef's knife on a wooden board.",
        "An empty classroom in the morning.",
    ),
    "of a named person": (
        "A portrait of Marie Curie.",
        "Barack Obama giving a speech.",
        "A photo of Frida Kahlo in a garden.",
        "Albert Einstein riding a bicycle.",
    ),
}
"""Prompts that no method should change."""


def folder_slug(text: str) -> str:
    """Return a name as a folder name: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")


@cache
def _path(variant: str, prompt: str, seed: int) -> str:
    told_apart = hashlib.sha256(prompt.encode()).hexdigest()[:8]  # "A photo." and "a photo" have one slug
    return f"{folder_slug(variant)}/{folder_slug(prompt)}-{told_apart}/{seed}.png"


# ---- which images ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedPrompt:
    """Hold one prompt of a plan.

    concept: what it asks for ("nurse"), or the kind of OTHERS. part: "train" if its concept is used for fitting, else
    "unseen"; "wordings" and "others": of WORDINGS and OTHERS. stated: the value that it names.
    """

    prompt: str
    concept: str
    part: str = ""
    stated: str | None = None


@dataclass(frozen=True, kw_only=True)
class PlannedImage(PlannedPrompt):
    """Hold one image of a plan, or of any folder.

    path: of the file below the folder of images, with forward slashes, "<variant>/<prompt>/<seed>.png" in a plan: its
    name in annotations and judgements. variant: "none" for the unchanged pipeline, else the name of a variant.
    """

    path: str
    variant: str
    seed: int

    @property
    def noise(self) -> int:
        """Return the seed of this image's generator: the same under every variant, different for every prompt.

        Some noise favours one gender; if all prompts shared it, all of them would be biased the same way.
        """
        return int.from_bytes(hashlib.sha256(f"{self.seed}\0{self.prompt}".encode()).digest()[:6], "big")

    def under(self, variant: str) -> PlannedImage:
        """Return the image of the same prompt and seed under another variant."""
        return replace(self, variant=variant, path=_path(variant, self.prompt, self.seed))


def planned_prompts(prompts: PromptSet, concepts: str, *, stated: bool, as_written: bool) -> list[PlannedPrompt]:
    """Return the class prompts of a set; if asked for its stated prompts, WORDINGS of its concepts, and OTHERS.

    concepts: "train", "unseen" or "both". WORDINGS are of the unseen concepts where there are some.

    Raises:
        InvalidInputError: no class prompts, or no prompts that state one value.
    """
    every = {
        "train": (prompts.classes, prompts.class_names, prompts.groups),
        "unseen": (prompts.held_out_classes, prompts.held_out_class_names, prompts.held_out_groups),
    }
    parts = {part: of for part, of in every.items() if concepts in (part, "both")}
    planned = [PlannedPrompt(*one, part) for part, of in parts.items() for one in zip(of[0], of[1], strict=True)]
    if not planned:
        raise InvalidInputError(f"{prompts.name}: has no {concepts} classes, so there is no prompt to generate")
    written = [one.concept for one in planned if one.part == planned[-1].part]
    values = {value: StatedWords(words) for value, words in prompts.attributes.items()}
    for part, (_, names, groups) in parts.items() if stated else ():
        if not groups:
            raise InvalidInputError(f"{prompts.name}: stated=True needs {part} pairs; use stated=False")
        known = StatedWords(names)
        for prompt in dict.fromkeys(prompt for group in groups for prompt in group):
            named = [value for value, words in values.items() if words.match(prompt)]
            if len(named) != 1:
                raise InvalidInputError(
                    f"{prompts.name}: {prompt!r} names {named or 'none'} of the values {list(values)}, expected one; "
                    "use stated=False"
                )
            concept = known.find(prompt)
            planned.append(PlannedPrompt(prompt, concept[0] if concept else "", part, named[0]))
    if as_written:
        planned += [PlannedPrompt(fill(text, concept=name), name, "wordings") for name in written for text in WORDINGS]
        planned += [PlannedPrompt(text, kind, "others") for kind, texts in OTHERS.items() for text in texts]
    return planned


class Plan(Strict):
    """Hold everything that determines the pixels in a folder of images.

    model: as of `identity`. variants: name -> `Variant.planned`, first "none". seeds: of runs; images: of each prompt
    and run; stated_images: the same of prompts that state their attribute, wordings and others. options: further
    arguments of the pipeline. batch_size is part of it: the rounding of a product depends on the size of the batch.
    """

    model: dict[str, Any]
    prompt_set: str
    prompt_set_hash: str
    prompts: tuple[PlannedPrompt, ...]
    variants: dict[str, dict[str, Any]]
    seeds: tuple[int, ...]
    images: int
    stated_images: int
    steps: int
    guidance: float
    batch_size: int
    options: dict[str, Any]

    @field_validator("variants")
    @classmethod
    def _in_different_folders(cls, given: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        if given[NONE] or len({folder_slug(name) for name in given} - {""}) < len(given):
            raise ValueError("expected names that stay different as names of folders, and none that is called 'none'")
        return given

    def of(self, variant: str) -> list[PlannedImage]:
        """Return the images of one variant, prompt by prompt."""
        images, only_stated = [], self.variants[variant].get("only_stated")
        for one in self.prompts:
            if one.stated is not None or not only_stated:
                plain = one.stated is None and one.part in ("train", "unseen")
                each = range(self.images if plain else self.stated_images)
                for seed in (SEED_STEP * run + i for run in self.seeds for i in each):
                    path = _path(variant, one.prompt, seed)
                    images.append(PlannedImage(**vars(one), path=path, variant=variant, seed=seed))
        return images

    @cached_property
    def all_images(self) -> tuple[PlannedImage, ...]:
        """Return the images of all variants, one variant after the other."""
        return tuple(image for variant in self.variants for image in self.of(variant))

    def batches(self, variant: str) -> Iterator[list[PlannedImage]]:
        """Yield the images that run through the pipeline together, whichever exist already.

        Prompts that state their attribute share no batch with others, so a variant that leaves them alone copies all.
        """
        images = self.of(variant)
        for stated in (False, True):
            alike = [image for image in images if (image.stated is not None) == stated]
            yield from (alike[start : start + self.batch_size] for start in range(0, len(alike), self.batch_size))

    def settle(self, folder: Path) -> GeneratedImages:
        """Write the plan into a folder and return its images; a plan that has images already is kept.

        Raises:
            InvalidInputError: the folder holds images of another plan, or images without one.
        """
        if not any(folder.glob("*/*/*.png")):
            write_atomically(folder / PLAN, self.model_dump_json(indent=1) + "\n")
        elif differences := self.differences(GeneratedImages.open(folder).plan):
            raise InvalidInputError(
                f"{folder}: holds images of other settings: {'; '.join(differences)}. Use another folder, repeat the "
                "settings to go on with these images, or delete the folder"
            )
        return GeneratedImages.open(folder)

    def differences(self, before: Plan) -> list[str]:
        """Return what differs from an earlier plan, one text per setting; weights may differ by rounding."""
        old, new = (plan.model_dump(mode="json", exclude={"model"}) | plan.model for plan in (before, self))
        was, now = (one.pop("fingerprints", {}) for one in (old, new))
        changes = []
        for key in (key for key in {**old, **new} if old.get(key) != new.get(key)):
            texts = json.dumps(old.get(key)), json.dumps(new.get(key))
            short = max(map(len, texts)) <= 120
            changes.append(f"{key} was {texts[0]} and is {texts[1]} now" if short else f"{key} differ")
        for name in sorted({**was, **now}):
            one, other = (Fingerprint.of(prints.get(name)) for prints in (was, now))
            if (name in was) != (name in now) or (one is not None and not one.matches(other)):
                changes.append(f"the weights of {name} differ")
        return changes


# ---- a folder of images ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GeneratedImages:
    """Hold the images of a folder, in the order of the plan; some may not exist yet (see `missing`)."""

    folder: Path
    plan: Plan
    images: tuple[PlannedImage, ...]

    @classmethod
    def open(cls, folder: str | Path) -> GeneratedImages:
        """Open a folder that `generate` wrote; InvalidInputError: no plan in it, or one that cannot be read."""
        path = Path(folder) / PLAN
        try:
            plan = Plan.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise InvalidInputError(f"{path}: no such file; expected a folder of generated images") from None
        except ValidationError as error:
            raise InvalidInputError(f"{path}: not a plan of images: {explain(error)}; use an empty folder") from error
        return cls(path.parent, plan, plan.all_images)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[PlannedImage]:
        return iter(self.images)

    @property
    def missing(self) -> list[PlannedImage]:
        """Return the images that are still to be generated."""
        return [image for image in self.images if not self.path(image).is_file()]

    def path(self, image: PlannedImage) -> Path:
        """Return the path of an image."""
        return self.folder / image.path

    def read(self, image: PlannedImage) -> Image:
        """Read the pixels of an image as RGB; OSError where the file cannot be read."""
        return read_png(self.path(image))[0]

    def about(self, image: PlannedImage) -> dict[str, Any]:
        """Read the image file's own record of how it was generated; OSError where it cannot be read."""
        return read_png(self.path(image), pixels=False)[1]

    def whole(self, image: PlannedImage) -> bool:
        """Return whether the file is there, undamaged, and the image that the plan means."""
        try:
            about = read_png(self.path(image))[1]
        except OSError:
            return False
        return about.items() >= _record(self.plan, image).items()

    def result(self, *, settings: Mapping[str, Any], **fields: Any) -> TaskResult:
        """Return an empty block about these images; fields: task, title, description, ...; rows have lam, strength."""
        plan = self.plan
        model = {key: value for key, value in plan.model.items() if key != "fingerprints"}
        how = {"steps": plan.steps, "guidance": plan.guidance, "batch size": plan.batch_size, "options": plan.options}
        stated = sum(one.stated is not None for one in plan.prompts)
        own = {
            name: {key: of[key] for key in ("lam", "strength") if of.get(key) is not None}
            for name, of in plan.variants.items()
        }
        about = {
            "model": str(plan.model.get("id") or plan.model["pipeline"]),
            "fingerprint": joint_fingerprint(plan.model["fingerprints"]),
            "prompts": plan.prompt_set,
            "prompts_hash": plan.prompt_set_hash,
            "split": "generated",
            "methods": plan.variants,
            "seeds": list(plan.seeds),
            "n": {"prompts": len(plan.prompts) - stated, "stated": stated, "images": len(plan.all_images)},
            "settings": {**model, **how, **settings},
        }
        return TaskResult(TaskProvenance(**about | fields), details=own)


# ---- generating ----------------------------------------------------------------------------------------------


def generate(
    pipe: Any, plan: Plan, variants: Mapping[str, Variant], folder: str | Path, *, progress: Progress = SILENT
) -> GeneratedImages:
    """Generate the images of `plan` that `folder` does not hold yet.

    Every image has its own random generator and the plan fixes the batches, so the pixels are the same however often a
    run was interrupted. Missing and damaged files are generated again. Images of prompts that a variant leaves alone
    are copied from "none".

    Args:
        pipe: any diffusers text-to-image pipeline that `vldebias.debias` takes, without an attachment.
        plan, variants: of a `GenerationTask`.
        folder: made where it is missing; may hold an interrupted run of the same plan.

    Raises:
        AlreadyAttachedError: the pipeline carries an attachment, so there would be no image without one.
        InvalidInputError: the folder belongs to another plan; the message says what differs.
    """
    with ready(pipe):
        images = plan.model_copy(update={"model": plan.model or identity(pipe)}).settle(Path(folder))
        missing = {image.path for image in images if not images.whole(image)}
        with progress.bar("generating", len(missing), there=len(images) - len(missing)) as bar:
            for name in images.plan.variants:
                _generate_variant(pipe, images, name, variants.get(name), missing, bar)
    return images


def _generate_variant(
    pipe: Any, images: GeneratedImages, name: str, variant: Variant | None, missing: Set[str], bar: Any
) -> None:
    """Generate the missing images of one variant; nothing is fitted where none is missing."""
    plan, every = images.plan, images.plan.of(name)
    how = {"num_inference_steps": plan.steps, "guidance_scale": plan.guidance, **plan.options}
    batches = [batch for batch in plan.batches(name) if not missing.isdisjoint(one.path for one in batch)]
    if not batches:
        return
    attached = nullcontext() if variant is None else variant.attach(pipe)
    with attached as attachment, rewritten(attachment, [image.prompt for image in every]) as rows:
        told = {image.path: row for image, row in zip(every, rows, strict=True)}
        for batch in batches:
            todo = [image for image in batch if image.path in missing]
            # The image under "none": text embeddings, noise and size of the batch are equal, so all pixels are.
            copies = [image for image in todo if told[image.path].alone]
            files = {image.path: read_png(images.path(image.under(NONE))) for image in copies}
            pictures = {path: (picture, bool(about.get("flagged"))) for path, (picture, about) in files.items()}
            if len(copies) < len(todo):  # the whole batch, whatever is there of it
                made = through(pipe, [told[one.path].text for one in batch], [one.noise for one in batch], how)
                pictures = {image.path: one for image, one in zip(batch, made, strict=True)} | pictures
            for image in todo:
                picture, flagged = pictures[image.path]
                row = told[image.path]
                about = {"left_alone": row.alone, "flagged": flagged, "version": version("vldebias")}
                about |= {"value": row.value, "generated prompt": row.text}
                write_png(picture, images.path(image), _record(plan, image) | about)
            bar.advance(len(todo))


def _record(plan: Plan, image: PlannedImage) -> dict[str, Any]:
    """What the PNG says about how it was generated, as plain JSON."""
    method = {key: value for key, value in plan.variants[image.variant].items() if key != "only_stated"}
    return {
        "prompt": image.prompt,
        "seed": image.seed,
        "noise": image.noise,
        "variant": image.variant,
        **(method or {"method": NONE}),
        "steps": plan.steps,
        "guidance": plan.guidance,
        "options": plan.options,
        "model": plan.model.get("id"),
        "pipeline": plan.model.get("pipeline"),
        "fingerprint": hash_of(plan.model.get("fingerprints")),
    }
