"""Convert the miniature CLIP model to transformers."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vldebias.errors import need
from vldebias.miniature import weights_dir
from vldebias.miniature.architectures import (
    HEAD_WIDTH,
    IMAGE_MEAN,
    IMAGE_STD,
    LAYERS,
    MLP_RATIO,
    PATCH_SIZE,
    Widths,
    text_config,
)
from vldebias.miniature.models import load_weights
from vldebias.miniature.tokenizer import transformers_tokenizer
from vldebias.miniature.words import SIZE

if TYPE_CHECKING:
    from transformers import CLIPImageProcessor, CLIPModel, CLIPTokenizer

# A mapping from open_clip names to transformers names, inside and outside of residual blocks.
_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
_PLAIN = {
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "ln_final.weight": "text_model.final_layer_norm.weight",
    "ln_final.bias": "text_model.final_layer_norm.bias",
    "logit_scale": "logit_scale",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "visual.ln_pre.weight": "vision_model.pre_layrnorm.weight",
    "visual.ln_pre.bias": "vision_model.pre_layrnorm.bias",
    "visual.ln_post.weight": "vision_model.post_layernorm.weight",
    "visual.ln_post.bias": "vision_model.post_layernorm.bias",
}


def load_transformers_clip(
    folder: Path | None = None,
) -> "tuple[CLIPModel, CLIPTokenizer, CLIPImageProcessor]":
    """Return a CLIPModel in eval mode, a tokenizer and an image processor.

    They use the weights of the given build, or the packaged ones.
    """
    transformers = need("transformers")
    folder = weights_dir() if folder is None else folder
    tokenizer, weights = transformers_tokenizer(folder), load_weights(folder / "clip.safetensors")
    towers = Widths.from_weights(weights)
    vision = transformers.CLIPVisionConfig(
        image_size=SIZE,
        patch_size=PATCH_SIZE,
        hidden_size=towers.vision,
        intermediate_size=int(towers.vision * MLP_RATIO),
        num_hidden_layers=LAYERS,
        num_attention_heads=towers.vision // HEAD_WIDTH,
        hidden_act="gelu",
        layer_norm_eps=1e-5,
        projection_dim=towers.joint,
    )
    text = text_config(len(tokenizer), towers.text, towers.joint)
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=towers.joint
        )
    )
    missing, unexpected = model.load_state_dict(to_transformers(weights), strict=False)
    if unexpected or [name for name in missing if not name.endswith("position_ids")]:
        raise RuntimeError(f"state dicts differ: missing {missing}, unexpected {unexpected}")
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_mean=list(IMAGE_MEAN),
        image_std=list(IMAGE_STD),
    )
    return model.eval(), tokenizer, processor


def to_transformers(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert an open_clip CLIP state dict to that of a CLIPModel with `transformers_config`."""
    renamed = {new: weights[old] for old, new in _PLAIN.items()}
    renamed["text_projection.weight"] = weights["text_projection"].T.contiguous()
    renamed["visual_projection.weight"] = weights["visual.proj"].T.contiguous()
    for name, tensor in weights.items():
        tower, in_block, rest = name.partition("transformer.resblocks.")
        if not in_block:
            continue
        layer, _, inner = rest.partition(".")
        prefix = f"{'vision_model' if tower == 'visual.' else 'text_model'}.encoder.layers.{layer}"
        module, _, kind = inner.rpartition(".")
        # open_clip stacks query, key and value, while transformers stores them separately.
        if module == "attn":
            for letter, part in zip("qkv", tensor.chunk(3), strict=True):
                renamed[f"{prefix}.self_attn.{letter}_proj.{kind.removeprefix('in_proj_')}"] = (
                    part.clone()
                )
        else:
            renamed[f"{prefix}.{_BLOCK[module]}.{kind}"] = tensor
    return renamed
