"""Test whether the default method makes any search worse.

    python -m eval.experiments.harm                  # the miniature's portraits
    python -m eval.experiments.harm --on real        # also photographs, from $VLDEBIAS_REAL
    python -m eval.experiments.harm --draw 1         # different galleries and references
    python -m eval.experiments.harm --json FILE

Every method is measured on cells, each of which has an attribute, a prompt set, queries and a
gallery. A cell is harmed if the 95% interval for the change in mean MaxSkew@k over queries (paired,
over images) is above 0, and helped if it is below 0. The removable gap is the part that the best of
the compared methods, selected with true labels, removes. The reference is unlabelled and does not
share images with the gallery.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from eval.experiments import embeddings
from eval.tables import parser, run
from vldebias.data import Embeddings
from vldebias.errors import VldebiasError, VldebiasWarning
from vldebias.hosts import Host
from vldebias.measure.metric import Metric
from vldebias.prompts import PromptSet, load_prompts, make_prompt_set
from vldebias.report.result import Measurement, TaskProvenance, TaskResult
from vldebias.study.evaluating import evaluate

CELLS = Path(__file__).with_name("harm.yaml")
# The default methods, for which cells are counted, and the methods for comparison.
COUNTED = ("default", "default+equalise", "difference", "paper")
OTHERS = ("cali", "orth-cali", "equalise", "difference+equalise", "cali+equalise")
RESAMPLES = 200
REFERENCE = 200  # maximum number of reference images
TALLIES = {
    "cells": Metric("cells", "cells"),
    "harmed": Metric("harmed", "cells made worse", "fact", "lower"),
    "helped": Metric("helped", "cells made better", "fact", "higher"),
    "attached": Metric("attached", "cells in which it acts"),
    "removed": Metric("removed", "share of the gap that is removed", "fact", "higher"),
}


@dataclass(frozen=True)
class Cell:
    """A search with queries, a gallery, a prompt set and a reference.

    `prior` is "uniform" for even galleries and "dataset" otherwise.
    """

    family: str
    name: str
    column: str
    prompts: PromptSet
    queries: tuple[str, ...]
    gallery: Embeddings
    reference: Embeddings
    texts: Host
    prior: str = "uniform"

    def changes(self, methods: Sequence[str] = (*COUNTED, *OTHERS)) -> dict[str, Measurement]:
        """Return MaxSkew for each method, with its change from the search without an edit."""
        k = min(60, max(10, len(self.gallery) // 8))
        rows = {}
        for method in methods:
            try:
                result = evaluate(
                    self.texts,
                    self.gallery,
                    prompts={self.column: self.prompts},
                    queries=self.queries,
                    k=k,
                    prior=self.prior,
                    reference=self.reference if method.endswith("equalise") else None,
                    methods=[method],
                    resamples=RESAMPLES,
                )
            except VldebiasError:  # the set lacks something that the method needs
                continue
            for row in result.rows:
                if row.metric == f"max_skew@{k}" and not row.subset and row.change is not None:
                    rows[method] = row
        return rows


def miniature(draw: int) -> Iterator[Cell]:
    """Yield cells with the miniature's portraits."""
    content = yaml.safe_load(CELLS.read_text())
    texts, portraits = embeddings.miniature()
    images = portraits("portraits", n=1500, seed=9002, balanced=True)
    # The reference is not balanced, but has the natural proportions.
    reference = portraits("portraits", n=REFERENCE, seed=9013 + draw, balanced=False)
    own = {name: _own_set(name, definition) for name, definition in content["sets"].items()}
    for family in content["cells"]:
        for name in family["sets"]:
            prompts = own.get(name) or load_prompts(name)
            for queries, gallery in family["searches"]:
                rng = np.random.default_rng([draw, len(name), len(queries), len(gallery)])
                rows = _rows(images, family["column"], content["galleries"][gallery], rng)
                yield Cell(
                    family=f"miniature, {family['column']}",
                    name=f"{name}; {queries}; {gallery}",
                    column=family["column"],
                    prompts=prompts,
                    queries=tuple(load_prompts(content["queries"][queries]).classes),
                    gallery=images[rows],
                    reference=reference,
                    texts=texts,
                    prior="uniform" if gallery == "even" else "dataset",
                )


