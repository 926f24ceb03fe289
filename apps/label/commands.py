"""`vldebias label`: label images by hand, on a page."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.flags import with_flags
from vldebias.errors import missing

from ..serving import ADDRESS_FLAGS, credentials


@with_flags(ADDRESS_FLAGS)
def label_command(
    folder: Annotated[
        Path,
        typer.Argument(
            exists=True,
            metavar="FOLDER",
            help="Folder of images, or output folder of `vldebias eval generation`.",
            show_default=False,
        ),
    ],
    attribute: Annotated[
        list[str] | None,
        typer.Option(help="Attribute to ask about, such as gender; repeatable."),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Comma-separated values of the attribute, or a prompt set (its classes, for the"
                " attribute class); once per attribute."
            )
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--out", help="File. Default: FOLDER/answers.jsonl, which `debias` reads."),
    ] = None,
    annotator: Annotated[
        list[str] | None,
        typer.Option(help="Allowed annotator; repeatable. Default: anyone."),
    ] = None,
    questions: Annotated[
        int,
        typer.Option(min=0, help="Maximum questions per annotator; 0 asks about every image."),
    ] = 200,
    sample: Annotated[
        str,
        typer.Option(
            help=(
                "judge: uncertainty sampling with inverse-probability weights, if a judge has"
                " labelled the images; turn: cycle through the prompts."
            )
        ),
    ] = "judge",
    **flags: Any,
) -> None:
    """Label images by hand, one at a time, blinded, in a different order for each annotator.

    Use the keys 1 to 9 to answer and the arrow keys to move between images. Every answer is saved
    immediately, so annotators can take a break and continue later. The last page shows the command
    that evaluates the answers.

    Examples:
      vldebias label sd15/images/gender --attribute gender
      # a larger sample that includes the first:
      vldebias label sd15/images/gender --attribute gender --questions 400
      vldebias label sd15/images/race --attribute race --annotator ada \\
          --annotator ben
      vldebias label my-images --attribute glasses --choices with,without
      # 50 images for `vldebias debias waterbirds --reference my-birds`:
      vldebias label my-birds --attribute class --choices waterbirds --questions 50
    """
    credentials(public=flags["public"])  # report missing credentials early
    if find_spec("gradio") is None:  # importing it takes seconds, so do that last
        raise missing("gradio")
    from .session import open_study

    study = open_study(
        folder,
        attribute or [],
        choices or [],
        file=file,
        annotators=annotator or [],
        most=questions or None,
        sample=sample,
    )
    from .page import serve_study

    serve_study(study, port=flags.get("port"), public=flags["public"])
