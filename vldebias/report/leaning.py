"""Build the page table of the queries whose first results favour a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vldebias.measure.rows import NONE
from vldebias.utils.files import spreadsheet_csv, write_atomically
from vldebias.utils.phrases import quantity_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from vldebias.report.measurements import Measurements


class LeaningTable(NamedTuple):
    """A task's queries, the most skewed query first.

    Attributes:
        caption: how many queries favour a group, and by how much this exceeds chance.
        methods: the methods, apart from "none".
        rows: for each query, its text, the group and the group's share of the gallery, its share of
            the first results, and for each method this share and the share of results that stay.
        csv: name of the CSV file with all rows.
    """

    caption: str
    methods: tuple[str, ...]
    rows: tuple[tuple[str, str, str, Sequence[tuple[str, str]]], ...]
    csv: str


def leaning_tables(result: Measurements, page: Path) -> list[LeaningTable]:
    """Return a table for each task that compares queries, and write it as CSV next to the page."""
    import pandas as pd

    tables: list[LeaningTable] = []
    for provenance in result.provenance:
        queries: list[dict[str, object]] = provenance.settings.get("leaning") or []
        if not queries:
            continue
        frame = pd.json_normalize(queries, sep=" ").drop(columns=f"stay {NONE}")
        number = f"-{len(tables) + 1}" if tables else ""
        file = page.with_name(f"{page.stem}-queries{number}.csv")
        write_atomically(file, spreadsheet_csv(frame))
        methods = tuple(
            name.removeprefix("stay ") for name in frame.columns if name.startswith("stay ")
        )
        rows = []
        for row in frame.to_dict("records"):
            cells = [
                (f"{row[f'share {name}']:.0%}", f"{row[f'stay {name}']:.0%}") for name in methods
            ]
            group = f"{row['group']} ({row['gallery']:.0%})"
            rows.append((str(row["query"]), group, f"{row[f'share {NONE}']:.0%}", cells))
        n_beyond = int(frame["beyond_chance"].sum())
        k = provenance.settings["k"][0]
        caption = (
            f"Queries that lean most: in the first {k} results, {n_beyond} of"
            f" {quantity_of(len(frame), 'queries')} favour a group more than 95% of random rankings"
            " do (by chance, 5% would)"
        )
        tables.append(LeaningTable(caption, methods, tuple(rows), file.name))
    return tables
