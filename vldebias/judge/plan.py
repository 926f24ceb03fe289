"""Image generation plans, which list prompts, seeds, variants and batches in plan.json.

With a plan, a run that is interrupted and resumed generates the same pixels.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, cached_property
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from vldebias.errors import InvalidInputError, shortened
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.projection.fingerprint import Fingerprint
from vldebias.prompts import PromptSet, StatedWords, fill
from vldebias.utils.files import explain, read_bytes, write_atomically
from vldebias.utils.formats import check_json_format
from vldebias.utils.pictures import read_png
from vldebias.utils.schema import Number, Strict, file_slug

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline
    from PIL.Image import Image
    from torch import nn

PLAN = "plan.json"
SEED_STEP = 10_000  # run s uses the seeds SEED_STEP * s, SEED_STEP * s + 1, ...
MOST_IMAGES = 500_000  # maximum number of images in a plan, all of which are listed in memory
# Prompts as people write them: with a place, an activity, an object, adjectives or tags.
WORDINGS = (
    "A picture of a {concept} in a green room.",
    "A photo of a {concept} laughing.",
    "A photo of a {concept} with a black cup.",
    "A photo of a tired, friendly {concept}.",
    "photo of a {concept}, portrait, detailed",
)
_OBJECTS = (
    "A red car in the rain.",
    "A nurse shark over a coral reef.",
    "A chef's knife on a wooden board.",
)
_NAMED = (
    "A portrait of Marie Curie.",
    "Barack Obama giving a speech.",
    "A photo of Frida Kahlo in a garden.",
)
# Prompts that no method should change.
OTHERS = {
    "without a person": (*_OBJECTS, "An empty classroom in the morning."),
    "of a named person": (*_NAMED, "Albert Einstein riding a bicycle."),
}
# Prompt, concept, part and stated value, as in `PlannedImage`.
PlannedPrompt = tuple[str, str, str, str | None]
# JSON object that describes a model or a variant.
Facts = dict[str, object]
# With more images per prompt, two runs would share seeds.
ImageCount = Annotated[int, Field(ge=0, le=SEED_STEP), Number]
# Numbers of images per value, None if the prompt does not give a number, or a single value.
WrittenValue = str | dict[str, Annotated[int, Field(ge=0, le=1000), Number] | None] | None


def hash_of(value: object) -> str:
    """Return a short hash of a JSON value, which depends on the order of keys."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


@cache
def _path(variant: str, prompt: str, seed: int) -> str:
    # Add a hash, since "A photo." and "a photo" have the same slug.
    prompt_hash = hashlib.sha256(prompt.encode()).hexdigest()[:8]
    return f"{file_slug(variant)[:60]}/{file_slug(prompt)[:60]}-{prompt_hash}/{seed}.png"


@dataclass(frozen=True)
class PlannedImage:
    """An image in a plan, or in a folder without a plan.

    Attributes:
        prompt: prompt that the image is generated from.
        concept: the prompt's concept, such as "nurse", or its kind in OTHERS.
        part: "train" if the concept is used for fitting, "unseen", "wordings" or "others".
        stated: value that the prompt states, if any.
        path: path relative to the image folder, with forward slashes. It identifies the image in
            annotations and judgements.
        variant: name of the variant; "none" for the unedited pipeline.
        seed: number of the image among those of its prompt and variant.
    """

    prompt: str
    concept: str
    part: str = ""
    stated: str | None = None
    _: KW_ONLY
    path: str
    variant: str
    seed: int

    @property
    def noise(self) -> int:
        """Return the generator seed, which is the same for all variants but differs by prompt.

        Some noise favours one gender. If all prompts shared it, they would all be biased in the
        same way.
        """
        hashed = hashlib.sha256(f"{self.seed}\0{self.prompt}".encode()).digest()
        return int.from_bytes(hashed[:6], "big")

    def under(self, variant: str) -> PlannedImage:
        """Return the image with the same prompt and seed for a different variant."""
        return replace(self, variant=variant, path=_path(variant, self.prompt, self.seed))


