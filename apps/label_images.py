"""The images that are to be labelled: which of a folder, and each of them without a word about where it comes from."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from PIL import Image

from vldebias.data.decoding import decode
from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing.drawn import PLAN, DrawnSet
from vldebias.evaluation.drawing.plan import DrawnImage
from vldebias.evaluation.drawing.record import Drawn, DrawnRecord

__all__ = ["PARTS", "ImageFolder"]

PARTS = ("unseen", "train", "both")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp"}
LARGEST = 1024  # pixels of the longer side: more than a page shows


@dataclass(frozen=True)
class ImageFolder:
    """Images to label.

    Attributes:
        root: the folder; answers name images by their path below it.
        records: the images to label. everything: those and the others of the folder that may have been labelled.
        prompt_set: name of the prompt set that was drawn; None for images of unknown origin.
        missing: images of the plan that are not there (yet).
    """

    root: Path
    records: tuple[DrawnRecord, ...]
    everything: tuple[DrawnRecord, ...]
    prompt_set: str | None = None
    missing: int = 0

    @classmethod
    def open(cls, folder: Path, *, part: str = "unseen", limit: int | None = None) -> ImageFolder:
        """The images of a folder that `vldebias eval generation` drew, of its results, or of any folder.

        Of a drawn folder those whose prompt states no attribute: the others have but one right answer.

        Args:
            part: "unseen" (the concepts that no projection was fitted on, as the paper labels; both where a folder
                has none), "train" or "both".
            limit: at most so many images of each prompt, with the same seeds under every variant.

        Raises:
            InvalidInputError: no such folder, no images, or several drawn folders of which one must be named.
        """
        if part not in PARTS:
            raise InvalidInputError(f"part: expected one of {', '.join(PARTS)}, got {part!r}")
        if not folder.is_dir():
            raise InvalidInputError(f"{folder}: no such folder; expected one with images to label")
        root = _drawn_folder(folder)
        return _of_files(folder, limit) if root is None else _of_plan(DrawnSet.open(root), part, limit)

    def picture(self, record: DrawnRecord) -> bytes:
        """The pixels as PNG, made anew: metadata such as the prompt stay behind.

        Raises:
            OSError: the file cannot be read as an image.
        """
        image = decode(self.root / record.path)
        image.thumbnail((LARGEST, LARGEST), Image.Resampling.LANCZOS)
        image.info.clear()
        buffer = io.BytesIO()
        image.save(buffer, format="png", compress_level=1)
        return buffer.getvalue()


def _drawn_folder(folder: Path) -> Path | None:
    """The folder itself or the one below it that has a plan; None where none has."""
    if (folder / PLAN).is_file():
        return folder
    found = sorted(path.parent for pattern in ("*", "images/*") for path in folder.glob(f"{pattern}/{PLAN}"))
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise InvalidInputError(f"{folder}: holds the images of several tasks; choose one of {listed}")
    return found[0] if found else None


def _of_plan(drawn: DrawnSet, part: str, limit: int | None) -> ImageFolder:
    plain = [image for image in drawn if image.stated is None]
    chosen = [image for image in plain if image.part == part] if part != "both" else plain
    if part == "unseen" and not chosen:
        chosen = plain
    chosen = _limited(chosen, limit)
    there = [image for image in chosen if drawn.path(image).is_file()]
    if not there:
        raise InvalidInputError(
            f"{drawn.folder}: none of the {len(chosen)} images of part {part!r} is there; draw them first, or choose "
            f"another --part of {', '.join(PARTS)}"
        )
    return ImageFolder(drawn.folder, tuple(there), tuple(plain), drawn.plan.prompt_set, len(chosen) - len(there))


def _limited(images: Sequence[DrawnImage], limit: int | None) -> list[DrawnImage]:
    """The first `limit` seeds of each prompt and variant: a plan has them in the same order under every variant."""
    seen: Counter[tuple[str, str]] = Counter()
    kept = []
    for image in images:
        seen[image.variant, image.prompt] += 1
        if limit is None or seen[image.variant, image.prompt] <= limit:
            kept.append(image)
    return kept


def _of_files(root: Path, limit: int | None) -> ImageFolder:
    files = [p.relative_to(root) for p in root.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]
    paths = sorted(path.as_posix() for path in files if not any(name.startswith(".") for name in path.parts))
    if not paths:
        kinds = ", ".join(sorted(SUFFIXES))
        raise InvalidInputError(f"{root}: no images ({kinds}) in it; expected a folder of images to label")
    records = tuple(_recorded(paths, root.resolve().name or "images"))
    seeds = {record.seed for record in records}
    kept = set(sorted(seeds)[:limit])
    return ImageFolder(root, tuple(record for record in records if record.seed in kept), records)


def _recorded(paths: Sequence[str], name: str) -> Iterable[Drawn]:
    """Records of plain files: the first folder is the variant, those below it the prompt, the file stands for the seed.

    So "before/1.png" and "after/1.png" are compared with one another, and a flat folder is one variant.
    """
    split = [PurePosixPath(path).parts for path in paths]
    inside = ["/".join(parts[1:]) if len(parts) > 1 else parts[0] for parts in split]
    number = {path: i for i, path in enumerate(sorted(set(inside)))}
    for path, parts, rest in zip(paths, split, inside, strict=True):
        variant = parts[0] if len(parts) > 1 else "images"
        prompt = "/".join(parts[1:-1]) or name
        yield Drawn(path, variant, prompt, prompt, number[rest])
