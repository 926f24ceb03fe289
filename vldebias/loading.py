"""Open a model or pipeline by name: open_clip, transformers, diffusers, or the embedded miniature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vldebias.errors import InvalidInputError

__all__ = ["Loaded", "load_host"]

_SCHEMAS = ("hf-hub:", "local-dir:")  # names by which open_clip finds a model without a list of its own


@dataclass(frozen=True)
class Loaded:
    """A host with what is needed to feed it. preprocess is None for pipelines."""

    host: Any
    name: str
    tokenizer: Any = None
    preprocess: Any = None


def load_host(
    model: str | None = None,
    pretrained: str | None = None,
    pipeline: str | None = None,
    *,
    device: str = "cpu",
    dtype: str | None = None,
) -> Loaded:
    """The model or pipeline that the options name.

    Args:
        model: an open_clip architecture (with `pretrained`); without, a transformers id, an open_clip "hf-hub:..." or
            "local-dir:...", a folder that `vldebias train` or one of the two libraries has written, or "miniature".
        pretrained: an open_clip tag or a checkpoint file.
        pipeline: a diffusers id or folder, or "miniature".
        device, dtype: where and how to hold the weights ("cuda", "float16").

    Raises:
        InvalidInputError: the options contradict each other, or the weights cannot be had.
    """
    if (model is None) == (pipeline is None):
        raise InvalidInputError(
            "expected either --model (with --pretrained for open_clip) or --pipeline, got both or neither"
        )
    if pretrained is not None and model is None:
        raise InvalidInputError("--pretrained names open_clip weights and goes with --model, not with --pipeline")
    weight_type = _dtype(dtype)
    try:
        if pipeline is not None:
            return _pipeline(pipeline, device, weight_type)
        assert model is not None
        if model == "miniature":
            return _miniature_clip(device, weight_type)
        return _clip(model, pretrained, device, weight_type)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, InvalidInputError):
            raise
        name = pipeline or model
        raise InvalidInputError(
            f"cannot load {name!r}: {str(error).strip().splitlines()[0]}. Expected an open_clip architecture with "
            "--pretrained, a transformers or diffusers id or local folder, or 'miniature'; offline use a local folder"
        ) from error


def _dtype(name: str | None) -> torch.dtype:
    known = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if name is not None and name not in known:
        raise InvalidInputError(f"dtype: expected one of {', '.join(known)}, got {name!r}")
    return known[name or "float32"]


def _placed(pipe: Any, device: str, dtype: torch.dtype) -> Any:
    """The pipeline on `device` in `dtype`; a cast that changes nothing would only make diffusers warn."""
    pipe = pipe.to(device)
    return pipe if pipe.dtype == dtype else pipe.to(dtype)


def _pipeline(name: str, device: str, dtype: torch.dtype) -> Loaded:
    if name == "miniature":
        from vldebias.miniature import load_pipeline

        return Loaded(_placed(load_pipeline(), device, dtype), name)
    from diffusers import DiffusionPipeline

    # Cast afterwards: the name of the argument differs between releases of diffusers and transformers.
    return Loaded(_placed(DiffusionPipeline.from_pretrained(name), device, dtype), name)


def _clip(name: str, pretrained: str | None, device: str, dtype: torch.dtype) -> Loaded:
    """By its library, which a folder tells by its files."""
    if pretrained is not None:
        return _open_clip(name, pretrained, device, dtype)
    if name.startswith(_SCHEMAS):
        return _open_clip(name, None, device, dtype)
    folder = Path(name)
    if (folder / "config.json").is_file():  # first: repositories often hold a model for both libraries
        return _transformers(name, device, dtype)
    if (folder / "open_clip_config.json").is_file():
        return replace(_open_clip(f"local-dir:{name}", None, device, dtype), name=name)
    if (folder / "clip.safetensors").is_file():
        return _miniature_clip(device, dtype, folder)
    return _transformers(name, device, dtype)


def _miniature_clip(device: str, dtype: torch.dtype, folder: Path | None = None) -> Loaded:
    from vldebias.miniature import load_clip

    model, preprocess, tokenizer = load_clip(folder)
    return Loaded(model.to(device, dtype), "miniature" if folder is None else str(folder), tokenizer, preprocess)


def _open_clip(name: str, pretrained: str | None, device: str, dtype: torch.dtype) -> Loaded:
    import open_clip

    if name not in open_clip.list_models() and not name.startswith(_SCHEMAS):
        raise InvalidInputError(f"{name!r} is not an open_clip architecture; see open_clip.list_models()")
    model, _, preprocess = open_clip.create_model_and_transforms(name, pretrained=pretrained)
    known_as = name if pretrained is None else f"{name}/{pretrained}"
    return Loaded(model.to(device, dtype).eval(), known_as, open_clip.get_tokenizer(name), preprocess)


def _transformers(name: str, device: str, dtype: torch.dtype) -> Loaded:
    from transformers import AutoModel, AutoProcessor

    model = AutoModel.from_pretrained(name).to(device, dtype).eval()
    processor = AutoProcessor.from_pretrained(name)
    return Loaded(model, name, processor.tokenizer, processor.image_processor)
