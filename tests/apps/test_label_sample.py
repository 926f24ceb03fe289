"""Test a study's sample: how it is selected by judge answers, stored, extended, and evaluated."""

from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from label_parts import draw

from apps.label import sample as samples
from apps.label.session import open_study
from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.judge.scores import judge_images
from vldebias.metrics import corrected_shares

SETS = 100


def read(images: Any) -> dict[str, np.ndarray]:
    """Label every image as a man, with less confidence for every third image, and every seventh as
    unknown."""
    red = np.array([image.getpixel((0, 0))[0] for image in images])
    sure = np.where(red % 7 == 0, 0.5, np.where(red % 3 == 0, 0.82, 0.99))
    return {"gender": np.stack([sure, 1 - sure], axis=1)}


READER = SimpleNamespace(
    name="reader", fingerprint="1", names={"gender": ("male", "female")}, predict=read
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return 60 unseen images in two variants that a judge has labelled."""
    generated = draw(tmp_path / "images", images=15)
    judge_images(READER, generated)
    return tmp_path / "images"


def answer_all(study: Any, name: str, choice: int = 1) -> None:
    place = study.start(name)
    while place.step is not None:
        place = study.answer(place, choice)


def test_the_sample_is_stratified_by_judge_answer_and_answers_store_their_weights(
    folder: Path,
) -> None:
    study = open_study(folder, ["gender"], most=20)
    weights = study.folder.weights
    assert len(study.folder.records) == len(weights) == 20
    assert sum(weights.values()) == pytest.approx(60)
    assert len(set(weights.values())) > 1
    answer_all(study, "ada")
    answers = study.log.read()
    assert {answer.image: answer.weight for answer in answers} == weights
    # The random numbers are stored.
    reopened = open_study(folder, ["gender"], most=20, seed=5)
    assert reopened.folder.weights == weights
    assert reopened.start("ada").step is None


def test_a_larger_sample_extends_the_first_and_gives_its_answers_smaller_weights(
    folder: Path,
) -> None:
    answer_all(open_study(folder, ["gender"], most=20), "ada")
    study = open_study(folder, ["gender"], most=40)
    assert (study.progress(), len(study.folder.records)) == ({"ada": 20}, 40)
    answers = study.log.answers().values()
    assert {
        answer.image: answer.weight for answer in answers
    }.items() <= study.folder.weights.items()
    lines = len(study.log.read())
    # A sample never shrinks.
    assert len(open_study(folder, ["gender"], most=30).folder.records) == 40
    assert len(study.log.read()) == lines  # the message appears once more
    complete = open_study(folder, ["gender"], most=None)
    assert set(complete.folder.weights.values()) == {1.0}


def test_prompts_take_turns_without_a_judge(tmp_path: Path) -> None:
    draw(tmp_path, images=15)
    with pytest.warns(UserWarning, match="no judge has labelled gender"):
        study = open_study(tmp_path, ["gender"], most=20)
    assert not study.folder.weights
    assert not (tmp_path / "answers.sample.json").exists()
    answer_all(study, "ada")
    assert study.log.read()[0].weight is None
    judge_images(READER, draw(tmp_path, images=15))
    # A sample that was started without a judge continues without one.
    assert not open_study(tmp_path, ["gender"], most=20).folder.weights


def test_images_have_no_weights_if_prompts_take_turns_or_all_images_are_labelled(
    folder: Path,
) -> None:
    for options in ({"most": 20, "sample": "turn"}, {"most": None}, {"most": 60}):
        assert not open_study(folder, ["gender"], **options).folder.weights


@refused(
    ({"attributes": ["age"], "choices": ["young,old"]}, "for gender"),
    ({"attributes": ["gender"], "sample": "turn"}, "for gender"),
    ({"attributes": ["gender"], "sample": "all"}, "'all'"),
)
def test_a_started_sample_cannot_be_changed_to_a_different_kind(
    folder: Path, options: dict[str, Any]
) -> None:
    open_study(folder, ["gender"], most=20)
    open_study(folder, **options)


@refused(
    (".png", ".jpg", "of its images are not in"),
    ('"format_version":1', '"format_version":2', r"sample\.json has format 2; this"),
)
def test_a_sample_of_missing_images_or_a_newer_format_is_refused(
    folder: Path, old: str, new: str
) -> None:
    sample = open_study(folder, ["gender"], most=20).log.path.with_suffix(samples.ENDING)
    sample.write_text(sample.read_text().replace(old, new))
    open_study(folder, ["gender"], most=20)


def world(rng: Any, n: int = 800) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the truth, a judge's answers, and its confidence. The judge is less sure about women,
    and mislabels some of them as men."""
    truth = rng.choice(2, size=n, p=(0.4, 0.6))
    sure = np.where(rng.random(n) < np.where(truth == 1, 0.3, 0.1), 0.6, 0.99)
    wrong = rng.random(n) < np.where(truth == 1, np.where(sure > 0.9, 0.02, 0.6), 0.02)
    judged = np.where(wrong, 1 - truth, truth)
    return truth, np.where(rng.random(n) < 0.05, 2, judged), sure


def sampled(
    judged: np.ndarray, sure: np.ndarray, labels: int, seed: int = 0, within: Any = ""
) -> Any:
    images = pd.DataFrame(
        {"path": range(len(judged)), "within": within, "said": judged, "sure": sure}
    )
    images["path"] = images.path.astype(str) + ".png"
    return samples.LabelSample.draw(images, labels, attribute="gender", judge="one", seed=seed)


def test_every_image_is_sampled_with_the_probability_that_its_weight_states() -> None:
    _, judged, sure = world(np.random.default_rng(0), 120)
    weights = {}
    hits = np.zeros(120)
    for seed in range(SETS):
        sample = sampled(judged, sure, 30, seed)
        weights |= sample.weights
        hits[[int(path[:-4]) for path in sample.weights]] += 1
    chance = np.array([1 / weights[f"{i}.png"] for i in range(120)])
    # Some images are sampled far more often, so the test can fail.
    assert chance.max() > 2 * chance.min()
    assert (np.abs(hits / SETS - chance) <= 4 * np.sqrt(chance * (1 - chance) / SETS)).all()


def test_weighted_estimates_are_unbiased_and_precise_unlike_unweighted_ones() -> None:
    rng = np.random.default_rng(1)
    rows = []
    for seed in range(SETS):
        truth, judged, sure = world(rng)
        sample_weights = sampled(judged, sure, 100, seed).weights
        weights = np.array([sample_weights.get(f"{i}.png", 0.0) for i in range(len(truth))])
        labelled = weights > 0
        estimate = corrected_shares(judged, np.where(labelled, truth, -1), 2, weights=weights)
        holds_truth = estimate.figures(2)[1].low <= 0.6 <= estimate.figures(2)[1].high
        plain = corrected_shares(
            judged, np.where(rng.permutation(len(truth)) < 100, truth, -1), 2
        ).shares[1]
        rows.append((estimate.shares[1], plain, truth[labelled].mean(), holds_truth))
    corrected, plain, unweighted, holds_truth = np.array(rows).T
    # 60% of the population are women. Means over SETS estimates vary by std / sqrt(SETS). A 95%
    # interval should cover the truth in 91 to 99 of 100 sets.
    for values in (corrected, plain):
        assert abs(values.mean() - 0.6) < 4 * values.std() / SETS**0.5
    assert abs(unweighted.mean() - 0.6) > 5 * unweighted.std() / SETS**0.5
    assert 0.91 <= holds_truth.mean() <= 0.99
    assert corrected.std() < 0.9 * plain.std()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 90), st.integers(0, 40), st.integers(0, 5))
