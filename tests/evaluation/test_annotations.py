"""Reading labels: which answer counts, tables of codes, csv from elsewhere, errors by line."""

import json
from pathlib import Path

import numpy as np
import pytest

from vldebias.errors import InvalidInputError
from vldebias.evaluation.answers import CANNOT_TELL, NO_PERSON, NOT_ANSWERED, read_annotations


def line(image: str, annotator: str, value: str, time: str | None = None, attribute: str = "gender") -> str:
    fields = {"version": 1, "image": image, "annotator": annotator, "attribute": attribute, "value": value}
    return json.dumps(fields | {"time": time, "seconds": None})


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{one}\n" for one in lines), encoding="utf-8")
    return path


def values(found) -> dict:
    return {(a.annotator, a.image): a.value for a in found.answers}


def test_inside_a_file_the_later_line_counts_even_if_a_clock_was_set_back(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        line("1.png", "ada", "male", "2024-01-02T00:00:00Z"),
        line("1.png", "ada", "female", "2024-01-01T00:00:00Z"),
        line("1.png", "bob", "male", "2024-01-01T00:00:00Z"),
    )
    found = read_annotations(path)
    assert values(found) == {("ada", "1.png"): "female", ("bob", "1.png"): "male"}
    assert found.replaced == 1


@pytest.mark.parametrize("order", [0, 1])
def test_between_files_the_later_time_counts_in_any_zone(tmp_path: Path, order: int) -> None:
    early = write(tmp_path / "early.jsonl", line("1.png", "ada", "male", "2024-01-01T10:00:00+05:00"))
    late = write(tmp_path / "late.jsonl", line("1.png", "ada", "female", "2024-01-01T06:00:00Z"))
    found = read_annotations([early, late] if order else [late, early])
    assert values(found) == {("ada", "1.png"): "female"}


@pytest.mark.parametrize("time", ["2024-01-01T06:00:00Z", None])
def test_between_files_of_one_time_or_none_the_later_file_counts(tmp_path: Path, time: str | None) -> None:
    first = write(tmp_path / "first.jsonl", line("1.png", "ada", "male", time))
    second = write(tmp_path / "second.jsonl", line("1.png", "ada", "female", time))
    assert values(read_annotations([first, second])) == {("ada", "1.png"): "female"}
    assert values(read_annotations([second, first])) == {("ada", "1.png"): "male"}


def test_tables_of_codes(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        line("1.png", "bob", "male"),
        line("2.png", "bob", CANNOT_TELL),
        line("2.png", "ada", NO_PERSON),
        line("elsewhere.png", "ada", "female"),
        line("1.png", "ada", "old", attribute="age"),
    )
    found = read_annotations(path)
    assert found.attributes == ("gender", "age")
    table, rows, others = found.table("gender", ("male", "female"), ["1.png", "2.png"])
    assert rows == ("ada", "bob")
    assert others == ("elsewhere.png",)
    np.testing.assert_array_equal(table, [[NOT_ANSWERED, 3], [0, 2]])


def test_unknown_values_are_listed_with_their_counts(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl", line("1.png", "a", "woman"), line("2.png", "a", "woman"), line("3.png", "a", "x")
    )
    text = r"unknown values 'woman' \(2\), 'x' \(1\); expected one of \['male', 'female', 'cannot tell', 'no person'\]"
    with pytest.raises(InvalidInputError, match=text):
        read_annotations(path).table("gender", ("male", "female"), ["1.png"])


# ---- csv -------------------------------------------------------------------------------------------------------

HEADER = "image,annotator,attribute,value,time,seconds"


def test_csv_gives_what_the_lines_give(tmp_path: Path) -> None:
    lines = write(
        tmp_path / "a.jsonl",
        line("1.png", "ada", "male", "2024-01-01T00:00:00Z"),
        line("1.png", "ada", "female", "2024-01-01T00:00:01Z"),
        line("ü, 2.png", "bob", "no person", "2024-01-01T00:00:02Z"),
    )
    table = write(
        tmp_path / "a.csv",
        HEADER,
        "1.png,ada,gender,male,2024-01-01T00:00:00Z,",
        "1.png,ada,gender,female,2024-01-01T00:00:01Z,",
        '"ü, 2.png",bob,gender,no person,2024-01-01T00:00:02Z,',
    )
    assert read_annotations(table) == read_annotations(lines)


def test_csv_of_one_attribute(tmp_path: Path) -> None:
    table = tmp_path / "export.csv"
    table.write_text("\ufeffimage,annotator,value,notes\n1.png,ada,male,clear\n1.png, bob ,female,\n", encoding="utf-8")
    found = read_annotations(table, attribute="gender")
    assert values(found) == {("ada", "1.png"): "male", ("bob", "1.png"): "female"}
    assert found.attributes == ("gender",)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("file,value\n", r"no columns \['image', 'annotator', 'attribute'\]; there are \['file', 'value'\]"),
        ("image,annotator,value\n", r"no columns \['attribute'\]"),
        (f"{HEADER}\n1.png,ada,gender,male,,\n,ada,gender,male,,\n", "1 of 2 rows do not fit: line 3: image: "),
        (f"{HEADER}\n1.png,ada,gender,male,yesterday,\n", "line 2: time: "),
        (f"{HEADER}\n1.png,ada,gender,male,2024-01-01T00:00:00,\n", "line 2: time: .*timezone"),
        (f"{HEADER}\n1.png,ada,gender,male,,fast\n", "line 2: seconds: "),
        (f"{HEADER}\n1.png,ada\n", "line 2: attribute: "),
        (f'{HEADER}\n"1.png', "cannot be read as csv in UTF-8: unexpected end of data"),
        ("", r"no columns \['image', .*there are \[\]"),
    ],
)
def test_csv_errors(tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidInputError, match=text):
        read_annotations(path)
