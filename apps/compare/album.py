"""Pictures that `vldebias eval generation` drew before: by profession, over its models and methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.plan import PLAN
from vldebias.evaluation.result import Measurement, Result
from vldebias.evaluation.variants import NONE

SHOWN = 16  # pictures of a side


@dataclass(frozen=True)
class Page:
    """One profession of one model under one method.

    pairs: the pictures of the same noise, without and with the method. lead: a value with its share on both sides.
    rows: (model, figure) of this profession under every method of every model; () where nothing was measured.
    """

    concept: str
    prompt: str
    method: str
    pairs: tuple[tuple[Path, Path], ...]
    lead: tuple[str, float, float] | None
    rows: tuple[tuple[str, Measurement], ...]


@dataclass(frozen=True)
class Album:
    """The drawn folders below a folder, and the results beside them, by what a visitor calls them.

    What a visitor asks for is looked up among the names here, and never becomes part of a path.
    """

    folder: Path
    sets: Mapping[str, DrawnSet]
    results: Mapping[str, Result]

    @classmethod
    def open(cls, folder: Path) -> Album:
        """All that lies below `folder`, such as the --out of one run, or a folder of several.

        Raises:
            InvalidInputError: no such folder, nothing drawn in it, a plan or a result that cannot be read.
        """
        plans = sorted(folder.rglob(PLAN)) if folder.is_dir() else []
        if not plans:
            raise InvalidInputError(
                f"--gallery {folder}: no images of a generation task in it; expected the --out of "
                "`vldebias eval generation`, or a folder of several"
            )
        sets, results = {}, {}
        for path in plans:
            drawn, home = DrawnSet.open(path.parent), path.parent
            name = f"{drawn.plan.model.get('id') or drawn.plan.model['pipeline']}, {drawn.plan.prompt_set}"
            if name in sets:
                name = f"{name} ({home.relative_to(folder).as_posix()})"
            sets[name] = drawn
            told = home.resolve().parents[1] / "result.json"  # as a run lies: OUT/images/TASK, OUT/result.json
            if told.is_relative_to(folder.resolve()) and told.is_file():
                results[name] = Result.read(told)
        return cls(folder, sets, results)

    @cached_property
    def concepts(self) -> tuple[str, ...]:
        """What was drawn, such as professions, the one in the middle first: of the lower median change, if measured."""
        named = dict.fromkeys(i.concept for one in self.sets.values() for i in one if i.stated is None)
        model, method = next(iter(self.sets)), self.methods[0]
        moved = {f.subset: f.change[0] for f in self._figures(model) if f.method == method and f.change}
        order = sorted((name for name in named if name in moved), key=lambda name: (moved[name], name))
        first = order[(len(order) - 1) // 2 : (len(order) + 1) // 2]
        return (*first, *(name for name in named if name not in first))

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """The variants of all models but "none"; not those that draw stated prompts alone."""
        variants = {name: None for one in self.sets.values() for name in one.plan.variants}
        return tuple(
            name
            for name in variants
            if name != NONE and any(i.variant == name and i.stated is None for one in self.sets.values() for i in one)
        )

    def page(self, model: object, concept: object, method: object) -> Page:
        """What a visitor asked for.

        Raises:
            InvalidInputError: names that are not there, or pictures that are not drawn (yet).
        """
        for name, given, known in (
            ("model", model, self.sets),
            ("profession", concept, self.concepts),
            ("method", method, self.methods),
        ):
            if not isinstance(given, str) or given not in known:
                raise InvalidInputError(f"{name}: expected one of {', '.join(known)}, got {given!r:.80}")
        drawn, concept, method = self.sets[str(model)], str(concept), str(method)
        twins = drawn.select(variant=NONE, concept=concept).images
        paths = [(drawn.path(one), drawn.path(one.under(method))) for one in twins]
        there = [pair for pair in paths if all(map(self._is_there, pair))]
        if not there:
            raise InvalidInputError(f"{concept} is not drawn under {method} by {model} (yet); choose another")
        shares = {f.method: f for f in self._shares(str(model), concept)}
        lead = None
        if {NONE, method} <= shares.keys():
            value = shares[method].subset.removeprefix(f"{concept}: ")
            lead = value, shares[NONE].value, shares[method].value
        rows = [(name, f) for name in self.results for f in self._figures(name) if f.subset == concept]
        return Page(concept, twins[0].prompt, method, tuple(there[:SHOWN]), lead, tuple(rows))

    def _is_there(self, path: Path) -> bool:
        """A picture of the folder; a link that leads out of it is none."""
        return path.is_file() and path.resolve().is_relative_to(self.folder.resolve())

    def _rows(self, model: str) -> Iterator[Measurement]:
        """The figures of a model about what it drew."""
        plan, result = self.sets[model].plan, self.results.get(model)
        if result is not None:
            tasks = {p.task for p in result.provenance if p.split == "generated" and p.prompts == plan.prompt_set}
            yield from (row for row in result.rows if row.task in tasks)

    def _figures(self, model: str) -> Iterator[Measurement]:
        named = {image.concept for image in self.sets[model]}
        return (row for row in self._rows(model) if row.metric == "discrepancy" and row.subset in named)

    def _shares(self, model: str, concept: str) -> Iterator[Measurement]:
        """Of the first value that shares are told of, under each method."""
        rows = [r for r in self._rows(model) if r.metric == "share" and r.subset.startswith(f"{concept}: ")]
        return (row for row in rows if (row.task, row.subset) == (rows[0].task, rows[0].subset))
