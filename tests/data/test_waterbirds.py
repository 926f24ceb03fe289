"""Waterbirds in the format of group_DRO and WILDS."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from data_folders import picture, waterbirds

from tests.refusals import refused
from vldebias.data import group_counts
from vldebias.data.sources import open_waterbirds

ROWS = [*product((0, 1), (0, 1, 2), (0, 1)), (0, 2, 0)]  # (y, split, place)


def test_a_split_has_its_rows_in_order(tmp_path: Path) -> None:
    waterbirds(tmp_path, ROWS)
    assert [len(open_waterbirds(tmp_path, split)) for split in ("train", "val", "test", "all")] == [4, 4, 5, 13]
    data = open_waterbirds(tmp_path)
    rows = [i for i, (_, split, _) in enumerate(ROWS) if split == 2]
    assert (data.name, data.split) == ("waterbirds", "test")
    assert data.ids == tuple(f"{i % 3 + 1:03d}.Some_Bird/Some_Bird_{i:04d}_{79 * i}.jpg" for i in rows)
    assert data.column("label").codes.tolist() == [ROWS[i][0] for i in rows]
    assert data.column("place").codes.tolist() == [ROWS[i][2] for i in rows]
    assert data.column("label").names == ("landbird", "waterbird")
    assert data.column("place").names == ("land", "water")
    counts = {"landbird/land": 2, "landbird/water": 1, "waterbird/land": 1, "waterbird/water": 1}
    assert group_counts(data, "label", "place") == counts
    assert data.read(0).size == picture().size


@pytest.mark.parametrize("folder", ["waterbird_complete95_forest2water2", "waterbirds_v1.0"])
def test_the_folder_above_will_do(tmp_path: Path, folder: str) -> None:
    waterbirds(tmp_path / folder, ROWS)
    data = open_waterbirds(tmp_path, "val")
    assert data.about["root"] == str(tmp_path / folder)
    assert data.read(0).size == picture().size
    assert data.fingerprint == open_waterbirds(tmp_path / folder, "val").fingerprint


@refused(
    (",y,", ",label,", r"expected a column 'y'; there are \['img_id', 'img_filename', 'label'"),
    (".jpg,1,", ".jpg,2,", r"column 'y': expected one of \['0', '1'\], got \['2'\]"),
    (",1,0,/o", ",1,,/o", r"column 'place': expected \[0, 1\] in every row, 2 are empty"),
    ("002.Some_Bird/", "../002.Some_Bird/", "paths lead out of"),
    (",2,1,/o", ",3,1,/o", r"column 'split': expected one of \['0', '1', '2'\], got \['3'\]"),
)
def test_a_table_that_does_not_fit_says_why(tmp_path: Path, old: str, new: str) -> None:
    table = waterbirds(tmp_path, ROWS, images=False) / "metadata.csv"
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new))
    open_waterbirds(tmp_path)


@refused(
    ("test", r"waterbirds: no metadata.csv in .*; expected metadata.csv \(img_"),
    ("dev", "waterbirds: expected split train or val or test or all, got 'dev'"),
)
def test_another_folder_or_split(tmp_path: Path, split: str) -> None:
    open_waterbirds(tmp_path, split)
