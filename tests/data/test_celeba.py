"""CelebA as the authors' text files and as the csv of Kaggle."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from data_folders import ATTRIBUTES, celeba_csv, celeba_txt, celeba_values, picture, save

from vldebias.data.sources import open_celeba
from vldebias.errors import InvalidInputError

N = 12
VALUES = celeba_values(N)
PARTS = [0, 1, 2] * (N // 3)


def images(folder: Path) -> None:
    for i in range(N):
        save(folder / f"{i + 1:06d}.jpg", i)


def official(root: Path) -> Path:
    celeba_txt(root / "Anno", VALUES, PARTS)
    (root / "Eval").mkdir()
    (root / "Anno/list_eval_partition.txt").rename(root / "Eval/list_eval_partition.txt")
    images(root / "Img/img_align_celeba")
    return root


def kaggle(root: Path) -> Path:
    celeba_csv(root, VALUES, PARTS)
    images(root / "img_align_celeba/img_align_celeba")
    return root


def flat(root: Path) -> Path:
    celeba_txt(root, VALUES, PARTS)
    images(root / "img_align_celeba")
    return root


def group_dro(root: Path) -> Path:
    celeba_csv(root / "data", VALUES, PARTS)
    images(root / "data/img_align_celeba")
    return root


def wilds(root: Path) -> Path:
    celeba_csv(root / "celebA_v1.0", VALUES, PARTS)
    images(root / "celebA_v1.0/img_align_celeba")
    return root


@pytest.mark.parametrize("layout", [official, kaggle, flat, group_dro, wilds])
def test_every_layout_gives_the_same(tmp_path: Path, layout) -> None:
    data = open_celeba(layout(tmp_path), "val")
    rows = [i for i, part in enumerate(PARTS) if part == 1]
    assert data.ids == tuple(f"{i + 1:06d}.jpg" for i in rows)
    assert list(data.labels) == ["label", "gender", *ATTRIBUTES]
    for k, name in enumerate(ATTRIBUTES):
        assert data.column(name).names == ("no", "yes")
        assert data.column(name).codes.tolist() == (VALUES[rows, k] > 0).astype(int).tolist()
    assert data.column("label").names == ("dark", "blond")
    assert np.array_equal(data.column("label").codes, data.column("Blond_Hair").codes)
    assert data.column("gender").names == ("female", "male")
    assert np.array_equal(data.column("gender").codes, data.column("Male").codes)
    assert data.read(0).size == picture().size
    assert data.fingerprint == open_celeba(tmp_path, "val").fingerprint


@pytest.mark.parametrize(("split", "n"), [("train", 4), ("val", 4), ("test", 4), ("all", 12)])
def test_every_split(tmp_path: Path, split: str, n: int) -> None:
    assert len(open_celeba(flat(tmp_path), split)) == n


def test_the_partition_may_be_in_another_order(tmp_path: Path) -> None:
    before = open_celeba(flat(tmp_path), "test").ids
    path = tmp_path / "list_eval_partition.txt"
    path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
    assert open_celeba(tmp_path, "test").ids == before


def test_absent_may_be_written_as_zero_and_lines_may_end_as_on_windows(tmp_path: Path) -> None:
    codes = open_celeba(kaggle(tmp_path / "a"), "all").column("Male").codes
    path = tmp_path / "a/list_attr_celeba.csv"
    path.write_text(path.read_text().replace("-1", "0"))
    assert np.array_equal(open_celeba(tmp_path / "a", "all").column("Male").codes, codes)
    for path in flat(tmp_path / "b").glob("*.txt"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert np.array_equal(open_celeba(tmp_path / "b", "all").column("Male").codes, codes)


def rewrite(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("file", "old", "new", "match"),
    [
        ("list_attr_celeba.txt", "000003.jpg", "000003.jpg 1", "expected a file name and 40 values in a line"),
        ("list_attr_celeba.txt", " Male ", " Sex ", r"expected a column 'Male'; there are \['5_o_Clock"),
        ("list_attr_celeba.txt", "-1", "-2", r"column '.*': expected one of \['-1', '0', '1'\], got \['-2'\]"),
        ("list_eval_partition.txt", "000005.jpg 1\n", "", r"1 images have attributes but no split, such as \['000005"),
        ("list_eval_partition.txt", ".jpg 2", ".jpg 7", r"expected one of \['0', '1', '2'\], got \['7'\]"),
    ],
)
def test_a_table_that_does_not_fit_says_why(tmp_path: Path, file: str, old: str, new: str, match: str) -> None:
    rewrite(flat(tmp_path) / file, old, new)
    with pytest.raises(InvalidInputError, match=match):
        open_celeba(tmp_path)


def test_an_empty_table(tmp_path: Path) -> None:
    (flat(tmp_path) / "list_attr_celeba.txt").write_text("")
    with pytest.raises(InvalidInputError, match=r"list_attr_celeba\.txt: expected"):
        open_celeba(tmp_path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInputError, match=r"no list_attr_celeba.txt or list_attr_celeba.csv in .*; expected list_"
    ):
        open_celeba(tmp_path)
    celeba_txt(tmp_path, VALUES, PARTS)
    with pytest.raises(InvalidInputError, match="no folder img_align_celeba"):
        open_celeba(tmp_path)
    (tmp_path / "list_eval_partition.txt").unlink()
    with pytest.raises(InvalidInputError, match=r"no list_eval_partition.txt or list_eval_partition.csv"):
        open_celeba(tmp_path)


@pytest.mark.parametrize("write", [celeba_txt, celeba_csv])
def test_the_number_of_calls_does_not_grow_with_the_rows(tmp_path: Path, write) -> None:
    def calls(n: int) -> int:
        folder = write(tmp_path / str(n), celeba_values(n), [i % 3 for i in range(n)])
        (folder / "img_align_celeba").mkdir()
        count = 0

        def trace(frame: object, event: str, argument: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(trace)
        try:
            open_celeba(folder)
        finally:
            sys.setprofile(None)
        return count

    calls(10)
    assert calls(2000) < calls(20) + 50
