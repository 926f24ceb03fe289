"""CelebA as the authors' text files and as the csv of Kaggle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_folders import ATTRIBUTES, celeba_csv, celeba_txt, celeba_values, picture, save

from tests.refusals import refused
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
    root = layout(tmp_path)
    assert [len(open_celeba(root, split)) for split in ("train", "test", "all")] == [4, 4, 12]
    data = open_celeba(root, "val")
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


def test_absent_may_be_zero_lines_may_end_as_on_windows_and_the_partition_have_another_order(tmp_path: Path) -> None:
    codes = open_celeba(kaggle(tmp_path / "a"), "all").column("Male").codes
    path = tmp_path / "a/list_attr_celeba.csv"
    path.write_text(path.read_text().replace("-1", "0"))
    assert np.array_equal(open_celeba(tmp_path / "a", "all").column("Male").codes, codes)
    for path in flat(tmp_path / "b").glob("*.txt"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    path = tmp_path / "b/list_eval_partition.txt"
    path.write_bytes(b"".join(reversed(path.read_bytes().splitlines(keepends=True))))
    assert np.array_equal(open_celeba(tmp_path / "b", "all").column("Male").codes, codes)


@refused(
    ("list_attr_celeba.txt", "000003.jpg", "000003.jpg 1", "expected a file name and 40 values in a line"),
    ("list_attr_celeba.txt", " Male ", " Sex ", r"expected a column 'Male'; there are \['5_o_Clock"),
    ("list_attr_celeba.txt", "", None, r"list_attr_celeba\.txt: expected"),
    ("list_attr_celeba.txt", "-1", "-2", r"column '.*': expected one of \['-1', '0', '1'\], got \['-2'\]"),
    ("list_eval_partition.txt", "000005.jpg 1\n", "", r"1 images have attributes but no split, such as \['000005"),
    ("list_eval_partition.txt", ".jpg 2", ".jpg 7", r"expected one of \['0', '1', '2'\], got \['7'\]"),
)
def test_a_table_that_does_not_fit_says_why(tmp_path: Path, file: str, old: str, new: str | None) -> None:
    path = flat(tmp_path) / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new) if new is not None else "")
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
