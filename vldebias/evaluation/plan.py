"""What is to be drawn: which prompts, from which seeds, under which variants; kept as plan.json beside the images."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from vldebias.edit import Fingerprint
from vldebias.errors import InvalidInputError
from vldebias.evaluation.task import Count, Strict, explain
from vldebias.evaluation.variants import NONE, PlannedVariant, Variant
from vldebias.files import write_atomically
from vldebias.prompts import PromptSet, StatedWords

Part = Literal["train", "unseen"]

NOT_KEPT = ", stated not kept"
PLAN = "plan.json"
SEED_STEP = 10_000  # seeds of one run: SEED_STEP * seed, SEED_STEP * seed + 1, ...
PARTS: dict[str, tuple[Part, ...]] = {"train": ("train",), "unseen": ("unseen",), "both": ("train", "unseen")}
OWN = ("prompt", "generator", "num_inference_steps", "guidance_scale", "output_type", "num_images_per_prompt")


class PlannedPrompt(Strict):
    """One prompt. concept: what it asks for ("nurse"); part: used for fitting or not; stated: the value it names."""

    prompt: str
    concept: str
    part: Part
    stated: str | None = None


@dataclass(frozen=True)
class Drawn:
    """One drawn image, whoever drew it.

    path: of the file below the folder of images, with forward slashes: its name in annotations and judgements.
    variant: "none" for the unprojected pipeline, else the name of a variant. prompt: the text that was drawn.
    concept: what the prompt is about, such as "doctor". seed: of the image, the same under every variant.

    Raises:
        InvalidInputError: a path that does not stay below the folder.
    """

    path: str
    variant: str
    prompt: str
    concept: str
    seed: int

    def __post_init__(self) -> None:
        path = PurePosixPath(self.path)
        if path.is_absolute() or ".." in path.parts or "\\" in self.path or not path.name:
            raise InvalidInputError(
                f"path: expected one below the folder of images, with forward slashes, got {self.path!r}"
            )

    @property
    def noise(self) -> int:
        """Seed of the generator of this image: the same under every variant, another for every prompt.

        Some noise leans to one gender; shared by all prompts it would do so everywhere at once.
        """
        return int.from_bytes(hashlib.sha256(f"{self.seed}\0{self.prompt}".encode()).digest()[:6], "big")


@dataclass(frozen=True)
class DrawnImage(Drawn):
    """One image of a plan; path: "<variant>/<prompt>/<seed>.png"; part and stated: see `PlannedPrompt`."""

    part: Part
    stated: str | None

    def under(self, variant: str) -> DrawnImage:
        """The same prompt and seed under another variant."""
        path = f"{_folder(variant, self.prompt)}/{self.seed}.png"
        return DrawnImage(path, variant, self.prompt, self.concept, self.seed, self.part, self.stated)


class Plan(Strict):
    """All that decides about the pixels of a folder of images.

    model: class, origin, fingerprints, scheduler, adapters and precision of the pipeline. images: for each prompt and
    seed; stated_images: the same for prompts that state their attribute. options: further arguments of the pipeline.
    batch_size is part of it: the rounding of a batched product depends on the size of the batch.
    """

    format: Literal[1] = 1
    model: dict[str, Any]
    prompt_set: str
    prompt_set_hash: str
    prompts: tuple[PlannedPrompt, ...]
    variants: dict[str, PlannedVariant | None]
    seeds: tuple[int, ...]
    images: Annotated[Count, Field(le=SEED_STEP)]  # more would have the seeds of the next run
    stated_images: Count
    steps: Count
    guidance: float
    batch_size: Count
    options: dict[str, Any]

    def seeds_of(self, prompt: PlannedPrompt) -> list[int]:
        """The seeds of the images of one prompt."""
        each = self.images if prompt.stated is None else self.stated_images
        return [SEED_STEP * seed + i for seed in self.seeds for i in range(each)]

    def of(self, variant: str) -> list[DrawnImage]:
        """The images of one variant, prompt by prompt."""
        planned = self.variants[variant]
        only_stated = planned is not None and planned.only_stated
        return [
            DrawnImage(f"{_folder(variant, p.prompt)}/{s}.png", variant, p.prompt, p.concept, s, p.part, p.stated)
            for p in self.prompts
            if not (only_stated and p.stated is None)
            for s in self.seeds_of(p)
        ]

    @cached_property
    def all_images(self) -> tuple[DrawnImage, ...]:
        """The images of all variants, one variant after the other."""
        return tuple(image for variant in self.variants for image in self.of(variant))

    def batches(self, variant: str) -> Iterator[list[DrawnImage]]:
        """The images that go through the pipeline together: the same whatever is there already.

        Prompts that state their attribute share no batch with others, so a variant that leaves them alone draws none.
        """
        images, size = self.of(variant), self.batch_size
        for stated in (False, True):
            alike = [image for image in images if (image.stated is not None) == stated]
            yield from (alike[start : start + size] for start in range(0, len(alike), size))

    def write(self, path: Path) -> None:
        """Write as JSON."""
        write_atomically(path, self.model_dump_json(indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """The plan in a file.

        Raises:
            InvalidInputError: no such file, or not a plan.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            raise InvalidInputError(
                f"{path}: no such file; expected a folder of images that a generation task drew"
            ) from None
        except ValidationError as error:
            problem = explain(error, cls)
            raise InvalidInputError(f"{path}: not a plan of images: {problem}; draw into an empty folder") from error

    def settle(self, folder: Path, *, write: bool) -> Plan:
        """The plan in force: what the folder has, if it says the same, else this one, which `write` then puts there.

        Raises:
            InvalidInputError: the folder holds images of another plan, or images without one.
        """
        path, drawn = folder / PLAN, any(folder.glob("*/*/*.png"))
        if path.exists():
            before = Plan.read(path)
            differences = self.differences(before)
            if not differences:
                return before
            if drawn:
                raise InvalidInputError(
                    f"{folder}: holds images that were drawn with other settings: {'; '.join(differences)}. Draw into "
                    "another folder, repeat the settings to go on with these images, or delete the folder"
                )
        elif drawn:
            raise InvalidInputError(f"{folder}: holds images but no {PLAN}; draw into an empty folder")
        if write:
            self.write(path)
        return self

    def differences(self, before: Plan) -> list[str]:
        """What differs from an earlier plan, in words, one text for each setting. Weights may differ by rounding."""

        def flat(plan: Plan) -> dict[str, Any]:
            content = json.loads(plan.model_dump_json())
            return {"fingerprints": {}, **content.pop("model"), **content}

        def change(key: str, old: Any, new: Any) -> str:
            texts = json.dumps(old), json.dumps(new)
            if max(map(len, texts)) > 120:
                return f"{key} differ" if key.endswith("s") else f"{key} differs"
            return f"{key} was {texts[0]} and is {texts[1]} now"

        old, new = flat(before), flat(self)
        was, now = old.pop("fingerprints"), new.pop("fingerprints")
        changes = [change(key, old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)]
        if was.keys() != now.keys():
            return [*changes, change("components", sorted(was), sorted(now))]
        same = {name: (a := Fingerprint.of(was[name])) is None or a.matches(Fingerprint.of(now[name])) for name in now}
        return changes + [f"the weights of {name} are others" for name, matches in same.items() if not matches]


