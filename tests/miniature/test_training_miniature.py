import os
from dataclasses import asdict

import pytest
import torch
from torch import nn

from eval.miniature import training
from eval.miniature.builder import STEPS, encode_captions
from eval.miniature.training import Stage, cosine, generator, read_weights_metadata, save_weights
from vldebias.miniature.birds import LEAN
from vldebias.miniature.models import load_weights
from vldebias.training.optim import Average

LEANS = {name: list(values) for name, values in asdict(LEAN).items() if values}


class KilledError(Exception):
    """Stands for whatever ends a process in the middle."""


class Training:
    """A small one with everything that a checkpoint must keep: moments, buffers, an average, fresh noise."""

    def __init__(self, folder, *, seed=0, kill_after=None, steps=20):
        torch.manual_seed(0)
        self.stage = Stage("clip", folder, seed, steps)
        self.module = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.average = Average(self.module, 0.9)
        self.kill_after, self.steps_run = kill_after, []

    def loss(self, step):
        x = torch.randn(16, 3, generator=generator(5, step))
        return (self.module(x)[:, 0] - x.sum(dim=1)).square().mean()

    def step(self, step):
        if step == self.kill_after:
            raise KilledError
        self.steps_run.append(step)
        return self.loss(step)

    def run(self):
        optimizer = torch.optim.AdamW(self.module.parameters(), 1e-2)
        self.stage.train(self.module, optimizer, self.step, cosine(20, 1e-2), self.average)
        return {**self.module.state_dict(), **{f"mean {k}": v for k, v in self.average.means.items()}}


@pytest.fixture
def _always_kept(monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)


@pytest.mark.usefixtures("_always_kept")
@pytest.mark.parametrize("kill_after", [1, 7, 19])
def test_a_killed_run_ends_with_the_same_weights(tmp_path, kill_after):
    whole = Training(tmp_path / "whole").run()
    with pytest.raises(KilledError):
        Training(tmp_path / "killed", kill_after=kill_after).run()
    again = Training(tmp_path / "killed")
    resumed = again.run()
    assert again.steps_run[0] == kill_after
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.usefixtures("_always_kept")
def test_a_checkpoint_of_other_settings_is_not_used(tmp_path):
    with pytest.raises(KilledError):
        Training(tmp_path, kill_after=5).run()
    other = Training(tmp_path, seed=1)
    other.run()
    assert other.steps_run[0] == 0


@pytest.mark.usefixtures("_always_kept")
def test_a_finished_stage_leaves_its_weights_alone(tmp_path):
    done = Training(tmp_path)
    done.run()
    assert done.stage.checkpoint.is_file()
    done.stage.finish(done.module)
    assert [path.name for path in tmp_path.iterdir()] == ["clip.safetensors"]
    assert read_weights_metadata(done.stage.weights) == {"stage": "clip", "seed": 0, "steps": 20, "lean": LEANS}


def test_the_knobs_belong_to_what_leans(tmp_path):
    stages = {name: Stage(name, tmp_path, 0, 20).settings for name in STEPS}
    assert [name for name, settings in stages.items() if "lean" in settings] == ["narrow", "clip", "draft", "unet"]


def test_training_lowers_the_loss(tmp_path):
    small = Training(tmp_path)
    before = small.loss(100).item()
    small.run()
    assert small.loss(100).item() < 0.9 * before
    assert not small.stage.checkpoint.exists()


def test_every_step_has_its_own_noise():
    one, again, other = (torch.randn(5, generator=generator(0, step)) for step in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_cosine_rises_then_falls_to_nothing():
    rate = cosine(1000, 2.0, warmup=50)
    assert rate(0) == pytest.approx(2 / 50, rel=1e-3)
    assert rate(49) == pytest.approx(2, rel=0.01)
    assert rate(500) == pytest.approx(1)
    assert rate(999) < 1e-4


def test_weights_are_written_in_one_move(tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    save_weights(nn.Linear(2, 2), path, {"steps": 1})
    before = load_weights(path)

    def fail(*_):
        raise OSError("disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk is full"):
        save_weights(nn.Linear(2, 2), path, {"steps": 2})
    assert read_weights_metadata(path) == {"steps": 1}
    assert all(torch.equal(before[name], t) for name, t in load_weights(path).items())
    assert read_weights_metadata(tmp_path / "none") is None


def test_short_cut_through_the_text_tower_changes_nothing():
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    captions = ["a photo of a chef", "a jay.", "a photo of a chef", "this is a picture of a marine biologist."]
    with torch.no_grad():
        short = encode_captions(model, tokenizer, captions)
        assert torch.allclose(short, model.encode_text(tokenizer(captions)), atol=1e-5)
