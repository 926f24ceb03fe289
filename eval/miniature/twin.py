"""Convert the miniature CLIP model to transformers."""

import torch

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


def to_transformers(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Convert an open_clip CLIP state dict to that of a CLIPModel."""
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
