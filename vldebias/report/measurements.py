"""Store the measurements of a run: values with intervals, paired changes and provenance.

Each task fills a `TaskResult` row by row, and a run combines these. Tables, plots and pages take
`Measurements`; `vldebias.report.result.Result` adds methods that show and save them.
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field

from vldebias.errors import need
from vldebias.measure.rows import COLUMNS, NUMBERS, Measurement, TaskProvenance, TaskResult
from vldebias.utils.files import commit, spreadsheet_csv, versions, write_atomically
from vldebias.utils.trackers import tracker_name

if TYPE_CHECKING:
    import pandas as pd

# Trackers allow 250 characters, so this leaves room for suffixes such as "/high".
_LONGEST_NAME = 230


class Measurements(BaseModel, extra="forbid", populate_by_name=True):
    """Measurements from one run, with their provenance, as `vldebias.report.result.Result`."""

    name: str
    rows: list[Measurement] = Field(alias="figures")
    provenance: list[TaskProvenance] = Field(alias="protocols")
    versions: dict[str, str]
    commit: str | None
    seconds: float | None
    date: str | None = None
    command: str | None = None
    platform: str | None = None

    @classmethod
    def from_tasks(cls, name: str, parts: Iterable[TaskResult], *, seconds: float | None) -> Self:
        """Combine task results, and record the date, command, platform, versions and commit.

        Args:
            name: name of the suite or task.
            parts: the task results.
            seconds: duration in seconds, or None if the run was resumed.
        """
        task_results = list(parts)
        return cls(
            name=name,
            seconds=seconds,
            figures=[row for part in task_results for row in part.rows],
            protocols=[part.provenance for part in task_results],
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=command_line(),
            platform=f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
            versions=versions(),
            commit=commit(),
        )

    def row(
        self, task: str, metric: str, method: str, *, subset: str = "", lam: float | None = None
    ) -> Measurement:
        """Look up a row by task, metric, method and subset.

        Args:
            task: task name.
            metric: metric name.
            method: method name, or "none" for the model without a method.
            subset: part of the task, such as a group or a query, or "" for the entire task.
            lam: the method's lambda. If None, the first matching row is returned.

        Raises:
            KeyError: If there is no such row. The message lists the closest matches.
        """
        paths = []
        for row in self.rows:
            names = (row.task, row.metric, row.method, row.subset)
            if names == (task, metric, method, subset) and lam in (None, row.lam):
                return row
            path = "/".join(filter(None, names))
            # If a lambda was requested, include it, since a row may differ only in its lambda.
            paths.append(path if lam is None else f"{path}, lam={row.lam}")
        path = "/".join(filter(None, (task, metric, method, subset)))
        if lam is not None:
            path += f", lam={lam}"
        closest = difflib.get_close_matches(path, dict.fromkeys(paths), 8, 0)
        raise KeyError(f"no row {path}; the closest matches are {closest}")

    def to_pandas(self) -> pd.DataFrame:
        """Convert the rows to a data frame with the columns `COLUMNS`.

        `n` is the number of units that were resampled, `counts` contains all sample sizes as JSON,
        and `change` is the paired difference from the method "none", or NaN if there is none.
        """
        rows = []
        for row in self.rows:
            columns = row.model_dump()
            change = row.change or (None, None, None)
            numbers = (row.value, *row.interval, *change)
            columns |= dict(zip(NUMBERS, numbers, strict=False))
            # The first unit in `n` is the one that was resampled.
            columns["n"] = next(iter(row.n.values()), 0)
            columns["counts"] = json.dumps(row.n, ensure_ascii=False)
            rows.append(columns)
        frame = need("pandas").DataFrame(rows, columns=list(COLUMNS))
        types = dict.fromkeys(NUMBERS, "float64") | {"n": "int64", "uses_labels": "bool"}
        return frame.astype(types)

    def to_csv(self, path: str | Path) -> Path:
        """Write the rows as CSV in full precision, escaping strings that look like formulas."""
        return write_atomically(Path(path), spreadsheet_csv(self.to_pandas()))

    def to_metrics(self) -> dict[str, float]:
        """Return a flat dict of metrics for `mlflow.log_metrics`, `wandb.log` or TensorBoard.

        Names have the form task/metric/method, followed by the subset and lambda, if any. NAME/low
        and NAME/high are the bounds of the 95% interval. Characters that trackers reject are
        replaced, and any resulting duplicates are numbered. Non-finite values are omitted.

        >>> mlflow.log_metrics(result.to_metrics())  # doctest: +SKIP
        """
        metrics: dict[str, float] = {}
        names: set[str] = set()
        for row in self.rows:
            lam = "" if row.lam is None else f"lam {row.lam:g}"
            parts = (row.task, row.metric, row.method, row.subset, lam)
            # Replace slashes within a part, such as the group "female/old", because trackers
            # interpret each slash as a new level.
            path = "/".join(part.replace("/", " ") for part in parts if part)
            name = unique = tracker_name(path)[:_LONGEST_NAME]
            number = 1
            while unique in names:
                number += 1
                unique = f"{name} {number}"
            names.add(unique)
            low, high = row.interval
            for ending, value in (("", row.value), ("/low", low), ("/high", high)):
                if math.isfinite(value):
                    metrics[f"{unique}{ending}"] = value
        return metrics


def command_line(*, keeps_folders: bool = False) -> str | None:
    """Return the command of the current run.

    This is None if the program is neither a Python file nor `vldebias`, as in a notebook.

    Args:
        keeps_folders: whether to keep absolute paths, relative to the current folder if they are
            inside it. Otherwise, "--data-root=/home/ada/data/celeba" is shortened to
            "--data-root=celeba", because results may be published.
    """
    program = Path(sys.argv[0])
    if program.suffix != ".py" and program.name != "vldebias":
        return None
    folders = re.compile(r"(^|=)(/|[A-Za-z]:[/\\\\]).*[/\\\\]")
    words = [folders.sub(r"\1", word) for word in sys.orig_argv[1:]]
    if keeps_folders:
        here = f"{Path.cwd()}{os.sep}"
        arguments = [word.replace(here, "") for word in sys.argv[1:]]
        words = words[: len(words) - len(arguments)] + arguments
    return shlex.join(words if words[0] == "vldebias" else ["python", *words])
