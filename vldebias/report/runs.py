"""List the results of several runs, each with its own first sentence."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from vldebias.errors import InvalidInputError
from vldebias.measure.metric import SHARE, get_metric
from vldebias.report.page import TEMPLATES, short_date, write_page
from vldebias.report.result import Result
from vldebias.report.table import readable
from vldebias.report.text import sentences
from vldebias.utils.files import read_json

GENERATED = "generate.json"  # written by `vldebias generate`
MOST_BYTES = 2**28  # larger files are not searched for results
MOST_MEASURES = 8  # maximum number of measures that are plotted for each run


class Run(NamedTuple):
    """A result in a list.

    Attributes:
        name: its path, relative to the listed folder.
        models: the models, or the prompt of a generated folder.
        sentence: the first sentence of its own page.
        date: the date in ISO 8601 format, or "" if unknown.
        page: its page, or "" if there is none.
        shares: what was measured -> low end, value and high end, and the value as text.
    """

    name: str
    models: str
    sentence: str
    date: str
    page: str
    shares: dict[str, tuple[tuple[float, float, float], str]]


def read_runs(paths: Sequence[Path]) -> tuple[list[Run], dict[str, str]]:
    """Return the runs in files and folders, newest first, and the files that cannot be read.

    Args:
        paths: files of results, or folders that are searched with their subfolders.

    Raises:
        InvalidInputError: If there is no result.
    """
    runs: list[Run] = []
    unreadable: dict[str, str] = {}
    for path in paths:
        for file in sorted(path.rglob("*.json")) if path.is_dir() else [path]:
            name = str(file)
            if path.is_dir():
                name = file.relative_to(path if len(paths) == 1 else path.parent).as_posix()
            try:
                if file.name == GENERATED and not (file.parents[1] / GENERATED).is_file():
                    runs.append(_generated(file, name))
                elif _is_result(file):
                    runs.append(_run(file, name))
            except (InvalidInputError, OSError) as error:
                unreadable[name] = str(error).removeprefix(f"{file}: ")
    if not runs and not unreadable:
        raise InvalidInputError(
            f"{', '.join(map(str, paths))}: contains no results; expected files written by"
            " `vldebias eval`, such as NAME/result.json"
        )
    # The sort is stable, so runs with the same date stay ordered by name.
    return sorted(runs, key=lambda run: run.date, reverse=True), unreadable


def write_runs(runs: Sequence[Run], unreadable: dict[str, str], page: Path) -> Path:
    """Write a page with a row for each run, and plots of the runs that a reader ticks.

    Args:
        runs: the runs.
        unreadable: file -> why it cannot be read.
        page: the HTML file to write.
    """
    shown = []
    for run in runs:
        address = quote(os.path.relpath(run.page, page.parent)) if run.page else ""
        shown.append(run._replace(page=address, date=short_date(run.date)))
    measured = dict.fromkeys(measure for run in runs for measure in run.shares)
    # What only one run measured is on its own page.
    compared = [name for name in measured if sum(name in run.shares for run in runs) > 1]
    values = {"runs": shown, "unreadable": unreadable, "measures": compared}
    return write_page(page, TEMPLATES / "runs.html.jinja", values)


def _is_result(file: Path) -> bool:
    """Return whether a JSON file looks like a result, based on its name and keys."""
    if file.name == "result.json":
        return True
    if file.stat().st_size > MOST_BYTES:
        return False
    content = file.read_bytes()
    return b'"figures"' in content and b'"protocols"' in content


def _generated(file: Path, name: str) -> Run:
    """Return a folder that `vldebias generate` wrote."""
    facts = read_json(file)
    if not isinstance(facts, dict) or not facts.get("sentences"):
        raise InvalidInputError(f"{file}: expected the facts that `vldebias generate` writes")
    first, prompt = str(facts["sentences"][0]), str(facts.get("prompt", ""))
    return Run(_name(file, name), f"“{prompt}”", first, "", _page(file), {})


def _run(file: Path, name: str) -> Run:
    """Return a result with its first sentence and its shares for entire tasks."""
    result = Result.read(file)
    frame = readable(result)
    # A result without a verdict has no sentence.
    texts = [*sentences(result), "; ".join(dict.fromkeys(p.title for p in result.provenance))]
    models = dict.fromkeys(part.model for part in result.provenance)
    shares: dict[str, tuple[tuple[float, float, float], str]] = {}
    for row in frame[(frame.subset == "") & frame.kind.isin(["bias", "utility"])].itertuples():
        if get_metric(row.metric, strict=False).bounds == SHARE and len(shares) < MOST_MEASURES:
            measure = f"{row.task}: {row.measure}, {row.name}"
            shares[measure] = ((row.low, row.value, row.high), row.number)
    named = ", ".join(models)
    return Run(_name(file, name), named, texts[0], result.date or "", _page(file), shares)


def _name(file: Path, name: str) -> str:
    """Return the name of a run: both "sd15/result.json" and "sd15.json" are "sd15"."""
    name = name.removesuffix(GENERATED).removesuffix("result.json").removesuffix("/")
    return name.removesuffix(".json") or file.parent.resolve().name


def _page(file: Path) -> str:
    """Return the page next to a result, or "" if there is none."""
    page = file.with_name("index.html")
    return str(page) if page.is_file() else ""
