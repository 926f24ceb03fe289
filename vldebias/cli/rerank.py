"""`vldebias rerank`: re-rank search results that are given as ids and scores."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from vldebias.cli.balance import shares_of
from vldebias.cli.common import print_grid, print_json, print_message, split_names, split_pair
from vldebias.cli.flags import Json
from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.utils.json_tables import Row
from vldebias.utils.json_values import JSON
from vldebias.utils.table_rows import cell_of

STDIN = Path("-")
ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
KINDS = ("id", "score", "distance", "query")
COLUMNS = ("query", "place", "id", "score", "was at")
_HOW_TO_CHECK = (
    'add labels for the results under "to check" in --json, and pass the column as --checked'
)


class LocatedRow(NamedTuple):
    """A search result and its location in the file, which is used in messages."""

    location: str
    cells: Row


def rerank_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help=(
                "Search results as .jsonl, .csv or .tsv with one result per line, as an API"
                " response (.json), or - for JSON lines on stdin."
            ),
        ),
    ],
    attribute: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN",
            help="Column with the groups; repeat to cross several (female/old).",
        ),
    ],
    k: Annotated[int, typer.Option("--k", min=1, help="Number of results to show per query.")] = 50,
    shares: Annotated[
        list[str] | None,
        typer.Option(
            help=(
                "Comma-separated group=share, even, or pool, the shares of all results. Default:"
                " pool."
            )
        ),
    ] = None,
    checked: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the true groups of checked results; empty for the others.",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Column names, such as id=doc,score=similarity or distance=d."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Re-rank search results to the groups' shares among all results.

    Each line contains a result's id, its score (or its distance, for which lower is better), its
    group and, if there are several queries, its query. Results whose group is "unknown" keep their
    places. Prints the new order to stdout, and the changes and their cost to stderr. Needs no
    model.

    If some groups may be wrong, check a random sample of the results (--json lists one under
    "to check"), store their true groups in a column, and pass the column as --checked. This reports
    the true shares with 95% intervals.

    To select values in nested objects, use dots, as in --attribute payload.gender.

    Examples:
      vldebias rerank results.jsonl --k 50 --attribute gender
      vldebias rerank results.csv --k 20 --attribute gender \\
          --shares female=0.4,male=0.6
      vldebias rerank results.jsonl --attribute gender --attribute age \\
          --checked true_group --json
    """
    target_shares = _target_shares(shares)
    name_of_column = _columns(columns)
    rows_of_query = _read(file, name_of_column, attribute, checked)
    score = name_of_column["distance" if "distance" in name_of_column else "score"]

    from vldebias.reranking import rerank

    records = []
    for query, rows in rows_of_query.items():
        values = [_number(cell_of(row.cells, score), score, row.location) for row in rows]
        positions = rerank(
            # A lower distance is better.
            [-value for value in values] if "distance" in name_of_column else values,
            k,
            labels={name: [cell_of(row.cells, name) for row in rows] for name in attribute},
            shares=target_shares,
            checked=_checked(rows, checked),
        )
        report = replace(positions.report, how_to_check=_HOW_TO_CHECK)
        print_message(f"{query}: {report}" if query else str(report))
        identities = [cell_of(row.cells, name_of_column["id"]) for row in rows]
        former = {int(row): place for place, row in enumerate(report.candidates.ranked, start=1)}
        results = []
        for place, row in enumerate(report.order.tolist(), start=1):
            cells = (place, identities[row], values[row], former[row])
            results.append(dict(zip(COLUMNS[1:], cells, strict=True)))
        to_check = [identities[int(row)] for row in positions.to_check()]
        records.append(
            {**report.to_dict(), "query": query, "results": results, "to check": to_check}
        )
    if as_json:
        print_json({"queries": records})
    else:
        _print_results(records)


def _target_shares(options: Sequence[str] | None) -> str | Mapping[str, float]:
    """Return the value of --shares: a word such as "pool", or the share of each group."""
    if not options:
        return "pool"
    is_word = len(options) == 1 and "=" not in options[0]
    return options[0] if is_word else shares_of(options) or {}


def _columns(options: Sequence[str] | None) -> dict[str, str]:
    """Parse options such as "id=doc,score=similarity" into column names by role."""
    names = {"id": "id", "query": "query"}
    for text in split_names(options):
        kind, name = split_pair(text, "--columns", "id=doc,score=similarity")
        if kind not in KINDS:
            raise InvalidInputError(
                f"--columns {text}: expected {', '.join(KINDS)} before =;"
                f" {did_you_mean(kind, KINDS)}"
            )
        names[kind] = name
    if "distance" not in names:
        names.setdefault("score", "score")
    return names


