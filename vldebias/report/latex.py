"""Write a result's main values as a LaTeX table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vldebias.report.conclusion import conclusions
from vldebias.report.page import front_groups, front_rows
from vldebias.report.table import readable

if TYPE_CHECKING:
    from vldebias.report.measurements import Measurements

_ESCAPES = {character: f"\\{character}" for character in "&%$#_{}"}
_ESCAPES |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPES |= {"λ": r"$\lambda$", "†": r"$^\dagger$"}


def latex(result: Measurements) -> str:
    """Return a booktabs table of a result's main values with their 95% intervals.

    The rows are those of the first table on the result's page. For a result without methods, these
    are all values for entire tasks.
    """
    frame = readable(result)
    concluded = conclusions(frame)
    rows: list[Sequence[str]] = []
    head: tuple[str, ...]
    if concluded:
        head = ("task", "measure", "method", "before", "after", "change", "cost", "verdict")
        for group in front_groups(front_rows(frame, concluded)):
            before = group["before"]
            for row in group["rows"]:
                cells = (before, row.number, row.moved, row.cost, row.verdict)
                rows.append((group["task"], group["measure"], row.name, *cells))
    else:
        head = ("task", "measure", "method", "value")
        shown = frame[frame.is_summary][["task", "measure", "name", "number"]]
        rows += shown.itertuples(index=False)
    lines = [rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\toprule", _line(head), r"\midrule"]
    lines += [_line(row) for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(map(_escaped, cells))} \\"


def _escaped(text: str) -> str:
    """Escape LaTeX's special characters, and write negative numbers with a minus sign."""
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)
