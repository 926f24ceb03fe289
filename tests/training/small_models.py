"""Image-text models of both libraries, small and with random weights, and their towers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import open_clip
import torch
import transformers
from torch import nn

from vldebias.hosts.towers import Towers, towers
from vldebias.miniature import load_clip, load_transformers_clip, weights_dir
from vldebias.miniature.tokenizer import open_clip_tokenizer, transformers_tokenizer

DIM = 24
VISION: dict[str, Any] = {"layers": 1, "width": 32, "head_width": 16, "patch_size": 16, "image_size": 32}
RESNET: dict[str, Any] = {"layers": (1, 1, 1, 1), "width": 8, "head_width": 8, "image_size": 32}
TEXT: dict[str, Any] = {"context_length": 24, "vocab_size": 1600, "width": 32, "heads": 2, "layers": 1}
LAYERS = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 1, "num_attention_heads": 2}
PICTURES = {**LAYERS, "image_size": 32, "patch_size": 16}


def coca() -> nn.Module:
    text = {**TEXT, "embed_cls": True, "output_tokens": True}
    vision = {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    model = open_clip.CoCa(DIM, TEXT, text, vision)
    for parameter in (model.text.text_projection, model.text_decoder.text_projection):  # which open_clip leaves unset
        nn.init.normal_(parameter, std=0.2)
    return model


def siglip() -> nn.Module:
    text = {**LAYERS, "vocab_size": len(words()), "max_position_embeddings": 24, "projection_size": 32}
    return transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=PICTURES))


def align() -> nn.Module:
    vision = {
        **{"image_size": 32, "kernel_sizes": [3], "in_channels": [32], "out_channels": [16], "strides": [1]},
        **{"num_block_repeats": [1], "expand_ratios": [1], "hidden_dim": 32, "depthwise_padding": []},
    }
    text = {**LAYERS, "vocab_size": len(words())}
    return transformers.AlignModel(transformers.AlignConfig(text_config=text, vision_config=vision, projection_dim=32))


@cache
def words() -> Any:
    return transformers_tokenizer(weights_dir())


@cache
def clip_words() -> Any:
    return open_clip_tokenizer(weights_dir())


MODELS: dict[str, Callable[[], nn.Module]] = {
    "clip": lambda: open_clip.CLIP(DIM, VISION, TEXT, init_logit_bias=-1.0),
    "quick": lambda: open_clip.CLIP(DIM, VISION, TEXT, True),
    "resnet": lambda: open_clip.CLIP(DIM, RESNET, TEXT),
    "custom": lambda: open_clip.CustomTextCLIP(DIM, VISION, TEXT),
    "headless": lambda: open_clip.CustomTextCLIP(32, VISION, {**TEXT, "proj_type": "none"}),
    "coca": coca,
    "siglip": siglip,
    "align": align,
}


def make(name: str) -> Towers:
    """The towers of one of `MODELS`, or of "miniature" or its "twin" in transformers."""
    if name == "miniature":
        model, preprocess, tokenizer = load_clip()
        return towers(model, tokenizer, preprocess)
    if name == "twin":
        twin, tokenizer, processor = load_transformers_clip()
        return towers(twin, tokenizer, processor)
    torch.manual_seed(0)
    found: Any = MODELS[name]().eval()
    with torch.no_grad():  # initial weights make all images, or all texts, nearly the same
        for parameter in found.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if name in ("siglip", "align"):
        size = {"height": 32, "width": 32}
        return towers(found, words(), transformers.SiglipImageProcessor(size=size))
    return towers(found, clip_words(), open_clip.image_transform(32, is_train=False))


CAPTIONS = ["a photo of a man", "a bird on the water"]


def features(found: Towers) -> tuple[torch.Tensor, torch.Tensor]:
    """Of two images and two captions, with gradients where something learns."""
    height, width = found.size
    pixels = torch.linspace(-1, 1, 2 * 3 * height * width).reshape(2, 3, height, width).sin()
    return found.image(pixels), found.text(found.tokenize(CAPTIONS))
