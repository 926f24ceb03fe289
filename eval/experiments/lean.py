"""From which lean of the texts on does an edit by texts alone harm a search? Each threshold with
one family of cells, or one prompt set, left out.

    python -m eval.experiments.lean                  # the miniature's portraits
    python -m eval.experiments.lean --on real        # and photographs, from $VLDEBIAS_REAL
    python -m eval.experiments.lean --json FILE

`lean` is |mean| / deviation of the texts that state no value, along the difference of two values
(`vldebias.methods.gates.common_lean`); an edit by texts is attached where it is small. For what is
left out, the lean from which on other cells about the same kind of attribute (gender, or anything
else) were harmed is taken, and it is counted how many cells of what was left out `difference`
harms below it, among those in which texts predict help. Where no other cell was harmed there is no
such threshold. The thresholds of the package stand beside.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from eval.experiments.harm import Cell, miniature, photographs
from eval.tables import parser, run
from vldebias.errors import VldebiasWarning
from vldebias.measure.metric import Metric
from vldebias.methods import Problem, get_method
from vldebias.methods.gates import (
    LEAN_OF_GENDER,
    LEAN_OF_OTHERS,
    change_on_texts,
    common_lean,
    is_about_gender,
)
from vldebias.report.result import TaskProvenance, TaskResult

METHOD = "difference"
LEAN = Metric("lean", "lean of the texts that state no value")
FACTS = {
    "cells": Metric("cells", "cells in which texts predict help"),
    "harmed": Metric("harmed", "cells made worse without a threshold", "fact", "lower"),
    "threshold": Metric("threshold", "threshold of the other families"),
    "harmed_below": Metric(
        "harmed_below", "cells made worse below the threshold of the others", "fact", "lower"
    ),
    "harmed_by_package": Metric(
        "harmed_by_package", "cells made worse below the package's threshold", "fact", "lower"
    ),
}


@dataclass(frozen=True)
class Tested:
    """What `difference` did in a cell in which texts predict help.

    change: of MaxSkew, with its interval. is_gender: the values are those of gender.
    """

    family: str
    prompts: str
    name: str
    lean: float
    is_gender: bool
    change: tuple[float, float, float]

    @property
    def is_harmed(self) -> bool:
        """Return whether the search became worse beyond its interval."""
        return self.change[1] > 0

    @property
    def most(self) -> float:
        """Return the threshold of the package."""
        return LEAN_OF_GENDER if self.is_gender else LEAN_OF_OTHERS


def tested(cells: Iterator[Cell]) -> Iterator[Tested]:
    """Yield the cells in which texts can test `difference`, and predict help."""
    for cell in cells:
        problem = Problem(cell.texts, cell.prompts, neutral=cell.queries)
        (role,) = problem.host.roles
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", VldebiasWarning)
            predicted = change_on_texts(problem, role, get_method(METHOD))
            if predicted is None or predicted.high >= 0:
                continue
            row = cell.changes([METHOD])[METHOD]
        assert row.change is not None
        leans = [common_lean(problem, prompts, role) for prompts in problem.attributes]
        yield Tested(
            family=cell.family,
            prompts=cell.prompts.name,
            name=cell.name,
            lean=max(leans),
            is_gender=all(map(is_about_gender, problem.attributes)),
            change=row.change,
        )


def threshold(cells: Sequence[Tested]) -> float:
    """Return the lean below which none of the cells was harmed; infinite where none was at all."""
    return min((cell.lean for cell in cells if cell.is_harmed), default=math.inf)


def measure(cells: Sequence[Tested]) -> Iterator[TaskResult]:
    """Yield the lean and change of each cell, then each family and set with the others'
    threshold."""
    details = TaskResult(TaskProvenance(task="cells", description="lean of each cell"))
    for cell in cells:
        where = f"{cell.family}: {cell.name}"
        details.add(LEAN, METHOD, cell.lean, n={"cells": 1}, subset=where)
        skew = ("max_skew", METHOD, cell.change[0], cell.change[1:])
        details.add(*skew, n={"cells": 1}, subset=where)
    yield details
    for family in dict.fromkeys(cell.family for cell in cells):
        inside = [cell for cell in cells if cell.family == family]
        yield left_out(f"family: {family}", inside, cells)
    for prompts in dict.fromkeys(cell.prompts for cell in cells):
        inside = [cell for cell in cells if cell.prompts == prompts]
        yield left_out(f"set: {prompts}", inside, cells)


def left_out(title: str, inside: Sequence[Tested], cells: Sequence[Tested]) -> TaskResult:
    """Return what the threshold of all other cells does to those inside."""
    is_gender = inside[0].is_gender
    others = [cell for cell in cells if cell not in inside and cell.is_gender == is_gender]
    bound = threshold(others)
    figures = {
        "cells": len(inside),
        "harmed": sum(cell.is_harmed for cell in inside),
        "harmed_below": sum(cell.is_harmed and cell.lean < bound for cell in inside),
        "harmed_by_package": sum(cell.is_harmed and cell.lean <= cell.most for cell in inside),
    }
    if math.isfinite(bound):
        figures["threshold"] = bound
    part = TaskResult(TaskProvenance(task=title, description="left out", title=title))
    for name, value in figures.items():
        part.add(FACTS[name], METHOD, float(value), n={"cells": len(inside)})
    return part


def main() -> None:
    """Measure the cells that are asked for."""
    options = parser(__doc__)
    options.add_argument("--on", choices=["miniature", "real"], default="miniature")
    options.add_argument("--draw", type=int, default=0, help="of galleries and references")
    given = options.parse_args()
    cells = miniature(given.draw)
    if given.on == "real":
        cells = chain(cells, photographs(given.draw))
    run("lean", lambda: measure(list(tested(cells))), given.json)


if __name__ == "__main__":
    main()
