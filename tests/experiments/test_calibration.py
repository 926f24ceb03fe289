"""Test the counts from which `vldebias audit` predicts the embedded models' images."""

import pandas as pd
import pytest

from apps.audit.counts import FOLDER, MINIATURE
from eval.experiments.calibration import IMAGES, generated, values_seen
from vldebias.judge.judges import MiniatureJudge
from vldebias.miniature import load_pipeline
from vldebias.prompts import load_prompts

PROFESSIONS = load_prompts("professions-gender")


@pytest.fixture(scope="module")
def counts() -> pd.DataFrame:
    return pd.read_csv(FOLDER / MINIATURE.file, comment="#", index_col="prompt")


def test_every_profession_is_counted(counts: pd.DataFrame) -> None:
    names = (*PROFESSIONS.class_names, *PROFESSIONS.held_out_class_names)
    assert tuple(counts.index) == names
    known = counts.male + counts.female
    assert known.between(1, IMAGES).all()
    assert known.mean() > 0.9 * IMAGES, "few images show nobody of known gender"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["actor", "author"])
def test_the_counts_match_what_the_embedded_pipeline_generates(
    counts: pd.DataFrame, name: str
) -> None:
    pipe = load_pipeline()
    pipe.set_progress_bar_config(disable=True)
    prompt = PROFESSIONS.classes[PROFESSIONS.class_names.index(name)]
    values = values_seen(MiniatureJudge().ready(), generated(pipe, prompt))
    for value in ("male", "female"):
        # On a different CPU, an image may cross the threshold to unknown.
        assert abs(values.count(value) - counts.loc[name, value]) <= 1
