"""FairFace: its label files, its two crops, its names."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_folders import fairface, save

from vldebias.data.sources import AGES, RACES, open_fairface
from vldebias.errors import InvalidInputError

VAL = [("3-9", "Male", "East Asian"), ("more than 70", "Female", "Black"), ("50-59", "Female", "Latino_Hispanic")]
TRAIN = [("0-2", "Male", "White"), ("20-29", "Female", "Middle Eastern")]
CROPPED = "fairface-img-margin025-trainval"


def both(root: Path, images: Path | None = None) -> Path:
    fairface(root, "val", VAL, images)
    return fairface(root, "train", TRAIN, images)


def test_labels_by_the_names_of_the_data_set(tmp_path: Path) -> None:
    data = open_fairface(both(tmp_path))
    assert (data.split, data.ids) == ("val", ("val/1.jpg", "val/2.jpg", "val/3.jpg"))
    assert data.column("age").names == AGES
    assert data.column("race").names == RACES
    for column, k in (("age", 0), ("gender", 1), ("race", 2)):
        labels = data.column(column)
        assert [labels.names[code] for code in labels.codes] == [row[k] for row in VAL]
    assert data.read(2).size == (8, 6)


def test_all_joins_train_and_val(tmp_path: Path) -> None:
    data = open_fairface(both(tmp_path), "all")
    assert data.ids[:3] == ("train/1.jpg", "train/2.jpg", "val/1.jpg")
    ages = data.column("age")
    assert [ages.names[code] for code in ages.codes] == [row[0] for row in TRAIN + VAL]
    assert len(open_fairface(tmp_path, "train")) == 2


@pytest.mark.parametrize("labels", ["", "labels", CROPPED])
def test_images_in_the_folder_of_the_archive(tmp_path: Path, labels: str) -> None:
    both(tmp_path / labels, tmp_path / CROPPED)
    data = open_fairface(tmp_path)
    assert data.about == {"root": str(tmp_path / CROPPED), "padding": "0.25"}
    assert data.read(0).size == (8, 6)


def test_the_wider_crop_on_demand(tmp_path: Path) -> None:
    both(tmp_path, tmp_path / CROPPED)
    save(tmp_path / "fairface-img-margin125-trainval/val/1.jpg", 77)
    near, far = open_fairface(tmp_path), open_fairface(tmp_path, padding="1.25")
    assert near.read(0) != far.read(0)
    assert near.fingerprint != far.fingerprint


def test_what_does_not_fit_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"no fairface_label_val.csv in .*; expected fairface_label_val.csv"):
        open_fairface(tmp_path)
    match = "expected split train or val or all, got 'test'; FairFace has no test split; the paper measures on val"
    with pytest.raises(InvalidInputError, match=match):
        open_fairface(tmp_path, "test")
    fairface(tmp_path, "val", VAL, tmp_path / "elsewhere")
    with pytest.raises(InvalidInputError, match="fairface: no folder val/ in"):
        open_fairface(tmp_path)
    with pytest.raises(InvalidInputError, match=r"expected padding 0.25 or 1.25, got '0.5'"):
        open_fairface(tmp_path, padding="0.5")
    table = both(tmp_path) / "fairface_label_val.csv"
    table.write_text(table.read_text().replace("3-9", "09-Mar"))  # what a spreadsheet makes of it
    with pytest.raises(InvalidInputError, match=r"column 'age': expected one of \['0-2', '3-9', .*got \['09-Mar'\]"):
        open_fairface(tmp_path)
