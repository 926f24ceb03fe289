"""Write tables as HTML for notebooks; cells are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

SHOWN = 20  # rows of a table; the others are counted


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a title and a table of at most 20 rows as HTML; None is an empty cell.

    Args:
        title: a sentence above the table.
        head: names of the columns.
        rows: the cells of each row, of any type.
    """
    listed = list(rows)
    lines = [f"<p>{escape(title)}</p>", "<table>", _row("th", head)]
    lines += [_row("td", row) for row in listed[:SHOWN]]
    lines.append("</table>")
    if len(listed) > SHOWN:
        lines.append(f"<p>{len(listed) - SHOWN} more rows</p>")
    return "\n".join(lines)


def _row(tag: str, cells: Sequence[object]) -> str:
    texts = ("" if cell is None else escape(str(cell)) for cell in cells)
    inside = "".join(f'<{tag} style="text-align: left">{text}</{tag}>' for text in texts)
    return f"<tr>{inside}</tr>"
