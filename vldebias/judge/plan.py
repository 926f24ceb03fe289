"""Plan images in plan.json: prompts, seeds, variants and batches, so that interrupted runs give the
same pixels."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, cached_property
from itertools import chain, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError, field_validator
from torch import nn

from vldebias.edits.edit import Fingerprint
from vldebias.errors import InvalidInputError, shortened
from vldebias.files import explain, read_bytes, write_atomically
from vldebias.hosts.host import weights_fingerprint
from vldebias.measure.result import NONE, TaskProvenance, TaskResult
from vldebias.pictures import read_png
from vldebias.prompts import PromptSet, StatedWords, fill
from vldebias.schema import Strict, file_slug

if TYPE_CHECKING:
    from PIL.Image import Image

PLAN = "plan.json"
SEED_STEP = 10_000  # seeds of one run: SEED_STEP * seed, SEED_STEP * seed + 1, ...
# Prompts as people write them, for each concept: in a place, doing something, with an object,
# adjectives, tags.
WORDINGS = (
    "A picture of a {concept} in a green room.",
    "A photo of a {concept} laughing.",
    "A photo of a {concept} with a black cup.",
    "A photo of a tired, friendly {concept}.",
    "photo of a {concept}, portrait, detailed",
)
_THINGS = (
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
    "without a person": (*_THINGS, "An empty classroom in the morning."),
    "of a named person": (*_NAMED, "Albert Einstein riding a bicycle."),
}
Asked = tuple[
    str, str, str, str | None
]  # prompt, concept, part and stated value of a `PlannedImage`


def hash_of(value: Any) -> str:
    """Return a short hash of a JSON value; the order of keys counts."""
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:16]


@cache
def _path(variant: str, prompt: str, seed: int) -> str:
    told_apart = hashlib.sha256(prompt.encode()).hexdigest()[
        :8
    ]  # "A photo." and "a photo" have one slug
    return f"{file_slug(variant)[:60]}/{file_slug(prompt)[:60]}-{told_apart}/{seed}.png"


@dataclass(frozen=True)
class PlannedImage:
    """Hold one image of a plan, or of any folder.

    concept: what the prompt asks for ("nurse"), or the kind of OTHERS. part: "train" if its concept
    is used for fitting, "unseen", "wordings" or "others". stated: the value that it names. path:
    below the folder of images, with forward slashes: its name in annotations and judgements.
    variant: "none" for the unchanged pipeline.
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
        """Return the seed of this image's generator: the same under every variant, different for
        every prompt.

        Some noise favours one gender; if all prompts shared it, all of them would be biased the
        same way.
        """
        return int.from_bytes(
            hashlib.sha256(f"{self.seed}\0{self.prompt}".encode()).digest()[:6], "big"
        )

    def under(self, variant: str) -> PlannedImage:
        """Return the image of the same prompt and seed under another variant."""
        return replace(self, variant=variant, path=_path(variant, self.prompt, self.seed))


