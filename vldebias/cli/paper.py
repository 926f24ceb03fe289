"""`vldebias eval paper`: the paper's tables on real models, measured beside published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.common import (
    Device,
    Dtype,
    Json,
    aside,
    check_out,
    check_there,
    device_of,
    err,
    print_grid,
    say,
    split_names,
)
from vldebias.errors import InvalidInputError


def paper_command(
    data_root: Annotated[
        Path | None, typer.Option(help="Folder of the data sets: DIR/waterbirds, DIR/celeba, DIR/fairface.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only waterbirds, celeba, fairface or generation; several with commas.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="In place of the paper's: NAME:PRETRAINED of open_clip, a transformers id, 'miniature'."),
    ] = None,
    pipeline: Annotated[
        str | None, typer.Option(help="diffusers id or folder, or 'miniature'. Default: Stable Diffusion 1.5.")
    ] = None,
    judge: Annotated[str | None, typer.Option(help="Model that reads generated images. Default: ViT-L-14.")] = None,
    images: Annotated[int | None, typer.Option(min=1, help="Images of each profession. Default: 100.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps. Default: 50.")] = None,
    device: Device = "auto",
    dtype: Dtype = None,
    out: Annotated[Path, typer.Option(help="Folder for results; a second call goes on there.")] = Path("paper"),
    estimate: Annotated[bool, typer.Option("--estimate", help="Say what it needs and how long it takes.")] = False,
    as_json: Json = False,
) -> None:
    """Measure Tables 7.2 to 7.7 of the paper and set them beside the published figures, on one page.

    First says what it needs, what of it is there, and how many hours it takes on this machine, from a timed sample.
    Runs what it can; each model is loaded once. A run that was stopped goes on where it was.

    [bold]Examples[/bold]

    \b
      vldebias eval paper --data-root DIR --estimate
      vldebias eval paper --data-root DIR --out paper
      vldebias eval paper --data-root DIR --only waterbirds,celeba --model RN50:openai
      vldebias eval paper --only generation --images 25 --dtype float16
    """
    check_out(out)
    if data_root is not None:
        check_there(data_root, "the folder of the data sets")
    from vldebias.evaluation.paper import PARTS, paper, plan
    from vldebias.options import Options
    from vldebias.progress import Progress

    runs = plan(data_root, split_names(only), split_names(model), pipeline)
    rows = []
    for run in runs:
        for name in run.parts:
            part = PARTS[name]
            needs = f"{part.data}; about {part.gigabytes:g} GB" + (f"; {part.licence}" if part.licence else "")
            rows.append((name, part.table, run.model, run.missing.get(name) or "there", needs))
    if not as_json:
        print_grid(("part", "table", "model", "state", "needs"), rows)
    if not any(run.tasks for run in runs):
        raise InvalidInputError("nothing can be measured: give --data-root with at least one of these data sets")
    options = Options(out=out, device=device_of(device), dtype=dtype, judge=judge, images=images, steps=steps)
    with Progress.on(err) as shown:
        frame = paper(out, runs, options, shown, stop_after_estimate=estimate)
    if as_json:
        typer.echo(json.dumps(json.loads(frame.to_json(orient="records")), indent=1))
        return
    if not estimate:
        head = ("table", "data", "model", "metric", "method", "published", "measured", "difference")
        cells = frame[list(head)].astype(object).where(frame[list(head)].notna(), "")
        print_grid(head, [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in cells.to_numpy()])
        aside(f"\npage: {out / 'index.html'}")
    else:
        seconds = sum(run.seconds or 0 for run in runs)
        say(f"about {seconds / 3600:.2f} hours in all; without --estimate it runs", err)
