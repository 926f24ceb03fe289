"""Test the second synthetic world of the evaluation: its judge, its training, and its measures."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from eval.small_models import benches, models, train
from eval.small_models.measure import gap_of
from eval.small_models.world import HAIR, JOBS, SEXES, Painter, judge


def test_the_judge_recognises_every_rendered_person() -> None:
    painter = Painter(5)
    seen = set()
    for _ in range(400):
        sample = painter.sample()
        if sample.person is not None:
            verdict = judge(sample.picture)
            assert verdict.sex == sample.person.sex
            assert verdict.hair == sample.person.hair
            assert verdict.job == sample.person.job
            seen |= {verdict.sex, verdict.hair, verdict.job}
    assert seen == {*SEXES, *HAIR, *JOBS, None}


def test_open_captions_of_a_job_follow_its_shares_and_explicit_ones_are_more_even() -> None:
    painter = Painter(0)
    women = {True: [], False: []}
    for _ in range(4000):
        sample = painter.sample()
        if sample.person is not None and sample.person.job == "baker":  # 92% women
            is_stated = any(word in sample.caption for word in SEXES)
            women[is_stated].append(sample.person.sex == "female")
    assert np.mean(women[False]) > 0.8
    assert np.mean(women[True]) < np.mean(women[False]) - 0.1


def test_the_gap_only_counts_images_with_a_known_value() -> None:
    assert gap_of(["female", "male", None], SEXES) == 0
    assert gap_of(["female", None], SEXES) == pytest.approx(0.5**0.5)
    assert np.isnan(gap_of([None], SEXES))


@pytest.mark.parametrize("kind", models.KINDS)
def test_training_is_reproducible_and_its_pipeline_generates(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "PICTURES", 64)
    weights = []
    for name in ("first", "second"):
        train.train(kind, seed=3, steps=2, out=tmp_path / name)
        weights.append(load_file(tmp_path / name / f"{kind}.safetensors"))
    first, second = weights
    assert all(torch.equal(first[name], second[name]) for name in first)
    bench = benches.small(kind, tmp_path / "first")
    (picture,) = bench.generate(["A photo of a baker."], [0], num_inference_steps=2)
    assert picture.size == (32, 32)
    verdicts = bench.judge([picture])
    assert set(verdicts) == {"sex", "hair", "job"}


def test_padding_does_not_change_the_prediction_of_the_transformer() -> None:
    """Training masks the padding, as the pipeline does."""
    torch.manual_seed(0)
    parts = models.make_parts("pixart")
    parts.modules.eval()
    noisy = torch.randn(1, models.COMPONENTS, 4, 4)
    ids = parts.tokens(["A photo of a baker."])
    short = ids[:, : int((ids != 0).sum())]
    times = torch.tensor([500])
    torch.testing.assert_close(parts.predict(noisy, times, ids), parts.predict(noisy, times, short))
