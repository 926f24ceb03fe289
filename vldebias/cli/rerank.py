"""`vldebias rerank`: re-rank search results, given as ids and scores."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vldebias.cli.balance import shares_of
from vldebias.cli.common import print_grid, print_json, say, split_names, split_pair
from vldebias.cli.flags import Json
from vldebias.errors import InvalidInputError, did_you_mean
from vldebias.utils.json_tables import cell_of, flat

if TYPE_CHECKING:
    from vldebias.reranking import Report

STDIN = Path("-")
ENDINGS = (".jsonl", ".ndjson", ".json", ".csv", ".tsv")
KINDS = ("id", "score", "distance", "query")
METHODS = ("quota", "fair", "pbm", "mopr", "detconstsort")
COLUMNS = ("query", "place", "id", "score", "group", "was at")


def rerank_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help=(
                "Results: .jsonl, .csv or .tsv with one per line, or .json as an API answers; - for"
                " JSON lines on stdin."
            ),
        ),
    ],
    attribute: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN", help="Column of groups; repeat to cross several (female/old)."
        ),
    ],
    k: Annotated[int, typer.Option("--k", min=1, help="Number of results to show per query.")] = 50,
    shares: Annotated[
        list[str] | None,
        typer.Option(
            help="group=share, comma-separated, or pool (shares of all results). Default: even."
        ),
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "quota",
    checked: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the true group of checked results; empty for the others.",
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(help="Column names: id=doc, score=similarity, or distance=d."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Re-rank search results so that each group gets its share of the first k.

    Each line is a result: an id, a score (or a distance: less is better), a group and, for several
    queries, the query. Results without a group keep their places. Prints the new order on stdout,
    and the changes and their cost on stderr. Needs no model.

    If some groups may be wrong, check a random sample of the results (--json lists one under
    "to check"), store their true groups in a column, and pass it as --checked to get the true
    shares with 95 % intervals.

    Name what is inside of nested objects with dots: --attribute payload.gender.

    Examples:
      vldebias rerank results.jsonl --k 50 --attribute gender
      vldebias rerank results.csv --k 20 --attribute gender \\
          --shares female=0.4,male=0.6
      vldebias rerank results.jsonl --attribute gender --attribute age \\
          --checked true_group --json
    """
    if method not in METHODS:
        hint = did_you_mean(method, METHODS)
        raise InvalidInputError(f"--method {method}: expected one of {', '.join(METHODS)}; {hint}")
    target_shares: Any = "pool" if shares == ["pool"] else shares_of(shares)
    name_of_column = _columns(columns)
    rows_of_query = _read(file, name_of_column, attribute, checked)

    from vldebias.reranking import rerank

    is_distance = "distance" in name_of_column
    score = name_of_column["distance" if is_distance else "score"]
    sign = -1 if is_distance else 1
    records = []
    for query, rows in rows_of_query.items():
        values = [_number(cell_of(row, score), score, place) for place, row in rows]
        labels = {}
        for name in attribute:
            labels[name] = [cell_of(row, name) for _, row in rows]
        positions = rerank(
            [sign * value for value in values],
            k,
            labels=labels,
            shares=target_shares,
            method=method,
            checked=_checked(rows, checked),
        )
        report = positions.report
        say(f"{query}: {report}" if query else str(report))
        identities = [cell_of(row, name_of_column["id"]) for _, row in rows]
        results = _results(report, identities, values)
        to_check = [identities[row] for row in positions.to_check()]
        records.append(
            {**report.to_dict(), "query": query, "results": results, "to check": to_check}
        )
    if as_json:
        print_json({"queries": records})
        return
    # One line per result, with its query if there are several.
    first = 0 if len(records) > 1 else 1
    cells = []
    for record in records:
        for result in record["results"]:
            cells.append(tuple(map(str, (record["query"], *result.values())))[first:])
    print_grid(COLUMNS[first:], cells)


def _columns(options: Sequence[str] | None) -> dict[str, str]:
    """Parse options such as "id=doc,score=similarity" into role -> column name."""
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


