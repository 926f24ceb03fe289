"""Tables of committed results, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vldebias.evaluation.result import Measurement, Result

RESULTS = Path(__file__).parent / "results"


def read(name: str) -> Result:
    return Result.read(RESULTS / f"{name}.json")


def table(*rows: Sequence[str], note: str = "") -> str:
    """The first row is the head; a note comes below."""
    head, *rest = rows
    lines = "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest])
    return f"\n{lines}\n\n" + (f"{note}\n\n" if note else "")


def span(row: Measurement | None, form: str = ".3f") -> str:
    """Value and interval; empty where there is no such row."""
    return "" if row is None else f"{row.value:{form}} [{row.interval[0]:{form}}, {row.interval[1]:{form}}]"


def moved(row: Measurement) -> str:
    """Change and its interval; empty where there is none."""
    return "" if row.change is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row.change)


def rows_in(result: Result, task: str, subset: str = "") -> dict[tuple[str, str], Measurement]:
    """(method, metric) -> the row of one task."""
    return {(row.method, row.metric): row for row in result.rows if (row.task, row.subset) == (task, subset)}
