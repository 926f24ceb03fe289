"""Results of plain rows: what is counted or timed once, without units to resample."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.experiments.experiment import place_of, subset
from vldebias.evaluation.result import Result, TaskProvenance, TaskResult
from vldebias.metrics import Metric


def records(
    task: str,
    about: str,
    rows: Sequence[Mapping[str, Any]],
    method: str,
    columns: Sequence[str] = (),
    /,
    **settings: Any,
) -> TaskResult:
    """A task of rows: `method` and `columns` say what a row is about, and each of its numbers is a figure.

    A number in a mapping is named by both keys, "memory, ours". Texts and lists stay beside the figures, in the
    settings as "beside".
    """
    part, beside = TaskResult(TaskProvenance(task=task, description=about, settings=dict(settings))), []
    for row in rows:
        place = {name: row[name] for name in columns if row.get(name) is not None}
        rest = {name: value for name, value in row.items() if name not in (method, *columns)}
        for metric, value in _numbers(rest):
            part.add(Metric(metric, metric), str(row[method]), value, n={"measured": 1}, subset=subset(place))
        other = {name: value for name, value in rest.items() if not isinstance(value, (int, float, Mapping)) and value}
        if other:
            beside.append({"method": str(row[method]), "subset": subset(place), **other})
    if beside:
        part.provenance.settings["beside"] = beside
    return part


def _numbers(row: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{under}{name}, ")
        elif isinstance(value, (int, float)):
            yield f"{under}{name}", float(value)


def write_records(
    path: Path, about: str, rows: Sequence[Mapping[str, Any]], method: str, columns: Sequence[str] = (), /, **more: Any
) -> Path:
    """A result of one such task, which has the name of its file."""
    return Result.of(path.stem, [records(path.stem, about, rows, method, columns, **more)], seconds=None).write(path)


def rows_of(result: Result, method: str = "method") -> list[dict[str, Any]]:
    """The rows again: what they are about, their figures, and what stands beside these."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in result.rows:
        place = {name: value for name, value in place_of(row).items() if name not in ("task", "metric", "method")}
        found.setdefault((row.method, row.subset), {method: row.method, **place})[row.metric] = row.value
    for part in result.provenance:
        for beside in part.settings.get("beside", ()):
            other = {name: value for name, value in beside.items() if name not in ("method", "subset")}
            found[beside["method"], beside["subset"]] |= other
    return list(found.values())
