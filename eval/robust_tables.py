"""The tables of what `tests.robust` measures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from eval.experiments.records import rows_of
from eval.tables import Cells, fills, measured, missing, read, shows, table
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


def _made(name: str, cells: Callable[[], Cells]) -> str:
    if not measured(name) or len(cells()) < 2:
        return missing(RUNS[name])
    told = read(name).provenance[0].settings
    cores = f"{told['cores']} core{'s' * (told['cores'] != 1)}"
    busy = f"on {cores}, wanted by {told['load']:g} processes"
    return table(*cells(), note=f"From `eval/results/{name}.json`, {busy}.")


def _source(row: dict[str, Any], up: str) -> str:
    """A command, or the page whose block it is."""
    page = row["source"].partition(".md: ")[0] + ".md" if ".md: " in row["source"] else ""
    return f"[{row['method']}]({up}{page})" if page else f"`{row['source']}`"


def _line(row: dict[str, Any]) -> str:
    """The first line on the screen, as code, as far as its bar; without what would end a cell."""
    line = re.split("[━╸╺]", str(row.get("line", "")))[0].strip().replace("|", "").replace("`", "'")
    return f"`{line}`" if line else ""


@fills("docs/index.md", "first_hours")
def overview() -> str:
    """Every step of every user."""

    def cells() -> Cells:
        head = ["you", "try", "first output", "all"]
        own = rows("first_hours", "hours")
        return [
            head,
            *([row["user"], _source(row, ""), f"{row['first']:.1f} s", f"{row['done']:.1f} s"] for row in own),
        ]

    return _made("first_hours", cells)


def hour(user: str) -> str:
    """The steps of one user with the first line of each, then the pages that were looked at."""

    def cells() -> Cells:
        head = ["does", "first output", "all", "of a processor", "first line on the screen"]
        found = []
        for row in rows("first_hours", "hours"):
            if row["user"] == USERS[user]:
                seconds = [f"{row[name]:.1f} s" if name in row else "" for name in ("first", "done", "processor")]
                found.append([_source(row, "../"), *seconds, _line(row)])
        return [head, *found]

    if not measured("first_hours") or USERS[user] not in {row["user"] for row in rows("first_hours", "hours")}:
        return missing(RUNS["first_hours"])
    pages = [row for row in rows("first_hours", "hours") if row["user"] == USERS[user] and row.get("picture")]
    seen = [
        f"\n![{row['method']}: first screens, 1280 and 390 pixels wide, light and dark]"
        f"(../../eval/results/hour-{row['picture']}.png)\n\n"
        f"{row['method'].capitalize()}. axe-core finds {row['serious']:.0f} serious faults in the four, and "
        f"{'nobody has to scroll sideways' if row['sideways'] <= 0 else 'one scrolls sideways'}.\n"
        for row in pages
    ]
    return _made("first_hours", cells) + "".join(seen)


for _user in USERS:
    fills("docs/explanation/first-hours.md", f"hour_{_user}")(partial(hour, _user))


@fills("docs/explanation/every-command.md", "commands")
def asked() -> str:
    """Every command: its help, and a call."""

    def cells() -> Cells:
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


@fills("docs/explanation/every-command.md", "cold_start")
def cold() -> str:
    """What a clean clone takes, a line for each of its steps."""

    def cells() -> Cells:
        lines = [["step", "minutes", "MB on the disk afterwards"]]
        for row in rows("cold_start", "cold_start"):
            lines.append([f"`{row['method']}`", f"{row['minutes']:.1f}", f"{row['MB']:,.0f}"])
        return lines

    return _made("cold_start", cells)


def counted(what: str, keys: Sequence[str], result: Result) -> Cells:
    """Counts by method, and of all."""
    rows = rows_of(result)
    rows.append({"method": "all", **{key: sum(row.get(key, 0) for row in rows) for key in keys}})
    return [[what, *keys], *([row["method"], *(f"{row.get(key, 0):,.0f}" for key in keys)] for row in rows)]


@shows("docs/fine-tuning/running.md", "killed", by="tests.robust.kills")
def kills(result: Result) -> Cells:
    return counted("work", ("kills", "runs", "lost", "other"), result)


@shows("eval/README.md", "attack", by="tests.robust.attack")
def attacks(result: Result) -> Cells:
    return counted("what", ("tries", "refused", "same", "failures"), result)


@shows("eval/README.md", "mutants", by="tests.robust.mutants")
def mutated(result: Result) -> Cells:
    every, parts = result.provenance[0].settings["mutants"], dict[str, list[Any]]()
    for row in every:
        parts.setdefault(row["file"].removeprefix("vldebias/").partition("/")[0].removesuffix(".py"), []).append(row)
    parts |= {"those with a name": [row for row in every if "named" in row], "all": every}
    lines = [["part", "mutants", "noticed", "change nothing", "survived"]]
    for part, rows in parts.items():
        left = [row for row in rows if row["verdict"] == "survived"]
        nothing = sum("why" in row for row in left)
        lines.append([part, *map(str, (len(rows), len(rows) - len(left), nothing, len(left) - nothing))])
    return lines


@shows("eval/README.md", "determinism", by="tests.robust.determinism")
def repeated(result: Result) -> Cells:
    lines = [["work", "what", "threads", "processes", "batch", "values that differ", "largest difference"]]
    base = result.provenance[0].settings["base"]
    for row in rows_of(result):
        changed = [f"**{row[key]}**" if row[key] != base[key] else str(row[key]) for key in base]
        differ, by = "none", "0"
        if not row["identical"]:
            differ = f"{row['differ']:,.0f} of {row['values']:,.0f}"
            by = f"{row['largest_difference']:.1e} (values up to {row['largest_value']:.3g})"
        lines.append([row["method"], row["what"], *changed, differ, by])
    return lines


@shows("eval/README.md", "soak", by="tests.robust.soak")
def soaked(result: Result) -> Cells:
    head = ["server", "clients", "minutes", "requests", "errors", "MiB at a third", "MiB at the end", "MiB a minute"]
    lines = [head]
    for row in rows_of(result):
        memory = [f"{row[key]:,.0f}" for key in ("mib_at_a_third", "mib_at_the_end")]
        counts = [f"{row['clients']:.0f}", f"{row['minutes']:.0f}", f"{row['requests']:,.0f}"]
        counts.append(str(len(row.get("errors", ()))))
        lines.append([f"`vldebias {row['method']}`", *counts, *memory, f"{row['mib_per_minute']:.2f}"])
    return lines
