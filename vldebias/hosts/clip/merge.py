"""Fold projections into weights, so that a saved checkpoint gives the edited embeddings without
vldebias.

A layer that makes an embedding, x W or W x + b, makes P of it with the weights W P^T, or P W and P
b. A linear layer that reads P x in the place of x has the weight W P; with P = I - s L R^T that is
W - s (W L) R^T.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.edits.projection import CalibratedProjection
from vldebias.errors import UnsupportedHostError


def foldable(refusal: str, head: object) -> Callable[[CalibratedProjection, float], None]:
    """Return a function that folds a projection at a strength into `head`, in place and in the
    dtype of its weights.

    head: the layer that makes the embedding: a parameter (width, d), a Linear, or a Sequential that
    ends in one.

    Raises:
        UnsupportedHostError: not linear, or weights that are quantized, adapted or not loaded.
    """
    last = head[-1] if isinstance(head, nn.Sequential) and len(head) else head
    axes: list[tuple[Any, int]] = []
    if isinstance(last, nn.Parameter):
        axes = [(last, 1)]
    elif isinstance(last, nn.Linear):
        axes = [(last.weight, 0)] + ([(last.bias, 0)] if last.bias is not None else [])
    # torchao holds int8 in a tensor of its own that says it is of floats
    if not axes or not all(
        w.is_floating_point() and type(w.data) is Tensor and not w.is_meta for w, _ in axes
    ):
        raise UnsupportedHostError(
            f"{refusal} is a {type(last).__module__}.{type(last).__qualname__}; expected a"
            " torch.nn.Linear or a matrix with float weights in memory. Fuse or unload adapters"
            " (pipe.fuse_lora(), pipe.unload_lora_weights()), load the model unquantized and not"
            " offloaded, or keep the attachment. No weight was changed"
        )

    @torch.no_grad()
    def fold(projection: CalibratedProjection, strength: float) -> None:
        for weight, axis in axes:
            rows = weight.cpu().double().movedim(axis, -1)
            weight.copy_(projection(rows, strength).movedim(-1, axis))

    return fold


# ---- the layers of a pipeline that read an embedding
# ----------------------------------------------------------

CROSS_ATTENTION = "cross-attention"
"""Keys and values of all cross-attentions."""

_REFINER = ("context_embedder.proj_in", "context_embedder.time_text_embed.text_embedder.linear_1")
_MOCHI = ("time_embed.pooler.to_kv", "time_embed.pooler.to_q", "time_embed.caption_proj")
# Role -> the layers that read it -> classes of denoisers, without "Transformer3DModel" and the
# like.
_READERS: dict[str, dict[tuple[str, ...], str]] = {
    "sequence": {
        (CROSS_ATTENTION,): "UNet2DCondition Cosmos UNetMotion UNet3DCondition I2VGenXLUNet",
        ("context_embedder",): "Flux Chroma AuraFlow Bria Flux2",
        ("caption_projection.linear_1",): "PixArt Sana Latte LTXVideo Allegro SanaVideo",
        ("context_embedder.linear_1",): "MotifVideo",
        ("encoder_hid_proj.projection_linear",): "Kandinsky3UNet",
        ("text_embeddings.in_layer",): "Kandinsky5",
        ("txt_in",): "PRX",
        ("patch_embed.text_proj",): "CogView3Plus CogView4 CogVideoX ConsisID",
        (
            "condition_embedder.text_embedder.linear_1",
        ): "Wan WanVACE WanAnimate SkyReelsV2 ChronoEdit Helios AnyFlow",
        _MOCHI: "Mochi",
        ("text_proj",): "EasyAnimate",
        _REFINER: "HunyuanVideo HunyuanVideoFramepack HunyuanImage HunyuanVideo15",
    },
    "pooled": {
        # of SD3 not the sequence: one layer reads the tokens of CLIP and of T5
        ("time_text_embed.text_embedder.linear_1",): "Flux HunyuanVideo HunyuanVideoFramepack SD3",
        ("pooled_text_embeddings.in_layer",): "Kandinsky5",
        ("add_embedding.linear_1",): "UNet2DCondition",
    },
}


def fold_into_readers(
    pipe: Any, projections: Mapping[str, CalibratedProjection], strength: float
) -> list[nn.Module]:
    """Fold one projection per role into the denoiser, and into the ControlNets of the pipeline;
    return those models.

    Every other pipeline that shares the modules changes with them.

    Raises:
        UnsupportedHostError: before any weight is changed, where weights cannot hold the
            projections: nothing says which layer reads one, a norm stands before it, adapters,
            fused, quantised or offloaded weights.
    """
    folds = [
        (model, one, layer)
        for role, one in projections.items()
        for model, layer in _layers(pipe, role, one.dim)
    ]
    with torch.no_grad():
        for _, projection, layer in folds:
            columns = layer.weight[:, : projection.dim]  # those that read the embedding
            wide = columns.to("cpu", torch.float64)
            columns.copy_(wide - strength * (wide @ projection.left) @ projection.right.T)
    return list({id(model): model for model, *_ in folds}.values())


def _layers(pipe: Any, role: str, dim: int) -> list[tuple[nn.Module, Any]]:
    """Return the layers that read a role, each with its model, checked."""
    denoiser = next(
        (m for n in ("transformer", "unet") if (m := getattr(pipe, n, None)) is not None), None
    )
    inner: Any = getattr(denoiser, "_orig_mod", denoiser)
    classes = [
        re.sub(r"(Transformer[23]D)?Model$", "", base.__name__) for base in type(inner).__mro__
    ]
    known = {
        one: layers for layers, models in _READERS.get(role, {}).items() for one in models.split()
    }
    names = next((known[one] for one in classes if one in known), ())
    refusal, config = f"{type(pipe).__name__}: cannot merge {role!r}:", getattr(inner, "config", {})
    if names == (CROSS_ATTENTION,) and config.get("encoder_hid_dim_type") == "text_proj":
        names = ("encoder_hid_proj",) if config.get("addition_embed_type") == "text_time" else ()
    if not names:
        raise UnsupportedHostError(
            f"{refusal} no layer is known that reads it alone, without a norm before it; save the"
            " projections and attach them after loading instead"
        )
    found: dict[str, tuple[nn.Module, Any]] = {}
    models = {name: one for name, one in pipe.components.items() if isinstance(one, nn.Module)}
    for name, model in models.items():
        between = getattr(getattr(model, "config", None), "encoder_hid_dim_type", None)
        for path, module in model.named_modules() if "text_encoder" not in name else ():
            where = (  # torch.compile wraps what it compiles
                f"{name}.{path.removeprefix('_orig_mod.')}"
            )
            if where.partition(".")[2] in names:
                found[where] = model, module
            elif CROSS_ATTENTION in names and getattr(module, "is_cross_attention", False):
                fused, norm = (
                    "Fused" in type(module.processor).__name__,
                    getattr(module, "norm_cross", None),
                )
                if fused or norm is not None or between not in (None, "ip_image_proj"):
                    raise UnsupportedHostError(
                        f"{refusal} keys and values of {where} are fused (call"
                        f" pipe.unfuse_qkv_projections() first), or a norm or {between!r} stands"
                        " between them and the prompt; keep the attachment"
                    )
                found |= {
                    f"{where}.{one}": (model, getattr(module, one)) for one in ("to_k", "to_v")
                }
    missing = [
        n
        for n in names
        if n != CROSS_ATTENTION and not any(where.endswith(f".{n}") for where in found)
    ]
    if missing or not found:
        raise UnsupportedHostError(
            f"{refusal} expected layers {', '.join(names)}, found none; keep it attached"
        )
    for where, (_, layer) in found.items():
        foldable(f"{refusal} {where}", layer)
        width = layer.in_features
        if width != dim and not (width > dim and where.endswith("add_embedding.linear_1")):
            raise UnsupportedHostError(
                f"{refusal} {where} reads {width} values, the projection has {dim}"
            )
    return list(found.values())
