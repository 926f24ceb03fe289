"""Test that files and flags set the same settings, and that invalid settings raise errors."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.refusals import refused
from vldebias.errors import InvalidInputError
from vldebias.training.settings import GROUPS, LoopSettings, TrainSettings, load_settings


def test_every_setting_has_one_group_and_a_description() -> None:
    names = list(chain(*(group.model_fields for group in GROUPS.values())))
    assert sorted(names) == sorted(TrainSettings.model_fields)
    assert all(field.description for field in TrainSettings.model_fields.values())


def test_files_and_flags_are_equivalent_and_flags_override_files(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"loss": "rince", "q": 0.3, "steps": 7, "flip": True, "lr": 1e-4}
    assert yaml.safe_load(load_settings(**settings).as_yaml()) == settings
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(settings))
    assert load_settings(path) == load_settings(**settings)
    path.write_text("epochs: 3\nloss: rince\nq: 0.2\n")
    both = load_settings(path, q=0.7, steps=5)
    assert (both.q, both.steps, both.epochs) == (0.7, 5, None), "one length replaces the other"
    assert load_settings(path, q=0.7).epochs == 3
    unsaid = load_settings()
    assert unsaid.loss == "info_nce"
    rince = load_settings(loss="rince")
    assert (rince.q, rince.q_start) == (0.4, 0.01), "the thesis warms q up"
    assert (unsaid.epochs, unsaid.steps, unsaid.flip, unsaid.score_pairs) == (10, None, False, True)
    heads, lora, scratch = (load_settings(preset=name) for name in ("heads", "lora", "scratch"))
    assert (heads.tune, heads.lr, heads.epochs) == ("heads", 1e-4, 2)
    assert (lora.tune, lora.lr, lora.epochs) == ("lora", 1e-4, 1)
    assert (scratch.temperature, scratch.weight_decay, scratch.epochs) == (0.1, 0.05, 30)
    preset = load_settings(preset="scratch", loss="rince", steps=3)
    assert scratch.learn_temperature
    assert not preset.learn_temperature
    assert (preset.lr, preset.epochs) == (1e-3, None)


RANGES = {
    "[1, inf)": (
        "lora_rank shuffle_buffer items val_items chunk_size beta_changes steps accumulation"
        " eval_every"
    ),
    "[0, inf)": "image_blocks text_blocks beta floor weight_decay save_every workers seed",
    "(0, inf)": "temperature popularity_lr group_dro_step epochs lr clip_norm rho",
    "[0, 1]": "jitter grayscale blur caption_noise spread_alpha gce_q fourier",
    "(0, 1]": "gamma crop_scale keep q q_start lam",
    "[0, 1)": "popularity_wait tau_plus smoothing warmup",
    "(0, 1)": "ema",
    "[2, inf)": "batch_size",
}


@pytest.mark.parametrize("interval", RANGES)
def test_every_number_has_a_valid_range(interval: str) -> None:
    def fits(name: str, value: float) -> bool:
        try:
            next(group for group in GROUPS.values() if name in group.model_fields)(**{name: value})
        except ValidationError as error:
            return all(problem["loc"] != (name,) for problem in error.errors())
        return True

    low, high = (float(end) for end in interval[1:-1].split(","))
    for name in RANGES[interval].split():
        assert (fits(name, low - 1), fits(name, low)) == (False, interval[0] == "[")
        assert interval[0] == "[" or fits(name, 0.5)
        assert high > 1 or (fits(name, 1.0), fits(name, 1.5)) == (interval[-1] == "]", False)


def test_paths_are_accepted_as_settings() -> None:
    chosen = load_settings(steps=1, data=Path("captions.csv"), image_root=Path("images"))
    assert (chosen.data, chosen.image_root) == ("captions.csv", "images")
    assert chosen == load_settings(steps=1, data="captions.csv", image_root="images")


def test_the_identity_of_a_run_excludes_settings_that_do_not_affect_weights() -> None:
    watching = {
        "workers",
        "save_every",
        "allow_outside",
        "data_root",
        "track",
        "eval_every",
        "score_pairs",
        "group",
    }
    # Epochs are converted to steps.
    watching |= {
        "debias",
        "val_data",
        "val_split",
        "val_items",
        "epochs",
    }
    identified = load_settings(steps=3)
    assert identified.identity().keys() == TrainSettings.model_fields.keys() - watching
    assert (
        identified.identity()
        == load_settings(steps=3, workers=0, save_every=1.0, eval_every=1).identity()
    )
    assert identified.identity() != load_settings(steps=3, seed=1).identity()


@pytest.mark.parametrize("name", ["no", "bf16", "fp16"])
def test_the_default_precision_comes_from_the_launcher(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", name)
    assert LoopSettings(steps=1).precision == name
    assert LoopSettings(steps=1, precision="no").precision == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(InvalidInputError, match=r"precision: .*fp8"):
        load_settings(steps=1)


@refused(
    ({"temprature": 1.0}, "temprature: unknown .*did you mean 'temperature'"),
    ({"wise_ft": 0.5}, "wise_ft: unknown key; leave it out: .* saves the better of the end and"),
    ({"q": 1.5}, "q: .*less than or equal to 1.* got 1.5"),
    ({"steps": 1, "epochs": 1.0}, "expected either epochs or steps"),
    ({"loss": "rince", "learn_temperature": True}, "learn_temperature .* with rince"),
    ({"loss": "nuclr", "learn_temperature": True}, "learn_temperature .* with nuclr: its running"),
    ({"lr": float("nan")}, "lr: .*finite"),
    ({"streaming": True}, "streaming True would have no effect; it needs your own data"),
    ({"data": "folder", "items": 3}, "items 3 .* needs data: birds or portraits"),
    ({"caption_noise": 0.2, "views": "two"}, "caption_noise 0.2 .* needs captions"),
    ({"lora_rank": 4}, "lora_rank 4 would have no effect; it needs tune: lora"),
    ({"tune": "text", "image_blocks": 1}, "image_blocks 1 .* tune: all or image"),
    ({"tune": "image", "text_blocks": 1}, "text_blocks 1 .* tune: all or text"),
    ({"pretrained": "openai"}, "pretrained 'openai' .* architecture as model"),
    (
        {"data": "x", "label": "y", "caption": "c", "caption_template": "{}"},
        "caption 'c' would have no effect; it needs your own data with captions",
    ),
    ({"caption_template": "a {}"}, "caption_template 'a {}' would have no effect; it needs label"),
    ({"keep": "most"}, "keep: expected a share above 0 and up to 1, or auto; got 'most'"),
    ({"keep": 0.5, "views": "two"}, "keep 0.5 would have no effect; it needs captions"),
    ({"group_dro_step": 0.5}, "group_dro_step 0.5 would have no effect; it needs group_dro"),
    ({"rho": 0.5}, "rho 0.5 would have no effect; it needs sharpness"),
    ({"preset": "warm"}, "preset: expected heads, lora, scratch, got 'warm'"),
    ({"preset": ["lora"]}, r"preset: expected heads, lora, scratch, got \['lora'\]"),
    ({"seed": 1 << 63}, "seed: .* less than 9223372036854775808"),
    ({"negatives": "step"}, "negatives 'step' would have no effect; it needs accumulation"),
    ({"data": "folder", "group": "place"}, "group 'place' .* needs held-out data"),
    (
        {"data": "folder", "split": "a", "val_split": "a"},
        "val_split 'a' is the training split",
    ),
)
def test_contradictory_settings_raise_errors_that_name_them(changes: dict[str, Any]) -> None:
    load_settings(**({"steps": 1} | changes))
