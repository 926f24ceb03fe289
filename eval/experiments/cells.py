"""Many small trainings: cells of a table, each done once, kept as its own file, summed up over seeds, and drawn.

A cell is a mapping of what distinguishes it (arm, noise, seed, ...). Its figures are written as soon as they are there,
so an experiment that was stopped goes on with the cells that are missing. Figures of a cell do not depend on the
others, nor on how many processes work: each uses one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats

from vldebias.files import commit, versions, write_atomically
from vldebias.progress import Progress

Cell = Mapping[str, Any]
Work = Callable[[Cell], dict[str, float]]
RESULTS = Path(__file__).parents[1] / "results"
COLOURS = ("#d95f02", "#9ecae1", "#6baed6", "#3182bd", "#08306b", "#7570b3")


def run_cells(work: Work, cells: Sequence[Cell], folder: Path, *, processes: int, title: str) -> list[dict[str, Any]]:
    """The cells with their figures under "figures", in order; those that `folder` has are not done again.

    `work` must be a function of a module, since it runs in other processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells if not _file(folder, cell).is_file()]
    with Progress.on() as progress, progress.bar(title, len(missing), there=len(cells) - len(missing)) as bar:
        for cell, figures in _done(work, missing, processes):
            write_atomically(_file(folder, cell), json.dumps({**cell, "figures": figures}, indent=1) + "\n")
            bar.advance()
    return [json.loads(_file(folder, cell).read_text()) for cell in cells]


def _done(work: Work, cells: Sequence[Cell], processes: int) -> Iterable[tuple[Cell, dict[str, float]]]:
    if processes == 1:
        torch.set_num_threads(1)
        yield from ((cell, work(cell)) for cell in cells)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        futures = {pool.submit(work, cell): cell for cell in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)  # what runs is lost, what waits is not begun
            raise


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


def write_result(path: Path, protocol: Mapping[str, Any], rows: Sequence[Any], cells: Sequence[Any]) -> None:
    """The table with its protocol, and under "cells" what every training gave."""
    about = {"protocol": dict(protocol), "versions": versions(), "commit": commit()}
    write_atomically(path, one_per_line({**about, "rows": rows, "cells": cells}))


def one_per_line(content: Mapping[str, Any]) -> str:
    """JSON with the entries of every list at the top in a line each: small, and readable in a diff."""
    parts = []
    for name, value in content.items():
        text = json.dumps(value, indent=1)
        if isinstance(value, Sequence) and not isinstance(value, str):
            text = "[\n" + ",\n".join(json.dumps(one) for one in value) + "\n]"
        parts.append(f"{json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def arguments_of(
    description: str | None,
    name: str,
    steps: int,
    arguments: Sequence[str] | None,
    *,
    seeds: int = 5,
    flags: Mapping[str, str] | None = None,
) -> argparse.Namespace:
    """The command line that all these experiments have: out, work, seeds, steps, processes; and flags with a help."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    parser.add_argument("--work", type=Path, default=Path(f"{name}-cells"), help="folder of finished trainings")
    parser.add_argument("--seeds", type=int, default=seeds, help="trainings per cell, at least 2")
    parser.add_argument("--steps", type=int, default=steps, help="updates per training")
    parser.add_argument("--processes", type=int, default=cores(), help="trainings at a time, a thread each")
    for flag, about in (flags or {}).items():
        parser.add_argument(flag, action="store_true", help=about)
    given = parser.parse_args(arguments)
    if given.seeds < 2:
        parser.error("--seeds: an interval over seeds needs at least 2")
    return given


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Curve:
    """One panel: the column on its x axis, and for every line the columns that choose its rows."""

    title: str
    x: str
    lines: Mapping[str, Mapping[str, Any]]
    logarithmic: bool = False


def draw_curves(result: Path, picture: Path, metric: str, panels: Sequence[Curve], title: str) -> None:
    """The picture of a result file, from nothing else."""
    rows = [row for row in json.loads(result.read_text())["rows"] if row["metric"] == metric]
    figure = Figure(figsize=(5 * len(panels), 4), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _panel(axes, rows, panel, metric)
    figure.savefig(picture, dpi=110, metadata={"Title": title})


def _panel(axes: Axes, rows: Sequence[dict[str, Any]], panel: Curve, metric: str) -> None:
    for (label, chosen), colour in zip(panel.lines.items(), COLOURS, strict=False):
        own = [r for r in rows if panel.x in r and all(r.get(name) == value for name, value in chosen.items())]
        x = [row[panel.x] for row in own]
        axes.plot(x, [row["value"] for row in own], marker="o", ms=4, color=colour, label=label)
        axes.fill_between(x, [r["low"] for r in own], [r["high"] for r in own], color=colour, alpha=0.15)
    axes.set(xlabel=panel.x, ylabel=metric.replace("_", " "), title=panel.title)
    axes.set_ylim(0, 1.02)
    if panel.logarithmic:
        axes.set_xscale("log")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