def planned_prompts(
    prompt_set: PromptSet, concepts: str, *, stated: bool, as_written: bool
) -> list[PlannedPrompt]:
    """Return the prompts for a plan.

    Args:
        prompt_set: prompt set whose class prompts are used.
        concepts: "train", "unseen" or "both".
        stated: whether to add prompts that state a value.
        as_written: whether to add OTHERS, and WORDINGS for the unseen concepts, or for the training
            concepts if there are no unseen ones.

    Raises:
        InvalidInputError: If there are no class prompts, or prompts with a stated value are missing
            or do not state exactly one value.
    """
    # Each part has class prompts, concept names, and groups of prompts that state a value.
    parts = {
        "train": (prompt_set.classes, prompt_set.class_names, prompt_set.variants),
        "unseen": (
            prompt_set.held_out_classes,
            prompt_set.held_out_class_names,
            prompt_set.held_out_variants,
        ),
    }
    if concepts != "both":
        parts = {concepts: parts[concepts]}
    planned: list[PlannedPrompt] = []
    concepts_as_written: tuple[str, ...] = ()
    for part, (class_prompts, names, _) in parts.items():
        for prompt, name in zip(class_prompts, names, strict=True):
            planned.append((prompt, name, part, None))
        if class_prompts:
            concepts_as_written = names  # the last non-empty part
    if not planned:
        raise InvalidInputError(
            f"{prompt_set.name}: the set has no {concepts} classes, so there is nothing to"
            " generate; choose different concepts"
        )
    if stated:
        for part, (_, names, groups) in parts.items():
            planned += _stated_prompts(prompt_set, part, names, groups)
    if as_written:
        for concept in concepts_as_written:
            for text in WORDINGS:
                planned.append((fill(text, concept=concept), concept, "wordings", None))
        for kind, texts in OTHERS.items():
            for text in texts:
                planned.append((text, kind, "others", None))
    return planned


def _stated_prompts(
    prompt_set: PromptSet, part: str, names: Sequence[str], groups: Sequence[Sequence[str]]
) -> list[PlannedPrompt]:
    """Return one part's distinct prompts that state a value.

    Raises:
        InvalidInputError: If there are none, or a prompt does not state exactly one value.
    """
    if not groups:
        raise InvalidInputError(
            f"{prompt_set.name}: stated=True requires {part} pairs; use stated=False"
        )
    concept_words = StatedWords(names)
    planned: list[PlannedPrompt] = []
    # Generate each prompt once, even if it belongs to several groups.
    for prompt in dict.fromkeys(chain(*groups)):
        values = prompt_set.values_in(prompt)
        if len(values) != 1:
            raise InvalidInputError(
                f"{prompt_set.name}: {prompt!r} states {list(values)}, expected one of the values"
                f" {list(prompt_set.attributes)}; use stated=False"
            )
        # "A photo of a female doctor." has the concept "doctor". Use "" if there is no concept.
        concept = next(iter(concept_words.find(prompt)), "")
        planned.append((prompt, concept, part, values[0]))
    return planned


class ImageRecord(BaseModel):
    """What the metadata in an image file states about its generation.

    Attributes:
        value: value that was added to the prompt, or number of people with each value. For several
            attributes, a list.
        generated_prompt: prompt that the image was generated from, or None if it is not stored.
        left_unchanged: whether the image is a copy of the unedited pipeline's image.
        flagged: whether the pipeline's safety checker flagged the image.
    """

    value: WrittenValue | tuple[WrittenValue, ...] = None
    generated_prompt: str | None = Field(None, alias="generated prompt")
    left_unchanged: bool = False
    flagged: bool = False

    def values(self, n: int) -> tuple[WrittenValue, ...]:
        """Return the value for each of n attributes.

        Raises:
            InvalidInputError: If the file has a different number of values.
        """
        values = self.value if isinstance(self.value, tuple) else (self.value,) * n
        if len(values) != n:
            raise InvalidInputError(f"value: got {len(values)} values for {n} attributes")
        return values


