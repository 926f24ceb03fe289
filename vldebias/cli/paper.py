"""`vldebias eval paper`: the paper's tables on real models, compared with the published figures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import check_out, device_of, err, print_grid, print_json, say, split_names
from vldebias.cli.flags import Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError


@with_flags(flags_of_options("pipeline", "device", "dtype"))
def paper_command(
    data_root: Annotated[
        Path | None, typer.Option(exists=True, help="Folder of the data: DIR/waterbirds, DIR/celeba, DIR/fairface.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only waterbirds, celeba, fairface or generation; several with commas.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="In place of the paper's: NAME:PRETRAINED of open_clip, a transformers id, 'miniature'."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results; a second call continues there.")] = Path("paper"),
    estimate: Annotated[bool, typer.Option("--estimate", help="Print what it needs and how long it takes.")] = False,
    as_json: Json = False,
    **named: Any,
) -> None:
    """Measure Tables 7.2 to 7.7 of the paper and compare them with the published figures, on one page.

    First prints what each part needs, whether it is there, and how many hours it takes on this machine, from a timed
    sample. Runs what it can and loads each model once. A run that was stopped continues where it was.

    [bold]Examples[/bold]

    \b
      vldebias eval paper --data-root DIR --estimate
      vldebias eval paper --data-root DIR --out paper
      vldebias eval paper --data-root DIR --only waterbirds,celeba --model RN50:openai
      vldebias eval paper --only generation --dtype float16
    """
    check_out(out)
    from vldebias.evaluation.paper import PARTS, paper, plan
    from vldebias.options import Options
    from vldebias.progress import Progress

    runs = plan(data_root, split_names(only), split_names(model), named.pop("pipeline", None))
    rows = []
    for run in runs:
        for name in run.parts:
            part = PARTS[name]
            needs = f"{part.data}; about {part.gigabytes:g} GB" + (f"; {part.licence}" if part.licence else "")
            rows.append((name, part.table, run.model, run.missing.get(name) or "there", needs))
    if not as_json:
        print_grid(("part", "table", "model", "state", "needs"), rows)
    if not any(run.tasks for run in runs):
        raise InvalidInputError("nothing can be measured; give --data-root with at least one of these data sets")
    options = Options(out=out, **named | {"device": device_of(named.get("device", "auto"))})
    with Progress.on(err) as shown:
        frame = paper(out, runs, options, shown, stop_after_estimate=estimate)
    if as_json:
        print_json(frame.astype(object).where(frame.notna(), None).to_dict("records"))
    elif estimate:
        say(f"about {sum(run.seconds or 0 for run in runs) / 3600:.2f} hours in all; without --estimate it runs")
    else:
        head = ["table", "data", "model", "metric", "method", "published", "measured", "difference"]
        shown_rows = frame[head].astype(object).where(frame[head].notna(), "").to_numpy()
        print_grid(head, [[f"{c:.3f}" if isinstance(c, float) else str(c) for c in row] for row in shown_rows])
        say(f"page: {out / 'index.html'}")
