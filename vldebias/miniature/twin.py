"""Renames the weights of an open_clip CLIP to those of transformers' CLIPModel: the same numbers, split anew."""

import torch

__all__ = ["to_transformers"]

Weights = dict[str, torch.Tensor]

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


def to_transformers(weights: Weights) -> Weights:
    """State dict of an open_clip CLIP to the state dict of a CLIPModel with `transformers_config`."""
    renamed = {new: weights[old] for old, new in _PLAIN.items()}
    renamed["text_projection.weight"] = weights["text_projection"].T.contiguous()
    renamed["visual_projection.weight"] = weights["visual.proj"].T.contiguous()
    for name, tensor in weights.items():
        tower, found, rest = name.partition("transformer.resblocks.")
        if found:
            side = "vision_model" if tower == "visual." else "text_model"
            layer, _, inner = rest.partition(".")
            renamed.update(_block(f"{side}.encoder.layers.{layer}", inner, tensor))
    return renamed


def _block(prefix: str, inner: str, tensor: torch.Tensor) -> Weights:
    """One tensor of a residual block; open_clip stacks query, key and value, transformers keeps them apart."""
    if inner.startswith("attn.in_proj_"):
        kind = inner.removeprefix("attn.in_proj_")
        parts = zip("qkv", tensor.chunk(3), strict=True)
        return {f"{prefix}.self_attn.{letter}_proj.{kind}": part.clone() for letter, part in parts}
    module, _, kind = inner.rpartition(".")
    return {f"{prefix}.{_BLOCK[module]}.{kind}": tensor}
