"""Merged weights that were saved and loaded are not projected once more."""

from pathlib import Path
from typing import Any

import diffusers_tiny
import open_clip_tiny
import pytest
import torch
import transformers_tiny
from safetensors.torch import load_file, save_file

import vldebias
from vldebias.errors import AlreadyAttachedError
from vldebias.hosts.marks import is_stamped, stamp
from vldebias.prompts import PromptSet

NOTE = r"hold a projection since merge\(\): tiny-gender \(cali\) at strength 0\.5\. Projecting twice"


def merged(host: Any, gender: PromptSet, **more: Any) -> None:
    vldebias.debias(host, gender, method="cali", strength=0.5, keep_stated=False, **more).merge()


def test_a_model_of_transformers(gender: PromptSet, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    case = transformers_tiny.Case("CLIPModel", request)
    case.model.save_pretrained(tmp_path / "before")
    merged(case.model, gender, tokenizer=case.tokenizer)
    case.model.save_pretrained(tmp_path / "after")
    for dtype in (torch.float32, torch.bfloat16):
        again = type(case.model).from_pretrained(tmp_path / "after", dtype=dtype)
        with pytest.raises(AlreadyAttachedError, match=NOTE):
            vldebias.debias(again, gender, tokenizer=case.tokenizer)
    before = type(case.model).from_pretrained(tmp_path / "before")
    vldebias.debias(before, gender, tokenizer=case.tokenizer).remove()


@pytest.mark.filterwarnings("ignore:.*two branches of guidance")
def test_a_pipeline(gender: PromptSet, tmp_path: Path) -> None:
    make, _ = diffusers_tiny.FAMILIES["StableDiffusionXL"]
    pipe, other = diffusers_tiny.own(make()), diffusers_tiny.own(make())
    merged(pipe, gender)
    pipe.unet.save_pretrained(tmp_path)
    other.unet = type(pipe.unet).from_pretrained(tmp_path, torch_dtype=torch.float16)
    with pytest.raises(AlreadyAttachedError, match=NOTE):
        vldebias.debias(other, gender)
    other.unet = make().unet
    vldebias.debias(other, gender).remove()


@pytest.mark.parametrize("name", open_clip_tiny.FOLDABLE)
def test_a_checkpoint_of_open_clip(name: str, gender: PromptSet, tmp_path: Path) -> None:
    model = open_clip_tiny.MODELS[name]()
    tokenizer = open_clip_tiny.tokenizer_for(model)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    merged(model, gender, tokenizer=tokenizer)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    again = open_clip_tiny.MODELS[name]()
    again.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    with pytest.raises(AlreadyAttachedError, match=r"since merge\(\): a projection\. Projecting twice"):
        vldebias.debias(again, gender, tokenizer=tokenizer)
    again.load_state_dict(before)
    vldebias.debias(again, gender, tokenizer=tokenizer).remove()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_stamp_moves_no_value_by_more_than_its_last_bit(dtype: torch.dtype) -> None:
    weight = torch.randn(24, 32).to(dtype)
    weight[0] = 0
    before = weight.clone()
    assert not is_stamped(weight)
    stamp(weight)
    assert is_stamped(weight)
    moved = weight != before
    assert 0 < moved.sum() <= 64
    assert ((weight - before).abs().double() <= torch.finfo(dtype).eps * before.abs().double() + 1e-7).all()
    once = weight.clone()
    stamp(weight)
    assert torch.equal(weight, once)


def test_what_has_no_room_is_left_as_it_is() -> None:
    for weight in (torch.ones(7, 9), torch.ones(99, dtype=torch.int8), torch.ones(99, device="meta")):
        stamp(weight)
        assert not is_stamped(weight)
