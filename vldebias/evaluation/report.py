"""Render a result: a table in the terminal, a page in one file, Markdown for a README."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from jinja2 import Environment, PackageLoader
from rich.console import Console
from rich.table import Table

from vldebias.evaluation.result import Figure, Result

__all__ = ["markdown_table", "print_table", "write_page"]

NAMES = {
    "worst_group": "worst-group accuracy",
    "average": "average accuracy",
    "max_skew": "MaxSkew of retrieval",
    "precision": "profession precision",
    "query_cosine": "query cosine",
    "discrepancy": "discrepancy of generated images",
    "recognised": "profession recognised",
    "stated_right": "stated gender right",
    "stated_recognised": "profession recognised, gender stated",
    "unknown": "gender not readable",
}


def _number(figure: Figure) -> str:
    return f"{figure.value:.3f} [{figure.interval[0]:.3f}, {figure.interval[1]:.3f}]"


def _change(figure: Figure) -> str:
    if figure.change is None:
        return ""
    value, low, high = figure.change
    return f"{value:+.3f} [{low:+.3f}, {high:+.3f}]"


def _verdict(figure: Figure) -> str:
    """better or worse where the interval of the paired difference excludes zero, else unclear; same if none moved."""
    if figure.change is None:
        return ""
    _, low, high = figure.change
    if low <= 0 <= high:
        return "same" if low == high else "unclear"
    return "better" if (low > 0) == (figure.better == "higher") else "worse"


def rows(result: Result) -> list[tuple[str, str, str, str, str, str]]:
    """(task, measure, method, value with interval, change with interval, verdict) for every figure."""
    return [
        (
            f.task,
            f"{NAMES.get(f.metric, f.metric)} ({f.better} is better)",
            f.method,
            _number(f),
            _change(f),
            _verdict(f),
        )
        for f in result.figures
    ]


HEAD = ("task", "measure", "method", "value [95 %]", "change from none [95 %]", "")


def print_table(result: Result, console: Console) -> None:
    """The figures in the terminal: one small table per measure, narrow enough for 80 columns."""
    console.print(f"[bold]{result.name}[/bold]: value, and change from none, with 95 % intervals", highlight=False)
    for (task, measure), block in groupby(rows(result), key=itemgetter(0, 1)):
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for width in (21, 20, 23):
            table.add_column(width=width)
        for row in block:
            table.add_row(*row[2:], style={"better": "green", "worse": "red"}.get(row[5]))
        console.print(f"\n[bold]{task}: {measure}[/bold]", highlight=False)
        console.print(table)


def markdown_table(result: Result, figures: Sequence[tuple[str, str]]) -> str:
    """The figures of the given (task, metric) pairs as a Markdown table."""
    wanted = [r for r, f in zip(rows(result), result.figures, strict=True) if (f.task, f.metric) in figures]
    lines = ["| " + " | ".join(HEAD[:5]) + " |", "|" + " --- |" * 5]
    return "\n".join(lines + ["| " + " | ".join(row[:5]) + " |" for row in wanted])


def write_page(result: Result, pictures: Sequence[tuple[str, Path]], path: Path) -> Path:
    """One HTML file with the figures, the protocol and the (caption, PNG) pictures inside; no network needed."""
    environment = Environment(loader=PackageLoader("vldebias.evaluation", "."), autoescape=True)
    embedded = [(caption, base64.b64encode(png.read_bytes()).decode()) for caption, png in pictures]
    page = environment.get_template("report.html.jinja").render(
        result=result, head=HEAD, rows=rows(result), pictures=embedded, data=result.model_dump_json(indent=1)
    )
    path.write_text(page, encoding="utf-8")
    return path
