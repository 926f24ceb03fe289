"""Merged weights are not projected once more, where a config says so also after they were saved and loaded."""

from pathlib import Path
from typing import Any

import diffusers_tiny
import open_clip_tiny
import pytest
import torch
import transformers_tiny

import vldebias
from vldebias.errors import AlreadyAttachedError
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
def test_a_model_of_open_clip(name: str, gender: PromptSet) -> None:
    """Its state dict has no place for a note: the model that was merged in this process is refused, no other."""
    model = open_clip_tiny.MODELS[name]()
    tokenizer = open_clip_tiny.tokenizer_for(model)
    merged(model, gender, tokenizer=tokenizer)
    with pytest.raises(AlreadyAttachedError, match=r"since merge\(\)\. Projecting twice"):
        vldebias.debias(model, gender, tokenizer=tokenizer)
    vldebias.debias(open_clip_tiny.MODELS[name](), gender, tokenizer=tokenizer).remove()
