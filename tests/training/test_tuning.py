"""Scopes: what learns, that it has gradients, and that the rest does not move."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_models import MODELS, features, make
from torch import nn

from vldebias.errors import InvalidInputError, MissingPackageError, UnsupportedHostError
from vldebias.hosts.towers import Towers
from vldebias.training.optim import keep_frozen_still, parameter_groups
from vldebias.training.sharded import scalars_held
from vldebias.training.tuning import SCOPES, depths, layer_rates, merged, save_adapter, tune

WITH_HEADS = [*(name for name in MODELS if name not in ("headless", "align", "quick")), "twin"]
SIDES = {
    "all": (True, True),
    "text": (False, True),
    "image": (True, False),
    "heads": (True, True),
    "lora": (True, True),
}


def loss(found: Towers) -> torch.Tensor:
    image, text = features(found)
    return image.square().sum() + text.square().sum()


def step(found: Towers) -> dict[str, torch.Tensor]:
    """One step of plain descent in train mode; returns what the state dict was before."""
    before = {name: tensor.clone() for name, tensor in found.model.state_dict().items()}
    found.model.train()
    keep_frozen_still(found.model)
    loss(found).backward()
    with torch.no_grad():
        for parameter in found.model.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
    found.model.eval()
    return before


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", WITH_HEADS)
def test_what_learns_moves_and_the_rest_does_not(name: str, scope: str) -> None:
    found = make(name)
    names = tune(found, scope)
    old = [part.detach() for part in features(found)]  # torch computes frozen attention in another way
    learning = {n: p for n, p in found.model.named_parameters() if p.requires_grad}
    assert list(learning) == names
    assert not any("logit" in n or n == "temperature" for n in names)
    loss(found).backward()
    assert [n for n, p in learning.items() if p.grad is None] == []  # DDP would wait for one
    found.model.zero_grad()
    before = step(found)
    if scope == "lora":  # where B is 0, only B has a gradient
        assert all(
            torch.equal(new, first)
            for n, new in found.model.state_dict().items()
            if "lora_A" in n
            for first in [before[n]]
        )
    moved = {n for n, tensor in found.model.state_dict().items() if not torch.equal(tensor, before[n])}
    buffers = {n for n, _ in found.model.named_buffers()}
    assert moved - buffers <= set(names)
    assert len(moved) >= len(names) // 2 - 1
    sides = (False, True) if (name, scope) == ("resnet", "lora") else SIDES[scope]  # convolutions get no adapters
    for new, first, does in zip(features(found), old, sides, strict=True):
        assert torch.equal(new, first) != does


def test_all_and_the_towers() -> None:
    every, text, image, heads = (set(tune(make("custom"), scope)) for scope in ("all", "text", "image", "heads"))
    assert every == text | image
    assert not text & image
    assert all(name.startswith("visual.") for name in image)
    assert heads == {"visual.proj", "text.text_projection"}
    assert {name for name, _ in make("custom").model.named_parameters()} - every == {"logit_scale"}


def test_what_reaches_no_feature_is_frozen() -> None:
    coca, align = make("coca"), make("align")
    assert not any(name.startswith("text_decoder.") for name in tune(coca, "all"))
    assert any(name.startswith("text_decoder.") for name, _ in coca.model.named_parameters())
    assert not any("pooler.dense" in name for name in tune(align, "all"))
    assert not any("pooler.dense" in name for name in tune(make("align"), "lora"))


def test_scopes_follow_each_other() -> None:
    found = make("clip")
    first = tune(found, "all")
    assert tune(found, "heads") == ["text_projection", "visual.proj"]
    assert tune(found, "all") == first


def test_modes_are_left_as_they_were() -> None:
    found = make("clip")
    found.model.visual.train()
    modes = [module.training for module in found.model.modules()]
    tune(found, "text")
    assert [module.training for module in found.model.modules()] == modes


@pytest.mark.parametrize(("name", "side"), [("headless", "text"), ("align", "image")])
def test_towers_without_a_head(name: str, side: str) -> None:
    with pytest.raises(InvalidInputError, match=rf"scope 'heads': the {side} tower of \w+ ends without a projection"):
        tune(make(name), "heads")


def test_errors() -> None:
    with pytest.raises(InvalidInputError, match="scope: expected one of all, text, image, heads, lora, got 'most'"):
        tune(make("clip"), "most")
    with pytest.raises(InvalidInputError, match=r"expected rank >= 1 and alpha > 0, got 0 and 16\.0"):
        tune(make("clip"), "lora", lora_rank=0)
    found = make("clip")
    tune(found, "lora")
    with pytest.raises(UnsupportedHostError, match="CLIP: carries adapters of peft already; merge them"):
        tune(found, "all")


def test_quantized_weights_are_refused() -> None:
    found = make("clip")
    for parameter in found.model.visual.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(torch.int8)
    with pytest.raises(UnsupportedHostError, match="CLIP: its weights are quantized"):
        tune(found, "image")


# ---- adapters


def adapted(name: str, **more: Any) -> Towers:
    """With adapters that do something."""
    found = make(name)
    tune(found, "lora", **more)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter_name, parameter in found.model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(std=0.3)
    return found


def layers(found: Towers) -> set[str]:
    return {name.partition(".lora_A.")[0] for name in dict(found.model.named_parameters()) if ".lora_A." in name}


def test_adapters_go_where_the_model_looks() -> None:
    """Not to weights that are read past their layer: a MultiheadAttention's output, the attention pool of a ResNet."""
    block = {"attn", "mlp.c_fc", "mlp.c_proj"}
    text = {f"transformer.resblocks.0.{part}" for part in block}
    assert layers(adapted("clip")) == text | {f"visual.transformer.resblocks.0.{part}" for part in block}
    assert layers(adapted("resnet")) == text
    assert len(layers(adapted("twin"))) == 2 * 3 * 6


