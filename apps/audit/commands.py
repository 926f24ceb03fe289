"""`vldebias audit`: count who appears in images of prompts, and audit rewriters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.checks import check_host, check_sets
from vldebias.cli.common import (
    check_out,
    err,
    print_message,
    print_result,
    write_run,
)
from vldebias.cli.flags import (
    AttributeSet,
    Json,
    flags_of_options,
    host_flags,
    with_flags,
)
from vldebias.errors import InvalidInputError
from vldebias.utils.devices import device_of

if TYPE_CHECKING:
    import pandas as pd

    from vldebias.hosts.loading import Loaded
    from vldebias.report.result import Result

    from .pilot import Pilot


# `vldebias audit` options, and the panels in which its help shows them.
PIPELINE = "Pipeline"
MEASUREMENT = "Measurement"
OTHER_TEXTS = "Other texts"
PromptsFile = Annotated[
    Path | None, typer.Argument(exists=True, help="Prompts, one per line.", metavar="FILE")
]
Column = Annotated[
    str | None,
    typer.Option(help="Column with the prompts. Default: detected by name."),
]
Measure = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=(
            "Generate and judge N images for each of up to 30 prompts (or all prompts of the"
            " protocol) with --pipeline. Writes a record. Run it again to continue, or with a"
            " larger N to add images to prompts that are still unclear."
        ),
        metavar="N",
        rich_help_panel=MEASUREMENT,
    ),
]
Width = Annotated[
    float | None,
    typer.Option(
        help="Print the number of images needed for intervals of this width, such as 0.1.",
        rich_help_panel=MEASUREMENT,
    ),
]
Guidance = Annotated[
    float | None,
    typer.Option(
        help="Guidance scale for --measure. Default: the pipeline's.",
        metavar="X",
        rich_help_panel=MEASUREMENT,
    ),
]
Sign = Annotated[
    str | None,
    typer.Option(
        help=(
            "Who signs off the measurement, and the licence of its counts, such as"
            " 'Jane Doe, CC0-1.0'. The page and the record state both, with the date."
        ),
        metavar="NAME, LICENCE",
        rich_help_panel=MEASUREMENT,
    ),
]
Out = Annotated[
    Path,
    typer.Option(
        "--out",
        help=(
            "Folder for the page and the list. With --measure, it may also be a file"
            " RECORD.json, and the folder is then RECORD."
        ),
    ),
]
Original = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        help="The users' original prompts, one per line, to audit a prompt rewriter.",
        rich_help_panel=OTHER_TEXTS,
    ),
]
Rewritten = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        help="The same prompts, rewritten by a language model, one per line.",
        rich_help_panel=OTHER_TEXTS,
    ),
]


@with_flags(
    [
        *flags_of_options("pipeline", "device", "dtype", panel=PIPELINE),
        *flags_of_options("judge", "steps", panel=MEASUREMENT),
    ]
)
def audit_command(  # noqa: PLR0913  (each is an option of the command)
    attribute: AttributeSet,
    file: PromptsFile = None,
    column: Column = None,
    measure: Measure = None,
    width: Width = None,
    guidance: Guidance = None,
    sign: Sign = None,
    folder: Out = Path("vldebias-audit"),
    original: Original = None,
    rewritten: Rewritten = None,
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Show who appears in images of each prompt's subject, counted, with intervals.

    Without --measure, the counts are those that others published for released models. Writes a
    page, result.json and prompts.csv, which list the prompts that need attention first.

    Examples:
      vldebias audit prompts.txt --attribute gender
      vldebias audit prompts.txt --attribute gender \\
          --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5
      vldebias audit prompts.txt --attribute gender --pipeline DIR --measure 8 \\
          --width 0.1
      vldebias audit protocol.txt --attribute gender --pipeline DIR --measure 8 \\
          --sign "Jane Doe, CC0-1.0" --out record.json
      vldebias audit --attribute gender --original users.txt \\
          --rewritten enhanced.txt
    """
    if original is not None and rewritten is not None:
        _audit_rewriter(original, rewritten, attribute, folder, as_json=as_json)
        return
    if file is None or original is not None or rewritten is not None:
        raise InvalidInputError("expected FILE, or both --original and --rewritten")
    if measure is not None and "pipeline" not in flags:
        raise InvalidInputError("--measure needs --pipeline, which generates the images")
    if measure is not None:
        check_host(flags)
    signature = _signature(sign, measure)
    record_file = folder / "record.json"
    if folder.suffix == ".json":
        record_file = folder
        folder = folder.with_suffix("")
        if measure is None:
            raise InvalidInputError(
                f"--out {record_file}: only --measure N writes a record; add it, or pass a folder"
            )
    check_out(folder, "audit")
    check_sets([attribute])
    from vldebias.data.prompt_file import read_prompts

    listed = read_prompts(file, column)
    print_message(f"{file}: read {listed}")
    numbers = _print_numbers(listed.prompts, attribute, measure, width, folder)
    from vldebias.utils.files import spreadsheet_csv, write_atomically

    from .advice import audit

    if measure is not None:
        pilot = _count_values(flags, attribute, numbers, guidance, folder)
        _write_record(pilot, record_file, signature)
        print_message(f"counts: {folder / 'measured.csv'}, {record_file}")
        result = audit(listed, attribute, pipe=flags["pipeline"], counts=pilot.counts)
        _add_images(result, pilot, signature)
    else:
        result = audit(listed, attribute, pipe=flags.get("pipeline"))
    write_atomically(folder / "prompts.csv", spreadsheet_csv(_listed(result), index=True))
    page = write_run(result, folder)
    print_result(result, as_json=as_json, page=page, prompts=folder / "prompts.csv")
    if measure is not None:
        _print_next(result, attribute)


