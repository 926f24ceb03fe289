"""Fold projections into weights, so that a saved checkpoint gives the edited embeddings without vldebias.

A layer that makes an embedding, x W or W x + b, makes P of it with the weights W P^T, or P W and P b. A linear layer
that reads P x in the place of x has the weight W P; with P = I - s L R^T that is W - s (W L) R^T.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.errors import UnsupportedHostError
from vldebias.projection import CalibratedProjection

Axes = list[tuple[Tensor, int]]
"""Weights, and the axis of each that is the axis of the embedding."""


# ---- the head that makes an embedding -----------------------------------------------------------------------


def last_layer(head: object) -> object:
    """Return the layer that outputs the embedding: the last part of a Sequential, or `head` itself."""
    return head[-1] if isinstance(head, nn.Sequential) and len(head) else head


def foldable(name: str, tower: str, head: object) -> Axes:
    """Return the weights of `head` (a parameter (width, d), a module or None) to fold a projection into.

    Raises:
        UnsupportedHostError: nothing linear at the end, or weights that are quantized, adapted or not loaded.
    """
    last = last_layer(head)
    axes: Axes
    if isinstance(last, nn.Parameter):
        axes = [(last, 1)]
    elif isinstance(last, nn.Linear):
        axes = [(last.weight, 0)] + ([(last.bias, 0)] if last.bias is not None else [])
    else:
        kind = f"{type(last).__module__}.{type(last).__qualname__}"
        raise UnsupportedHostError(
            f"{name}: the {tower} tower ends in {kind}; expected a torch.nn.Linear or a projection matrix to fold "
            "into. Keep the attachment, or save its projection and attach that after loading"
        )
    for weight, _ in axes:
        if not isinstance(weight, nn.Parameter) or weight.is_meta or not _is_plain(weight):
            raise UnsupportedHostError(
                f"{name}: the head of the {tower} tower has weights of type {type(weight).__name__}, "
                f"{weight.dtype} on {weight.device}; expected plain floating-point parameters in memory. Load the "
                "model unquantized and not offloaded"
            )
    return axes


def _is_plain(weight: Tensor) -> bool:
    """Numbers that can be rewritten; torchao holds int8 in a tensor of its own that says it is of floats."""
    return weight.is_floating_point() and type(weight.data) is Tensor


def fold(axes: Axes, projection: CalibratedProjection, strength: float) -> None:
    """Fold P* into the weights that `foldable` returned, in place and in their dtype."""
    with torch.no_grad():
        for weight, axis in axes:
            rows = weight.cpu().double().movedim(axis, -1)
            weight.copy_(projection(rows, strength).movedim(-1, axis))


# ---- the layers of a pipeline that read an embedding ----------------------------------------------------------

CROSS_ATTENTION = "cross-attention"
"""Keys and values of all cross-attentions."""

_REFINER = ("context_embedder.proj_in", "context_embedder.time_text_embed.text_embedder.linear_1")
_MOCHI = ("time_embed.pooler.to_kv", "time_embed.pooler.to_q", "time_embed.caption_proj")
# Role -> the layers that read it -> classes of denoisers, without "Transformer3DModel" and the like.
_READERS: dict[str, dict[tuple[str, ...], str]] = {
    "sequence": {
        (CROSS_ATTENTION,): "Cosmos UNetMotion UNet3DCondition I2VGenXLUNet",
        ("context_embedder",): "Flux Chroma AuraFlow Bria Flux2",
        ("caption_projection.linear_1",): "PixArt Sana Latte LTXVideo Allegro SanaVideo",
        ("context_embedder.linear_1",): "MotifVideo",
        ("encoder_hid_proj.projection_linear",): "Kandinsky3UNet",
        ("text_embeddings.in_layer",): "Kandinsky5",
        ("txt_in",): "PRX",
        ("patch_embed.text_proj",): "CogView3Plus CogView4 CogVideoX ConsisID",
        ("condition_embedder.text_embedder.linear_1",): "Wan WanVACE WanAnimate SkyReelsV2 ChronoEdit Helios AnyFlow",
        _MOCHI: "Mochi",
        ("text_proj",): "EasyAnimate",
        _REFINER: "HunyuanVideo HunyuanVideoFramepack HunyuanImage HunyuanVideo15",
    },
    "pooled": {
        # of SD3 not the sequence: one layer reads the tokens of CLIP and of T5
        ("time_text_embed.text_embedder.linear_1",): "Flux HunyuanVideo HunyuanVideoFramepack SD3",
        ("pooled_text_embeddings.in_layer",): "Kandinsky5",
    },
}


def _names(pipe: Any, role: str) -> tuple[str, ...]:
    """Return the layers that read a role, by the class of the denoiser; none where it is unknown."""
    model = next((m for n in ("transformer", "unet", "decoder") if (m := getattr(pipe, n, None)) is not None), None)
    inner: Any = getattr(model, "_orig_mod", model)
    if type(inner).__name__ == "UNet2DConditionModel":
        if role == "pooled":
            return ("add_embedding.linear_1",)
        config = inner.config
        projected = config.encoder_hid_dim_type == "text_proj" and config.addition_embed_type == "text_time"
        return ("encoder_hid_proj",) if projected else (CROSS_ATTENTION,)
    classes = [re.sub(r"(Transformer[23]D)?Model$", "", base.__name__) for base in type(inner).__mro__]
    known = {one: names for names, models in _READERS.get(role, {}).items() for one in models.split()}
    return next((known[one] for one in classes if one in known), ())


def fold_into_readers(pipe: Any, projections: Mapping[str, CalibratedProjection], strength: float) -> list[nn.Module]:
    """Fold one projection per role into the denoiser, and into the ControlNets of the pipeline; returns those models.

    Every other pipeline that shares the modules changes with them.

    Raises:
        UnsupportedHostError: before any weight is changed, where weights cannot hold the projections: nothing says
            which layer reads one, a norm stands before it, adapters, fused, quantised or offloaded weights.
    """
    folds = [(model, one, layer) for role, one in projections.items() for model, layer in _layers(pipe, role, one)]
    with torch.no_grad():
        for _, projection, layer in folds:
            columns = layer.weight[:, : projection.dim]  # those that read the embedding
            wide = columns.to("cpu", torch.float64)
            columns.copy_(wide - strength * (wide @ projection.left) @ projection.right.T)
    return list({id(model): model for model, *_ in folds}.values())


def _layers(pipe: Any, role: str, projection: CalibratedProjection) -> list[tuple[nn.Module, Any]]:
    """Return the layers that read a role, each with its model, checked."""
    refusal, names = f"{type(pipe).__name__}: cannot merge {role!r}", _names(pipe, role)
    if not names:
        raise UnsupportedHostError(
            f"{refusal}: nothing says which layer of its denoiser reads that alone, without a norm before it; save the "
            "projections and attach them after loading instead"
        )
    found: list[tuple[str, nn.Module, Any]] = []
    models = {name: one for name, one in pipe.components.items() if isinstance(one, nn.Module)}
    for name, model in models.items():
        for path, module in model.named_modules() if "text_encoder" not in name else ():
            where = f"{name}.{path.removeprefix('_orig_mod.')}"  # torch.compile wraps what it compiles
            if where.partition(".")[2] in names:
                found.append((where, model, module))
            elif CROSS_ATTENTION in names and getattr(module, "is_cross_attention", False):
                between = getattr(getattr(model, "config", None), "encoder_hid_dim_type", None)
                why = ""
                if between not in (None, "ip_image_proj"):
                    why = f"{between!r} stands between the prompt and cross-attention; keep the attachment"
                if getattr(module, "norm_cross", None) is not None:
                    why = "a norm stands before its keys and values; keep the attachment"
                if getattr(module, "fused_projections", False):
                    why = "keys and values are fused; call pipe.unfuse_qkv_projections() first"
                if why:
                    raise UnsupportedHostError(f"{where}: {why}")
                attention: Any = module
                found += [(f"{where}.to_k", model, attention.to_k), (f"{where}.to_v", model, attention.to_v)]
    missing = [n for n in names if n != CROSS_ATTENTION and not any(one[0].endswith(f".{n}") for one in found)]
    if missing or not found:
        raise UnsupportedHostError(f"{refusal}: expected layers {', '.join(names)}, found none; keep it attached")
    for where, _, layer in found:
        remedy = _why_not(where, layer, projection)
        if remedy:
            raise UnsupportedHostError(f"{refusal}: {where} {remedy}. No weight was changed")
    return [(model, layer) for _, model, layer in found]


def _why_not(where: str, layer: Any, projection: CalibratedProjection) -> str:
    """Return why the output of a layer is not its weight times the embedding, or its weight cannot be rewritten."""
    if hasattr(layer, "base_layer"):
        return "has LoRA adapters; call pipe.fuse_lora() and pipe.unload_lora_weights() first"
    if not isinstance(layer, nn.Linear) or not _is_plain(layer.weight):
        return f"is a {type(layer).__name__}, expected an nn.Linear with float weights; load the pipeline unquantised"
    if layer.weight.is_meta:
        return "is offloaded; merge before enabling CPU offload"
    wide = layer.in_features > projection.dim and not where.endswith("add_embedding.linear_1")
    if wide or layer.in_features < projection.dim:
        return f"reads {layer.in_features} values, the projection has {projection.dim}"
    return ""