def photographs(draw: int) -> Iterator[Cell]:
    """Yield cells with CelebA, for gender with all prompt pairs, five pairs and one pair."""
    data = embeddings.celeba()
    for number in (len(data.prompts.groups), 5, 1):
        # The class prompts are the queries, which are professions.
        prompts = replace(
            data.prompts,
            groups=data.prompts.groups[:number],
            classes=data.queries,
            class_names=data.queries,
        )
        for gallery, shares in (("even", [1, 1]), ("one value thrice", [3, 1])):
            rng = np.random.default_rng([draw, number])
            order = rng.permutation(len(data.images))
            rest = data.images[np.sort(order[REFERENCE:])]
            yield Cell(
                family="photographs, gender",
                name=f"{number} pairs; professions; {gallery}",
                column="gender",
                prompts=prompts,
                queries=data.queries,
                gallery=rest[_rows(rest, "gender", shares, rng)],
                reference=data.images[np.sort(order[:REFERENCE])],
                texts=data.texts,
                prior="uniform" if gallery == "even" else "dataset",
            )


def _own_set(name: str, definition: Mapping[str, Any]) -> PromptSet:
    """Return a set from the file, with the ten concepts in a different set as classes."""
    prompts = make_prompt_set(
        name, definition["attribute"], definition["concepts"], definition["templates"]
    )
    classes = tuple(load_prompts(definition["classes"]).classes) if definition["classes"] else ()
    return replace(prompts, spurious=(), classes=classes, class_names=classes)


def _rows(
    images: Embeddings, column: str, shares: Sequence[float], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Sample rows with given shares of a column's values, of which the last is for all others."""
    codes = images.column(column).codes
    values = [value for value in np.unique(codes) if value >= 0]
    weights = [shares[min(place, len(shares) - 1)] for place in range(len(values))]
    members = [rng.permutation(np.flatnonzero(codes == value)) for value in values]
    unit = min(len(rows) / weight for rows, weight in zip(members, weights, strict=True))
    parts = [rows[: int(unit * weight)] for rows, weight in zip(members, weights, strict=True)]
    return np.sort(np.concatenate(parts))


def measure(cells: Iterator[Cell]) -> Iterator[TaskResult]:
    """Yield the rows of all cells, and then the counts for each family."""
    found: dict[str, list[dict[str, Measurement]]] = {}
    details = TaskResult(TaskProvenance(task="cells", description="MaxSkew of each search"))
    for cell in cells:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)  # warnings are counted as outcomes
            rows = cell.changes()
        found.setdefault(cell.family, []).append(rows)
        for method, row in rows.items():
            details.add(
                row.metric,
                method,
                row.value,
                row.interval,
                n=row.n,
                change=row.change,
                subset=f"{cell.family}: {cell.name}",
            )
    yield details
    for family, rows_of_cells in found.items():
        yield tally(family, rows_of_cells)
    yield tally("all", list(chain.from_iterable(found.values())))


def tally(family: str, cells: Sequence[Mapping[str, Measurement]]) -> TaskResult:
    """Count the cells that each method makes worse or better, and the share of the gap removed."""
    part = TaskResult(TaskProvenance(task=family, description="counts of cells", title=family))
    best = [_best(rows) for rows in cells]
    for method in COUNTED:
        changes = [_change(rows, method) for rows in cells]
        removable = -sum(best)
        removed = -sum(change[0] for change in changes)
        figures = {
            "cells": len(cells),
            "harmed": sum(change[1] > 0 for change in changes),
            "helped": sum(change[2] < 0 for change in changes),
            "attached": sum(change != (0.0, 0.0, 0.0) for change in changes),
            "removed": removed / removable if removable else 0.0,
        }
        for name, value in figures.items():
            part.add(TALLIES[name], method, float(value), n={"cells": len(cells)})
    return part


def _change(rows: Mapping[str, Measurement], method: str) -> tuple[float, float, float]:
    """Return the change with its interval for a method, or no change if the method failed."""
    row = rows.get(method)
    if row is None or row.change is None:
        return (0.0, 0.0, 0.0)
    return row.change


def _best(rows: Mapping[str, Measurement]) -> float:
    """Return the largest significant decrease with any method, or 0."""
    falls = [_change(rows, method) for method in rows]
    return min([change[0] for change in falls if change[2] < 0], default=0.0)


def main() -> None:
    """Measure the selected cells."""
    options = parser(__doc__)
    options.add_argument("--on", choices=["miniature", "real"], default="miniature")
    options.add_argument("--draw", type=int, default=0, help="of galleries and references")
    args = options.parse_args()

    def cells() -> Iterator[Cell]:
        yield from miniature(args.draw)
        if args.on == "real":
            yield from photographs(args.draw)

    run("harm", lambda: measure(cells()), args.json)


if __name__ == "__main__":
    main()
