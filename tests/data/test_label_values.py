"""Test labels that name no group, that match a known value, or that are likely mistakes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from data_parts import ATTRIBUTES, celeba, fairface, save

from apps.shares.answers import CANNOT_TELL, NO_MAJORITY, NO_PERSON
from apps.shares.task import SharesTask
from vldebias import load_prompts, rerank
from vldebias.data import Embeddings, Labels, open_data
from vldebias.data.label_values import (
    matched,
    missing_labels,
    misspelt,
    odd_values,
)
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.judge.stored import NO_VALUE
from vldebias.study.doubts import doubt_labels
from vldebias.utils.label_words import names_no_group


@pytest.mark.parametrize(
    "values",
    [
        ["female", "male"],
        ["White", "Black", "Latino_Hispanic", "East Asian", "Southeast Asian", "Indian"],
        ["m", "f"],
        ["1", "2", "3", "4"],
        ["A", "AB", "B", "0"],
        ["female/old", "female/young", "male/old", "male/young"],
    ],
)
def test_distinct_values_are_not_reported(values: list[str]) -> None:
    assert odd_values(Labels.from_values(values * 30)) == []


def test_fairface_spellings_are_merged_with_a_warning(tmp_path: Path) -> None:
    rows = [
        ("20-29", "male", "Latino Hispanic"),
        ("More than 70", "F", "White"),
        ("3 - 9", "Female", "White"),
    ]
    fairface(tmp_path, "val", rows, tmp_path)
    with pytest.warns(SuspectInputWarning) as caught:
        data = open_data("fairface", tmp_path)
    assert data.column("age").counts["more than 70"] == data.column("age").counts["3-9"] == 1
    assert data.column("gender").counts == {"Male": 1, "Female": 2}
    assert data.column("race").counts["Latino_Hispanic"] == 1
    assert "'3 - 9' (1 rows) as '3-9'" in " ".join(str(warning.message) for warning in caught)
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
        ("I'm sorry, I can't tell the gender of people in images.", True),
        ("I\u2019m sorry, but I can\u2019t help with that", True),
        ("It is not possible to determine the race.", True),
        ("The gender is unclear", True),
        ("None", True),
        ("-", True),
        ("no_face", True),
        ("Not a person", True),
        ("<NA>", True),
        ("?", True),
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


@pytest.mark.parametrize("answer", [NO_VALUE, CANNOT_TELL, NO_PERSON, NO_MAJORITY])
def test_answers_that_the_package_writes_are_not_groups(answer: str) -> None:
    assert names_no_group(answer)


@pytest.mark.parametrize(
    ("label", "values", "hint"),
    [
        ("femlae", ("female", "male"), "did you mean 'female'?"),
        ("wtaer", ("land", "water"), ""),
        ("watr", ("land", "water"), "did you mean 'water'?"),
        ("female", ("male", "other"), ""),
        ("West Asian", ("East Asian", "White"), ""),
        ("20-39", ("20-29", "30-39"), ""),
        ("nonbinary", ("female", "male"), ""),
    ],
)
def test_only_labels_outside_the_known_values_are_misspelt(
    label: str, values: tuple[str, ...], hint: str
) -> None:
    listed = ", ".join(values)
    expected = [f"got {label!r}; the values of x are {listed}; {hint}"] if hint else []
    assert misspelt([label, *values], {"x": values}) == expected
    # A column without any known value describes a different attribute.
    assert misspelt([label, "else"], {"x": values}) == []


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("1 2 3 4 5 6 -1", "-1"),
        ("0 1 -1", "-1"),
        ("0.0 1.0 -1.0", "-1.0"),
        ("female male -1", "-1"),
        ("female male 99", "99"),
        ("1 2 99 255", "99 255"),
        ("1 2 -9 -99", "-9 -99"),
        ("1 2 n.a.", "n.a."),
        # Values of their own
        ("1 -1", ""),
        ("0 -1", ""),
        ("-2 -1 0 1 2", ""),
        ("20 60 99", ""),
        ("0 99", ""),
        ("A AB 0", ""),
        ("female -1", ""),
    ],
)
def test_numbers_and_words_for_missing_values_are_recognised(labels: str, expected: str) -> None:
    rows = dict.fromkeys(labels.split(), 2)
    assert missing_labels(rows) == expected.split()
    # The user decides: what is listed is missing or a value.
    assert missing_labels(rows, unknown=["1"]) == ["1"] * ("1" in rows)
    assert missing_labels(rows, values=list(rows)) == []


def test_missing_labels_are_said_with_their_count(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(6)]
    rows = "\n".join(f"{name},{label}" for name, label in zip(names, "1212-*", strict=True))
    (tmp_path / "a.csv").write_text(f"image,skin\n{rows}".replace("-", "-1").replace("*", "-1"))
    with pytest.warns(SuspectInputWarning, match=r"2 of 6 labels name no group .*such as '-1'"):
        data = open_data("manifest", tmp_path / "a.csv", labels=["skin"])
    assert data.column("skin").counts == {"1": 2, "2": 2}
    data = open_data("manifest", tmp_path / "a.csv", labels=["skin"], unknown=[])
    assert data.column("skin").counts["-1"] == 2


def labelled(names: list[str]) -> list[str]:
    """Return 60 labels, three of them the first name, as in a search that re-ranking is for."""
    first, *others = names
    return [first if i % 20 == 0 else others[i % len(others)] for i in range(60)]


def by_rerank(labels: list[str]) -> None:
    scores = [1 - i / len(labels) for i in range(len(labels))]
    rerank(scores, 10, labels=labels)


def by_evaluate(labels: list[str]) -> None:
    images = Embeddings.from_arrays(np.zeros((len(labels), 4)) + 1, {"column": labels})
    doubt_labels(images, ["column"], [load_prompts("gender")])


def by_shares(labels: list[str]) -> None:
    table = {"prompt": [f"prompt {i % 2}" for i in range(len(labels))], "value": labels}
    SharesTask(name="shares", resamples=20).measure(table)


COMMANDS = [by_rerank, by_evaluate, by_shares]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "names",
    [
        ["female", "male"],
        ["male", "female"],
        ["East Asian", "West Asian"],
        ["Latina", "Latino", "White"],
    ],
)
def test_no_command_takes_a_rare_group_for_a_misspelling_of_another(
    command: Callable[[list[str]], None], names: list[str], recwarn: pytest.WarningsRecorder
) -> None:
    command(labelled(names))
    messages = [str(warning.message) for warning in recwarn]
    assert not [line for line in messages if "did you mean" in line or "spel" in line]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reports_a_label_that_is_almost_a_known_value(
    command: Callable[[list[str]], None],
) -> None:
    expected = "got 'femlae'; the values of gender are .*; did you mean 'female'?"
    with pytest.warns(SuspectInputWarning, match=expected):
        command(labelled(["femlae", "female", "male"]))


@pytest.mark.parametrize("word", ["nan", "N/A", "unknown", "None", "cannot tell"])
def test_words_for_a_missing_label_are_unknown_in_labelled_tables(
    word: str, tmp_path: Path
) -> None:
    names = ["image,gender"]
    for n in range(12):
        (tmp_path / f"{n}.png").touch()
        names.append(f"{n}.png,{('male', 'female', word)[n % 3]}")
    (tmp_path / "t.csv").write_text("\n".join(names))

    def opened() -> Labels:
        data = open_data("manifest", str(tmp_path / "t.csv"), labels={"gender": "gender"})
        return data.labels["gender"]

    if word == "unknown":
        labels = opened()
    else:
        with pytest.warns(SuspectInputWarning, match=r"4 of 12 labels name no group .*\(4\)"):
            labels = opened()
    assert labels.counts == {"female": 4, "male": 4}
    assert int((~labels.known).sum()) == 4
