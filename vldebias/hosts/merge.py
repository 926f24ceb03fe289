"""Fold projections into weights, so that a checkpoint gives what it gave attached and needs no vldebias.

A layer that makes an embedding, x W or W x + b, makes P of it with the weights W P^T, or P W and P b. A linear layer
that reads P x in the place of x has the weight W P; with P = I - s L R^T that is W - s (W L) R^T.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vldebias.errors import UnsupportedHostError
from vldebias.hosts.family import CROSS_ATTENTION, Part
from vldebias.projection import CalibratedProjection

Axes = list[tuple[Tensor, int]]
"""Weights, and the axis of each that is the axis of the embedding."""


# ---- the head that makes an embedding -----------------------------------------------------------------------


def last_layer(head: object) -> object:
    """What ends in the embedding: the last part of a Sequential, or `head` itself."""
    return head[-1] if isinstance(head, nn.Sequential) and len(head) else head


def foldable(name: str, tower: str, head: object) -> Axes:
    """The weights of `head` that a projection is folded into; nothing is changed here.

    Args:
        name: of the model, for messages.
        tower: "text" or "image", for messages.
        head: a parameter (width, d), a module, or None.

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
    """P* into the weights that `foldable` gave, in place and in their dtype."""
    with torch.no_grad():
        for weight, axis in axes:
            rows = weight.cpu().double().movedim(axis, -1)
            weight.copy_(projection(rows, strength).movedim(-1, axis))


# ---- the layers of a pipeline that read an embedding ----------------------------------------------------------


def fold_into_readers(
    pipe: Any, parts: Sequence[Part], projections: Mapping[str, CalibratedProjection], strength: float
) -> None:
    """Fold one projection per role into the denoiser, and into the ControlNets of the pipeline.

    The weights cannot tell the two branches of guidance apart: the negative prompt, the empty one included, is
    projected as well, as with `negative=True`. Nor can they tell stated prompts: these are projected too. Every other
    pipeline that shares the modules changes with them.

    Raises:
        UnsupportedHostError: before any weight is changed, where weights cannot hold the projections: a layer that
            reads two of them (SD3), one fitted for a clip_skip, adapters, fused, quantised or offloaded weights.
    """
    name = type(pipe).__name__
    skipped = sorted(set(projections) - {part.role for part in parts})
    if skipped:
        raise UnsupportedHostError(
            f"{name}: cannot merge {skipped}: weights hold one projection for all calls, and these calls read another "
            "layer; remove() the attachment, attach again and merge before any call with clip_skip"
        )
    folds = [(part, projections[part.role], _layers(pipe, part)) for part in parts]
    for part, projection, layers in folds:
        for where, layer in layers:
            _check(name, where, layer, projection, part)
    with torch.no_grad():
        for _, projection, layers in folds:
            for _, layer in layers:
                columns = layer.weight[:, : projection.dim]  # those that read the embedding
                wide = columns.to("cpu", torch.float64)
                columns.copy_(wide - strength * (wide @ projection.left) @ projection.right.T)


def readers(pipe: Any, parts: Sequence[Part]) -> list[nn.Module]:
    """The models of a pipeline that `fold_into_readers` changes."""
    names = {where.partition(".")[0] for part in parts for where, _ in _layers(pipe, part)}
    return [pipe.components[name] for name in sorted(names)]


def _layers(pipe: Any, part: Part) -> list[tuple[str, Any]]:
    """The layers that read a part, with their names."""
    refusal = f"{type(pipe).__name__}: cannot merge {part.role!r}"
    if not part.read_by:
        raise UnsupportedHostError(
            f"{refusal}: {part.unmerged}; save the projections and attach them after loading instead"
        )
    modules = {name: one for name, one in pipe.components.items() if isinstance(one, nn.Module)}
    models = {name: model for name, model in modules.items() if name not in part.encoders}
    names = (part.read_by,) if isinstance(part.read_by, str) else part.read_by
    layers = [[layer for n, model in models.items() for layer in _readers(n, model, name)] for name in names]
    missing = [name for name, one in zip(names, layers, strict=True) if not one]
    if missing:
        raise UnsupportedHostError(
            f"{refusal}: expected a layer {missing[0]!r} that reads it in {', '.join(models)}, found none; "
            "keep the attachment instead of merging"
        )
    return [layer for one in layers for layer in one]


def _readers(component: str, model: nn.Module, read_by: str) -> Iterator[tuple[str, Any]]:
    if read_by == CROSS_ATTENTION:
        yield from _cross_attentions(component, model)
        return
    for path, module in model.named_modules():
        if path.removeprefix("_orig_mod.") == read_by:  # torch.compile wraps what it compiles
            yield f"{component}.{path}", module


def _cross_attentions(component: str, model: nn.Module) -> Iterator[tuple[str, Any]]:
    between = getattr(getattr(model, "config", None), "encoder_hid_dim_type", None)
    if between not in (None, "ip_image_proj"):
        raise UnsupportedHostError(
            f"{component}: {between!r} stands between the prompt and cross-attention; keep the attachment"
        )
    for path, module in model.named_modules():
        if not getattr(module, "is_cross_attention", False):
            continue
        if getattr(module, "norm_cross", None) is not None:
            raise UnsupportedHostError(
                f"{component}.{path}: a norm stands before its keys and values; keep the attachment"
            )
        if getattr(module, "fused_projections", False):
            raise UnsupportedHostError(
                f"{component}.{path}: keys and values are fused; call pipe.unfuse_qkv_projections() first"
            )
        yield f"{component}.{path}.to_k", module.to_k
        yield f"{component}.{path}.to_v", module.to_v


def _check(name: str, where: str, layer: Any, projection: CalibratedProjection, part: Part) -> None:
    """Refuse a layer whose output is not its weight times the embedding, or whose weight cannot be rewritten."""
    remedy = None
    if hasattr(layer, "base_layer"):
        remedy = "has LoRA adapters; call pipe.fuse_lora() and pipe.unload_lora_weights() first"
    elif not isinstance(layer, nn.Linear) or not _is_plain(layer.weight):
        remedy = f"is a {type(layer).__name__}, expected an nn.Linear with float weights; load the pipeline unquantised"
    elif layer.weight.is_meta:
        remedy = "is offloaded; merge before enabling CPU offload"
    elif layer.in_features < projection.dim or (layer.in_features > projection.dim and not part.leading):
        remedy = f"reads {layer.in_features} values, the projection of {part.role!r} has {projection.dim}"
    if remedy:
        raise UnsupportedHostError(f"{name}: cannot merge {part.role!r}: {where} {remedy}. No weight was changed")


# ---- merged weights say so --------------------------------------------------------------------------------------

_MARKER = "_vldebias_merged"


def write_merge_marker(model: Any, note: str) -> None:
    """Write what was merged into the config of a model of transformers or diffusers, which is saved with it."""
    if hasattr(model, "register_to_config"):
        model.register_to_config(**{_MARKER: note})
    else:
        setattr(model.config, _MARKER, note)


def merge_marker(model: Any) -> str | None:
    """What was written into this model or the checkpoint that it was loaded from; None where nothing."""
    note = getattr(getattr(model, "config", None), _MARKER, None)
    return note if isinstance(note, str) else None
