"""Run an experiment that is a YAML file: train what is missing, print and write its table and its picture.

python -m eval.experiments.run                                         # the experiments there are
python -m eval.experiments.run noisy_captions                          # all cells, into eval/results
python -m eval.experiments.run noisy_captions --work DIR               # where cells are kept, for a second start
python -m eval.experiments.run noisy_captions --seeds 2 --steps 20 --out try  # a quick look
python -m eval.experiments.run mine.yaml --out try                     # one of your own

Beside it the command line of the experiments that give a `Result` by themselves: measure, print, write.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eval.experiments.cells import RESULTS, cores
from eval.experiments.curves import draw_curves
from eval.experiments.experiment import Experiment, names
from eval.metrics import register_metrics
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import Result, TaskResult

MANY = 100  # rows from which on a result is kept compact


def parser(description: str | None) -> argparse.ArgumentParser:
    """With --json; an experiment adds its own options."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, help="also write the result here, with many rows as parquet beside it")
    return made


def run(name: str, measure: Callable[[], Iterable[TaskResult]], path: Path | None) -> Result:
    """Measure, print the wholes of every task, write where asked to."""
    register_metrics()
    started = time.monotonic()
    parts = list(measure())
    result = Result.of(name, parts, seconds=round(time.monotonic() - started, 1))
    show(result)
    if path:
        result.write(path, compact=len(result.rows) > MANY)
    return result


def show(result: Result) -> None:
    """Every row with its interval and its change to "none"."""
    table = Table("task", "metric", "method", "subset", "value", "95 % interval", "change to none", title=result.name)
    for row in result.rows:
        interval = "" if row.interval[0] == row.interval[1] else "[{:.3f}, {:.3f}]".format(*row.interval)
        change = "" if row.change is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row.change)
        method = row.method if row.lam is None else f"{row.method}, lam {row.lam:g}"
        table.add_row(row.task, row.metric, method, row.subset, f"{row.value:.3f}", interval, change)
    Console(width=180).print(table)


def skip(path: Path) -> None:
    """Say that a part is left out since its file is not there."""
    message = f"SKIPPED: {path} is missing; set VLDEBIAS_REAL to its folder"
    Console(stderr=True).print(message, style="yellow", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("experiment", nargs="?", metavar="NAME", help="of eval/experiments/NAME.yaml, or a .yaml file")
    options.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    options.add_argument("--work", type=Path, help="folder of finished cells (default: NAME-cells)")
    options.add_argument("--seeds", type=int, help="trainings per cell, at least 2")
    options.add_argument("--steps", type=int, help="updates per training")
    options.add_argument("--processes", type=int, default=cores(), help="cells at a time, a thread each")
    given = options.parse_args(arguments)
    if given.experiment is None:
        for name in names():
            print(f"{name:22} {Experiment.read(name).about.splitlines()[0]}")
        return 0
    try:
        experiment = Experiment.read(given.experiment)
        seeds, steps = given.seeds or experiment.seeds, given.steps or experiment.steps
        if seeds < 2:
            options.error("--seeds: an interval over seeds needs at least 2")
        work = given.work or Path(f"{experiment.name}-cells")
        result = experiment.run(work, seeds=seeds, steps=steps, processes=given.processes)
        written = result.write(given.out / f"{experiment.name}.json")
    except InvalidInputError as error:
        options.exit(2, f"{error}\n")
    show(result)
    if experiment.curves:
        draw_curves(result, written.with_suffix(".png"), next(iter(experiment.metrics)), experiment.curves)
    elif draw := getattr(experiment.module, "draw", None):
        draw(result, written.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