def _print_next(result: Result, attribute: str) -> None:
    """Print the command that generates more images, with paths that work on this machine."""
    from vldebias.report.measurements import command_line
    from vldebias.report.table import readable

    from .section import audited_prompts, commands_of_remedies

    # Commands in results have no folders, since results may be published.
    typed = command_line(keeps_folders=True) or ""
    prompts = audited_prompts(result, readable(result))
    for words, command in commands_of_remedies(prompts, attribute, typed):
        if words.startswith("Generate"):
            print_message(f"{words}: {command}")


def _loaded(flags: dict[str, Any]) -> Loaded:
    """Load the model or pipeline selected by the flags, choosing a device if none is set."""
    from vldebias.hosts.loading import load_host

    flags["device"] = device_of(flags.get("device"))
    return load_host(**host_flags(flags))


def _signature(sign: str | None, measure: int | None) -> dict[str, str]:
    """Return who signs a measurement, when, and the licence of the counts, or nothing.

    The licence follows the last comma, because names may contain commas.
    """
    if sign is None:
        return {}
    by, _, licence = (part.strip() for part in sign.rpartition(","))
    if not by or not licence:
        raise InvalidInputError(
            f"--sign {sign!r}: expected a name and the licence of the counts, separated by a"
            " comma, such as 'Jane Doe, CC0-1.0'"
        )
    if measure is None:
        raise InvalidInputError("--sign signs a measurement; add --measure N and --pipeline")
    return {"by": by, "date": datetime.now(UTC).date().isoformat(), "licence": licence}


def _print_numbers(
    prompts: Sequence[str], attribute: str, images: int | None, width: float | None, folder: Path
) -> dict[str, int]:
    """Print how many images are generated or needed, and the width of their intervals.

    Returns:
        The number of images that --measure should reach for each prompt that is measured.
    """
    if images is None and width is None:
        return {}
    from vldebias.measure.resampling import images_for_width, widest_interval
    from vldebias.prompts import load_prompts
    from vldebias.utils.phrases import quantity

    from .pilot import images_to_reach, pilot_prompts

    prompt_set = load_prompts(attribute)
    measured = pilot_prompts(prompts, prompt_set)
    number = len(measured)
    numbers: dict[str, int] = {}
    if width is not None:
        low, high = images_for_width(width)
        print_message(
            f"An interval of width {width:g} needs {low:,} images per prompt if all of them show"
            f" the same value, and {high:,} if half of them do. For {number:,} prompts, this is"
            f" {number * low:,} to {number * high:,} images (--measure {high})"
        )
    if images is not None:
        numbers = images_to_reach(measured, prompt_set, folder, images)
        number = list(numbers.values()).count(images)
        if number < len(numbers):
            print_message(
                f"{len(numbers) - number:,} of {len(numbers):,} prompts keep their earlier images,"
                " because more would not change the verdict"
            )
        print_message(
            f"{quantity(images, 'image')} for each of {quantity(number, 'prompt')} are"
            f" {number * images:,} images, with intervals up to {widest_interval(images):.2f} wide"
        )
    return numbers


