"""UTKFace: labels in file names, some of which lack one."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_folders import save
from hypothesis import given
from hypothesis import strategies as st

from vldebias.data.sources import AGES, open_utkface
from vldebias.errors import InvalidInputError

GOOD = [
    "100_0_0_20170112213500903.jpg.chip.jpg",
    "1_1_4_20170110213001988.jpg.chip.jpg",
    "24_0_1_20170116220224657 .jpg.chip.jpg",  # with a blank, as in the release
    "44_1_4_20170116235150272.pg.chip.jpg",
    "9_1_2_20170109203412499.jpg",
]
BAD = [  # names of the release that lack a label, and one that is no age
    "39_1_20170116174525125.jpg.chip.jpg",
    "53__0_20170116184028385.jpg",
    "61_1_20170109142408075.jpg.chip.jpg",
    "999_1_2_20170109203412499.jpg",
]


def test_labels_from_names_and_malformed_names_counted(tmp_path: Path) -> None:
    for i, name in enumerate(GOOD + BAD):
        save(tmp_path / name, i)
    (tmp_path / "readme.txt").touch()
    data = open_utkface(tmp_path)
    assert data.ids == tuple(sorted(GOOD))
    told = {column: [labels.names[code] for code in labels.codes] for column, labels in data.labels.items()}
    assert told["gender"] == ["Male", "Female", "Male", "Female", "Female"]
    assert told["race"] == ["White", "Others", "Black", "Others", "Asian"]
    assert told["years"] == ["100", "1", "24", "44", "9"]
    assert told["age"] == ["more than 70", "0-2", "20-29", "40-49", "3-9"]
    assert data.about == {"root": str(tmp_path), "malformed": 4, "malformed files": sorted(BAD)}
    assert data.read(0).size == (8, 6)


@pytest.mark.parametrize("folders", [["UTKFace"], ["part1", "part2", "part3"], ["part2"]])
def test_other_layouts(tmp_path: Path, folders: list[str]) -> None:
    for folder in (*folders, "crop_part1"):  # copies beside the images are not counted twice
        save(tmp_path / folder / GOOD[0])
    assert open_utkface(tmp_path).ids == tuple(f"{folder}/{GOOD[0]}" for folder in folders)


@given(st.integers(0, 116))
def test_ages_fall_into_the_bin_that_names_them(tmp_path_factory: pytest.TempPathFactory, age: int) -> None:
    root = tmp_path_factory.mktemp("face")
    (root / f"{age}_0_0_20170112213500903.jpg").touch()
    data = open_utkface(root)
    name = AGES[data.column("age").codes[0]]
    low, _, high = name.removeprefix("more than ").partition("-")
    assert int(low) <= age <= int(high or 116)
    assert data.column("years").codes[0] == age


def test_what_does_not_fit_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"utkface: no images in .*; expected images named \[age\]"):
        open_utkface(tmp_path)
    with pytest.raises(InvalidInputError, match="expected split all, got 'test'; UTKFace has no official splits"):
        open_utkface(tmp_path, "test")
    save(tmp_path / "holiday.jpg")
    with pytest.raises(InvalidInputError, match=r"utkface: 1 images in .*, none with a name as expected"):
        open_utkface(tmp_path)
