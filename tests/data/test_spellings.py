"""Test that different spellings of a value are reported, and merged if the values are known."""

from pathlib import Path

import numpy as np
import pytest
from data_parts import ATTRIBUTES, celeba, fairface, save

from vldebias.data import Labels, odd_values, open_data
from vldebias.data.spellings import (
    is_sentence,
    matched,
    meaning_of,
    names_no_group,
    spreadsheet_range,
    written_twice,
)
from vldebias.errors import InvalidInputError, SuspectInputWarning


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        (["F", "female", "M", "male"], "--rename F=female"),
        (["Woman", "female", "male", "Man"], "--rename Woman=female"),
        (["women", "woman"], "--rename woman=women"),
        (["F", "female", "woman"], "--rename F=female --rename woman=female"),
        (["Lady", "Weiblich", "Woman"], "--rename Lady=Woman --rename Weiblich=Woman"),
        (["nurses", "nurse"], "--rename nurses=nurse"),
        (["weiblich", "female"], "--rename weiblich=female"),
        (["East Asian", "East_Asian", "White"], "--rename East_Asian=East Asian"),
        (["non-binary", "nonbinary"], "--rename non-binary=nonbinary"),
        (["20-29", "20 - 29"], "--rename 20 - 29=20-29"),
        (["20\u201329", "20-29"], "=20-29"),
        (["20 to 29", "20-29"], "--rename 20 to 29=20-29"),
        (["70+", "more than 70"], "--rename 70+=more than 70"),
        ([">70", "more than 70"], "--rename >70=more than 70"),
        (["9-Mar", "3-9", "10-19"], "--rename 9-Mar=3-9"),
        (["Okt 19", "10-19", "20-29"], "--rename Okt 19=10-19"),
        (["2026-03-09", "3-9", "20-29"], "--rename 2026-03-09=3-9"),
        # All rows with this value became dates.
        (["Oct-19", "20-29", "30-39"], "--rename Oct-19=10-19"),
        (["0", "1", "female", "male"], "replace each code with its word"),
        (["['female']", "['male']"], "is a list"),
        (["Yes", "true", "no"], "--rename true=Yes"),
        (["1", "1.0", "0"], "--rename 1.0=1"),
        (["Female (F)", "female"], "--rename Female (F)=female"),
        (["\u201cfemale\u201d", "female"], "=female"),
        (["\u2640", "female", "male"], "--rename \u2640=female"),
        (["Latino/Hispanic", "Latino_Hispanic"], "--rename Latino"),
        (["gray", "grey"], "--rename gray=grey"),
    ],
)
def test_different_spellings_are_reported_with_the_flag_that_merges_them(
    values: list[str], flag: str
) -> None:
    doubts = odd_values(Labels.from_values(values * 30))
    assert flag in "; ".join(doubts)
    assert all(repr(value) in "; ".join(doubts) or "=" in flag for value in values[:1])


@pytest.mark.parametrize(
    "values",
    [
        ["female", "male"],
        ["0-2", "3-9", "10-19", "20-29", "30-39", "more than 70"],
        ["White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian"],
        ["m", "f"],
        ["young", "old", "middle-aged"],
        ["tan", "pale", "dark-skinned", "light-skinned"],
        ["1", "2", "3", "4"],
        ["land", "water", "landbird", "waterbird"],
        ["glass", "glasses of wine", "bus"],
        ["march", "may"],
        ["A", "AB", "B", "0"],
        ["I", "II", "III", "IV", "V", "VI"],
        ["1", "1.5", "2"],
        ["1990", "2000", "2010"],
        ["a", "apple", "avocado"],
        ["female/old", "female/young", "male/old", "male/young"],
        ["1 in 10", "over 3.5", "Asian, Pacific Islander"],
        ["2026-03-09", "2026-03-10", "2026-04-01"],
    ],
)
def test_distinct_values_are_not_reported(values: list[str]) -> None:
    assert odd_values(Labels.from_values(values * 30)) == []
    assert written_twice(values) == []


def test_ranges_that_spreadsheets_converted_to_dates_are_restored() -> None:
    dates = {"9-Mar": "3-9", "03-Sep": "3-9", "Oct-19": "10-19", "19-Okt": "10-19", "Mar 09": "3-9"}
    dates |= {"2026-03-09": "3-9", "2026-10-19 00:00:00": "10-19", "1-Feb": "1-2"}
    assert {date: spreadsheet_range(date) for date in dates} == dates
    for text in ("3-9", "female", "9", "", "march of 9", "10-10-Oct"):
        assert spreadsheet_range(text) is None
    assert meaning_of(" 20 \u2013 29 ") == meaning_of("20_29") == "20-29"


