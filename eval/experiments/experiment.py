"""An experiment of small trainings as one YAML file: its cells, what each of them is given, its table and its pages.

`work` names the function that does a cell: it takes a mapping with the columns, "seed", "steps", "settings" (those of
the cell's arm) and everything under `given`, and returns figures. All else, from choosing settings on a seed that is
not reported to the table in a page, is here, once for all experiments.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eval import tables
from eval.experiments.cells import ROWS, run_cells, summed_up
from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.evaluation.result import Measurement, Result, TaskProvenance, TaskResult
from vldebias.files import commit, read_yaml

FOLDER = Path(__file__).parent
Place = dict[str, Any]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Table(_Strict):
    """Every combination of the columns with every seed; tables of one task are summed up together.

    against: columns and values of the arm that others are compared with. steps: other than the experiment's.
    """

    columns: dict[str, list[Any]]
    task: str = ""
    against: dict[str, Any] | None = None
    seeds: int | None = Field(None, description="at most so many")
    steps: int | None = None


@dataclass(frozen=True)
class Planned:
    """A cell of a table, and the one that is done for it."""

    table: Table
    cell: Place
    done_as: Place


class Tuning(_Strict):
    """For each combination of the columns the best of all that is tried, by a figure of cells on a seed of its own."""

    columns: dict[str, list[Any]]
    tried: dict[str, list[Any]]
    at: dict[str, Any] = {}
    seed: int
    by: str
    steps: int | None = None


class Alike(_Strict):
    """Cells at a place that do not depend on a column: done at its first value, they stand for each."""

    column: str
    where: dict[str, Any]


class Curve(_Strict):
    """One panel: the column on its x axis, and for every line the columns that choose its rows."""

    title: str
    x: str
    lines: dict[str, dict[str, Any]]
    logarithmic: bool = False


class Page(_Strict):
    """A table of rows in a page, between the markers of `block`: a row per value of some columns, a column per value
    of one, or per metric."""

    page: str
    block: str
    rows: list[str]
    column: str = "metric"
    metrics: list[str]
    note: str
    where: dict[str, Any] = {}

    def text(self, name: str, method: str) -> str:
        """The table from the experiment's result; method: the column that the rows' methods are."""
        if not tables.measured(name):
            return tables.missing(f"python -m eval.experiments.run {name}")
        rows = [{**(place := place_of(row)), method: place["method"], "row": row} for row in tables.read(name).rows]
        rows = [row for row in rows if row["metric"] in self.metrics and self.where.items() <= row.items()]
        columns = self.metrics if self.column == "metric" else list(dict.fromkeys(row[self.column] for row in rows))
        lines = [[*self.rows, *(one if isinstance(one, str) else f"{self.column} {one}" for one in columns)]]
        for place in dict.fromkeys(tuple(row[one] for one in self.rows) for row in rows):
            own = {row[self.column]: row["row"] for row in rows if tuple(row[one] for one in self.rows) == place}
            short = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in place]
            lines.append([*short, *(tables.half(own[column]) for column in columns)])
        return tables.table(*lines, note=f"{self.note}; from `eval/results/{name}.json`.")


class Experiment(_Strict):
    """What a YAML file says.

    method: the column that is the method of a row. arms: its values -> what their cells are given as settings.
    also: arms that other cells make on their way, by figures named "arm: metric". metrics: figures that become rows,
    and which way is better. protocol: what a reader has to know beside it.
    """

    name: str
    about: str
    work: str = "eval.experiments.small_clip:work"
    method: str
    arms: dict[str, dict[str, Any]] = {}
    given: dict[str, Any] = {}
    steps: int = 1
    seeds: int = Field(5, ge=2)
    tables: list[Table]
    tuning: list[Tuning] = []
    also: list[str] = []
    alike: list[Alike] = []
    metrics: dict[str, Literal["higher", "lower", "neither"]]
    protocol: dict[str, Any] = {}
    curves: list[Curve] = []
    pages: list[Page] = []

    @staticmethod
    def path(name: str | Path) -> Path:
        """The file of an experiment, by its name or path.

        Raises:
            InvalidInputError: no such experiment; the message names those there are.
        """
        path = Path(name) if str(name).endswith(".yaml") else FOLDER / f"{name}.yaml"
        if not path.is_file():
            hint = did_you_mean(str(name), names())
            raise InvalidInputError(f"got the experiment {name}; expected one of {names()}, or a .yaml file; {hint}")
        return path

    @classmethod
    def read(cls, name: str | Path) -> Experiment:
        """By its name or path.

        Raises:
            InvalidInputError: no such experiment, or not one; the message names the first field that does not fit.
        """
        path = cls.path(name)
        try:
            return cls.model_validate(read_yaml(path))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise InvalidInputError(f"{path}: {where}: {first['msg']}; expected what eval/experiments has") from None

    @property
    def module(self) -> ModuleType:
        return import_module(self.work.partition(":")[0])

    def run(self, folder: Path, *, seeds: int, steps: int, processes: int) -> Result:
        """Do the cells that `folder` lacks.

        Raises:
            InvalidInputError: another commit gave cells that `folder` has.
        """
        do = partial(self._do, folder=folder, processes=processes)
        tuning = do(self.tried(steps), title=f"{self.name}, settings", tuning=True) if self.tuning else []
        plan = self.plan(self.chosen(tuning), seeds, steps)
        done = do(list({_key(one.done_as): one.done_as for one in plan}.values()), title=self.name)
        for cell in (*tuning, *done):
            if (made := cell.pop("commit")) != commit():
                raise InvalidInputError(
                    f"{folder}: got cells of commit {made}; expected those of {commit()}; delete the folder, or give "
                    "another one with --work"
                )
        about = getattr(self.module, "description", lambda *_: {})(self, steps)
        cells = {"tuning": tuning, "cells": done} if tuning else {"cells": done}
        rows = self.rows(plan, done)
        for cell in (*tuning, *done):  # the intervals have read them
            cell["figures"] = {name: value for name, value in cell["figures"].items() if ROWS not in name}
        provenance = TaskProvenance(
            task=self.name,
            description=self.about,
            methods=self.arms,
            seeds=list(range(seeds)),
            settings={**about, **self.protocol, "given": self.given, "steps": steps, **cells},
        )
        return Result.of(self.name, [TaskResult(provenance, rows)], seconds=None)

    def tried(self, steps: int) -> list[Place]:
        """The cells that choose settings."""
        return [
            {**place, **one.at, "seed": one.seed, "steps": self._steps(one.steps, steps), **settings}
            for one in self.tuning
            for place in combinations(one.columns)
            for settings in combinations(one.tried)
        ]

    def chosen(self, tuning: Sequence[Mapping[str, Any]]) -> list[tuple[Place, Place]]:
        """For each place of the tunings the settings of the highest figure, the first of equal ones."""
        found = []
        for one in self.tuning:
            for place in combinations(one.columns):
                own = [cell for cell in tuning if place.items() <= cell.items()]
                best = max(own, key=lambda cell: cell["figures"][one.by])
                found.append((place, {name: best[name] for name in one.tried}))
        return found

    def plan(self, chosen: Sequence[tuple[Place, Place]], seeds: int, steps: int) -> list[Planned]:
        """The cells of all tables: place, seed, steps, and what was chosen for the place."""
        plan = []
        for table in self.tables:
            for place in combinations(table.columns):
                own = dict(place)
                for alike in self.alike:
                    if alike.where.items() <= own.items():
                        own[alike.column] = table.columns[alike.column][0]
                best = next((settings for where, settings in chosen if where.items() <= own.items()), {})
                for seed in range(min(seeds, table.seeds or seeds)):
                    rest = {"seed": seed, "steps": self._steps(place.get("steps", table.steps), steps), **best}
                    plan.append(Planned(table, {**place, **rest}, {**own, **rest}))
        return plan

    def _steps(self, own: int | None, steps: int) -> int:
        """Of a cell, where --steps may be more or fewer than the experiment's."""
        return round((own or self.steps) * steps / self.steps)

    def rows(self, plan: Sequence[Planned], done: Sequence[Mapping[str, Any]]) -> list[Measurement]:
        """Means over seeds of what the tables' cells gave, changes paired by seed."""
        figures, rows = {_key(cell): cell["figures"] for cell in done}, []
        for task in dict.fromkeys(table.task for table in self.tables):
            own = [one for one in plan if one.table.task == task]
            cells = self._apart([{**one.cell, "figures": figures[_key(one.done_as)]} for one in own])
            columns = tuple(own[0].table.columns)
            for row in summed_up(cells, columns, against=own[0].table.against):
                if row["metric"] in self.metrics:
                    rows.append(self._row(task or self.name, columns, row))
        return rows

    def _row(self, task: str, columns: Sequence[str], row: Mapping[str, Any]) -> Measurement:
        change = row.get("change")
        return Measurement(
            task=task,
            metric=row["metric"],
            method=row[self.method],
            subset=subset({name: row[name] for name in columns if name != self.method}),
            value=row["value"],
            interval=(row["low"], row["high"]),
            change=None if change is None else (change["value"], change["low"], change["high"]),
            better=self.metrics[row["metric"]],
            n={"seeds": len(row["seeds"])},
        )

    def _apart(self, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The arms of `also` as cells of their own."""
        found: list[dict[str, Any]] = []
        for cell in cells:
            for arm in self.also:
                own = {name[len(arm) + 2 :]: v for name, v in cell["figures"].items() if name.startswith(f"{arm}: ")}
                if own:
                    found.append({**cell, self.method: arm, "figures": own})
            plain = {name: v for name, v in cell["figures"].items() if name.partition(": ")[0] not in self.also}
            found.append({**cell, "figures": plain})
        return found

    def _do(self, cells: Sequence[Place], *, folder: Path, processes: int, title: str, **more: Any) -> list[Place]:
        """Cells with their figures; each is given what the experiment says beside what it is."""
        whole = [{**self.given, **more, **cell, "settings": self.arms.get(cell[self.method], {})} for cell in cells]
        work = getattr(self.module, self.work.partition(":")[2])
        done = run_cells(work, whole, folder, processes=processes, title=title)
        kept = ("figures", "commit")
        return [{**cell, **{name: one[name] for name in kept}} for cell, one in zip(cells, done, strict=True)]


def _key(cell: Mapping[str, Any]) -> str:
    return json.dumps({name: value for name, value in cell.items() if name != "figures"}, sort_keys=True)


def combinations(columns: Mapping[str, Sequence[Any]]) -> list[Place]:
    """Every combination of the values of some columns."""
    return [dict(zip(columns, values, strict=True)) for values in product(*columns.values())]


def names() -> list[str]:
    """The experiments of this folder."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def pages(experiments: Sequence[str | Path] | None = None) -> list[tuple[Experiment, Page]]:
    """The tables that experiments have in pages."""
    read = [Experiment.read(name) for name in (names() if experiments is None else experiments)]
    return [(experiment, page) for experiment in read for page in experiment.pages]


def subset(place: Mapping[str, Any]) -> str:
    """The columns of a row beside its method, in a text: "eta = 0.4; lam = 0.01"."""
    return "; ".join(f"{name} = {v if isinstance(v, str) else json.dumps(v)}" for name, v in place.items())


def place_of(row: Measurement) -> Place:
    """The columns that `subset` wrote, with task, method and metric."""
    place: Place = {"task": row.task, "metric": row.metric, "method": row.method}
    for part in row.subset.split("; ") if row.subset else ():
        name, _, text = part.partition(" = ")
        try:
            place[name] = json.loads(text)
        except ValueError:
            place[name] = text
    return place
