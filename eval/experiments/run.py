"""Run an experiment from a YAML file, and print and write its table and figure.

    python -m eval.experiments.run                       # list the experiments
    python -m eval.experiments.run wrong_pairs           # run all cells, write to eval/results
    python -m eval.experiments.run wrong_pairs --work DIR  # store cells in a folder
    python -m eval.experiments.run wrong_pairs --seeds 2 --steps 20 --out try  # a quick test
    python -m eval.experiments.run mine.yaml --out try   # your own experiment

`work` names the function that runs a cell. It takes a mapping with the columns, "seed", "steps",
"settings" (from the cell's arm) and everything under `given`, and returns numbers by name. They are
written to a file as soon as a cell is finished, so that an interrupted experiment can resume. They
do not depend on other cells or on the number of processes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from importlib import import_module
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from scipy import stats

from eval.tables import MANY, RESULTS, plain_parser, show, subset
from vldebias.measure.rows import Measurement, TaskProvenance, TaskResult
from vldebias.report.result import Result
from vldebias.utils.files import commit, read_yaml, write_atomically
from vldebias.utils.progress import Progress

FOLDER = Path(__file__).parent
ROWS = "rows: "  # prefix of entries that contain scores by image, see `packed`
Place = dict[str, Any]
Cell = Mapping[str, Any]
Runs = dict[int, Mapping[str, Any]]  # numbers by seed
Work = Callable[[Cell], dict[str, Any]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Table(_Strict):
    """A table with every combination of columns, each run with at most `seeds` seeds.

    Tables for the same task are summarised together. `against` contains the columns and values of
    the baseline arm.
    """

    columns: dict[str, list[Any]]
    task: str = ""
    against: dict[str, Any] | None = None
    seeds: int | None = None


class Tuning(_Strict):
    """A search for the best settings for each combination of columns, using a separate seed."""

    columns: dict[str, list[Any]]
    tried: dict[str, list[Any]]
    at: dict[str, Any] = {}
    seed: int
    by: str
    steps: int | None = None


class Alike(_Strict):
    """Cells that do not depend on a column, so that one result is used for all values."""

    column: str
    where: dict[str, Any]


class Experiment(_Strict):
    """The contents of a YAML file, which has the name of the experiment.

    Attributes:
        method: The column that contains the method of a row.
        arms: The settings for each value of this column.
        also: Arms that other cells compute as by-products, as numbers named "arm: metric".
        metrics: The numbers to report, and their better direction.
        protocol: Information that a reader needs to interpret the results.
        draw: A function that takes the result and a path.
    """

    name: str
    about: str
    work: str
    method: str
    arms: dict[str, dict[str, Any]]
    given: dict[str, Any] = {}
    steps: int
    seeds: int = Field(5, ge=2)
    tables: list[Table]
    tuning: list[Tuning] = []
    also: list[str] = []
    alike: list[Alike] = []
    metrics: dict[str, Literal["higher", "lower", "neither"]]
    protocol: dict[str, str] = {}
    draw: str = ""

    @classmethod
    def read(cls, name: str | Path) -> Experiment:
        """Load an experiment in this folder by name, or any experiment by path."""
        path = Path(name) if str(name).endswith(".yaml") else FOLDER / f"{name}.yaml"
        return cls.model_validate({"name": path.stem, **read_yaml(path)})

    def run(self, folder: Path, *, seeds: int, steps: int, processes: int) -> Result:
        """Run the cells that are missing in `folder`, and summarise all cells."""
        do = partial(self._do, folder=folder, processes=processes)
        chosen = self.chosen(do(self.tried(steps), tuning=True))
        plan = self.plan(chosen, seeds, steps)
        done = do(
            [json.loads(one) for one in dict.fromkeys(_key(done_as) for _, _, done_as in plan)]
        )
        settings = {
            "given": self.given,
            "steps": steps,
            "chosen": [{**at, **best} for at, best in chosen],
        }
        provenance = TaskProvenance(
            task=self.name,
            description=self.about,
            methods=self.arms,
            seeds=list(range(seeds)),
            settings={**self.protocol, **settings},
        )
        return Result.from_tasks(
            self.name, [TaskResult(provenance, self.rows(plan, done))], seconds=None
        )

    def tried(self, steps: int) -> list[Place]:
        """Return the cells that select settings."""
        return [
            {
                **place,
                **one.at,
                "seed": one.seed,
                "steps": self._steps(one.steps, steps),
                **settings,
            }
            for one in self.tuning
            for place in combinations(one.columns)
            for settings in combinations(one.tried)
        ]

    def chosen(self, tuning: Sequence[Cell]) -> list[tuple[Place, Place]]:
        """Return the settings with the highest score for each tuning, or the first in ties."""
        found = []
        for one in self.tuning:
            for place in combinations(one.columns):
                candidates = [cell for cell in tuning if place.items() <= cell.items()]
                best = max(candidates, key=lambda cell: cell["figures"][one.by])
                found.append((place, {name: best[name] for name in one.tried}))
        return found

    def plan(
        self, chosen: Sequence[tuple[Place, Place]], seeds: int, steps: int
    ) -> list[tuple[Table, Place, Place]]:
        """Return (table, cell, cell to run) for all cells, with their selected settings."""
        plan = []
        for table in self.tables:
            for place in combinations(table.columns):
                own = dict(place)
                for alike in self.alike:
                    if alike.where.items() <= own.items():
                        own[alike.column] = table.columns[alike.column][0]
                best = next(
                    (settings for where, settings in chosen if where.items() <= own.items()), {}
                )
                for seed in range(min(seeds, table.seeds or seeds)):
                    rest = {"seed": seed, "steps": self._steps(None, steps), **best}
                    plan.append((table, {**place, **rest}, {**own, **rest}))
        return plan

    def _steps(self, own: int | None, steps: int) -> int:
        """Return the number of steps of a cell, scaled if --steps differs from the default."""
        return round((own or self.steps) * steps / self.steps)

    def rows(
        self, plan: Sequence[tuple[Table, Place, Place]], done: Sequence[Cell]
    ) -> list[Measurement]:
        """Return the means of numbers over seeds, with changes paired by seed."""
        figures, rows = {_key(cell): cell["figures"] for cell in done}, []
        for task in dict.fromkeys(table.task for table in self.tables):
            own = [
                (table, cell, figures[_key(done_as)])
                for table, cell, done_as in plan
                if table.task == task
            ]
            cells = [one for _, cell, found in own for one in self._apart(cell, found)]
            first = own[0][0]
            for row in summed_up(cells, tuple(first.columns), against=first.against):
                if row["metric"] in self.metrics:
                    place = {name: row[name] for name in first.columns if name != self.method}
                    rows.append(
                        Measurement(
                            task=task or self.name,
                            metric=row["metric"],
                            method=row[self.method],
                            subset=subset(place),
                            value=row["value"],
                            interval=(row["low"], row["high"]),
                            change=tuple(row["change"].values()) if "change" in row else None,
                            better=self.metrics[row["metric"]],
                            n={"seeds": len(row["seeds"])},
                        )
                    )
        return rows

    def _apart(self, cell: Place, figures: Mapping[str, Any]) -> Iterator[Place]:
        """Yield the arms in `also` as separate cells, and then the cell itself."""
        parts: dict[str, Place] = {arm: {} for arm in (*self.also, cell[self.method])}
        for name, value in figures.items():
            arm, _, rest = name.partition(": ")
            if arm in self.also:
                parts[arm][rest] = value
            else:
                parts[cell[self.method]][name] = value
        return ({**cell, self.method: arm, "figures": own} for arm, own in parts.items() if own)

    def _do(
        self, cells: Sequence[Place], *, folder: Path, processes: int, **more: Any
    ) -> list[Place]:
        """Run cells, with their own settings and the experiment's, and return their numbers."""
        whole = [
            {**self.given, **more, **cell, "settings": self.arms[cell[self.method]]}
            for cell in cells
        ]
        done = run_cells(named(self.work), whole, folder, processes=processes, title=self.name)
        return [{**cell, "figures": figures} for cell, figures in zip(cells, done, strict=True)]


