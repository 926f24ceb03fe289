"""Test labels and their intersections, tables in all formats, and captions."""

import csv
import json
import re
import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.refusals import refused
from vldebias.data import Labels, cross
from vldebias.data.caption_cells import check_captions, one_row_per_image, says_something
from vldebias.data.label_values import odd_values
from vldebias.data.labels import UNKNOWN
from vldebias.data.layouts import find_layout
from vldebias.data.prompt_file import read_prompts
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.utils.table_rows import cell_of, read_rows

NAMES = ("a", "b", "c")
values = st.lists(st.sampled_from([*NAMES, None, ""]), max_size=30)
triples = st.lists(st.tuples(*[st.sampled_from([*NAMES, None])] * 3), max_size=30)
cells = st.lists(st.sampled_from(["a", "b", " a", "b ", "", " ", None]), max_size=30)


def back(labels: Labels) -> list[str | None]:
    return [labels.names[code] if code != UNKNOWN else None for code in labels.codes]


@given(values, st.sets(st.sampled_from(NAMES)), st.data())
def test_labels_can_be_counted_selected_and_set_to_unknown(
    rows: list[str | None], marks: set[str], data: st.DataObject
) -> None:
    labels = Labels.from_values(rows)
    named = Labels.from_values(rows, NAMES)
    assert back(labels) == back(named) == [row or None for row in rows]
    assert Labels(labels.codes, [*labels.names]).names == tuple(
        sorted({row for row in rows if row})
    )
    assert named.counts == {name: rows.count(name) for name in NAMES}
    assert named.known.sum() == len(rows) - rows.count(None) - rows.count("")
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=20)) if rows else []
    assert back(named[np.array(picked, dtype=int)]) == [rows[i] or None for i in picked]
    assert back(named[named.known]) == [row for row in rows if row]
    unmarked = labels.without(marks)
    assert back(unmarked) == [None if row in marks else row or None for row in rows]
    assert set(unmarked.names) == {row for row in rows if row} - marks


@given(triples)
def test_cross_joins_names_and_is_unknown_if_either_is_unknown(
    rows: list[tuple[str | None, ...]],
) -> None:
    columns = [Labels.from_values([row[k] for row in rows], NAMES) for k in range(3)]
    crossed = cross(*columns)
    assert back(crossed) == [None if None in row else "/".join(row) for row in rows]
    assert crossed.names == tuple("/".join(names) for names in product(NAMES, repeat=3))
    assert np.array_equal(cross(columns[0], cross(*columns[1:])).codes, crossed.codes)


@pytest.mark.parametrize(
    ("column", "names", "codes"),
    [
        (["f", "", "m"], ("f", "m"), [0, -1, 1]),
        (np.array([b"f", b"\xc3\xbc"]), ("f", "ü"), [0, 1]),
        (["f", None, float("nan")], ("f",), [0, -1, -1]),
        ([10, 2, -1], ("-1", "2", "10"), [2, 1, 0]),
        (torch.tensor([-1, 1]), ("-1", "1"), [0, 1]),
        (np.array([-1.0, np.nan]), ("-1",), [0, -1]),
        ([10, 2, None], ("2", "10"), [1, 0, -1]),
        (torch.tensor([3, 1, 3], dtype=torch.uint8), ("1", "3"), [1, 0, 1]),
        (torch.tensor([1.0, 0.0, float("nan")], requires_grad=True), ("0", "1"), [1, 0, -1]),
        ((True, False), ("no", "yes"), [1, 0]),
        (pandas.Series(["f", None], dtype="string"), ("f",), [0, -1]),
        (pandas.Series(["m", "f"], dtype="category"), ("f", "m"), [1, 0]),
        ([], (), []),
        (Labels.from_values(["x"]), ("x",), [0]),
    ],
)
def test_columns_of_common_types_are_read(
    column: object, names: tuple[str, ...], codes: list[int]
) -> None:
    labels = Labels.from_array(column)
    assert (labels.names, labels.codes.tolist()) == (names, codes)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=20))
def test_numbers_are_values_regardless_of_sign_and_may_index_names(column: list[int]) -> None:
    assert [int(name or "nothing") for name in back(Labels.from_array(column))] == column
    named = Labels.from_array([max(n, -1) for n in column], list("wxyz"))
    assert back(named) == [None if n < 0 else "wxyz"[n] for n in column]


