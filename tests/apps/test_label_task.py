"""Test human labels for generated images: the sample that people label, and the resulting
figures."""

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from apps.label.people import PeopleTask
from apps.shares.answers import AnnotationLog
from vldebias.errors import InvalidInputError
from vldebias.judge.plan import GeneratedImages
from vldebias.study.running import run_suite
from vldebias.study.suite import load_suite
from vldebias.utils.options import Options
from vldebias.utils.progress import Progress

MODEL = {"pipeline": "Tiny", "fingerprint": None}


@pytest.fixture
def task() -> PeopleTask:
    """Return the suite's task, with two images per profession."""
    (by_gender, _) = load_suite("human").tasks
    assert isinstance(by_gender, PeopleTask)
    return by_gender.model_copy(update={"images": 2, "resamples": 20})


@pytest.fixture
def sample(task: PeopleTask, tmp_path: Path) -> GeneratedImages:
    """Create the image folder without pixels, because only answers are measured."""
    return task.generation.plan(MODEL).settle(tmp_path / "images")


def test_the_sample_includes_unseen_professions_with_and_without_the_method(
    sample: GeneratedImages,
) -> None:
    assert len(sample) == 20 * 2 * 2
    assert {image.variant for image in sample} == {"none", "cali"}
    assert {image.part for image in sample} == {"unseen"}
    assert {image.stated for image in sample} == {None}
    noise: dict[str, list[int]] = {"none": [], "cali": []}
    for image in sample:
        noise[image.variant].append(image.noise)
    assert noise["none"] == noise["cali"]


def test_without_answers_the_command_that_opens_the_page_is_shown(
    task: PeopleTask, sample: GeneratedImages, tmp_path: Path
) -> None:
    shown = StringIO()
    progress = Progress(Console(file=shown, width=300))
    command = task.label_command(tmp_path / "out")
    log = tmp_path / "answers.jsonl"
    results = task.measure(sample.folder, [log], command=command, progress=progress)
    assert results == []
    assert command in shown.getvalue()
    assert "out/images/gender-by-people --attribute gender" in command


def test_answers_yield_discrepancy_and_agreement(
    task: PeopleTask, sample: GeneratedImages, tmp_path: Path
) -> None:
    """Without the method, all images show men. With it, half of them show women. The gaps are
    sqrt(1/2) and 0."""
    log = AnnotationLog(tmp_path / "answers.jsonl")
    for number, image in enumerate(sample):
        value = "male"
        if image.variant == "cali" and number % 2:
            value = "female"
        for annotator in ("ada", "ben"):
            log.append(image.path, annotator, "gender", value)
    (result,) = task.measure(sample.folder, [log.path, tmp_path / "none.jsonl"])
    value_of = {(row.metric, row.method): row.value for row in result.rows if row.subset == ""}
    assert value_of["discrepancy", "none"] == pytest.approx(np.sqrt(0.5))
    assert value_of["discrepancy", "cali"] == pytest.approx(0)
    (agreement,) = [row.value for row in result.rows if row.metric == "percent_agreement"]
    assert agreement == pytest.approx(1)


def test_without_a_pipeline_and_labels_the_suite_lists_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="--pipeline"):
        run_suite("human", Options(out=tmp_path))
    with pytest.raises(InvalidInputError, match="--image-dir"):
        run_suite("human", Options(out=tmp_path, label_file=(tmp_path / "answers.jsonl",)))
