"""The tables of the first hours and of a cold start, from `tests.robust.first_hours` and `tests.robust.cold_start`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from eval.experiments.records import rows_of
from eval.tables import RESULTS, read, table
from vldebias.evaluation.result import Result

USERS = {
    "ships": "ships Stable Diffusion",
    "numbers": "needs numbers that hold",
    "audits": "must show evidence",
    "fine_tunes": "fine-tunes on scraped captions",
    "looks": "looks for two minutes",
}
RUNS = {name: f"python -m tests.robust.{name}" for name in ("first_hours", "cold_start")}


def rows(name: str, task: str) -> list[dict[str, Any]]:
    """Those of one task of a result."""
    result = read(name)
    of = [one for one in result.provenance if one.task == task]
    own = Result(
        name=name, rows=[row for row in result.rows if row.task == task], provenance=of, versions={}, commit=None,
        seconds=None,
    )  # fmt: skip
    return rows_of(own)


def _made(name: str, cells: Callable[[], list[list[str]]]) -> str:
    if not (RESULTS / f"{name}.json").is_file() or len(cells()) < 2:
        return f"Not measured yet: `{RUNS[name]}` makes this table.\n"
    told = read(name).provenance[0].settings
    busy = f"on {told['cores']} cores with {told['load']:g} processes that wanted one"
    return table(*cells(), note=f"From `eval/results/{name}.json`, {busy}.")


def _source(row: dict[str, Any], up: str) -> str:
    """A command, or the page whose block it is."""
    page = row["source"].partition(".md: ")[0] + ".md" if ".md: " in row["source"] else ""
    return f"[{row['method']}]({up}{page})" if page else f"`{row['source']}`"


def _line(row: dict[str, Any]) -> str:
    """The first line on the screen, as code; without what would end a cell."""
    line = str(row.get("line", "")).replace("|", "").replace("`", "'")
    return f"`{line}`" if line else ""


def overview() -> str:
    """Every step of every user."""

    def cells() -> list[list[str]]:
        head = ["you", "try", "first output", "all"]
        own = rows("first_hours", "hours")
        return [
            head,
            *([row["user"], _source(row, ""), f"{row['first']:.1f} s", f"{row['done']:.1f} s"] for row in own),
        ]

    return _made("first_hours", cells)


def hour(user: str) -> str:
    """The steps of one user with the first line of each, then the pages that were looked at."""

    def cells() -> list[list[str]]:
        head = ["does", "first output", "all", "of a processor", "first line on the screen"]
        found = []
        for row in rows("first_hours", "hours"):
            if row["user"] == USERS[user]:
                seconds = [f"{row[name]:.1f} s" if name in row else "" for name in ("first", "done", "processor")]
                found.append([_source(row, "../"), *seconds, _line(row)])
        return [head, *found]

    there = (RESULTS / "first_hours.json").is_file()
    if not there or USERS[user] not in {row["user"] for row in rows("first_hours", "hours")}:
        return f"Not measured yet: `{RUNS['first_hours']}` makes this table.\n"
    pages = [row for row in rows("first_hours", "hours") if row["user"] == USERS[user] and row.get("picture")]
    seen = [
        f"\n![{row['method']}: first screens, 1280 and 390 pixels wide, light and dark]"
        f"(../../eval/results/hour-{row['picture']}.png)\n\n"
        f"{row['method'].capitalize()}. axe-core finds {row['serious']:.0f} serious faults in the four, and "
        f"{'nobody has to scroll sideways' if row['sideways'] <= 0 else 'one scrolls sideways'}.\n"
        for row in pages
    ]
    return _made("first_hours", cells) + "".join(seen)


def asked() -> str:
    """Every command: its help, and a call."""

    def cells() -> list[list[str]]:
        calls = {row["method"]: row for row in rows("first_hours", "commands")}
        lines = [["command", "help", "first output", "all", "first line on the screen"]]
        for row in rows("first_hours", "help"):
            name = row["method"]
            own = [one for one in calls if one == name or one.startswith(f"{name} ")]
            if own:
                call = calls[own[0]]
                told = [f"{call['first']:.1f} s", f"{call['done']:.1f} s", _line(call)]
            else:
                told = ["", "", ""]
            lines.append([f"`{name}`", f"{row['done']:.1f} s", *told])
        return lines

    return _made("first_hours", cells)


def cold() -> str:
    """What a clean clone takes, a line for each of its steps."""

    def cells() -> list[list[str]]:
        lines = [["step", "minutes", "MB on the disk afterwards"]]
        for row in rows("cold_start", "cold_start"):
            lines.append([f"`{row['method']}`", f"{row['minutes']:.1f}", f"{row['MB']:,.0f}"])
        return lines

    return _made("cold_start", cells)
