"""Write the table of the error of skin lightness."""

from __future__ import annotations

import json
from typing import Any

from eval.tables import RESULTS, table


def errors() -> str:
    """Write what the measure says about edits of known size."""
    result = json.loads((RESULTS / "skin.json").read_text(encoding="utf-8"))["enlarged"]
    lines = []
    for name, row in result["edits"].items():
        counts = f"{row['doubtful']} of {row['faces']}"
        lines.append((name, counts, _span(row["change"]), _span(row["relative"])))
    note = (
        f"Change of L\\*: mean and central 95% of faces that are not left out, in {result['faces']}"
        f" of {result['photographs']} packaged photographs, enlarged four times. From"
        " `eval/results/skin.json`."
    )
    return table(("edit", "left out", "change", "relative"), *lines, note=note)


def _span(facts: dict[str, Any]) -> str:
    if facts["n"] < 3:
        return ""
    low, high = facts["central 95%"]
    return f"{facts['mean']:+.2f} [{low:+.2f}, {high:+.2f}]"
