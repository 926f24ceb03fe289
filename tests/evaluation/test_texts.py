"""Texts under a projection are what a model with the attachment gives; a table of embeddings stands in for a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import vldebias
from vldebias.errors import UnsupportedHostError
from vldebias.evaluation.images import fit_method
from vldebias.evaluation.session import text_host
from vldebias.hosts import resolve
from vldebias.methods import METHODS
from vldebias.miniature import load_clip, load_pipeline
from vldebias.prompts import PromptSet

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")

JOBS = ("doctor", "nurse", "chef")
GENDER = PromptSet(
    name="small-gender",
    groups=tuple((f"A photo of a male {job}.", f"A photo of a female {job}.") for job in JOBS),
    spurious=("A photo of a man.", "A photo of a woman."),
    classes=tuple(f"A photo of a {job}." for job in JOBS),
    class_names=JOBS,
    stated_words=("man", "woman", "male", "female"),
)
FREE = ["A photo of a nurse.", "A photo of the manager.", "A photo of a pilot."]
STATED = ["A photo of a male nurse.", "a photo of a WOMAN"]
SETTINGS = [
    ("cali", 1.0, True),
    ("cali", 1.0, False),
    ("orth-cali", 0.3, True),
    ("orth", 1.0, False),
    ("orth", 0.0, True),
]
Encode = Callable[[Sequence[str]], Tensor]


def open_clip_model() -> tuple[nn.Module, Any, Encode]:
    model, _, tokenizer = load_clip()
    return model, tokenizer, lambda prompts: model.encode_text(tokenizer(list(prompts)), normalize=True)


def transformers_model() -> tuple[nn.Module, Any, Encode]:
    from transformers import CLIPConfig, CLIPModel

    tokenizer = load_pipeline().tokenizer
    layers = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    text = {**layers, **ids, "vocab_size": len(tokenizer), "max_position_embeddings": tokenizer.model_max_length}
    vision = {**layers, "image_size": 32, "patch_size": 16}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)).eval()
    with torch.no_grad():  # the usual initial weights make all prompts nearly the same
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)

    def encode(prompts: Sequence[str]) -> Tensor:
        found = model.get_text_features(**tokenizer(list(prompts), return_tensors="pt", padding=True))
        return normalize(getattr(found, "pooler_output", found), dim=-1)

    return model, tokenizer, encode


@pytest.mark.parametrize("make", [open_clip_model, transformers_model])
@torch.no_grad()
def test_under_is_what_an_attached_model_gives(make: Callable[[], tuple[nn.Module, Any, Encode]]) -> None:
    model, tokenizer, encode = make()
    texts = resolve(model, tokenizer=tokenizer)
    assert fit_method(texts, GENDER, "none") is None
    assert torch.equal(texts.under(FREE, "joint", None), texts.embed(FREE))
    torch.testing.assert_close(texts.embed(FREE + STATED).float(), encode(FREE + STATED), atol=2e-5, rtol=0)
    for method, strength, keep in SETTINGS:
        lam = 500.0 if METHODS[method].has_lam else None
        projection = fit_method(texts, GENDER, method, lam)
        found = texts.under(FREE + STATED, "joint", projection, strength=strength, keep_stated=keep)
        how = {"method": method, "lam": lam, "strength": strength, "keep_stated": keep}
        with vldebias.debias(model, GENDER, tokenizer=tokenizer, **how):
            torch.testing.assert_close(found.float(), encode(FREE + STATED), atol=5e-5, rtol=0)
        alike = torch.isclose(found, texts.embed(FREE + STATED), atol=1e-3).all(1).tolist()
        assert alike == [strength == 0] * len(FREE) + [strength == 0 or keep] * len(STATED)


def test_texts_of_an_attached_model_are_not_projected() -> None:
    """A cache of rows that depended on what is attached at the moment would be wrong afterwards."""
    model, tokenizer, _ = open_clip_model()
    rows = resolve(model, tokenizer=tokenizer).embed(FREE)
    with vldebias.debias(model, GENDER, tokenizer=tokenizer):
        torch.testing.assert_close(resolve(model, tokenizer=tokenizer).embed(FREE), rows)


def test_a_pipeline_is_refused() -> None:
    with pytest.raises(UnsupportedHostError, match="expected an image-text model"):
        text_host(load_pipeline())
