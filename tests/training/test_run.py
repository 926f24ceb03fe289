"""A run from its settings: what it leaves, that every command reads its model, and what it refuses beforehand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vldebias.errors import InvalidInputError
from vldebias.evaluation.report.pictures import read_metadata
from vldebias.loading import load_host
from vldebias.miniature import load_clip
from vldebias.training.run import train_model
from vldebias.training.settings import TrainSettings, load_settings


def settings(**given: Any) -> TrainSettings:
    small: dict[str, Any] = {"data": "birds", "items": 40, "val_items": 20, "steps": 2, "batch_size": 8, "workers": 0}
    return load_settings(**{**small, "temperature": 0.2, "lr": 1e-4, **given})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    train_model(settings(label="label", caption_noise=0.5), path, cpu=True)
    return path


def test_it_leaves_what_it_says(folder: Path) -> None:
    outcome = json.loads((folder / "run.json").read_text())
    assert all((folder / path).exists() for path in outcome["files"].values())
    assert outcome["before"].keys() == outcome["after"].keys()
    assert {"zero_shot_accuracy", "recall@1 image->text"} <= outcome["after"].keys()
    history = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in history] == [0, 1]
    assert history[-1]["recall@1 image->text"] == outcome["after"]["recall@1 image->text"]
    assert load_settings(folder / "settings.yaml") == settings(label="label", caption_noise=0.5)
    assert str(Path.home()) not in (folder / "run.json").read_text()


def test_wrong_pairs_have_the_lowest_scores(folder: Path) -> None:
    rows = list(csv.DictReader((folder / "pairs.csv").read_text().splitlines()))
    assert len(rows) == 40
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores)
    outcome = json.loads((folder / "run.json").read_text())
    assert outcome["wrong_pairs"]["auroc"]["value"] > 0.7
    assert 0.3 < outcome["wrong_pairs"]["wrong"] < 0.7


def test_every_command_reads_the_model(folder: Path) -> None:
    loaded = load_host(str(folder / "model"))
    ids = loaded.tokenizer(["a photo of a landbird"])
    shipped, _, _ = load_clip()
    with torch.no_grad():
        trained, before = loaded.host.encode_text(ids), shipped.encode_text(ids)
    assert not torch.allclose(trained, before)
    assert torch.allclose(trained, before, atol=0.2)
    assert float(loaded.host.logit_scale.detach().exp()) == pytest.approx(1 / 0.2)


def test_a_finished_run_is_not_done_again(folder: Path, tmp_path: Path) -> None:
    before = (folder / "state.safetensors").read_bytes()
    again = train_model(settings(label="label", caption_noise=0.5), folder, cpu=True)
    assert again is not None
    assert (folder / "state.safetensors").read_bytes() == before
    with pytest.raises(InvalidInputError, match=r"lr 0\.0001 there and 0\.001 here"):
        train_model(settings(label="label", caption_noise=0.5, lr=1e-3), folder, cpu=True)


def test_two_views_need_no_caption_and_score_no_pair(tmp_path: Path) -> None:
    outcome = train_model(settings(views="two", jitter=0.2, flip=True, crop_scale=0.5, fourier=0.2), tmp_path, cpu=True)
    assert outcome is not None
    assert outcome["wrong_pairs"] is None
    assert not (tmp_path / "pairs.csv").exists()
    shipped, _, _ = load_clip()
    trained = load_host(str(tmp_path / "model")).host
    assert torch.equal(trained.token_embedding.weight, shipped.token_embedding.weight), "no text was read"
    assert not torch.equal(trained.visual.proj, shipped.visual.proj)


def test_captions_made_from_labels_can_have_class_noise(tmp_path: Path) -> None:
    chosen = settings(label="species", caption_template="a photo of a {}.", class_noise=1.0, eval_every=1)
    outcome = train_model(chosen, tmp_path, cpu=True)
    assert outcome is not None
    assert 0.2 < outcome["wrong_pairs"]["wrong"] < 0.8


def test_the_features_are_drawn_before_and_after(tmp_path: Path) -> None:
    outcome = train_model(settings(label="species", feature_map="pca", score_pairs=False), tmp_path, cpu=True)
    assert outcome is not None
    told = read_metadata(tmp_path / outcome["files"]["features before and after"])
    assert (told["method"], told["images"]) == ("pca", 20)
    assert list(told["neighbour_agreement"]) == ["before", "after"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": "nowhere/at/all", "items": 4000}, "nowhere/at/all"),
        ({"items": 4}, "fewer than the 8 of one batch"),
        ({"loss": "info_nce", "q": 0.2}, "info_nce does not read q"),
        ({"class_noise": 0.2}, "needs the column of classes"),
        ({"views": "two", "tune": "text", "flip": True}, "not read by the text tower"),
        ({"label": "label", "feature_map": "tsne"}, "tsne: a map needs at least 91 held-out images, got 20"),
        ({"loss": "spread"}, "reads the labels of every pair"),
        ({"split": "holdout"}, "expected split train, val, test, got 'holdout'"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"label": "colour"}, "no column 'colour'"),
    ],
)
def test_what_cannot_go_is_said_before_the_first_step(given: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=said):
        train_model(settings(**given), tmp_path / "run", cpu=True)
    assert not (tmp_path / "run" / "state.safetensors").exists()