def _rows(file: Path) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the results of a file, each with its place: JSON, or a table with a head.

    Raises:
        InvalidInputError: no such file, another kind of file, or a content that cannot be read.
    """
    from vldebias.utils.json_tables import is_json_document, rows_of_json, rows_of_lines
    from vldebias.utils.text_tables import read_text, split_rows

    where = str(file)
    suffix = ".jsonl" if file == STDIN else file.suffix.lower()
    if file != STDIN and not file.is_file():
        raise InvalidInputError(f"{where}: no such file; expected results as {', '.join(ENDINGS)}")
    if suffix not in ENDINGS:
        raise InvalidInputError(f"{where}: expected results as {', '.join(ENDINGS)}")
    text = sys.stdin.read() if file == STDIN else read_text(file)
    if suffix in (".csv", ".tsv"):
        if not text.strip():
            return []
        names, *cells = split_rows(text, where, usual="\t" if suffix == ".tsv" else ",")
        rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in cells]
        places = [f"{where}: row {number}" for number in range(2, len(rows) + 2)]
    elif is_json_document(text, suffix):
        rows = rows_of_json(text, where)
        places = [f"{where}: entry {number}" for number in range(1, len(rows) + 1)]
    else:
        rows, numbers = rows_of_lines(text.split("\n"), where)
        places = [f"{where}:{number}" for number in numbers]
    return [(place, flat(row, place)) for place, row in zip(places, rows, strict=True)]


def _read(
    file: Path, name_of_column: Mapping[str, str], attribute: Sequence[str], checked: str | None
) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Return query -> results, each with its location in the file.

    Raises:
        InvalidInputError: the file cannot be read, is empty, or lacks a column.
    """
    # Required column -> the option that selects it.
    options = {
        name: f"--columns {kind}=COLUMN" for kind, name in name_of_column.items() if kind != "query"
    }
    options |= dict.fromkeys(attribute, "--attribute COLUMN")
    if checked is not None:
        options[checked] = "--checked COLUMN"
    # Not every result has to have a group: it is unknown if its object lacks it.
    groups = {*attribute, checked}
    rows = _rows(file)
    present = {name for name in options for _, row in rows if cell_of(row, name) is not None}
    rows_of_query: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for place, row in rows:
        for name, option in options.items():
            is_absent = name not in row and cell_of(row, name) is None
            if is_absent and not (name in groups and name in present):
                hint = did_you_mean(name, list(row), f"name it with {option}")
                raise InvalidInputError(f"{place}: no column {name!r} in {list(row)}; {hint}")
        query = str(cell_of(row, name_of_column["query"]) or "")
        rows_of_query.setdefault(query, []).append((place, row))
    if not rows_of_query:
        raise InvalidInputError(f"{file}: expected results, got none")
    return rows_of_query


def _checked(
    rows: Sequence[tuple[str, Mapping[str, Any]]], column: str | None
) -> dict[int, str] | None:
    """Return row -> true group of the checked results; None without a column."""
    if column is None:
        return None
    groups = {}
    for number, (_, row) in enumerate(rows):
        cell = cell_of(row, column)
        group = "" if cell is None else str(cell).strip()
        if group:
            groups[number] = group
    return groups


def _number(value: Any, column: str, place: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{place}: expected a number in {column!r}, got {value!r}"
        ) from None


def _results(
    report: Report, identities: Sequence[Any], values: Sequence[float]
) -> list[dict[str, Any]]:
    """Return place, id, score, group and former place of each result, keyed by `COLUMNS`."""
    former = {int(row): place for place, row in enumerate(report.candidates.ranked, start=1)}
    results = []
    for place, row in enumerate(report.order.tolist(), start=1):
        code = int(report.candidates.codes[row])
        group = report.candidates.names[code] if code >= 0 else ""
        cells = (place, identities[row], values[row], group, former[row])
        results.append(dict(zip(COLUMNS[1:], cells, strict=True)))
    return results