def _count_values(
    flags: dict[str, Any],
    attribute: str,
    images: Mapping[str, int],
    guidance: float | None,
    folder: Path,
) -> Pilot:
    """Count the values in a pipeline's images, and write measured.csv."""
    from vldebias.utils.files import only_writer, spreadsheet_csv, write_atomically
    from vldebias.utils.options import Options
    from vldebias.utils.progress import Progress

    from .pilot import MEASURED, measure_prompts

    loaded = _loaded(flags)
    options = Options(
        out=folder,
        device=flags["device"],
        dtype=flags.get("dtype"),
        judge=flags.get("judge"),
        steps=flags.get("steps"),
    )
    with only_writer(folder), Progress(err()) as progress:
        pilot = measure_prompts(
            loaded,
            list(images),
            attribute,
            options,
            images=images,
            guidance=guidance,
            progress=progress,
        )
    write_atomically(folder / MEASURED, spreadsheet_csv(pilot.counts))
    return pilot


def _write_record(pilot: Pilot, file: Path, signature: Mapping[str, str]) -> None:
    """Write the record of a measurement, with the name and licence of its signature, if any."""
    who = {}
    if signature:
        who = {"measured_by": signature["by"], "licence": signature["licence"]}
    pilot.record.model_copy(update=who).write(file)


def _add_images(result: Result, pilot: Pilot, signature: Mapping[str, str]) -> None:
    """Add the judged images to a result, with how clearly the model responds and who signs."""
    from vldebias.projection.cross_attention_edit import clarity_sentence
    from vldebias.utils.phrases import capitalised

    settings = result.provenance[0].settings
    # The page shows these images, which are stored in its folder.
    settings["images"] = pilot.images
    settings["signed"] = signature
    if pilot.clarity:
        settings["advice"].append(capitalised(f"{clarity_sentence(pilot.clarity)}."))


def _audit_rewriter(
    original: Path, rewritten: Path, attribute: str, folder: Path, *, as_json: bool
) -> None:
    """Measure which values a prompt rewriter adds, without generating images."""
    check_out(folder, "rewriter")
    check_sets([attribute])
    from vldebias.data.prompt_file import read_prompts

    originals = read_prompts(original)
    texts = read_prompts(rewritten)
    print_message(f"{original}: read {originals}; {rewritten}: read {texts}")
    from .rewriters import audit_rewriter

    result = audit_rewriter(originals.prompts, texts.prompts, attribute)
    page = write_run(result, folder)
    print_result(result, as_json=as_json, page=page)


def _listed(result: Result) -> pd.DataFrame:
    """Return a table with the advice, share and interval for each prompt and value."""
    import pandas as pd

    from vldebias.measure.rows import NONE

    rows = result.to_pandas()
    shares = rows[rows.metric == "counted_share"]
    shares = shares.rename(columns={"value": "share", "method": "model"})
    parts = [subset.rpartition(": ") for subset in shares.subset]
    # Subsets have the form "PROMPT: VALUE". Only the prompt may contain colons.
    shares["value"] = [value for _, _, value in parts]
    shares.index = [prompt for prompt, _, _ in parts]
    advice = pd.Series(result.provenance[0].settings["prompts"], name="advice")
    # Keep the order of the audit, which lists prompts that need attention first.
    table = advice.rename_axis("prompt").to_frame()
    columns = ["value", "share", "low", "high"]
    if (shares.model != NONE).any():
        columns = ["model", *columns]
    return table.join(shares[columns])
