"""Test the pilot of an audit: the number of images for an interval width, the prompts, the counts,
and resuming."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vldebias
from apps.audit.pilot import (
    MEASURED,
    MOST_PROMPTS,
    images_to_reach,
    measure_prompts,
    pilot_prompts,
)
from vldebias.errors import InvalidInputError
from vldebias.hosts.loading import Loaded
from vldebias.judge.judges import Judge
from vldebias.measure.resampling import images_for_width, widest_interval, wilson_interval
from vldebias.projection.cross_attention_edit import MIN_CLARITY
from vldebias.prompts import load_prompts
from vldebias.utils.options import Options

GENDER = load_prompts("gender")


def width(hits: float, n: int) -> float:
    low, high = wilson_interval(hits, n)
    return high - low


@pytest.mark.parametrize("wished", [0.02, 0.1, 0.25, 0.6])
def test_the_number_of_images_is_the_smallest_that_gives_the_width(wished: float) -> None:
    fewest, most = images_for_width(wished)
    assert width(most / 2, most) <= wished < width((most - 1) / 2, most - 1)
    assert width(0, fewest) <= wished
    assert fewest == 1 or wished < width(0, fewest - 1)
    assert widest_interval(most) == pytest.approx(width(most / 2, most))


@pytest.mark.parametrize("wished", [0, 1, -0.1, 3])
def test_a_width_must_be_a_proportion(wished: float) -> None:
    with pytest.raises(InvalidInputError, match="between 0 and 1"):
        images_for_width(wished)


def test_a_pilot_uses_open_prompts_about_one_person_spaced_over_the_list() -> None:
    prompts = ["a nurse", "a red chair", "a female doctor", "A nurse", "two pilots", "a pilot"]
    assert pilot_prompts(prompts, GENDER) == ["a nurse", "a pilot"]
    many = [f"a nurse with {i} cups" for i in range(4 * MOST_PROMPTS)]
    assert pilot_prompts(many, GENDER) == many[::4]
    with pytest.raises(InvalidInputError, match="none of 1 prompts"):
        pilot_prompts(["a red chair"], GENDER)


@pytest.fixture(scope="module")
def pipe() -> Loaded:
    return vldebias.load_host(pipeline="miniature")


PROMPTS = ["A photo of a nurse.", "A photo of a mechanic."]


def test_counts_come_from_the_judge_and_images_are_not_generated_again(
    pipe: Loaded, tmp_path: Path
) -> None:
    judged = []

    def predict(images: Sequence[Any]) -> dict[str, np.ndarray]:
        judged.append(len(images))
        # Three out of four images show women, and the last one cannot be determined.
        rows = np.tile([[0.05, 0.95], [0.1, 0.9], [0.0, 1.0], [0.5, 0.4]], (len(images) // 4, 1))
        return {"gender": rows}

    judge = Judge("stub", {"gender": ("male", "female")}, predict, "1")

    def measured() -> pd.DataFrame:
        options = Options(out=tmp_path, steps=2)
        pilot = measure_prompts(pipe, PROMPTS, "gender", options, images=4, judge=judge)
        return pilot.counts

    counts = measured()
    assert counts[["prompt", "male", "female"]].values.tolist() == [[p, 0, 3] for p in PROMPTS]
    assert (counts.model == "miniature").all()
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")}
    assert len(times) == 8
    next(iter(times)).unlink()  # as left by an interrupted run
    assert measured().equals(counts)
    now = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.png")}
    assert [path for path in times if now[path] != times[path]] == [next(iter(times))]
    assert judged == [8], "judged images are not judged again"

    result = vldebias.audit(PROMPTS, "gender", pipe=pipe, counts=counts)
    assert "judged images of miniature (guidance 3)" in result.provenance[0].settings["counts"]
    assert {row.value for row in result.rows if row.metric == "counted_share"} == {0.0}

    options = Options(out=tmp_path, steps=2)
    pilot = measure_prompts(pipe, PROMPTS, "gender", options, images=8, judge=judge)
    assert judged == [8, 8], "only the additional images are generated and judged"
    assert pilot.counts["female"].tolist() == [6, 6]
    answers = pilot.images[PROMPTS[0]]
    assert [image.answer for image in answers].count("unclear") == 2
    assert all((tmp_path / image.path).is_file() for image in answers)
    assert [image.seed for image in answers] == list(range(8))
    assert [image.probability for image in answers[:4]] == [0.95, 0.9, 1.0, 0.5]
    assert sorted(pilot.clarity) == ["female", "male"]
    assert min(pilot.clarity.values()) > MIN_CLARITY
    with pytest.raises(InvalidInputError, match="images was 8 and is now 4"):
        measure_prompts(pipe, PROMPTS, "gender", options, images=4, judge=judge)


def test_only_prompts_without_a_clear_verdict_get_more_images(pipe: Loaded, tmp_path: Path) -> None:
    def predict(images: Sequence[Any]) -> dict[str, np.ndarray]:
        # The first prompt's images all show men; half of the second one's do.
        men = np.arange(len(images)) < len(images) * 3 // 4
        return {"gender": np.stack([men, ~men], axis=1).astype(float)}

    judge = Judge("stub", {"gender": ("male", "female")}, predict, "1")
    options = Options(out=tmp_path, steps=1)
    numbers = images_to_reach(PROMPTS, GENDER, tmp_path, 8)
    assert numbers == dict.fromkeys(PROMPTS, 8)
    first = measure_prompts(pipe, PROMPTS, "gender", options, images=numbers, judge=judge)
    assert first.counts[["male", "female"]].values.tolist() == [[8, 0], [4, 4]]
    first.counts.to_csv(tmp_path / MEASURED, index=False)
    numbers = images_to_reach(PROMPTS, GENDER, tmp_path, 12)
    assert numbers == dict(zip(PROMPTS, [8, 12], strict=True))
    second = measure_prompts(pipe, PROMPTS, "gender", options, images=numbers, judge=judge)
    assert [len(second.images[prompt]) for prompt in PROMPTS] == [8, 12]
    # The same command continues the same run.
    second.counts.to_csv(tmp_path / MEASURED, index=False)
    assert images_to_reach(PROMPTS, GENDER, tmp_path, 12) == numbers
    assert len(list(tmp_path.rglob("*.png"))) == 20


def test_a_judge_of_a_different_attribute_is_rejected_before_anything_is_generated(
    pipe: Loaded, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match="judge miniature judge recognises"):
        measure_prompts(pipe, PROMPTS, "race", Options(out=tmp_path))
    assert not list(tmp_path.rglob("*.png"))
