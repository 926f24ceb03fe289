"""Files below a root: fingerprints, paths that lead out, lazy reading."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest
from data_folders import picture, save
from hypothesis import given
from hypothesis import strategies as st

from vldebias.data import Labels
from vldebias.data.pictures import ENDS, ends_of, file_images, fingerprint_files, read_ends
from vldebias.data.sources import _find as find_below
from vldebias.errors import InvalidInputError


def folder(root: Path, n: int = 3) -> tuple[Path, list[str]]:
    files = [f"images/{i}.png" for i in range(n)]
    for i, file in enumerate(files):
        save(root / file, i)
    return root, files


def mark(root: Path, files: list[str]) -> str:
    return fingerprint_files(files, [root / file for file in files])


def test_a_fingerprint_survives_copying_and_touching(tmp_path: Path) -> None:
    root, files = folder(tmp_path / "a")
    before = mark(root, files)
    shutil.copytree(root, tmp_path / "b")
    os.utime(root / files[0], (0, 0))
    assert mark(root, files) == mark(tmp_path / "b", files) == before


def test_a_fingerprint_notices_what_changes(tmp_path: Path) -> None:
    root, files = folder(tmp_path)
    seen = [mark(root, files), mark(root, files[::-1]), mark(root, files[:2])]
    seen.append(fingerprint_files(["x", *files[1:]], [root / file for file in files]))
    content = (root / files[1]).read_bytes()
    for changed in (content[:-1], content[:-1] + b"x", b"x" + content[1:], (root / files[2]).read_bytes()):
        (root / files[1]).write_bytes(changed)
        seen.append(mark(root, files))
    (root / files[1]).unlink()
    seen.append(mark(root, files))
    assert len(set(seen)) == len(seen)
    with pytest.raises(InvalidInputError, match="expected one file per id, got 2 ids and 1 files"):
        fingerprint_files(["a", "b"], ["a"])


def test_a_fingerprint_of_many_files_does_not_depend_on_threads(tmp_path: Path) -> None:
    """Naive twin: the same bytes hashed one after another, in blocks of 512."""
    root, files = tmp_path, [f"{i}.bin" for i in range(1100)]
    for i, file in enumerate(files):
        (root / file).write_bytes(bytes([i % 251]) * (i * 17))
    total = hashlib.sha256()
    for first in range(0, len(files), 512):
        block = hashlib.sha256()
        for file in files[first : first + 512]:
            content = (root / file).read_bytes()
            ends = content if len(content) <= 2 * ENDS else content[:ENDS] + content[-ENDS:]
            block.update(f"{len(file)} {file} {len(content)} ".encode() + ends)
        total.update(block.digest())
    assert mark(root, files) == total.hexdigest()[:24]


@pytest.mark.parametrize("size", [0, 1, ENDS, 2 * ENDS, 2 * ENDS + 1, 5 * ENDS])
def test_ends_of_files_and_of_bytes_agree(tmp_path: Path, size: int) -> None:
    content = bytes(i % 251 for i in range(size))
    (tmp_path / "a").write_bytes(content)
    assert read_ends(tmp_path / "a") == ends_of(content) == ends_of(memoryview(content))
    assert len(ends_of(content)[1]) == min(size, 2 * ENDS)


def test_files_are_read_by_row_and_named_by_id(tmp_path: Path) -> None:
    root, files = folder(tmp_path)
    data = file_images("own", "test", root, files, {"x": Labels.of("123")}, ids=["p", "q", "r"])
    (root / files[0]).rename(root / "away.png")
    with pytest.raises(FileNotFoundError):  # nothing is opened before it is read
        data.read(0)
    (root / "away.png").rename(root / files[0])
    assert (data.ids, data.about) == (("p", "q", "r"), {"root": str(root)})
    assert [data.read(i) for i in range(3)] == [picture(i) for i in range(3)]
    assert data.fingerprint == fingerprint_files(["p", "q", "r"], [root / file for file in files])
    assert data[[2]].read(0) == picture(2)


OUTSIDE = [
    "/etc/passwd",
    "\\\\host\\share\\a.png",
    "C:\\a.png",
    "../a.png",
    "a/../../b.png",
    "a\\..\\..\\b.png",
    "a/..",
    "https://example.org/a.png",
    "file:///etc/passwd",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_paths_that_lead_out_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidInputError, match=r"1 paths lead out of .* or are no local files, such as"):
        file_images("own", "test", tmp_path, ["fine.png", path], {})
    assert file_images("own", "test", tmp_path, ["fine.png", path], {}, allow_outside=True).ids[1] == path


names = st.text(st.sampled_from("ab.: -_~"), min_size=1, max_size=8).filter(lambda s: s != "..")


@given(st.lists(names, min_size=1, max_size=4).map("/".join))
def test_paths_that_stay_below_are_taken(path: str) -> None:
    if path[1:2] == ":" and path[0].isalpha():
        return  # a drive of Windows
    assert file_images("own", "test", Path("root"), [path], {}).ids == (path,)
    with pytest.raises(InvalidInputError, match="own: no images in split 'val' of root"):
        file_images("own", "val", Path("root"), [], {})


def test_find_below_prefers_folders_then_names(tmp_path: Path) -> None:
    for file in ("b.csv", "sub/a.csv", "sub/b.csv"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    assert find_below(tmp_path, ["a.csv", "b.csv"], ["", "sub"]) == tmp_path / "b.csv"
    assert find_below(tmp_path, ["a.csv", "b.csv"], ["sub"]) == tmp_path / "sub/a.csv"
    assert find_below(tmp_path, ["c.csv"], ["", "sub"]) is None
