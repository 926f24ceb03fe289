"""Write what re-ranking and query edits do to searches of real photographs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from eval.photographs.searches import BY_IMAGES, BY_TEXTS, PHOTOGRAPHS, RECENTRED, RERANK
from eval.tables import read, table
from vldebias.measure.rows import NONE, Measurement
from vldebias.report.result import Result

NAME = "photographs"
# Titles of re-ranking, and of query edits with text alone or with images.
CANDIDATES = {
    RERANK: "re-rank the results (what we advise)",
    BY_IMAGES: "`difference` with `reference=`",
    BY_TEXTS: "remove the direction of the values (`difference`)",
    RECENTRED: "move each query to the mean of the class prompts",
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
    """Write what each method does to categories of queries and single searches of photographs."""
    lines = [["method", "skew above chance removed", "clearly more skewed", "MaxSkew, CelebA"]]
    for method, title in CANDIDATES.items():
        cells = f"cells: {PHOTOGRAPHS}"
        celeba = [row.value for row in _celeba("max_skew", method)]
        bare = [row.value for row in _celeba("max_skew", "none")]
        searches = _percent(_row(f"single searches: {PHOTOGRAPHS}", "worse", method))
        lines.append(
            [
                title,
                _percent(_row(cells, "removed", method)),
                f"{_count(_row(cells, 'worse', method))} categories, {searches} of single searches",
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
    """Write what re-ranking does to searches of photographs, and its cost."""
    cells = f"cells: {PHOTOGRAPHS}"
    single = f"single searches: {PHOTOGRAPHS}"
    stating = [
        row
        for row in measured().rows
        if row.task.startswith(f"{PHOTOGRAPHS}: ")
        and row.metric == "unchanged"
        and row.subset == "queries that state a value"
    ]
    total = sum(next(iter(row.n.values())) for row in stating)
    same = sum(round(row.value * next(iter(row.n.values()))) for row in stating)
    lines = [
        ["measure", "re-ranking"],
        [
            "categories of queries that clearly got more skewed",
            _count(_row(cells, "worse", RERANK)),
        ],
        [
            "single searches that clearly got more skewed (2.5% expected by chance)",
            _percent(_row(single, "worse", RERANK)),
        ],
        ["single searches that clearly got less skewed", _percent(_row(single, "better", RERANK))],
        [
            "skew above chance removed (galleries whose results keep their order included)",
            _percent(_row(cells, "removed", RERANK)),
        ],
        ["cost, where results change: retained hits", _retained()],
        ["queries that state a value and keep their results", f"{same:,} of {total:,}"],
    ]
    return table(*lines, note=f"From `eval/results/{NAME}.json`.")


def _retained() -> str:
    """Format the mean share of retained hits over kinds of queries, and of results that stay."""
    value = {}
    for row in measured().rows:
        if row.task.startswith(f"{PHOTOGRAPHS}: "):
            value[row.task, row.subset, row.method, row.metric] = row.value
    changed = [
        (task, kind)
        for task, kind, method, metric in value
        if (method, metric) == (RERANK, "stay") and value[task, kind, method, metric] < 1
    ]
    means = []
    for method, metric in ((NONE, "retained"), (RERANK, "retained"), (RERANK, "stay")):
        values = [value[task, kind, method, metric] for task, kind in changed]
        means.append(sum(values) / len(values))
    return f"{means[0]:.2f} to {means[1]:.2f}; {means[2]:.2f} of the first k stay"
