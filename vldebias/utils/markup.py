"""Escape untrusted text for notebooks, model cards and terminals."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

SHOWN = 20  # maximum number of rows in a table; additional rows are only counted
# Control characters except line breaks and tabs, and lone surrogates, which UTF-8 cannot encode.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escape control characters, which terminals would interpret, as in JSON.

    Line breaks and tabs are not escaped.

    >>> printable("\x1b[31mred")
    '\\u001b[31mred'
    """
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def code_span(text: str) -> str:
    """Format a string as inline code in Markdown.

    >>> code_span("professions-gender")
    '`professions-gender`'
    """
    line = " ".join(printable(text).split())
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence = "`" * (longest + 1)
    # A space, which Markdown removes, separates leading and trailing backticks from the fence.
    space = " " if longest or not line else ""
    return f"{fence}{space}{line}{space}{fence}"


def html_table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a title and a table of at most 20 rows as HTML, with empty cells for None.

    Args:
        title: a sentence above the table.
        head: the column names.
        rows: each row's cells, of any type.
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
