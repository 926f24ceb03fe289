"""Test selected rows, files in a folder, fingerprints, counts and unreadable images."""

import json
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from data_parts import picture, save

from tests.refusals import refused
from vldebias.data import Embeddings, ImageData, Labels, check_images, describe, file_images
from vldebias.data.cache import embed_images
from vldebias.data.dataset import fingerprint_files
from vldebias.data.embeddings import save_embeddings
from vldebias.data.suspects import Suspects
from vldebias.errors import InvalidInputError


def make(**changes: Any) -> ImageData:
    labels = {"label": Labels.from_values(["x", "y", None])}
    fields: dict[str, Any] = {
        "read": picture,
        "labels": labels,
        "fingerprint": "f",
        "captions": ("A", "B", "C"),
    }
    return ImageData(name="tiny", split="test", **{"ids": ("a", "b", "c")} | fields | changes)


@refused(
    (lambda: make().column("size"), r"tiny: no column 'size'; the columns are \['label'\]"),
    (lambda: make(ids=("a", "b", "a")), "tiny: expected distinct ids, but 1 are repeated"),
    (lambda: make(captions=("A",)), r"3 rows in every column, got \{'captions': 1\}"),
    (lambda: file_images("own", "test", Path(), [], {}), "own: expected images in split 'test'"),
    (lambda: embed_images(iter(()), Any), "data: got .*; expected images with random access"),
    (lambda: embed_images(make(), Any, dtype="int8"), "dtype: expected one of .*, got 'int8'"),
    (lambda: embed_images(make(), Any, workers=-1), "workers: got 1024, 64, -1"),
    (lambda: Embeddings.from_arrays([[1.0], [1.0, 2.0]]), r"features: expected numbers \(n, d\)"),
    (
        lambda: Embeddings.from_arrays([[1.0]]).unit.top(torch.ones(1, 1), 2),
        r"queries, k: got \(1, 1\) and 2; expected queries \(q, \d+\) and k from 1 to",
    ),
    (lambda: save_embeddings("file.npy", Embeddings.from_arrays([[1.0]])), r"ends in \.npz"),
    (lambda: Suspects(np.array([np.nan]), ("a",)), r"expected \(1,\) with some finite"),
)
def test_inconsistent_columns_are_rejected(call: Any) -> None:
    call()


def test_selected_rows_stay_consistent() -> None:
    data = make(more_captions=(("1",), (), ("3", "4")))
    subset = data[[2, 0]]
    assert subset.ids == ("c", "a")
    assert subset.captions == ("C", "A")
    assert subset.more_captions == (("3", "4"), ("1",))
    assert len(subset) == 2
    assert subset.column("label").codes.tolist() == [-1, 0]
    assert subset.read(0) == picture(2)
    assert subset[np.array([False, True])].read(0) == picture(0)
    assert data[1:].ids == ("b", "c")


@pytest.mark.parametrize("rows", [[], (), np.array([]), np.zeros(3, bool), slice(0, 0)])
def test_an_empty_selection_is_supported(rows: Any) -> None:
    none = make()[rows]
    assert (len(none), none.captions, none.labels["label"].names) == (0, (), ("x", "y"))
    assert len(none.labels["label"]) == len(make().labels["label"][rows]) == 0
    embeddings = Embeddings.from_arrays(np.eye(3), labels={"g": ["a", "b", "a"]})
    assert embeddings[rows].features.shape == (0, 3)


def test_a_fingerprint_is_computed_once_on_demand_and_differs_for_selected_rows() -> None:
    slow = Mock(return_value="worked out")
    data = make(fingerprint=slow)
    rows = data[[0]]
    text = repr(data)
    assert not slow.called
    assert [data.fingerprint, data.fingerprint, slow.call_count] == ["worked out", "worked out", 1]
    assert rows.fingerprint == make(fingerprint="worked out")[[0]].fingerprint
    assert text == "ImageData(tiny test, 3 images, columns ['label'], captions)"
    assert (
        len({dataset.fingerprint for dataset in (data, data[[0, 1]], data[[1, 0]], data[[0]])}) == 4
    )
    assert data[[0, 1]].fingerprint == data[:2].fingerprint


