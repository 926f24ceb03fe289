"""Test Hugging Face data sets from local folders, files and tars, with random access and as
streams."""

import io
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from data_parts import as_bytes, picture, save

from tests.refusals import refused
from vldebias.data import ImageData, open_data
from vldebias.data.huggingface import hidden_bars
from vldebias.errors import InvalidInputError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.usefixtures("hf_cache")
BOTH = pytest.mark.parametrize("streaming", [False, True])
N = 5


def opened(root: Any, *split: str, **options: Any) -> Any:
    return open_data("huggingface", root, *split, **options)


def rows_of(data: Any) -> list[tuple[str, str, Any]]:
    if isinstance(data, ImageData):
        return [
            *zip(
                data.ids,
                data.captions or [""] * len(data),
                map(data.read, range(len(data))),
                strict=True,
            )
        ]
    return [(record.id, record.caption or "", record.read()) for record in data.records()]


def reads_of(data: Any) -> list[Any]:
    one_by_one = isinstance(data, ImageData)
    return (
        [lambda i=i: data.read(i) for i in range(len(data))]
        if one_by_one
        else [record.read for record in data.records()]
    )


def pixels(n: int, first: int = 0) -> list[dict[str, Any]]:
    return [{"bytes": as_bytes(picture(first + i)), "path": None} for i in range(n)]


def dataset(first: int = 0) -> Any:
    """Write rows with an image, a class that is unknown in two ways, a text label and a caption."""
    columns = {
        "image": pixels(N, first),
        "sex": [0, 1, -1, 1, None],
        "tone": ["dark", "", None, "pale", "dark"],
        "text": [f"text {first + i}" for i in range(N)],
    }
    kinds = {"image": datasets.Image(), "sex": datasets.ClassLabel(names=["f", "m"])}
    features = {name: kinds.get(name, datasets.Value("string")) for name in columns}
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def parquet_folder(root: Path) -> Path:
    root.mkdir(parents=True)
    for part, first in (("train", 0), ("validation", 10), ("test", 20)):
        dataset(first).to_parquet(str(root / f"{part}-00000-of-00001.parquet"))
    return root


MAPPED: dict[str, Any] = {"labels": {"gender": "sex", "tone": "tone"}, "caption": "text"}


def test_random_access_and_streams_yield_the_same_rows_from_any_start(tmp_path: Path) -> None:
    root = parquet_folder(tmp_path / "own")
    data = opened(root, **MAPPED)
    stream = opened(root, streaming=True, **MAPPED)
    assert (
        (data.name, data.split, len(data)) == (stream.name, stream.split, N) == ("own", "test", N)
    )
    assert rows_of(data) == [(f"{i:08d}", f"text {20 + i}", picture(20 + i)) for i in range(N)]
    assert data.column("gender").names == ("f", "m")
    assert data.column("gender").codes.tolist() == [0, 1, -1, 1, -1]
    assert data.column("tone").names == ("dark", "pale")
    assert data.column("tone").codes.tolist() == [0, -1, -1, 1, 0]
    assert stream.names == {"gender": ("f", "m")}
    assert rows_of(stream) == rows_of(data)
    for start in (0, 3, N):
        records = list(stream.records(start))
        assert [record.id for record in records] == list(data.ids[start:])
        for column, labels in data.labels.items():
            values = [labels.names[code] if code >= 0 else None for code in labels.codes[start:]]
            assert [record.labels[column] for record in records] == values


def test_class_labels_are_the_default_rows_are_numbered_and_all_joins_the_splits(
    tmp_path: Path,
) -> None:
    root = parquet_folder(tmp_path / "own")
    data = opened(root, "val")
    assert list(data.labels) == ["sex"]
    assert rows_of(data) == [(f"{i:08d}", "", picture(10 + i)) for i in range(N)]
    record = next(opened(root, "val", streaming=True).records(2))
    assert (record.id, dict(record.labels), record.caption) == ("00000002", {"sex": None}, None)
    texts = [f"text {first + i}" for first, i in product((0, 10, 20), range(N))]
    for streaming in (False, True):
        assert [
            row[1] for row in rows_of(opened(root, "all", streaming=streaming, **MAPPED))
        ] == texts


def imagefolder(root: Path, part: str = "test") -> Path:
    for i in range(2):
        save(root / f"{part}/cat/{i}.png", i)
        save(root / f"{part}/dog/{i}.png", 10 + i)
    return root


def jsonl(root: Path) -> Path:
    lines = [
        f'{{"picture": "images/{pet}/{i}.png", "label": "{pet}"}}\n'
        for pet, i in product(("cat", "dog"), range(2))
    ]
    (imagefolder(root, "images") / "test.jsonl").write_text("".join(lines))
    return root


