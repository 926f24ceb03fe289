"""The fingerprint: the same through casts, adapters and devices; different for other weights."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from vldebias.edit import Fingerprint
from vldebias.hosts.fingerprint import weights_fingerprint


def tower(seed: int = 0, layers: int = 12, width: int = 48) -> nn.Module:
    """Tensors with weights, biases and norms at their usual starting values."""
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@torch.no_grad()
def perturbed(module: nn.Module, size: float) -> nn.Module:
    """Every tensor turned by `size` of its norm in a random direction, as training does."""
    other = copy.deepcopy(module)
    for p in other.parameters():
        step = torch.randn_like(p)
        p += size * p.norm() * step / step.norm()
    return other


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_a_cast_does_not_change_it(dtype: torch.dtype, seed: int) -> None:
    module = tower(seed)
    cast = copy.deepcopy(module).to(dtype)
    assert weights_fingerprint(module).matches(weights_fingerprint(cast))
    assert weights_fingerprint(cast).matches(weights_fingerprint(module))


@pytest.mark.parametrize("seed", range(5))
def test_other_weights_change_it(seed: int) -> None:
    module = tower(seed)
    assert not weights_fingerprint(module).matches(weights_fingerprint(tower(seed + 1)))
    assert not weights_fingerprint(module).matches(weights_fingerprint(perturbed(module, 0.02)))
    half = copy.deepcopy(module).to(torch.bfloat16)
    assert not weights_fingerprint(half).matches(weights_fingerprint(perturbed(module, 0.02)))


def test_fine_tuning_leaves_the_norms_where_they_were() -> None:
    # Why there are waves: the norms alone would let a fine-tuned tower pass.
    module = tower()
    one, other = weights_fingerprint(module), weights_fingerprint(perturbed(module, 0.02))
    assert not one.matches(other)
    assert replace(one, waves=other.waves).matches(other)


def test_other_shapes_and_names_change_it() -> None:
    assert not weights_fingerprint(tower(layers=2)).matches(weights_fingerprint(tower(layers=3)))
    assert not weights_fingerprint(tower(width=48)).matches(weights_fingerprint(tower(width=44)))
    one, other = nn.Linear(3, 3), nn.ModuleDict({"a": nn.Linear(3, 3)})
    other["a"].load_state_dict(one.state_dict())
    assert not weights_fingerprint(one).matches(weights_fingerprint(other))


def test_several_towers_are_one_fingerprint() -> None:
    a, b = nn.Linear(4, 4), nn.Linear(4, 4)
    assert weights_fingerprint(a, b).matches(weights_fingerprint(a, b))
    assert not weights_fingerprint(a, b).matches(weights_fingerprint(b, a))


def test_an_adapter_does_not_change_it() -> None:
    module = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    before = weights_fingerprint(module)
    model = get_peft_model(copy.deepcopy(module), LoraConfig(target_modules=["0", "2"], r=2))
    inside = model.base_model.model
    assert any("lora_" in name for name, _ in inside.named_parameters()), "no adapter, no test"
    assert before.matches(weights_fingerprint(inside))
    with torch.no_grad():
        for name, parameter in inside.named_parameters():
            if "lora_" in name:
                parameter.fill_(0.3)
    count = sum(p.numel() for name, p in inside.named_parameters() if "lora_" in name)
    assert weights_fingerprint(inside).adapters == round(0.3 * count**0.5, 6), "the length of all of them together"


def test_absent_weights_have_none_and_exclude_nothing() -> None:
    with torch.device("meta"):
        meta = nn.Linear(4, 4)
    assert weights_fingerprint(meta) is None
    assert weights_fingerprint(nn.ReLU()) is None
    assert weights_fingerprint() is None
    found = weights_fingerprint(nn.Linear(4, 4))
    assert found.matches(None)


def test_it_is_small_plain_and_repeatable() -> None:
    module = tower()
    found = weights_fingerprint(module)
    assert found == weights_fingerprint(module)
    assert len(found.norms) == len(found.waves) == 16
    assert all(isinstance(x, float) for x in found.norms + found.waves)
    assert Fingerprint.of(json.loads(json.dumps(found.to_dict()))) == found


def test_large_tensors_are_sampled() -> None:
    large = nn.Linear(3000, 300, bias=False)
    before = weights_fingerprint(large)
    with torch.no_grad():
        large.weight.mul_(1.02)
    assert not before.matches(weights_fingerprint(large))


def test_weights_of_zero_are_told_from_trained_ones() -> None:
    one, other = nn.Linear(8, 8), nn.Linear(8, 8)
    other.load_state_dict(one.state_dict())
    nn.init.zeros_(one.bias)
    assert not weights_fingerprint(one).matches(weights_fingerprint(other))
    nn.init.zeros_(other.bias)
    assert weights_fingerprint(one).matches(weights_fingerprint(other))
