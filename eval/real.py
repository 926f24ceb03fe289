"""Results that people measured on real models: verify what a pull request adds, and make the table
of the page.

`python -m eval.real` verifies eval/results/real/*/result.json against manifest.json, and ends with
exit code 1 where one fails.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from eval.tables import RESULTS, span, table
from vldebias.errors import VldebiasError
from vldebias.report.result import NONE, Measurement, Result
from vldebias.study.paper import PARTS, command

REAL = RESULTS / "real"
HEADLINE = ("worst_group", "max_skew@1000", "discrepancy_squared")
"""The metric that stands for a task, the first that it has."""
PICKED_AGAIN = ("worst_group", "gap", "gap_reweighted")
"""Of these a resample picks the worst group again, so that a value near its end may lie outside."""


def problems(folder: Path) -> Iterator[str]:
    """Yield what is wrong with a contributed folder: digests, versions, numbers of images,
    figures."""
    try:
        result = Result.read(folder / "result.json")
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, VldebiasError) as error:
        yield f"expected a result.json and the manifest.json of its run: {error}"
        return
    digest = hashlib.sha256((folder / "result.json").read_bytes()).hexdigest()
    if manifest.get("files", {}).get("result.json") != digest:
        yield (
            "result.json is not the file that the run left: its SHA-256 differs from that in"
            " manifest.json"
        )
    missing = sorted({"vldebias", "torch"} - set(result.versions))
    if missing:
        yield f"versions: expected those of {', '.join(missing)} among {sorted(result.versions)}"
    if result.commit and result.commit.endswith("-dirty"):
        yield f"commit {result.commit}: measured with changed files; commit them first"
    tasks = {one.task: one for one in result.provenance}
    for row in result.rows:
        where = f"{row.task}, {row.metric}, {row.method}{f', {row.subset}' if row.subset else ''}"
        if row.task not in tasks:
            yield f"{where}: no provenance of its task"
        elif not row.n:
            yield f"{where}: does not say of how many images"
        low, high = row.interval
        is_around = low <= row.value <= high or (row.metric in PICKED_AGAIN and low <= high)
        if not all(map(math.isfinite, (row.value, low, high))) or not is_around:
            yield f"{where}: {row.value} [{low}, {high}] is no figure with an interval around it"


def headlines(result: Result) -> Iterator[tuple[Measurement, Measurement]]:
    """Yield (none, method) of each task's headline metric, for every method that was measured."""
    for task in dict.fromkeys(row.task for row in result.rows):
        rows = [row for row in result.rows if row.task == task and not row.subset]
        metric = next((name for name in HEADLINE if any(row.metric == name for row in rows)), None)
        of = {
            row.method: row for row in reversed(rows) if row.metric == metric
        }  # the first, where lam varies
        if NONE in of:
            yield from (
                (of[NONE], row)
                for name, row in of.items()
                if name != NONE and row.change is not None
            )


def measured() -> str:
    """Return a row for each model, data set and method that somebody measured; a command where
    nobody did."""
    rows, done = [], set()
    for folder in sorted(path.parent for path in REAL.glob("*/result.json")):
        result = Result.read(folder / "result.json")
        models = {one.task: one.model for one in result.provenance}
        for bare, row in headlines(result):
            n = ", ".join(f"{count:,} {what}" for what, count in row.n.items())
            model = models[row.task]
            rows.append(
                [
                    model,
                    row.task,
                    f"`{row.method}`",
                    row.metric,
                    span(bare),
                    span(row),
                    n,
                    f"`{folder.name}`",
                ]
            )
        done |= {
            (suite, wanted)
            for suite in PARTS
            for wanted in PARTS[suite]
            if _is_of(result, suite, wanted)
        }
    for suite, models_wanted in PARTS.items():
        for model in models_wanted:
            if (suite, model) not in done:
                note = f"not measured: `{command(suite, model)}`"
                rows.append([model, suite, "", "", "", "", "", note])
    return table(["model", "data", "method", "metric", "none", "with it", "n", "result"], *rows)


def _is_of(result: Result, suite: str, model: str) -> bool:
    plain = "".join(filter(str.isalnum, model.lower()))
    # The tasks of `generation` and `human` have names of their own.
    return any(
        suite in (result.name, *one.task.split())
        and plain in "".join(filter(str.isalnum, one.model.lower()))
        for one in result.provenance
    )


def main() -> int:
    """Print what is wrong with each contributed folder."""
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
