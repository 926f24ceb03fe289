"""A suite of several attributes on embeddings that have labels of one: measured, and the others named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from vldebias.data import Embeddings, Labels, save_embeddings
from vldebias.errors import InvalidInputError
from vldebias.evaluation.run import run_suite
from vldebias.evaluation.task import Options, Suite, load_suite
from vldebias.progress import Progress

pytestmark = pytest.mark.usefixtures("no_charts")

SUITE = load_suite("fairface")
SUITE = SUITE.model_copy(update={"tasks": tuple(task.model_copy(update={"k": [10]}) for task in SUITE.tasks)})
RNG = np.random.default_rng(0)


def brought(folder: Path, suite: Suite, **labels: Labels) -> Options:
    """Embeddings with these labels, and the texts that the suite asks for."""
    images = Embeddings(RNG.normal(size=(300, 16)).astype(np.float32), tuple(map(str, range(300))), labels)
    texts = {text: torch.from_numpy(RNG.normal(size=16)) for text in suite.texts()}
    file = save_embeddings(folder / "mine.npz", images, texts)
    return Options(out=folder / "out", embeddings=file, methods=("cali",), resamples=10)


def column(*names: str) -> Labels:
    return Labels(RNG.integers(0, len(names), 300), names)


GENDER = column("Male", "Female")


def test_what_is_there_is_measured_and_what_is_left_out_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(Progress, "say", lambda self, text: said.append(text))
    result = run_suite(SUITE, brought(tmp_path, SUITE, gender=GENDER))
    assert {row.task for row in result.rows} == {"fairface gender"}
    assert {"none", "cali", "random"} == {row.method for row in result.rows}
    (named,) = [text for text in said if "left out" in text]
    assert "race, age, gender x race, gender x age" in named


def test_intersections_need_both_of_their_columns_and_other_classes_are_measured(tmp_path: Path) -> None:
    ages = column(*SUITE.tasks[0].classes["age"])
    options = brought(tmp_path, SUITE, gender=GENDER, age=ages)
    result = run_suite(SUITE, options)
    assert {row.task for row in result.rows} == {"fairface gender", "fairface age", "fairface gender x age"}
    assert {row.task for row in result.rows if row.metric == "accuracy"} == {"fairface gender", "fairface age"}


def test_none_of_the_attributes_is_a_mistake_that_is_explained(tmp_path: Path) -> None:
    options = brought(tmp_path, SUITE, sex=GENDER)
    with pytest.raises(InvalidInputError, match=r"gender, .*got \['sex'\]"):
        run_suite(SUITE, options)
