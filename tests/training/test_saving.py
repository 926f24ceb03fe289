"""A saved model opened again: by this package, by its own library, by peft; and a kill that leaves nothing half."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from small_models import CAPTIONS, TEXT, VISION, features, make
from test_tuning import adapted

import vldebias
from vldebias.errors import InvalidInputError
from vldebias.hosts.towers import Towers, towers
from vldebias.loading import load_host
from vldebias.training import saving
from vldebias.training.saving import check_savable, save_model, whole_weights
from vldebias.training.tuning import tune

SMALL = {"embed_dim": 24, "vision_cfg": VISION, "text_cfg": {**TEXT, "vocab_size": 49408, "context_length": 77}}
ARCHITECTURES = {
    "small-one": SMALL,
    "small-quick": {**SMALL, "quick_gelu": True},
    "small-wide": {**SMALL, "embed_dim": 32},
    "small-last": {**SMALL, "text_cfg": {**SMALL["text_cfg"], "pool_type": "last"}},
    "small-custom": {**SMALL, "custom_text": True, "init_logit_bias": -10},
}


@pytest.fixture(scope="module", autouse=True)
def architectures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Known to open_clip as its own are."""
    from open_clip.factory import _MODEL_CONFIG_PATHS, _rescan_model_configs

    folder = tmp_path_factory.mktemp("configs")
    for name, config in ARCHITECTURES.items():
        (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    open_clip.add_model_config(folder)
    yield
    _MODEL_CONFIG_PATHS.remove(folder)
    _rescan_model_configs()


def created(name: str, **more: Any) -> Towers:
    """As open_clip makes it, with random weights."""
    torch.manual_seed(0)
    model, _, preprocess = open_clip.create_model_and_transforms(name, **more)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return towers(model.eval(), open_clip.get_tokenizer(name), preprocess)


def opened(folder: Path | str) -> Towers:
    loaded = load_host(model=str(folder))
    assert loaded.name == str(folder)
    assert not loaded.host.training
    return towers(loaded.host, loaded.tokenizer, loaded.preprocess)


def same(found: Towers, other: Towers, *, exactly: bool = True) -> None:
    """In what they make of images and texts, and of pictures and captions before."""
    for one, two in zip(features(found), features(other), strict=True):
        assert torch.equal(one, two) if exactly else torch.allclose(one, two, atol=1e-4)
    one, two = found.tokenize(CAPTIONS), other.tokenize(CAPTIONS)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (found.size, found.mean, found.std) == (other.size, other.mean, other.std)
    assert found.temperature == pytest.approx(other.temperature)


def build(name: str) -> Towers:
    return created(name) if name in ARCHITECTURES else make(name)


@pytest.mark.parametrize("name", ["small-quick", "small-custom", "miniature", "twin"])
def test_what_was_saved_is_read_again(name: str, tmp_path: Path) -> None:
    found = build(name)
    tune(found, "all")
    with torch.no_grad():
        for parameter in found.model.parameters():
            parameter.mul_(1.01)
    found.set_temperature(0.03)
    save_model(found, tmp_path / "model", scope="all", name=name)
    again = opened(tmp_path / "model")
    assert again.temperature == pytest.approx(0.03)
    fresh = towers(found.model, found.tokenizer, found.preprocess)
    for parameter in (*fresh.model.parameters(), *again.model.parameters()):
        parameter.requires_grad_(False)  # torch computes frozen attention in another way
    same(fresh, again)
    made_of = json.loads((tmp_path / "model" / "vldebias.json").read_text())
    family = {"miniature": "miniature", "twin": "transformers"}.get(name, "open_clip")
    expected = {"family": family, "base": name, "scope": "all", "vldebias_version": vldebias.__version__}
    assert made_of == expected
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    # And a saved model can be trained and saved in its turn, by the name of its folder.
    check_savable(again, name=str(tmp_path / "model"))
    save_model(again, tmp_path / "second", scope="all", name=str(tmp_path / "model"))
    same(again, opened(tmp_path / "second"), exactly=False)


@pytest.mark.parametrize("name", ["small-one", "twin"])
def test_adapters_are_saved_alone_and_merged(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_tuning.make", build)
    found = adapted(name)
    before = {key: tensor.clone() for key, tensor in found.model.state_dict().items()}
    save_model(found, tmp_path / "model", scope="lora", name=name)
    same(found, opened(tmp_path / "model"), exactly=False)
    assert not any(torch.allclose(a, b, atol=1e-2) for a, b in zip(features(build(name)), features(found), strict=True))
    after = found.model.state_dict()
    assert all(torch.equal(after[key], tensor) for key, tensor in before.items())
    assert {path.name for path in (tmp_path / "model" / "adapter").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }


def test_open_clip_reads_it_by_itself(tmp_path: Path) -> None:
    found = created("small-quick")
    save_model(found, tmp_path / "model", scope="all", name="small-quick/some-tag")
    name = f"local-dir:{tmp_path / 'model'}"
    model, _, preprocess = open_clip.create_model_and_transforms(name)
    same(found, towers(model.eval(), open_clip.get_tokenizer(name), preprocess))
    assert load_host(model=name).name == name


def test_open_clip_with_a_tokenizer_of_transformers(tmp_path: Path) -> None:
    class HFTokenizer(open_clip.tokenizer.HFTokenizer):
        def __init__(self, tokenizer: Any) -> None:
            self.tokenizer, self.context_length, self.tokenizer_mode = tokenizer, 24, ""
            self.clean_fn, self.strip_sep_token = str, False

    found = make("clip")
    hugging = towers(found.model, HFTokenizer(make("twin").tokenizer), found.preprocess)
    config = {**SMALL, "text_cfg": TEXT, "init_logit_bias": 0}
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "open_clip_config.json").write_text(json.dumps({"model_cfg": config}))
    save_model(hugging, tmp_path / "model", scope="all", name=f"local-dir:{tmp_path / 'old'}")
    same(hugging, opened(tmp_path / "model"))


def test_transformers_reads_it_by_itself(tmp_path: Path) -> None:
    from transformers import AutoModel, AutoProcessor

    found = make("twin")
    save_model(found, tmp_path / "model", scope="all", name="miniature")
    processor = AutoProcessor.from_pretrained(tmp_path / "model")
    model = AutoModel.from_pretrained(tmp_path / "model").eval()
    same(found, towers(model, processor.tokenizer, processor))


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
def test_a_saved_model_can_be_debiased(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from vldebias.cli import app

    save_model(make("twin"), tmp_path / "model", scope="all", name="twin")
    command = ["debias", "gender", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "projection"), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["host"] == str(tmp_path / "model")


def test_given_weights_are_written(tmp_path: Path) -> None:
    found = make("miniature")
    other = {
        name: tensor * 1.5 if tensor.is_floating_point() else tensor
        for name, tensor in whole_weights(found.model).items()
    }
    save_model(found, tmp_path / "model", scope="all", name="miniature", weights=other)
    written = opened(tmp_path / "model").model.state_dict()
    assert all(torch.equal(written[name], tensor) for name, tensor in other.items())


# ---- nothing half, nothing lost


class KilledError(BaseException):
    """As a kill would: no handler catches it."""


def test_a_kill_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, folder = make("miniature"), tmp_path / "model"
    save_model(found, folder, scope="all", name="miniature")
    expected = features(opened(folder))

    def killed(*_: Any) -> None:
        raise KilledError

    with torch.no_grad():
        found.model.text_projection.mul_(2)
    monkeypatch.setattr("vldebias.miniature.tokenizer.save_tokenizer", killed)
    monkeypatch.setattr(saving.shutil, "rmtree", lambda *args, **more: None)  # a killed process tidies nothing up
    with pytest.raises(KilledError):
        save_model(found, folder, scope="all", name="miniature")
    assert (tmp_path / "model.part" / "clip.safetensors").is_file()
    assert all(torch.equal(one, two) for one, two in zip(features(opened(folder)), expected, strict=True))
    monkeypatch.undo()
    save_model(found, folder, scope="all", name="miniature")
    assert not torch.equal(features(opened(folder))[1], expected[1])
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_kill_between_the_moves_loses_nothing_to_the_next_kill(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (tmp_path / "model.before").mkdir()
    (tmp_path / "model.before" / "weights").write_text("the only ones")
    with pytest.raises(FileNotFoundError), saving.replacing(folder) as beside:
        (beside / "no folder" / "weights").write_text("half")
    assert (folder / "weights").read_text() == "the only ones"
    with saving.replacing(folder) as beside:
        (beside / "weights").write_text("new")
    assert (folder / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    found = make("miniature")
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(InvalidInputError, match=r"holds other things than a saved model, which would be lost"):
        save_model(found, tmp_path, scope="all", name="miniature")
    with pytest.raises(InvalidInputError, match=r"thesis\.txt: holds other things"):
        save_model(found, tmp_path / "thesis.txt", scope="all", name="miniature")
    assert (tmp_path / "thesis.txt").read_text() == "all of it"
    (tmp_path / "empty").mkdir()
    save_model(found, tmp_path / "empty", scope="all", name="miniature")
    opened(tmp_path / "empty")


# ---- could it be saved?


def test_what_can_be_saved_passes() -> None:
    name = "small-custom"
    found = build(name)
    state, weights = torch.get_rng_state(), {key: t.clone() for key, t in found.model.state_dict().items()}
    check_savable(found, name=name)
    tune(found, "lora")
    check_savable(found, name=name)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(found.model.state_dict().get(key, tensor), tensor) for key, tensor in weights.items())


@pytest.mark.parametrize(
    ("model", "name", "text"),
    [
        ("small-one", "somewhere", "name: 'somewhere' is no open_clip architecture.*expected the name that it was"),
        (
            "small-one",
            "small-wide",
            "'small-wide' describes another architecture than that of the model: size mismatch",
        ),
        ("small-one", "small-last", r"'small-last' describes another .* its features of texts differ by \d+"),
    ],
)
def test_another_architecture_is_refused(model: str, name: str, text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        check_savable(created(model), name=name)


def test_what_the_model_says_of_itself_comes_first() -> None:
    """Options of create_model that its name does not hold."""
    check_savable(created("small-one", force_quick_gelu=True), name="small-one")
    check_savable(created("small-one", force_image_size=48), name="small-one")
    check_savable(created("small-one", force_custom_text=True), name="small-one/tag")


def test_parts_that_cannot_be_stored_are_refused() -> None:
    found = created("small-one")
    other = open_clip.image_transform(32, is_train=False, mean=(0.1, 0.2, 0.3))
    with pytest.raises(
        InvalidInputError, match=r"preprocess: open_clip would store .* makes other pixels of a picture"
    ):
        check_savable(towers(found.model, found.tokenizer, other), name="small-one")
    with pytest.raises(InvalidInputError, match="SimpleTokenizer with a vocabulary of its own cannot be saved"):
        check_savable(make("clip"), name="small-one")
    twin = make("twin")
    with pytest.raises(InvalidInputError, match="preprocess: Compose cannot be saved with a model of transformers"):
        check_savable(towers(twin.model, twin.tokenizer, other), name="twin")
