"""Fold projections into weights, so that a saved checkpoint works without vldebias.

There are two ways to fold a projection P. If a layer produces the embedding, P is applied to its
output: a matrix W (x W) becomes W P^T, and the weight W and bias b of a Linear become P W and P b.
If a linear layer consumes the embedding, its weight W becomes W P; for P = I - s L R^T, this is
W - s (W L) R^T.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vldebias.errors import UnsupportedHostError
from vldebias.projection.projection import CalibratedProjection

if TYPE_CHECKING:
    from diffusers import DiffusionPipeline


def foldable(refusal: str, head: object) -> Callable[[CalibratedProjection, float], None]:
    """Return a function that folds a projection, at a given strength, into a layer.

    The returned function changes the weights in place and preserves their dtype.

    Args:
        refusal: the start of the error message if the layer cannot be changed.
        head: the layer that produces the embedding: a parameter (width, d), a Linear, or a
            Sequential that ends in one.

    Raises:
        UnsupportedHostError: If the layer is not linear, or its weights are quantised, adapted or
            not loaded.
    """
    last = last_layer(head)
    # The weights that produce the embedding, each with its output axis.
    weights: list[tuple[Tensor, int]] = []
    if isinstance(last, nn.Parameter):
        weights = [(last, 1)]
    elif isinstance(last, nn.Linear):
        weights = [(last.weight, 0)]
        if last.bias is not None:
            weights.append((last.bias, 0))
    # torchao stores int8 in its own tensor class, which reports a floating-point dtype.
    is_foldable = [
        weight.is_floating_point() and type(weight.data) is Tensor and not weight.is_meta
        for weight, _ in weights
    ]
    if not weights or not all(is_foldable):
        raise UnsupportedHostError(
            f"{refusal} is a {type(last).__module__}.{type(last).__qualname__}; expected a"
            " torch.nn.Linear or a matrix with float weights in memory. Fuse or unload adapters"
            " (pipe.fuse_lora(), pipe.unload_lora_weights()), load the model without quantization"
            " or offloading, or keep the edit attached. No weight was changed"
        )

    @torch.no_grad()
    def fold(projection: CalibratedProjection, strength: float) -> None:
        for weight, axis in weights:
            # Compute in float64, so that only the final cast to the weights' dtype rounds.
            rows = weight.cpu().double().movedim(axis, -1)
            weight.copy_(projection(rows, strength).movedim(-1, axis))

    return fold


def last_layer(head: object) -> object:
    """Return the last layer of a Sequential, or the head itself."""
    return head[-1] if isinstance(head, nn.Sequential) and len(head) else head


# ---- pipeline layers that consume an embedding

CROSS_ATTENTION = "cross-attention"
"""Entry of `_READERS` that stands for the key and value layers of all cross-attention blocks."""

_REFINER = ("context_embedder.proj_in", "context_embedder.time_text_embed.text_embedder.linear_1")
_MOCHI = ("time_embed.pooler.to_kv", "time_embed.pooler.to_q", "time_embed.caption_proj")
# For each role, a mapping from the layers that consume it to the denoiser classes that have these
# layers. Class names lack their suffix, such as "Transformer3DModel".
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
        # SD3's sequence is not listed, because a single layer consumes both CLIP and T5 tokens.
        ("time_text_embed.text_embedder.linear_1",): "Flux HunyuanVideo HunyuanVideoFramepack SD3",
        ("pooled_text_embeddings.in_layer",): "Kandinsky5",
        ("add_embedding.linear_1",): "UNet2DCondition",
    },
}


def fold_into_readers(
    pipe: DiffusionPipeline, projections: Mapping[str, CalibratedProjection], strength: float
) -> list[nn.Module]:
    """Fold one projection per role into a pipeline's denoiser and ControlNets.

    This also changes every other pipeline that shares the modules.

    Args:
        pipe: the diffusers pipeline.
        projections: the projection for each role.
        strength: fraction of the projections to apply, in [0, 1].

    Returns:
        The changed models.

    Raises:
        UnsupportedHostError: If the weights cannot express the projections: the layer that consumes
            a role is unknown, a norm precedes it, or weights are adapted, fused, quantised or
            offloaded. No weight is changed.
    """
    # Check every layer before changing the first one.
    readers: list[tuple[nn.Module, CalibratedProjection, nn.Linear]] = []
    for role, projection in projections.items():
        for model, layer in _layers(pipe, role, projection.dim):
            readers.append((model, projection, layer))
    with torch.no_grad():
        for _, projection, layer in readers:
            # A layer's input may contain more values after the embedding, such as SDXL's image
            # size.
            columns = layer.weight[:, : projection.dim]
            wide = columns.to("cpu", torch.float64)
            columns.copy_(wide - strength * (wide @ projection.left) @ projection.right.T)
    model_of_id = {id(model): model for model, _, _ in readers}
    return list(model_of_id.values())


def _layers(pipe: DiffusionPipeline, role: str, dim: int) -> list[tuple[nn.Module, nn.Linear]]:
    """Return the checked layers that consume a role, each with its model."""
    refusal = f"{type(pipe).__name__}: cannot merge {role!r}:"
    names = _reader_names(pipe, role)
    if not names:
        raise UnsupportedHostError(
            f"{refusal} expected a layer that consumes only this tensor, without a norm in between;"
            " none is known. Save the projections and attach them after loading instead"
        )
    readers: dict[str, tuple[nn.Module, nn.Module]] = {}
    for component, model in pipe.components.items():
        # Skip text encoders, which have layers with the same names but produce the embeddings.
        if isinstance(model, nn.Module) and "text_encoder" not in component:
            for path, layer in _readers_in(model, component, names, refusal):
                readers[path] = (model, layer)
    # All cross-attention layers share one name.
    inner_paths = {path.partition(".")[2] for path in readers}
    if not readers or not set(names) - {CROSS_ATTENTION} <= inner_paths:
        raise UnsupportedHostError(
            f"{refusal} expected the layers {', '.join(names)}, but not all were found; keep the"
            " projection attached"
        )
    layers = []
    for path, (model, layer) in readers.items():
        foldable(f"{refusal} {path}", layer)
        assert isinstance(layer, nn.Linear)
        width = layer.in_features
        # SDXL appends the image size to the pooled embedding.
        reads_more = path.endswith("add_embedding.linear_1") and width > dim
        if width != dim and not reads_more:
            raise UnsupportedHostError(
                f"{refusal} {path} takes {width} values, expected {dim}; keep the edit attached"
            )
        layers.append((model, layer))
    return layers


def _reader_names(pipe: DiffusionPipeline, role: str) -> tuple[str, ...]:
    """Return the names of the denoiser layers that consume a role, or () if they are unknown."""
    denoiser = getattr(pipe, "transformer", None)
    if denoiser is None:
        denoiser = getattr(pipe, "unet", None)
    denoiser = getattr(denoiser, "_orig_mod", denoiser)  # torch.compile wraps the module
    names_of_class: dict[str, tuple[str, ...]] = {}
    for layers, classes in _READERS.get(role, {}).items():
        names_of_class |= dict.fromkeys(classes.split(), layers)
    bases = [
        re.sub(r"(Transformer[23]D)?Model$", "", base.__name__) for base in type(denoiser).__mro__
    ]
    names = next((names_of_class[base] for base in bases if base in names_of_class), ())
    # Some U-Nets project the prompt once, before their cross-attention layers use it.
    config = getattr(denoiser, "config", {})
    if names == (CROSS_ATTENTION,) and config.get("encoder_hid_dim_type") == "text_proj":
        # With other kinds of additional embeddings, such as DeepFloyd's, a second layer also
        # consumes the tokens.
        return ("encoder_hid_proj",) if config.get("addition_embed_type") == "text_time" else ()
    return names


def _readers_in(
    model: nn.Module, component: str, names: tuple[str, ...], refusal: str
) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of a model that consume a role, each with its path in the pipeline.

    Raises:
        UnsupportedHostError: If a cross-attention layer does not compute its keys and values from
            the prompt itself.
    """
    for name, module in model.named_modules():
        inner_path = name.removeprefix("_orig_mod.")  # torch.compile wraps the module
        path = f"{component}.{inner_path}"
        if inner_path in names:
            yield path, module
        elif CROSS_ATTENTION in names and getattr(module, "is_cross_attention", False):
            is_fused = "Fused" in type(module.processor).__name__
            has_norm = getattr(module, "norm_cross", None) is not None
            between = getattr(getattr(model, "config", None), "encoder_hid_dim_type", None)
            # An IP-Adapter adds image tokens and does not change the prompt's tokens.
            is_between = between not in (None, "ip_image_proj")
            if is_fused or has_norm or is_between:
                raise UnsupportedHostError(
                    f"{refusal} the keys and values of {path} are fused (call"
                    f" pipe.unfuse_qkv_projections() first), or a norm or {between!r} is between"
                    " them and the prompt; keep the edit attached instead of merging it"
                )
            for part in ("to_k", "to_v"):
                yield f"{path}.{part}", getattr(module, part)
