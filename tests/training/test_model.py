"""Test which parameters are trained, and that a saved model can be loaded."""

import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import open_clip
import pytest
import torch
import transformers
from torch import Tensor, nn
from training_parts import equal, opened

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

import models_tiny

import vldebias
from tests.transformers_clip import load_transformers_clip
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.clip.towers import Towers
from vldebias.miniature import load_clip
from vldebias.training import model as module
from vldebias.training.model import check_savable, merged, replacing, save_model, tune
from vldebias.training.objective import Trainee

SMALL = models_tiny.TABLE["open_clip"]["small"]
TUTORIAL = Path(__file__).parents[2] / "docs/tutorials/fine-tune.md"
ARCHITECTURES = {
    "small-one": SMALL,
    "small-quick": {**SMALL, "quick_gelu": True},
    "small-custom": {**SMALL, "custom_text": True, "init_logit_bias": -10},
}


@pytest.fixture(autouse=True)
def _architectures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the tiny architectures in open_clip."""
    for name, config in ARCHITECTURES.items():
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, config)


def make(name: str, **settings: Any) -> Towers:
    """Return the towers of a model in models_tiny.py or `ARCHITECTURES`, of "miniature", or of its
    "twin" in transformers."""
    if name in ("miniature", "twin"):
        model, second, third = load_clip() if name == "miniature" else load_transformers_clip()
        return Towers(model, *((third, second) if name == "miniature" else (second, third)))
    torch.manual_seed(0)
    preprocess = open_clip.image_transform(32, is_train=False)
    if name in ARCHITECTURES:
        built, _, preprocess = open_clip.create_model_and_transforms(name, **settings)
        tokenizer = open_clip.get_tokenizer(name)
    else:
        kinds = models_tiny.OPEN_CLIP | models_tiny.TOWERS
        built = models_tiny.make("SiglipModel") if name == "siglip" else kinds[name]()
        tokenizer = models_tiny.tokenizer_for(built)
    with torch.no_grad():  # the initial weights make all images, or all texts, nearly identical
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if name == "siglip":
        preprocess = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    return Towers(built.eval(), tokenizer, preprocess)


CAPTIONS = ["a photo of a man", "a bird on the water"]


def features(towers: Towers) -> tuple[Tensor, Tensor]:
    """Return features of two images and two captions, with gradients if parameters are trained."""
    height, width = towers.size
    pixels = torch.linspace(-1, 1, 2 * 3 * height * width).reshape(2, 3, height, width).sin()
    return towers.image(pixels), towers.text(towers.tokenize(CAPTIONS))


def alike(first: Towers, second: Towers, atol: float = 1e-4) -> bool:
    return all(
        torch.allclose(a, b, atol=atol)
        for a, b in zip(features(first), features(second), strict=True)
    )


def step(towers: Towers) -> dict[str, Tensor]:
    """Take a gradient descent step in training mode, and return the previous state dict."""
    before = {name: tensor.clone() for name, tensor in towers.model.state_dict().items()}
    Trainee(towers, nn.Module()).train()  # type: ignore[arg-type]
    torch.stack([part.square().sum() for part in features(towers)]).sum().backward()
    with torch.no_grad():
        for parameter in towers.model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
    towers.model.eval()
    return before


SIDES = dict.fromkeys(("all", "heads", "lora"), (True, True)) | {
    "text": (False, True),
    "image": (True, False),
}


@pytest.mark.parametrize("scope", SIDES)
@pytest.mark.parametrize("name", ["clip", "resnet", "coca", "siglip", "twin"])
def test_trained_parameters_change_and_others_do_not(name: str, scope: str) -> None:
    towers = make(name)
    names = tune(towers, scope)
    # Torch computes frozen attention differently.
    old = [part.detach() for part in features(towers)]
    learning = {n: p for n, p in towers.model.named_parameters() if p.requires_grad}
    assert list(learning) == names
    assert not any("logit" in n for n in names)
    torch.stack([part.square().sum() for part in features(towers)]).sum().backward()
    # DDP would wait for its gradient
    assert [n for n, p in learning.items() if p.grad is None] == []
    towers.model.zero_grad()
    before = step(towers)
    after = towers.model.state_dict()
    if scope == "lora":  # if B is 0, only B has a gradient
        assert all(torch.equal(new, before[n]) for n, new in after.items() if "lora_A" in n)
    moved = {n for n, tensor in after.items() if not torch.equal(tensor, before[n])}
    assert moved - {n for n, _ in towers.model.named_buffers()} <= set(names)
    assert len(moved) >= len(names) // 2 - 1
    # Convolutions do not get adapters.
    sides = (False, True) if (name, scope) == ("resnet", "lora") else SIDES[scope]
    for new, first, does in zip(features(towers), old, sides, strict=True):
        assert torch.equal(new, first) != does


def test_scope_all_excludes_parameters_that_affect_no_feature() -> None:
    both, text, image, heads = (
        set(tune(make("custom"), scope)) for scope in ("all", "text", "image", "heads")
    )
    assert both == text | image
    assert not text & image
    assert heads == {"visual.proj", "text.text_projection"}
    with pytest.raises(InvalidInputError, match="use scope 'text'"):
        tune(make("custom-identity"), "heads")
    assert {name for name, _ in make("custom").model.named_parameters()} - both == {"logit_scale"}
    coca = make("coca")
    assert not any(name.startswith("text_decoder.") for name in tune(coca, "all"))
    assert any(name.startswith("text_decoder.") for name, _ in coca.model.named_parameters())


@pytest.mark.parametrize(("name", "blocks"), [("custom", 1), ("twin", 3)])
@pytest.mark.parametrize("side", ["image", "text"])
def test_only_the_last_blocks_and_later_layers_are_trained(
    name: str, blocks: int, side: str
) -> None:
    towers = make(name)
    everything = set(tune(towers, "all"))
    learning = set(tune(towers, side))
    inside = {text for text in learning if "resblocks." in text or "encoder.layers." in text}
    for last in range(blocks + 1):
        last_blocks = set(tune(towers, side, last={side: last}))
        kept = {
            text
            for text in inside
            if int(re.findall(r"(?:resblocks|layers)\.(\d+)", text)[0]) >= blocks - last
        }
        assert last_blocks & inside == kept
        ends = last_blocks - inside
        assert any("ln_" in text or "norm" in text for text in ends)
        assert not any("emb" in text or "conv1" in text for text in ends)
        assert set(tune(towers, "all", last={side: last})) == everything - (learning - last_blocks)
    with pytest.raises(InvalidInputError, match=f"{side}_blocks: expected at most {blocks}, as in"):
        tune(towers, "all", last={side: blocks + 1})
    towers.model.peft_config = {}
    flat = nn.Linear(1, 1)
    quantized = nn.Parameter(torch.ones(1, dtype=torch.int8), requires_grad=False)
    bare: Any = partial(Mock, model=flat, text_parts=[], heads=[])
    for odd, last, refusal in (
        (towers, {}, "merge them first"),
        (bare(image_parts=[flat]), {"image": 1}, "no blocks; omit image_blocks"),
        (bare(image_parts=[quantized]), {}, "its weights are quantized"),
    ):
        with pytest.raises(UnsupportedHostError, match=refusal):
            tune(odd, "all", last=last)


def adapted(name: str, **settings: Any) -> Towers:
    towers = make(name)
    tune(towers, "lora", **settings)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter_name, parameter in towers.model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(std=0.3)
    return towers


def layers(towers: Towers) -> set[str]:
    return {
        name.partition(".lora_A.")[0]
        for name in dict(towers.model.named_parameters())
        if ".lora_A." in name
    }


def test_adapters_are_added_where_they_affect_features() -> None:
    """Weights that another layer reads directly do not get adapters, such as the output projection
    of MultiheadAttention and attention pools."""
    block = {"attn", "mlp.c_fc", "mlp.c_proj"}
    text = {f"transformer.resblocks.0.{part}" for part in block}
    assert layers(adapted("clip")) == text | {
        f"visual.transformer.resblocks.0.{part}" for part in block
    }
    assert layers(adapted("resnet")) == text
    assert len(layers(adapted("twin"))) == 2 * 3 * 6
    assert not any(part._forward_hooks for part in adapted("clip").model.modules()), (
        "the search for these weights changes nothing"
    )


@pytest.mark.parametrize("name", ["clip", "coca", "twin", "siglip"])
def test_adapters_are_low_rank_changes_of_the_weights(name: str) -> None:
    """Compare with the paper's equation on a copy of the plain model."""
    plain = make(name)
    towers = adapted(name, lora_rank=3)
    assert not alike(plain, towers, atol=1e-3)
    tensors = towers.model.state_dict()
    with torch.no_grad():
        for layer in layers(towers):
            part = plain.model.get_submodule(layer)
            weight = part.weight if isinstance(part, nn.Linear) else part.in_proj_weight
            a, b = (tensors[f"{layer}.lora_{letter}.default.weight"] for letter in "AB")
            assert a.shape[0] == b.shape[1] == 3
            weight += 2.0 * (b @ a)
        assert alike(plain, towers)
    together = merged(towers.model, tensors)
    expected = plain.model.state_dict()
    assert together.keys() == expected.keys()
    assert all(torch.allclose(tensor, expected[key], atol=1e-6) for key, tensor in together.items())


