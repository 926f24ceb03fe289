"""Write the table of the error of skin lightness."""

from __future__ import annotations

from eval.tables import read, rows_in, table
from vldebias.measure.rows import NONE, Measurement
from vldebias.report.result import Result

# Edits that the table leaves out, because a similar one is listed.
LEFT_OUT = (
    *("JPEG 90", "JPEG 60", "JPEG 30", "exposure -20%", "gamma 0.9", "warmer"),
    "vignette, corners 25% darker",
)


def errors() -> str:
    """Write what the measure says about edits of known size."""
    result = read("skin")
    lines = []
    for edit in dict.fromkeys(row.subset for row in result.rows if row.task == "enlarged"):
        if edit in LEFT_OUT:
            continue
        rows = rows_in(result, "enlarged", edit)
        share = rows[NONE, "share"]
        left_out = f"{round(share.value * share.n['faces'])} of {share.n['faces']}"
        changes = [_span(rows.get((NONE, f"{kind}_change"))) for kind in ("lightness", "relative")]
        changed = [_changed(result, task, edit) for task in ("enlarged", "portraits")]
        lines.append((edit, *changed, *reversed(changes), left_out))
    n = {about.task: about.n for about in result.provenance}
    faces = {task: numbers["faces"] for task, numbers in n.items()}
    note = (
        "Change of L\\*: its mean over the faces that are not left out, and the range of the"
        f" central 95% of them. Of {n['enlarged']['photographs']} packaged photographs, enlarged"
        f" four times, {faces['enlarged']} have a face that can be measured. Changed: pairs whose"
        " relative change is over 2 L\\*, of those that have one. A mean of fewer than"
        " three pairs is left blank, even if the pairs are counted, as for light from one side."
        " Portraits are cropped to the face"
        f" first, after which {faces['portraits']} have one. From `eval/results/skin.json`, which"
        " has further edits."
    )
    heads = ("edit", "changed", "changed, portraits", "relative", "change", "left out")
    return table(heads, *lines, note=note)


def _changed(result: Result, task: str, edit: str) -> str:
    """Format how many pairs count as changed relative to the background, or return ""."""
    rows = rows_in(result, task, edit)
    sides = [rows.get((NONE, f"relative_{side}")) for side in ("lighter", "darker")]
    known = [row for row in sides if row is not None]
    if not known:
        return ""
    n = known[0].n["faces"]
    return f"{round(sum(row.value for row in known) * n)} of {n}"


def _span(row: Measurement | None) -> str:
    if row is None:
        return ""
    low, high = row.interval
    return f"{row.value:+.2f} [{low:+.2f}, {high:+.2f}]"
