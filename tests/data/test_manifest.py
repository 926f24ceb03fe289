"""A table of one's own: columns, splits, names, paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from data_folders import picture, save
from pyarrow import parquet

from tests.refusals import refused
from vldebias.data.sources import open_manifest
from vldebias.errors import InvalidInputError

ROWS = [
    {"image": "a/1.png", "text": "one", "sex": "f", "tone": "3", "part": "train", "key": "p"},
    {"image": "a/2.png", "text": "two, again", "sex": "m", "tone": "", "part": "test", "key": "q"},
    {"image": "b/3.png", "text": "", "sex": "f", "tone": "1", "part": "test", "key": "r"},
]


def table(path: Path, rows: list[dict[str, str]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        quoted = [mark.join(f'"{value}"' for value in row.values()) for row in rows]
        path.write_text("\n".join([mark.join(rows[0]), *quoted]) + "\n")
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl"])
def test_columns_are_mapped(tmp_path: Path, ending: str) -> None:
    for i, row in enumerate(ROWS):
        save(tmp_path / row["image"], i)
    path = table(tmp_path / f"own.{ending}")
    data = open_manifest(path, caption="text", labels={"gender": "sex", "tone": "tone"})
    assert (data.name, data.split, data.ids) == ("own", "all", ("a/1.png", "a/2.png", "b/3.png"))
    assert data.captions == ("one", "two, again", "")
    assert (data.column("gender").names, data.column("gender").codes.tolist()) == (("f", "m"), [0, 1, 0])
    assert (data.column("tone").names, data.column("tone").codes.tolist()) == (("1", "3"), [1, -1, 0])
    assert data.about == {"root": str(tmp_path), "columns not used": ["part", "key"]}
    assert [data.read(i) for i in range(3)] == [picture(i) for i in range(3)]


def test_splits_ids_and_names(tmp_path: Path) -> None:
    path = table(tmp_path / "own.csv")
    options: dict[str, Any] = {"split_column": "part", "id": "key", "labels": ["sex"], "name": "mine"}
    data = open_manifest(path, "test", names={"sex": {"m": "male", "f": "female"}}, **options)
    assert (data.name, data.split, data.ids) == ("mine", "test", ("q", "r"))
    assert (data.column("sex").names, data.column("sex").codes.tolist()) == (("male", "female"), [0, 1])
    assert open_manifest(path, "all", **options).ids == ("p", "q", "r")
    assert list(open_manifest(path, labels="sex").labels) == ["sex"]
    assert open_manifest(path, "train", names={"sex": ["x", "f"]}, **options).column("sex").codes.tolist() == [1]


def test_paths_that_lead_out_need_leave(tmp_path: Path) -> None:
    save(tmp_path / "secret.png", 4)
    rows = [{"image": "../secret.png"}, {"image": str(tmp_path / "secret.png")}]
    path = table(tmp_path / "inner/own.csv", rows)
    with pytest.raises(InvalidInputError, match=r"2 paths lead out of .*such as '../secret.png'; expected paths below"):
        open_manifest(path)
    data = open_manifest(path, allow_outside=True)
    assert [data.read(0), data.read(1)] == [picture(4), picture(4)]
    save(tmp_path / "pictures/a/1.png", 9)
    assert open_manifest(table(path, ROWS[:1]), images=tmp_path / "pictures").read(0) == picture(9)


def test_cells_without_an_image_path_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="2 rows have no image in column 'image'"):
        open_manifest(table(tmp_path / "own.csv", [{"image": "", "x": "1"}, {"image": "", "x": "2"}]))
    parquet.write_table(pa.table({"image": [{"bytes": b"x", "path": None}]}), tmp_path / "own.parquet")
    with pytest.raises(InvalidInputError, match="column 'image': expected texts or numbers, got a column of struct"):
        open_manifest(tmp_path / "own.parquet")


@refused(
    ("all", {"image": "path"}, r"own.csv: expected a column 'path'; there are \['image', 'text'"),
    ("all", {"labels": ["gender"]}, r"expected a column 'gender'; there are"),
    ("all", {"caption": "caption"}, r"expected a column 'caption'"),
    ("all", {"id": "tone"}, "own: 2 ids are there more than once"),
    ("test", {}, "split 'test' needs split_column, the column that names it"),
    ("val", {"split_column": "part"}, "expected split test or train or all, got 'val'"),
    ("all", {"labels": ["sex"], "names": {"sex": ["f"]}}, r"column 'sex': expected one of \['f'\], got \['m'\]"),
    ("all", {"names": {"sex": ["f"]}}, r"names are given for \['sex'\], which are not among labels \[\]"),
)
def test_what_does_not_fit_says_why(tmp_path: Path, split: str, options: dict[str, Any]) -> None:
    rows = [row | {"tone": "same"} for row in ROWS]
    open_manifest(table(tmp_path / "own.csv", rows), split, **options)
