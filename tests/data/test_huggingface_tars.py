"""Tars in the way of webdataset: found, opened and read without naming a column, at random and as a stream."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from data_folders import as_bytes, picture

from vldebias.data import ImageData, ImageStream, open_data
from vldebias.data.huggingface import caption_column, cell_of, expand_braces, image_column, source_of, title_of
from vldebias.errors import InvalidInputError

datasets = pytest.importorskip("datasets")
PER_TAR = 3
BOTH = pytest.mark.parametrize("streaming", [False, True])


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()


def write_tar(path: Path, rows: Sequence[tuple[str, Mapping[str, bytes]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, parts in rows:
            for ending, content in parts.items():
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def parts(number: int, **more: bytes) -> dict[str, bytes]:
    return {
        "png": as_bytes(picture(number)),
        "txt": f"text {number}".encode(),
        "cls": str(number % 2).encode(),
        "json": json.dumps({"caption": f"json {number}", "site": {"name": "a"}}).encode(),
        **more,
    }


def shards(root: Path, tars: int = 2) -> Path:
    for shard in range(tars):
        numbers = range(shard * PER_TAR, (shard + 1) * PER_TAR)
        write_tar(root / f"{shard:03d}.tar", [(f"key{n:04d}", parts(n)) for n in numbers])
    return root


def rows_of(data: ImageData | ImageStream) -> list[tuple[str, str | None, Any]]:
    if isinstance(data, ImageData):
        captions = data.captions or [None] * len(data)
        return [(data.ids[i], captions[i], data.read(i)) for i in range(len(data))]
    return [(record.id, record.caption, record.read()) for record in data.records()]


@BOTH
@pytest.mark.parametrize("name", ["", "{000..001}.tar", "*.tar", "{000,001}.tar"])
def test_images_and_captions_are_found(tmp_path: Path, name: str, streaming: bool) -> None:
    root = shards(tmp_path / "own")
    data = open_data("huggingface", f"{root}/{name}".rstrip("/"), streaming=streaming)
    assert (data.name, data.split) == ("own", "train")
    assert rows_of(data) == [(f"{n:08d}", f"text {n}", picture(n)) for n in range(2 * PER_TAR)]
    if isinstance(data, ImageStream):
        assert [record.caption for record in data.records(4)] == ["text 4", "text 5"]


@BOTH
def test_one_tar_with_its_columns_named(tmp_path: Path, streaming: bool) -> None:
    root = shards(tmp_path / "own")
    options: dict[str, Any] = {"image": "png", "caption": "json.caption", "id": "__key__", "labels": {"odd": "cls"}}
    data = open_data("huggingface", root / "001.tar", "train", streaming=streaming, **options)
    assert data.name == "001"
    assert rows_of(data) == [(f"key{n:04d}", f"json {n}", picture(n)) for n in range(3, 6)]
    odd = data.column("odd") if isinstance(data, ImageData) else None
    found = [odd.names[code] for code in odd.codes] if odd else [record.labels["odd"] for record in data.records()]
    assert found == ["1", "0", "1"]


@BOTH
def test_tars_without_captions_open(tmp_path: Path, streaming: bool) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"k{n}", {"png": as_bytes(picture(n))}) for n in range(3)])
    assert rows_of(open_data("huggingface", path, streaming=streaming))[2] == ("00000002", None, picture(2))
    with pytest.raises(InvalidInputError, match=r"no captions in a column caption, .* There are \['png', '__key__'"):
        open_data("huggingface", path, streaming=streaming, caption="auto")


@BOTH
def test_a_row_whose_image_is_broken_or_missing_reads_as_an_error(tmp_path: Path, streaming: bool) -> None:
    rows: list[tuple[str, Mapping[str, bytes]]] = [(f"k{n}", parts(n)) for n in range(7)]
    rows = [(key, {name: part for name, part in row.items() if name != "txt"}) for key, row in rows]
    rows[5] = ("k5", {**rows[4][1], "png": b"no picture"})
    rows[6] = ("k6", {"cls": b"0"})
    data = open_data("huggingface", write_tar(tmp_path / "a.tar", rows), streaming=streaming)
    reads = [lambda i=i: data.read(i) for i in range(7)] if isinstance(data, ImageData) else []
    reads = reads or [record.read for record in data.records()]
    assert reads[4]() == picture(4)
    captions = data.captions if isinstance(data, ImageData) else [record.caption for record in data.records()]
    assert list(captions[:2]) == ["json 0", "json 1"]
    with pytest.raises(OSError, match="not a picture"):
        reads[5]()
    with pytest.raises(OSError, match="the cell is empty"):
        reads[6]()


def test_what_does_not_fit_says_why(tmp_path: Path) -> None:
    root = shards(tmp_path / "own")
    with pytest.raises(InvalidInputError, match=r"there is no file .*002\.tar"):
        open_data("huggingface", f"{root}/{{000..002}}.tar")
    with pytest.raises(InvalidInputError, match="expected split train or all, got 'test'"):
        open_data("huggingface", root, "test")
    with pytest.raises(InvalidInputError, match=r"expected columns \['jpg'\]; there are \['png', 'txt', 'cls', 'json'"):
        open_data("huggingface", root, image="jpg")
    with pytest.raises(InvalidInputError, match=r"expected columns \['json.text'\]"):
        open_data("huggingface", root, caption="json.text")
    (tmp_path / "broken.tar").write_bytes(b"no tar at all")
    with pytest.raises(InvalidInputError, match=r"cannot open .*broken.tar"):
        open_data("huggingface", tmp_path / "broken.tar")


def test_braces_stand_for_many_names() -> None:
    assert expand_braces("a.tar") == ["a.tar"]
    assert expand_braces("s/{08..11}.tar") == ["s/08.tar", "s/09.tar", "s/10.tar", "s/11.tar"]
    assert expand_braces("{a,b}/{1..2}") == ["a/1", "a/2", "b/1", "b/2"]
    with pytest.raises(InvalidInputError, match=r"the range {5..4} runs backwards"):
        expand_braces("{5..4}.tar")
    with pytest.raises(InvalidInputError, match=r"expected {000..010} or {a,b}, got {x}"):
        expand_braces("{x}.tar")


def test_addresses_are_not_looked_up_on_the_disk() -> None:
    assert [title_of(root) for root in ("a/b", "a/b.tar", "a/{0..1}.tar", "*.tar")] == ["b", "b", "a", "files"]
    many = source_of("https://example.org/{00..01}.tar", None, None)
    assert many == {
        "path": "webdataset",
        "data_files": {"train": ["https://example.org/00.tar", "https://example.org/01.tar"]},
    }
    assert source_of("https://example.org/a.tar?download=1", None, None)["path"] == "webdataset"
    assert source_of("owner/name", "c", "r") == {"path": "owner/name", "name": "c", "revision": "r"}
    with pytest.raises(InvalidInputError, match=r"expected files ending in .*, got \['.tar', '.zip'\]"):
        source_of("https://example.org/a.{tar,zip}", None, None)


def test_columns_are_found_by_name_or_by_type() -> None:
    image, text = datasets.Image(), datasets.Value("string")
    assert image_column({"image": image, "png": image}, None, "x") == "image"
    assert image_column({"jpg": image, "mask": image}, None, "x") == "jpg"
    assert image_column({"photo": image, "txt": text}, None, "x") == "photo"
    assert image_column({"photo": image}, "other", "x") == "other"
    with pytest.raises(InvalidInputError, match=r"x: images may be in any of \['jpg', 'png'\]; name it with image="):
        image_column({"png": image, "jpg": image}, None, "x")
    with pytest.raises(InvalidInputError, match=r"x: no column holds images; .* There are \['photo', 'txt'\]"):
        image_column({"photo": text, "txt": text}, None, "x")
    assert caption_column({"text": text}, None, "x", tars=False) is None
    assert caption_column({"text": text, "caption": text}, "auto", "x", tars=False) == "caption"
    assert caption_column({"auto": text, "caption": text}, "auto", "x", tars=False) == "auto"
    assert cell_of({"json": None}, "json.caption") is None
    assert cell_of({"a.b": 1, "a": {"b": 2}}, "a.b") == 1
