"""Many small trainings: cells of a table, each done once, kept as its own file, and summed up over seeds.

A cell is a mapping of what distinguishes it (arm, noise, seed, ...). Its figures are written as soon as they are there,
so an experiment that was stopped goes on with the cells that are missing. Figures of a cell do not depend on the
others, nor on how many processes work: each uses one thread.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from vldebias.evaluation.sources import imported
from vldebias.files import write_atomically
from vldebias.progress import Progress

Cell = Mapping[str, Any]
Work = Callable[[Cell], dict[str, float]]
RESULTS = Path(__file__).parents[1] / "results"


def run_cells(work: Work, cells: Sequence[Cell], folder: Path, *, processes: int, title: str) -> list[dict[str, Any]]:
    """The cells with their figures under "figures", in order; those that `folder` has are not done again.

    Under "sources" is what the process that did a cell had imported. `work` must be a function of a module, since it
    runs in other processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not _file(folder, cell).is_file()]
    with Progress.on() as progress, progress.bar(title, len(missing), there=len(cells) - len(missing)) as bar:
        for cell, done in _done(work, missing, processes):
            write_atomically(_file(folder, cell), json.dumps({**cell, **done}, indent=1) + "\n")
            bar.advance()
    return [json.loads(_file(folder, cell).read_text()) for cell in cells]


def _done(work: Work, cells: Sequence[Cell], processes: int) -> Iterable[tuple[Cell, dict[str, Any]]]:
    if processes == 1:
        torch.set_num_threads(1)
        yield from ((cell, _one(work, cell)) for cell in cells)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {pool.submit(_one, work, cell): cell for cell in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what runs is lost, what waits is not begun
            raise


def _one(work: Work, cell: Cell) -> dict[str, Any]:
    return {"figures": work(cell), "sources": imported()}


def _file(folder: Path, cell: Cell) -> Path:
    name = hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()
    return folder / f"{name[:16]}.json"


def summed_up(
    cells: Sequence[Mapping[str, Any]], by: Sequence[str], *, against: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """One row per setting of the columns `by` and metric: mean over seeds with its 95 % interval of Student's t.

    against: columns and values of the arm that others are compared with: `change` is the mean difference to the cell
    of the same seed in which these columns have these values, with its interval; pairing takes out what the seeds'
    data, noise and first weights have in common. A metric that the other arm lacks has none.
    """
    by_key: dict[tuple[Any, ...], dict[int, Mapping[str, float]]] = {}
    for cell in cells:
        by_key.setdefault(tuple(cell[name] for name in by), {})[cell["seed"]] = cell["figures"]
    rows = []
    for key, seeds in by_key.items():
        place = dict(zip(by, key, strict=True))
        base = None if against is None else by_key[tuple({**place, **against}[name] for name in by)]
        for metric in next(iter(seeds.values())):
            values = {seed: figures[metric] for seed, figures in seeds.items()}
            row = {**place, "metric": metric, **interval(list(values.values())), "seeds": sorted(values)}
            if base is not None and base is not seeds and metric in next(iter(base.values())):
                row["change"] = interval([value - base[seed][metric] for seed, value in values.items()])
            rows.append(row)
    return rows


def interval(values: Sequence[float], level: float = 0.95) -> dict[str, float]:
    """Mean of independent values and its interval of Student's t."""
    sample = np.asarray(values, float)
    mean = float(sample.mean())
    half = float(stats.t.ppf((1 + level) / 2, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return {"value": mean, "low": mean - half, "high": mean + half}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