@refused(
    (lambda: Labels(np.zeros((2, 2), int), ("a",)), r"got shape \(2, 2\)"),
    (lambda: Labels(np.array([0, 1]), ("a",)), r"-1 \(unknown\) .. 0 for \['a'\], got \[1\]"),
    (lambda: Labels(np.array([-2]), ("a",)), r"got \[-2\]"),
    (lambda: Labels(np.array([0]), ("a", "a")), "expected distinct names"),
    (lambda: Labels.from_array([0.5, 1.0]), "got float64"),
    (lambda: Labels.from_array(np.zeros((2, 2))), r"got shape \(2, 2\) with dtype float64"),
    (lambda: Labels.from_array("female"), r"got shape \(\)"),
    (lambda: Labels.from_array([["a"], ["b", "c"]]), "got lists of different lengths"),
    (lambda: Labels.from_array([b"\xff"]), "bytes of UTF-8, got b'.xff'"),
    (lambda: Labels.from_array([2], ["a", "b"]), r"got \[2\]"),
    (lambda: Labels.from_values(["a", "x"], ["a", "b"]), r"\['a', 'b'\], got \['x'\]"),
    (
        lambda: cross(Labels.from_values(["a"]), Labels.from_values("ab")),
        r"same length, got \[1, 2\]",
    ),
    (lambda: cross(), r"same length, got \[\]"),
)
def test_invalid_labels_raise_errors(call: Callable[[], object]) -> None:
    call()


@pytest.mark.parametrize(
    ("rows", "patterns"),
    [
        (["a", "b"] * 5, []),
        ([0, 1, 2] * 5, []),
        ([-1, 1] * 5, []),
        ([-1, 0, 1] * 5, [r"named '-1'; .* set unknown='-1'"]),  # pandas codes
        ([-2, -1, 0, 1] * 5, []),  # a rating scale
        (["m", "f", "Unknown"] * 5, [r"named 'Unknown'; .* set unknown='Unknown'"]),
        (["none", "glasses"] * 5, [r"named 'none'; .* set unknown='none'"]),
        (
            ["Male", "male", "f"] * 5,
            [r"'Male' and 'male' differ only in case or spaces.*--rename Male=male"],
        ),
        (["a b", "a  b ", "f"] * 5, [r"'a  b ' and 'a b' differ"]),
        (["White ", "WHITE", "Black"] * 5, ["--rename WHITE=White "]),
        (["None", "NaN", "f"] * 5, [r"'NaN' and 'None'; .* set unknown='NaN'"]),
        ([-99, 0, 1] * 5, [r"named '-99'"]),
        ([255, 0, 1] * 5, [r"named '255'; .* set unknown='255'"]),
        ([99, 98, 97] * 5, []),  # ages
        # This column names every row rather than a small group.
        (Labels(np.zeros(9, int), ("a", "b")), []),
        (["a"] * 5 + ["b"] * 4, []),  # nearly half of a small table
        (["a"] * 500 + list("bcdefgh"), [r"7 of 8 groups have fewer than 5 rows: 'b' \(1\)"]),
        (list(range(100)), [r"100 of 100 groups"]),
        (["female"] * 19 + ["femle"] + ["male"] * 20, [r"got 'femle'.* did you mean 'female'"]),
        (["female"] * 30 + ["male"] * 4, []),  # a separate word
    ],
)
def test_probable_mistakes_in_columns_are_reported(rows: list, patterns: list[str]) -> None:
    doubts = odd_values(Labels.from_array(rows))
    assert len(doubts) == len(patterns)
    for warning, pattern in zip(doubts, patterns, strict=True):
        assert re.search(pattern, warning)


@given(cells)
def test_labels_of_a_table_match_a_naive_implementation(rows: list[str | None]) -> None:
    naive = Labels.from_values([(row or "").strip() for row in rows])
    column = pa.array(rows, pa.string())
    for encoded in (column, column.dictionary_encode()):
        labels = Labels.from_column(encoded, None, "here")
        assert (labels.names, labels.codes.tolist()) == (naive.names, naive.codes.tolist())
    ordered = Labels.from_column(column, ["b", "a", "never"], "here")
    assert (ordered.names, back(ordered)) == (("b", "a", "never"), back(naive))
    merged = Labels.from_column(column, {"a": "letter", "b": "letter"}, "here")
    assert merged.names == ("letter",)
    assert np.array_equal(merged.known, naive.known)


