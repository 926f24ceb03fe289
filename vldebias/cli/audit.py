"""`vldebias audit`: predict what a file of prompts will show, before any image is generated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import check_out, device_of, print_result, run_task
from vldebias.cli.flags import HOST_FLAGS, Json, SetName, with_flags
from vldebias.errors import InvalidInputError


@with_flags(HOST_FLAGS)
def audit_command(
    file: Annotated[Path, typer.Argument(exists=True, help="Prompts, one a line.", metavar="FILE")],
    prompts: SetName,
    texts: Annotated[Path | None, typer.Option(exists=True, help="Text embeddings (.npz), see --list-texts.")] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Judged images of your own pipeline: a CSV (prompt, value: a row per image; or prompt and a column of "
            "counts per value). Default: the published counts of Stable Diffusion 1.5 (gender).",
        ),
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page and the list.")] = Path("vldebias-audit"),
    list_texts: Annotated[
        bool, typer.Option("--list-texts", help="Print every text that --texts needs, one a line, and stop.")
    ] = False,
    as_json: Json = False,
    **named: Any,
) -> None:
    """Predict each prompt's share before any image is generated, with an interval, from its text alone.

    Writes a page, result.json and prompts.csv, which lists first the prompts to look at first. A second run with the
    same settings reuses what the first has measured.

    [bold]Examples[/bold]

    \b
      vldebias audit prompts.txt --prompts gender --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5
      vldebias audit prompts.txt --prompts gender --model ViT-B-32 --pretrained openai
      vldebias audit prompts.txt --prompts gender --list-texts > texts.txt   # embed them elsewhere, then --texts
      vldebias audit prompts.txt --prompts race --pipeline DIR --calibrate judged.csv
    """
    if not list_texts and (texts is not None) + ("model" in named) + ("pipeline" in named) != 1:
        raise InvalidInputError("expected one of --model, --pipeline and --texts, whose text embeddings are read")
    check_out(folder)
    from vldebias.evaluation.auditing import ShareTable, build_task, read_prompts
    from vldebias.evaluation.run import write_manifest
    from vldebias.evaluation.session import Session
    from vldebias.options import Options
    from vldebias.prompts import load_prompts

    table = None if calibrate is None else ShareTable.read(calibrate, load_prompts(prompts))
    task = build_task(read_prompts(file), prompts, table)
    if list_texts:
        typer.echo("\n".join(task.needed()))
        return
    options = Options(out=folder, texts=texts, **named | {"device": device_of(named["device"])})
    result, page = run_task(task, options, "vldebias.audit", ["predicted_share"])
    task.predict(**task.inputs(Session(options)))[0].to_csv(folder / "prompts.csv", index=False)
    write_manifest(folder)  # the list belongs to the run
    shown = [(task.name, "predicted_share")]
    print_result(result, shown, as_json=as_json, page=page, prompts=folder / "prompts.csv")
