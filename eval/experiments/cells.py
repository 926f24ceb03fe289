"""Many small trainings: cells of a table, each done once, kept as its own file, and summed up over seeds.

A cell is a mapping of what distinguishes it (arm, noise, seed, ...). Its figures are written as soon as they are there,
so an experiment that was stopped goes on with the cells that are missing. Figures of a cell do not depend on the
others, nor on how many processes work: each uses one thread.
"""

from __future__ import annotations

import base64
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
from numpy.typing import NDArray
from scipy import stats

from vldebias.files import commit, write_atomically
from vldebias.progress import Progress

Cell = Mapping[str, Any]
Work = Callable[[Cell], dict[str, Any]]
ROWS = "rows: "  # before the name of a figure: what each image scored, see `packed`
RESULTS = Path(__file__).parents[1] / "results"


def run_cells(work: Work, cells: Sequence[Cell], folder: Path, *, processes: int, title: str) -> list[dict[str, Any]]:
    """The cells with their figures under "figures", in order; those that `folder` has are not done again.

    Under "commit" is that of the checkout that did a cell. `work` must be a function of a module, since it
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
    return {"figures": work(cell), "commit": commit()}


def _file(folder: Path, cell: Cell) -> Path:
    name = hashlib.sha256(json.dumps(cell, sort_keys=True).encode()).hexdigest()
    return folder / f"{name[:16]}.json"


def summed_up(
    cells: Sequence[Mapping[str, Any]], by: Sequence[str], *, against: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """One row per setting of the columns `by` and metric: mean over seeds with its 95 % interval of Student's t.

    against: columns and values of the arm that others are compared with: `change` is the mean difference to the cell
    of the same seed in which these columns have these values, with its interval; pairing takes out what the seeds'
    data, noise and first weights have in common. A metric that the other arm lacks has none. Where cells have `packed`
    what each image scored, intervals are over seeds and images together.
    """
    by_key: dict[tuple[Any, ...], dict[int, Mapping[str, float]]] = {}
    for cell in cells:
        by_key.setdefault(tuple(cell[name] for name in by), {})[cell["seed"]] = cell["figures"]
    rows = []
    for key, seeds in by_key.items():
        place = dict(zip(by, key, strict=True))
        base = None if against is None else by_key[tuple({**place, **against}[name] for name in by)]
        for metric in (name for name in next(iter(seeds.values())) if not name.startswith(ROWS)):
            values = {seed: figures[metric] for seed, figures in seeds.items()}
            each = [unpacked(figures, metric) for figures in seeds.values()]
            row = {**place, "metric": metric, **interval(list(values.values()), rows=each), "seeds": sorted(values)}
            if base is not None and base is not seeds and metric in next(iter(base.values())):
                others = [unpacked(base[seed], metric) for seed in seeds]
                apart = [
                    None if one is None or other is None else one - other
                    for one, other in zip(each, others, strict=True)
                ]
                row["change"] = interval([value - base[seed][metric] for seed, value in values.items()], rows=apart)
            rows.append(row)
    return rows


def interval(
    values: Sequence[float], level: float = 0.95, *, rows: Sequence[NDArray[np.float64] | None] = ()
) -> dict[str, float]:
    """Mean of independent values and its interval of Student's t.

    rows: for each value what its n images scored, the same images for all: seeds and images are crossed, so the
    variance of the mean over the images, of what an image scores in the mean over the seeds, is added to that over the
    seeds. What a seed does to an image by chance is then counted twice: the interval is a little too wide.
    """
    sample = np.asarray(values, float)
    mean = float(sample.mean())
    half = float(stats.t.ppf((1 + level) / 2, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    each = [one for one in rows if one is not None]
    if each and len(each) == len(sample):
        images = np.mean(each, axis=0)
        half = float(np.hypot(half, stats.norm.ppf((1 + level) / 2) * images.std(ddof=1) / np.sqrt(len(images))))
    return {"value": mean, "low": mean - half, "high": mean + half}


def packed(metric: str, rows: NDArray[Any]) -> dict[str, str]:
    """What each image scored for a metric, (n,) of 0 and 1, as a figure that JSON takes."""
    bits = base64.b64encode(np.packbits(np.asarray(rows) > 0.5).tobytes()).decode()
    return {ROWS + metric: f"{len(rows)}:{bits}"}


def unpacked(figures: Mapping[str, Any], metric: str) -> NDArray[np.float64] | None:
    """What `packed` wrote; None where a cell has none."""
    n, _, bits = figures.get(ROWS + metric, "").partition(":")
    if not n:
        return None
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8), count=int(n)).astype(float)


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