def named(function: str) -> Any:
    """Import a function by a name such as "module:name"."""
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


def combinations(columns: Mapping[str, Sequence[Any]]) -> list[Place]:
    """Return all combinations of column values."""
    return [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]


def _key(cell: Cell) -> str:
    return json.dumps(
        {name: value for name, value in cell.items() if name != "figures"}, sort_keys=True
    )


# ---- cells
# -------------------------------------------------------------------------------------------------


def run_cells(
    work: Work, cells: Sequence[Cell], folder: Path, *, processes: int, title: str
) -> list[dict[str, Any]]:
    """Return the numbers from cells in order, running those without results from this commit.

    `work` must be a function in a module, because it runs in other processes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made = commit()
    files = [
        folder / f"{hashlib.sha256(f'{made} {_key(cell)}'.encode()).hexdigest()[:16]}.json"
        for cell in cells
    ]
    missing = [(cell, file) for cell, file in zip(cells, files, strict=True) if not file.is_file()]
    with (
        Progress() as progress,
        progress.bar(title, len(missing), reused=len(cells) - len(missing)) as advance,
    ):
        for file, figures in _done(work, missing, processes):
            write_atomically(file, json.dumps(figures, indent=1) + "\n")
            advance()
    return [json.loads(file.read_text()) for file in files]


def _done(
    work: Work, cells: Sequence[tuple[Cell, Path]], processes: int
) -> Iterator[tuple[Path, dict[str, Any]]]:
    if processes == 1:
        torch.set_num_threads(1)
        yield from ((file, work(cell)) for cell, file in cells)
        return
    with ProcessPoolExecutor(
        processes, get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        futures = {pool.submit(work, cell): file for cell, file in cells}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(
                wait=False, cancel_futures=True
            )  # discard running cells, and do not start waiting ones
            raise


# ---- summaries
# -------------------------------------------------------------------------------------------------


def summed_up(
    cells: Sequence[Cell], by: Sequence[str], *, against: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the mean over seeds with its interval, for each combination of columns and metric.

    `against` contains the columns and values of the baseline arm. `change` is the mean difference
    from the baseline's cell with the same seed, with its interval. Pairing removes the variance
    from shared data, noise and initial weights. There is no change for metrics that the baseline
    lacks. If cells contain `packed` scores by image, intervals are over seeds and images.
    """
    runs_of_key: dict[tuple[Any, ...], Runs] = {}
    for cell in cells:
        key = tuple(cell[name] for name in by)
        runs_of_key.setdefault(key, {})[cell["seed"]] = cell["figures"]
    rows = []
    for key, runs in runs_of_key.items():
        place = dict(zip(by, key, strict=True))
        base = runs
        if against is not None:
            place_of_base = {**place, **against}
            base = runs_of_key[tuple(place_of_base[name] for name in by)]
        for metric in next(iter(runs.values())):
            if metric.startswith(ROWS):
                continue
            row = {**place, "metric": metric, **mean(runs, metric), "seeds": sorted(runs)}
            if base is not runs and metric in next(iter(base.values())):
                row["change"] = mean_change(runs, base, metric)
            rows.append(row)
    return rows


