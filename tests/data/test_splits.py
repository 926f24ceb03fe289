"""A column `split` is read by one rule in csv, JSON lines, parquet and tars."""

import io
import json
import tarfile
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from vldebias.data import open_data
from vldebias.errors import InvalidInputError

FILES = ("caps.csv", "caps.jsonl", "caps.parquet", "caps.tar")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return a folder with the same twelve rows in four formats, and without splits in none.*."""
    root = tmp_path_factory.mktemp("splits")
    names = [f"{n}.png" for n in range(12)]
    for n, name in enumerate(names):
        Image.new("RGB", (4, 4), (20 * n, 9, 9)).save(root / name)
    captions = [f"a nurse with {n} cups" for n in range(12)]
    splits = ["validation" if n % 4 == 0 else "train" for n in range(12)]
    rows = pd.DataFrame({"file_name": names, "caption": captions, "split": splits})
    rows.to_csv(root / "caps.csv", index=False)
    rows.to_parquet(root / "caps.parquet")
    rows.to_json(root / "caps.jsonl", orient="records", lines=True)
    rows.drop(columns="split").to_parquet(root / "none.parquet")
    rows[:3].drop(columns="split").to_parquet(root / "validation-00000-of-00001.parquet")
    for tar, fields in (("caps.tar", ["caption", "split"]), ("none.tar", ["caption"])):
        with tarfile.open(root / tar, "w") as file:
            for n, row in rows.iterrows():
                text = json.dumps({name: row[name] for name in fields}).encode()
                for ending, content in (("png", (root / names[n]).read_bytes()), ("json", text)):
                    member = tarfile.TarInfo(f"{n}.{ending}")
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))
    return root


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(("split", "rows"), [("val", {0, 4, 8}), ("dev", {0, 4, 8}), ("all", None)])
def test_every_format_selects_the_same_rows_by_the_split_column(folder, file, split, rows):
    data = open_data("captions", folder / file, split=split)
    expected = range(12) if rows is None else sorted(rows)
    assert list(data.captions) == [f"a nurse with {n} cups" for n in expected]
    for index, row in enumerate(expected):
        assert data.read(index).getpixel((0, 0)) == (20 * row, 9, 9)


@pytest.mark.parametrize("file", FILES)
def test_splits_differ_in_their_fingerprint_and_no_split_means_all_rows(folder, file):
    parts = [open_data("captions", folder / file, split=name) for name in ("train", "val", None)]
    assert [len(data) for data in parts] == [9, 3, 12]
    assert len({data.fingerprint for data in parts}) == 3


@pytest.mark.parametrize("file", FILES[2:])
def test_streams_select_the_same_rows(folder, file):
    stream = open_data("captions", folder / file, split="val", streaming=True)
    captions = [record.caption for record in stream.records()]
    assert captions == [f"a nurse with {n} cups" for n in (0, 4, 8)]


@pytest.mark.parametrize("file", ["none.parquet", "none.tar"])
def test_a_split_that_no_column_names_is_refused_with_the_remedy(folder, file):
    assert len(open_data("captions", folder / file, split="train")) == 12
    with pytest.raises(InvalidInputError, match=r"no column 'split'.*--set val_data=FILE"):
        open_data("captions", folder / file, split="val")


def test_a_file_name_of_the_hub_names_its_split(folder):
    file = folder / "validation-00000-of-00001.parquet"
    assert len(open_data("captions", file, split="val")) == 3
    with pytest.raises(InvalidInputError, match="no column 'split'"):
        open_data("captions", file, split="test")
