"""Compare results reported in the five sources with ours, and list what the package covers."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from eval.tables import read, table
from vldebias.measure.rows import Measurement
from vldebias.report.table import published
from vldebias.utils.files import read_yaml

SOURCES = Path(__file__).parents[1] / "sources"
ALGEBRA = "the paper's algebra, without a line of the package"  # reason of rows that work
OURS = "a proposition of ours"  # reason of a row that no source has
STATES = ("works", "experiment", "partly", "differs", "absent")
# What proves a row, by the first characters of its proof
KINDS = {
    "tests/": "a test",
    "vldebias.": "a function",
    "apps.": "a function",
    "vldebias ": "a command",
    "prompts/": "packaged prompts",
    "eval": "a run",
    "docs/": "a page",
}
# Keys of the sources: chapters of the thesis, NUCLR, the spread loss and SSA-CLR.
PAPERS = {"T2", "T3", "T4", "T5", "T6", "T7", "T8", "N", "S", "A"}


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
    """Format our result, and the result for the compared method, with an interval."""
    place = entry["ours"]
    row = row_of(place, place["method"])
    if row.change is None or "base" not in place:
        low, high = row.interval
        figure = f"{row.value:.3f} [{low:.3f}, {high:.3f}]"
    else:
        figure = "{:.3f}, change {:+.3f} [{:+.3f}, {:+.3f}]".format(row.value, *row.change)
    if "base" in place:
        figure = f"{row_of(place, place['base']).value:.3f} to {figure}"
    return f"{entry['what']}: {figure}"


def reported(part: str) -> str:
    """Write the reported results in one part of the sources, each next to our result."""
    lines = [["where", "the authors report", "ours", "remarks"]]
    skipped = []
    files: dict[str, None] = {}
    for entry in headlines()[part]:
        if "ours" in entry:
            lines.append([entry["where"], entry["theirs"], ours(entry), entry["why"]])
            files[f"`{entry['ours']['file']}.json`"] = None
        else:
            skipped.append(f"{entry['where']} ({entry['why']})")
    note = f"From {', '.join(files)} in `eval/results`."
    if skipped:
        note += f" Not run: {', '.join(skipped)}."
    return table(*lines, note=note)


def not_built() -> str:
    """Write published values of a method that the package lacks, next to the paper's projection."""
    lines = [["method, source", "needs", "Waterbirds", "CelebA"]]
    for method, title in {"none": "CLIP", "orth-cali": "`orth-cali`"}.items():
        cells = []
        for suite in ("waterbirds", "celeba"):
            of_model = published(suite, "ViT-L-14:openai")
            metrics = ("worst_group", "average", "gap")
            cells.append([100 * of_model[suite, metric, method, ""] for metric in metrics])
        lines.append([f"{title}, Chuang et al.", "no labels", *map(_percents, cells)])
    for entry in headlines()["not_built"]:
        cells = [entry["waterbirds"], entry["celeba"]]
        lines.append([f"{entry['theirs']}, Berasi et al.", entry["why"], *map(_percents, cells)])
    note = (
        "Worst group / average / gap in percent, with CLIP ViT-L/14. From"
        " `vldebias/report/templates/published.csv` and `eval/sources/headlines.yaml`."
    )
    return table(*lines, note=note)


def _percents(values: Sequence[float]) -> str:
    """Format published values in percent."""
    return " / ".join(f"{value:.1f}" for value in values)


@cache
def covered() -> list[dict[str, str]]:
    """Return the rows of the coverage table."""
    with (SOURCES / "coverage.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def kind_of(proof: str) -> str:
    """Return what kind of proof a row has, or "" if it has none."""
    return next((kind for start, kind in KINDS.items() if proof.startswith(start)), "")


def states() -> str:
    """Write the number of rows in each state, by what proves them."""
    counts = Counter((row["state"], kind_of(row["proof"])) for row in covered())
    lines = [["proved by", *STATES]]
    for kind in dict.fromkeys([*KINDS.values(), ""]):
        cells = [counts[state, kind] for state in STATES]
        if any(cells):
            lines.append([kind or "nothing", *(str(cell or "") for cell in cells)])
    note = (
        f"{counts.total()} items. From `eval/sources/coverage.csv`, which gives each item's proof"
        " or reason."
    )
    return table(*lines, note=note)
