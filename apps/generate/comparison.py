"""Compare the images of several pipelines, or of a folder, for the same prompt and seeds."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from vldebias.data.folders import files_below, is_picture
from vldebias.errors import InvalidInputError, shortened
from vldebias.judge.plan import PLAN, GeneratedImages, PlannedImage, hash_of
from vldebias.measure.rows import NONE
from vldebias.report.page import write_page
from vldebias.report.strip import row_title
from vldebias.utils.names import check_path, kind_of_path
from vldebias.utils.pictures import LARGEST, decode
from vldebias.utils.schema import file_slug

from .side_by_side import Picture, Request, SideBySide, labels_of

if TYPE_CHECKING:
    from PIL.Image import Image

TEMPLATE = Path(__file__).with_name("comparison.html.jinja")
JUDGED = "judgements/miniature-judge-*.jsonl"


def is_own_images(source: str) -> bool:
    """Return whether a source is a folder of images instead of a pipeline."""
    if source == "miniature":
        # A folder with this name may exist, such as the output of an earlier run.
        return False
    folder = Path(source).expanduser()
    return folder.is_dir() and not kind_of_path(folder)


def names_of(sources: Sequence[str]) -> dict[str, str]:
    """Return the sources by name. A folder has its own name, without its parents.

    Args:
        sources: ids or folders of pipelines, and folders of images.

    Raises:
        InvalidInputError: If two sources have the same name, or a source is empty, a file, or a
            path that does not exist.
    """
    source_of_name = {}
    output_folders = set()
    for source in sources:
        path = Path(source).expanduser()
        try:
            is_name = bool(source.strip()) and not path.is_file()
        except OSError:  # The operating system does not look up names that are too long.
            is_name = False
        if not is_name:
            raise InvalidInputError(
                f"--pipeline: got {shortened(repr(source), 200)}; expected the id or folder of a"
                " diffusers pipeline, or a folder of images"
            )
        if not path.is_dir():
            check_path(source, "pipeline")
        name = path.resolve().name if path.is_dir() else source
        # "a b" and "A-b" would share an output folder.
        if output_folder(name) in output_folders:
            raise InvalidInputError(
                f"--pipeline {source}: the name {output_folder(name)!r} is used twice; expected"
                " different names"
            )
        output_folders.add(output_folder(name))
        source_of_name[name] = source
    return source_of_name


def output_folder(name: str) -> str:
    """Return the name of the folder for the images of one of several pipelines."""
    # Without Latin letters and digits, the slug is empty.
    return file_slug(name) or f"pipeline-{hash_of(name)}"


def own_images(folder: Path, request: Request, out: Path) -> SideBySide:
    """Open images from elsewhere as the images of a request.

    If the folder contains a plan, as written by `vldebias generate` and `vldebias eval generation`,
    the images of the prompt are used, with the seeds in the plan. Otherwise, image i in the order
    of the file names takes the place of seed i. The labels are those that `vldebias label` or the
    packaged judge stored in the folder.

    Args:
        folder: a folder of images.
        request: the prompt, the attributes and the number of images.
        out: the output folder, which must not be inside `folder`.

    Raises:
        InvalidInputError: If the folder contains no images, none for the prompt, images that cannot
            be read, or the output folder.
    """
    if out.resolve().is_relative_to(folder.resolve()):
        raise InvalidInputError(
            f"--out {out}: is inside the folder of images {folder}, so the next run would mistake"
            " generated images for them; choose a folder outside it"
        )
    is_planned = (folder / PLAN).is_file()
    images = _of_plan(folder, request) if is_planned else _of_files(folder, request)
    for image in images:
        try:
            decode(images.path(image))
        except OSError as error:
            raise InvalidInputError(
                f"--pipeline {folder}: cannot read {image.path}: {error.strerror or error}"
            ) from error
    attributes = request.attributes
    has_judge = any(folder.glob(JUDGED))
    seen, labelled_by = labels_of(images, attributes, has_judge=has_judge)
    names = [prompt_set.name for prompt_set in attributes]
    # The values in a file are in the order of the attributes that the image was generated for.
    has_values = is_planned and images.plan.prompt_set == ", ".join(names)
    pictures = []
    for image, values in zip(images, seen, strict=True):
        if has_values:
            pictures.append(Picture.read(images, image, attributes, values))
        else:
            unknown = dict.fromkeys(names)
            facts = (image.variant, image.seed, image.noise, image.prompt)
            pictures.append(Picture(*facts, unknown, values, False, image.path))
    judged = frozenset(seen[0]).intersection(*seen)
    reasons = dict.fromkeys(names)
    return SideBySide(request, images.plan, folder, tuple(pictures), reasons, judged, labelled_by)


def _of_plan(folder: Path, request: Request) -> GeneratedImages:
    """Return the images in a folder with a plan that belong to a request."""
    generated = GeneratedImages.open(folder)
    images = [image for image in generated if image.prompt == request.prompt]
    if not images:
        prompts = list(dict.fromkeys(image.prompt for image in generated))
        raise InvalidInputError(
            f"{folder}: none of its images has the prompt {request.prompt!r}; expected one of"
            f" {shortened(', '.join(map(repr, prompts)), 300)}"
        )
    chosen = []
    for variant in generated.plan.variants:
        of_variant = [image for image in images if image.variant == variant]
        chosen += of_variant[: request.images]
    return GeneratedImages(folder, generated.plan, tuple(chosen))


def _of_files(folder: Path, request: Request) -> GeneratedImages:
    """Return the first images in a folder of files, in natural order."""
    names = files_below(folder)[0]
    plan_file = next((name for name in names if PurePosixPath(name).name == PLAN), None)
    if plan_file is not None:
        raise InvalidInputError(
            f"--pipeline {folder}: contains folders of generated images; expected one of them, such"
            f" as {folder / Path(plan_file).parent}"
        )
    files = [name for name in names if is_picture(name)]
    if not files:
        raise InvalidInputError(
            f"--pipeline {folder}: the folder contains neither a diffusers pipeline"
            " (model_index.json) nor images"
        )
    # "9.png" comes before "10.png".
    files.sort(key=lambda file: [part.zfill(20) for part in re.split(r"(\d+)", file)])
    # The model and its settings are unknown.
    plan = request.plan({"id": str(folder)}, is_miniature=False)
    plan = plan.model_copy(update={"variants": {NONE: {}}, "steps": 0, "guidance": 0.0})
    images = []
    for i, file in enumerate(files[: request.images]):
        seed = request.seed + i
        images.append(PlannedImage(*plan.prompts[0], path=file, variant=NONE, seed=seed))
    return GeneratedImages(folder, plan, tuple(images))


@dataclass(frozen=True)
class Comparison:
    """The images of several pipelines or folders, by name.

    Attributes:
        request: the prompt, attributes, methods and settings.
        sides: the images of each pipeline or folder.
        folders: names of the folders, whose images start from other noise.
    """

    request: Request
    sides: Mapping[str, SideBySide]
    folders: Collection[str] = ()

    @property
    def methods(self) -> list[str]:
        """Return the names of all rows, starting with "none"."""
        methods = [method for images in self.sides.values() for method in images.methods]
        return list(dict.fromkeys(methods))

    def table(self) -> list[tuple[str, list[str]]]:
        """Return a row of the counts for each method and attribute, and a row of the times."""
        rows = []
        for method in self.methods:
            for prompt_set in self.request.attributes:
                title = row_title(method)
                if len(self.request.attributes) > 1:
                    title += f" ({prompt_set.name})"
                cells = []
                for images in self.sides.values():
                    is_present = method in images.methods
                    cells.append(images.counted(method, prompt_set.name) if is_present else "")
                rows.append((title, cells))
        times = []
        for images in self.sides.values():
            times.append("unknown" if images.seconds is None else f"{images.seconds:.2g}")
        return [*rows, ("seconds per image", times)]

    def sentences(self) -> list[str]:
        """Return a sentence per pipeline and row, and one on the time per image."""
        if len(self.sides) == 1:
            return next(iter(self.sides.values())).sentences()
        lines = []
        for name, images in self.sides.items():
            lines += [f"{name}: {sentence}" for sentence in images.sentences()]
        *_, (title, times) = self.table()
        cells = [f"{name} {time}" for name, time in zip(self.sides, times, strict=True)]
        return [*lines, f"{title.capitalize()}: {', '.join(cells)}."]

    def to_dict(self) -> dict[str, object]:
        """Return the settings, sentences and images of every pipeline as JSON values."""
        return {
            "prompt": self.request.prompt,
            "attributes": [prompt_set.name for prompt_set in self.request.attributes],
            "pipelines": {name: images.to_dict() for name, images in self.sides.items()},
            "sentences": self.sentences(),
        }

    def write(self, path: Path) -> Path:
        """Write a page with the counts and the images, as one file."""
        blocks = []
        for method in self.methods:
            shown = {}
            for name, images in self.sides.items():
                shown[name] = [
                    (picture, _thumbnail(images, picture)) for picture in images.row(method)
                ]
            blocks.append((row_title(method), shown))
        values = {
            "request": self.request,
            "names": list(self.sides),
            "folders": list(self.folders),
            "table": self.table(),
            "labelled_by": [images.labelled_by for images in self.sides.values()],
            "blocks": blocks,
        }
        return write_page(path, TEMPLATE, values)


def _thumbnail(images: SideBySide, picture: Picture) -> Image:
    """Return a picture with sides of at most 384 pixels."""
    image = decode(images.folder / picture.file)
    image.thumbnail((LARGEST, LARGEST))
    return image
