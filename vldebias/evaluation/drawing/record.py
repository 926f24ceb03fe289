"""What the measures of drawn images need to know about one image, whoever drew it and wherever it is listed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from vldebias.errors import InvalidInputError

__all__ = ["Drawn", "DrawnRecord", "by_variant"]


class DrawnRecord(Protocol):
    """One drawn image.

    path: of the file below the folder of images, with forward slashes: its name in annotations and judgements.
    variant: "none" for the unprojected pipeline, else the name of a variant. prompt: the text that was drawn.
    concept: what the prompt is about, such as "doctor". seed: of the image, the same under every variant.
    """

    @property
    def path(self) -> str: ...  # noqa: D102

    @property
    def variant(self) -> str: ...  # noqa: D102

    @property
    def prompt(self) -> str: ...  # noqa: D102

    @property
    def concept(self) -> str: ...  # noqa: D102

    @property
    def seed(self) -> int: ...  # noqa: D102


@dataclass(frozen=True)
class Drawn:
    """A DrawnRecord of plain values, for images that something else drew.

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


def by_variant(records: Iterable[DrawnRecord]) -> dict[str, dict[tuple[str, int], DrawnRecord]]:
    """variant -> (prompt, seed) -> record, "none" first: variants can then be compared image by image.

    Raises:
        InvalidInputError: no records, or one variant has a prompt and seed twice.
    """
    found: dict[str, dict[tuple[str, int], DrawnRecord]] = {}
    for record in records:
        images = found.setdefault(record.variant, {})
        twin = images.setdefault((record.prompt, record.seed), record)
        if twin is not record:
            raise InvalidInputError(
                f"drawn images: {record.variant!r} has {record.prompt!r} with seed {record.seed} twice: "
                f"{twin.path} and {record.path}"
            )
    if not found:
        raise InvalidInputError("drawn images: expected at least one record, got none; draw images first")
    return {name: found[name] for name in sorted(found, key=lambda name: name != "none")}
