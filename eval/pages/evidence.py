"""Write the tables in `docs/explanation/intervals.md` and the table of replayed results.

They show how reliable intervals and verdicts are, and which results were reproduced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eval.replay import commands
from eval.tables import crossed, read, table
from vldebias.report.result import Measurement
from vldebias.report.table import ENOUGH

SMALL, USUAL = "small", "usual"


def simulations(name: str) -> list[tuple[Measurement, float, Any]]:
    """Return each coverage row with its mean width and the description of its task."""
    result = read(name)
    protocols = {protocol.task: protocol for protocol in result.provenance}
    widths = {}
    for row in result.rows:
        if row.metric == "width":
            widths[row.task, row.method, row.subset] = row.value
    found = []
    for row in result.rows:
        if row.metric == "coverage":
            width = widths[row.task, row.method, row.subset]
            found.append((row, width, protocols[row.task]))
    return found


Covered = dict[tuple[str, str], list[tuple[str, str, float, float]]]


def coverages() -> Covered:
    """Return the (size, setting, coverage, width) of simulated intervals by kind and figure."""
    found: Covered = {}
    for row, width, protocol in simulations("coverage"):
        settings = protocol.settings
        smallest = min(settings["share"]) / sum(settings["share"]) * settings["n"]
        if row.method.endswith(("alone", "percentile")) or " of the hardest group" in row.method:
            continue
        size = USUAL if smallest >= 99 else SMALL
        cells = found.setdefault(("groups", row.method.replace("_", " ")), [])
        cells.append((size, protocol.task, row.value, width))
    for row, width, protocol in simulations("coverage_shares"):
        size = SMALL if row.method.endswith((" 30 labels", "gallery of 100")) else USUAL
        way = row.method.partition(",")[0].partition(" of ")[0]
        cells = found.setdefault((f"shares, {way}", row.subset), [])
        cells.append((size, protocol.task, row.value, width))
    for row, width, protocol in simulations("coverage_kinds"):
        size = USUAL if row.subset in protocol.settings["usual"] else SMALL
        cells = found.setdefault((protocol.task, row.method.replace("_", " ")), [])
        cells.append((size, row.subset.partition("; ")[0], row.value, width))
    return found


def covered() -> str:
    """Write the coverage of each kind of interval at small and usual sizes."""
    lines = [["intervals", "metric", "small n", "usual n", "width", "not 0.92 to 0.98, usual n"]]
    for (kind, figure), cells in coverages().items():
        small = [coverage for size, _, coverage, _ in cells if size == SMALL]
        usual = [cell[1:] for cell in cells if cell[0] == USUAL]
        narrow = [setting for setting, coverage, _ in usual if coverage < 0.92]
        wide = [setting for setting, coverage, _ in usual if coverage > 0.98]
        notes = []
        for word, settings in (("too narrow", narrow), ("wide", wide)):
            if settings:
                notes.append(f"{word}: {'; '.join(dict.fromkeys(settings))}")
        lines.append(
            [
                kind,
                figure,
                low_to_high(small),
                low_to_high([coverage for _, coverage, _ in usual]),
                low_to_high([width for _, _, width in usual]),
                ". ".join(notes),
            ]
        )
    note = (
        "Lowest to highest over settings. From `eval/results/coverage.json`,"
        " `coverage_shares.json`, `coverage_kinds.json`: `python -m eval.experiments.coverage all`."
    )
    return table(*lines, note=note)


def covered_by_kind() -> str:
    """Write the coverage of each kind of interval over all metrics and settings."""
    rows_of_kind: dict[str, list[tuple[str, str, float]]] = {}
    for (kind, metric), cells in coverages().items():
        rows = rows_of_kind.setdefault(kind, [])
        rows += [(metric, size, coverage) for size, _, coverage, _ in cells]
    lines = [["intervals", "small n", "usual n", "below 0.92, usual n", "above 0.98, usual n"]]
    for kind, rows in rows_of_kind.items():
        small = [coverage for _, size, coverage in rows if size == SMALL]
        usual = [(metric, coverage) for metric, size, coverage in rows if size == USUAL]
        narrow = dict.fromkeys(metric for metric, coverage in usual if coverage < 0.92)
        wide = dict.fromkeys(metric for metric, coverage in usual if coverage > 0.98)
        lines.append(
            [
                kind,
                low_to_high(small),
                low_to_high([coverage for _, coverage in usual]),
                ", ".join(narrow),
                ", ".join(wide),
            ]
        )
    note = (
        "Lowest to highest over metrics and settings. From `eval/results/coverage.json`,"
        " `coverage_shares.json`, `coverage_kinds.json`."
    )
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
    for name in ("coverage_kinds", "coverage_large"):
        for row, _, protocol in simulations(name):
            if protocol.task not in RESAMPLED:
                continue
            units = int(row.subset.partition("; ")[2].split()[0])
            metric = row.method.removeprefix("change of ")
            lowest = found.setdefault((protocol.task, metric), {})
            lowest[units] = min(row.value, lowest.get(units, 1.0))
    return found


def enough() -> str:
    """Write the number of units needed for reliable intervals; below it, pages say "few"."""
    lines = [["intervals", "metric", "lowest coverage, by number of units", "“few” below"]]
    for (kind, metric), coverage in lowest_by_size().items():
        unit = RESAMPLED[kind]
        parts = [f"{units:,}: {coverage[units]:.2f}" for units in sorted(coverage)]
        least = ENOUGH[unit].get(metric)
        mark = "" if least is None else f"{least:,.0f} {unit}"
        if least == np.inf:
            mark = "any number, “narrow interval”"
        lines.append([kind, metric.replace("_", " "), "; ".join(parts), mark])
    note = (
        "Lowest coverage over settings, for values and changes. From"
        " `eval/results/coverage_kinds.json` and `coverage_large.json`"
        " (`python -m eval.experiments.coverage large`)."
    )
    return table(*lines, note=note)


def mended() -> str:
    """Write the coverage and width of intervals before and after the correction."""
    rows = {(row.task, row.method): (row, width) for row, width, _ in simulations("coverage")}
    lines = [["data", "interval of", "before", "after", "width before", "width after"]]
    for (task, method), (before, width) in rows.items():
        name = method.removesuffix(", percentile alone")
        if name == method:
            continue
        after, width_after = rows[task, name]
        if before.value == after.value:
            continue
        figures = [f"{value:.2f}" for value in (before.value, after.value)]
        figures += [f"{value:.3f}" for value in (width, width_after)]
        lines.append([task, name.replace("_", " "), *figures])
    return table(*lines, note="From `eval/results/coverage.json`, where the two differ.")


def verdicts() -> str:
    """Write how often data sets of the usual and the recommended size lead to each verdict."""
    titles = ("better", "worse", "no clear change", "too few to tell", "nothing to remove")
    return crossed(
        read("coverage_verdicts").rows,
        {
            "measured": lambda row: row.task,
            "true effect": lambda row: row.method,
            "units": lambda row: f"{row.n['units']:,}",
        },
        {title.replace(" ", "_"): title for title in titles},
        cell=lambda row: f"{row.value:.2f}",
        note="From `eval/results/coverage_verdicts.json`.",
    )


def replayed() -> str:
    """Write each committed result with its command, date and the comparison with a new run."""
    result = read("replay")
    counts: dict[str, dict[str, int]] = {}
    total: Counter[str] = Counter()
    for row in result.rows:
        counts.setdefault(row.task, {})[row.subset] = round(row.value)
        total[row.subset] += round(row.value)
    date_of_replay = {part.task: part.settings.get("date", "") for part in result.provenance}
    lines = [["result", "figures", "command", "date", "run again"]]
    for command in commands():
        if command.name == result.name:
            continue
        # A vertical bar would end the table cell.
        words = command.words.replace("|", "\\|")
        state = f"no: {command.reason}"
        if command.name in counts:
            state = numbers_by_name(counts[command.name])
            if command.date > date_of_replay[command.name]:
                state = f"{state}, before it was last measured"
        lines.append([f"`{command.name}`", f"{command.rows:,}", f"`{words}`", command.date, state])
    note = (
        f"Run again: {total.total():,} figures of {len(counts)} results, {numbers_by_name(total)}."
        " From `eval/results/replay.json`; times of a machine are not compared."
    )
    return table(*lines, note=note)


def numbers_by_name(counts: Mapping[str, int]) -> str:
    """Format counts by name, as in "12 equal, 1 inside"."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