@pytest.mark.parametrize(
    ("layout", "options"), [(imagefolder, {}), (jsonl, {"image": "picture", "labels": ["label"]})]
)
def test_a_folder_of_image_files_and_one_of_their_paths(
    tmp_path: Path, layout: Any, options: dict[str, Any]
) -> None:
    root = layout(tmp_path / "pets")
    data = opened(root, "test", **options)
    stream = opened(root, "test", streaming=True, **options)
    assert data.column("label").names == ("cat", "dog")
    assert data.column("label").codes.tolist() == [0, 0, 1, 1]
    assert [record.labels["label"] for record in stream.records()] == ["cat", "cat", "dog", "dog"]
    assert rows_of(data) == rows_of(stream)
    assert [data.read(i) for i in range(4)] == [picture(0), picture(1), picture(10), picture(11)]


def test_progress_bars_are_hidden_for_local_files_and_kept_for_downloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    hidden = []

    def load(**options: Any) -> Any:
        hidden.append(datasets.are_progress_bars_disabled())
        return load_dataset(**options)

    load_dataset = datasets.load_dataset
    monkeypatch.setattr(datasets, "load_dataset", load)
    datasets.enable_progress_bars()
    try:
        opened(imagefolder(tmp_path / "pets"), "test")
        assert hidden == [True]
        assert not datasets.are_progress_bars_disabled()
        with hidden_bars({"path": "owner/name", "name": None, "revision": None}):
            assert not datasets.are_progress_bars_disabled()
    finally:
        datasets.disable_progress_bars()


@BOTH
@pytest.mark.parametrize("layout", [parquet_folder, imagefolder])
def test_a_fingerprint_survives_copying_and_detects_other_rows(
    tmp_path: Path, layout: Any, streaming: bool
) -> None:
    root = layout(tmp_path / "one/own")
    shutil.copytree(root, tmp_path / "two/own")
    fingerprint = opened(root, "test", streaming=streaming).fingerprint
    assert fingerprint == opened(tmp_path / "two/own", "test", streaming=streaming).fingerprint
    if layout is not imagefolder:
        assert opened(root, "train", streaming=streaming).fingerprint != fingerprint
        return
    save(tmp_path / "two/own/test/cat/0.png", 99)
    assert opened(tmp_path / "two/own", "test", streaming=streaming).fingerprint != fingerprint


def test_the_fingerprint_of_a_table_of_paths_detects_other_images(tmp_path: Path) -> None:
    root = jsonl(tmp_path / "pets")
    options = {"image": "picture"}
    before = opened(root, "test", **options).fingerprint
    save(root / "images/cat/0.png", 99)
    assert opened(root, "test", **options).fingerprint != before


@BOTH
def test_paths_are_relative_to_a_folder_and_stay_inside(tmp_path: Path, streaming: bool) -> None:
    save(tmp_path / "pictures/a.png", 3)
    root = parquet_of(tmp_path / "own.parquet", image=["a.png", None])
    reads = reads_of(opened(root, images=tmp_path / "pictures", streaming=streaming))
    assert reads[0]() == picture(3)
    with pytest.raises(OSError, match="the cell is empty"):
        reads[1]()
    outside = parquet_of(tmp_path / "x.parquet", image=["../pictures/a.png"])
    with pytest.raises(InvalidInputError, match="1 paths lead outside"):
        reads_of(opened(outside, streaming=streaming))


