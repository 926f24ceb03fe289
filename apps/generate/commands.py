"""`vldebias generate`: generate images with and without a method, from the same noise."""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.checks import check_sets
from vldebias.cli.common import (
    check_out,
    echo,
    err,
    out,
    print_grid,
    print_json,
    print_message,
)
from vldebias.cli.flags import Json, Pipelines, flags_of_options, with_flags
from vldebias.errors import InvalidInputError, StorageError
from vldebias.methods.listing import check_methods
from vldebias.utils.devices import device_of
from vldebias.utils.formats import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from .comparison import Comparison
    from .side_by_side import Picture, Request, SideBySide

MINIATURE = "miniature"
IMAGES = 8  # default number of images per row
GRID = "grid.png"
FACTS = "generate.json"
PAGE = "index.html"
COLUMNS = ("method", "images", "asked for", "seen", "prompt")


@with_flags(flags_of_options("images", "steps", "device", "dtype"))
def generate_command(
    prompt: Annotated[str, typer.Argument(help="Prompt to generate.", metavar="PROMPT")],
    attribute: Annotated[
        list[str],
        typer.Option(help="gender, age, race, ... or a YAML file; repeatable.", metavar="SET"),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method; repeatable, with one row of images each. Default: default.",
            metavar="NAME",
        ),
    ] = None,
    pipeline: Pipelines = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.", metavar="N")] = 0,
    guidance: Annotated[
        float | None,
        typer.Option(help="Guidance scale. Default: 7.5, or 3 for the miniature.", metavar="X"),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the images. Default: vldebias-generate/PROMPT.",
            metavar="DIR",
        ),
    ] = None,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Generate images for a prompt with and without balanced prompts, from the same noise.

    By default, generates 8 images per row with the miniature pipeline and 20 steps (30 steps for
    other pipelines). Writes each image, a grid of all images (grid.png), a page with the images and
    counts (index.html), and the prompts, values and seeds (generate.json). Run the same command
    again to continue after an interruption. The packaged judge labels images from the miniature
    pipeline. For other pipelines, have people label them with `vldebias label`, and run the command
    again to count the answers.

    With two pipelines, the page shows their images side by side, from the same prompts and seeds. A
    folder of images can take the place of one of them.

    Examples:
      vldebias generate "A photo of an editor." --attribute gender
      vldebias generate "A CEO in an office" --attribute gender --attribute age \\
          --images 16 --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 \\
          --out ceo
      vldebias generate "A photo of a doctor." --attribute gender \\
          --method default --method cali
      vldebias generate "A photo of a doctor." --attribute gender \\
          --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 \\
          --pipeline ./my-images
    """
    if not prompt.strip():
        raise InvalidInputError("PROMPT: got an empty string; expected a description of an image")
    if os.path.isfile(prompt):
        raise InvalidInputError(
            f"PROMPT: got the file {prompt!r}; expected a description of an image. For a file of"
            f" prompts: vldebias prompts balance {shlex.quote(prompt)} --attribute gender"
        )
    check_out(folder)
    check_sets(attribute)
    check_methods(method or ())
    sources = pipeline or [MINIATURE]
    # The imports below take several seconds, so print a message first.
    methods = ", ".join(method or ("the default method",))
    print_message(
        f"generating “{prompt}” with and without {methods}, using {' and '.join(sources)}"
    )
    from vldebias.prompts import load_prompts
    from vldebias.utils.schema import file_slug

    from .comparison import Comparison, is_own_images, names_of, output_folder, own_images
    from .side_by_side import Request

    request = Request(
        prompt,
        tuple(load_prompts(name) for name in attribute),
        tuple(method or ("default",)),
        images=flags.get("images", IMAGES),
        seed=seed,
        steps=flags.get("steps"),
        guidance=guidance,
    )
    # Report an unknown name before a model is loaded.
    request.variants()
    source_of_name = names_of(sources)
    if all(map(is_own_images, sources)):
        raise InvalidInputError(
            f"--pipeline {sources[0]}: a folder of images; expected at least one pipeline to"
            " generate images with, such as --pipeline miniature"
        )
    if folder is None:
        from vldebias.judge.plan import hash_of

        # Hash the settings and the content of the prompt sets, so that different settings, such as
        # an edited prompt set with the same name, use different folders.
        settings = vars(request) | {
            "attributes": [prompt_set.hash for prompt_set in request.attributes]
        }
        # File names are limited to 255 bytes.
        name = file_slug(request.prompt)[:60] or "prompt"
        folder = Path("vldebias-generate") / f"{name}-{hash_of([settings, sources])[:8]}"
    # Open the folders first, to report an unsuitable one before anything is generated.
    own_sides = {
        name: own_images(Path(source).expanduser(), request, folder)
        for name, source in source_of_name.items()
        if is_own_images(source)
    }
    _check_later(source for name, source in source_of_name.items() if name not in own_sides)
    device = device_of(flags.get("device"))
    sides = {}
    facts: dict[str, object] = {FORMAT: 1, "page": str(folder / PAGE), "folder": str(folder)}
    for name, source in source_of_name.items():
        if name in own_sides:
            sides[name] = own_sides[name]
        else:
            part = folder if len(sources) == 1 else folder / output_folder(name)
            sides[name] = _generate(request, part, source, device, flags.get("dtype"))
            # Write the time per image now, because the next pipeline may be interrupted.
            facts_of_side = _write(sides[name], facts)
    comparison = Comparison(request, sides, own_sides)
    comparison.write(folder / PAGE)
    if len(sides) == 1:
        facts = facts_of_side
    else:
        facts |= comparison.to_dict()
        _write_json(facts, folder)
    if as_json:
        print_json(facts)
    else:
        _print(comparison, folder, attribute)


def _check_later(pipelines: Iterable[str]) -> None:
    """Check that the pipelines after the first can be loaded, before images are generated."""
    from vldebias.hosts.loading import check_pipeline

    for pipeline in list(pipelines)[1:]:
        check_pipeline(pipeline)


def _generate(
    request: Request, folder: Path, pipeline: str, device: str, dtype: str | None
) -> SideBySide:
    """Generate the missing images, or explain how to continue after an interruption.

    Raises:
        InvalidInputError: If `side_by_side` rejects the arguments, or another process is writing to
            the folder.
        StorageError: If the disk is full. Finished images are kept.
    """
    import json
    from contextlib import suppress
    from dataclasses import replace

    from vldebias.hosts.loading import load_host
    from vldebias.utils.files import only_writer
    from vldebias.utils.progress import Progress

    from .side_by_side import side_by_side

    pipe = load_host(pipeline=pipeline, device=device, dtype=dtype).host
    print_message(f"writing images to {folder}")
    try:
        with only_writer(folder), Progress(err()) as progress:
            images = side_by_side(pipe, request, folder, progress=progress)
    except KeyboardInterrupt:
        print_message(f"{_finished(folder)}; run the same command again to continue")
        raise
    except StorageError as error:
        raise StorageError(error.errno, f"{error}; {_finished(folder)}") from None
    if images.seconds is None:
        # All images existed. Repeat the time that the earlier run measured.
        with suppress(OSError, ValueError, KeyError):
            earlier = json.loads((folder / FACTS).read_text(encoding="utf-8"))
            images = replace(images, seconds=earlier["seconds_per_image"])
    return images


def _finished(folder: Path) -> str:
    """Return a message with the number of finished images in a folder."""
    return f"{sum(1 for _ in folder.glob('*/*/*.png')):,} finished images are kept"


def _write(images: SideBySide, facts: Mapping[str, object]) -> dict[str, object]:
    """Write a pipeline's image grid and JSON file, and return the content of the JSON file.

    Args:
        images: the images of the pipeline.
        facts: paths that the JSON file also contains.
    """
    from vldebias.utils.pictures import write_png

    grid = images.folder / GRID
    write_png(images.grid(), grid, {"prompt": images.request.prompt})
    facts_of_side = {**facts, **images.to_dict(), "grid": str(grid)}
    _write_json(facts_of_side, images.folder)
    return facts_of_side


def _write_json(facts: Mapping[str, object], folder: Path) -> None:
    import json

    from vldebias.utils.files import write_atomically

    write_atomically(folder / FACTS, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def _print(comparison: Comparison, folder: Path, attribute: Sequence[str]) -> None:
    """Print the conclusions, the image table and the paths."""
    for sentence in comparison.sentences():
        # If stdout is piped, print the conclusions as comments, so that `grep -v '^#'` can remove
        # them.
        echo(sentence if out().is_terminal else f"# {sentence}")
    sides = comparison.sides.items()
    rows = [(name, *row) for name, images in sides for row in _rows(images)]
    # The name of a single pipeline is not worth a column.
    first = 1 if len(sides) == 1 else 0
    print_grid(("pipeline", *COLUMNS)[first:], [row[first:] for row in rows])
    print_message(f"page: {folder / PAGE}\nseeds and prompts: {folder / FACTS}")
    for _, images in sides:
        if any(picture.seen for picture in images.pictures):
            print_message(f"the images in {images.folder} were labelled by {images.labelled_by}")
        else:
            names = " ".join(f"--attribute {name}" for name in attribute)
            path = shlex.quote(str(images.folder))
            print_message(f"to label the images by hand: vldebias label {path} {names}")


def _rows(images: SideBySide) -> Iterator[tuple[str, ...]]:
    """Yield a row for each method and prompt."""
    from vldebias.report.strip import row_title
    from vldebias.utils.phrases import people_in_words

    for method in images.methods:
        # Group by value too, since some methods assign a value without changing the prompt.
        pictures_of_request: dict[tuple[str, str], list[Picture]] = defaultdict(list)
        for picture in images.row(method):
            values = [people_in_words(value) for value in picture.values.values() if value]
            pictures_of_request[picture.prompt, " and ".join(values)].append(picture)
        for (text, requested), pictures in pictures_of_request.items():
            shown = _counted([picture.seen for picture in pictures])
            yield row_title(method), str(len(pictures)), requested, shown, text


def _counted(readings: Sequence[Mapping[str, str | None] | None]) -> str:
    """Count the images that show each value, ignoring images that were not judged."""
    number_of_text = Counter[str]()
    for seen in filter(None, readings):
        values = ["unclear" if value is None else value for value in seen.values()]
        number_of_text[" and ".join(values)] += 1
    return ", ".join(f"{number} {text}" for text, number in number_of_text.most_common())
