"""A folder of drawn images: what the plan says is in it, which of it is there, and each image with its record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image, PngImagePlugin

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.plan import DrawnImage, Plan

__all__ = ["KEY", "PLAN", "DrawnSet", "read_png", "write_png"]

KEY = "vldebias"  # of the text chunk in the PNG
PLAN = "plan.json"


@dataclass(frozen=True)
class DrawnSet:
    """Images of a folder with their records, in the order of the plan.

    images: records with variant, prompt, concept, part, stated value, seed and path below `folder`.
    """

    folder: Path
    plan: Plan
    images: tuple[DrawnImage, ...]

    @classmethod
    def open(cls, folder: str | Path) -> DrawnSet:
        """The images in a folder that `draw` wrote; not all of them may be there (see `missing`).

        Raises:
            InvalidInputError: no plan in the folder, or one that cannot be read.
        """
        folder = Path(folder)
        plan = Plan.read(folder / PLAN)
        return cls(folder, plan, plan.all_images)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[DrawnImage]:
        return iter(self.images)

    @property
    def missing(self) -> list[DrawnImage]:
        """The images that are still to be drawn."""
        return [image for image in self.images if not self.path(image).is_file()]

    def path(self, image: DrawnImage) -> Path:
        """Where an image lies."""
        return self.folder / image.path

    def read(self, image: DrawnImage) -> Image.Image:
        """The pixels, RGB; OSError where the file cannot be read."""
        return read_png(self.path(image))[0]

    def about(self, image: DrawnImage) -> dict[str, Any]:
        """What the file itself says about how it was made; OSError where it cannot be read."""
        with Image.open(self.path(image)) as opened:  # the header alone
            return _told(opened)

    def select(
        self, *, variant: str | None = None, part: str | None = None, concept: str | None = None, stated: bool = False
    ) -> DrawnSet:
        """The images of a variant, a part ("train", "unseen") or a concept; None: of any.

        stated: those of the prompts that state their attribute, else those of the prompts that do not.

        Raises:
            InvalidInputError: none is left.
        """
        wanted = {"variant": variant, "part": part, "concept": concept}
        chosen = tuple(
            image
            for image in self.images
            if (image.stated is not None) == stated
            and all(value is None or getattr(image, key) == value for key, value in wanted.items())
        )
        if not chosen:
            raise InvalidInputError(
                f"{self.folder}: no images of {wanted} with stated={stated}; there are the variants "
                f"{list(self.plan.variants)} and {len({i.concept for i in self.images})} concepts"
            )
        return DrawnSet(self.folder, self.plan, chosen)


def read_png(path: Path) -> tuple[Image.Image, dict[str, Any]]:
    """The decoded image (RGB) of a PNG and what its text chunk says; {} without one.

    Raises:
        OSError: the file is missing, cut off or damaged.
    """
    try:
        with Image.open(path) as image:
            image.load()
            return image.convert("RGB"), _told(image)
    except (SyntaxError, ValueError, EOFError) as error:  # what Pillow and json raise for damaged chunks
        raise OSError(f"{path}: {error}") from error


def _told(image: Image.Image) -> dict[str, Any]:
    text = image.info.get(KEY)
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}


def write_png(picture: Image.Image, path: Path, about: Mapping[str, Any]) -> None:
    """Write a PNG with `about` as JSON inside; it gets its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    info = PngImagePlugin.PngInfo()
    info.add_itxt(KEY, json.dumps(about, ensure_ascii=False))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    picture.save(partial, format="png", pnginfo=info)
    os.replace(partial, path)