# ---- from a prompt set to a plan ---------------------------------------------------------------------------


def make_plan(
    model: Mapping[str, Any],
    prompts: PromptSet,
    variants: Mapping[str, Variant],
    *,
    concepts: str,
    stated: bool,
    **drawing: Any,
) -> Plan:
    """The plan of a generation task; arguments as its fields, `model` as of `vldebias.evaluation.drawing.identity`.

    drawing: images, stated_images, seeds, steps, guidance, batch_size, options.

    Raises:
        InvalidInputError: no prompts, no variants, counts below one, seeds that repeat, options that are no plain
            values or set by the plan, a variant called "none", two whose folders would have one name.
    """
    _check(variants, drawing["options"])
    seeds = list(drawing["seeds"])
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InvalidInputError(f"seeds: expected different numbers from 0 on, got {seeds}")
    planned = []
    for part in PARTS[concepts]:
        of = (prompts.classes, prompts.class_names)
        of = of if part == "train" else (prompts.held_out_classes, prompts.held_out_class_names)
        planned += [PlannedPrompt(prompt=p, concept=n, part=part) for p, n in zip(*of, strict=True)]
    if not planned:
        raise InvalidInputError(f"{prompts.name}: has no {concepts} classes, so there is no prompt to draw")
    chosen = {name: variant.on(prompts).planned for name, variant in variants.items()}
    if stated:
        planned += [p for part in PARTS[concepts] for p in _stated(prompts, part)]
        bare = {"keep_stated": False, "only_stated": True}  # what becomes of stated prompts that are not left alone
        chosen |= {f"{n}{NOT_KEPT}": v.model_copy(update=bare) for n, v in list(chosen.items()) if v.keep_stated}
    drawing["stated_images"] = min(drawing["images"], drawing["stated_images"])
    about = {"model": model, "prompt_set": prompts.name, "prompt_set_hash": prompts.hash}
    return Plan.build({**about, "prompts": planned, "variants": {NONE: None, **chosen}, **drawing})


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


def _check(variants: Mapping[str, Variant], options: Mapping[str, Any]) -> None:
    if not variants:
        raise InvalidInputError("variants: expected at least one to compare with the pipeline as it is")
    folders = [folder_slug(name) for name in (NONE, *variants, *(f"{name}{NOT_KEPT}" for name in variants))]
    if len(set(folders)) < len(folders) or "" in folders or NONE in variants:
        raise InvalidInputError(
            "variants: expected names of letters and digits that stay different as names of folders, and not "
            f"{NONE!r}, which is drawn always; got {list(variants)}"
        )
    taken = [name for name in options if name in OWN]
    if taken:
        raise InvalidInputError(f"options: {taken} are set by the plan; use steps=, guidance=, images= and prompts")
    try:
        json.dumps(dict(options), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"options: expected values that JSON can write, got {dict(options)}: {error}"
        ) from error


def folder_slug(text: str) -> str:
    """Letters, digits and hyphens: what a name looks like in a path."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")


@cache
def _folder(variant: str, prompt: str) -> str:
    told_apart = hashlib.sha256(prompt.encode()).hexdigest()[:8]  # "A photo." and "a photo" have one slug
    return f"{folder_slug(variant)}/{folder_slug(prompt)}-{told_apart}"