def test_fairface_spellings_are_merged_with_a_warning(tmp_path: Path) -> None:
    rows = [
        ("20-29", "male", "Latino Hispanic"),
        ("70+", "F", "White"),
        ("9-Mar", "Female", "White"),
    ]
    fairface(tmp_path, "val", rows, tmp_path)
    with pytest.warns(SuspectInputWarning) as caught:
        data = open_data("fairface", tmp_path)
    assert data.column("age").counts["more than 70"] == data.column("age").counts["3-9"] == 1
    assert data.column("gender").counts == {"Male": 1, "Female": 2}
    assert data.column("race").counts["Latino_Hispanic"] == 1
    assert "'9-Mar' (1 rows) as '3-9'" in " ".join(str(warning.message) for warning in caught)
    (tmp_path / "fairface_label_val.csv").write_text(
        "file,age,gender,race\nval/1.jpg,x,Male,White\n"
    )
    with pytest.raises(InvalidInputError, match=r"expected one of .* got \['x'\]"):
        open_data("fairface", tmp_path)


@pytest.mark.parametrize(("no", "yes"), [("False", "True"), ("-1.0", "1.0"), ("0.0", "1.0")])
def test_celeba_booleans_and_floats_are_read(no: str, yes: str, tmp_path: Path) -> None:
    values = np.full((2, 40), -1)
    values[0, ATTRIBUTES.index("Male")] = 1
    celeba(tmp_path, tmp_path / "img_align_celeba", values, [2, 2], kaggle=True)
    table = tmp_path / "list_attr_celeba.csv"
    head, *rows = table.read_text().splitlines()
    rows = [row.replace("-1", "#").replace(",1", f",{yes}").replace("#", no) for row in rows]
    table.write_text("\n".join([head, *rows]))
    partition = tmp_path / "list_eval_partition.csv"
    partition.write_text(partition.read_text().replace(",2", ",test"))
    with pytest.warns(SuspectInputWarning, match="'test'"):
        data = open_data("celeba", tmp_path)
    assert data.column("gender").counts == {"female": 1, "male": 1}


def test_renamed_waterbirds_columns_and_floats_are_read(tmp_path: Path) -> None:
    for number in range(2):
        save(tmp_path / f"a/{number}.jpg", number)
    lines = ["id,filename,split,y,a", "0,a/0.jpg,2.0,0.0,1.0", "1,a\\1.jpg,2.0,1.0,0.0"]
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    data = open_data("waterbirds", tmp_path)
    assert data.column("label").counts == {"landbird": 1, "waterbird": 1}
    assert data.read(1).size == (8, 6)
    (tmp_path / "metadata.csv").write_text("\n".join(lines).replace("2.0", "0"))
    with pytest.raises(InvalidInputError, match="split 'test' is empty; the splits are train 2"):
        open_data("waterbirds", tmp_path)


def test_codes_and_names_of_known_values_match_alternative_spellings() -> None:
    known = {"Blond_Hair": "fair", "3": "Black Hair"}
    names = ["blond hair", "BLOND-HAIR", "Fair", "black_hair", "Blond_Hair", "3.0", "grey"]
    expected = dict.fromkeys(["blond hair", "BLOND-HAIR", "Fair"], "Blond_Hair")
    assert matched(names, known) == expected | {"black_hair": "3", "3.0": "3"}


@pytest.mark.parametrize(
    ("text", "is_answer"),
    [
        ("N/A", True),
        ("Unclear.", True),
        ("cannot determine", True),
        ("I'm sorry, I can't tell the gender of people in images.", True),
        ("I\u2019m sorry, but I can\u2019t help with that", True),
        ("It is not possible to determine the race.", True),
        ("The gender is unclear", True),
        ("not visible", True),
        ("no person", True),
        ("unbekannt", True),
        ("\u4e0d\u660e", True),
        ("female", False),
        ("other", False),
        ("Native Hawaiian or Other Pacific Islander", False),
        ("non-binary", False),
        ("no", False),
        ("none of the above", False),
        ("not blond", False),
    ],
)
def test_answers_that_are_not_groups_are_detected(text: str, is_answer: bool) -> None:
    assert names_no_group(text) == is_answer


@pytest.mark.parametrize(
    ("values", "doubt"),
    [
        (["female", "The person in the image appears to be a man."], "is a sentence"),
        (["0.91", "0.12", "0.5"], "look like probabilities"),
        (['{"choices": ["a"]}', "b"], "is a JSON object"),
        (["female (0.98)", "male (0.91)"], "--rename 'female (0.98)=female'"),
        (["female", "male: 91%"], "'male: 91%' is a value with its score"),
        (["female", "female, male"], "'female, male' looks like several values in one cell"),
        (["women & men", "nobody"], "'women & men' looks like several values"),
        (["female/male", "male"], "'female/male' looks like several values"),
    ],
)
def test_values_that_are_not_groups_are_reported(values: list[str], doubt: str) -> None:
    assert doubt in "; ".join(odd_values(Labels.from_values(values * 30)))


@pytest.mark.parametrize(
    "values",
    [
        ["White (not Hispanic or Latino)", "Two or More Races (not Hispanic or Latino)"],
        ["American Indian or Alaska Native", "Black or African American"],
    ],
)
def test_long_group_names_are_not_treated_as_sentences(values: list[str]) -> None:
    assert not any(map(is_sentence, values))