@pytest.mark.parametrize(
    ("column", "names", "codes"),
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
def test_numbers_become_labels_exactly_as_written(
    column: list, names: tuple[str, ...], codes: list[int]
) -> None:
    labels = Labels.from_column(pa.array(column), None, "here")
    assert (labels.names, labels.codes.tolist()) == (names, codes)


@pytest.mark.filterwarnings("ignore:.*line break:vldebias.errors.SuspectInputWarning")
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".CSV"])
def test_every_format_gives_the_same_table(tmp_path: Path, ending: str) -> None:
    rows = {"image": ["01.png", "=1"], "gender": ["f", ""], "text": ["one,\ntwo", 'it\'s "so"']}
    path = tmp_path / f"table{ending}"
    records = list(zip(*rows.values(), strict=True))
    if ending == ".parquet":
        parquet.write_table(pa.table(rows), path)
    elif "json" in ending:
        path.write_text(
            "".join(json.dumps(dict(zip(rows, row, strict=True))) + "\n" for row in records)
        )
    else:
        with path.open("w", newline="", encoding="utf-8-sig") as file:
            writer = csv.writer(file, delimiter="\t" if ending == ".tsv" else ",")
            writer.writerows([list(rows), records[0], ("'=1", *records[1][1:])])
    table = read_table(path)
    assert as_texts(column_of(table, "image", path), "here") == rows["image"]
    assert as_texts(column_of(table, "text", path), "here") == rows["text"]
    assert Labels.from_column(column_of(table, "gender", path), None, "here").codes.tolist() == [
        0,
        UNKNOWN,
    ]


def test_csv_cells_are_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n007,NA\n1e3,null\n")
    assert read_table(path).to_pylist() == [{"x": "007", "y": "NA"}, {"x": "1e3", "y": "null"}]


def test_a_stray_quote_in_an_unused_column_is_detected(tmp_path: Path) -> None:
    """Regression test: the quote used to swallow the rest of the file, and only 131 of 200 rows
    were read."""
    path = tmp_path / "a.csv"
    rows = [f"{i}.png,{'female' if i % 2 else 'male'},caption {i}" for i in range(200)]
    rows[131] = rows[131].replace("caption", '"caption')
    path.write_text("\n".join(["image,gender,text", *rows]))
    with pytest.raises(InvalidInputError, match="line 133"):
        read_table(path)
    rows[150] += '"'  # the two quotes enclose a cell of twenty rows
    path.write_text("\n".join(["image,gender,text", *rows]))
    with pytest.warns(SuspectInputWarning, match=r"1 rows .* the first in line 133"):
        assert read_table(path).num_rows == 181
    rows[131] = rows[131].replace('"', "")
    rows[150] = '150.png,male,"5"" nails, three"'
    path.write_text("\n".join(["image,gender,text", *rows]))
    assert read_table(path).column("text")[150].as_py() == '5" nails, three'


