"""Tiny open_clip models of every class, and all public paths of their texts."""

from collections.abc import Callable
from typing import Any

import open_clip
import torch
from tiny_tokenizers import CLIP_IDS, open_clip_tokenizer
from torch import Tensor, nn

import vldebias

VISION: dict[str, Any] = {"layers": 1, "width": 32, "head_width": 16, "patch_size": 16, "image_size": 32}
TEXT: dict[str, Any] = {"context_length": 77, "vocab_size": CLIP_IDS, "width": 32, "heads": 2, "layers": 1}
PROMPTS = ["a photo of a doctor", "a photo of the manager", "a photo of a FEMALE doctor", "A WOMAN, smiling", "a human"]
STATED = [False, False, True, True, False]
DIM = 24


def make_clip(**more: Any) -> nn.Module:
    return open_clip.CLIP(DIM, VISION, {**TEXT, **more}, init_logit_bias=-1.0).eval()


def make_whole(**more: Any) -> nn.Module:
    """With rows for all ids of CLIP's own tokenizer, which is the default."""
    return make_clip(vocab_size=49408, **more)


def make_custom(dim: int = DIM, **more: Any) -> nn.Module:
    return open_clip.CustomTextCLIP(dim, VISION, {**TEXT, **more}).eval()


def make_hf(proj: str = "mlp") -> nn.Module:
    """A CustomTextCLIP whose text tower is a Hugging Face model, made from a config."""
    from open_clip.hf_model import HFTextEncoder
    from transformers import BertConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 37}
    config = BertConfig(vocab_size=CLIP_IDS, initializer_range=0.3, **sizes)
    model = make_custom()
    width = 32 if proj == "identity" else DIM
    model.text = HFTextEncoder("", width, config, proj_type=None if proj == "identity" else proj)
    return model.eval()


def make_coca() -> nn.Module:
    text = {**TEXT, "context_length": 76, "embed_cls": True, "output_tokens": True}
    decoder = {"context_length": 76, "vocab_size": CLIP_IDS, "width": 32, "heads": 2, "layers": 1}
    vision = {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    model = open_clip.CoCa(32, decoder, text, vision).eval()
    for parameter in (model.text.text_projection, model.text_decoder.text_projection):
        nn.init.normal_(parameter, std=0.2)
    return model


def with_bias(model: nn.Module) -> nn.Module:
    """open_clip starts the bias of its head at zero, where a fold that forgets it goes unnoticed."""
    nn.init.normal_(getattr(model, "text", model).text_projection.bias)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "clip": make_clip,
    "clip-linear": lambda: with_bias(make_clip(proj_bias=True)),
    "custom": make_custom,
    "custom-linear": lambda: with_bias(make_custom(proj_bias=True)),
    "custom-identity": lambda: make_custom(32, proj_type="none"),
    "hf-mlp": make_hf,
    "hf-linear": lambda: make_hf("linear"),
    "coca": make_coca,
}
FOLDABLE = [name for name in MODELS if name != "custom-identity"]


def make_seeing(**vision: Any) -> nn.Module:
    """A CLIP with an image tower of another kind."""
    return open_clip.CLIP(DIM, {"image_size": 32, **vision}, TEXT).eval()


def make_timm(proj: str) -> nn.Module:
    return make_seeing(timm_model_name="resnet10t", timm_proj=proj, timm_pool="avg")


TOWERS: dict[str, Callable[[], nn.Module]] = {
    **{name: MODELS[name] for name in ("clip", "custom", "hf-mlp", "coca")},
    "resnet": lambda: make_seeing(layers=(1, 1, 1, 1), width=8, head_width=16),
    "timm-linear": lambda: make_timm("linear"),
    "timm-mlp": lambda: make_timm("mlp"),
    "timm": lambda: make_timm(""),  # the classifier of the trunk makes the embedding, and the head has nothing
}
"""Image towers of every kind."""


def tokenizer_for(model: nn.Module) -> Any:
    return open_clip_tokenizer(min(77, model.context_length))


def outputs(model: nn.Module, images: Tensor, prompts: list[str] = PROMPTS) -> dict[str, Tensor]:
    """Every tensor that depends on the text, by the public path that gives it."""
    ids = tokenizer_for(model)(prompts)
    if isinstance(model, open_clip.CoCa):  # its captions belong to their images one by one
        images = images[[0] * len(prompts)]
    found = {
        "encode_text": model.encode_text(ids, normalize=False),
        "normalized": model.encode_text(ids, normalize=True),
        "default": model.encode_text(text=ids),
    }
    both = model(images, ids)
    if isinstance(both, dict):
        return found | {"forward": both["text_features"]}
    found |= {"forward": both[1], "text only": model(text=ids)[1]}
    for key, logits in zip(("image logits", "text logits"), model.get_logits(images, ids), strict=True):
        found[key] = logits
    model.output_dict = True
    found["dict"] = model(images, ids)["text_features"]
    model.output_dict = False
    return found


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


def debias(model: nn.Module, prompts: Any, **more: Any) -> vldebias.Attachment:
    return vldebias.debias(model, prompts, tokenizer=tokenizer_for(model), **more)