def _rows(file: Path) -> list[LocatedRow]:
    """Load search results from a JSON file or a table with column names.

    Raises:
        InvalidInputError: If the file does not exist, cannot be parsed or has an unknown format.
    """
    from vldebias.utils.table_rows import read_rows
    from vldebias.utils.text_tables import read_text

    where = str(file)
    suffix = ".jsonl" if file == STDIN else file.suffix.lower()
    if file != STDIN and not file.is_file():
        raise InvalidInputError(f"{where}: no such file; expected results as {', '.join(ENDINGS)}")
    if suffix not in ENDINGS:
        raise InvalidInputError(f"{where}: expected results as {', '.join(ENDINGS)}")
    text = sys.stdin.read() if file == STDIN else read_text(file)
    if not text.strip():
        return []
    _, cells, locations = read_rows(text, suffix, where)
    return [LocatedRow(*row) for row in zip(locations, cells, strict=True)]


def _read(
    file: Path, name_of_column: Mapping[str, str], attribute: Sequence[str], checked: str | None
) -> dict[str, list[LocatedRow]]:
    """Load search results, grouped by query, and check that all columns exist.

    Raises:
        InvalidInputError: If the file cannot be read, is empty, or lacks a column or a label.
    """
    # For each required column, the option that selects it.
    options = {
        name: f"--columns {kind}=COLUMN" for kind, name in name_of_column.items() if kind != "query"
    }
    options |= dict.fromkeys(attribute, "--attribute COLUMN")
    if checked is not None:
        options[checked] = "--checked COLUMN"
    rows = _rows(file)
    # Individual results may lack a label, for which there is another message.
    optional = set()
    for name in (*attribute, checked):
        if name is not None and any(cell_of(row.cells, name) is not None for row in rows):
            optional.add(name)
    rows_of_query: dict[str, list[LocatedRow]] = {}
    for row in rows:
        for name, option in options.items():
            is_absent = name not in row.cells and cell_of(row.cells, name) is None
            if is_absent and name not in optional:
                if option == "--columns score=COLUMN":
                    option += ", or distances with --columns distance=COLUMN"
                hint = did_you_mean(name, list(row.cells), f"name it with {option}")
                if any(cell.replace(".", "").isdigit() for cell in row.cells):
                    hint = "the first line looks like a result; add one with the columns' names"
                raise InvalidInputError(
                    f"{row.location}: no column {name!r} in {list(row.cells)}; {hint}"
                )
        query = str(cell_of(row.cells, name_of_column["query"]) or "")
        rows_of_query.setdefault(query, []).append(row)
    if not rows_of_query:
        raise InvalidInputError(f"{file}: expected results, got none")
    for name in attribute:
        missing = [row.location for row in rows if cell_of(row.cells, name) in (None, "")]
        if missing:
            raise InvalidInputError(
                f"{missing[0]}: no label in {name!r}, as in {len(missing):,} of {len(rows):,}"
                " results; `vldebias rerank` takes complete labels. Write 'unknown' for results"
                " without a group, or predict the missing labels in Python: vldebias.rerank(scores,"
                f" k, features=features, attribute={name!r}, model=model, labels=labels)"
            )
    return rows_of_query


def _checked(rows: Sequence[LocatedRow], column: str | None) -> dict[int, str] | None:
    """Return the true groups of checked results by row number, or None if no column was given."""
    if column is None:
        return None
    from vldebias.utils.label_words import names_no_group

    groups = {}
    unknown: list[str] = []
    for number, row in enumerate(rows):
        cell = cell_of(row.cells, column)
        group = "" if cell is None else str(cell).strip()
        if group and names_no_group(group):
            unknown.append(group)
        elif group:
            groups[number] = group
    if unknown:
        print_message(
            f"{len(unknown):,} of {len(unknown) + len(groups):,} checked results name no group,"
            f" such as {unknown[0]!r}, and count as not checked"
        )
    return groups


def _number(value: JSON, column: str, location: str) -> float:
    if isinstance(value, (str, int, float)):
        try:
            return float(value)
        except ValueError:
            pass
    raise InvalidInputError(f"{location}: expected a number in {column!r}, got {value!r}")


def _print_results(records: Sequence[Mapping[str, Any]]) -> None:
    """Print the results of all queries as one table."""
    lines = []
    for record in records:
        lines += [(record["query"], *map(str, cells.values())) for cells in record["results"]]
    # Only show the query column if there are several queries.
    first = 0 if len(records) > 1 else 1
    print_grid(COLUMNS[first:], [line[first:] for line in lines])
