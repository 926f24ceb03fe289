"""Write a result's main values as LaTeX tables, and its citation as BibTeX."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vldebias.report.conclusion import conclusions
from vldebias.report.page import day_of, front_groups, front_rows, title_of
from vldebias.report.table import DAGGER, readable
from vldebias.report.text import LABELS
from vldebias.version import __version__

if TYPE_CHECKING:
    from vldebias.report.measurements import Measurements

TITLE = "vldebias: mitigate and measure bias in vision-language models"
_ESCAPES = {character: f"\\{character}" for character in "&%$#_{}"}
_ESCAPES |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPES |= {"λ": r"$\lambda$", "†": r"$^\dagger$"}


def latex(result: Measurements) -> str:
    """Return a booktabs table for each measure, with the main values and their 95% intervals.

    The rows are those of the first table on the result's page. For a result without methods, these
    are all values for entire tasks. Every table has a caption, a label such as
    "tab:quickstart-maxskew-10", and, if needed, a note about the methods that used labels.
    """
    frame = readable(result)
    concluded = conclusions(frame)
    rows_of_measure: dict[str, list[Sequence[str]]] = {}
    head: tuple[str, ...]
    if concluded:
        head = ("task", "method", "before", "after", "change", "cost", "verdict")
        for group in front_groups(front_rows(frame, concluded)):
            rows = rows_of_measure.setdefault(group["measure"], [])
            for row in group["rows"]:
                cells = (group["before"], row.number, row.moved, row.cost, row.verdict)
                rows.append((group["task"], row.name, *cells))
    else:
        head = ("task", "method", "value")
        for row in frame[frame.is_summary].itertuples():
            rows_of_measure.setdefault(row.measure, []).append((row.task, row.name, row.number))
    tables = []
    for measure, rows in rows_of_measure.items():
        label = re.sub(r"\W+", "-", f"{result.name} {measure}".casefold()).strip("-")
        caption = f"{title_of(result)}: {measure}, with 95% intervals."
        tables += [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_escaped(caption)}}}",
            rf"\label{{tab:{label}}}",
            rf"\begin{{tabular}}{{{'l' * len(head)}}}",
            r"\toprule",
            _line(head),
            r"\midrule",
            *map(_line, rows),
            r"\bottomrule",
            r"\end{tabular}",
        ]
        if any(DAGGER in row[1] for row in rows):
            tables.append(rf"\par\footnotesize {_escaped(LABELS)}")
        tables += [r"\end{table}", ""]
    return "\n".join(tables)


def bibtex(result: Measurements) -> str:
    """Return a BibTeX entry for this package, with the result's name and date as its note."""
    note = _escaped(f"Result {result.name}, {day_of(result.date)}")
    version = result.versions.get("vldebias", __version__)
    return (
        f"@software{{vldebias,\n  author = {{{{The vldebias maintainers}}}},\n"
        f"  title = {{{{{TITLE}}}}},\n  version = {{{version}}},\n  year = {{2026}},\n"
        f"  note = {{{note}}},\n}}"
    )


def _line(cells: Sequence[str]) -> str:
    return rf"{' & '.join(map(_escaped, cells))} \\"


def _escaped(text: str) -> str:
    """Escape LaTeX's special characters, and write negative numbers with a minus sign."""
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", escaped)
