"""Tables in four formats give the same labels, vectorised, or an error that says where."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.refusals import refused
from vldebias.data import UNKNOWN, Labels
from vldebias.data.tables import as_labels, as_texts, column_of, integers, read_table

cells = st.lists(st.sampled_from(["a", "b", " a", "b ", "", " ", None]), max_size=30)


@given(cells)
def test_labels_equal_the_naive_twin(rows: list[str | None]) -> None:
    naive = Labels.of([(row or "").strip() for row in rows])
    for column in (pa.array(rows, pa.string()), pa.array(rows, pa.string()).dictionary_encode()):
        found = as_labels(column, None, "here")
        assert found.names == naive.names
        assert np.array_equal(found.codes, naive.codes)


@given(cells)
def test_given_names_keep_their_order_and_may_rename(rows: list[str | None]) -> None:
    column = pa.array(rows, pa.string())
    plain = as_labels(column, ["b", "a", "never"], "here")
    assert plain.names == ("b", "a", "never")
    assert np.array_equal(plain.codes, Labels.of([(r or "").strip() for r in rows], ["b", "a", "never"]).codes)
    merged = as_labels(column, {"a": "letter", "b": "letter"}, "here")
    assert merged.names == ("letter",)
    assert np.array_equal(merged.known, plain.known)


@given(cells, st.sampled_from(["a", ["b"], ("a", "b")]))
def test_values_that_mean_unknown_are_unknown(rows: list[str | None], unknown: object) -> None:
    column = pa.array(rows, pa.string())
    expected = as_labels(column, None, "here").without(unknown)
    found = as_labels(column, None, "here", unknown)
    assert (found.names, found.codes.tolist()) == (expected.names, expected.codes.tolist())
    renamed = as_labels(pa.array([1, 0, -1]), {"0": "no", "1": "yes"}, "here", -1)
    assert (renamed.names, renamed.codes.tolist()) == (("no", "yes"), [1, 0, UNKNOWN])


@pytest.mark.parametrize(
    ("values", "names", "codes"),
    [
        ([1, 0, None], ("0", "1"), [1, 0, UNKNOWN]),
        ([1.0, 0.0, None], ("0", "1"), [1, 0, UNKNOWN]),
        ([1.0, float("nan")], ("1",), [0, UNKNOWN]),
        ([0.5, None], ("0.5",), [0, UNKNOWN]),
        ([float("inf"), 1.0, None], ("1", "inf"), [1, 0, UNKNOWN]),
        ([1e300, 1.0], ("1", "1e+300"), [1, 0]),
        ([True, False], ("false", "true"), [1, 0]),
        ([None, None], (), [UNKNOWN, UNKNOWN]),
        ([], (), []),
    ],
)
def test_numbers_are_labels_by_how_they_are_written(values: list, names: tuple[str, ...], codes: list[int]) -> None:
    found = as_labels(pa.array(values), None, "here")
    assert (found.names, found.codes.tolist()) == (names, codes)


def write(path: Path) -> Path:
    rows = {"image": ["01.png", "02.png"], "gender": ["f", ""], "text": ["one,\ntwo", 'it\'s "so"']}
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(rows), path)
    elif path.suffix in (".jsonl", ".ndjson"):
        pairs = zip(*rows.values(), strict=True)
        import json

        path.write_text("".join(json.dumps(dict(zip(rows, row, strict=True))) + "\n" for row in pairs))
    else:
        import csv

        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerow(rows)
            writer.writerows(zip(*rows.values(), strict=True))
    return path


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".CSV"])
def test_every_format_gives_the_same(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"table{ending.lower()}")
    path = path.rename(tmp_path / f"table{ending}")
    table = read_table(path)
    assert as_texts(column_of(table, "image", path), "here") == ["01.png", "02.png"]
    assert as_texts(column_of(table, "text", path), "here") == ["one,\ntwo", 'it\'s "so"']
    assert as_labels(column_of(table, "gender", path), None, "here").codes.tolist() == [0, UNKNOWN]


@refused(
    ("a.csv", b"a,b\n1\n", "cannot be read as csv: .*Expected 2 columns, got 1"),
    ("a.csv", b"a,a\n1,2\n", r"a column stands twice in the first line: \['a', 'a'\]"),
    ("a.csv", b"", "is empty; expected a first line with the names of the columns"),
    ("a.csv", b"a,b\n\xff\xfe,2\n", "cannot be read as csv"),
    ("a.jsonl", b'{"a": 1}\n{"a": "x"}\n', "cannot be read as jsonl: .*changed from number to string"),
    ("a.jsonl", b"{", "cannot be read as jsonl"),
    ("a.jsonl", b'{"a": "\xff"}', "cannot be read as jsonl: .*Invalid UTF8"),
    ("a.jsonl", b"null\nnull\n", r"a.jsonl: line 1: expected an object such as {\"image\": ...}, got null"),
    ("a.jsonl", b'{"a": 1}\n\n [1]\n', r"a.jsonl: line 3: expected an object .* got \[1\]"),
    ("a.jsonl", b"", "cannot be read as jsonl: Empty JSON file"),
    ("a.parquet", b"no parquet", "cannot be read as parquet"),
    ("none.csv", None, "there is no such file"),
    ("a.xlsx", b"", r"expected a file ending in .csv, .tsv, .parquet, .jsonl, .ndjson, got '.xlsx'"),
)
def test_a_file_that_does_not_fit_says_why(tmp_path: Path, name: str, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    read_table(tmp_path / name)


@refused(
    (lambda: column_of(pa.table({"a": [1]}), "b", "t.csv"), r"t.csv: expected a column 'b'; there are \['a'\]"),
    (lambda: as_labels(pa.array(["x"]), ["a"], "t"), r"t: expected one of \['a'\], got \['x'\]"),
    (
        lambda: as_labels(pa.array([{"a": 1}]), None, "t"),
        "t: expected texts or numbers, got a column of struct",
    ),
    (
        lambda: as_labels(pa.array(range(2001)), None, "t"),
        "t: 2001 different values in 2001 rows; is that a label",
    ),
    (lambda: integers(pa.array(["0", "2"]), (0, 1), "t"), r"t: expected one of \['0', '1'\], got \['2'\]"),
    (lambda: integers(pa.array(["0", ""]), (0, 1), "t"), r"t: expected \[0, 1\] in every row, 1 are empty"),
)
def test_a_column_that_does_not_fit_says_why(call: Callable[[], object]) -> None:
    call()


def test_cells_of_csv_stay_as_they_are_written_and_nested_objects_are_columns_with_a_dot(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n007,NA\n1e3,null\n")
    assert read_table(path).to_pylist() == [{"x": "007", "y": "NA"}, {"x": "1e3", "y": "null"}]
    path = tmp_path / "a.jsonl"
    path.write_text('{"image": "a", "labels": {"gender": "f"}}\n{"image": "b", "labels": {}}\n')
    assert as_labels(column_of(read_table(path), "labels.gender", path), None, "").codes.tolist() == [0, UNKNOWN]
    assert integers(pa.array(["1", "-1", "1"]), (-1, 0, 1), "t").tolist() == [1, -1, 1]  # values, not places


def test_the_number_of_calls_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    def calls(rows: int) -> int:
        """Those that Python makes, of functions and of builtins."""
        path, count = tmp_path / f"{rows}.csv", 0
        path.write_text("file,label\n" + "".join(f"{i}.png,{i % 3}\n" for i in range(rows)))

        def trace(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(trace)
        try:
            table = read_table(path)
            as_labels(column_of(table, "label", path), None, ""), as_texts(column_of(table, "file", path), "")
        finally:
            sys.setprofile(None)
        return count

    calls(10)
    assert calls(20_000) < calls(20) + 50
