"""Test fine-tuning on named data sets with their classes, groups and splits, with tiny images."""

from pathlib import Path

import pytest

from vldebias.data import open_data
from vldebias.data.catalog import BUILT_IN, DataSet
from vldebias.errors import InvalidInputError
from vldebias.training.pairs import Pairs, open_images
from vldebias.training.settings import load_settings

# Data set -> settings in addition to its defaults, and the columns with its groups.
PAPER_DATA_SETS = {
    "waterbirds": ({}, "label,place"),
    "celeba": ({}, "label,gender"),
    "fairface": ({"label": "race", "group": "gender"}, "race,gender"),
}


@pytest.mark.parametrize("name", list(PAPER_DATA_SETS))
def test_a_named_data_set_is_opened_as_in_eval(name: str, stand_ins: Path) -> None:
    """Rows, classes and groups of each split match those of `open_data`."""
    given, columns = PAPER_DATA_SETS[name]
    settings = load_settings(data=name, data_root=str(stand_ins), group_dro=columns, **given)
    for is_held_out, split in ((False, "train"), (True, "val")):
        opened = open_images(settings, held_out=is_held_out)
        expected = open_data(name, stand_ins / name, split)
        assert opened.ids == expected.ids
        for column in columns.split(","):
            assert opened.column(column).names == expected.column(column).names
            assert opened.column(column).codes.tolist() == expected.column(column).codes.tolist()

    data = open_data(name, stand_ins / name, "train")
    pairs = Pairs.from_data(open_images(settings), settings)
    for row in range(len(data)):
        first, second = (
            data.column(column).names[data.column(column).codes[row]]
            for column in columns.split(",")
        )
        (caption,) = pairs.captions[row]
        assert first.replace("_", " ") in caption
        assert pairs.groups.names[pairs.groups.codes[row]] == f"{first}/{second}"


def test_a_folder_with_the_name_of_a_data_set_is_its_root(
    stand_ins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(stand_ins)
    assert len(open_images(load_settings(data="waterbirds"))) == 8
    monkeypatch.chdir(stand_ins / "waterbirds/waterbird_complete95_forest2water2")
    with pytest.raises(InvalidInputError, match=r"--data-root\) with metadata.csv"):
        open_images(load_settings(data="waterbirds"))


def test_defaults_of_a_named_data_set_can_be_overridden() -> None:
    settings = load_settings(data="celeba", label="Smiling", caption_template="{} smile")
    assert (settings.label, settings.caption_template) == ("Smiling", "{} smile")
    assert (settings.group, settings.val_split) == ("gender", "val")
    learned_from_val = load_settings(data="waterbirds", split="val")
    assert (learned_from_val.val_split, learned_from_val.group) == (None, None)
    elsewhere = load_settings(data="waterbirds", val_data="others.csv")
    assert (elsewhere.val_split, elsewhere.group) == (None, "place")
    assert load_settings(data="fairface", views="two", val_split=None).caption_template is None
    with pytest.raises(InvalidInputError, match=r"expected label.* gender or race or age"):
        load_settings(data="fairface")
    with pytest.raises(InvalidInputError, match=r"data_root .* it needs data: waterbirds"):
        load_settings(data="birds", data_root="x")
    with pytest.raises(InvalidInputError, match=r"streaming .* it needs your own data"):
        load_settings(data="waterbirds", streaming=True)


@pytest.fixture
def coded(tmp_path: Path, stand_ins: Path) -> Path:
    """Write the usual Waterbirds table, with codes and paths."""
    folder = stand_ins / "waterbirds/waterbird_complete95_forest2water2"
    lines = (folder / "metadata.csv").read_text().splitlines()[1:]
    rows = ["image,y,place,split"]
    for line in lines:
        _, file, y, split, place, _ = line.split(",")
        rows.append(f"{file},{y},{place},{('train', 'val', 'test')[int(split)]}")
    table = folder / "birds.csv"
    table.write_text("\n".join(rows) + "\n")
    return table


def test_codes_in_a_table_can_be_named_by_a_setting(coded: Path, stand_ins: Path) -> None:
    given = {
        "data": str(coded),
        "label": "y",
        "group": "place",
        "val_split": "val",
        "caption_template": "a photo of a {}.",
        "group_dro": "y,place",
    }
    # YAML reads codes as numbers.
    names = {"y": {0: "landbird", 1: "waterbird"}, "place": {0: "land", 1: "water"}}
    settings = load_settings(**given, names=names)
    named = load_settings(data="waterbirds", data_root=str(stand_ins), group_dro="label,place")
    by_code = Pairs.from_data(open_images(settings), settings)
    by_name = Pairs.from_data(open_images(named), named)
    assert by_code.captions == by_name.captions
    assert by_code.groups.names == by_name.groups.names
    assert by_code.groups.codes.tolist() == by_name.groups.codes.tolist()
    assert open_images(settings, held_out=True).column("place").names == ("land", "water")

    for wrong, message in (
        ({"y": {0: "landbird"}}, "got none for ['1']"),
        ({"species": {0: "wren"}}, "species"),
    ):
        with pytest.raises(InvalidInputError) as error:
            open_images(load_settings(**given, names=wrong))
        assert message in str(error.value)


@pytest.mark.parametrize("data_set", BUILT_IN, ids=lambda data_set: data_set.name)
def test_every_declared_data_set_has_a_reader_and_describes_its_folder(
    data_set: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert callable(data_set.load_reader())
    with pytest.raises(InvalidInputError, match=f"{data_set.name}: no data folder") as error:
        open_data(data_set.name)
    assert data_set.layout in str(error.value)
