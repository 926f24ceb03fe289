"""Hugging Face datasets from folders and files of this machine, at random and as a stream."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from data_folders import as_bytes, picture, save

from tests.refusals import refused
from vldebias.data import ImageData, ImageStream
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


def imagefolder(root: Path, part: str = "test") -> Path:
    for i in range(2):
        save(root / f"{part}/cat/{i}.png", i)
        save(root / f"{part}/dog/{i}.png", 10 + i)
    return root


def jsonl(root: Path) -> Path:
    lines = [f'{{"picture": "images/{pet}/{i}.png", "label": "{pet}"}}\n' for pet in ("cat", "dog") for i in range(2)]
    (imagefolder(root, "images") / "test.jsonl").write_text("".join(lines))
    return root


@pytest.mark.parametrize(("layout", "options"), [(imagefolder, {}), (jsonl, {"image": "picture", "labels": ["label"]})])
def test_a_folder_of_image_files_and_one_of_their_paths(tmp_path: Path, layout, options: dict[str, Any]) -> None:
    root = layout(tmp_path / "pets")
    data = open_huggingface(root, "test", **options)
    assert (data.column("label").names, data.column("label").codes.tolist()) == (("cat", "dog"), [0, 0, 1, 1])
    assert [data.read(i) for i in range(4)] == [picture(0), picture(1), picture(10), picture(11)]
    records = list(open_huggingface(root, "test", streaming=True, **options).records())
    assert [record.labels["label"] for record in records] == ["cat", "cat", "dog", "dog"]
    assert records[2].read() == picture(10)
    part = "test" if layout is imagefolder else "images"
    files = [root / f"{part}/{pet}/{i}.png" for pet in ("cat", "dog") for i in range(2)]
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


def test_a_stream_that_does_not_say_what_columns_it_has() -> None:
    stream = datasets.IterableDataset.from_generator(lambda: iter([{"picture": "a.png", "sex": "f"}]))
    assert stream.features is None
    assert list(_features(stream)) == ["picture", "sex"]


def cells(root: Path, **cell: Any) -> Path:
    """A saved data set of one image, undecoded."""
    features = datasets.Features({"image": datasets.Image(decode=False)})
    datasets.Dataset.from_dict({"image": [{"bytes": None, "path": None} | cell]}, features).save_to_disk(str(root))
    return root


def test_an_address_is_fetched_and_broken_bytes_are_an_oserror(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "images.zip", "w") as archive:
        archive.writestr("a.png", as_bytes(picture(6)))
    data = open_huggingface(cells(tmp_path / "own", path=f"zip://a.png::{tmp_path / 'images.zip'}"), "all")
    assert data.read(0) == picture(6)
    assert data.fingerprint == open_huggingface(tmp_path / "own", "all").fingerprint
    with pytest.raises(OSError, match="not a picture"):
        open_huggingface(cells(tmp_path / "broken", bytes=b"no picture"), "all").read(0)


@refused(
    ("own", {"split": "dev2"}, "expected split train or validation or test or all, got 'dev2'"),
    ("own", {"image": "photo", "labels": ["race"]}, r"expected columns \['photo', 'race'\]; there are \['image', 's"),
    ("own", {"names": {"tone": ["a"]}}, r"names are given for \['tone'\], which are not among labels \['sex'\]"),
    ("own", {"labels": ["tone"], "names": {"tone": ["a"]}}, r"'tone': expected one of \['a'\], got \['dark', 'pale'\]"),
    ("own.csv", {}, r"expected files ending in .parquet or .arrow or .tar, got .* open tables of paths as"),
    ("empty", {}, r"cannot open '.*empty': .*Expected a dataset id, a folder of parquet"),
)
def test_what_does_not_fit_says_why(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    if name == "own":
        saved(tmp_path / name)
    (tmp_path / "own.csv").write_text("image\na.png\n")
    (tmp_path / "empty").mkdir()
    open_huggingface(tmp_path / name, **options)
