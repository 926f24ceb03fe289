"""Hold results: a row for each value with its interval and paired change, and what it was measured
with.

A task fills a `TaskResult` row by row; a run joins them to a `Result`: a data frame, a table in a
terminal or a notebook, a plot, CSV, parquet and JSON.
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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError, model_validator

from vldebias.errors import InvalidInputError, need
from vldebias.measure.rows import (
    CHANCE,
    CHANCES,
    COLUMNS,
    DEALT,
    NONE,
    NUMBERS,
    Bounds,
    Measurement,
    TaskProvenance,
    TaskResult,
)
from vldebias.report.conclusion import Conclusion, conclusions
from vldebias.report.page import dots, notebook
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
from vldebias.utils.trackers import tracker_name

__all__ = [
    "CHANCE",
    "CHANCES",
    "COLUMNS",
    "DEALT",
    "NONE",
    "Bounds",
    "Measurement",
    "Result",
    "TaskProvenance",
    "TaskResult",
]

_LONGEST_NAME = 230  # so that trackers with 250 characters have room for "/high"
LINE = 400  # characters in a line of JSON, so that a row of a result fits

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot


class Result(BaseModel, extra="forbid", populate_by_name=True):
    """Hold the measurements and provenance of one run. In JSON the rows are `figures` and the
    provenance `protocols`.

    seconds: of measuring; None where it was done in parts. date: when it ended (ISO 8601, UTC).
    command: as it was given, where it was a command. platform: system and processors. commit: of a
    checkout, with "-dirty" where files differ from it.

    >>> result = vldebias.evaluate(model, images, prompts="gender")  # doctest: +SKIP
    >>> print(result)  # doctest: +SKIP
    >>> result.to_pandas()  # doctest: +SKIP
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
        """Leave out what `to_dict` adds, since it follows from the rows."""
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
        """Return the result of this run from what its tasks gave, with date, command, platform,
        versions and commit."""
        # It is read twice, and may be a generator.
        done = list(parts)
        content: dict[str, Any] = {
            "rows": [row for part in done for row in part.rows],
            "provenance": [part.provenance for part in done],
        }
        return cls(name=name, seconds=seconds, **content, **_origin())

    def row(
        self, task: str, metric: str, method: str, *, subset: str = "", lam: float | None = None
    ) -> Measurement:
        """Return the one row with these names; without `lam` the first match. KeyError lists the
        closest names.

        subset: a part, such as a group or a query; "" for the whole task.
        """
        paths = []
        for row in self.rows:
            names = (row.task, row.metric, row.method, row.subset)
            if names == (task, metric, method, subset) and lam in (None, row.lam):
                return row
            path = "/".join(filter(None, names))
            # Where lambda is asked for, a row may be missing for it alone.
            paths.append(path if lam is None else f"{path}, lam={row.lam}")
        path = "/".join(filter(None, (task, metric, method, subset)))
        if lam is not None:
            path += f", lam={lam}"
        closest = difflib.get_close_matches(path, dict.fromkeys(paths), 8, 0)
        raise KeyError(f"no row {path}; the closest are {closest}")

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per measurement: `COLUMNS`. n: units that were resampled; counts: all of
        them, as JSON.

        change is the paired difference to method "none", NaN where there is none.
        """
        rows = []
        for row in self.rows:
            columns = row.model_dump()
            change = row.change or (None, None, None)
            numbers = (row.value, *row.interval, *change)
            columns |= dict(zip(NUMBERS, numbers, strict=False))
            # The first unit is the one that was resampled: tasks name it first.
            columns["n"] = next(iter(row.n.values()), 0)
            columns["counts"] = json.dumps(row.n, ensure_ascii=False)
            rows.append(columns)
        frame = need("pandas").DataFrame(rows, columns=list(COLUMNS))
        types = dict.fromkeys(NUMBERS, "float64") | {"n": "int64", "uses_labels": "bool"}
        return frame.astype(types)

    def to_metrics(self) -> dict[str, float]:
        """Return a flat mapping from names that experiment trackers accept to values, for
        `mlflow.log_metrics`, `wandb.log` and TensorBoard.

        A name is task/metric/method, with the part of the task and lambda if there are any; the
        ends of the 95 % interval follow as NAME/low and NAME/high. Names that differ only in
        characters which trackers refuse get a number. Values that are not finite are left out.

        >>> mlflow.log_metrics(result.to_metrics())  # doctest: +SKIP
        """
        metrics: dict[str, float] = {}
        names: set[str] = set()
        for row in self.rows:
            lam = "" if row.lam is None else f"lam {row.lam:g}"
            parts = (row.task, row.metric, row.method, row.subset, lam)
            # A slash inside of a part, such as a group "female/old", is no level of its own.
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

    def as_metric_frame(self, task: str, metric: str, method: str) -> dict[str, Any]:
        """Return the arguments of a `fairlearn.metrics.MetricFrame` of one metric by group; it has
        no intervals.

        Its `by_group` are the values of the groups (or queries), its `overall` their mean weighted
        by n. Names without rows by group raise InvalidInputError.

        >>> frame = result.as_metric_frame("groups", "accuracy", "none")  # doctest: +SKIP
        >>> MetricFrame(**frame).by_group  # doctest: +SKIP
        """
        parts = self.to_pandas().query("subset != ''")
        t = parts.query("task == @task and metric == @metric and method == @method")
        if t.empty:
            names = sorted(set(zip(parts.task, parts.metric, parts.method, strict=True)))
            raise InvalidInputError(
                f"got {(task, metric, method)}; expected names of rows by group, one of {names}"
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
        """Return what was found: a conclusion for each task that has a measure of bias.

        measures: (task, metric) to conclude on; all of them where none is named.
        """
        return conclusions(readable(self), measures)

    def to_dict(self) -> dict[str, Any]:
        """Return what `write` writes, with the conclusions under "conclusions" and "few" in rows
        whose interval is known to be too narrow, of so few prompts for instance."""
        frame = readable(self)
        found = [conclusion.model_dump(mode="json") for conclusion in conclusions(frame)]
        content = self.model_dump(mode="json", by_alias=True)
        for row, few in zip(content["figures"], frame.few, strict=True):
            if few:
                row["few"] = few
        return {"conclusions": found, **content}

    def __str__(self) -> str:
        """Return the conclusions and the rows that they rest on, in about 25 lines."""
        return text(self) if self.rows else repr(self)

    def _repr_html_(self) -> str:
        """Return the conclusions and the rows that they rest on."""
        return notebook(self)

    def plot(self) -> Plot:
        """Draw value and interval of every method, a panel per task and metric of the wholes."""
        frame = readable(self)
        return dots(frame[frame.is_whole], self.provenance)

    def to_csv(self, path: str | Path) -> Path:
        """Write the frame as CSV with all digits; text that a spreadsheet would read as a formula
        is escaped."""
        return write_atomically(Path(path), spreadsheet_csv(self.to_pandas()))

    def write(self, path: str | Path, *, compact: bool = False) -> Path:
        """Write the result as JSON, atomically, so that a reader never sees half a file.

        compact: write the rows as parquet next to it (a twentieth of the size), the provenance
        readable in the JSON.
        """
        path = Path(path)
        content = self.to_dict()
        if compact:
            packed = self.to_pandas().to_parquet(index=False, compression="zstd")
            # The rows go first: a JSON without its rows cannot be read, rows without a JSON harm
            # nobody.
            rows = write_atomically(path.with_suffix(".parquet"), packed)
            content["figures"] = {"file": rows.name, "sha256": digest(rows)}
        return write_atomically(path, laid_out(content) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """Read a result from its JSON file, with its rows inside or in the parquet file next to it.

        A file that is missing or holds no result raises InvalidInputError, which names the first
        wrong field.
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
            f"{path}: got {problem}; expected a result of `vldebias eval` or `Result.write`"
        )


