"""Hold results: a row for each value with its interval and paired change, and what it was measured
with.

A task fills a `TaskResult` row by row; a run joins them to a `Result`: a data frame, a table in a
terminal or a notebook, a plot, CSV, parquet and JSON.
"""

from __future__ import annotations

import datetime
import difflib
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from vldebias.errors import InvalidInputError, need
from vldebias.files import commit, digest, read_bytes, shielded, versions, write_atomically
from vldebias.measure.metric import Metric, get_metric
from vldebias.measure.resampling import percentile_interval, resampled_values

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image

# the method of rows about the model without an edit, from which the changes of the others are
# counted
NONE = "none"
CHANCE = (  # the method of rows about random rankings: their mean, and the middle 95 % of them
    "random"
)
NUMBERS = ["value", "low", "high", "change", "change_low", "change_high", "lam", "strength"]
COLUMNS = (
    "task",
    "metric",
    "method",
    "subset",
    *NUMBERS[:6],
    "n",
    "better",
    *NUMBERS[6:],
    "uses_labels",
    "counts",
)
Bounds = tuple[float, float]


class Measurement(BaseModel, extra="forbid"):
    """Hold one number with the 95 % `interval` of its value; `change` is that of the paired
    difference to "none".

    task: birds, portraits, generation, ...; metric: worst_group, max_skew@10, ...; method: none,
    orth, cali, ...
    better: "higher", "lower" or "neither". n: what was resampled and how many of it.
    subset: the part that it is about, such as a group, a query or "unseen professions"; "" for the
    whole. lam, strength: of the method, where it has them. uses_labels: the method was given labels
    of images.
    """

    task: str
    metric: str
    method: str
    value: float
    interval: tuple[float, float]
    change: tuple[float, float, float] | None = None
    better: str
    n: dict[str, int]
    subset: str = ""
    lam: float | None = None
    strength: float | None = None
    uses_labels: bool = False


class TaskProvenance(BaseModel, extra="forbid"):
    """Hold what a task did, in enough detail to repeat it.

    title: what a report calls the task; settings: conventions and parameters that change the
    measurements (k, prior, thresholds, resampling). fingerprint: of the weights; data: what was
    measured on -> digest of it.
    methods: name -> its lam, strength, prompts, and what "auto" chose.
    """

    task: str
    description: str
    model: str = ""
    fingerprint: dict[str, Any] | None = None
    prompts: str = ""
    prompts_hash: str = ""
    split: str = ""
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)
    seeds: list[int] = Field(default_factory=list)
    n: dict[str, int] = Field(default_factory=dict)
    title: str = ""
    data: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)


