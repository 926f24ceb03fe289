"""`vldebias audit`: predict what a file of prompts will show, before any image is generated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.common import HOST_FLAGS, Json, SetName, aside, check_out, device_of, err, print_json, print_result
from vldebias.cli.flags import with_flags
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from vldebias.evaluation.auditing import ShareTable
    from vldebias.evaluation.judges import Judge
    from vldebias.prompts import PromptSet

LIST = "prompts.csv"


@with_flags(HOST_FLAGS[:4])
def audit_command(
    file: Annotated[Path, typer.Argument(help="Prompts, one a line.", metavar="FILE")],
    prompts: SetName,
    texts: Annotated[Path | None, typer.Option(help="Text embeddings (.npz), see --list-texts.")] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            help="Judged images of your own pipeline: a CSV (prompt, value: a row per image; or prompt and a column of "
            "counts per value), or a folder of a generation suite, with --judge. Default: the published counts of "
            "Stable Diffusion 1.5 (gender)."
        ),
    ] = None,
    judge: Annotated[
        str | None, typer.Option(help="Model that reads a folder of generated images, named as --model.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Folder for the page and the list.")] = Path("vldebias-audit"),
    list_texts: Annotated[
        bool, typer.Option("--list-texts", help="Print every text that --texts needs, one a line, and stop.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of resamples and splits.")] = 0,
    as_json: Json = False,
    **named: Any,
) -> None:
    """Predict each prompt's share before any image is generated, with an interval, from its text alone.

    Writes a page, result.json and prompts.csv, with the prompts to look at first on top. A second run with the same
    settings reuses what the first has measured.

    [bold]Examples[/bold]

    \b
      vldebias audit prompts.txt --prompts gender --pipeline stable-diffusion-v1-5/stable-diffusion-v1-5
      vldebias audit prompts.txt --prompts gender --model ViT-B-32 --pretrained openai
      vldebias audit prompts.txt --prompts gender --list-texts > texts.txt   # embed them elsewhere, then --texts
      vldebias audit prompts.txt --prompts race --pipeline DIR --calibrate judged.csv
    """
    device = named.pop("device")
    if not list_texts and (texts is not None) + ("model" in named) + ("pipeline" in named) != 1:
        raise InvalidInputError("expected one of --model, --pipeline and --texts, whose texts are read")
    check_out(folder)
    from vldebias.evaluation.auditing import build_task, read_prompts
    from vldebias.evaluation.run import PAGE, run_suite, write_manifest
    from vldebias.evaluation.task import Session, Suite
    from vldebias.options import Options
    from vldebias.prompts import load_prompts

    own = load_prompts(prompts)
    table = _calibration(calibrate, judge, own, device)
    task = build_task(read_prompts(file), prompts, table, seed)
    if list_texts:
        typer.echo("\n".join(task.needed()))
        return
    options = Options(out=folder, device=device_of(device), texts=texts, **named)
    suite = Suite.of_task(
        task,
        title=f"Prompts of {file.name}",
        description="Predicted shares of prompts, from their texts.",
        source="vldebias.audit",
        needs="a model, a pipeline or text embeddings",
        headline=[("audit", "predicted_share")],
    )
    result = run_suite(suite, options, console=err)
    known = task.calibrated(**task.inputs(Session(options)))
    known.ask(task.asked, own).to_csv(folder / LIST, index=False)
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
    """Return the table to calibrate on: a CSV's, or a folder's read by a judge; None for the published one."""
    from vldebias.evaluation.auditing import ShareTable
    from vldebias.evaluation.drawing import PLAN, DrawnSet
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


def open_judge(name: str, pretrained: str | None, prompts: PromptSet, device: str) -> Judge:
    """Return the miniature's classifier, or a zero-shot judge that asks in the words of the prompt set."""
    from vldebias.evaluation.judges import ClipJudge, MiniatureJudge, Question
    from vldebias.loading import load_host

    if name == "miniature":
        return MiniatureJudge()
    model = load_host(name, pretrained, device=device)
    questions = {prompts.name: Question.about(prompts)}
    return ClipJudge(model.host, model.preprocess, model.tokenizer, questions=questions, name=model.name)