def write_tar(path: Path, rows: Sequence[tuple[str, Mapping[str, bytes]]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, parts in rows:
            for ending, content in parts.items():
                info = tarfile.TarInfo(f"{key}.{ending}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def parts(number: int) -> dict[str, bytes]:
    return {
        "png": as_bytes(picture(number)),
        "txt": f"text {number}".encode(),
        "cls": str(number % 2).encode(),
    }


def tars(root: Path) -> Path:
    for shard in range(2):
        write_tar(
            root / f"{shard:03d}.tar",
            [(f"key{n:04d}", parts(n)) for n in range(3 * shard, 3 * shard + 3)],
        )
    return root


@BOTH
@pytest.mark.parametrize("name", ["", "*.tar", "00?.tar"])
def test_images_and_captions_in_tars_are_found(tmp_path: Path, name: str, streaming: bool) -> None:
    data = opened(f"{tars(tmp_path / 'own')}/{name}".rstrip("/"), streaming=streaming)
    assert (data.name, data.split) == ("own", "train")
    assert rows_of(data) == [(f"{n:08d}", f"text {n}", picture(n)) for n in range(6)]
    if streaming:
        assert [record.caption for record in data.records(4)] == ["text 4", "text 5"]
        assert [record.id for record in data.records(1, 1)] == (["1-00000001", "1-00000002"])


@BOTH
def test_tars_may_lack_captions_and_rows_with_broken_or_missing_images_are_handled(
    tmp_path: Path, streaming: bool
) -> None:
    bare = write_tar(
        tmp_path / "bare.tar", [(f"k{n}", {"png": as_bytes(picture(n))}) for n in range(3)]
    )
    assert rows_of(opened(bare, streaming=streaming))[2] == ("00000002", "", picture(2))
    with pytest.raises(
        InvalidInputError,
        match=r"expected captions in a (field|column) caption, .* got the (fields|columns) \['png'",
    ):
        opened(bare, streaming=streaming, caption="auto")
    rows = [(f"k{n}", parts(n)) for n in range(5)]
    rows += [("k5", {**rows[4][1], "png": b"no picture"}), ("k6", {"cls": b"0"})]
    data = opened(write_tar(tmp_path / "a.tar", rows), streaming=streaming)
    captions = [record.caption for record in data.records()] if streaming else data.captions
    assert list(captions[:2]) == ["text 0", "text 1"]
    reads = reads_of(data)
    assert reads[4]() == picture(4)
    for read, match in ((reads[5], "not an image"), (reads[6], "the cell is empty")):
        with pytest.raises(OSError, match=match):
            read()


def parquet_of(path: Path, images: Sequence[str] = (), **columns: list[Any]) -> Path:
    made = datasets.Dataset.from_dict(
        {**{name: pixels(5, 5 * i) for i, name in enumerate(images)}, **columns}
    )
    for name in images:
        made = made.cast_column(name, datasets.Image())
    made.to_parquet(str(path))
    return path


@pytest.mark.parametrize("images", [("image", "png"), ("jpg", "mask"), ("photo",)])
def test_the_image_column_is_found_by_name_or_by_type(
    images: tuple[str, ...], tmp_path: Path
) -> None:
    path = parquet_of(tmp_path / "a.parquet", images, txt=["x"] * 5)
    assert rows_of(opened(path))[0] == ("00000000", "", picture(0))


@refused(
    ("no/where", {}, "no/where: cannot be opened: .*Expected a dataset id"),
    ("{}/a.tar", {}, "a.tar: cannot be opened: .*Expected a webdataset tar"),
    ("{}/a.*", {}, r"got \['.tar', '.txt'\]; .* as 'manifest'"),
    ("{}/two.parquet", {"split": "test"}, "no column 'split'"),
    ("{}/two.parquet", {}, r"any of \['jpg', 'png'\]; .*--image-column"),
    (
        "{}/none.parquet",
        {},
        r"no image column; choose one of \['txt'\] with --image-column",
    ),
    ("{}/none.parquet", {"image": "txt", "labels": "sex"}, r"no column 'sex'; .*\['txt'\]"),
)
def test_data_that_cannot_be_opened_raises_an_error_with_the_reason(
    tmp_path: Path, root: str, options: dict[str, Any]
) -> None:
    for name, images in (("none", ()), ("two", ("jpg", "png"))):
        parquet_of(tmp_path / f"{name}.parquet", images, txt=["x"] * 5)
    for name in ("a.tar", "a.txt"):
        (tmp_path / name).write_bytes(b"no tar")
    opened(root.format(tmp_path), **options)


CELLS: list[Any] = [["one", "two"], [], ["three"], None, ["", None, "four", " ", "five", "six"]]


@pytest.mark.parametrize("name", ["caption", "captions", "sentences"])
def test_lists_of_captions_are_split_into_first_and_further_captions(
    name: str, tmp_path: Path
) -> None:
    path = parquet_of(tmp_path / "own.parquet", ["image"], **{name: CELLS})
    first = ("one", "", "three", "", "four")
    further_captions = (("two",), (), (), (), ("five", "six"))
    data = opened(path, caption="auto")
    records = list(opened(path, caption="auto", streaming=True).records())
    assert (data.captions, data.more_captions) == (first, further_captions)
    assert tuple(record.caption or "" for record in records) == first
    assert tuple(record.more_captions or () for record in records) == further_captions


def test_rows_with_the_same_path_are_merged_into_one_with_several_captions(tmp_path: Path) -> None:
    for k, file in enumerate(("a.png", "b.png")):
        save(tmp_path / file, k)
    caption_column = {"caption": ["one", "two", "three"]}
    data = opened(
        parquet_of(tmp_path / "own.parquet", image=["a.png", "b.png", "a.png"], **caption_column),
        caption="caption",
    )
    assert (data.captions, data.more_captions) == (("one", "two"), (("three",), ()))
    assert [data.read(row) for row in range(2)] == [picture(0), picture(1)]
