"""Write how far claims about searches hold on the miniature and on real data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from eval.photographs.searches import (
    BY_NAME,
    BY_TEXTS,
    DEFAULT,
    HALF,
    MINIATURE,
    PHOTOGRAPHS,
    RECENTRED,
    REFERENCE,
    TRIMMED,
)
from eval.tables import read, span, table
from vldebias.measure.rows import Measurement
from vldebias.report.result import Result

NAME = "photographs"
WORLDS = (MINIATURE, PHOTOGRAPHS)
# Titles for candidate defaults with text alone or with images.
CANDIDATES = {
    BY_TEXTS: "remove the direction of the values (`difference`)",
    HALF: "remove half of it",
    RECENTRED: "move each query to the mean of the class prompts",
    TRIMMED: "the same, only for queries that lean by more than half a standard deviation",
    BY_NAME: "`difference` with `reference=`, untested",
    REFERENCE: "**the default with `reference=`**",
    DEFAULT: "**the default, text alone: nothing**",
}


@cache
def measured() -> Result:
    """Return the result for searches."""
    return read(NAME)


def _row(task: str, metric: str, method: str, subset: str = "") -> Measurement:
    """Return one row of the result for searches."""
    return measured().row(task, metric, method, subset=subset)


def _percent(row: Measurement) -> str:
    """Format a share and its interval in percent."""
    low, high = row.interval
    return f"{row.value + 0.0:.1%} [{low + 0.0:.1%}, {high:.1%}]"


def _count(row: Measurement) -> str:
    """Format a share as a count out of a total."""
    (n,) = row.n.values()
    return f"{round(row.value * n)} of {n:,}"


def by_texts() -> str:
    """Write the effect of each rule on kinds of queries and individual searches of photographs."""
    head = [
        "rule",
        "categories of queries made worse",
        "in both samples",
        "individual searches made worse",
        "made better",
        "skew above chance removed",
        "CelebA alone",
    ]
    lines = [head]
    for method, title in CANDIDATES.items():
        cells = f"cells: {PHOTOGRAPHS}"
        single = f"single searches: {PHOTOGRAPHS}"
        celeba = [row.value for row in _celeba("max_skew", method)]
        bare = [row.value for row in _celeba("max_skew", "none")]
        lines.append(
            [
                title,
                _count(_row(cells, "worse", method)),
                _count(_row(cells, "worse_twice", method)),
                _percent(_row(single, "worse", method)),
                _percent(_row(single, "better", method)),
                _percent(_row(cells, "removed", method)),
                f"{sum(bare) / len(bare):.2f} to {sum(celeba) / len(celeba):.2f}",
            ]
        )
    return table(*lines, note=f"From `eval/results/{NAME}.json`.")


def _celeba(metric: str, method: str) -> Iterator[Measurement]:
    """Yield the rows for a method on CelebA, one per draw."""
    for row in measured().rows:
        if "CelebA" in row.task and (row.metric, row.method) == (metric, method):
            yield row


def promises() -> str:
    """Write each claim about searches with its measurement."""
    lines = [["promise", *(f"{world}" for world in WORLDS)]]

    def add(promise: str, metric: str, method: str, part: str, write: object) -> None:
        cells = []
        for world in WORLDS:
            row = _row(f"{part}: {world}", metric, method)
            cells.append(_count(row) if write is _count else _percent(row))
        lines.append([promise, *cells])

    nothing = (
        "Text alone: no category of queries gets worse (categories made worse, per gallery and"
        " sample)"
    )
    add(nothing, "worse", DEFAULT, "cells", _count)
    add("`reference=`: the same", "worse", REFERENCE, "cells", _count)
    twice = "`reference=`: categories made worse in both samples"
    add(twice, "worse_twice", REFERENCE, "cells", _count)
    single = "`reference=`: individual searches made worse (2.5% expected by chance)"
    add(single, "worse", REFERENCE, "single searches", _percent)
    add(
        "`reference=`: individual searches made better",
        "better",
        REFERENCE,
        "single searches",
        _percent,
    )
    removed = "`reference=`: skew above chance removed, including galleries where it declines"
    add(removed, "removed", REFERENCE, "cells", _percent)
    retained = "`reference=`, cost: retained hits, with and without the edit, where it acts"
    lines.append([retained, *map(_retained, WORLDS)])
    stated = "Queries that state a value remain bit-identical"
    zero = "At strength 0, all queries remain bit-identical"
    for promise, subset in ((stated, "queries that state a value"), (zero, "strength 0")):
        cells = []
        for world in WORLDS:
            rows = [
                row
                for row in measured().rows
                if row.task.startswith(f"{world}: ")
                and row.metric == "unchanged"
                and row.subset == subset
            ]
            total = sum(next(iter(row.n.values())) for row in rows)
            same = sum(round(row.value * next(iter(row.n.values()))) for row in rows)
            cells.append(f"{same:,} of {total:,}")
        lines.append([promise, *cells])
    lines.append(_reranked())
    lines.append(_stated())
    sources = (NAME, "coverage", "photographs_rerank", "wordings", "stated_values")
    return table(
        *lines, note=f"From {', '.join(f'`eval/results/{name}.json`' for name in sources)}."
    )


def _reranked() -> list[str]:
    """Return a table row on how often the interval from `rerank` contains the true share."""
    shares = []
    for row in read("coverage").rows:
        if (row.task, row.metric) == ("re-ranked shares", "coverage"):
            shares.append(row.value)
    method = "100 of the lists of all queries, k 50"
    (task,) = {row.task for row in read("photographs_rerank").rows}
    real = read("photographs_rerank")
    covered = real.row(task, "coverage", method)
    width = real.row(task, "width", method)
    promise = "`rerank`, 100 results checked: the 95% interval contains the true share of a group"
    return [
        promise,
        f"simulated, {len(shares)} settings: {min(shares):.3f} to {max(shares):.3f}",
        f"{span(covered)}, mean width {width.value:.2f}",
    ]


def _stated() -> list[str]:
    """Return a table row on how often a gender that the prompt states appears in the image."""
    rows = read("stated_values").rows
    female, male = (
        next(row for row in rows if (row.task, row.subset) == ("stated", value))
        for value in ("Female", "Male")
    )
    gap = next(
        row
        for row in read("wordings").rows
        if (row.task, row.metric, row.method, row.subset)
        == ("wordings gender", "discrepancy", "balanced-prompts", "unseen professions")
    )
    return [
        "Balanced prompts: the stated gender appears (generated images)",
        f"gap from even shares {span(gap)}",
        f"Stable Diffusion 3.5: female {span(female)}, male {span(male)}",
    ]


def _retained(world: str) -> str:
    """Format the mean share of retained hits over kinds of queries, and of results that stay."""
    value = {}
    for row in measured().rows:
        if row.task.startswith(f"{world}: "):
            value[row.task, row.subset, row.method, row.metric] = row.value
    # The edit acts where some results do not stay.
    acting = [
        (task, kind)
        for task, kind, method, metric in value
        if (method, metric) == (REFERENCE, "stay") and value[task, kind, method, metric] < 1
    ]
    means = []
    for method, metric in ((REFERENCE, "retained"), (DEFAULT, "retained"), (REFERENCE, "stay")):
        values = [value[task, kind, method, metric] for task, kind in acting]
        means.append(sum(values) / len(values))
    return f"{means[0]:.2f} and {means[1]:.2f}; {means[2]:.2f} of the first k stay"
