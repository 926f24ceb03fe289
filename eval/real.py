"""Verify contributed results for real models in pull requests, and create their table.

`python -m eval.real` verifies eval/results/real/*/result.json against manifest.json, and exits with
1 if any result is invalid.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from apps.paper.tables import PARTS, command
from eval.tables import RESULTS, span, table
from vldebias.errors import VldebiasError
from vldebias.measure.rows import NONE, Measurement
from vldebias.report.result import Result

REAL = RESULTS / "real"
HEADLINE = ("worst_group", "max_skew@1000", "discrepancy_squared")
"""The first of these metrics that a task reports represents the task."""
PICKED_AGAIN = ("worst_group", "gap", "gap_reweighted")
"""Metrics for which each resample determines a new worst group. The value may therefore be outside
of the interval."""


def problems(folder: Path) -> Iterator[str]:
    """Yield the errors in the files, versions and numbers of a contributed folder."""
    try:
        result = Result.read(folder / "result.json")
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, VldebiasError) as error:
        yield f"expected a valid result.json and manifest.json from the same run: {error}"
        return
    yield from wrong_run(result, manifest, (folder / "result.json").read_bytes())
    yield from wrong_figures(result)


def wrong_run(result: Result, manifest: dict[str, Any], content: bytes) -> Iterator[str]:
    """Yield the reasons why a result file may not be the output of a run of a commit."""
    digest = hashlib.sha256(content).hexdigest()
    if manifest.get("files", {}).get("result.json") != digest:
        yield (
            "result.json was changed after the run: its SHA-256 hash differs from the one in"
            " manifest.json"
        )
    missing = sorted({"vldebias", "torch"} - set(result.versions))
    if missing:
        yield f"versions of {', '.join(missing)} are missing, got only {sorted(result.versions)}"
    if result.commit and result.commit.endswith("-dirty"):
        yield f"commit {result.commit}: measured with changed files. Commit them and measure again"


def wrong_figures(result: Result) -> Iterator[str]:
    """Yield errors for rows without provenance, number of images or interval."""
    tasks = {protocol.task for protocol in result.provenance}
    for row in result.rows:
        where = ", ".join(filter(None, (row.task, row.metric, row.method, row.subset)))
        if row.task not in tasks:
            yield f"{where}: the provenance of the task is missing"
        elif not row.n:
            yield f"{where}: does not state how many images were measured"
        low, high = row.interval
        is_finite = all(map(math.isfinite, (row.value, low, high)))
        is_around = low <= row.value <= high or (row.metric in PICKED_AGAIN and low <= high)
        if not is_finite or not is_around:
            yield f"{where}: expected an interval around the value, got {row.value} [{low}, {high}]"


def headlines(result: Result) -> Iterator[tuple[Measurement, Measurement]]:
    """Yield pairs of rows with and without a method, for the headline metric of each task."""
    for task in dict.fromkeys(row.task for row in result.rows):
        rows = [row for row in result.rows if row.task == task and not row.subset]
        measured_metrics = {row.metric for row in rows}
        metric = next((name for name in HEADLINE if name in measured_metrics), None)
        # If lam varies, use the first row of each method.
        row_of_method = {row.method: row for row in reversed(rows) if row.metric == metric}
        none = row_of_method.pop(NONE, None)
        if none is None:
            continue
        for row in row_of_method.values():
            if row.change is not None:
                yield none, row


def measured() -> str:
    """Write a table of the measured models, and the commands that measure all others."""
    lines = [["model", "data", "method", "metric", "none", "with it", "n", "result"]]
    results = []
    open_runs = []
    for path in sorted(REAL.glob("*/result.json")):
        result = Result.read(path)
        results.append(result)
        models = {protocol.task: protocol.model for protocol in result.provenance}
        for none, row in headlines(result):
            n = ", ".join(f"{count:,} {counted}" for counted, count in row.n.items())
            start = [models[row.task], row.task, f"`{row.method}`", row.metric]
            lines.append([*start, span(none), span(row), n, f"`{path.parent.name}`"])
    for suite, models_of_suite in PARTS.items():
        for model in models_of_suite:
            if not any(has_measured(result, suite, model) for result in results):
                open_runs.append(f"- `{command(suite, model)}`\n")
    contributed = table(*lines) if results else "\n"
    return contributed + "Not measured yet:\n\n" + "".join(open_runs) + "\n"


def has_measured(result: Result, suite: str, model: str) -> bool:
    """Return whether a result contains a task from a suite on a model."""

    def plain(name: str) -> str:
        return "".join(filter(str.isalnum, name.lower()))

    for protocol in result.provenance:
        # Tasks in `generation` and `human` do not contain the name of the suite.
        is_of_suite = suite in (result.name, *protocol.task.split())
        if is_of_suite and plain(model) in plain(protocol.model):
            return True
    return False


def main() -> int:
    """Print the errors in each contributed folder."""
    wrong = [
        (path.name, text)
        for path in sorted(REAL.iterdir())
        if path.is_dir()
        for text in problems(path)
    ]
    for name, text in wrong:
        print(f"{name}: {text}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
