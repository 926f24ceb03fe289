"""Judgements: every image is asked about once, whatever happens in between; a changed image is asked about again."""

import json
from pathlib import Path

import numpy as np
import pytest
from drawn_by_hand import UNCLEAR, Reader, Shows, chosen, paint, repaint
from PIL import Image

from vldebias.data import UNKNOWN, cross
from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing import DrawnSet
from vldebias.evaluation.judges import judge_images, labels_of


def few(folder: Path) -> tuple[DrawnSet, Shows]:
    """Two images of each prompt and variant."""
    return paint(folder, np.random.default_rng(0), stated=False, images=2, seeds=[0])


def test_answers_come_in_the_order_of_the_images_and_are_kept(tmp_path: Path) -> None:
    drawn, shows = few(tmp_path)
    judge = Reader()
    found = judge_images(judge, drawn, batch_size=7)
    assert judge.asked == len(drawn)
    assert found["age"].argmax(1).tolist() == [shows[image.path][1] for image in drawn]
    assert found["job"].argmax(1).tolist() == [shows[image.path][2] for image in drawn]
    again = judge_images(judge, drawn)
    assert judge.asked == len(drawn)
    assert all(np.array_equal(again[attribute], found[attribute]) for attribute in judge.names)
    part = chosen(drawn, variant="cali", part="unseen")
    places = [list(drawn).index(image) for image in part]
    np.testing.assert_array_equal(judge_images(judge, part)["gender"], found["gender"][places])


def test_an_image_that_was_drawn_anew_is_judged_anew(tmp_path: Path) -> None:
    drawn, shows = few(tmp_path)
    judge = Reader()
    before = judge_images(judge, drawn)
    gender, age, job = shows[drawn.images[3].path]
    repaint(drawn, drawn.images[3], (gender, (age + 1) % 3, job))
    after = judge_images(judge, drawn)
    assert judge.asked == len(drawn) + 1
    assert after["age"][3].argmax() == (age + 1) % 3
    np.testing.assert_array_equal(np.delete(after["age"], 3, 0), np.delete(before["age"], 3, 0))


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    """Half a line at the end, as a kill leaves it, costs one image and damages no other line."""
    drawn, _ = few(tmp_path)
    judge = Reader()
    before = judge_images(judge, drawn, batch_size=10)
    (path,) = (tmp_path / "judgements").glob("*/answers.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:20]) + lines[20][:30])
    after = judge_images(judge, drawn)
    assert judge.asked == 2 * len(drawn) - 20
    assert all(np.array_equal(before[attribute], after[attribute]) for attribute in judge.names)
    path.write_text("[1]\n" + path.read_text())
    judge_images(judge, drawn)
    assert judge.asked == 2 * len(drawn) - 20
    assert len([line for line in path.read_text().splitlines() if line.startswith('{"image"')]) == len(drawn) + 1
    assert json.loads(lines[0]).keys() == {"image", "sha", "answer"}


def test_labels_are_unknown_where_the_judge_is_not_sure_and_cross(tmp_path: Path) -> None:
    drawn, shows = few(tmp_path)
    judge = Reader()
    labels = labels_of(judge, judge_images(judge, drawn), ["gender", "gender x age"], 0.8)
    genders = [shows[image.path][0] for image in drawn]
    assert labels["gender"].codes.tolist() == [UNKNOWN if g == UNCLEAR else g for g in genders]
    assert set(labels) == {"gender", "gender x age"}
    ages = labels_of(judge, judge_images(judge, drawn), ["age"], 0.8)["age"]
    np.testing.assert_array_equal(labels["gender x age"].codes, cross(labels["gender"], ages).codes)
    assert labels["gender x age"].names[4] == "female/old"
    unsure = labels_of(judge, judge_images(judge, drawn), ["gender"], 0.0)["gender"]
    assert unsure.codes.tolist() == [0 if g == UNCLEAR else g for g in genders]


def test_missing_images_are_counted(tmp_path: Path) -> None:
    drawn, _ = few(tmp_path)
    for image in drawn.images[:2]:
        drawn.path(image).unlink()
    message = f"2 of {len(drawn)} images are missing, such as none/.*draw again, which goes on where it stopped"
    with pytest.raises(InvalidInputError, match=message):
        judge_images(Reader(), drawn)


def test_an_image_that_changes_meanwhile_is_an_error(tmp_path: Path) -> None:
    drawn, _ = few(tmp_path)

    class Vandal(Reader):
        def predict(self, images: list[Image.Image]) -> dict[str, np.ndarray]:
            for path in (tmp_path / "judgements").glob("*/*.jsonl"):
                path.write_text("")  # nothing that was asked before is there any more
            return super().predict(images)

    with pytest.raises(InvalidInputError, match="changed while it was judged; run again"):
        judge_images(Vandal(), drawn, batch_size=len(drawn) // 2)
