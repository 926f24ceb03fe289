"""`vldebias.diagnose` on many features: seconds and peak memory, beside cross-validated logistic regression on a tenth.

python -m eval.benchmarks.diagnose                                          # some minutes of two cores
python -m eval.benchmarks.diagnose --json eval/results/bench_diagnose.json
python -m eval.benchmarks.diagnose --rows 5000 --dim 64                     # a quick look

Ours is the whole call: probes of an attribute and of ten classes with 20 permutations each, groups, wrong labels,
margins, geometry. The plain alternative answers one of its questions, which labels a classifier that did not see the
row does not believe, for a tenth of the rows: scikit-learn's cross_val_predict of LogisticRegression, five folds, as
shipped. Each runs in a process of its own on two threads; the peak is that of the whole process, libraries included.
Wall seconds hold for a machine that does nothing else, processor seconds nearly so for any.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from eval.benchmarks.timing import show
from eval.experiments.records import rows_of, write_records
from eval.tables import Cells, shows
from vldebias.evaluation.result import Result
from vldebias.evaluation.sources import imported, refuse_uncommitted

CLASSES, NOISE = 10, 0.05  # share of labels that are another class
SIDES = ("diagnose", "logistic regression, a tenth")


def features(rows: int, dim: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features (n, d) float32 whose directions weigh less and less, told classes (n,) and an attribute (n,)."""
    rng = np.random.default_rng(0)
    classes = rng.integers(CLASSES, size=rows)
    attribute = (rng.random(rows) < 0.2 + 0.6 * (classes % 2)).astype(int)
    found = rng.standard_normal((rows, dim), dtype=np.float32) * (1 + np.arange(dim, dtype=np.float32)) ** -0.5
    found += 0.5 * rng.standard_normal((CLASSES, dim), dtype=np.float32)[classes] / dim**0.25
    found += 0.3 * rng.standard_normal((2, dim), dtype=np.float32)[attribute] / dim**0.25
    told = np.where(rng.random(rows) < NOISE, (classes + rng.integers(1, CLASSES, rows)) % CLASSES, classes)
    return found, told, attribute


def measured(side: str, rows: int, dim: int) -> dict[str, Any]:
    """Seconds and peak memory of one side, in this process."""
    before: Any = None
    if side == SIDES[0]:
        import vldebias
        import vldebias.evaluation.diagnosis  # not timed, as scikit-learn's import is not

        x, y, attribute = features(rows, dim)
        before = time.perf_counter(), time.process_time()
        result = vldebias.diagnose(x, y, groups=attribute)
        figures = {"suspect labels": next(row.value for row in result.rows if row.metric == "suspect_labels")}
    else:
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import cross_val_predict

        x, y, _ = features(rows, dim)
        x, y = x[: rows // 10], y[: rows // 10]
        x /= np.linalg.norm(x, axis=1, keepdims=True)  # of length 1, as ours
        before = time.perf_counter(), time.process_time()
        named = cross_val_predict(LogisticRegression(max_iter=1000), x, y, cv=5)
        figures = {"suspect labels": float((named != y).mean())}
    wall, processor = time.perf_counter() - before[0], time.process_time() - before[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kB on Linux
    return {"rows": len(x), "seconds": wall, "processor seconds": processor, "peak MB": peak, **figures}


@shows("docs/how-to/diagnose.md", "bench_diagnose")
def page_rows(result: Result) -> Cells:
    """A row for each side of the benchmark of `diagnose`."""
    head = ["", "rows", "processor seconds", "seconds", "peak MB"]
    return [head, *([row["what"], *(f"{row[name]:,.0f}" for name in head[1:])] for row in rows_of(result, "what"))]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", type=Path, help="also write the rows here")
    options.add_argument("--rows", type=int, default=100_000)
    options.add_argument("--dim", type=int, default=768)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)  # of a process that measures
    given = options.parse_args()
    if given.side:
        print(json.dumps(measured(given.side, given.rows, given.dim)))
        return
    if given.json:
        import vldebias.evaluation.diagnosis  # noqa: F401  # one of the sources, though other processes measure it

        refuse_uncommitted(given.json, imported())
    found = []
    counted = {f"{library}_NUM_THREADS": str(given.threads) for library in ("OMP", "MKL", "OPENBLAS")}
    counted |= {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}  # a thread that waits counts no processor seconds
    for side in SIDES:
        command = [sys.executable, "-m", "eval.benchmarks.diagnose", "--side", side]
        command += ["--rows", str(given.rows), "--dim", str(given.dim)]
        done = subprocess.run(command, env={**os.environ, **counted}, stdout=subprocess.PIPE, text=True, check=True)
        found.append({"what": side, "size": f"{given.rows:,} x {given.dim}", **json.loads(done.stdout)})
    show(found)
    if given.json:
        about = "Each in a process of its own; the plain side has a tenth of the rows and answers one of the questions"
        settings = {"threads": given.threads, "machine": platform.machine(), "classes": CLASSES, "wrong": NOISE}
        write_records(given.json, about, found, "what", ("size",), **settings)


if __name__ == "__main__":
    main()
