"""Test `vldebias eval vqa`: answers in tables, and answers of a model."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from apps.captions.answers import evaluate_vqa
from tests.cli.conftest import call
from tests.judge.test_judges import judge_of, parts  # noqa: F401  (a fixture)
from vldebias.errors import InvalidInputError, SuspectInputWarning
from vldebias.judge.judges import Judge
from vldebias.report.result import Result

TELL = "Can't be determined"


def shares(result: Result, task: str = "vqa") -> dict[str, float]:
    rows = [row for row in result.rows if row.task == task and row.metric != "said_gap"]
    return {f"{row.metric.removeprefix('said_')} {row.subset}".strip(): row.value for row in rows}


def test_pronouns_answer_as_in_visogender() -> None:
    result = evaluate_vqa(
        {
            "image": range(4),
            "label": ["masculine", "feminine", "feminine", "masculine"],
            "answer": ["his", "his", "her", "their"],
        }
    )
    found = shares(result)
    assert found["right"] == 0.5
    assert found["wrong female"] == 0.5
    assert found["none male"] == 0.5


def test_options_are_chosen_by_number_letter_or_text_as_in_bbq(tmp_path: Path) -> None:
    options = {"ans0": "The grandfather", "ans1": "The grandmother", "ans2": TELL}
    rows = [
        {"label": 0, "answer": "1", "context_condition": "disambig"},
        {"label": 1, "answer": "B", "context_condition": "disambig"},
        {"label": 1, "answer": "C. Can't be determined", "context_condition": "disambig"},
        {"label": 2, "answer": "(A)", "context_condition": "ambig"},
        {"label": 2, "answer": TELL, "context_condition": "ambig"},
        {"label": 1, "answer": "A grandmother", "context_condition": "disambig"},
    ]
    file = tmp_path / "bbq.jsonl"
    lines = [
        {"image": "a.png", "question": f"Who {n}?", **options, **row} for n, row in enumerate(rows)
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    result = evaluate_vqa(file)
    assert shares(result)["wrong male"] == 1
    assert shares(result)["none female"] == pytest.approx(1 / 3)
    assert shares(result, "vqa, unclear")["unclear_said"] == 0.5


def test_answers_that_name_no_value_are_reported_as_for_pairs() -> None:
    table = {
        "image": range(4),
        "label": ["male", "male", "female", "female"],
        "answer": ["Doctor", "doctor", "nurse", "doctor"],
    }
    with pytest.warns(SuspectInputWarning, match="4 of 4 answers name no gender, such as 'Doctor'"):
        assert shares(evaluate_vqa(table))["several"] == 1


def test_an_answer_that_never_came_is_left_out() -> None:
    table = {"image": range(4), "label": ["female"] * 4, "answer": ["a man", None, "", "N/A"]}
    result = evaluate_vqa(table)
    assert shares(result)["wrong"] == shares(result)["none"] == 0.5  # "N/A" is an answer
    assert result.row("vqa", "said_wrong", "none").n == {"images": 2}
    note = "2 of 4 images have no answer, such as '1'; left out."
    assert note in result.provenance[0].settings["advice"]


def test_the_command_shows_wrong_answers_and_the_word_that_was_read(tmp_path: Path) -> None:
    rows = ["image,answer,label", "a.png,It is a man.,female", "b.png,cannot tell,male"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    out = tmp_path / "out"
    call("eval vqa", str(tmp_path / "t.csv"), "--out", str(out))
    page = (out / "index.html").read_text()
    assert "Wrong answers" in page
    assert "<mark>man</mark>" in page
    assert (out / "answers.csv").read_text().startswith("image,reply,read as,label,answer")


def test_the_key_is_not_taken_for_the_models_answer() -> None:
    table = {"image": range(4), "A": ["a man"] * 4, "B": ["a woman"] * 4, "C": [TELL] * 4}
    table |= {"answer": ["A", "B", "A", "B"], "prediction": ["A", "(A)", "C", "B. a woman"]}
    with pytest.raises(InvalidInputError, match=r"\['answer', 'prediction'\]; choose the model's"):
        evaluate_vqa(table)
    found = shares(evaluate_vqa(table, columns={"answer": "prediction", "label": "answer"}))
    assert (found["right"], found["wrong female"], found["none male"]) == (0.5, 0.5, 0.5)


def test_a_number_of_many_digits_is_no_option() -> None:
    table = {"image": [1, 2], "label": ["male", "female"], "answer": ["9" * 5000, "a woman"]}
    assert shares(evaluate_vqa(table | {"options": [["a man", "a woman"]] * 2}))["right"] == 0.5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a table of three images, dark for women, and without an answer."""
    rows = ["image,label"]
    for name, label, level in (("001", "female", 0), ("b", "male", 200), ("c", "unclear", 90)):
        Image.new("RGB", (16, 16), (level,) * 3).save(tmp_path / f"{name}.png")
        rows.append(f"{name}.png,{label}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    return tmp_path


def test_a_judge_is_asked_about_clear_and_unclear_images(folder: Path) -> None:
    chances_of_level = {0: (0.1, 0.8), 200: (0.3, 0.2), 90: (0.6, 0.1)}

    def answers(images: list[Image.Image]) -> dict[str, np.ndarray]:
        return {"gender": np.array([chances_of_level[i.getpixel((0, 0))[0]] for i in images])}

    judge = Judge("painter", {"gender": ("male", "female")}, answers, "mark")
    result = evaluate_vqa(folder / "labels.csv", judge=judge)
    found = shares(result)
    assert found["right female"] == 1
    assert found["none male"] == 1  # .5 for "cannot tell"
    (lean,) = result.provenance[-1].settings["advice"]
    assert lean.startswith("Of 1 unclear image, 100.0%")
    with pytest.raises(InvalidInputError, match="judge painter: expected 'age', got gender"):
        evaluate_vqa(folder / "labels.csv", judge=judge, attribute="age")
    (folder / "b.png").unlink()
    with pytest.raises(InvalidInputError, match=r"b\.png: expected an image"):
        evaluate_vqa(folder / "labels.csv", judge=judge)


def test_the_command_asks_an_image_text_model(
    folder: Path,
    parts,  # noqa: F811
) -> None:
    for part in parts:
        part.save_pretrained(folder / "model")
    table, model, out = map(str, (folder / "labels.csv", folder / "model", folder / "out"))
    call("eval vqa", table, "--model", model, "--out", out)
    result = Result.read(folder / "out" / "result.json")
    images = [Image.open(folder / f"{name}.png") for name in ("001", "b")]
    rows = judge_of(*parts).predict(images)["gender"]
    rows = np.column_stack([rows, 1 - rows.sum(1)])
    expected = np.mean(rows.argmax(1) == [1, 0])
    assert shares(result)["right"] == expected
