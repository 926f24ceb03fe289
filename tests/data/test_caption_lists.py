"""Columns that hold a list of captions: the same from every store, and refused where they hold anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from data_folders import as_bytes, picture, save

from vldebias.data import ImageData, open_data
from vldebias.data.tables import captions_in
from vldebias.errors import InvalidInputError

datasets = pytest.importorskip("datasets")
CELLS: list[Any] = [["one", "two"], [], ["three"], None, ["", None, "four", " ", "five", "six"]]
FIRST = ("one", "", "three", "", "four")
MORE = (("two",), (), (), (), ("five", "six"))


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()


def parquet(root: Path, cells: list[Any], name: str = "caption") -> Path:
    images = [{"bytes": as_bytes(picture(i)), "path": None} for i in range(len(cells))]
    made = datasets.Dataset.from_dict({"image": images, name: cells})
    made.cast_column("image", datasets.Image()).to_parquet(str(root / "own.parquet"))
    return root / "own.parquet"


def jsonl(root: Path, cells: list[Any]) -> Path:
    for i in range(len(cells)):
        save(root / f"{i}.png", i)
    rows = [{"image": f"{i}.png", "caption": cell} for i, cell in enumerate(cells)]
    (root / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return root / "own.jsonl"


@pytest.mark.parametrize("name", ["caption", "captions", "sentences"])
def test_lists_of_a_parquet_file(name: str, tmp_path: Path) -> None:
    path = str(parquet(tmp_path, CELLS, name))
    data = open_data("huggingface", path, caption="auto")
    assert isinstance(data, ImageData)
    assert (data.captions, data.more_captions) == (FIRST, MORE)
    some = data[[4, 0]]
    assert (some.captions, some.more_captions) == (("four", "one"), (MORE[4], MORE[0]))
    stream: Any = open_data("huggingface", path, caption="auto", streaming=True)
    records = list(stream.records())
    assert tuple(record.caption or "" for record in records) == FIRST
    assert tuple(record.more_captions or () for record in records) == MORE


def test_lists_of_a_table(tmp_path: Path) -> None:
    data = open_data("manifest", jsonl(tmp_path, CELLS), caption="caption")
    assert isinstance(data, ImageData)
    assert (data.captions, data.more_captions) == (FIRST, MORE)


def test_texts_are_no_lists(tmp_path: Path) -> None:
    path = str(parquet(tmp_path, ["one", None, "['two']"]))
    data: Any = open_data("huggingface", path, caption="auto")
    assert (data.captions, data.more_captions) == (("one", "", "['two']"), ())
    assert captions_in(7, "here") == ("7", None)
    stream: Any = open_data("huggingface", path, caption="auto", streaming=True)
    assert [record.more_captions for record in stream.records()] == [None] * 3


def test_a_field_of_a_struct_may_be_a_list(tmp_path: Path) -> None:
    path = str(parquet(tmp_path, [{"raw": ["a", "b"]}, {"raw": ["c"]}]))
    data: Any = open_data("huggingface", path, caption="caption.raw")
    assert (data.captions, data.more_captions) == (("a", "c"), (("b",), ()))


@pytest.mark.parametrize("cells", [[[1, 2], [3]], [[["a"]], [["b"]]], [{"raw": ["a"]}, {"raw": ["b"]}]])
@pytest.mark.parametrize("streaming", [False, True])
def test_anything_else_is_refused(cells: list[Any], streaming: bool, tmp_path: Path) -> None:
    path = str(parquet(tmp_path, cells))
    with pytest.raises(
        InvalidInputError, match=r"column 'caption'.*expected (a text or a list of texts|texts or numbers)"
    ):
        list(open_data("huggingface", path, caption="caption", streaming=streaming).records())  # type: ignore[union-attr]