def planned_prompts(
    prompts: PromptSet, concepts: str, *, stated: bool, as_written: bool
) -> list[Asked]:
    """Return the class prompts of a set; if asked for its stated prompts, WORDINGS of its concepts,
    and OTHERS.

    concepts: "train", "unseen" or "both". WORDINGS are of the unseen concepts where there are some.

    Raises:
        InvalidInputError: no class prompts, or no prompts that state one value.
    """
    parts = {
        "train": (prompts.classes, prompts.class_names, prompts.groups),
        "unseen": (prompts.held_out_classes, prompts.held_out_class_names, prompts.held_out_groups),
    }
    parts = {part: of for part, of in parts.items() if concepts in (part, "both")}
    planned: list[Asked] = [
        (*one, part, None) for part, of in parts.items() for one in zip(*of[:2], strict=True)
    ]
    if not planned:
        raise InvalidInputError(
            f"{prompts.name}: has no {concepts} classes, so there is no prompt to generate"
        )
    written = [concept for _, concept, part, _ in planned if part == planned[-1][2]]
    for part, (_, names, groups) in parts.items() if stated else ():
        known = StatedWords(names)
        for prompt in dict.fromkeys(chain(*groups)):
            named = prompts.values_in(prompt)
            if len(named) != 1:
                expected = (
                    f"expected one of the values {list(prompts.attributes)}; use stated=False"
                )
                raise InvalidInputError(
                    f"{prompts.name}: {prompt!r} states {list(named)}, {expected}"
                )
            planned.append((prompt, next(iter(known.find(prompt)), ""), part, named[0]))
        if not groups:
            raise InvalidInputError(
                f"{prompts.name}: stated=True needs {part} pairs; use stated=False"
            )
    if as_written:
        planned += [
            (fill(text, concept=name), name, "wordings", None)
            for name in written
            for text in WORDINGS
        ]
        planned += [
            (text, kind, "others", None) for kind, texts in OTHERS.items() for text in texts
        ]
    return planned


class Plan(Strict):
    """Hold everything that determines the pixels in a folder of images.

    model: as of `identity`. variants: name -> `Variant.planned`, first "none". images: of each
    prompt and seed;
    stated_images: the same of prompts that state their attribute, wordings and others. options:
    further arguments of the pipeline. batch_size is part of it: the rounding of a product depends
    on the size of the batch.
    """

    model: dict[str, Any]
    prompt_set: str
    prompt_set_hash: str
    prompts: tuple[Asked, ...]
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
        if given[NONE] or len({file_slug(name)[:60] for name in given} - {""}) < len(given):
            raise ValueError(
                "expected names that stay different as names of folders, and none that is called"
                " 'none'"
            )
        return given

    @cached_property
    def all_images(self) -> tuple[PlannedImage, ...]:
        """Return the images of all variants, one variant after the other, prompt by prompt."""
        images = []
        for variant, about in self.variants.items():
            for asked in self.prompts:
                plain = asked[3] is None
                count = (
                    self.images if plain and asked[2] in ("train", "unseen") else self.stated_images
                )
                for run, i in product(
                    self.seeds, range(0 if plain and about.get("only_stated") else count)
                ):
                    seed = SEED_STEP * run + i
                    path = _path(variant, asked[0], seed)
                    images.append(PlannedImage(*asked, path=path, variant=variant, seed=seed))
        return tuple(images)

    def batches(self, images: Sequence[PlannedImage]) -> list[list[int]]:
        """Return the numbers of images of one variant that run through the pipeline together, if
        they exist or not.

        Prompts that state their attribute share no batch with others, so a variant that leaves them
        alone copies all.
        """
        kinds = [
            [i for i, one in enumerate(images) if (one.stated is not None) == stated]
            for stated in (False, True)
        ]
        size = self.batch_size
        return [
            alike[start : start + size] for alike in kinds for start in range(0, len(alike), size)
        ]

    def settle(self, folder: Path) -> GeneratedImages:
        """Write the plan into a folder and return its images; a plan that has images already is
        kept.

        Raises:
            InvalidInputError: the folder holds images of another plan, or without one; weights may
                differ by rounding.
        """
        if not any(folder.glob("*/*/*.png")):
            write_atomically(folder / PLAN, self.model_dump_json(indent=1) + "\n")
        kept = GeneratedImages.open(folder)
        old, new = (
            plan.model_dump(mode="json", exclude={"model"}) | plan.model
            for plan in (kept.plan, self)
        )
        was, now = (
            mark and Fingerprint(**mark)
            for mark in (one.pop("fingerprint", None) for one in (old, new))
        )
        differ = [] if was is None or was.matches(now) else ["the weights differ"]
        for key in [key for key in {**old, **new} if old.get(key) != new.get(key)]:
            before, after = (shortened(json.dumps(one.get(key)), 120) for one in (old, new))
            differ.append(f"{key} was {before} and is {after} now")
        if differ:
            expected = "use another folder, or repeat the settings to go on with these images"
            raise InvalidInputError(
                f"{folder}: holds images of other settings: {'; '.join(differ)}; {expected}"
            )
        return kept


