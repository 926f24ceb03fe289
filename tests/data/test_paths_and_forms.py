"""Test tables whose paths, file names or files have an unusual form."""

import base64
import json
import unicodedata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from vldebias import load_edit
from vldebias.data import open_data
from vldebias.data.tables import read_table
from vldebias.errors import InvalidInputError

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


def pictures(folder: Path, names: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (4, 4)).save(folder / name)


def captions(path: Path, images: list[Any]) -> Path:
    rows = "".join(f"{image},caption {row}\n" for row, image in enumerate(images))
    path.write_text(f"image,caption\n{rows}", encoding="utf-8")
    return path


def test_absolute_paths_inside_the_folder_are_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    pictures(folder, ["0.png", "1.png"])
    images = [folder / "0.png", folder / "1.png"]
    data = open_data("captions", captions(folder / "captions.csv", images))
    assert data.read(1).size == (4, 4)
    (tmp_path / "tables").mkdir()
    table = captions(tmp_path / "tables" / "captions.csv", images)
    with pytest.raises(InvalidInputError, match=r"2 paths lead outside .* base folder \(--image-"):
        open_data("captions", table)
    assert open_data("captions", table, images=folder).read(1).size == (4, 4)
    assert open_data("captions", table, allow_outside=True).read(1).size == (4, 4)
    inside_and_out = captions(folder / "out.csv", [f"{folder}/../tables/captions.csv"])
    with pytest.raises(InvalidInputError, match="1 paths lead outside"):
        open_data("captions", inside_and_out)


@pytest.mark.parametrize("in_table", ["NFC", "NFD"])
def test_names_match_however_their_accents_are_written(in_table: Any, tmp_path: Path) -> None:
    in_files: Any = "NFD" if in_table == "NFC" else "NFC"
    name = unicodedata.normalize(in_files, "café.png")
    folder = unicodedata.normalize(in_files, "straße à vélo")
    pictures(tmp_path / folder, [name])
    path = unicodedata.normalize(in_table, f"{folder}/{name}")
    data = open_data("captions", captions(tmp_path / "captions.csv", [path]))
    assert data.ids == (path,)
    assert data.read(0).size == (4, 4)


@pytest.mark.parametrize("has_path", [True, False], ids=["COCO", "Flickr30k"])
def test_karpathys_split_is_read(has_path: bool, tmp_path: Path) -> None:
    where = {"filepath": "val2014"} if has_path else {}
    images = [
        {
            **where,
            "sentids": [0, 1],
            "filename": f"{row}.png",
            "split": "test" if row else "train",
            "sentences": [{"tokens": ["a"], "raw": f"text {row} {i}"} for i in range(2)],
        }
        for row in range(3)
    ]
    pictures(tmp_path / where.get("filepath", ""), [f"{row}.png" for row in range(3)])
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps({"images": images, "dataset": "coco"}))
    data = open_data("captions", path, "test")
    assert data.captions == ("text 1 0", "text 2 0")
    assert data.more_captions == (("text 1 1",), ("text 2 1",))
    assert data.read(0).size == (4, 4)
    assert len(open_data("captions", path)) == 3


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "json", "tar"])
def test_pointers_of_git_lfs_are_named(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"table.{ending}"
    path.write_text(POINTER)
    with pytest.raises(InvalidInputError, match=r"pointer of Git LFS .* `git lfs pull`"):
        open_data("captions", path)
    if ending != "tar":
        with pytest.raises(InvalidInputError, match="pointer of Git LFS"):
            read_table(path)


def test_pointers_of_git_lfs_are_named_in_saved_edits(tmp_path: Path) -> None:
    (tmp_path / "projection.safetensors").write_text(POINTER)
    with pytest.raises(InvalidInputError, match="pointer of Git LFS"):
        load_edit(str(tmp_path))


def test_a_small_image_in_base64_is_not_called_outside(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    jpeg = base64.b64encode(b"\xff\xd8\xff\xe0" + bytes(200)).decode()
    captions(table, [jpeg, jpeg])
    with pytest.raises(InvalidInputError, match=r"expected paths of images, .* in base64"):
        open_data("captions", table)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_image_in_base64_is_not_printed(ending: str, tmp_path: Path) -> None:
    image = base64.b64encode(bytes(range(256)) * 20).decode()
    path = tmp_path / f"table.{ending}"
    if ending == "csv":
        captions(path, [image, image])
    else:
        pq.write_table(pa.table({"image": [image, image], "caption": ["a", "b"]}), path)
    with pytest.raises(InvalidInputError, match=r"\(6,828 characters\).* in base64") as raised:
        open_data("captions", path)
    assert len(str(raised.value)) < 400
