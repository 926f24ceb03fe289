"""The one list of settings: a file and flags mean the same, and what does not fit is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.training.settings import GROUPS, TrainSettings, load_settings


def test_every_setting_has_one_group_and_a_description() -> None:
    names = [name for group in GROUPS.values() for name in group.model_fields]
    assert sorted(names) == sorted(TrainSettings.model_fields)
    assert all(field.description for field in TrainSettings.model_fields.values())


def test_a_file_and_flags_mean_the_same(tmp_path: Path) -> None:
    given: dict[str, Any] = {"loss": "rince", "q": 0.3, "steps": 7, "flip": True, "lr": 1e-4}
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(given))
    assert load_settings(path) == load_settings(**given)


def test_flags_come_first_and_one_length_replaces_the_other(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("epochs: 3\nq: 0.2\n")
    both = load_settings(path, q=0.7, steps=5)
    assert (both.q, both.steps, both.epochs) == (0.7, 5, None)
    assert load_settings(path, q=0.7).epochs == 3
    path.write_text("steps: 3\n")
    assert load_settings(path, epochs=2.0).steps is None


def test_a_shown_file_reads_back_as_itself(tmp_path: Path) -> None:
    settings = load_settings(loss="nuclr", temperature=0.05, epochs=2.0, clip_norm=None, caption_template="a {}")
    path = tmp_path / "shown.yaml"
    path.write_text(settings.as_yaml())
    again = load_settings(path)
    assert again == settings
    assert again.clip_norm is None


def test_identity_leaves_out_what_changes_no_weight() -> None:
    one = load_settings(steps=3)
    assert one.identity() == load_settings(steps=3, workers=0, save_every=1.0, eval_every=1).identity()
    assert one.identity() != load_settings(steps=3, seed=1).identity()
    assert one.identity() != load_settings(steps=3, lr=1e-3).identity()


@refused(
    ({"temprature": 1.0}, "temprature: unknown setting; there are .*lr.*did you mean 'temperature'"),
    ({"q": 1.5}, "q: .*less than or equal to 1, got 1.5"),
    ({"steps": 1, "epochs": 1.0}, "expected either epochs or steps"),
    ({"loss": "triplet"}, "loss: .*'rince'.* got 'triplet'"),
    ({"loss": "rince", "learn_temperature": True}, "falls without bound as t falls"),
    ({"loss": "nuclr", "learn_temperature": True}, "in units of t"),
    ({"lr": float("nan")}, "lr: .*finite"),
    ({"feature_map": "pca"}, "feature_map: the pictures by t-SNE and UMAP are gone"),
    ({"state": "sharded"}, "state: a checkpoint is always one file"),
    ({"rho": 0.1}, "rho 0.1 goes with sharpness: sam or asam, and here nothing would read it"),
    ({"lora_rank": 4}, "lora_rank 4 goes with tune: lora"),
    ({"streaming": True}, "streaming True goes with data of your own"),
    ({"data": "folder", "items": 3}, "items 3 goes with data: birds or portraits"),
    ({"caption_noise": 0.2, "views": "two"}, "caption_noise 0.2 goes with views: captions"),
    ({"pretrained": "openai"}, "pretrained 'openai' goes with an open_clip architecture"),
    ({"queue": {"row": 5}}, r"queue.rows: Field required.*queue.row: unknown setting"),
    ({"queue": {"rows": 5, "momentum": 1.0}}, r"queue.momentum: Input should be less than 1"),
    ({"optimizer": {"momentum": 0.9}}, "optimizer.name: Field required"),
    ({"layers": {"image": 1}, "tune": "lora"}, "layers .* goes with tune: all, image or text"),
    ({"partner": "other"}, "partner 'other' goes with fourier and views: two"),
)
def test_what_does_not_fit_is_refused_by_name(given: dict[str, Any]) -> None:
    load_settings(**({"steps": 1} | given))


@pytest.mark.parametrize(
    ("text", "said"),
    [("- a\n", r"got \['a'\] \(list\); expected a mapping"), ("a: [", "expected YAML"), (None, "no such file")],
)
def test_files_that_are_none(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "run.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidInputError, match=said):
        load_settings(path)


def test_identity_keeps_all_but_what_changes_no_weight() -> None:
    speed, tracking = (
        {"workers", "save_every", "compile", "allow_outside", "allow_missing"},
        {"track", "project", "keep_every", "keep_best", "wise_ft"},
    )
    scoring = {"eval_every", "score_pairs", "val_data", "val_split", "val_items", "group", "debias"}
    scoring |= {"sharpness_within"}
    beside = speed | tracking | scoring | {"epochs"}  # which come to steps
    assert load_settings(steps=3).identity().keys() == TrainSettings.model_fields.keys() - beside


def test_objects_are_read_and_written_as_they_are_given(tmp_path: Path) -> None:
    given = {"queue": {"rows": 64, "momentum": 0.9}, "optimizer": {"name": "SGD", "momentum": 0.9}, "steps": 2}
    chosen = load_settings(**given, schedule="OneCycleLR", layers={"image": 2, "decay": 0.8})
    (tmp_path / "run.yaml").write_text(chosen.as_yaml())
    assert load_settings(tmp_path / "run.yaml") == chosen
    assert chosen.model_dump()["schedule"] == "OneCycleLR"
    assert chosen.optimizer.options == {"momentum": 0.9}
    assert chosen.layers is not None
    assert (chosen.layers.image, chosen.layers.text, chosen.layers.decay) == (2, None, 0.8)