@pytest.mark.parametrize("name", ["clip", "custom", "coca", "twin", "siglip"])
def test_adapters_are_low_rank_changes_of_the_weights(name: str) -> None:
    """The equation of the paper, on a copy of the plain model."""
    plain, found = make(name), adapted(name, lora_rank=3, lora_alpha=6.0)
    with torch.no_grad():
        old, new = features(plain), features(found)
        assert not any(torch.allclose(one, other, atol=1e-3) for one, other in zip(old, new, strict=True))
        tensors = found.model.state_dict()
        for layer in layers(found):
            module = plain.model.get_submodule(layer)
            weight = module.weight if isinstance(module, nn.Linear) else module.in_proj_weight
            a, b = (tensors[f"{layer}.lora_{letter}.default.weight"] for letter in "AB")
            assert a.shape[0] == b.shape[1] == 3
            weight += 2.0 * (b @ a)
        for one, other in zip(features(plain), new, strict=True):
            assert torch.allclose(one, other, atol=1e-4)
    for module_name, tensor in merged(found.model, tensors).items():
        assert torch.allclose(tensor, plain.model.state_dict()[module_name], atol=1e-6)
    assert merged(found.model, tensors).keys() == plain.model.state_dict().keys()


def test_new_adapters_change_nothing_and_follow_their_seed() -> None:
    found, again, other = make("clip"), make("clip"), make("clip")
    expected = features(found)
    state = torch.get_rng_state()
    tune(found, "lora")
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    tune(again, "lora")
    tune(other, "lora", seed=1)
    assert all(torch.allclose(one, new, atol=1e-6) for one, new in zip(expected, features(found), strict=True))
    one, two, three = (dict(t.model.named_parameters()) for t in (found, again, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], three[name]) for name in one)


def test_frozen_weights_do_not_drift_under_adapters() -> None:
    """They are in no checkpoint of a run, so a resumed one has them as loaded: a bit's change would part the two."""
    found = adapted("clip")
    before = {n: p.detach().clone() for n, p in found.model.named_parameters() if not p.requires_grad}
    same = {n: id(p) for n, p in found.model.named_parameters()}
    for _ in range(20):
        step(found)
    assert {n: id(p) for n, p in found.model.named_parameters()} == same
    after = dict(found.model.named_parameters())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.parametrize("name", ["clip", "twin"])
