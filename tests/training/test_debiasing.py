"""The projection in the text path while a model trains, the pair differences to keep, and mixing at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vldebias.api import fit_projections
from vldebias.hosts.towers import towers
from vldebias.miniature import load_clip
from vldebias.progress import SILENT
from vldebias.training.debiasing import TextDebias
from vldebias.training.loop import make_accelerator
from vldebias.training.run import Job, train_model
from vldebias.training.scores import text_features
from vldebias.training.settings import TrainSettings, load_settings
from vldebias.training.tuning import tune

pytestmark = [
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
    pytest.mark.usefixtures("no_pictures"),
]
SET = "waterbirds"


def settings(**given: Any) -> TrainSettings:
    small: dict[str, Any] = {"data": "birds", "items": 16, "val_items": 10, "steps": 4, "batch_size": 8, "workers": 0}
    small |= {"temperature": 0.2, "lr": 1e-3, "tune": "heads", "loss": "info_nce", "debias": SET, "score_pairs": False}
    return load_settings(**{**small, **given})


def clip() -> Any:
    model, preprocess, tokenizer = load_clip()
    found = towers(model, tokenizer, preprocess)
    tune(found, "heads")
    return found


def test_it_is_the_projection_of_the_model_as_it_is_then_and_stays_for_an_epoch() -> None:
    found = clip()
    debias = TextDebias(found, SET, every=2)
    texts = text_features(found, ["a photo of a landbird", "a photo on water"], 8)
    assert torch.equal(debias(texts), texts)  # nothing is fitted yet
    debias.at(0)
    edit = fit_projections(found.model, SET, tokenizer=found.tokenizer)["joint"]
    torch.testing.assert_close(debias(texts), edit(texts), rtol=1e-5, atol=1e-5)
    first = debias.matrix.clone()
    with torch.no_grad():
        found.model.text_projection.add_(0.05 * torch.randn(found.model.text_projection.shape))
    debias.at(1)
    assert torch.equal(debias.matrix, first)
    debias.at(2)
    assert not torch.allclose(debias.matrix, first)
    assert not TextDebias(found, SET, every=0).every


def test_pairs_that_have_not_moved_cost_nothing_and_others_have_a_gradient() -> None:
    found = clip()
    debias = TextDebias(found, SET, keep=1.0, seed=3)
    debias.at(5)
    chosen = debias.chosen.clone()
    assert float(debias.drift().detach()) == pytest.approx(0, abs=1e-10)
    with torch.no_grad():
        found.model.text_projection.add_(0.05 * torch.randn(found.model.text_projection.shape))
    moved = debias.drift()
    moved.backward()
    assert float(moved.detach()) > 1e-4
    assert found.model.text_projection.grad.abs().max() > 0
    debias.at(6)
    assert not torch.equal(debias.chosen, chosen)
    debias.at(5)
    assert torch.equal(debias.chosen, chosen)  # a function of the step: a run that goes on has the same
    sides = [text for pair in debias.prompts.pairs for text in pair]
    features = text_features(found, sides, 64)
    now = (features[1::2] - features[::2])[chosen]
    assert debias.before is not None
    assert float(debias.drift().detach()) == pytest.approx(float((now - debias.before[chosen]).square().sum(1).mean()))


def test_the_loss_sees_the_projected_texts(tmp_path: Path) -> None:
    """Learning with it is another training, and what is learned by one is the same when it is stopped halfway."""
    plain, during = settings(), settings(debias_during=True, keep_pairs=1.0)
    weights = {}
    for name, chosen in {"plain": plain, "during": during}.items():
        assert train_model(chosen, tmp_path / name, cpu=True) is not None
        weights[name] = load_file(tmp_path / name / "model" / "clip.safetensors")["text_projection"]
    assert not torch.allclose(weights["plain"], weights["during"])

    class Stop:
        def begin(self, *_: object) -> None: ...

        def end(self, *_: object) -> None: ...

        def step(self, entry: dict[str, float]) -> None:
            if entry["step"] == 2 and not (tmp_path / "stopped" / "once").exists():
                (tmp_path / "stopped" / "once").touch()
                raise KeyboardInterrupt

    often = during.model_copy(update={"save_every": 0.0})
    with pytest.raises(KeyboardInterrupt):  # in the midst of the second epoch, whose projection is that of its start
        train_model(often, tmp_path / "stopped", cpu=True, callbacks=[Stop()])
    train_model(often, tmp_path / "stopped", cpu=True, callbacks=[Stop()])
    again = load_file(tmp_path / "stopped" / "model" / "clip.safetensors")["text_projection"]
    assert torch.equal(again, weights["during"])


def test_half_of_the_way_is_half_of_the_weights(tmp_path: Path) -> None:
    shipped = load_clip()[0].text_projection.detach()
    found = {}
    for name, share in {"whole": None, "half": 0.5}.items():
        outcome = train_model(settings(debias=None, wise_ft=share), tmp_path / name, cpu=True)
        assert outcome is not None
        found[name] = load_file(tmp_path / name / "model" / "clip.safetensors")["text_projection"]
    torch.testing.assert_close(found["half"], (shipped + found["whole"]) / 2)
    assert not torch.allclose(found["half"], found["whole"])


def test_groups_balance_and_weigh_a_run(tmp_path: Path) -> None:
    chosen = settings(debias=None, balance="label", group_dro="label", items=60, batch_size=8, steps=2)
    job = Job(chosen, make_accelerator(cpu=True), tmp_path, SILENT)
    assert job.pairs is not None
    assert job.pairs.groups is not None
    for number in range(job.batches.per_epoch or 0):
        rows = job.batches.sampler.rows(number)  # type: ignore[attr-defined]
        assert torch.bincount(torch.from_numpy(job.pairs.groups.codes[rows])).tolist() == [4, 4]
    job.train(0)
    weights = job.trainee.objective.groups.log_weights.exp()  # type: ignore[union-attr]
    assert weights.sum() == pytest.approx(1)
    assert weights[0] != weights[1]


@pytest.mark.parametrize(
    ("given", "every"),
    [
        ({}, 16),  # of 160 steps
        ({"val_items": 200}, 100),  # 4 held-out images for each 1 that goes through a frozen tower
        ({"val_items": 200, "tune": "all"}, 50),
        ({"val_items": 200, "eval_every": 3}, 3),
    ],
)
def test_scoring_takes_no_more_than_a_fifth(given: dict[str, Any], every: int, tmp_path: Path) -> None:
    job = Job(settings(debias=None, steps=160, **given), make_accelerator(cpu=True), tmp_path, SILENT)
    assert job.eval_every(160) == every
