"""Define `vldebias eval paper`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.common import (
    check_out,
    err,
    print_grid,
    print_json,
    print_message,
    split_names,
)
from vldebias.cli.flags import Json, flags_of_options, with_flags
from vldebias.errors import InvalidInputError
from vldebias.utils.devices import device_of


@with_flags(flags_of_options("pipeline", "device", "dtype"))
def paper(
    data_root: Annotated[
        Path | None,
        typer.Option(exists=True, help="Folder that contains waterbirds, celeba and fairface."),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Comma-separated parts to measure: waterbirds, celeba, fairface, generation, human,"
                " backgrounds. Default: all."
            )
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Model to measure instead of the paper's: NAME:PRETRAINED for open_clip, a"
                " transformers id, or 'miniature'."
            )
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder; run again to continue.")] = Path(
        "paper"
    ),
    as_json: Json = False,
    **flags: Any,
) -> None:
    """Reproduce the paper's tables, and compare them with the published values on one page.

    Covers Tables 7.1 to 7.8 and A.9 of Chuang's thesis and the backgrounds of its section 7.6.4.
    First prints the requirements of each part and whether its data are available. Then measures
    every available part, even if others fail. Run it again to continue after an interruption. Exits
    with code 1 if a part could not be measured. Waiting for human labels is not a failure.

    For models other than the paper's, the published column is empty.

    The part `generation` follows the paper's setup, with 100 images for each of 100 professions,
    with and without the method, for gender and race. `vldebias eval generation` measures more. The
    part `human` generates images and prints the commands for labelling them. Run it again after
    labelling to measure them.

    Examples:
      vldebias eval paper --data-root DIR --out paper
      vldebias eval paper --data-root DIR --only waterbirds,celeba \\
          --model RN50:openai
      vldebias eval paper --only generation --dtype float16
      vldebias eval paper --only human,backgrounds --dtype float16
    """
    check_out(out)
    from vldebias.utils.options import Options
    from vldebias.utils.progress import Progress

    from .tables import paper as measure
    from .tables import plan, sentences

    runs = plan(data_root, split_names(only), split_names(model), flags.get("pipeline"))
    if not as_json:
        rows = []
        for run in runs:
            rows.append((run.suite.name, run.model, run.state, run.suite.source, run.suite.needs))
        print_grid(("suite", "model", "state", "source", "needs"), rows)
    # Measure the parts whose data is available even if other data is missing.
    if all(run.missing for run in runs):
        raise InvalidInputError(
            "nothing can be measured; pass a --data-root that contains at least one of these data"
            " sets"
        )
    options = Options(out=out, device=device_of(flags.get("device")), dtype=flags.get("dtype"))
    # Print progress to stderr, since stdout must only contain the table of results.
    with Progress(err()) as shown:
        frame = measure(out, runs, options, shown)
    if as_json:
        # JSON does not support NaN.
        print_json(frame.astype(object).where(frame.notna(), None).to_dict("records"))
    else:
        head = ["suite", "data", "model", "metric", "method", "published", "published of"]
        head += ["measured", "difference"]
        cells = frame[head].astype(object).where(frame[head].notna(), "").to_numpy()
        print_grid(head, [list(map(_cell, row)) for row in cells])
        for sentence in sentences(frame):
            print_message(sentence)
        print_message(f"page: {out / 'index.html'}")
    for run in runs:
        if run.missing or run.failure:
            print_message(f"{run.suite.name}, {run.model}: {run.state}", "not measured", "yellow")
        elif run.waiting:
            print_message(
                f"{run.suite.name}, {run.model}: {run.waiting}", "waiting for labels", "yellow"
            )
    if any(run.missing or run.failure for run in runs):
        raise typer.Exit(1)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    return str(value)