def folder(root: Path, n: int = 3) -> tuple[Path, list[str]]:
    files = [f"images/{i}.png" for i in range(n)]
    for i, file in enumerate(files):
        save(root / file, i)
    return root, files


def mark(root: Path, files: list[str]) -> str:
    return fingerprint_files(files, [root / file for file in files])


def test_a_fingerprint_survives_copying_and_touching_and_detects_changes(
    tmp_path: Path,
) -> None:
    root, files = folder(tmp_path / "a")
    seen = [mark(root, files), mark(root, files[::-1]), mark(root, files[:2])]
    shutil.copytree(root, tmp_path / "b")
    os.utime(root / files[0], (0, 0))
    assert mark(root, files) == mark(tmp_path / "b", files) == seen[0]
    seen.append(fingerprint_files(["x", *files[1:]], [root / file for file in files]))
    content = (root / files[1]).read_bytes() + bytes(9000)
    ends = [
        content[:position] + b"x" + content[position + 1 :]
        for position in (0, 4095, len(content) - 4096, len(content) - 1)
    ]
    for changed in (content, content[:-1], *ends, (root / files[2]).read_bytes()):
        (root / files[1]).write_bytes(changed)
        seen.append(mark(root, files))
    (root / files[1]).write_bytes(content[:4096] + b"x" * (len(content) - 8192) + content[-4096:])
    assert mark(root, files) == seen[4]  # only the first and last 4 KiB are read
    (root / files[1]).unlink()
    seen.append(mark(root, files))
    assert len(set(seen)) == len(seen)


def test_files_are_read_by_row_on_demand(tmp_path: Path) -> None:
    root, files = folder(tmp_path)
    data = file_images("own", "test", root, files, {"x": Labels.from_values("123")})
    (root / files[0]).unlink()
    with pytest.raises(FileNotFoundError):
        data.read(0)
    assert (data.ids, data.about, data.read(1)) == (tuple(files), {"root": str(root)}, picture(1))
    assert (data.path(1), data.fingerprint) == (str(root / files[1]), mark(root, files))


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "\\\\host\\share\\a.png",
        "C:\\a.png",
        "../a.png",
        "a/../../b.png",
        "a\\..\\..\\b.png",
        "a/..",
        "https://example.org/a.png",
        "file:///etc/passwd",
    ],
)
def test_paths_that_lead_outside_raise_errors(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInputError, match=r"1 paths lead outside .* or are not local files"):
        file_images("own", "test", tmp_path, ["fine.png", path], {})
    assert (
        file_images("own", "test", tmp_path, ["fine.png", path], {}, allow_outside=True).ids[1]
        == path
    )


def test_a_description_counts_everything_once() -> None:
    labels = {"a": Labels.from_values(["x", None, "x"]), "b": Labels.from_values(["p", "p", None])}
    description = describe(make(labels=labels, captions=("A", "", "C"), about={"root": "here"}))
    columns = {"a": {"counts": {"x": 2}, "unknown": 1}, "b": {"counts": {"p": 2}, "unknown": 1}}
    facts = {"name": "tiny", "split": "test", "images": 3, "captions": 2, "about": {"root": "here"}}
    assert description == {**facts, "columns": columns}
    assert json.loads(json.dumps(description)) == description


def test_unreadable_images_are_listed_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, files = folder(tmp_path, 300)
    (root / files[7]).write_bytes(b"no picture")
    (root / files[120]).write_bytes((root / files[120]).read_bytes()[:60])
    (root / files[299]).unlink()
    data = file_images("own", "test", root, files, {})
    problems = check_images(data, progress=False)
    assert [name for name, _ in problems] == [files[7], files[120], files[299]]
    assert problems[0][1].startswith("not an image in one of the formats ")
    assert "truncated" in problems[1][1]
    assert problems[2][1] == "No such file or directory"
    assert check_images(data[:7]) == []
    out, err = capsys.readouterr()
    assert (out, "7/7" in err) == ("", True)