def mean(runs: Runs, metric: str) -> dict[str, float]:
    """Return the mean of a metric over seeds with its interval."""
    values = [figures[metric] for figures in runs.values()]
    rows = [unpacked(figures, metric) for figures in runs.values()]
    return interval(values, rows=rows)


def mean_change(runs: Runs, base: Runs, metric: str) -> dict[str, float]:
    """Return the mean difference from the run with the same seed, with its interval."""
    gains = []
    gains_of_images: list[NDArray[np.float64] | None] = []
    for seed, figures in runs.items():
        gains.append(figures[metric] - base[seed][metric])
        scored = unpacked(figures, metric)
        scored_before = unpacked(base[seed], metric)
        if scored is None or scored_before is None:
            gains_of_images.append(None)
        else:
            gains_of_images.append(scored - scored_before)
    return interval(gains, rows=gains_of_images)


def interval(
    values: Sequence[float], *, rows: Sequence[NDArray[np.float64] | None] = ()
) -> dict[str, float]:
    """Return the mean of independent values with its 95% interval from Student's t.

    `rows` contains the scores of the same n images for each value. Because seeds and images are
    crossed, the variance over images (of the mean score over seeds) is added to the variance over
    seeds. Interactions between seeds and images are then counted twice, so that the interval is
    slightly too wide.
    """
    sample = np.asarray(values, float)
    mean = float(sample.mean())
    half = float(stats.t.ppf(0.975, len(sample) - 1) * sample.std(ddof=1) / np.sqrt(len(sample)))
    present = [row for row in rows if row is not None]
    if present and len(present) == len(sample):
        images = np.mean(present, axis=0)
        half = float(
            np.hypot(half, stats.norm.ppf(0.975) * images.std(ddof=1) / np.sqrt(len(images)))
        )
    return {"value": mean, "low": mean - half, "high": mean + half}


