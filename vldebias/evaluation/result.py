"""One typed result for every evaluator: measurements with intervals, and all that is needed to repeat them.

A task fills a `TaskResult`, row by row with `add`; a run joins them to a `Result`, which is a data frame
(`Result.to_pandas`), a table in a notebook, a plot, CSV, parquet and JSON.
"""

from __future__ import annotations

import datetime
import json
import operator
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
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.sources import Sources, imported, refuse_uncommitted
from vldebias.files import commit, digest, readable_json, shielded, versions, write_atomically
from vldebias.metrics.bootstrap import percentile_interval, resampled_values
from vldebias.metrics.metric import Metric, get_metric

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure as Plot
    from PIL.Image import Image

COLUMNS = (
    "task", "metric", "method", "subset", "value", "low", "high", "change", "change_low", "change_high", "n",
    "better", "lam", "strength", "uses_labels", "counts",
)  # fmt: skip
NONE = "none"  # the method of rows about the model without an edit, which the changes of the others are from
CHANCE = "random"  # the method of rows about random rankings: the mean, and the middle 95 % of them
_NAMED = 8  # rows that are named where one is not found
Bounds = tuple[float, float]
Statistic = Callable[..., np.ndarray]


def percentiles(value: float, draws: np.ndarray) -> Bounds:
    """The middle 95 % of the draws (b,) that are numbers; the value itself where there is none."""
    return percentile_interval(draws[np.isfinite(draws)]) if len(draws) else (value, value)


class _Typed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Measurement(_Typed):
    """One number. `interval` is the 95 % interval of `value`, `change` that of the paired difference to method "none".

    task: birds, portraits, generation, ...; metric: worst_group, average, max_skew, ...; method: none, orth, cali, ...
    better: "higher", "lower" or "neither", for reading; n: what was resampled and how many of it.
    subset: the part that it is about, such as a group, a query or "unseen professions"; "" for the whole.
    lam, strength: of the method, where it has them. uses_labels: the method was given labels of images.
    """

    task: str
    metric: str
    method: str
    value: float
    interval: tuple[float, float]
    change: tuple[float, float, float] | None = Field(None, description="difference to none: value, low, high")
    better: str
    n: dict[str, int]
    subset: str = ""
    lam: float | None = None
    strength: float | None = None
    uses_labels: bool = False