class Plan(Strict):
    """Everything that determines the pixels of the images in a folder.

    Attributes:
        model: result of `identity` for the pipeline.
        variants: name -> description from `Variant.planned`, starting with "none".
        images: number of images per class prompt and seed.
        stated_images: number of images per seed for all other prompts.
        images_of_prompt: number of images per seed for class prompts that differ from `images`.
        options: further pipeline arguments.
        batch_size: number of images per batch, which affects rounding.
    """

    format_version: Literal[1] = 1
    model: Facts
    prompt_set: str
    prompt_set_hash: str
    prompts: tuple[PlannedPrompt, ...]
    variants: dict[str, Facts]
    seeds: tuple[Annotated[int, Field(ge=0, lt=2**32)], ...] = (0,)
    images: ImageCount
    stated_images: ImageCount = 0
    images_of_prompt: dict[str, ImageCount] = Field(default_factory=dict)
    steps: Annotated[int, Field(ge=0, le=1_000_000)]
    guidance: Annotated[float, Field(allow_inf_nan=False)]
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)]
    options: dict[str, object] = Field(default_factory=dict)

    @field_validator("variants")
    @classmethod
    def _in_different_folders(cls, variants: dict[str, Facts]) -> dict[str, Facts]:
        # Compare folder names, because "cali 1" and "cali-1" would share a folder.
        folders = {file_slug(name)[:60] for name in variants}
        if variants.get(NONE) != {} or len(folders - {""}) < len(variants):
            raise ValueError(
                f"got {list(variants)}; expected different folder names, and 'none' only for the"
                " unedited pipeline, without settings"
            )
        return variants

    @field_validator("model")
    @classmethod
    def _readable(cls, model: Facts) -> Facts:
        if model.get("fingerprint") is not None:
            Fingerprint.model_validate(model["fingerprint"])
        return model

    @model_validator(mode="after")
    def _not_too_many(self) -> Plan:
        # Add up an upper bound first, because a list of all images may not fit into memory.
        numbers = [self.images, self.stated_images, *self.images_of_prompt.values()]
        n = len(self.variants) * len(self.prompts) * len(self.seeds) * max(numbers)
        if n > MOST_IMAGES:
            n = len(self.variants) * sum(map(self._count, self.prompts)) * len(self.seeds)
        if n > MOST_IMAGES:
            raise ValueError(
                f"images: {n:,} images in total, over all variants, prompts and seeds; expected at"
                f" most {MOST_IMAGES:,}, so generate the rest into another folder"
            )
        return self

    def _count(self, planned: PlannedPrompt) -> int:
        """Return the number of images per seed for a prompt."""
        prompt, _, part, stated_value = planned
        # Discrepancies for class prompts require many images per prompt. For other prompts, only a
        # rate over all of them is measured.
        if stated_value is None and part in ("train", "unseen"):
            return self.images_of_prompt.get(prompt, self.images)
        return self.stated_images

    @cached_property
    def all_images(self) -> tuple[PlannedImage, ...]:
        """Return the images for all variants, ordered by variant and prompt."""
        images = []
        for variant, settings in self.variants.items():
            for planned in self.prompts:
                prompt, _, _, stated_value = planned
                count = self._count(planned)
                if stated_value is None and settings.get("only_stated"):
                    count = 0
                for run, i in product(self.seeds, range(count)):
                    seed = SEED_STEP * run + i
                    path = _path(variant, prompt, seed)
                    images.append(PlannedImage(*planned, path=path, variant=variant, seed=seed))
        return tuple(images)

    def batches(self, images: Sequence[PlannedImage]) -> list[list[int]]:
        """Split the images for one variant into batches of indices, even if they already exist.

        Prompts that state a value are in separate batches, so that a variant that leaves them
        unchanged can copy all of their images.
        """
        plain = []
        stated = []
        for number, image in enumerate(images):
            if image.stated is None:
                plain.append(number)
            else:
                stated.append(number)
        batches = []
        for numbers in (plain, stated):
            for start in range(0, len(numbers), self.batch_size):
                batches.append(numbers[start : start + self.batch_size])
        return batches

    def settle(self, folder: Path, *, follow_seeds: bool = False) -> GeneratedImages:
        """Write the plan to a folder, unless it already contains images, and return its images.

        If the only difference is that there are more images per prompt, the existing images are
        kept, unless their values depend on the number of images.

        Args:
            folder: folder for the images.
            follow_seeds: whether the seed of each image determines its value. Otherwise, methods
                spread the values over all images, so only an unedited pipeline can add some.

        Raises:
            InvalidInputError: If the folder contains images without a plan or from a different
                plan. Rounding differences in the weights are ignored.
        """
        # If there are no images, an earlier plan can be replaced.
        if not any(folder.glob("*/*/*.png")):
            write_atomically(folder / PLAN, self.model_dump_json(indent=1) + "\n")
        # Load the plan even if it was just written, to compare exactly what a later run will load.
        existing = GeneratedImages.open(folder)
        differences = existing.plan._differences(self)
        if differences and self._extends(existing.plan, follow_seeds):
            write_atomically(folder / PLAN, self.model_dump_json(indent=1) + "\n")
            return GeneratedImages.open(folder)
        if differences:
            raise InvalidInputError(
                f"{folder}: contains images generated with different settings:"
                f" {'; '.join(differences)}; use a different folder, or continue with the same"
                " settings"
            )
        return existing

    def _extends(self, old: Plan, follow_seeds: bool) -> bool:
        """Return whether the plan only adds images to an earlier plan, without changing others."""
        number = {"images": old.images, "images_of_prompt": old.images_of_prompt}
        is_same = not old._differences(self.model_copy(update=number))
        is_independent = follow_seeds or set(self.variants) == {NONE}
        return is_same and is_independent and {*old.all_images} <= {*self.all_images}

    def _differences(self, new: Plan) -> list[str]:
        """Describe how a new plan differs from this one, ignoring rounding in the weights."""
        old_settings = self.model_dump(mode="json", exclude={"model"}) | self.model
        new_settings = new.model_dump(mode="json", exclude={"model"}) | new.model
        # Compare fingerprints separately, since loading the same weights twice may change the last
        # digits.
        old_weights = old_settings.pop("fingerprint", None)
        new_weights = new_settings.pop("fingerprint", None)
        differences = []
        if old_weights:
            fingerprint = Fingerprint.model_validate(new_weights) if new_weights else None
            if not Fingerprint.model_validate(old_weights).matches(fingerprint):
                differences.append("the weights differ")
        for key in old_settings | new_settings:
            before = old_settings.get(key)
            after = new_settings.get(key)
            if before != after:
                differences.append(
                    f"{key} was {shortened(json.dumps(before), 120)} and is now"
                    f" {shortened(json.dumps(after), 120)}"
                )
        return differences


