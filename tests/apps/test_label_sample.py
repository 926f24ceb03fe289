"""The sample of a study: drawn by the judge's answers, kept, made larger, and what its answers say."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from label_parts import draw

from tests.refusals import refused
from vldebias.cli.apps import page
from vldebias.evaluation.answers import read_log
from vldebias.evaluation.judges import judge_images

label, samples = page("label"), page("label.sample")


def read(images: Any) -> dict[str, np.ndarray]:
    """Calls every image a man, of every third one it is less sure, and of every seventh it cannot tell."""
    red = np.array([image.getpixel((0, 0))[0] for image in images])
    sure = np.where(red % 7 == 0, 0.5, np.where(red % 3 == 0, 0.82, 0.99))
    return {"gender": np.stack([sure, 1 - sure], axis=1)}


READER = SimpleNamespace(name="reader", fingerprint="1", names={"gender": ("male", "female")}, predict=read)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 unseen images of two variants that a judge has read."""
    drawn = draw(tmp_path / "images", images=15)
    judge_images(READER, drawn)
    return tmp_path / "images"


def answer_all(study: Any, name: str, choice: int = 1) -> None:
    place = study.start(name)
    while place.step is not None:
        place = study.answer(place, choice)


def test_it_is_drawn_by_the_judge_and_answers_keep_their_weights(folder: Path) -> None:
    study = label.open_study(folder, ["gender"], most=20)
    weights = study.folder.weights
    assert len(study.folder.records) == len(weights) == 20
    assert sum(weights.values()) == pytest.approx(60)
    assert len(set(weights.values())) > 1
    answer_all(study, "ada")
    answers = read_log(study.log.path)
    assert {one.image: one.weight for one in answers} == weights
    again = label.open_study(folder, ["gender"], most=20, seed=5)  # the lot is cast
    assert again.folder.weights == weights
    assert again.start("ada").step is None


def test_a_larger_one_goes_on_with_the_first_whose_answers_count_less(folder: Path) -> None:
    answer_all(label.open_study(folder, ["gender"], most=20), "ada")
    study = label.open_study(folder, ["gender"], most=40)
    assert study.progress() == {"ada": 20}
    assert len(study.folder.records) == 40
    kept = study.log.answers().values()
    assert {one.image: one.weight for one in kept}.items() <= study.folder.weights.items()
    lines = len(read_log(study.log.path))
    assert len(label.open_study(folder, ["gender"], most=30).folder.records) == 40  # never smaller
    assert len(read_log(study.log.path)) == lines  # said again once
    every = label.open_study(folder, ["gender"], most=None)
    assert set(every.folder.weights.values()) == {1.0}


def test_without_a_judge_prompts_come_in_turn(tmp_path: Path) -> None:
    draw(tmp_path, images=15)
    study = label.open_study(tmp_path, ["gender"], most=20)
    assert not study.folder.weights
    assert not (tmp_path / "answers.sample.json").exists()
    answer_all(study, "ada")
    assert read_log(study.log.path)[0].weight is None
    judge_images(READER, draw(tmp_path, images=15))
    assert not label.open_study(tmp_path, ["gender"], most=20).folder.weights  # begun in turn, goes on in turn
    with pytest.raises(samples.InvalidInputError, match="answers without weights"):
        label.open_study(tmp_path, ["gender"], most=20, sample="judge")


@refused(
    (
        {"sample": "judge", "most": 9, "attributes": ["age"], "choices": ["young,old"]},
        "no judge has answered about age .*eval",
    ),
    ({"sample": "all"}, "--sample: expected one of auto, judge, turn, got 'all'"),
    ({"sample": "judge", "most": None}, "all 60 images"),
)
def test_what_cannot_be_drawn_is_refused(folder: Path, options: dict[str, Any]) -> None:
    label.open_study(folder, **{"attributes": ["gender"], **options})


@refused(
    ({"attributes": ["age"], "choices": ["young,old"]}, "is for gender"),
    ({"attributes": ["gender"], "sample": "turn"}, "made with a judge"),
)
def test_a_sample_that_was_begun_is_not_mixed(folder: Path, options: dict[str, Any]) -> None:
    label.open_study(folder, ["gender"], most=20)
    label.open_study(folder, **options)


def test_images_that_went_are_named(folder: Path) -> None:
    study = label.open_study(folder, ["gender"], most=20)
    kept = study.log.path.with_suffix(samples.ENDING)
    kept.write_text(kept.read_text().replace(".png", ".jpg"))
    with pytest.raises(samples.InvalidInputError, match="of its images are not in"):
        label.open_study(folder, ["gender"], most=20)