class TaskProvenance(_Typed):
    """What a task did: enough to repeat it.

    title: what a report calls the task, with the table of the paper that it repeats; settings: conventions and
    parameters that change the measurements (k, prior, ties, floor, thresholds, resampling).
    fingerprint: of the weights; data: what was measured on -> digest of it (images, an embeddings file, a reference).
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
    """What one task gives: rows, their provenance, captioned pictures.

    Attributes:
        provenance: names the task; every row carries that name.
        rows: the measurements, in the order in which they were added.
        pictures: file stem -> (caption, plot): what no row can give back, such as strips of images.
        details: method -> lam, strength, uses_labels of its rows.
    """

    provenance: TaskProvenance
    rows: list[Measurement] = field(default_factory=list)
    pictures: dict[str, tuple[str, Plot | Image]] = field(default_factory=dict)
    details: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

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
        """One more row. The metric says which way is better; "none", rankings by chance and facts have no change.

        interval: None: the value is exact. details: lam, strength, uses_labels beyond `details`.

        Raises:
            InvalidInputError: no metric of this name.
        """
        about = get_metric(metric)
        self.rows.append(
            Measurement(
                task=self.provenance.task,
                metric=about.name,
                method=method,
                value=value,
                interval=(value, value) if interval is None else interval,
                change=None if method in (NONE, CHANCE) or about.kind == "fact" else change,
                better=about.better,
                n=dict(n),
                subset=subset,
                **{**self.details.get(method, {}), **details},
            )
        )

    def add_draws(
        self,
        metric: str | Metric,
        values: Mapping[str, float],
        draws: Mapping[str, np.ndarray] | None = None,
        *,
        n: Mapping[str, int],
        interval: Callable[[float, np.ndarray], Bounds] = percentiles,
        subset: str = "",
    ) -> None:
        """A row per method with its paired change to "none".

        Args:
            values: method -> value. draws: method -> what it takes in the same resamples (b,); None: values are exact.
            interval: reads one off a value and its draws; it is cut at the metric's bounds.
        """
        low, high = get_metric(metric).bounds
        drawn = dict.fromkeys(values, np.zeros(0)) if draws is None else draws
        for method, value in values.items():
            change = None
            if NONE in values and method != NONE:
                moved = value - values[NONE]
                with np.errstate(invalid="ignore"):  # of a resample that has no value, neither is a number
                    change = (moved, *interval(moved, drawn[method] - drawn[NONE]))
            least, most = interval(value, drawn[method])
            self.add(metric, method, value, (max(least, low), min(most, high)), n=n, change=change, subset=subset)

    def add_within(
        self,
        metric: str | Metric,
        values: Mapping[str, float],
        radius: Mapping[str, float],
        *,
        most: float,
        n: Mapping[str, int],
        subset: str = "",
    ) -> None:
        """A row per method from values in 0 .. most that are known to within a radius; a change to within both."""
        for method, value in values.items():
            change, by = None, radius[method]
            if NONE in values:
                moved, around = value - values[NONE], by + radius[NONE]
                change = (moved, max(-most, moved - around), min(most, moved + around))
            interval = (max(0.0, value - by), min(most, value + by))
            self.add(metric, method, value, interval, n=n, change=change, subset=subset)

    def add_resampled(
        self,
        metric: str | Metric,
        values: Mapping[str, np.ndarray],
        *,
        n: Mapping[str, int],
        statistic: Statistic | None = None,
        shared: tuple[np.ndarray, ...] = (),
        subset: str = "",
        resamples: int = 2000,
        seed: int = 0,
    ) -> None:
        """A row per method from values (n,) of the same n units: percentile intervals over units, changes paired.

        Such intervals cover where there are some tens of units that differ. Units that are all alike give a width of
        0, which says that resampling shows no variation and not that there is none.

        statistic: from resampled values (b, n) and the `shared` arrays (b, n) to (b,); the mean by default.
        """
        drawn = resampled_values(values, *shared, statistic=statistic, resamples=resamples, seed=seed)
        self.add_draws(metric, *drawn, n=n, subset=subset)


class Result(_Typed):
    """Measurements and provenance of one run. In JSON the rows are `figures` and the provenance is `protocols`.

    seconds: of measuring; None where it was done in parts. date: when it ended (ISO 8601, UTC). command: as it was
    given, where it was a command. platform: system and processor. commit: of a checkout, with "-dirty" where files
    differ from it. sources: the files that were imported and their digest; None of results that are older than this.
    """

    name: str
    rows: list[Measurement] = Field(validation_alias=AliasChoices("figures", "rows"), serialization_alias="figures")
    provenance: list[TaskProvenance] = Field(
        validation_alias=AliasChoices("protocols", "provenance"), serialization_alias="protocols"
    )
    versions: dict[str, str]
    commit: str | None
    seconds: float | None
    date: str | None = None
    command: str | None = None
    platform: str | None = None
    sources: Sources | None = None

    @classmethod
    def of(cls, name: str, parts: Iterable[TaskResult], *, seconds: float | None) -> Result:
        """The result of this run from what its tasks gave, with date, command, platform, versions and commit."""
        done = list(parts)
        return cls.now(name, [r for p in done for r in p.rows], [p.provenance for p in done], seconds=seconds)

    @classmethod
    def now(
        cls,
        name: str,
        rows: list[Measurement],
        provenance: list[TaskProvenance],
        *,
        seconds: float | None,
        sources: Mapping[str, str] | None = None,
    ) -> Result:
        """A result that names the run that is going on; sources: path -> SHA-256, by default of what is imported."""
        return cls(
            name=name,
            rows=rows,
            provenance=provenance,
            versions=versions(),
            commit=commit(),
            seconds=seconds,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            command=_command(),
            platform=f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
            sources=Sources.of(imported() if sources is None else sources),
        )

    def row(self, task: str, metric: str, method: str, *, subset: str = "", lam: float | None = None) -> Measurement:
        """The one row with these names; without `lam` the first of any. KeyError lists the closest that there are."""
        for row in self.rows:
            names = (row.task, row.metric, row.method, row.subset)
            if names == (task, metric, method, subset) and lam in (None, row.lam):
                return row
        sought, every = (task, metric, method, subset), [(r.task, r.metric, r.method, r.subset) for r in self.rows]
        there = sorted(dict.fromkeys(every), key=lambda names: -sum(map(operator.eq, names, sought)))
        more = f" and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
        raise KeyError(f"no row {task}/{metric}/{method}/{subset or 'all'}; there are {there[:_NAMED]}{more}")

    def to_pandas(self) -> pd.DataFrame:
        """A row per measurement: `COLUMNS`. n: units that were resampled; counts: all of `Measurement.n`, as JSON.

        change is the paired difference to method "none", NaN where there is none.
        """
        pd = need("pandas")

        frame = pd.DataFrame([_flat(row) for row in self.rows], columns=list(COLUMNS))
        numbers = ["value", "low", "high", "change", "change_low", "change_high", "lam", "strength"]
        return frame.astype(dict.fromkeys(numbers, "float64") | {"n": "int64", "uses_labels": "bool"})

    def __repr__(self) -> str:
        tasks = ", ".join(dict.fromkeys(row.task for row in self.rows))
        return f"Result({self.name!r}: {len(self.rows)} rows of {tasks or 'no task'}; to_pandas(), plot(), write())"

    def _repr_html_(self) -> str:
        """`tables` of every task: value, interval, and change from none."""
        return f"<h3>{escape(self.name)}</h3>" + "".join(
            f"<h4>{escape(str(task))}</h4>{table.to_html(na_rep='')}" for task, table in self.tables().items()
        )

    def tables(self) -> dict[str, pd.DataFrame]:
        """Task -> methods down, metrics across, each cell "value [low, high]", with the change from none below it.

        Of the wholes; a task that has none shows its parts, subset and method down.
        """
        frame = self.to_pandas()
        several = frame.groupby(["task", "metric", "method", "subset"]).lam.transform("nunique") > 1
        rows = list(frame.itertuples())  # as lists: pandas takes an empty column of texts for one of numbers
        frame["method"] = [
            f"{r.method}, lam {r.lam:g}" if more else r.method for r, more in zip(rows, several, strict=True)
        ]
        frame["cell"] = [
            f"{r.value:.3f} [{r.low:.3f}, {r.high:.3f}]"
            + ("" if np.isnan(r.change) else f" ({r.change:+.3f} [{r.change_low:+.3f}, {r.change_high:+.3f}])")
            for r in rows
        ]
        tables = {}
        for task, part in frame.groupby("task", sort=False):
            wholes = part[part.subset == ""]
            part, down = (part, ["subset", "method"]) if wholes.empty else (wholes, ["method"])
            tables[str(task)] = part.pivot_table("cell", down, "metric", aggfunc="last", sort=False)
        return tables

    def plot(self, metric: str | None = None, *, task: str | None = None) -> Plot:
        """Value and interval of every method, one panel per task and metric of the wholes.

        Raises:
            InvalidInputError: no row of that metric and task; the message lists those there are.
        """
        from vldebias.pictures import subplots

        wholes = [row for row in self.rows if not row.subset]
        chosen = [row for row in wholes if metric in (None, row.metric) and task in (None, row.task)]
        if not chosen:
            there = sorted({(row.task, row.metric) for row in wholes})
            raise InvalidInputError(f"plot: no row with metric {metric!r} and task {task!r}; there are {there}")
        panels: dict[tuple[str, str], list[Measurement]] = {}
        for row in chosen:
            panels.setdefault((row.task, row.metric), []).append(row)
        plot, axes = subplots(len(panels), 1, (6.4, 0.5 * len(panels) + 0.28 * len(chosen)))
        for axis, ((name, measure), rows) in zip(axes, panels.items(), strict=True):
            values = np.array([row.value for row in rows])
            low, high = np.array([row.interval for row in rows]).T
            places = np.arange(len(rows))[::-1]
            axis.errorbar(values, places, xerr=[values - low, high - values], fmt="o", capsize=3)
            names = [row.method if row.lam is None else f"{row.method}, lam {row.lam:g}" for row in rows]
            axis.set_yticks(places, names, parse_math=False)
            axis.set_title(f"{name}: {measure} ({rows[0].better} is better)", parse_math=False, fontsize=9)
        plot.tight_layout()
        return plot

    def to_csv(self, path: str | Path) -> Path:
        """The frame as CSV; numbers keep every digit, texts are never formulas to a spreadsheet (`files.shielded`)."""
        frame = self.to_pandas()
        texts = ["task", "metric", "method", "subset", "better"]
        frame[texts] = frame[texts].map(shielded)
        return write_atomically(Path(path), frame.to_csv(index=False))

    def to_parquet(self, path: str | Path) -> Path:
        """The frame as parquet."""
        return write_atomically(Path(path), self.to_pandas().to_parquet(index=False, compression="zstd"))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: what `vldebias eval --json` prints."""
        return self.model_dump(mode="json", by_alias=True)

    def write(self, path: str | Path, *, compact: bool = False) -> Path:
        """Write as JSON, atomically: a reader never sees half a file.

        compact: the rows as parquet beside it (a twentieth of the size), the provenance readable in the JSON.

        Raises:
            InvalidInputError: into eval/results of a checkout, where a source of the result is not committed.
        """
        path, content = Path(path), self.to_dict()
        if self.sources:
            refuse_uncommitted(path, self.sources.files)
        if compact:
            rows = self.to_parquet(path.with_suffix(".parquet"))
            content["figures"] = {"file": rows.name, "sha256": digest(rows)}
        write_atomically(path, readable_json(content) + "\n")
        return path

    @classmethod
    def read(cls, path: str | Path) -> Result:
        """A result from its JSON file, with its rows inside or in the parquet file beside it.

        Raises:
            InvalidInputError: no such file, or not a result; the message names the first field that does not fit.
        """
        path = Path(path)
        if not path.is_file():
            raise InvalidInputError(
                f"{path}: no such file; expected a result of `vldebias eval` or `vldebias quickstart`"
            )
        try:
            content = json.loads(path.read_bytes())
            if isinstance(content, dict) and isinstance(content.get("figures"), dict):
                content["figures"] = _rows_beside(path, content["figures"])
            return cls.model_validate_json(json.dumps(content))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            problem = f"{where}: {first['msg']}"
        except (ValueError, RecursionError) as error:
            if isinstance(error, InvalidInputError):
                raise
            problem = f"the file: {error}"
        raise InvalidInputError(f"{path}: not a result of `vldebias eval` or `vldebias quickstart`: {problem}")