def packed(metric: str, rows: NDArray[Any]) -> dict[str, str]:
    """Encode the scores (n,) of images for a metric, which are 0 or 1, as text for JSON."""
    bits = base64.b64encode(np.packbits(np.asarray(rows) > 0.5).tobytes()).decode()
    return {ROWS + metric: f"{len(rows)}:{bits}"}


def scored(metric: str, rows: NDArray[Any]) -> dict[str, Any]:
    """Return the mean of the scores (n,) of images, which are 0 or 1, with the scores."""
    return {metric: float(rows.mean()), **packed(metric, rows)}


def unpacked(figures: Mapping[str, Any], metric: str) -> NDArray[np.float64] | None:
    """Return the scores that `packed` has encoded, or None if there are none."""
    n, _, bits = figures.get(ROWS + metric, "").partition(":")
    if not n:
        return None
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8), count=int(n)).astype(
        float
    )


def main(arguments: Sequence[str] | None = None) -> int:
    options = plain_parser(__doc__)
    options.add_argument(
        "experiment",
        nargs="?",
        metavar="NAME",
        help="name of an experiment in eval/experiments, or path of a .yaml file",
    )
    options.add_argument("--out", type=Path, default=RESULTS, help="folder of the result")
    options.add_argument("--work", type=Path, help="folder for cells (default: NAME-cells)")
    options.add_argument("--seeds", type=int, help="number of seeds, at least 2")
    options.add_argument("--steps", type=int, help="updates per training")
    options.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="cells at a time, a thread each"
    )
    args = options.parse_args(arguments)
    if args.experiment is None:
        for path in sorted(FOLDER.glob("*.yaml")):
            print(f"{path.stem:22} {Experiment.read(path).about.splitlines()[0]}")
        return 0
    experiment = Experiment.read(args.experiment)
    seeds, steps = args.seeds or experiment.seeds, args.steps or experiment.steps
    if seeds < 2:
        options.error("--seeds: an interval over seeds needs at least 2 seeds")
    work = args.work or Path(f"{experiment.name}-cells")
    result = experiment.run(work, seeds=seeds, steps=steps, processes=args.processes)
    result.write(args.out / f"{experiment.name}.json", compact=len(result.rows) > MANY)
    show(result)
    if experiment.draw:
        named(experiment.draw)(result, args.out / f"{experiment.name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
