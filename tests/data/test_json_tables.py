"""Test that nested JSON objects become columns with dotted names in all readers."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.data.data_parts import save
from tests.growth import growth
from tests.refusals import refused
from vldebias.data import ImageData, open_data
from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError
from vldebias.utils.json_tables import parsed, rows_by_picture
from vldebias.utils.table_rows import flat, read_rows

POINTS = [
    {"id": 1, "payload": {"gender": "male", "face": {"age": 30}}},
    {"id": 2, "payload": {"gender": "female", "face": None}},
]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", json.dumps(POINTS)),
        ("a.json", json.dumps({"result": {"points": POINTS}, "time": 0.1}, indent=1)),
        ("a.json", json.dumps({"items": POINTS, "metadata": {"next": None}})),
        ("a.jsonl", "\n".join(map(json.dumps, POINTS))),
        ("a.json", "\n".join(map(json.dumps, POINTS))),
    ],
)
def test_nested_fields_are_columns_at_any_depth(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    table = read_table(tmp_path / name)
    assert as_texts(column_of(table, "payload.gender", "a"), "a") == ["male", "female"]
    assert as_texts(column_of(table, "payload.face.age", "a"), "a") == ["30", ""]


def test_nested_parquet_fields_are_columns(tmp_path: Path) -> None:
    parquet.write_table(pa.Table.from_pylist(POINTS), tmp_path / "a.parquet")
    table = read_table(tmp_path / "a.parquet")
    assert as_texts(column_of(table, "payload.face.age", "a"), "a") == ["30", ""]


def test_a_column_that_is_missing_in_the_first_row_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"image": "0.jpg"}, {"image": "1.jpg", "gender": "male"}]')
    table = read_table(tmp_path / "a.json")
    assert as_texts(column_of(table, "gender", "a"), "a") == ["", "male"]


def test_a_position_selects_an_item_of_a_list(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"content": "draw"}, {"content": "a nurse"}]},
        {"messages": [{"content": "draw"}]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    column = column_of(read_table(tmp_path / "a.jsonl"), "messages.1.content", "a")
    assert as_texts(column, "a") == ["a nurse", ""]


@refused(
    ('{"a": [{"b": 1}], "c": {"d": [{"e": 1}]}}', "several lists of objects, a, c.d; expected one"),
    ('{"a": 1}', "expected a list of objects"),
    ('{"a": [1, 2]}', "expected a list of objects"),
    ('{"a": [{"b": 1}, 2]}', "expected a list of objects"),
    ('{"a": ["b"]}', "a list of texts, such as 'b', but no columns; expected an object"),
    ('{"a": {"b": 1}, "c": {"d": 2}}', "expected a list of objects"),
    ("[{", "expected JSON"),
    ('[{"a": 1, "a": 2}]', "the name 'a' twice in one object"),
)
def test_unsupported_documents_raise_errors(content: str) -> None:
    read_rows(content, ".json", "a.json")


def test_objects_by_name_are_rows_with_the_name_as_id() -> None:
    content = '{"x": {"gender": "male"}, "y": {"id": 7, "gender": "female"}}'
    rows = read_rows(content, ".json", "a.json")
    assert rows.cells == [{"id": "x", "gender": "male"}, {"id": 7, "gender": "female"}]


def test_deeply_nested_objects_do_not_need_recursion() -> None:
    row: dict[str, Any] = {"end": 1}
    for _ in range(5000):
        row = {"a": row}
    assert list(flat(row, "a").values()) == [1]
    # The parser rejects documents that are this deep.
    with pytest.raises(InvalidInputError, match="expected JSON"):
        read_rows("[" * 100_000, ".json", "a.json")


def test_captions_are_joined_by_file_name_as_in_sd_scripts() -> None:
    entries: dict[str, Any] = {
        "0": {"caption": "a nurse", "tags": "tired, smiling"},
        "1": {"tags": "a pilot", "train_resolution": [512, 512]},
        "2": {"train_resolution": [512, 512]},
    }
    rows = rows_by_picture(entries)
    assert rows is not None
    assert [row["caption"] for row in rows] == ["a nurse, tired, smiling", "a pilot", None]
    assert rows_by_picture({"0.png": "a nurse", "1.jpg": ["a pilot", "a man"]}) is not None
    # Settings are not captions.
    assert rows_by_picture({"name": "a nurse"}) is None
    assert rows_by_picture({"data": {"caption": "c"}, "a": {"b": 1}, "c": {}}) is None


def test_nested_parquet_fields_can_be_captions(tmp_path: Path, hf_cache: None) -> None:
    pytest.importorskip("datasets")
    save(tmp_path / "img" / "0.png")
    rows = [{"file": {"path": "img/0.png"}, "meta": {"prompt": "a nurse", "gender": "female"}}]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    named: dict[str, Any] = {"image": "file.path", "caption": "meta.prompt"}
    data = open_data("captions", tmp_path / "a.parquet", labels=["meta.gender"], **named)
    assert isinstance(data, ImageData)
    assert data.captions == ("a nurse",)
    assert data.column("meta.gender").counts == {"female": 1}
    assert data.read(0).size == (8, 6)
    with pytest.raises(InvalidInputError, match=r"no column 'data\.path'"):
        open_data("captions", tmp_path / "a.parquet", image="data.path", caption="meta.prompt")


def test_json_inside_cells_has_nested_fields_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,meta\n1,"{""gender"": ""male""}"\n2,\n')
    column = column_of(read_table(tmp_path / "a.csv"), "meta.gender", "a")
    assert as_texts(column, "a") == ["male", ""]
    (tmp_path / "a.csv").write_text("id,meta\n1,text\n")
    with pytest.raises(InvalidInputError, match=r"expected a column 'meta\.gender'"):
        column_of(read_table(tmp_path / "a.csv"), "meta.gender", "a")


def test_the_cost_of_finding_a_repeated_name_is_linear() -> None:
    def read(n: int) -> None:
        names = ", ".join(f'"{number}": 1' for number in range(n))
        with pytest.raises(InvalidInputError, match=f"the name '{n - 1}' twice"):
            parsed(f'{{{names}, "{n - 1}": 2}}', "a.json")

    assert growth(read, 4000) < 3
