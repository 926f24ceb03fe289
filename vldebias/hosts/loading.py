"""Load a model or pipeline by name from open_clip, transformers, diffusers or the packaged
miniature."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from vldebias import miniature
from vldebias.edits.hub import NO_CODE, offline_reason, reason
from vldebias.errors import (
    InvalidInputError,
    UnsupportedHostError,
    VldebiasError,
    need,
)
from vldebias.hosts.attachment import resolve
from vldebias.hosts.host import Host
from vldebias.names import check_architecture

SCHEMAS = (
    "hf-hub:",
    "local-dir:",
)  # names by which open_clip finds a model without a list of its own
"""What a name of open_clip may start with instead of being in its list."""
_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Loaded:
    """Hold a model or pipeline with its tokenizer and preprocessing; preprocess is None for
    pipelines."""

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
    """Load the model or pipeline that the options name.

    Args:
        model: an open_clip architecture (with `pretrained`); without, a transformers id, an
            open_clip "hf-hub:..." or "local-dir:...", a folder that `vldebias train` or one of the
            two libraries has written, or "miniature".
        pretrained: an open_clip tag or a checkpoint file.
        pipeline: a diffusers id or folder, or "miniature".
        device, dtype: where and how to hold the weights ("cuda", "float16").

    Raises:
        InvalidInputError: the options contradict each other, or the weights cannot be loaded.
    """
    if (model is None) == (pipeline is None) or (pretrained is not None and model is None):
        raise InvalidInputError(
            "expected either --model (with --pretrained for open_clip weights) or --pipeline"
        )
    if dtype not in (None, *_DTYPES):
        raise InvalidInputError(f"dtype: expected one of {', '.join(_DTYPES)}, got {dtype!r}")
    name, weights = pipeline or model or "", getattr(torch, dtype or "float32")
    shown = repr(name) + (f" with {pretrained!r}" if pretrained else "")
    with offline_reason(
        "." if name == "miniature" else pretrained or name.removeprefix("local-dir:")
    ) as why:
        try:
            if pipeline is None:
                loaded = _model(name, pretrained)
            elif name == "miniature":
                loaded = Loaded(miniature.load_pipeline(), name)
            else:
                loaded = Loaded(
                    need("diffusers").DiffusionPipeline.from_pretrained(name, **NO_CODE), name
                )
            host = loaded.host.to(device)
            # Afterwards, since the argument's name differs between releases; diffusers warns of a
            # cast to the same.
            return replace(
                loaded, host=host.to(weights) if pipeline is None or host.dtype != weights else host
            )
        except VldebiasError:
            raise
        except (
            Exception
        ) as error:  # on damaged files the libraries raise whatever they stumble over
            raise InvalidInputError(
                f"cannot load {shown}: {reason(error)}{f' ({why})' if why else ''}. Expected an"
                " open_clip architecture with --pretrained, a transformers or diffusers id or"
                " local folder, or 'miniature'; where there is no network use a folder that `hf"
                " download ID --local-dir DIR` wrote elsewhere"
            ) from error


def check_name(model: str, pretrained: str | None = None) -> None:
    """Refuse a model that open_clip does not list with such weights; loads nothing.

    Args:
        model: as of `load_host`. A name with a slash, a folder and "miniature" are no names of
            open_clip: without `pretrained` they pass.
        pretrained: a tag of open_clip, or a checkpoint file.

    Raises:
        InvalidInputError: no such architecture, no such weights of it, or an architecture alone.
    """
    if model.startswith(SCHEMAS):
        return
    if pretrained is None:
        if "/" not in model and not Path(model).exists():
            _refuse_bare_architecture(model)
        return
    open_clip = need("open_clip")
    check_architecture(model)
    if not (open_clip.is_pretrained_cfg(model, pretrained) or Path(pretrained).exists()):
        tags = ", ".join(open_clip.list_pretrained_tags_by_model(model)) or "none"
        raise InvalidInputError(
            f"{model}: got the weights {pretrained!r}; expected a checkpoint file or one of {tags}"
        )


def _refuse_bare_architecture(name: str) -> None:
    """Raise InvalidInputError for an architecture of open_clip, which has no weights by itself."""
    if find_spec("open_clip") is None:
        return
    tags = need("open_clip").list_pretrained_tags_by_model(name)
    if tags:
        raise InvalidInputError(
            f"{name!r} is an architecture of open_clip, without weights; expected --model {name}"
            f" --pretrained TAG (in `eval paper` --model {name}:TAG), with one of"
            f" {', '.join(tags)}"
        )


def has_weights(model: str, pretrained: str | None = None) -> bool:
    """Return whether the weights of a model or pipeline are on this machine; asks no network.

    A file that is there may still be damaged: only loading shows that.
    """
    if model == "miniature" or Path(model).exists():
        return True
    if pretrained is not None and Path(pretrained).exists():
        return True
    repository = model.removeprefix("hf-hub:")
    files = ["model_index.json", "model.safetensors", "pytorch_model.bin"]
    files += ["open_clip_model.safetensors", "open_clip_pytorch_model.bin"]
    if pretrained is not None:
        config = need("open_clip").get_pretrained_cfg(model, pretrained)
        if (Path.home() / ".cache/clip" / Path(config.get("url", "")).name).is_file():
            return True
        repository, _, file = config.get("hf_hub", "").rpartition("/")
        files += [file] if file else []
    if not 0 < len(repository.split("/")) < 3:
        return False
    cached = need("huggingface_hub").try_to_load_from_cache
    return bool(repository) and any(isinstance(cached(repository, file), str) for file in files)


def _model(name: str, pretrained: str | None) -> Loaded:
    folder = Path(name)
    # transformers' config.json goes first, since repositories often serve two libraries
    held = (
        () if (folder / "config.json").is_file() else ("open_clip_config.json", "clip.safetensors")
    )
    first = next((file for file in held if (folder / file).is_file()), None)
    if name == "miniature" or (first == "clip.safetensors" and pretrained is None):
        model, preprocess, tokenizer = miniature.load_clip(None if name == "miniature" else folder)
        return Loaded(model, name, tokenizer, preprocess)
    check_name(name, pretrained)
    if pretrained is not None or first or name.startswith(SCHEMAS):
        open_clip = need("open_clip")
        called = name if pretrained is not None or name.startswith(SCHEMAS) else f"local-dir:{name}"
        made, preprocess = open_clip.create_model_from_pretrained(called, pretrained=pretrained)
        shown = name if pretrained is None else f"{name}/{pretrained}"
        return Loaded(made.eval(), shown, open_clip.get_tokenizer(called), preprocess)
    transformers = need("transformers")
    tower = transformers.AutoModel.from_pretrained(name, **NO_CODE).eval()
    processor = transformers.AutoProcessor.from_pretrained(name, **NO_CODE)
    return Loaded(tower, name, processor.tokenizer, processor.image_processor)


def text_host(model: Any, tokenizer: Any = None) -> Host:
    """Return the host of an image-text model, or of a mapping prompt -> embedding (d,); refuse a
    pipeline."""
    host = resolve(model, tokenizer=tokenizer)
    if host.generative:
        raise UnsupportedHostError(
            f"got the pipeline {host.name}; expected an image-text model. Pipelines have the task"
            ' "generation"'
        )
    return host