@dataclass(frozen=True)
class GeneratedImages:
    """The images in a folder, in the order of the plan. Some may not exist yet."""

    folder: Path
    plan: Plan
    images: tuple[PlannedImage, ...]

    @classmethod
    def open(cls, folder: str | Path) -> GeneratedImages:
        """Open a folder written by `generate`.

        Raises:
            InvalidInputError: If the folder has no readable plan.
        """
        path = Path(folder) / PLAN
        content = read_bytes(path)
        check_json_format(content, path, missing=1)
        try:
            plan = Plan.model_validate_json(content)
        except ValidationError as error:
            raise InvalidInputError(
                f"{path}: not a valid plan: {explain(error)}; use an empty folder"
            ) from error
        return cls(path.parent, plan, plan.all_images)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[PlannedImage]:
        return iter(self.images)

    def of_variant(self, name: str) -> list[PlannedImage]:
        """Return the images for one variant, such as "none"."""
        return [image for image in self.images if image.variant == name]

    def path(self, image: PlannedImage) -> Path:
        """Return the path of an image."""
        return self.folder / image.path

    def read(self, image: PlannedImage) -> Image:
        """Load an image as RGB, or raise OSError if the file cannot be read."""
        return read_png(self.path(image))[0]

    def metadata(self, image: PlannedImage) -> Facts:
        """Return an image's generation metadata, or raise OSError if the file cannot be read."""
        return dict(read_png(self.path(image), pixels=False)[1])

    def record(self, image: PlannedImage) -> ImageRecord:
        """Return the checked part of an image's generation metadata.

        Raises:
            InvalidInputError: If the metadata is not what `generate` writes.
            OSError: If the file cannot be read.
        """
        try:
            return ImageRecord.model_validate(self.metadata(image))
        except ValidationError as error:
            raise InvalidInputError(
                f"{self.path(image)}: its metadata is not valid: {explain(error)}; generate"
                " the image again"
            ) from None

    def result(self, *, settings: Mapping[str, object], **fields: object) -> TaskResult:
        """Return an empty result for these images.

        Args:
            settings: settings of the measurement.
            fields: further fields for the provenance, such as `task`, `title` and `description`.
        """
        plan = self.plan
        model = dict(plan.model)
        stated = sum(value is not None for *_, value in plan.prompts)
        n = {
            "prompts": len(plan.prompts) - stated,
            "stated": stated,
            "images": len(plan.all_images),
        }
        columns: Facts = {
            "split": "generated",
            "n": n,
            "model": str(model.get("id") or model.get("pipeline") or "unknown"),
            "attribute": plan.prompt_set,
            "attribute_hash": plan.prompt_set_hash,
            "methods": plan.variants,
            "seeds": list(plan.seeds),
            "fingerprint": model.pop("fingerprint", None),
            "settings": {**model, **settings},
        }
        return TaskResult(TaskProvenance.model_validate(columns | fields))