def test_new_adapters_do_not_change_the_output_and_depend_on_their_seed() -> None:
    plain, tuned, again, reseeded = (make("clip") for _ in range(4))
    state = torch.get_rng_state()
    tune(tuned, "lora")
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    tune(again, "lora")
    tune(reseeded, "lora", seed=1)
    assert alike(plain, tuned, atol=1e-6)
    first, second, third = (dict(t.model.named_parameters()) for t in (tuned, again, reseeded))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


def test_frozen_weights_stay_bit_identical_with_adapters() -> None:
    """Frozen weights are not stored in checkpoints. A resumed run uses the original weights, so
    these must not change."""
    towers = adapted("clip")
    before = {
        n: (id(p), p.detach().clone())
        for n, p in towers.model.named_parameters()
        if not p.requires_grad
    }
    for _ in range(20):
        step(towers)
    after = dict(towers.model.named_parameters())
    assert all(
        id(after[n]) == name and torch.equal(after[n], tensor)
        for n, (name, tensor) in before.items()
    )


def assert_same_towers(towers: Towers, reread: Towers, atol: float = 0.0) -> None:
    """Check that image and text features are the same before and after."""
    for parameter in (*towers.model.parameters(), *reread.model.parameters()):
        parameter.requires_grad_(False)  # torch computes frozen attention differently
    assert alike(towers, reread, atol=atol)
    tokens = towers.tokenize(CAPTIONS)
    two = reread.tokenize(CAPTIONS)
    assert tokens.keys() == two.keys()
    assert all(torch.equal(tokens[name], two[name]) for name in tokens)
    assert (towers.size, towers.mean, towers.std) == (reread.size, reread.mean, reread.std)
    assert reread.temperature == pytest.approx(
        float(Towers(towers.model, towers.tokenizer, towers.preprocess).temperature)
    )


