"""Write the tables in `docs/explanation/intervals.md`: how reliable intervals and verdicts are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from eval.tables import crossed, read, table
from vldebias.report.table import ENOUGH

SMALL, USUAL, LARGE = "small", "usual", "large"


def coverages() -> dict[str, list[tuple[str, str, str, float]]]:
    """Return the (metric, size, subset, coverage) of simulated intervals by kind."""
    result = read("coverage")
    size_of_subset: dict[tuple[str, str], str] = {}
    for protocol in result.provenance:
        for size in (USUAL, LARGE):
            for subset in protocol.settings[size]:
                size_of_subset[protocol.task, subset] = size
    found: dict[str, list[tuple[str, str, str, float]]] = {}
    for row in result.rows:
        if row.metric == "coverage":
            size = size_of_subset.get((row.task, row.subset), SMALL)
            cells = found.setdefault(row.task, [])
            cells.append((row.method.replace("_", " "), size, row.subset, row.value))
    return found


def covered_by_kind() -> str:
    """Write the coverage of each kind of interval over all metrics and settings."""
    lines = [["intervals", "small n", "usual n"]]
    for kind, cells in coverages().items():
        small = [coverage for _, size, _, coverage in cells if size == SMALL]
        usual = [coverage for _, size, _, coverage in cells if size == USUAL]
        lines.append([kind, low_to_high(small), low_to_high(usual)])
    note = "Lowest to highest over metrics and settings. From `eval/results/coverage.json`."
    return table(*lines, note=note)


def low_to_high(values: Sequence[float]) -> str:
    """Format the lowest and the highest value, or return "-" if there are none."""
    if not values:
        return "-"
    ends = f"{min(values):.2f}", f"{max(values):.2f}"
    return " to ".join(dict.fromkeys(ends))


# Kinds of intervals and their resampled units. Pages mark small numbers of these.
RESAMPLED = {
    "means over prompts": "prompts",
    "ranking": "images",
    "ranking, over queries": "queries",
    "probe": "images",
}


def lowest_by_size() -> dict[tuple[str, str], dict[int, float]]:
    """Return the lowest coverage over all settings by kind of interval, metric and size."""
    found: dict[tuple[str, str], dict[int, float]] = {}
    measured = coverages()
    for kind in RESAMPLED:
        for figure, _, subset, coverage in measured[kind]:
            units = int(subset.partition("; ")[2].split()[0])
            metric = figure.removeprefix("change of ").replace(" ", "_")
            lowest = found.setdefault((kind, metric), {})
            lowest[units] = min(coverage, lowest.get(units, 1.0))
    return found


def enough() -> str:
    """Write the number of units needed for reliable intervals; below it, pages say "few"."""
    metrics_of_mark: dict[tuple[str, str], list[str]] = {}
    for kind, metric in lowest_by_size():
        unit = RESAMPLED[kind]
        least = ENOUGH[unit][metric]
        mark = f"{least:,.0f} {unit}" if np.isfinite(least) else "any number, “narrow interval”"
        metrics_of_mark.setdefault((kind, mark), []).append(metric.replace("_", " "))
    lines = [["intervals", "metrics", "“few” below"]]
    for (kind, mark), metrics in metrics_of_mark.items():
        lines.append([kind, ", ".join(metrics), mark])
    note = "Below these numbers, the lowest coverage in any setting is under 0.92."
    return table(*lines, note=f"{note} Same file.")


def verdicts() -> str:
    """Write how often data sets of the usual and the recommended size lead to each verdict."""
    titles = ("better", "worse", "too few to tell")
    return crossed(
        (
            row
            for row in read("coverage_verdicts").rows
            if "what would do" not in row.method and "pilot" not in row.method
        ),
        {
            "measured (units): true effect": lambda row: (
                f"{row.task} ({row.n['units']:,}): {row.method.replace('in README', 'measured')}"
            ),
        },
        {title.replace(" ", "_"): title for title in titles},
        cell=lambda row: f"{row.value:.2f}",
        note="The rest is “no clear change”, or “nothing to remove” (at most 0.03). From"
        " `eval/results/coverage_verdicts.json`.",
    )
