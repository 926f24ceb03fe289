"""Hugging Face datasets from folders and files of this machine, at random and as a stream."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from data_folders import as_bytes, picture, save

from vldebias.data import ImageData, ImageStream, open_data
from vldebias.data.huggingface import _features, open_huggingface
from vldebias.data.pictures import fingerprint_files
from vldebias.errors import InvalidInputError

datasets = pytest.importorskip("datasets")
N = 5
SEX = [0, 1, -1, 1, None]  # both ways in which a class is unknown
CODES = [0, 1, -1, 1, -1]
TONE = ["dark", "", None, "pale", "dark"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf-cache")
    datasets.disable_progress_bars()


def dataset(first: int = 0) -> Any:
    """Rows with the image inside, a ClassLabel with an unknown row, a text label, a caption."""
    columns = {
        "image": [{"bytes": as_bytes(picture(first + i)), "path": None} for i in range(N)],
        "sex": SEX,
        "tone": TONE,
        "text": [f"text {first + i}" for i in range(N)],
        "key": [f"k{first + i}" for i in range(N)],
    }
    features = {name: datasets.Value("string") for name in ("tone", "text", "key")}
    features |= {"image": datasets.Image(), "sex": datasets.ClassLabel(names=["f", "m"])}
    return datasets.Dataset.from_dict(columns, features=datasets.Features({name: features[name] for name in columns}))


def saved(root: Path) -> Path:
    datasets.DatasetDict(train=dataset(), validation=dataset(10), test=dataset(20)).save_to_disk(str(root))
    return root


def saved_one(root: Path) -> Path:
    part = datasets.DatasetDict(test=dataset(20))["test"]
    part.save_to_disk(str(root))
    return root


def parquet_folder(root: Path) -> Path:
    root.mkdir(parents=True)
    for part, first in (("train", 0), ("validation", 10), ("test", 20)):
        dataset(first).to_parquet(str(root / f"{part}-00000-of-00001.parquet"))
    return root


def parquet_file(root: Path) -> Path:
    root.mkdir(parents=True)
    dataset(20).to_parquet(str(root / "own.parquet"))
    return root / "own.parquet"


LAYOUTS = [(saved, "test"), (saved_one, "all"), (parquet_folder, "test"), (parquet_file, "all")]
MAPPED: dict[str, Any] = {"labels": {"gender": "sex", "tone": "tone"}, "caption": "text", "id": "key"}


@pytest.mark.parametrize(("layout", "split"), LAYOUTS)
def test_rows_at_random(tmp_path: Path, layout, split: str) -> None:
    data = open_huggingface(layout(tmp_path / "own"), split, **MAPPED)
    assert isinstance(data, ImageData)
    assert (data.name, data.split, len(data)) == ("own", split, N)
    assert data.ids == tuple(f"k{20 + i}" for i in range(N))
    assert data.captions == tuple(f"text {20 + i}" for i in range(N))
    assert (data.column("gender").names, data.column("gender").codes.tolist()) == (("f", "m"), CODES)
    assert (data.column("tone").names, data.column("tone").codes.tolist()) == (("dark", "pale"), [0, -1, -1, 1, 0])
    assert [data.read(i) for i in (4, 0)] == [picture(24), picture(20)]


@pytest.mark.parametrize(("layout", "split"), LAYOUTS)
def test_a_stream_gives_the_same_rows_from_any_start(tmp_path: Path, layout, split: str) -> None:
    root = layout(tmp_path / "own")
    data = open_huggingface(root, split, **MAPPED)
    stream = open_huggingface(root, split, streaming=True, **MAPPED)
    assert isinstance(stream, ImageStream)
    assert not isinstance(stream, ImageData)
    assert (stream.name, stream.split) == (data.name, data.split)
    assert stream.names == {"gender": ("f", "m")}
    for start in (0, 3, N):
        records = list(stream.records(start))
        assert [record.id for record in records] == list(data.ids[start:])
        assert [record.caption for record in records] == list(data.captions[start:])
        assert [record.read() for record in records] == [data.read(i) for i in range(start, N)]
        for column, labels in data.labels.items():
            told = [labels.names[code] if code >= 0 else None for code in labels.codes[start:]]
            assert [record.labels[column] for record in records] == told


def test_class_labels_are_taken_by_default_and_rows_are_numbered(tmp_path: Path) -> None:
    data = open_huggingface(saved(tmp_path / "own"), "val")
    assert list(data.labels) == ["sex"]
    assert data.ids == tuple(f"{i:08d}" for i in range(N))
    assert data.captions == ()
    assert data.read(0) == picture(10)
    record = next(open_huggingface(tmp_path / "own", "val", streaming=True).records(2))
    assert (record.id, dict(record.labels), record.caption) == ("00000002", {"sex": None}, None)


def test_names_rename_and_order(tmp_path: Path) -> None:
    root = saved(tmp_path / "own")
    options: dict[str, Any] = {
        "labels": ["sex", "tone"],
        "names": {"sex": {"m": "men", "f": "women"}, "tone": ["pale", "dark"]},
    }
    data = open_huggingface(root, "test", **options)
    assert (data.column("sex").names, data.column("sex").codes.tolist()) == (("men", "women"), [1, 0, -1, 0, -1])
    assert data.column("tone").names == ("pale", "dark")
    stream = open_huggingface(root, "test", streaming=True, **options)
    assert stream.names == {"sex": ("men", "women"), "tone": ("pale", "dark")}
    assert [record.labels["sex"] for record in stream.records()] == ["women", "men", None, "men", None]


def test_all_joins_the_splits_in_order(tmp_path: Path) -> None:
    root = parquet_folder(tmp_path / "own")
    keys = [f"k{first + i}" for first in (0, 10, 20) for i in range(N)]
    data = open_huggingface(root, "all", **MAPPED)
    assert list(data.ids) == keys
    assert data.read(7) == picture(12)
    stream = open_huggingface(root, "all", streaming=True, **MAPPED)
    assert [record.id for record in stream.records(3)] == keys[3:]


def imagefolder(root: Path) -> Path:
    for i in range(2):
        save(root / f"test/cat/{i}.png", i)
        save(root / f"test/dog/{i}.png", 10 + i)
    return root


def test_a_folder_of_image_files(tmp_path: Path) -> None:
    root = imagefolder(tmp_path / "pets")
    data = open_huggingface(root, "test")
    assert (data.column("label").names, data.column("label").codes.tolist()) == (("cat", "dog"), [0, 0, 1, 1])
    assert [data.read(i) for i in range(4)] == [picture(0), picture(1), picture(10), picture(11)]
    stream = open_huggingface(root, "test", streaming=True)
    assert [record.labels["label"] for record in stream.records()] == ["cat", "cat", "dog", "dog"]
    files = [root / f"test/{pet}/{i}.png" for pet in ("cat", "dog") for i in range(2)]
    assert data.fingerprint == fingerprint_files(data.ids, files)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("layout", [saved, parquet_folder, imagefolder])
def test_a_fingerprint_survives_copying_and_notices_other_rows(tmp_path: Path, layout, streaming: bool) -> None:
    root = layout(tmp_path / "one/own")
    shutil.copytree(root, tmp_path / "two/own")
    one = open_huggingface(root, "test", streaming=streaming)
    two = open_huggingface(tmp_path / "two/own", "test", streaming=streaming)
    assert one.fingerprint == two.fingerprint
    if layout is not imagefolder:
        assert open_huggingface(root, "train", streaming=streaming).fingerprint != one.fingerprint
        return
    save(tmp_path / "two/own/test/cat/0.png", 99)
    assert open_huggingface(tmp_path / "two/own", "test", streaming=streaming).fingerprint != one.fingerprint


def texts(root: Path, paths: list[str | None]) -> Path:
    datasets.DatasetDict(test=datasets.Dataset.from_dict({"image": paths})).save_to_disk(str(root / "own"))
    return root / "own"


@pytest.mark.parametrize("streaming", [False, True])
def test_paths_start_from_a_folder_and_stay_below(tmp_path: Path, streaming: bool) -> None:
    save(tmp_path / "pictures/a.png", 3)
    root = texts(tmp_path, ["a.png", None])
    data = open_huggingface(root, "test", images=tmp_path / "pictures", streaming=streaming)
    reads = [lambda i=i: data.read(i) for i in range(2)] if not streaming else [r.read for r in data.records()]
    assert reads[0]() == picture(3)
    with pytest.raises(OSError, match="the cell is empty"):
        reads[1]()
    outside = texts(tmp_path / "x", ["../pictures/a.png"])
    with pytest.raises(InvalidInputError, match="1 paths lead out of"):
        list(getattr(open_huggingface(outside, "test", streaming=streaming), "records", list)())


@pytest.mark.parametrize("streaming", [False, True])
def test_a_folder_of_jsonl_with_paths(tmp_path: Path, streaming: bool) -> None:
    root = tmp_path / "own"
    for i in range(2):
        save(root / f"images/{i}.png", i)
    lines = [f'{{"picture": "images/{i}.png", "sex": "{sex}"}}\n' for i, sex in enumerate("fm")]
    (root / "test.jsonl").write_text("".join(lines))
    data = open_huggingface(root, "test", image="picture", labels=["sex"], streaming=streaming)
    rows = list(data.records()) if streaming else [data.read(i) for i in range(2)]
    assert [row.read() if streaming else row for row in rows] == [picture(0), picture(1)]


def test_a_stream_that_does_not_say_what_columns_it_has() -> None:
    stream = datasets.IterableDataset.from_generator(lambda: iter([{"picture": "a.png", "sex": "f"}]))
    assert stream.features is None
    assert list(_features(stream)) == ["picture", "sex"]


def test_an_address_is_fetched(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("a.png", as_bytes(picture(6)))
    address = f"zip://a.png::{tmp_path / 'images.zip'}"
    column = {"image": [{"bytes": None, "path": address}]}
    own = datasets.Dataset.from_dict(column, features=datasets.Features({"image": datasets.Image(decode=False)}))
    own.save_to_disk(str(tmp_path / "own"))
    data = open_huggingface(tmp_path / "own", "all")
    assert data.read(0) == picture(6)
    assert data.fingerprint == open_huggingface(tmp_path / "own", "all").fingerprint


def test_broken_bytes_are_an_oserror(tmp_path: Path) -> None:
    column = {"image": [{"bytes": b"no picture", "path": None}]}
    own = datasets.Dataset.from_dict(column, features=datasets.Features({"image": datasets.Image(decode=False)}))
    own.save_to_disk(str(tmp_path / "own"))
    with pytest.raises(OSError, match="not a picture"):
        open_huggingface(tmp_path / "own", "all").read(0)


def test_what_does_not_fit_says_why(tmp_path: Path) -> None:
    root = saved(tmp_path / "own")
    with pytest.raises(InvalidInputError, match="expected split train or validation or test or all, got 'dev2'"):
        open_huggingface(root, "dev2")
    with pytest.raises(InvalidInputError, match=r"expected columns \['photo', 'race'\]; there are \['image', 'sex'"):
        open_huggingface(root, "test", image="photo", labels=["race"])
    with pytest.raises(
        InvalidInputError, match=r"names are given for \['tone'\], which are not among labels \['sex'\]"
    ):
        open_huggingface(root, "test", names={"tone": ["a"]})
    with pytest.raises(InvalidInputError, match=r"column 'tone': expected one of \['a'\], got \['dark', 'pale'\]"):
        open_huggingface(root, "test", labels=["tone"], names={"tone": ["a"]})
    (tmp_path / "own.csv").write_text("image\na.png\n")
    with pytest.raises(
        InvalidInputError, match=r"expected files ending in .parquet or .arrow or .tar, got .* open tables of paths as"
    ):
        open_huggingface(tmp_path / "own.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidInputError, match=r"cannot open '.*empty': .*Expected a dataset id, a folder of parquet"):
        open_huggingface(tmp_path / "empty")


def test_by_name(tmp_path: Path) -> None:
    data = open_data("huggingface", str(saved(tmp_path / "own")), split="val", caption="text")
    assert data.captions[0] == "text 10"
