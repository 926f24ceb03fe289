"""`vldebias generate`: pictures of one prompt without and with a method, from the same noise."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.checks import check_sets
from vldebias.cli.common import check_out, device_of, echo, err, out, print_grid, print_json, say
from vldebias.cli.flags import Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError, StorageError
from vldebias.methods.declared import check_methods

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from vldebias.study.side_by_side import Request, SideBySide

MINIATURE = "miniature"
IMAGES = 8  # of a row
GRID = "grid.png"
FACTS = "generate.json"
COLUMNS = ("method", "pictures", "asked for", "seen", "prompt")


@with_flags(flags_of_options("pipeline", "images", "steps", "device", "dtype"))
def generate_command(
    prompt: Annotated[str, typer.Argument(help="Prompt to generate.", metavar="PROMPT")],
    attribute: Annotated[
        list[str],
        typer.Option(help="gender, age, race, ... or a YAML file; repeatable.", metavar="SET"),
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Method, a row of pictures each; repeatable. Default: default.",
            metavar="NAME",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise.", metavar="N")] = 0,
    guidance: Annotated[
        float | None, typer.Option(help="Guidance scale. Default: 7.5; miniature 3.", metavar="X")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder for the pictures. Default: vldebias-generate/PROMPT.",
            metavar="DIR",
        ),
    ] = None,
    as_json: Json = False,
    **named: Any,
) -> None:
    """Generate pictures of a prompt without and with balanced prompts, from the same noise.

    By default 8 pictures of each row, of the miniature, in 20 steps; other pipelines take 30.
    Writes each picture, all in one (grid.png), and generate.json with prompts, values and seeds.
    Run the same command again to continue after an interruption. On the miniature the packaged
    judge says what is seen; elsewhere `vldebias label` asks people.

    Examples:
      vldebias generate "A photo of an editor." --attribute gender
      vldebias generate "A CEO in an office" --attribute gender --attribute age \\
          --images 16 --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5 \\
          --out ceo
      vldebias generate "A photo of a doctor." --attribute gender \\
          --method default --method cali
    """
    if not prompt.strip():
        raise InvalidInputError("PROMPT: it is empty; write what to generate")
    check_out(folder)
    check_sets(attribute)
    check_methods(method or ())
    pipeline = named.pop("pipeline", MINIATURE)
    # The libraries below take seconds to import.
    methods = ", ".join(method or ("the default method",))
    say(f"“{prompt}” without and with {methods}, by {pipeline}")
    from vldebias.prompts import load_prompts
    from vldebias.study.side_by_side import Request

    request = Request(
        prompt,
        tuple(load_prompts(name) for name in attribute),
        tuple(method or ("default",)),
        images=named.pop("images", IMAGES),
        seed=seed,
        steps=named.pop("steps", None),
        guidance=guidance,
    )
    # A wrong name is refused before a model is loaded.
    request.variants()
    if folder is None:
        from vldebias.judge.plan import hash_of
        from vldebias.utils.schema import file_slug

        # By content, so that other settings go elsewhere: a changed prompt set of the same name
        # makes other pictures.
        settings = vars(request) | {"attributes": [prompts.hash for prompts in request.attributes]}
        # File systems take 255 bytes, and people read the beginning.
        name = file_slug(request.prompt)[:60] or "prompt"
        folder = Path("vldebias-generate") / f"{name}-{hash_of([settings, pipeline])[:8]}"
    made = _generate(request, folder, pipeline, **named)
    facts = made.to_dict() | {"grid": str(folder / GRID), "folder": str(folder)}
    _write(made, folder, facts)
    if as_json:
        print_json(facts)
    else:
        _print(made, folder, attribute)


def _generate(request: Request, folder: Path, pipeline: str, **named: Any) -> SideBySide:
    """Generate the pictures that the folder lacks; say how to continue after an interruption.

    Raises:
        InvalidInputError: see `side_by_side`.
        StorageError: no space is left; finished pictures are kept.
    """
    from vldebias.hosts.loading import load_host
    from vldebias.study.side_by_side import side_by_side
    from vldebias.utils.progress import Progress

    say(f"pictures are written to {folder}")
    named |= {"device": device_of(named.get("device"))}
    pipe = load_host(pipeline=pipeline, **named).host
    try:
        with Progress(err.console) as progress:
            return side_by_side(
                pipe, request, folder, is_miniature=pipeline == MINIATURE, progress=progress
            )
    except KeyboardInterrupt:
        say(f"{_finished(folder)}; run the same command again to continue")
        raise
    except StorageError as error:
        raise StorageError(error.errno, f"{error}; {_finished(folder)}") from None


def _finished(folder: Path) -> str:
    """Write how many pictures a folder holds."""
    return f"{sum(1 for _ in folder.glob('*/*/*.png')):,} finished pictures are kept"


def _write(made: SideBySide, folder: Path, facts: dict[str, Any]) -> None:
    """Write the grid and the facts."""
    import json

    from vldebias.utils.files import write_atomically
    from vldebias.utils.pictures import write_png

    write_png(made.grid(), folder / GRID, {"prompt": made.request.prompt})
    write_atomically(folder / FACTS, json.dumps(facts, indent=1, ensure_ascii=False) + "\n")


def _print(made: SideBySide, folder: Path, attribute: Sequence[str]) -> None:
    """Print the sentences, the table of what was generated, and where the pictures are."""
    for sentence in made.sentences():
        # In a pipe they are comments above the table, which `grep -v '^#'` takes away.
        echo(sentence if out.is_terminal else f"# {sentence}")
    print_grid(COLUMNS, list(_rows(made)))
    say(f"pictures: {folder / GRID}\nseeds and prompts: {folder / FACTS}")
    is_judged = any(picture.seen for picture in made.pictures)
    if is_judged:
        say("what the pictures show was read by the judge that comes with the package")
    else:
        names = " ".join(f"--attribute {name}" for name in attribute)
        say(f"let people say what they show: vldebias label {folder} {names}")


def _rows(made: SideBySide) -> Iterator[tuple[str, ...]]:
    """Yield a row for each method and prompt that it generated."""
    from vldebias.report.strip import row_title

    for method in made.methods:
        # Pictures of one text may have different values, where no word is written.
        pictures_of_request: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for picture in made.row(method):
            values = [value for value in picture.values.values() if value is not None]
            pictures_of_request[picture.prompt, " and ".join(values)].append(picture)
        for (text, requested), pictures in pictures_of_request.items():
            shown = _counted([picture.seen for picture in pictures])
            yield row_title(method), str(len(pictures)), requested, shown, text


def _counted(readings: Sequence[Any]) -> str:
    """Write how many pictures show each value; pictures without a judgement are left out."""
    number_of_text = Counter[str]()
    for seen in filter(None, readings):
        values = ["unclear" if value is None else value for value in seen.values()]
        number_of_text[" and ".join(values)] += 1
    return ", ".join(f"{number} {text}" for text, number in number_of_text.most_common())