@pytest.mark.parametrize("name", ["small-quick", "small-custom", "miniature", "twin"])
def test_a_saved_model_can_be_loaded(name: str, tmp_path: Path) -> None:
    if name.startswith("small"):
        models_tiny.skip_without_folders()
    towers = make(name)
    folder = tmp_path / "model"
    tune(towers, "all")
    with torch.no_grad():
        for parameter in towers.model.parameters():
            parameter.mul_(1.01)
    towers.set_temperature(0.03)
    save_model(towers, folder, scope="all", name=f"{name}/some-tag" if "small" in name else name)
    again = opened(folder)
    assert again.temperature == pytest.approx(0.03)
    assert_same_towers(towers, again)
    made_of = json.loads((folder / "vldebias.json").read_text())
    family = {"miniature": "miniature", "twin": "transformers"}.get(name, "open_clip")
    assert (made_of["family"], made_of["scope"]) == (family, "all")
    assert made_of["vldebias_version"] == vldebias.__version__
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    # A saved model can be trained and saved again, under the name of its folder.
    check_savable(again, name=str(folder))
    save_model(again, tmp_path / "second", scope="all", name=str(folder))
    assert_same_towers(again, opened(tmp_path / "second"), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "library"), [("small-quick", "open_clip"), ("twin", "transformers")]
)
def test_the_tutorial_loads_a_saved_model_in_its_own_library(
    name: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if library == "open_clip":
        models_tiny.skip_without_folders()
    text = TUTORIAL.read_text(encoding="utf-8")
    (block,) = [code for code in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if library in code]
    towers = make(name)
    monkeypatch.chdir(tmp_path)
    save_model(towers, Path("run/model"), scope="all", name=name)
    loaded: dict[str, Any] = {}
    exec(compile(block, str(TUTORIAL), "exec"), loaded)
    if library == "open_clip":
        again = Towers(loaded["model"], loaded["tokenizer"], loaded["preprocess"])
    else:
        processor = loaded["processor"]
        again = Towers(loaded["model"], processor.tokenizer, processor.image_processor)
    assert_same_towers(towers, again)


@pytest.mark.parametrize("name", ["small-one", "twin"])
def test_adapters_are_saved_merged(name: str, tmp_path: Path) -> None:
    if name.startswith("small"):
        models_tiny.skip_without_folders()
    towers = adapted(name)
    plain = make(name)
    before = {key: tensor.clone() for key, tensor in towers.model.state_dict().items()}
    save_model(towers, tmp_path / "model", scope="lora", name=name)
    assert equal(towers.model.state_dict(), before)
    assert not alike(plain, towers, atol=1e-2)
    assert alike(opened(tmp_path / "model"), towers)


def test_a_killed_save_preserves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    towers = make("miniature")
    folder = tmp_path / "model"
    save_model(towers, folder, scope="all", name="miniature")
    expected = features(opened(folder))[1]
    with torch.no_grad():
        towers.model.text_projection.mul_(2)
    monkeypatch.setattr(module, "save_tokenizer", Mock(side_effect=KeyboardInterrupt))
    # A killed process does not clean up.
    monkeypatch.setattr(module.shutil, "rmtree", lambda *args, **options: None)
    with pytest.raises(KeyboardInterrupt):
        save_model(towers, folder, scope="all", name="miniature")
    assert (tmp_path / "model.part" / "clip.safetensors").is_file()
    assert torch.equal(features(opened(folder))[1], expected)
    monkeypatch.undo()
    save_model(towers, folder, scope="all", name="miniature")
    assert not torch.equal(features(opened(folder))[1], expected)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_second_kill_after_one_between_the_two_moves_does_not_lose_anything(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    (tmp_path / "model.before").mkdir()
    (tmp_path / "model.before" / "weights").write_text("the only ones")
    with pytest.raises(FileNotFoundError), replacing(folder) as beside:
        (beside / "no folder" / "weights").write_text("half")
    assert (folder / "weights").read_text() == "the only ones"
    with replacing(folder) as beside:
        (beside / "weights").write_text("new")
    assert (folder / "weights").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_unrelated_files_and_models_with_a_different_vocabulary_raise_errors(
    tmp_path: Path,
) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    for path in (tmp_path, tmp_path / "thesis.txt"):
        with pytest.raises(InvalidInputError, match="other than a saved model"):
            save_model(make("miniature"), path, scope="all", name="miniature")
    assert (tmp_path / "thesis.txt").read_text() == "all of it"
    with pytest.raises(InvalidInputError, match="its own vocabulary"):
        check_savable(make("clip"), name="small-one")


def test_a_model_reaches_the_disk_before_it_replaces_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    monkeypatch.setattr(module, "sync", lambda path: calls.append(path.name))
    replace = module.os.replace
    monkeypatch.setattr(
        module.os, "replace", lambda a, b: calls.append(f"to {Path(b).name}") or replace(a, b)
    )
    for _ in range(2):
        calls.clear()
        save_model(make("miniature"), tmp_path / "model", scope="all", name="miniature")
    moves = [calls.index("to model.before"), calls.index("to model")]
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert {*files, "model.part"} <= set(calls[: moves[0]])
    assert calls[moves[1] :] == ["to model", tmp_path.name]