@dataclass
class TaskResult:
    """Hold the rows of one task, in the order in which they were added, and what they were measured
    with.

    pictures: file stem -> (caption, plot): what no row can give back, such as strips of images.
    """

    provenance: TaskProvenance
    rows: list[Measurement] = field(default_factory=list)
    pictures: dict[str, tuple[str, Plot | Image]] = field(default_factory=dict)

    def add(
        self,
        metric: str | Metric,
        method: str,
        value: float,
        interval: Bounds | None = None,
        *,
        n: Mapping[str, int],
        change: tuple[float, float, float] | None = None,
        subset: str = "",
        **details: Any,
    ) -> None:
        """Add one row; "none", random rankings and facts have no change.

        interval: None: the value is exact. details: lam, strength, uses_labels, by default those
        that the provenance has of the method. An unknown metric raises InvalidInputError.
        """
        about = get_metric(metric)
        names: Any = {
            "task": self.provenance.task,
            "metric": about.name,
            "method": method,
            "subset": subset,
        }
        told = self.provenance.methods.get(method, {})
        known = {
            key: told[key]
            for key in ("lam", "strength", "uses_labels")
            if told.get(key) is not None
        }
        details = {"better": about.better, "n": dict(n), **known, **details}
        own = None if method in (NONE, CHANCE) or about.kind == "fact" else change
        self.rows.append(
            Measurement(
                **names, value=value, interval=interval or (value, value), change=own, **details
            )
        )

    def add_draws(
        self,
        metric: str | Metric,
        values: Mapping[str, float],
        draws: Mapping[str, np.ndarray] | None = None,
        *,
        n: Mapping[str, int],
        interval: Callable[[float, np.ndarray], Bounds] | None = None,
        subset: str = "",
    ) -> None:
        """Add a row per method with its paired change to "none".

        values: method -> value. draws: method -> what it takes in the same resamples (b,); None:
        values are exact.
        interval: reads one off a value and its draws, the middle 95 % by default; it is cut at the
        metric's bounds.
        """

        def ends(value: float, method: str, less: str | None = None) -> Bounds:
            if draws is None:
                return value, value
            with np.errstate(invalid="ignore"):  # a resample that has no value is not a number
                own = draws[method] - (0 if less is None else draws[less])
            return interval(value, own) if interval else percentile_interval(own[np.isfinite(own)])

        least, most = get_metric(metric).bounds
        for method, value in values.items():
            moved = value - values.get(NONE, np.nan)
            change = (
                (moved, *ends(moved, method, NONE)) if NONE in values and method != NONE else None
            )
            low, high = ends(value, method)
            self.add(
                metric,
                method,
                value,
                (max(low, least), min(high, most)),
                n=n,
                change=change,
                subset=subset,
            )

    def add_resampled(
        self,
        metric: str | Metric,
        values: Mapping[str, np.ndarray],
        *,
        n: Mapping[str, int],
        subset: str = "",
        statistic: Callable[..., np.ndarray] | None = None,
        resamples: int = 2000,
        seed: int = 0,
    ) -> None:
        """Add a row per method from values (n,) of the same n units: percentile intervals over
        units, changes paired.

        A width of 0 says that resampling shows no variation and not that there is none: such
        intervals cover where there are some tens of units that differ. statistic: from resampled
        values (b, n) to (b,); None is the mean.
        """
        drawn = resampled_values(values, statistic=statistic, resamples=resamples, seed=seed)
        self.add_draws(metric, *drawn, n=n, subset=subset)


