"""`vldebias audit`: what a file of prompts will draw, as a page, a result and a list, before anything is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vldebias.cli import complete
from vldebias.cli.common import (
    Device,
    Json,
    Model,
    Pipeline,
    Pretrained,
    aside,
    check_names,
    check_out,
    device_of,
    err,
    print_json,
    print_result,
    split_names,
)
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from vldebias.evaluation.share_tables import ShareTable
    from vldebias.prompts import PromptSet

LIST = "prompts.csv"


def audit_command(
    file: Annotated[Path, typer.Argument(help="Prompts, one a line.", metavar="FILE")],
    prompts: Annotated[
        str,
        typer.Option(
            help="Prompt set of the attribute (vldebias prompts list).",
            metavar="SET",
            autocompletion=complete.complete_prompt_sets,
        ),
    ],
    texts: Annotated[Path | None, typer.Option(help="Text embeddings (.npz), see --list-texts.")] = None,
    model: Model = None,
    pretrained: Pretrained = None,
    pipeline: Pipeline = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="Judged images of your own pipeline: a CSV (prompt, value: a row per image; or prompt and a column of "
            "counts per value), or a folder that a generation suite drew, with --judge. Default: the published counts "
            "of Stable Diffusion 1.5 (gender)."
        ),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Who reads a folder of drawn images: named as --model, or 'miniature'.")
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Shares to compare with: a CSV such as labour statistics, or 'data' (LAION's).", metavar="CSV"
        ),
    ] = None,
    methods: Annotated[
        str,
        typer.Option(help="Methods of the shelf to try on the texts.", autocompletion=complete.complete_methods),
    ] = "default,stated-value",
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page and the list.")] = Path("vldebias-audit"),
    list_texts: Annotated[
        bool, typer.Option("--list-texts", help="Print every text that --texts needs, one a line, and stop.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of resamples and splits.")] = 0,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Predict what prompts will draw before anything is drawn: each one's share, with an interval, from its text alone.

    Writes a page, result.json and prompts.csv, what to rewrite or draw first on top. A second run with the same
    settings takes over what the first has measured.

    [bold]Examples[/bold]

    \b
      vldebias audit prompts.txt --prompts gender --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5
      vldebias audit prompts.txt --prompts gender --model ViT-B-32 --pretrained openai --against labour.csv
      vldebias audit prompts.txt --prompts gender --list-texts > texts.txt   # embed them elsewhere, then --texts
      vldebias audit prompts.txt --prompts race --pipeline DIR --calibrate judged.csv
    """
    if not list_texts and sum(one is not None for one in (texts, model, pipeline)) != 1:
        raise InvalidInputError("expected one of --model, --pipeline and --texts, whose texts are read")
    named = split_names([methods])
    check_names(named)
    check_out(folder)
    from vldebias.evaluation.audit_views import frame
    from vldebias.evaluation.auditing import build_task, read_prompts
    from vldebias.evaluation.run import PAGE, run_suite, write_manifest
    from vldebias.evaluation.share_tables import ShareTable
    from vldebias.evaluation.suite import Suite
    from vldebias.evaluation.task import Session
    from vldebias.options import Options
    from vldebias.prompts import load_prompts

    own = load_prompts(prompts)
    table = _calibration(calibrate, judge, own, device)
    beside = None
    if against == "data":
        beside = (table or ShareTable.published(own)).data
        if beside is None:
            raise InvalidInputError("--against data: the calibration has no shares of what the model learned from")
    elif against is not None:
        beside = ShareTable.read(against, own)
    task = build_task(read_prompts(file), prompts, table, beside, named, seed)
    if list_texts:
        typer.echo("\n".join(task.needed()))
        return
    options = Options(
        out=folder, device=device_of(device), texts=texts, model=model, pretrained=pretrained, pipeline=pipeline
    )
    suite = Suite.of_task(
        task,
        title=f"Prompts of {file.name}",
        description="Predicted shares of prompts, from their texts.",
        source="vldebias.audit",
        needs="a model, a pipeline or text embeddings",
        headline=[("audit", "predicted_discrepancy")],
    )
    result = run_suite(suite, options, console=err)
    known = task.calibrated(**task.inputs(Session(options)))
    listed = frame(known.ask(task.asked, own), known.table, beside)
    listed.to_csv(folder / LIST, index=False)
    write_manifest(folder)  # the list is of the run too
    files = {"page": folder / PAGE, "prompts, what to look at first on top": folder / LIST}
    if as_json:
        print_json(result.to_dict() | {"files": {name: str(path) for name, path in files.items()}})
        return
    print_result(result, suite.headline)
    aside(result.provenance[0].description)
    for name, path in files.items():
        aside(f"{name}: {path}")


def _calibration(path: Path | None, judge: str | None, prompts: PromptSet, device: str) -> ShareTable | None:
    """What to calibrate on: a CSV, or a folder of drawn images with a judge; None for what is published."""
    from vldebias.cli.debias import open_judge
    from vldebias.evaluation.drawing import DrawnSet
    from vldebias.evaluation.plan import PLAN
    from vldebias.evaluation.share_tables import ShareTable
    from vldebias.progress import Progress

    if path is None or not path.is_dir():
        if judge is not None:
            raise InvalidInputError("--judge reads a folder of drawn images; give it as --calibrate DIR")
        return None if path is None else ShareTable.read(path, prompts)
    if judge is None:
        raise InvalidInputError(f"--calibrate {path}: add --judge, who reads these images, or give a CSV of judgements")
    plans = [path / PLAN] if (path / PLAN).is_file() else sorted(path.glob(f"images/*/{PLAN}"))
    if len(plans) != 1:
        raise InvalidInputError(
            f"--calibrate {path}: expected the folder of one drawing, with its {PLAN}, got {len(plans)} of them"
        )
    reader = open_judge(judge, None, prompts, device_of(device))
    with Progress.on(err) as shown:
        return ShareTable.judged(DrawnSet.open(plans[0].parent), reader, prompts, shown)
