"""Write the table of the error of skin lightness."""

from __future__ import annotations

from eval.tables import read, rows_in, table
from vldebias.measure.rows import NONE, Measurement


def errors() -> str:
    """Write what the measure says about edits of known size."""
    result = read("skin")
    lines = []
    for edit in dict.fromkeys(row.subset for row in result.rows if row.task == "enlarged"):
        rows = rows_in(result, "enlarged", edit)
        share = rows[NONE, "share"]
        left_out = f"{round(share.value * share.n['faces'])} of {share.n['faces']}"
        changes = [_span(rows.get((NONE, f"{kind}_change"))) for kind in ("lightness", "relative")]
        lines.append((edit, left_out, *changes))
    n = result.provenance[0].n
    note = (
        "Change of L\\*: its mean over the faces that are not left out, and the range of the"
        f" central 95% of them. The faces are from {n['faces']} of {n['photographs']} packaged"
        " photographs, enlarged four times. From `eval/results/skin.json`."
    )
    return table(("edit", "left out", "change", "relative"), *lines, note=note)


def _span(row: Measurement | None) -> str:
    if row is None:
        return ""
    low, high = row.interval
    return f"{row.value:+.2f} [{low:+.2f}, {high:+.2f}]"