def test_peft_reads_a_saved_adapter(name: str, tmp_path: Path) -> None:
    from peft import PeftModel

    found, plain = adapted(name), make(name)
    save_adapter(found.model, found.model.state_dict(), tmp_path / "adapter", base="its/name")
    assert (
        json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"] == "its/name"
    )
    old, expected = features(plain), features(found)
    wrapped = PeftModel.from_pretrained(plain.model, str(tmp_path / "adapter"))
    for first, one, other in zip(old, features(plain), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
        assert not torch.allclose(first, other, atol=1e-3)
    wrapped.merge_and_unload()
    for one, other in zip(features(plain), expected, strict=True):
        assert torch.allclose(one, other, atol=1e-4)


def test_peft_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingPackageError, match=r"peft is needed .*: pip install 'vldebias\[lora\]'"):
        tune(make("clip"), "lora")


# ---- what is frozen stays still


def test_batch_norm_of_a_frozen_tower_keeps_its_statistics() -> None:
    def moved(still: bool) -> set[str]:
        found = make("resnet")
        tune(found, "text")
        found.model.train()
        if still:
            keep_frozen_still(found.model)
        before = {n: b.clone() for n, b in found.model.named_buffers()}
        features(found)
        return {n for n, b in found.model.named_buffers() if not torch.equal(b, before[n])}

    assert moved(still=True) == set()
    assert len(moved(still=False)) > 10


# ---- blocks


@pytest.mark.parametrize("name", ["clip", "custom", "siglip", "twin"])
def test_depths_go_from_what_reads_to_what_ends(name: str) -> None:
    found = make(name)
    names = {parameter: name for name, parameter in found.model.named_parameters()}
    for side in ("image", "text"):
        depth, levels = depths(found, side)
        blocks = {p: names[p] for p, level in depth.items() if 0 < level < levels}
        assert all("resblocks." in text or "layers." in text for text in blocks.values())
        first, last = ({names[p] for p, level in depth.items() if level == want} for want in (0, levels))
        assert any("emb" in text or "conv1" in text for text in first)
        assert not any("emb" in text or "conv1" in text for text in last)
        assert any("ln_" in text or "norm" in text for text in last)
        numbers = {
            level: {
                text.split("resblocks.")[-1].split("layers.")[-1].split(".")[0]
                for p, text in blocks.items()
                if depth[p] == level
            }
            for level in range(1, levels)
        }
        assert numbers == {level: {str(level - 1)} for level in range(1, levels)}


def test_only_the_last_blocks_learn() -> None:
    found = make("twin")
    _, levels = depths(found, "image")
    everything = set(tune(found, "all"))
    some = set(tune(found, "all", last={"image": 1, "text": None}))
    depth, _ = depths(found, "image")
    names = {parameter: name for name, parameter in found.model.named_parameters()}
    locked = {names[p] for p, level in depth.items() if level < levels - 1}
    assert everything - some == locked & everything
    assert {"visual_projection.weight", "text_projection.weight"} <= some
    assert {name for name in some if "text" in name} == {name for name in everything if "text" in name}
    heads = set(tune(found, "image", last={"image": 0}))
    assert heads == {names[p] for p, k in depth.items() if k == levels} & everything
    with pytest.raises(InvalidInputError, match=f"layers: the image tower has {levels - 1} blocks, got {levels}"):
        tune(found, "all", last={"image": levels})


def test_rates_fall_by_a_factor_from_block_to_block() -> None:
    found = make("twin")
    rates = layer_rates(found, 0.5)
    for side in ("image", "text"):
        depth, levels = depths(found, side)
        for parameter, level in depth.items():
            assert rates[parameter] == 0.5 ** (levels - level)
    groups = parameter_groups(found.model, 0.1, rates)
    assert all(len({rates.get(p, 1.0) for p in group["params"]} | {group["rate"]}) == 1 for group in groups)
    assert len(groups) > 4