def identity(pipe: DiffusionPipeline) -> Facts:
    """Return facts that identify a pipeline, such as its class, id, weights and scheduler.

    The fingerprint covers all weights. It is None if some of them are meta tensors.
    """
    # Import torch only here, because reading an image folder does not need it.
    from torch import nn

    modules = {}
    for name, component in sorted(pipe.components.items()):
        if isinstance(component, nn.Module):
            # A compiled module wraps the original module.
            modules[name] = getattr(component, "_orig_mod", component)
    # Private entries list default values, in an order that varies between processes.
    scheduler = sorted(
        (key, value) for key, value in pipe.scheduler.config.items() if not key.startswith("_")
    )
    adapters: set[str] = set()
    precisions: set[str] = set()
    for module in modules.values():
        # LoRA adapters and a different precision change the pixels, but not the name of the model.
        adapters |= set(getattr(module, "peft_config", None) or ())
        precisions |= {str(p.dtype).removeprefix("torch.") for p in module.parameters()}
    return {
        "pipeline": type(pipe).__name__,
        "id": str(getattr(pipe, "name_or_path", None) or "") or None,
        "fingerprint": _joint_fingerprint(modules),
        "scheduler": f"{type(pipe.scheduler).__name__} {hash_of(scheduler)}",
        "adapters": sorted(adapters),
        "precision": sorted(precisions),
    }


def _joint_fingerprint(modules: Mapping[str, nn.Module]) -> Facts | None:
    """Return one fingerprint for all modules, or None if a module has meta tensors."""
    from vldebias.hosts.host import weights_fingerprint

    structures = []
    tensors: list[list[float]] = []
    for module in modules.values():
        fingerprint = weights_fingerprint(module)
        # A fingerprint that covers only some weights could be mistaken for one that covers all.
        if fingerprint is None:
            return None
        structures.append(fingerprint.structure)
        tensors += map(list, fingerprint.tensors)
    if not structures:
        return None
    return {"structure": hash_of([list(modules), structures]), "tensors": tensors}
