"""Store the results of a run: values with intervals, paired changes and provenance.

Each task fills a `TaskResult` row by row. A run combines these into a `Result`, which can be shown
in a terminal or notebook, plotted, or converted to a data frame, CSV, Parquet or JSON.
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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from vldebias.errors import InvalidInputError, need
from vldebias.measure.rows import (
    CHANCE,
    CHANCES,
    COLUMNS,
    EVEN_ASSIGNMENT,
    NONE,
    NUMBERS,
    Bounds,
    Measurement,
    TaskProvenance,
    TaskResult,
)
from vldebias.report.conclusion import Conclusion, conclusions
from vldebias.report.page import notebook
from vldebias.report.plots import dots
from vldebias.report.table import Measures, readable
from vldebias.report.text import text
from vldebias.utils.files import (
    commit,
    digest,
    read_bytes,
    spreadsheet_csv,
    versions,
    write_atomically,
)
from vldebias.utils.json_values import JSON
from vldebias.utils.trackers import tracker_name

__all__ = [
    "CHANCE",
    "CHANCES",
    "COLUMNS",
    "EVEN_ASSIGNMENT",
    "NONE",
    "Bounds",
    "Measurement",
    "Result",
    "TaskProvenance",
    "TaskResult",
]

# Trackers allow 250 characters, so this leaves room for suffixes such as "/high".
_LONGEST_NAME = 230
LINE = 400  # maximum line length in JSON files, long enough for one result row

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot


class _Origin(TypedDict):
    date: str
    command: str | None
    platform: str
    versions: dict[str, str]
    commit: str | None


class MetricFrameArguments(TypedDict):
    """Keyword arguments for `fairlearn.metrics.MetricFrame`, from `Result.as_metric_frame`."""

    metrics: dict[str, Callable[[list[float], list[float], list[float]], float]]
    y_true: list[float]
    y_pred: list[float]
    sensitive_features: list[str]
    sample_params: dict[str, dict[str, list[int]]]


class Result(BaseModel, extra="forbid", populate_by_name=True):
    """Measurements from one run, with their provenance.

    In JSON, the rows are called `figures` and the provenance is called `protocols`.

    Attributes:
        name: name of the suite or task.
        rows: the measurements.
        provenance: how each task was measured.
        versions: installed package versions.
        commit: Git commit of the checkout, with the suffix "-dirty" if there are uncommitted
            changes. None if the package was installed from a wheel.
        seconds: duration in seconds. None if the run was resumed.
        date: time at which the run finished (ISO 8601, UTC).
        command: the command line, if the run was started from one.
        platform: operating system, architecture and number of processors.

    >>> import vldebias
    >>> from vldebias.miniature import load_clip
    >>> model, preprocess, tokenizer = load_clip()
    >>> result = vldebias.evaluate(
    ...     model, prompts="gender", task="texts", method="cali", tokenizer=tokenizer
    ... )
    >>> table = result.to_pandas()
    >>> table.loc[table["subset"] == "unseen", ["method", "value"]].round(2).values.tolist()
    [['none', 0.19], ['cali', 0.03]]
    """

    name: str
    rows: list[Measurement] = Field(alias="figures")
    provenance: list[TaskProvenance] = Field(alias="protocols")
    versions: dict[str, str]
    commit: str | None
    seconds: float | None
    date: str | None = None
    command: str | None = None
    platform: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_conclusions(cls, content: object) -> object:
        """Drop the fields added by `to_dict`, since they can be recomputed from the rows."""
        if not isinstance(content, dict):
            return content
        fields = {name: value for name, value in content.items() if name != "conclusions"}
        if isinstance(fields.get("figures"), list):
            rows = []
            for row in fields["figures"]:
                if isinstance(row, dict):
                    row = {name: value for name, value in row.items() if name != "few"}
                rows.append(row)
            fields["figures"] = rows
        return fields

    @classmethod
    def from_tasks(cls, name: str, parts: Iterable[TaskResult], *, seconds: float | None) -> Result:
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
            **_origin(),
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

    def as_metric_frame(self, task: str, metric: str, method: str) -> MetricFrameArguments:
        """Return arguments for a `fairlearn.metrics.MetricFrame` that shows one metric by group.

        The frame's `by_group` contains the value for each group or query, without intervals, and
        its `overall` is their mean, weighted by n.

        Args:
            task: task name.
            metric: metric name.
            method: method name.

        Raises:
            InvalidInputError: If there are no per-group rows with these names.

        >>> frame = result.as_metric_frame("groups", "accuracy", "none")  # doctest: +SKIP
        >>> MetricFrame(**frame).by_group  # doctest: +SKIP
        """
        parts = self.to_pandas().query("subset != ''")
        t = parts.query("task == @task and metric == @metric and method == @method")
        if t.empty:
            names = sorted(set(zip(parts.task, parts.metric, parts.method, strict=True)))
            raise InvalidInputError(
                f"{(task, metric, method)}: there are no rows by group with these names; expected"
                f" one of {names}"
            )
        return {
            "metrics": {
                metric: lambda _, values, sample_weight: float(
                    np.average(values, weights=sample_weight)
                )
            },
            "y_true": t.value.tolist(),
            "y_pred": t.value.tolist(),
            "sensitive_features": t.subset.tolist(),
            "sample_params": {metric: {"sample_weight": t.n.tolist()}},
        }

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(row.task for row in self.rows))
        return (
            f"Result({self.name!r}: {len(self.rows)} rows of {tasks or 'no task'}; to_pandas(),"
            " plot(), write())"
        )

    def conclusions(self, measures: Measures = ()) -> list[Conclusion]:
        """Return a conclusion for each task that measures bias.

        Args:
            measures: (task, metric) pairs to consider. If empty, all are considered.
        """
        return conclusions(readable(self), measures)

    def to_dict(self) -> dict[str, JSON]:
        """Return the JSON content that `write` saves.

        The content also includes the conclusions. Rows whose interval is known to be too narrow,
        for example because there are few prompts, contain the key "few".
        """
        frame = readable(self)
        content = self.model_dump(mode="json", by_alias=True)
        for row, few in zip(content["figures"], frame.few, strict=True):
            if few:
                row["few"] = few
        concluded = [conclusion.model_dump(mode="json") for conclusion in conclusions(frame)]
        return {"conclusions": concluded, **content}

    def __str__(self) -> str:
        """Return the conclusions and the rows that support them, in about 25 lines."""
        return text(self) if self.rows else repr(self)

    def _repr_html_(self) -> str:
        """Return the conclusions and the rows that support them, as HTML for notebooks."""
        return notebook(self)

    def plot(self) -> Plot:
        """Plot the value and interval of every method, with one panel per task and metric."""
        frame = readable(self)
        return dots(frame[frame.is_summary], self.provenance)

    def to_csv(self, path: str | Path) -> Path:
        """Write the rows as CSV in full precision, escaping strings that look like formulas."""
        return write_atomically(Path(path), spreadsheet_csv(self.to_pandas()))

    def to_latex(self) -> str:
        """Return the main values with their intervals as a LaTeX table (booktabs)."""
        from vldebias.report.latex import latex

        return latex(self)

    def write(self, path: str | Path, *, compact: bool = False) -> Path:
        """Write the result to a JSON file, atomically.

        Args:
            path: path of the file.
            compact: whether to write the rows to a separate Parquet file next to it, which takes
                about a twentieth of the space.
        """
        path = Path(path)
        content = self.to_dict()
        if compact:
            packed = self.to_pandas().to_parquet(index=False, compression="zstd")
            # Write the rows first, since the JSON file cannot be loaded without them.
            rows = write_atomically(path.with_suffix(".parquet"), packed)
            content["figures"] = {"file": rows.name, "sha256": digest(rows)}
        return write_atomically(path, format_json(content) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """Load a result from its JSON file and, if there is one, the Parquet file next to it.

        Raises:
            InvalidInputError: If the file is missing or does not contain a result. The message
                names the first invalid field.
        """
        path = Path(path)
        try:
            content = json.loads(read_bytes(path))
            if isinstance(content, dict) and isinstance(content.get("figures"), dict):
                content["figures"] = _rows_beside(path, content["figures"])
            return cls.model_validate(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            problem = f"{place}: {first['msg']}"
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = str(error)
        raise InvalidInputError(
            f"{path}: not a valid result ({problem}); expected a file written by `vldebias eval`"
            " or `Result.write`"
        )


def _rows_beside(path: Path, figures: Mapping[str, object]) -> list[dict[str, object]]:
    """Load a result's rows from the Parquet file that its JSON refers to.

    Raises:
        InvalidInputError: If the file is missing, or its digest differs.
    """
    # Ignore the folder, since an untrusted result must not refer to files in other folders.
    file = path.parent / Path(str(figures.get("file", ""))).name
    if not file.is_file() or digest(file) != figures.get("sha256"):
        raise InvalidInputError(
            f"{path}: its rows are stored in {file.name}, which is missing or was changed; copy"
            " both files from the original run"
        )
    rows = need("pyarrow.parquet").read_table(file).to_pylist()
    for row in rows:
        row["n"] = json.loads(row.pop("counts"))
        row["interval"] = (row.pop("low"), row.pop("high"))
        change = (row["change"], row.pop("change_low"), row.pop("change_high"))
        row["change"] = None if change[0] is None else change
    return rows


def format_json(value: object, depth: int = 0) -> str:
    """Format a value as JSON, keeping lists and dicts that fit into one line on one line.

    Args:
        value: the JSON value to format.
        depth: nesting depth, which is the number of spaces to indent.
    """
    short = json.dumps(value, ensure_ascii=False)
    if len(short) <= LINE or not isinstance(value, (dict, list)):
        return short
    deeper = depth + 1
    if isinstance(value, dict):
        # Keys may be numbers, but JSON only allows strings.
        names = [json.dumps(str(name), ensure_ascii=False) for name in value]
        inside = zip(names, value.values(), strict=True)
        parts = [f"{name}: {format_json(item, deeper)}" for name, item in inside]
    else:
        parts = [format_json(item, deeper) for item in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * deeper
    return start + margin + f",{margin}".join(parts) + "\n" + " " * depth + end


def _origin() -> _Origin:
    """Return the date, platform, versions, commit and command of the current run.

    The command, from which folders are removed, is None if the program is neither a Python file nor
    `vldebias`, for example in a notebook.
    """
    command = None
    program = Path(sys.argv[0])
    if program.suffix == ".py" or program.name == "vldebias":
        # Results may be published, so "--data-root=/home/ada/data/celeba" is shortened to
        # "--data-root=celeba".
        folders = re.compile(r"(^|=)(/|[A-Za-z]:[/\\\\]).*[/\\\\]")
        words = [folders.sub(r"\1", word) for word in sys.orig_argv[1:]]
        command = shlex.join(words if words[0] == "vldebias" else ["python", *words])
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": command,
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
        "versions": versions(),
        "commit": commit(),
    }