def _flat(row: Measurement) -> dict[str, Any]:
    """The columns of one row."""
    change = row.change or (None, None, None)
    return {
        **row.model_dump(exclude={"interval", "change", "n"}),
        **dict(zip(("low", "high"), row.interval, strict=True)),
        **dict(zip(("change", "change_low", "change_high"), change, strict=True)),
        "n": next(iter(row.n.values()), 0),
        "counts": json.dumps(row.n, ensure_ascii=False),
    }


def _unflat(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a measurement from its columns; NaN stands for None there."""
    known = {name: None if isinstance(value, float) and value != value else value for name, value in row.items()}
    change = None if known["change"] is None else tuple(known[f"change{end}"] for end in ("", "_low", "_high"))
    kept = ("task", "metric", "method", "subset", "value", "better", "lam", "strength", "uses_labels")
    n = json.loads(row["counts"])
    return {**{name: known[name] for name in kept}, "interval": (known["low"], known["high"]), "change": change, "n": n}


def _rows_beside(path: Path, about: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a compact result; `about` names their file and its digest."""
    pd = need("pandas")

    rows = path.parent / Path(str(about.get("file", ""))).name
    if not rows.is_file():
        raise InvalidInputError(f"{path}: its rows are in {rows.name}, which is not beside it; copy both files")
    if digest(rows) != about.get("sha256"):
        raise InvalidInputError(f"{rows}: is not the file that {path.name} was written with; copy both files")
    return [_unflat(row) for row in pd.read_parquet(rows).to_dict("records")]


def _command() -> str | None:
    """The command line of `vldebias`, or of a script, without the folders of this machine; None in a notebook."""
    program = Path(sys.argv[0] if sys.argv else "")
    own = program.name == "vldebias" or program.parts[-2:] == ("vldebias", "__main__.py")
    if not own and (program.suffix != ".py" or program.name == "__main__.py"):
        return None
    module = getattr(sys.modules["__main__"], "__spec__", None)  # of `python -m`; a script that is a file has none
    start = ["vldebias"] if own else ["python", "-m", module.name] if module else ["python", program.name]
    return shlex.join([*start, *(re.sub(r"(^|=)(/|[A-Za-z]:[/\\\\]).*[/\\\\]", r"\1", word) for word in sys.argv[1:])])
