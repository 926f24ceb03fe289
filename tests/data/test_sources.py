"""Test Waterbirds, CelebA and FairFace in their layouts, custom tables, and data sets by name."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from data_parts import ATTRIBUTES, celeba, fairface, picture, save, waterbirds
from pyarrow import parquet

from tests.refusals import refused
from vldebias.data import ImageData, cross, list_data, open_data
from vldebias.data.manifest import open_manifest
from vldebias.data.sources import open_celeba, open_fairface, open_waterbirds
from vldebias.errors import InvalidInputError

BIRDS = [*product((0, 1), (0, 1, 2), (0, 1)), (0, 2, 0)]  # (y, split, place)
VALUES = np.random.default_rng(12).integers(0, 2, (12, 40)) * 2 - 1
PARTS = [0, 1, 2] * 4
VAL = [
    ("3-9", "Male", "East Asian"),
    ("more than 70", "Female", "Black"),
    ("50-59", "Female", "Latino_Hispanic"),
]
TRAIN = [("0-2", "Male", "White"), ("20-29", "Female", "Middle Eastern")]
CROPPED = "fairface-img-margin025-trainval"


@pytest.mark.parametrize(
    ("name", "split", "columns", "n"),
    [
        ("waterbirds", "test", ["label", "place"], 8),
        ("celeba", "test", ["label", "gender", *ATTRIBUTES], 8),
        ("fairface", "val", ["gender", "race", "age"], 14),
    ],
)
def test_every_data_set_opens_by_name_with_its_usual_split(
    stand_ins: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    split: str,
    columns: list[str],
    n: int,
) -> None:
    monkeypatch.setenv("HOME", str(stand_ins))
    data = open_data(name, f"~/{name}")
    assert isinstance(data, ImageData)
    assert (data.name, data.split, len(data), list(data.labels)) == (name, split, n, columns)
    assert [data.read(i).mode for i in range(n)] == ["RGB"] * n
    assert open_data(name, stand_ins / name, split).fingerprint == data.fingerprint
    assert name in list_data()


@refused(
    ("waterbird", ".", {}, "'waterbird'; did you mean 'waterbirds'"),
    ("birds", ".", {}, "vldebias.miniature.open_world"),
    ("waterbirds", ".", {"pad": 1}, r"unknown options \['pad'\]; expected none"),
    ("manifest", ".", {"pad": 1}, r"unknown options \['pad'\]; expected image, caption"),
    ("celeba", "no/where", {}, "celeba: no/where .* list_attr_celeba .* mmlab"),
    ("celeba", None, {}, "celeba: .* list_attr_celeba .* mmlab"),
)
def test_data_that_cannot_be_opened_raises_an_error_with_the_reason(
    name: str, root: str | None, options: dict[str, Any]
) -> None:
    open_data(name, root, **options)


@pytest.mark.parametrize("folder", ["", "waterbird_complete95_forest2water2", "waterbirds_v1.0"])
def test_waterbirds_matches_its_release(tmp_path: Path, folder: str) -> None:
    waterbirds(tmp_path / folder, BIRDS)
    assert [len(open_waterbirds(tmp_path, split)) for split in ("train", "val", "test", "all")] == [
        4,
        4,
        5,
        13,
    ]
    data = open_waterbirds(tmp_path)
    rows = [i for i, (_, split, _) in enumerate(BIRDS) if split == 2]
    assert data.ids == tuple(
        f"{i % 3 + 1:03d}.Some_Bird/Some_Bird_{i:04d}_{79 * i}.jpg" for i in rows
    )
    assert data.column("label").codes.tolist() == [BIRDS[i][0] for i in rows]
    assert data.column("place").codes.tolist() == [BIRDS[i][2] for i in rows]
    counts = {"landbird/land": 2, "landbird/water": 1, "waterbird/land": 1, "waterbird/water": 1}
    assert cross(data.column("label"), data.column("place")).counts == counts
    assert data.about["root"] == str(tmp_path / folder)
    assert data.read(0).size == picture().size


@refused(
    (",y,", ",label,", r"expected a column 'y'; the columns are \['img_id', 'img_filename'"),
    (".jpg,1,", ".jpg,2,", r"column 'y': expected one of \['0', '1'\], got \['2'\]"),
    (",1,0,/o", ",1,,/o", "column 'place': .* 2 rows are empty"),
    ("002.Some_Bird/", "../002.Some_Bird/", "paths lead outside"),
    (",2,1,/o", ",3,1,/o", r"column 'split': expected one of \['0', '1', '2'\], got \['3'\]"),
)
def test_waterbirds_can_be_read_from_a_different_table(tmp_path: Path, old: str, new: str) -> None:
    table = waterbirds(tmp_path, BIRDS) / "metadata.csv"
    assert old in table.read_text()
    table.write_text(table.read_text().replace(old, new))
    open_waterbirds(tmp_path)


def official(root: Path) -> None:
    celeba(root / "Anno", root / "Img/img_align_celeba", VALUES, PARTS)
    (root / "Eval").mkdir()
    (root / "Anno/list_eval_partition.txt").rename(root / "Eval/list_eval_partition.txt")


def packed(
    folder: str, images: str = "img_align_celeba", *, kaggle: bool = True
) -> Callable[[Path], None]:
    return lambda root: celeba(root / folder, root / folder / images, VALUES, PARTS, kaggle=kaggle)


LAYOUTS = {
    "official": official,
    "kaggle": packed("", "img_align_celeba/img_align_celeba"),
    "flat": packed("", kaggle=False),
    "group_dro": packed("data"),
    "wilds": packed("celebA_v1.0"),
    "official, one folder above": lambda root: official(root / "CelebA"),
    "beside other data": packed("faces"),
    "kaggle, one folder above": packed("archive", "img_align_celeba/img_align_celeba"),
    "group_dro, one folder above": packed("celebA/data"),
    "torchvision": packed("celeba", kaggle=False),
    "below a folder of its name": packed("celeba/celeba", kaggle=False),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_celeba_gives_the_same_data(tmp_path: Path, layout: str) -> None:
    LAYOUTS[layout](tmp_path)
    assert [len(open_celeba(tmp_path, split)) for split in ("train", "test", "all")] == [4, 4, 12]
    data = open_celeba(tmp_path, "val")
    rows = [i for i, part in enumerate(PARTS) if part == 1]
    assert data.ids == tuple(f"{i + 1:06d}.jpg" for i in rows)
    for k, name in enumerate(ATTRIBUTES):
        assert data.column(name).names == ("no", "yes")
        assert data.column(name).codes.tolist() == (VALUES[rows, k] > 0).astype(int).tolist()
    for name, column, values in (
        ("label", "Blond_Hair", ("dark", "blond")),
        ("gender", "Male", ("female", "male")),
    ):
        assert data.column(name).names == values
        assert np.array_equal(data.column(name).codes, data.column(column).codes)
    assert data.read(0).size == picture().size


@refused(
    ("list_attr_celeba.txt", "000003.jpg", "000003.jpg 1", "40 values, got .*000003"),
    ("list_attr_celeba.txt", " Male ", " Sex ", r"'Male'.*'5_o_Clock"),
    ("list_attr_celeba.txt", "", None, r"list_attr_celeba\.txt: expected"),
    ("list_attr_celeba.txt", "-1", "-2", r"expected one of \['-1', '0', '1'\], got \['-2'\]"),
    ("list_eval_partition.txt", "000005.jpg 1\n", "", r"have none, such as \['000005"),
    ("list_eval_partition.txt", ".jpg 2", ".jpg 7", r"\['0', '1', '2'\], got \['7'\]"),
)
def test_celeba_can_be_read_from_a_different_table(
    tmp_path: Path, file: str, old: str, new: str | None
) -> None:
    LAYOUTS["flat"](tmp_path)
    path = tmp_path / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new) if new is not None else "")
    open_celeba(tmp_path)


@pytest.mark.parametrize(
    ("labels", "images"),
    [
        ("", ""),
        ("", CROPPED),
        ("labels", CROPPED),
        (CROPPED, CROPPED),
        ("FairFace", f"FairFace/{CROPPED}"),
        ("faces/labels", "faces"),
    ],
)
def test_fairface_matches_its_release(tmp_path: Path, labels: str, images: str) -> None:
    fairface(tmp_path / labels, "val", VAL, tmp_path / images)
    fairface(tmp_path / labels, "train", TRAIN, tmp_path / images)
    data = open_fairface(tmp_path)
    both_splits = open_fairface(tmp_path, "all")
    assert (data.split, data.ids) == ("val", ("val/1.jpg", "val/2.jpg", "val/3.jpg"))
    assert both_splits.ids == ("train/1.jpg", "train/2.jpg", *data.ids)
    assert len(open_fairface(tmp_path, "train")) == 2
    assert data.column("age").names[:2] == ("0-2", "3-9")
    assert data.column("race").names[:2] == ("White", "Black")
    for column, k in (("age", 0), ("gender", 1), ("race", 2)):
        labels_of_column = both_splits.column(column)
        assert [labels_of_column.names[code] for code in labels_of_column.codes] == [
            row[k] for row in TRAIN + VAL
        ]
    assert data.about == {"root": str(tmp_path / images)}
    assert data.read(2).size == picture().size


ROWS = [
    {"image": "a/1.png", "text": "one", "sex": "f", "tone": "3", "part": "train"},
    {"image": "a/2.png", "text": "two, again", "sex": "m", "tone": "", "part": "test"},
    {"image": "b/3.png", "text": "", "sex": "f", "tone": "1", "part": "test"},
]


def table(path: Path, rows: list[dict[str, str]] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        mark = "\t" if path.suffix == ".tsv" else ","
        quoted = [mark.join(f'"{value}"' for value in row.values()) for row in rows]
        path.write_text("\n".join([mark.join(rows[0]), *quoted]) + "\n")
    return path


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "jsonl"])
def test_columns_are_mapped_and_splits_are_selected(tmp_path: Path, ending: str) -> None:
    for i, row in enumerate(ROWS):
        save(tmp_path / row["image"], i)
    path = table(tmp_path / f"own.{ending}")
    data = open_manifest(path, caption="text", labels={"gender": "sex", "tone": "tone"})
    assert (data.name, data.split, data.ids) == ("own", "all", ("a/1.png", "a/2.png", "b/3.png"))
    assert data.captions == ("one", "two, again", "")
    assert data.column("gender").names == ("f", "m")
    assert data.column("gender").codes.tolist() == [0, 1, 0]
    assert data.column("tone").names == ("1", "3")
    assert data.column("tone").codes.tolist() == [1, -1, 0]
    assert data.about == {"root": str(tmp_path), "columns not used": ["part"]}
    assert [data.read(i) for i in range(3)] == [picture(i) for i in range(3)]
    part = open_manifest(path, "test", split_column="part", labels="sex")
    assert (part.split, part.ids, list(part.labels)) == ("test", ("a/2.png", "b/3.png"), ["sex"])
    assert part.column("sex").codes.tolist() == [1, 0]


def test_rows_per_caption_and_lists_of_captions_are_joined_to_images(tmp_path: Path) -> None:
    captions = [("a", "one"), ("b", "two"), ("a", "three"), ("c", "nan"), ("b", ""), ("a", "four")]
    for k, name in enumerate("abc"):
        save(tmp_path / f"{name}.png", k)
    data = open_manifest(
        table(tmp_path / "own.csv", [{"image": f"{a}.png", "said": b} for a, b in captions]),
        caption="said",
    )
    assert (data.captions, data.more_captions) == (("one", "two", ""), (("three", "four"), (), ()))
    assert [data.read(row) for row in range(3)] == [picture(k) for k in range(3)]
    cells: list[Any] = [["one", "two"], [], ["", None, "four", " ", "five"]]
    rows: Any = [
        {"image": f"{name}.png", "said": cell} for name, cell in zip("abc", cells, strict=True)
    ]
    lists = open_manifest(table(tmp_path / "own.jsonl", rows), caption="said")
    assert (lists.captions, lists.more_captions) == (("one", "", "four"), (("two",), (), ("five",)))
    with pytest.raises(
        InvalidInputError,
        match=r"column 'said': expected a string or a list of strings .* got \[1, 2\]",
    ):
        open_manifest(
            table(tmp_path / "own.jsonl", [{"image": "a.png", "said": [1, 2]}]), caption="said"
        )


@refused(
    ({"split": "val", "split_column": "part"}, "split test or train or all, got 'val'"),
    ({"split": "test"}, "own.csv: split 'test' requires split_column"),
    ({"image": "tone"}, "own.csv: expected an image in every row, but 1 cells of column 'tone'"),
)
def test_a_missing_split_or_image_raises_an_error(tmp_path: Path, options: dict[str, Any]) -> None:
    open_manifest(table(tmp_path / "own.csv"), **options)


def test_paths_that_lead_outside_must_be_allowed(tmp_path: Path) -> None:
    save(tmp_path / "secret.png", 4)
    rows = [{"image": "../secret.png"}, {"image": str(tmp_path / "secret.png")}]
    path = table(tmp_path / "inner/own.csv", rows)
    with pytest.raises(InvalidInputError, match=r"2 paths lead outside .*such as '../secret.png'"):
        open_manifest(path)
    data = open_manifest(path, allow_outside=True)
    assert [data.read(0), data.read(1)] == [picture(4), picture(4)]
    save(tmp_path / "pictures/a/1.png", 9)
    assert open_manifest(table(path, ROWS[:1]), images=tmp_path / "pictures").read(0) == picture(9)


def test_subpopbench_and_jtt_tables_are_read_like_the_releases(tmp_path: Path) -> None:
    birds = tmp_path / "waterbirds"
    save(birds / "waterbird_complete95_forest2water2" / "001.Bird" / "a.jpg", 3)
    row = "id,filename,split,y,a\n1,001.Bird/a.jpg,2,1,0\n"
    (birds / "metadata_waterbirds.csv").write_text(row)
    for root in (tmp_path, birds):
        data = open_data("waterbirds", root)
        assert data.column("label").counts == {"landbird": 0, "waterbird": 1}
        assert data.column("place").counts == {"land": 1, "water": 0}
        assert data.read(0).size == (8, 6)

    faces = tmp_path / "celeba"
    for folder in (faces, tmp_path / "jtt" / "celebA" / "data"):
        for number in range(2):
            save(folder / "img_align_celeba" / f"{number}.jpg", number)
    (faces / "metadata_celeba.csv").write_text(
        "id,filename,split,y,a\n1,0.jpg,2,1,0\n2,1.jpg,0,0,1\n"
    )
    data = open_data("celeba", faces)
    assert data.column("label").counts == {"dark": 0, "blond": 1}
    assert data.column("gender").counts == {"female": 1, "male": 0}
    assert list(data.labels) == ["label", "gender"]

    # JTT merges attributes and partition, with row numbers in the first column.
    (tmp_path / "jtt" / "celebA" / "data" / "metadata.csv").write_text(
        ",image_id,Blond_Hair,Male,Smiling,split\n0,0.jpg,-1,1,1,2\n1,1.jpg,1,-1,-1,2\n"
    )
    data = open_data("celeba", tmp_path / "jtt")
    assert data.column("label").counts == {"dark": 1, "blond": 1}
    assert data.column("Smiling").counts == {"no": 1, "yes": 1}
    assert data.read(1).size == (8, 6)


def test_the_only_image_column_of_a_manifest_is_found(tmp_path: Path) -> None:
    save(tmp_path / "a.jpg")
    (tmp_path / "m.csv").write_text("id,filename\n1,a.jpg\n")
    assert open_data("manifest", tmp_path / "m.csv").ids == ("a.jpg",)
    (tmp_path / "m.csv").write_text("id,filename,path\n1,a.jpg,a.jpg\n")
    with pytest.raises(InvalidInputError, match="--option image=COLUMN"):
        open_data("manifest", tmp_path / "m.csv")