def _rows_beside(path: Path, figures: Mapping[str, object]) -> list[dict[str, object]]:
    """Return the rows of a result from the parquet file that its JSON names.

    Raises:
        InvalidInputError: the file is missing, or its digest is another one.
    """
    # Its name alone: a result of somebody else may not point to a file elsewhere.
    file = path.parent / Path(str(figures.get("file", ""))).name
    if not file.is_file() or digest(file) != figures.get("sha256"):
        raise InvalidInputError(
            f"{path}: expected its rows in {file.name}, unchanged; copy both files"
        )
    rows = need("pyarrow.parquet").read_table(file).to_pylist()
    for row in rows:
        row["n"] = json.loads(row.pop("counts"))
        row["interval"] = (row.pop("low"), row.pop("high"))
        change = (row["change"], row.pop("change_low"), row.pop("change_high"))
        row["change"] = None if change[0] is None else change
    return rows


def laid_out(value: object, depth: int = 0) -> str:
    """Write JSON with a line for each row: what fits in a line stays in one."""
    short = json.dumps(value, ensure_ascii=False)
    if len(short) <= LINE or not isinstance(value, (dict, list)):
        return short
    deeper = depth + 1
    if isinstance(value, dict):
        # Names may be numbers, which JSON writes as text.
        names = [json.dumps(str(name), ensure_ascii=False) for name in value]
        inside = zip(names, value.values(), strict=True)
        parts = [f"{name}: {laid_out(item, deeper)}" for name, item in inside]
    else:
        parts = [laid_out(item, deeper) for item in value]
    start, end = "{}" if isinstance(value, dict) else "[]"
    margin = "\n" + " " * deeper
    return start + margin + f",{margin}".join(parts) + "\n" + " " * depth + end


def _origin() -> dict[str, Any]:
    """Return the fields of `Result` about when, where and with which versions it is measured.

    The command has no folders of this machine; it is None where no script or module was started.
    """
    command = None
    program = Path(sys.argv[0])
    if program.suffix == ".py" or program.name == "vldebias":
        # "--data-root=/home/ada/data/celeba" becomes "--data-root=celeba": results are published.
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
