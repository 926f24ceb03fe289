"""What is to be drawn: which prompts, from which seeds, under which variants; kept as plan.json beside the images."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from math import inf
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vldebias.errors import InvalidInputError
from vldebias.fitting import METHODS
from vldebias.prompts import PromptSet, load_prompts

__all__ = ["NONE", "NOT_KEPT", "DrawnImage", "Plan", "PlannedPrompt", "PlannedVariant", "Variant", "slug"]

Part = Literal["train", "unseen"]

NONE = "none"
NOT_KEPT = ", stated not kept"
SEED_STEP = 10_000  # seeds of one run: SEED_STEP * seed, SEED_STEP * seed + 1, ...
FORMAT = 1


@dataclass(frozen=True)
class Variant:
    """One way to debias the pipeline; arguments as of `vldebias.debias`. lam = 500 is the paper's (section 7.6).

    Raises:
        InvalidInputError: what `debias` would refuse, before hours of drawing without it.
    """

    prompts: tuple[str | Path | PromptSet, ...] = ("professions-gender",)
    method: str = "cali"
    lam: float = 500.0
    strength: float = 1.0
    keep_stated: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.prompts, (str, Path, PromptSet)) or not self.prompts:
            raise InvalidInputError(f"variant: expected a tuple of prompt sets, got {self.prompts!r}; write (prompts,)")
        if self.method not in METHODS:
            raise InvalidInputError(f"variant: expected a method of {', '.join(METHODS)}, got {self.method!r}")
        if not 0 <= self.strength <= 1 or not 0 <= self.lam < inf:
            raise InvalidInputError(
                f"variant: expected a strength in [0, 1] and lam from 0 on, got {self.strength} and {self.lam}"
            )
        attributes = [part for prompts in self.sets for part in (prompts.parts or (prompts,))]
        if self.method != "cali" and not any(part.spurious for part in attributes):
            raise InvalidInputError(
                f"variant: method {self.method!r} needs spurious prompts and the sets have none; use method='cali'"
            )

    @property
    def sets(self) -> list[PromptSet]:
        """The prompt sets, loaded."""
        return [load_prompts(given) for given in self.prompts]


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedPrompt(_Kept):
    """One prompt. concept: what it asks for ("nurse"); part: used for fitting or not; stated: the value it names."""

    prompt: str
    concept: str
    part: Part
    stated: str | None = None


class PlannedVariant(_Kept):
    """A Variant in words. only_stated: draws the prompts that state their attribute and no others."""

    sets: dict[str, str] = Field(description="name of each prompt set -> its hash")
    method: str
    lam: float
    strength: float
    keep_stated: bool
    only_stated: bool = False


@dataclass(frozen=True)
class DrawnImage:
    """One image of a plan. path: below the folder, "<variant>/<prompt>/<seed>.png"."""

    variant: str
    prompt: str
    concept: str
    part: Part
    stated: str | None
    seed: int
    path: str

    @property
    def noise(self) -> int:
        """Seed of the generator of this image: the same under every variant, another for every prompt.

        Some noise leans to one gender; shared by all prompts it would do so everywhere at once.
        """
        text = f"{self.seed}\0{self.prompt}".encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:6], "big")


class Plan(_Kept):
    """All that decides about the pixels of a folder of images.

    model: class, origin, fingerprints, scheduler, adapters and precision of the pipeline. images: for each prompt and
    seed; stated_images: the same for prompts that state their attribute. options: further arguments of the pipeline.
    batch_size is part of it: the rounding of a batched product depends on the size of the batch.
    """

    format: int = Field(default=FORMAT, ge=FORMAT, le=FORMAT)
    model: dict[str, Any]
    prompt_set: str
    prompt_set_hash: str
    prompts: tuple[PlannedPrompt, ...]
    variants: dict[str, PlannedVariant | None]
    seeds: tuple[int, ...]
    images: int
    stated_images: int
    steps: int
    guidance: float
    batch_size: int
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
            DrawnImage(variant, p.prompt, p.concept, p.part, p.stated, seed, f"{_folder(variant, p.prompt)}/{seed}.png")
            for p in self.prompts
            if not (only_stated and p.stated is None)
            for seed in self.seeds_of(p)
        ]

    @cached_property
    def all_images(self) -> tuple[DrawnImage, ...]:
        """The images of all variants, one variant after the other."""
        return tuple(image for variant in self.variants for image in self.of(variant))

    def batches(self, variant: str) -> Iterator[list[DrawnImage]]:
        """The images that go through the pipeline together: the same whatever is there already."""
        images = self.of(variant)
        return (images[start : start + self.batch_size] for start in range(0, len(images), self.batch_size))

    def write(self, path: Path) -> None:
        """Write as JSON, atomically."""
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        partial.write_text(self.model_dump_json(indent=1) + "\n", encoding="utf-8")
        os.replace(partial, path)

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
                f"{path}: no such file; expected a folder of images that `evaluate_generation` drew"
            ) from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise InvalidInputError(
                f"{path}: not a plan of images: {where}: {first['msg']}; draw into an empty folder"
            ) from error


def slug(text: str) -> str:
    """Letters, digits and hyphens: what a name looks like in a path."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60].strip("-")


@cache
def _folder(variant: str, prompt: str) -> str:
    told_apart = hashlib.sha256(prompt.encode()).hexdigest()[:8]  # "A photo." and "a photo" have one slug
    return f"{slug(variant)}/{slug(prompt)}-{told_apart}"