@refused(
    ("a.csv", b"a,b\n1,2\n1\n", "a.csv: line 3: expected 2 columns"),
    ("a.csv", b"a,a\n1,2\n", r"got \['a', 'a'\]"),
    ("a.csv", b"", "first line"),
    ("a.csv", b"a,b\n\xff\xfe\x01,2\n", "a.csv"),
    ("a.csv", b'a,b\n1,2\n3,"4\n5,6\n', "a.csv: line 3"),
    ("a.csv", b'a,b\n1,2\n3,"4\n5,"6, 7"\n', "a.csv: line 3"),
    ("a.csv", b'a,b\n1,"2"2\n', "a.csv: line 2"),
    ("a.csv", b"a,b\n1,2\n3,\x004\n", "a.csv: line 3"),
    ("a.jsonl", b'{"a": 1, "a": 2}\n', "twice"),
    ("a.jsonl", b'{"a": 1}\n{"a": "x"}\n', "'a': row 2 has a string, .* a number, '1'"),
    ("a.jsonl", b'{"a": "x"}\n{"a": null}\n{"a": ["y"]}\n', r"'a': row 3 .* as a list, \[\"a str"),
    ("a.json", b'[{"a": ["x"]}, {"a": "y"}]', "'a': row 2 has a string, 'y', and .* a list"),
    ("a.json", b'[{"a": ["x"]}, {"a": [1]}]', r"column 'a\[\]': row 2 has a number"),
    ("a.jsonl", b'{"a": {"b": 1}}\n{"a": {"b": "x"}}\n', "column 'a.b': row 2 has a string"),
    ("a.jsonl", b'{"a": {"b": 1}}\n{"a": true}\n', "column 'a': row 2 has a boolean"),
    ("a.json", b'[{"a.b": 1, "a": {"b": 2}}]', "two values for 'a.b', one nested and one with dot"),
    ("a.json", b"[]", "expected a list of objects, one per row, got no rows"),
    ("a.jsonl", b"{", "a.jsonl: line 1: expected JSON"),
    ("a.jsonl", b'{"a": "\xc3\xa9\xc3\xa9"}\n{"a": "\xff"}', "line 2: the byte .* is not UTF-8"),
    ("a.jsonl", b'{"a": 1}\n\n [1]\n', r"line 3.* got \[1\]"),
    ("a.jsonl", b"", "a.jsonl"),
    ("a.parquet", b"no parquet", "a.parquet"),
    ("none.csv", None, "none.csv"),
    ("a.xlsx", b"", "a.xlsx.*csv"),
    ("answers", b"image,value\na.png,female\n", r"\.csv"),
)
def test_invalid_files_raise_errors_with_the_reason(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    read_table(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a,b\nMüller,1\n".encode("cp1252"), "read as cp1252"),
        ("a,b\nMüller,ö\n".encode() + b"\xff,1\n", "the rest of the file is"),
        (b"a,b\n\x81\x8d,\x01\n", "no other encoding was detected"),
        (b"\xff\xfea\x00,", "cannot be read as utf-16"),
        (b"a;b|c\n1;2|3\n", "the separator may be"),
    ],
)
def test_messages_about_text_files_advise_what_every_command_can_do(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises((InvalidInputError, SuspectInputWarning), match=problem) as raised:
            read_table(path)
    message = str(raised.value)
    assert "save it as" in message
    assert "train" not in message
    assert "--set" not in message


IMAGES = ["a", "b", "a", "c", "b", "a"]
CELLS = ["one", "two", "three", "nan", "", "four"]


def test_rows_of_the_same_image_keep_their_lists_of_captions() -> None:
    _, *captions = one_row_per_image("own", ["a", "a"], ["one", "two"], [("1b",), ("2b",)], {})
    assert captions == [["one"], [("1b", "two", "2b")]]


@refused(
    ([], {}, "own: expected distinct images, but 3 rows repeat an earlier image, such as 'a'"),
    (CELLS, {"kind": [0, 1, 0, 1, 0, 0]}, "'kind': .* rows of image 'b' have different"),
)
def test_rows_that_cannot_be_joined_raise_errors(
    captions: list[str], labels: dict[str, list[int]]
) -> None:
    columns = {name: Labels(np.array(codes), tuple("xy")) for name, codes in labels.items()}
    one_row_per_image("own", IMAGES, captions, [], columns)


def test_placeholders_are_not_captions() -> None:
    with pytest.warns(match="1 of 2 captions"):  # at most half of them
        check_captions("own", ["17", "a dog"], "")
    assert not any(map(says_something, ["", " ", "nan", "NaN", "None", " null ", "N/A", "<NA>"]))
    assert all(map(says_something, ["nan bread on a plate", "a nun", "7", "none of them sits"]))


@refused(
    (["a dog"] * 4, "own: .* all 4 captions are 'a dog'"),
    (["17", "3,5", "-2.0", "a dog"], r"3 of 4 captions \(75%\) are numbers, .*Do this"),
    (["x/IMG_1.JPG", "2.png", "a dog"], r"2 of 3 captions \(67%\) are file names"),
)
def test_captions_without_words_warn_or_raise_errors(captions: list[str]) -> None:
    check_captions("own", captions, "Do this")


def test_empty_rows_at_the_end_of_a_spreadsheet_are_ignored_and_counted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "people.csv"
    path.write_text("image,gender\na.jpg,female\n,\nb.jpg,male\n,\n,\n")
    with pytest.warns(SuspectInputWarning, match="ignored 2 empty rows"):
        table = read_table(path)
    # A row in the middle may have lost its cells.
    assert table["image"].to_pylist() == ["a.jpg", "", "b.jpg"]


@pytest.mark.parametrize("name", ["Gender Label", "gender_label", "GENDER-LABEL ", "meta.Gender"])
@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".json"])
def test_every_reader_finds_a_column_by_the_same_rule(
    name: str, ending: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a{ending}"
    rows = [{"image": "0.png", "Gender Label": "female", "meta": '{"Gender": "male"}'}]
    expected = "male" if name.startswith("meta") else "female"
    if ending == ".csv":
        path.write_text('image,Gender Label,meta\n0.png,female,"{""Gender"": ""male""}"\n')
    else:
        path.write_text(json.dumps(rows if ending == ".json" else rows[0]))
    assert as_texts(column_of(read_table(path), name, path), "") == [expected]
    assert read_prompts(path, name).prompts == (expected,)
    assert find_layout(path, caption=name).caption in ("Gender Label", "meta.Gender")
    (row,) = read_rows(path.read_text(), ending, str(path)).cells
    assert cell_of(row, name) == expected


@pytest.mark.parametrize("name", ["Gender", "meta.sex"])
def test_every_reader_refuses_an_ambiguous_or_absent_column(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("image,gender,GENDER\n0.png,female,male\n")
    for read in (
        lambda: column_of(read_table(path), name, path),
        lambda: read_prompts(path, name),
        lambda: find_layout(path, caption=name),
    ):
        with pytest.raises(InvalidInputError, match=f"column '{name}'"):
            read()
    assert column_of(read_table(path), "GENDER", path).to_pylist() == ["male"]


def test_the_first_rows_of_a_large_table_may_end_within_a_character(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("image,caption\n" + "0.png,a\n" + "0.png,\u8b77\u58eb\n" * 350_000)
    assert find_layout(path).caption == "caption"