def test_a_larger_sample_contains_the_smaller_one_and_weights_add_up(
    labels: int, added: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    _, judged, sure = world(rng, 100)
    within = rng.choice(["none, unseen", "cali, unseen"], 100)
    small = sampled(judged, sure, labels, seed, within)
    large = small.model_copy(update={"labels": labels + added})
    assert set(small.weights) <= set(large.weights)
    assert len(small.weights) == labels
    assert len(large.weights) == min(labels + added, 100)
    assert sum(small.weights.values()) == pytest.approx(100)
    assert sorted(chain(*small.strata)) == sorted(f"{i}.png" for i in range(100))


def test_a_sample_too_small_to_compare_methods_is_rejected_with_the_required_size(
    folder: Path,
) -> None:
    with pytest.raises(InvalidInputError, match="no prompt has an image from every") as error:
        open_study(folder, ["gender"], most=2)
    assert not (folder / "answers.sample.json").exists()
    needed = int(str(error.value).split("at least ")[1].split()[0])
    study = open_study(folder, ["gender"], most=needed)
    methods_of_prompt: dict[str, set[str]] = {}
    for record in study.folder.records:
        methods_of_prompt.setdefault(record.prompt, set()).add(record.variant)
    assert {"none", "cali"} in methods_of_prompt.values()
