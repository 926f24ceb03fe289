"""`vldebias records`: plan, check, label and show records of who appears."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vldebias.cli.common import App, check_page, echo, print_grid, print_json, print_message
from vldebias.cli.flags import Json
from vldebias.errors import InvalidInputError
from vldebias.utils.phrases import quantity

if TYPE_CHECKING:
    from .schema import Record

app = App(
    """
    Record who appears in a model's images, and check and show such records.

    Examples:
      vldebias records plan --width 0.1 --out protocol.txt
      vldebias records check eval/records/*.json
      vldebias records page eval/records --out who-appears.html
    """
)
Files = Annotated[
    list[Path],
    typer.Argument(exists=True, metavar="FILE...", help="Records, or folders of records."),
]


@app.add("plan")
def plan(
    width: Annotated[
        float, typer.Option(help="Desired interval width for the mean share of a template.")
    ] = 0.1,
    neutral: Annotated[
        bool, typer.Option("--neutral", help="Only use the neutral template, without qualifiers.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Text file to write, with one prompt per line.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute how many images and labels are needed for an interval width, and write the prompts.

    Examples:
      vldebias records plan --width 0.1 --out protocol.txt
      vldebias records plan --neutral --json
    """
    from vldebias.measure.resampling import widest_interval
    from vldebias.utils.files import write_atomically

    from .protocol import load_protocol, numbers_for_width
    from .schema import NEUTRAL

    protocol = load_protocol()
    prompts = protocol.prompts()
    if neutral:
        prompts = [prompt for prompt in prompts if prompt.qualifier == NEUTRAL]
    n_subjects = len(protocol.subjects)
    numbers = numbers_for_width(width, n_subjects)
    images = numbers.images
    wordings = len(prompts) // n_subjects
    facts = {
        "protocol": protocol.name,
        "prompts": len(prompts),
        "images per prompt": images,
        "images": images * len(prompts),
        "labels per template": numbers.labels,
        "labels": numbers.labels * wordings,
        "widest interval of one prompt": round(widest_interval(images), 3),
    }
    if out is not None:
        write_atomically(out, "".join(f"{prompt.text}\n" for prompt in prompts))
        print_message(f"{out}: {len(prompts)} prompts")
    if as_json:
        print_json(facts)
    else:
        print_grid(("quantity", "number"), [(name, str(number)) for name, number in facts.items()])


@app.add("check")
def check(files: Files, as_json: Json = False) -> None:
    """Validate records, and recompute every result from their counts.

    Exits with code 1 if a record is invalid or a result is wrong.

    Examples:
      vldebias records check record.json
      vldebias records check eval/records
    """
    from .check import problems_of
    from .page import read_records

    problems = {}
    rows = []
    for record in read_records(files):
        problems[record.name] = problems_of(record)
        state = "; ".join(problems[record.name]) or _state(record)
        rows.append((record.name, record.origin, state))
    if as_json:
        print_json({"records": [{"name": n, "problems": found} for n, found in problems.items()]})
    else:
        print_grid(("record", "origin", "state"), rows)
    if any(problems.values()):
        raise typer.Exit(1)


def _state(record: Record) -> str:
    """Describe what was checked in a record without problems."""
    if not record.counts:
        return "no counts to check"
    images = sum(sum(row.counts) + (row.unknown or 0) for row in record.counts)
    words = f"{len(record.figures)} results recomputed from {images:,} images"
    if record.published:
        words += f"; {len(record.published)} published results reproduced"
    return words


@app.add("label")
def label(
    file: Annotated[Path, typer.Argument(exists=True, metavar="RECORD", help="A record.")],
    folder: Annotated[
        Path,
        typer.Option(
            "--image-dir", exists=True, help="Folder with the record's images and plan.json."
        ),
    ],
    labels: Annotated[
        list[Path],
        typer.Option(
            "--label-file", exists=True, help="Answers written by vldebias label; repeatable."
        ),
    ],
) -> None:
    """Add human labels for some of the images to a record, and correct its results with them.

    Examples:
      vldebias label record/images --attribute gender
      vldebias records label record.json --image-dir record/images \\
          --label-file record/images/answers.jsonl
    """
    from ..recorded import with_labels
    from .schema import Record

    record = with_labels(Record.read(file), folder, labels)
    record.write(file)
    number = sum(sum(row.counts) + row.unknown for row in record.labels)
    print_message(f"{file}: {number} labels")


@app.add("schema")
def schema() -> None:
    """Print the JSON schema of records.

    Examples:
      vldebias records schema > record.schema.json
    """
    from .schema import Record

    echo(json.dumps(Record.model_json_schema(), indent=1, ensure_ascii=False))


@app.add("page")
def page(
    files: Files,
    out: Annotated[Path, typer.Option(help="HTML file to write.")] = Path("who-appears.html"),
) -> None:
    """Write a table of records as a self-contained HTML page.

    Examples:
      vldebias records page eval/records --out who-appears.html
    """
    check_page(out)
    from vldebias.utils.files import write_atomically

    from .check import problems_of
    from .page import read_records, render

    records = read_records(files)
    for record in records:
        problems = problems_of(record)
        if problems:
            raise InvalidInputError(
                f"{record.name}: {problems[0]}; run `vldebias records check` and correct the record"
            )
    write_atomically(out, render(records))
    print_message(f"{out}: {quantity(len(records), 'record')}")
