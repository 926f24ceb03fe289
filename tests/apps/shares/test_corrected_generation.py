"""Test the figures for generated images that a judge labelled completely and people labelled in
part."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.shares.answers import AnnotationLog
from apps.shares.task import SharesTask
from tests.study.painted_by_hand import GENDERS, Reader, paint, task
from vldebias.judge.stored import last_judgements
from vldebias.study.inputs import Inputs
from vldebias.utils.options import Options

# There are only a few labels.
pytestmark = pytest.mark.filterwarnings("ignore:people:vldebias.errors.SuspectInputWarning")


class Wrong(Reader):
    """Mistake every other image that does not show a man for one."""

    def predict(self, images: Any) -> dict[str, np.ndarray]:
        probabilities = super().predict(images)
        probabilities["gender"][::2] = [0.9, 0.1]
        return probabilities


def test_a_weighted_sample_is_corrected_by_its_weights(tmp_path: Path) -> None:
    """People label all images that the judge labelled as women and a fifth of the others, so
    unweighted answers would be biased."""
    folder, shows = paint(tmp_path / "drawn", np.random.default_rng(3), images=20)
    truth = {path: (*GENDERS, "cannot tell")[shown[0]] for path, shown in shows.items()}
    task().measure(folder.folder, Wrong())
    _, judgements, _ = last_judgements(folder, "gender", GENDERS)
    judged = {image.path: judgement for image, judgement in zip(folder, judgements, strict=True)}
    sampled_images = [
        (i, 1 if judged[i.path] == "female" else 5)
        for i in folder
        if i.stated is None and i.part == "unseen"
    ]
    log = AnnotationLog(tmp_path / "a.jsonl")
    for image, weight in (pair for n, pair in enumerate(sampled_images) if n % pair[1] == 0):
        for annotator in ("ada", "ben"):
            log.append(image.path, annotator, "gender", truth[image.path], weight=weight)
    human = SharesTask(name="gender", title="t", attribute="gender", values=GENDERS, resamples=50)
    parts = human.measured(
        human.prepare(
            Inputs(Options(out=tmp_path, label_file=(log.path,), image_dir=folder.folder))
        )
    )
    assert [part.provenance.task for part in parts] == ["gender", "gender corrected"]
    rows = {(r.task, r.metric, r.method, r.subset): r for r in parts[0].rows + parts[1].rows}
    chosen = [i.path for i, _ in sampled_images if i.variant == "none"]
    share = np.mean([truth[path] == "male" for path in chosen])
    row = rows["gender corrected", "corrected_share", "none", "male"]
    assert row.interval[0] <= share <= row.interval[1]
    assert row.n["images"] == len(chosen)
    assert rows["gender", "share", "none", "mean over prompts: male"].value == pytest.approx(
        share, abs=0.12
    )