@dataclass(frozen=True)
class GeneratedImages:
    """Hold the images of a folder, in the order of the plan; some may not exist yet."""

    folder: Path
    plan: Plan
    images: tuple[PlannedImage, ...]

    @classmethod
    def open(cls, folder: str | Path) -> GeneratedImages:
        """Open a folder that `generate` wrote; InvalidInputError: no plan in it, or one that cannot
        be read."""
        path = Path(folder) / PLAN
        try:
            plan = Plan.model_validate_json(read_bytes(path))
        except ValidationError as error:
            raise InvalidInputError(
                f"{path}: not a plan of images: {explain(error)}; use an empty folder"
            ) from error
        return cls(path.parent, plan, plan.all_images)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[PlannedImage]:
        return iter(self.images)

    def path(self, image: PlannedImage) -> Path:
        """Return the path of an image."""
        return self.folder / image.path

    def read(self, image: PlannedImage) -> Image:
        """Read the pixels of an image as RGB; OSError where the file cannot be read."""
        return read_png(self.path(image))[0]

    def about(self, image: PlannedImage) -> dict[str, Any]:
        """Read the image file's own record of how it was generated; OSError where it cannot be
        read."""
        return read_png(self.path(image), pixels=False)[1]

    def result(self, *, settings: Mapping[str, Any], **fields: Any) -> TaskResult:
        """Return an empty block about these images; fields: task, title, description, ...; rows
        have lam, strength."""
        plan, model = self.plan, dict(self.plan.model)
        stated = sum(value is not None for *_, value in plan.prompts)
        n = {
            "prompts": len(plan.prompts) - stated,
            "stated": stated,
            "images": len(plan.all_images),
        }
        about: dict[str, Any] = {
            "split": "generated",
            "n": n,
            "model": str(model.get("id") or model["pipeline"]),
        }
        about |= {
            "prompts": plan.prompt_set,
            "prompts_hash": plan.prompt_set_hash,
            "methods": plan.variants,
        }
        about |= {"seeds": list(plan.seeds), "fingerprint": model.pop("fingerprint")}
        return TaskResult(TaskProvenance(**{**about, "settings": {**model, **settings}, **fields}))


def identity(pipe: Any) -> dict[str, Any]:
    """Return what identifies a pipeline; one fingerprint of all weights, None where some are on
    meta tensors."""
    components = sorted(pipe.components.items())
    modules = {
        name: getattr(m, "_orig_mod", m) for name, m in components if isinstance(m, nn.Module)
    }
    prints = [
        one.to_dict() for m in modules.values() if (one := weights_fingerprint(m)) is not None
    ]
    joint = [numbers for one in prints for numbers in one["tensors"]]
    structure = hash_of([list(modules), [one["structure"] for one in prints]])
    # Private entries say which values were defaults, in an order that changes from process to
    # process.
    scheduler = sorted(
        (key, value) for key, value in pipe.scheduler.config.items() if not key.startswith("_")
    )
    return {
        "pipeline": type(pipe).__name__,
        "id": str(getattr(pipe, "name_or_path", None) or "") or None,
        "fingerprint": (
            {"structure": structure, "tensors": joint}
            if prints and len(prints) == len(modules)
            else None
        ),
        "scheduler": f"{type(pipe.scheduler).__name__} {hash_of(scheduler)}",
        "adapters": sorted(
            {name for m in modules.values() for name in getattr(m, "peft_config", None) or ()}
        ),
        "precision": sorted(
            {str(p.dtype).removeprefix("torch.") for m in modules.values() for p in m.parameters()}
        ),
    }