def test_a_tower_without_blocks_says_so() -> None:
    found = make("clip")
    found.image_parts = (found.model.visual.conv1,)
    with pytest.raises(UnsupportedHostError, match="CLIP: the image tower has no run of blocks to count"):
        depths(found, "image")


# ---- groups, scalars


def test_vectors_and_scalars_do_not_decay() -> None:
    found = make("clip")
    tune(found, "all")
    module = nn.ModuleDict({"model": found.model, "loss": nn.Linear(1, 1)})
    module["loss"].temperature = nn.Parameter(torch.ones(()))
    groups = parameter_groups(module, 0.2)
    assert [group["weight_decay"] for group in groups] == [0.2, 0.0]
    names = {id(p): name for name, p in module.named_parameters()}
    decaying, others = ({names[id(p)] for p in group["params"]} for group in groups)
    assert decaying | others == {name for name, p in module.named_parameters() if p.requires_grad}
    assert len(decaying) + len(others) == sum(len(group["params"]) for group in groups)
    assert all(name.endswith("bias") or "ln_" in name or "class_emb" in name or "temp" in name for name in others)
    assert {"model.visual.proj", "model.visual.conv1.weight", "model.positional_embedding"} < decaying
    tune(found, "heads")
    assert [len(group["params"]) for group in parameter_groups(found.model, 0.2)] == [2]


def test_scalars_can_be_held_as_buffers() -> None:
    found = make("clip")
    tune(found, "all")
    before = copy.deepcopy(found.model.state_dict())
    with scalars_held(found.model):
        assert all(p.ndim > 0 for p in found.model.parameters())
        after = found.model.state_dict()
        assert sorted(after) == sorted(before)
        assert all(torch.equal(after[name], before[name]) for name in before)
        found.set_temperature(0.5)
    assert isinstance(found.model.logit_scale, nn.Parameter)
    assert not found.model.logit_scale.requires_grad
    assert float(found.model.logit_scale.exp()) == pytest.approx(2)


SHARDED = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
sys.path.insert(0, sys.argv[1])
from small_models import features, make
from vldebias.training.saving import whole_weights
from vldebias.training.sharded import scalars_held
from vldebias.training.tuning import tune
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=sys.argv[2], RANK=sys.argv[3], WORLD_SIZE="2")
dist.init_process_group("gloo")
for name, scope in (("clip", "all"), ("clip", "lora"), ("twin", "lora")):
    found = make(name)
    tune(found, scope)
    plain = {key: tensor.clone() for key, tensor in found.model.state_dict().items()}
    sum(part.square().sum() for part in features(found)).backward()
    expected = {key: p.grad.clone() for key, p in found.model.named_parameters() if p.grad is not None}
    found.model.zero_grad()
    with scalars_held(found.model):
        class Both(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = found.model
            def forward(self):
                return sum(part.square().sum() for part in features(found))

        kinds = ("ResidualAttentionBlock", "CLIPEncoderLayer")
        blocks = [m for m in found.model.modules() if type(m).__name__ in kinds]
        assert len(blocks) >= 2
        for block in blocks:
            fully_shard(block)
        both = fully_shard(Both())
        both().backward()
        for key, p in found.model.named_parameters():
            if key in expected:
                assert torch.allclose(p.grad.full_tensor(), expected[key], atol=1e-4), (name, scope, key)
        whole = whole_weights(found.model)
        assert all(torch.equal(whole[key], plain[key]) for key in plain), (name, scope)
dist.destroy_process_group()
print("equal")
"""


@pytest.mark.slow
def test_two_processes_that_share_the_weights() -> None:
    """FSDP2: the towers call the parts of the model by name, so they meet the gathered weights."""
    import socket

    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-W", "ignore", "-c", SHARDED, str(Path(__file__).parent), port]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([*command, rank], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        for rank in ("0", "1")
    ]
    said = [process.communicate(timeout=240)[0] for process in running]
    assert [text.strip().splitlines()[-1] for text in said] == ["equal", "equal"], said
