"""Test the experiments on balanced prompts and on the thresholds of the default, with known
answers."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from eval.experiments import dofair, prompt_rules, rewritten_pairs, workers
from vldebias.errors import InvalidInputError
from vldebias.report.result import TaskResult


def values(part: TaskResult, metric: str) -> dict[str, float]:
    return {row.subset: row.value for row in part.rows if row.metric == metric}


def history(folder: Path, attribute: str, rows: list[tuple[str, str, list[str]]]) -> None:
    path = folder / f"events_{attribute}_imggen.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["group", "event_name", f"existence_{attribute}_list"])
        table.writerows([group, event, str(named)] for group, event, named in rows)


def test_both_kinds_of_error_on_historical_prompts_are_counted(tmp_path: Path) -> None:
    soldier = ("Wehrmacht soldiers", "World War II", ["male"])
    nurse = ("nurses", "a hospital", ["male"])
    cook = ("cooks", "a kitchen", ["male", "female"])
    unknown = ("cooks", "a kitchen", [])
    history(tmp_path, "gender", [soldier, nurse, cook, unknown])
    history(tmp_path, "race", [(*soldier[:2], ["White"]), (*cook[:2], ["White", "Black"])])
    gender, race = dofair.measure(tmp_path, dofair.TEMPLATE)
    (shared,) = values(gender, "written_into_one").values()
    (several,) = values(gender, "written_into_several").values()
    assert (shared, several) == (0.5, 1.0)
    assert values(gender, "left_unchanged") == {"one value: context": 0.5}
    assert set(values(race, "written_into_one").values()) == {0.0}


def test_historical_prompts_without_a_table_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"gender.*_imggen.csv"):
        dofair.read(tmp_path, "gender")
    history(tmp_path, "gender", [])
    with pytest.raises(InvalidInputError, match="existence_gender_list"):
        dofair.read(tmp_path, "gender")


def test_invented_values_that_remain_are_counted(tmp_path: Path) -> None:
    pairs = [
        ("a nurse", "A nurse smiles, her hair tied back."),  # replaced
        ("a soldier", "A soldier and his dog, Sergeant John Miller."),  # cannot be replaced
        ("a waitress", "A waitress with her tray."),  # the user's own words
        ("a cook", "A cook at a stove."),
    ]
    for number, name in enumerate((rewritten_pairs.ORIGINALS, rewritten_pairs.REWRITTEN)):
        (tmp_path / name).write_text("\n".join(pair[number] for pair in pairs))
    (part,) = rewritten_pairs.measure(*rewritten_pairs.read_pairs(tmp_path))
    assert values(part, "invented") == {"": 0.5}
    assert values(part, "stays") == {"": 0.5}
    assert values(part, "left_unchanged") == {"rewritten": 0.25, "stated": 0.25}
    table = tmp_path / "texts.csv"
    rewritten_pairs.write_texts(table, *rewritten_pairs.read_pairs(tmp_path))
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["original"] for row in rows] == [original for original, _ in pairs]
    assert rows[2]["balanced"] == pairs[2][1]


def test_mismatched_pairs_are_rejected(tmp_path: Path) -> None:
    (tmp_path / rewritten_pairs.ORIGINALS).write_text("a nurse")
    with pytest.raises(InvalidInputError, match=r"prompts_occupations_rewrite\.txt"):
        rewritten_pairs.read_pairs(tmp_path)
    (tmp_path / rewritten_pairs.REWRITTEN).write_text("A nurse.\nA cook.")
    with pytest.raises(InvalidInputError, match="got 1 and 2"):
        rewritten_pairs.read_pairs(tmp_path)


LABELLED = [
    {"prompt": "a nurse", "attribute": "gender", "label": "open", "expected": "a {v} nurse"},
    {"prompt": "a red chair", "attribute": "gender", "label": "open"},  # labelled incorrectly
    {"prompt": "a Zulu warrior", "attribute": "race", "label": "fixed"},
    {"prompt": "five engineers", "attribute": "gender", "label": "group"},
    {
        "prompt": "(nurse:1.2)",
        "attribute": "gender",
        "label": "syntax",
        "expected": "({v} nurse:1.2)",
    },
]


def test_labels_are_compared_with_the_result(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, LABELLED)), encoding="utf-8")
    (part,) = prompt_rules.measure([path])
    right = values(part, "right")
    assert right["open"] == 0.5
    assert values(part, "placed")["open"] == 1
    assert {right[label] for label in ("fixed", "group", "syntax")} == {1.0}
    assert values(part, "left_unchanged")["open, gender: written"] == 0.5
    path.write_text('{"prompt": "a nurse"}', encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r"mine.jsonl:1"):
        prompt_rules.read(path)


@pytest.mark.parametrize(("name", "limit"), [("one", 1), ("shared_counter", 1), ("four", 4)])
def test_evenness_across_workers_depends_on_their_memory(name: str, limit: int) -> None:
    """Each memory is off by at most one image, as with an odd number of requests."""
    arranged = getattr(workers, name)
    apart = [workers.apart(arranged(np.random.default_rng(seed)), 21) for seed in range(5)]
    assert max(apart) <= limit
    assert all(number % 2 == 1 for number in apart)
