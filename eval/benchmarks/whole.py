"""A million images through `vldebias.evaluate`, whole: processor time, and the most memory beside the features.

python -m eval.benchmarks.whole                                       # print the table
python -m eval.benchmarks.whole --json eval/results/bench_whole.json  # and write it
python -m eval.benchmarks.whole --rows 200000                         # fewer

Retrieval: 4 methods x 2 attributes x 50 queries x 2,000 resamples, k = 1000. Groups: 4 methods, 2,000 resamples, areas
with intervals. Both with a reference of as many images, from which "equalise" takes group means. Each in a process of
its own; memory is the resident peak (VmHWM of /proc/self/status: Linux only), with imports and both sets of features.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eval.benchmarks.timing import show
from eval.experiments.records import rows_of, write_records
from eval.tables import Cells, shows
from vldebias.evaluation.result import Result

DIM, TASKS = 512, ("retrieval", "groups")
COLUMNS = {
    "retrieval": {"gender": ["female", "male"], "race": ["asian", "black", "white"]},
    "groups": {"bird": ["landbird", "waterbird"], "place": ["land", "water"]},
}


def features(n: int, seed: int) -> np.ndarray:
    """(n, 512) float16 in a cone, as those of CLIP."""
    rows, draw = np.empty((n, DIM), np.float16), np.random.default_rng(seed)
    for start in range(0, n, 4096):
        rows[start : start + 4096] = draw.standard_normal((min(4096, n - start), DIM), dtype=np.float32) + 0.5
    return rows


def measure(task: str, n: int, resamples: int = 2000) -> dict[str, Any]:
    """A row of one task, in this process."""
    import vldebias
    from vldebias.evaluation.images import prompts_of
    from vldebias.prompts import load_prompts

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rng, people = np.random.default_rng(0), load_prompts("professions-gender")
    queries = (*people.classes, *people.held_out_classes)[:50]
    texts = {p: rng.normal(size=DIM) + 0.5 for p in [*prompts_of(["gender", "race", "waterbirds"]), *queries]}
    labels = {name: np.array(values)[rng.integers(len(values), size=n)] for name, values in COLUMNS[task].items()}
    images, reference = features(n, 1), features(n, 2)
    reference[: n // 100] = images[: n // 100]  # which are left out
    fields: dict[str, Any] = {"methods": ["none", "orth-cali", "cali", "equalise"], "resamples": resamples}
    if task == "retrieval":
        fields |= {"prompts": {name: name for name in labels}, "queries": queries, "k": min(1000, n // 20)}
    else:
        fields |= {"prompts": "waterbirds", "label": "bird", "spurious": "place"}
    start = time.process_time()
    found = vldebias.evaluate(texts, images, task=task, labels=labels, reference=reference, **fields)
    seconds = time.process_time() - start
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    held = (images.nbytes + reference.nbytes) / 2**20
    return {
        "what": task,
        "rows": n,
        "seconds": seconds,
        "peak MB": peak,
        "features MB": held,
        "figures": len(found.rows),
    }


@shows("docs/explanation/speed.md", "bench_whole")
def page_rows(result: Result) -> Cells:
    """A row for each task."""
    head = ["task", "images", "processor seconds", "peak MB of the process", "of which features"]
    names = ("rows", "seconds", "peak MB", "features MB")
    return [head, *([row["what"], *(f"{float(row[name]):,.0f}" for name in names)] for row in rows_of(result, "what"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", type=int, default=1_000_000, help="images, and of the reference (default: %(default)s)"
    )
    parser.add_argument("--task", choices=TASKS, help="one task, as JSON on stdout")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    given = parser.parse_args()
    if given.task:
        print(json.dumps(measure(given.task, given.rows)))
        return
    rows = []
    for task in TASKS:
        print(f"{task} ...", file=sys.stderr)
        command = [sys.executable, "-m", "eval.benchmarks.whole", "--task", task, "--rows", str(given.rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    show(rows)
    if given.json:
        about = "Processor seconds on one thread, and the peak of the process in MB"
        write_records(given.json, about, rows, "what", ("rows",), threads=1)


if __name__ == "__main__":
    main()
