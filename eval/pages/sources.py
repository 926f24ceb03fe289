"""Compare results reported in the five sources with ours, and list what the package covers."""

from __future__ import annotations

import csv
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from eval.tables import read, table
from vldebias.measure.rows import Measurement
from vldebias.utils.files import read_yaml

SOURCES = Path(__file__).parents[1] / "sources"
ALGEBRA = "the paper's algebra, without a line of the package"  # reason of rows that work
STATES = ("works", "runs", "partly", "differs", "absent")
PAPERS = {
    "T2": "Thesis, chapter 2",
    "T3": "Debiased Contrastive Learning, and chapter 3 of the thesis",
    "T4": "Thesis, chapter 4: hard negatives",
    "T5": "Thesis, chapter 5: RINCE",
    "T6": "Thesis, chapter 6: bounds",
    "T7": "Thesis, chapter 7: debiasing",
    "T8": "Thesis, chapter 8: margins",
    "N": "NUCLR",
    "S": "Spread loss",
    "A": "SSA-CLR",
}


@cache
def headlines() -> dict[str, list[dict[str, Any]]]:
    """Return the reported results by part of the sources, with the location of our closest row."""
    return read_yaml(SOURCES / "headlines.yaml")


def row_of(place: dict[str, str], method: str) -> Measurement:
    """Return the committed row for a method at a given location.

    Raises:
        ValueError: If there is not exactly one row.
    """
    key = (place["task"], place["metric"], method, place.get("subset", ""))
    found = [
        row
        for row in read(place["file"]).rows
        if (row.task, row.metric, row.method, row.subset) == key
    ]
    if len(found) != 1:
        raise ValueError(f"{place['file']}: expected one row for {key}, got {len(found)}")
    return found[0]


def ours(entry: dict[str, Any]) -> str:
    """Format our result with its interval, and the result for the compared method."""
    if "ours" not in entry:
        return "not run"
    place = entry["ours"]
    row = row_of(place, place["method"])
    low, high = row.interval
    figure = f"{row.value:.3f} [{low:.3f}, {high:.3f}]"
    if "base" in place:
        base = row_of(place, place["base"])
        figure = f"{base.value:.3f} to {figure}"
        if row.change is not None:
            figure += ", change {:+.3f} [{:+.3f}, {:+.3f}]".format(*row.change)
    n = ", ".join(f"{count:,} {unit}" for unit, count in row.n.items())
    return f"{entry['what']}: {figure}; {n}"


def reported(part: str) -> str:
    """Write the reported results in one part of the sources, each next to our result."""
    lines = [["where", "the authors report", "ours", "why they differ"]]
    for entry in headlines()[part]:
        lines.append([entry["where"], entry["theirs"], ours(entry), entry["why"]])
    files = dict.fromkeys(entry["ours"]["file"] for entry in headlines()[part] if "ours" in entry)
    named = ", ".join(f"`{file}.json`" for file in files)
    return table(*lines, note=f"From {named} in `eval/results`; each file names its command.")


@cache
def covered() -> list[dict[str, str]]:
    """Return the rows of the coverage table."""
    with (SOURCES / "coverage.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def states() -> str:
    """Write the number of rows in each state, by source."""
    lines = [["source", *STATES, "rows"]]
    total: Counter[str] = Counter()
    for key, title in PAPERS.items():
        counts = Counter(row["state"] for row in covered() if row["source"] == key)
        if counts:
            total += counts
            lines.append([title, *(str(counts[state]) for state in STATES), str(counts.total())])
    lines.append(["all", *(str(total[state]) for state in STATES), str(total.total())])
    return table(*lines, note="From `eval/sources/coverage.csv`.")
