"""`vldebias quickstart`: the main job on the embedded models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from vldebias.cli.common import Json, err, out, print_json

__all__ = ["quickstart"]


def quickstart(
    as_json: Json = False,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the page, the pictures and the JSON.")] = Path(
        "vldebias-quickstart"
    ),
    images: Annotated[int, typer.Option(min=1, max=100, help="Generated images per profession and seed.")] = 12,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 3,
) -> None:
    """Bias and utility before and after, on the embedded miniature world; offline, a few minutes on two cores.

    Measures worst-group accuracy (birds), MaxSkew of retrieval (portraits) and discrepancy of generated images, with
    intervals, and writes a page with side-by-side pictures of the same seeds.

    [bold]Examples[/bold]

    \b
      vldebias quickstart
      vldebias quickstart --json --out /tmp/page > figures.json
    """
    from vldebias.evaluation.quickstart import run
    from vldebias.evaluation.report import print_table

    result, page = run(out_dir, images=images, seeds=range(seeds), console=err)
    if as_json:
        print_json(result.model_dump())
    else:
        print_table(result, out)
        out.print(f"page: {page}", highlight=False)
