"""Define `vldebias eval edits`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vldebias.cli.flags import with_flags

from ..captions.flags import evaluate_tables, stated_flags


@with_flags(stated_flags("vldebias-edits", asks="labels images"))
def edits(
    table: Annotated[
        Path,
        typer.Argument(exists=True, metavar="TABLE", help="Edits, with relative paths of images."),
    ],
    **flags: Any,
) -> None:
    """Measure what an image editor changed in people: labels, and the lightness of their skin.

    Prints shares of edits that change a label or make skin lighter, with intervals over people, and
    writes a page with the most lightened and darkened people. Columns are before, after (paths),
    and optionally person, group, instruction, before_label and after_label (or --model),
    before_people and after_people (labels by people, which correct the others), before_points and
    after_points (five points of the face; otherwise the extra "faces" finds them).

    Examples:
      vldebias eval edits edits.csv
      vldebias eval edits edits.csv --column person=photo --column group=race
      vldebias eval edits edits.csv --model ./smolvlm --out qwen-edit
      vldebias eval gate vldebias-edits --max-lighter 0.1
    """
    from .edits import evaluate_edits

    evaluate_tables(evaluate_edits, "edits", [table], flags)