class Result(BaseModel, extra="forbid", populate_by_name=True):
    """Hold the measurements and provenance of one run. In JSON the rows are `figures` and the
    provenance `protocols`.

    seconds: of measuring; None where it was done in parts. date: when it ended (ISO 8601, UTC).
    command: as it was given, where it was a command. platform: system and processors. commit: of a
    checkout, with "-dirty" where files differ from it.
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

    @classmethod
    def of(cls, name: str, parts: Iterable[TaskResult], *, seconds: float | None) -> Result:
        """Return the result of this run from what its tasks gave, with date, command, platform,
        versions and commit."""
        done, now = list(parts), datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        found: dict[str, Any] = {
            "rows": [row for part in done for row in part.rows],
            "seconds": seconds,
            "date": now,
        }
        found |= {
            "provenance": [part.provenance for part in done],
            "versions": versions(),
            "commit": commit(),
        }
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
        return cls(name=name, command=_command(), platform=machine, **found)

    def row(
        self, task: str, metric: str, method: str, *, subset: str = "", lam: float | None = None
    ) -> Measurement:
        """Return the one row with these names; without `lam` the first match. KeyError lists the
        closest names."""
        some = [row for row in reversed(self.rows) if lam in (None, row.lam)]
        there = {
            "/".join((one.task, one.metric, one.method, one.subset or "all")): one for one in some
        }
        name = "/".join((task, metric, method, subset or "all"))
        if name not in there:
            raise KeyError(
                f"no row {name}; the closest are {difflib.get_close_matches(name, there, 8, 0)}"
            )
        return there[name]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row per measurement: `COLUMNS`. n: units that were resampled; counts: all of
        them, as JSON.

        change is the paired difference to method "none", NaN where there is none.
        """
        rows = [
            row.model_dump()
            | dict(
                zip(NUMBERS, (row.value, *row.interval, *(row.change or (None,) * 3)), strict=False)
            )
            | {"n": next(iter(row.n.values()), 0), "counts": json.dumps(row.n, ensure_ascii=False)}
            for row in self.rows
        ]
        frame = need("pandas").DataFrame(rows, columns=list(COLUMNS))
        return frame.astype(
            dict.fromkeys(NUMBERS, "float64") | {"n": "int64", "uses_labels": "bool"}
        )

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
            there = sorted(set(zip(parts.task, parts.metric, parts.method, strict=True)))
            raise InvalidInputError(
                f"got {(task, metric, method)}; expected names of rows by group, one of {there}"
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

    def __str__(self) -> str:
        """Return the wholes as a table of at most 40 lines."""
        from vldebias.measure.report import text

        return text(self) if self.rows else repr(self)

    def _repr_html_(self) -> str:
        """Return the wholes as a table: value, interval, and change from none."""
        from vldebias.measure.report import told

        t = told(self).query("whole")[["task", "measure", "name", "number", "moved", "verdict"]]
        return f"<h3>{escape(self.name)}</h3>{t.to_html(index=False)}"

    def plot(self) -> Plot:
        """Draw value and interval of every method, a panel per task and metric of the wholes."""
        from vldebias.measure.report import dots, told

        return dots(told(self).query("whole"))

    def to_csv(self, path: str | Path) -> Path:
        """Write the frame as CSV with all digits; text that a spreadsheet would read as a formula
        is escaped."""
        frame = self.to_pandas()
        texts = ["task", "metric", "method", "subset", "better"]
        frame[texts] = frame[texts].map(shielded)
        return write_atomically(Path(path), frame.to_csv(index=False))

    def write(self, path: str | Path, *, compact: bool = False) -> Path:
        """Write the result as JSON, atomically, so that a reader never sees half a file.

        compact: write the rows as parquet next to it (a twentieth of the size), the provenance
        readable in the JSON.
        """
        path, content = Path(path), self.model_dump(mode="json", by_alias=True)
        if compact:
            packed = self.to_pandas().to_parquet(index=False, compression="zstd")
            rows = write_atomically(path.with_suffix(".parquet"), packed)
            content["figures"] = {"file": rows.name, "sha256": digest(rows)}
        return write_atomically(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """Read a result from its JSON file, with its rows inside or in the parquet file next to it.

        A file that is missing or holds no result raises InvalidInputError, which names the first
        wrong field.
        """
        path = Path(path)
        try:
            found = json.loads(read_bytes(path))
            if isinstance(found, dict) and isinstance(
                about := found.get("figures"), dict
            ):  # its rows are beside it
                file = path.parent / Path(str(about.get("file", ""))).name
                if not file.is_file() or digest(file) != about.get("sha256"):
                    raise InvalidInputError(
                        f"{path}: expected its rows in {file.name}, unchanged; copy both files"
                    )
                found["figures"] = need("pyarrow.parquet").read_table(file).to_pylist()
                for row in found["figures"]:
                    row["n"], row["interval"] = (
                        json.loads(row.pop("counts")),
                        (row.pop("low"), row.pop("high")),
                    )
                    moved = row["change"], row.pop("change_low"), row.pop("change_high")
                    row["change"] = None if moved[0] is None else moved
            return cls.model_validate(found)
        except ValidationError as error:
            problem = (
                f"{'.'.join(map(str, error.errors()[0]['loc'])) or 'the file'}:"
                f" {error.errors()[0]['msg']}"
            )
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            problem = str(error)
        raise InvalidInputError(
            f"{path}: got {problem}; expected a result of `vldebias eval` or `Result.write`"
        )


def _command() -> str | None:
    """Return the command line, without the folders of this machine; None where no script or module
    was started."""
    program = Path(sys.argv[0])
    words = [
        re.sub(r"(^|=)(/|[A-Za-z]:[/\\\\]).*[/\\\\]", r"\1", word) for word in sys.orig_argv[1:]
    ]
    if program.suffix != ".py" and program.name != "vldebias":
        return None
    return shlex.join(words if words[0] == "vldebias" else ["python", *words])
