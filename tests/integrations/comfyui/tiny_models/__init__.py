"""Provide a ComfyUI node for this test: models from each family with few layers and random weights.

ComfyUI reads the sizes of text encoders from its own files, and those for SD 3 and Flux have
billions of weights. The node therefore builds ComfyUI's classes with smaller sizes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import comfy.text_encoders.flux
import comfy.text_encoders.sa_t5
import comfy.text_encoders.sd2_clip
import comfy.text_encoders.sd3_clip
import torch
from comfy import sdxl_clip
from comfy_api.latest import ComfyExtension, io

WIDTH = 64
CLIP = {
    "num_hidden_layers": 3,
    "hidden_size": WIDTH,
    "num_attention_heads": 2,
    "intermediate_size": 2 * WIDTH,
}
T5 = {"num_layers": 2, "num_heads": 2, "d_kv": 32, "d_ff": 128}
SD3_WIDTH = 4096  # the states of CLIP are padded to it
UNET = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": WIDTH,
    "num_res_blocks": [1, 1],
    "channel_mult": [1, 2],
    "transformer_depth": [0, 1],
    "transformer_depth_output": [0, 0, 1, 1],
    "transformer_depth_middle": 1,
    "use_spatial_transformer": True,
    "use_linear_in_transformer": True,
    "use_temporal_attention": False,
    "num_heads": -1,
    "num_head_channels": WIDTH,
}
SDXL = UNET | {
    "context_dim": 2 * WIDTH,
    "num_classes": "sequential",
    "adm_in_channels": WIDTH + 6 * 256,  # the pooled vector, and six picture sizes
}
SD2 = UNET | {"context_dim": WIDTH, "adm_in_channels": None}
SD3 = {
    "in_channels": 16,
    "patch_size": 2,
    "depth": 2,
    "adm_in_channels": 2 * WIDTH,
    "pos_embed_max_size": 32,
    "pos_embed_scaling_factor": None,
    "num_patches": 32 * 32,
    "context_embedder_config": {
        "target": "torch.nn.Linear",
        "params": {"in_features": SD3_WIDTH, "out_features": 2 * 64},
    },
}
FLUX = {
    "image_model": "flux",
    "in_channels": 16,
    "out_channels": 16,
    "patch_size": 2,
    "vec_in_dim": WIDTH,
    "context_in_dim": WIDTH,
    "hidden_size": 128,
    "mlp_ratio": 4.0,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 2,
    "axes_dim": [16, 24, 24],
    "theta": 10000,
    "qkv_bias": True,
    "guidance_embed": False,
}


class Family(NamedTuple):
    """Store the ComfyUI classes for a family, and the sizes of its parts."""

    model: Any
    sizes: dict[str, Any]
    text_encoder: Any
    tokenizer: Any
    text_sizes: dict[str, Any]


FAMILIES = {
    "SD 2": Family(
        comfy.supported_models.SD20,
        SD2,
        comfy.text_encoders.sd2_clip.SD2ClipModel,
        comfy.text_encoders.sd2_clip.SD2Tokenizer,
        {"clip_h_model_config": CLIP},
    ),
    "SDXL": Family(
        comfy.supported_models.SDXL,
        SDXL,
        sdxl_clip.SDXLClipModel,
        sdxl_clip.SDXLTokenizer,
        {"clip_l_model_config": CLIP, "clip_g_model_config": CLIP},
    ),
    "SD 3": Family(
        comfy.supported_models.SD3,
        SD3,
        comfy.text_encoders.sd3_clip.sd3_clip(),
        comfy.text_encoders.sd3_clip.SD3Tokenizer,
        {
            "clip_l_model_config": CLIP,
            "clip_g_model_config": CLIP,
            "t5xxl_model_config": T5 | {"d_model": SD3_WIDTH},
        },
    ),
    "Flux": Family(
        comfy.supported_models.FluxSchnell,
        FLUX,
        comfy.text_encoders.flux.flux_clip(),
        comfy.text_encoders.flux.FluxTokenizer,
        {"clip_l_model_config": CLIP, "t5xxl_model_config": T5 | {"d_model": WIDTH}},
    ),
    "Stable Audio": Family(  # a text encoder that the nodes do not support
        comfy.supported_models.SD20,
        SD2,
        comfy.text_encoders.sa_t5.SAT5Model,
        comfy.text_encoders.sa_t5.SAT5Tokenizer,
        {"t5base_model_config": T5 | {"d_model": WIDTH}},
    ),
}


class Target:
    """Store what ComfyUI's CLIP requires: an encoder class and a tokenizer class."""

    def __init__(self, family: Family) -> None:
        self.clip = family.text_encoder
        self.tokenizer = family.tokenizer
        self.params: dict[str, Any] = {}


def randomise(module: torch.nn.Module) -> None:
    """Fill the weights so that layers preserve the scale of their input."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in module.named_parameters():
        if weight.ndim > 1:
            values = torch.randn(weight.shape, generator=generator) * weight[0].numel() ** -0.5
        elif name.endswith("weight") or name.endswith("scale"):
            values = torch.ones(weight.shape)
        else:
            values = torch.zeros(weight.shape)
        weight.data.copy_(values)


class TinyModel(io.ComfyNode):
    """Create a model and a text encoder from a family."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TinyModel",
            inputs=[io.Combo.Input("family", options=list(FAMILIES))],
            outputs=[io.Model.Output("model"), io.Clip.Output("clip")],
        )

    @classmethod
    def execute(cls, family: str) -> io.NodeOutput:
        parts = FAMILIES[family]
        settings = parts.model(parts.sizes)
        settings.set_inference_dtype(torch.float32, None)
        model = settings.get_model({}, "", device=torch.device("cpu"))
        randomise(model.diffusion_model)
        cpu = torch.device("cpu")
        patcher = comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu)
        clip = comfy.sd.CLIP(
            Target(parts), model_options=parts.text_sizes | {"dtype": torch.float32}
        )
        randomise(clip.cond_stage_model)
        return io.NodeOutput(patcher, clip)


class TokenCounts(io.ComfyNode):
    """Return the number of tokens in the states of a conditioning."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="TokenCounts",
            inputs=[io.Conditioning.Input("conditioning")],
            outputs=[io.Int.Output("tokens")],
        )

    @classmethod
    def execute(cls, conditioning: list[list[Any]]) -> io.NodeOutput:
        return io.NodeOutput(conditioning[0][0].shape[1])


class TinyModels(ComfyExtension):
    """List the nodes."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        return [TinyModel, TokenCounts]


async def comfy_entrypoint() -> TinyModels:
    return TinyModels()
