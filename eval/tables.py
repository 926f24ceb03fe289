"""Tables of committed results, as Markdown, and the pages that they stand in.

Whoever measures says beside it what its page shows: `fills` for any text, `shows` for a table of its own result,
`shows_rows` for rows of it as they are. A page has a block's markers, and `python -m eval.readme` writes between them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.metrics import register_metrics
from vldebias.evaluation.report import markdown_table
from vldebias.evaluation.result import Measurement, Result

RESULTS = Path(__file__).parent / "results"
PAGES: dict[str, dict[str, Callable[[], str]]] = {}
"""Page, from the root of the checkout -> block -> what makes its text."""
Cells = list[list[str]]


def fills(page: str, block: str) -> Callable[[Callable[[], str]], Callable[[], str]]:
    """The function makes the text of a block of a page."""

    def keep(make: Callable[[], str]) -> Callable[[], str]:
        PAGES.setdefault(page, {})[block] = make
        return make

    return keep


def shows(page: str, block: str, *, of: str = "", by: str = "") -> Callable[..., Callable[[Result], Cells]]:
    """The function makes the cells of a block's table, the head first, from the result that has the block's name.

    of: another result. by: the module that measures it, where it is not the function's.
    """
    name = of or block

    def keep(cells: Callable[[Result], Cells]) -> Callable[[Result], Cells]:
        def made() -> str:
            if not measured(name):
                return missing(f"python -m {by or cells.__module__}")
            return table(*cells(read(name)), note=f"From `eval/results/{name}.json`.")

        fills(page, block)(made)
        return cells

    return keep


def shows_rows(page: str, name: str, measures: Sequence[tuple[str, ...]]) -> None:
    """A block of rows as a report writes them: (task, metric) of wholes, (task, metric, subset) of parts."""

    @fills(page, name)
    def made() -> str:
        result = read(name)
        commit = f", commit {result.commit}" if result.commit else ""
        note = f"95 % bootstrap intervals in brackets; from `eval/results/{name}.json`{commit}."
        register_metrics()
        return f"\n{markdown_table(result, measures)}\n\n{note}\n\n"


def measured(name: str) -> bool:
    """Whether a result is committed."""
    return (RESULTS / f"{name}.json").is_file()


def missing(command: str) -> str:
    return f"Not measured yet: `{command}` makes this.\n"


def read(name: str) -> Result:
    return Result.read(RESULTS / f"{name}.json")


def table(*rows: Sequence[str], note: str = "") -> str:
    """The first row is the head; a note comes below."""
    head, *rest = rows
    lines = "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rest])
    return f"\n{lines}\n\n" + (f"{note}\n\n" if note else "")


def paragraph(*parts: str) -> str:
    return textwrap.fill(" ".join(parts), 130, break_long_words=False, break_on_hyphens=False) + "\n"


def span(row: Measurement | None, form: str = ".3f") -> str:
    """Value and interval; empty where there is no such row."""
    return "" if row is None else f"{row.value:{form}} [{row.interval[0]:{form}}, {row.interval[1]:{form}}]"


def moved(row: Measurement) -> str:
    """Change and its interval; empty where there is none."""
    return "" if row.change is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row.change)


def half(row: Measurement | None) -> str:
    """Value and half of its interval, starred where it differs from none beyond that; empty where there is none."""
    if row is None:
        return ""
    beyond = row.change is not None and not row.change[1] <= 0 <= row.change[2]
    return f"{row.value:.3f} ± {row.value - row.interval[0]:.3f}{'*' if beyond else ''}"


def rows_in(result: Result, task: str, subset: str = "") -> dict[tuple[str, str], Measurement]:
    """(method, metric) -> the row of one task."""
    return {(row.method, row.metric): row for row in result.rows if (row.task, row.subset) == (task, subset)}
