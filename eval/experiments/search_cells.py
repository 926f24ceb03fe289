"""Re-rank the searches of many small galleries, and count those that get worse.

    python -m eval.experiments.search_cells --json eval/results/search_cells.json

The galleries are those in the folder in $VLDEBIAS_SEARCH, or in ../shared/search next to the
checkout: CelebA (CLIP ViT-B/32) by gender and age, and portraits of the miniature by gender, age,
skin tone and hair, each with several prompt sets, kinds of queries and compositions. `cells.json`
contains the change of the mean MaxSkew@k in each gallery with the best of twelve query edits, which
was selected by true labels. Galleries in which no edit removes anything have no such number.

A gallery is harmed if the 95% interval of its change is above 0.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import vldebias
from eval.tables import parser, run
from vldebias.errors import VldebiasWarning
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.metrics import Metric

RERANK = "rerank"
BEST = "best of twelve edits"
CHANGE = Metric("change", "change of the mean MaxSkew@k", "fact", "lower")
STAY = Metric("stay", "share of the first k that stay", "fact", "higher")
HARMED = Metric("harmed", "galleries whose MaxSkew@k surely rises", "fact", "lower")
HELPED = Metric("helped", "galleries whose MaxSkew@k surely falls", "fact", "higher")
UNCHANGED = Metric("unchanged", "galleries whose labels are unreliable, so nothing changes")
REMOVED = Metric("removed", "skew removed, as a share of what the best edit removes", "fact")


def folder() -> Path:
    """Return the folder with the galleries, which may not exist."""
    default = Path(__file__).resolve().parents[2].parent / "shared" / "search"
    return Path(os.environ.get("VLDEBIAS_SEARCH", default))


def measure() -> Iterator[TaskResult]:
    """Yield the results for every gallery, and then their sums by model and attribute."""
    best = {}
    for cell in json.loads((folder() / "cells.json").read_text(encoding="utf-8"))["cells"]:
        best[cell["id"]] = cell["best"]
    sys.path.insert(0, str(folder()))
    part = TaskResult(TaskProvenance(task="galleries", description="change of MaxSkew@k"))
    families: dict[str, list[tuple[tuple[float, float, float], float]]] = {}
    for cell in importlib.import_module("cells").cells():
        k = cell["k"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)
            result = vldebias.evaluate(
                cell["T"],
                cell["X"][cell["gi"]],
                attribute={"group": cell["ps"]},
                labels={"group": cell["L"][cell["gi"]]},
                queries=cell["Q"],
                k=k,
                methods=[RERANK],
                prior=cell["prior"],
                resamples=200,
            )
        row = result.row("retrieval group", f"max_skew@{k}", RERANK)
        stay = result.row("retrieval group", f"stay@{k}", RERANK).value
        change = row.change or (0.0, 0.0, 0.0)
        n = {"images": len(cell["gi"]), "queries": len(cell["Q"])}
        part.add(CHANGE, RERANK, change[0], change[1:], n=n, subset=cell["id"])
        part.add(STAY, RERANK, stay, n=n, subset=cell["id"])
        for family in ("all", cell["fam"]):
            families.setdefault(family, []).append((change, best[cell["id"]] or 0.0))
    yield part
    for family, rows in families.items():
        tally = TaskResult(TaskProvenance(task=f"sums: {family}", description="sums of changes"))
        n = {"galleries": len(rows)}
        changes = [change for change, _ in rows]
        tally.add(HARMED, RERANK, sum(low > 0 for _, low, _ in changes), n=n)
        tally.add(HELPED, RERANK, sum(high < 0 for _, _, high in changes), n=n)
        tally.add(UNCHANGED, RERANK, sum(not any(change) for change in changes), n=n)
        possible = sum(least for _, least in rows)
        if possible:
            tally.add(REMOVED, RERANK, sum(change for change, _, _ in changes) / possible, n=n)
        yield tally


def main() -> None:
    arguments = parser(__doc__).parse_args()
    if not (folder() / "cells.py").exists():
        print(f"SKIPPED: {folder()} is missing; set VLDEBIAS_SEARCH", file=sys.stderr)
        return
    run("search_cells", measure, arguments.json)


if __name__ == "__main__":
    main()
