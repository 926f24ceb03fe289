"""Open a model or pipeline by name: open_clip, transformers, diffusers, or the embedded miniature."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from vldebias.errors import InvalidInputError

__all__ = ["Loaded", "load_host"]

_SCHEMAS = ("hf-hub:", "local-dir:")  # names by which open_clip finds a model without a list of its own
_HUB_ID = r"[A-Za-z0-9][\w.-]*/[\w.-]+"
_FIRST_FILES = ("config.json", "model_index.json")  # what transformers and diffusers read before anything else
_PATIENCE = 3.0  # seconds for the hub to answer; the libraries ask for a minute before they give up


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
        InvalidInputError: the options contradict each other, or the weights cannot be had; of an id of the hub that
            is not in the cache this is told within seconds where the hub cannot be reached.
    """
    if (model is None) == (pipeline is None):
        raise InvalidInputError(
            "expected either --model (with --pretrained for open_clip) or --pipeline, got both or neither"
        )
    if pretrained is not None and model is None:
        raise InvalidInputError("--pretrained names open_clip weights and goes with --model, not with --pipeline")
    weight_type = _dtype(dtype)
    alone = pretrained is None and _hub_is_away(pipeline or model or "")
    try:
        if pipeline is not None:
            return _pipeline(pipeline, device, weight_type, alone)
        assert model is not None
        if model == "miniature":
            return _miniature_clip(device, weight_type)
        return _clip(model, pretrained, device, weight_type, alone)
    except (OSError, ValueError, RuntimeError) as error:
        if isinstance(error, InvalidInputError):
            raise
        name = pipeline or model
        raise InvalidInputError(
            f"cannot load {name!r}: {str(error).strip().splitlines()[0]}. Expected an open_clip architecture with "
            "--pretrained, a transformers or diffusers id or local folder, or 'miniature'; offline use a local folder"
        ) from error


def _hub_is_away(name: str) -> bool:
    """Whether an id of the hub must come from the cache alone; of other names False.

    Raises:
        InvalidInputError: and it is not there.
    """
    if not re.fullmatch(_HUB_ID, name) or Path(name).exists():
        return False
    from huggingface_hub import constants, try_to_load_from_cache

    server = urlsplit(constants.ENDPOINT)
    if not constants.HF_HUB_OFFLINE and _answers(server.hostname or "", server.port or 443):
        return False
    if any(isinstance(try_to_load_from_cache(name, file), str) for file in _FIRST_FILES):
        return True
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else f"{server.hostname} does not answer"
    raise InvalidInputError(
        f"cannot load {name!r}: there is no such folder, it is not in {constants.HF_HUB_CACHE}, and {why}; fetch it "
        f"where there is a network (`hf download {name} --local-dir DIR`) and give that folder; offline use a local "
        "folder or 'miniature'"
    )


def _answers(host: str, port: int) -> bool:
    if urllib.request.getproxies().get("https"):
        return True  # it knows names that this machine does not
    answered = threading.Event()

    def ask() -> None:
        with suppress(OSError):
            socket.create_connection((host, port), timeout=_PATIENCE).close()
            answered.set()

    thread = threading.Thread(target=ask, daemon=True)  # looking up a name has no time limit of its own
    thread.start()
    thread.join(_PATIENCE)
    return answered.is_set()


def _dtype(name: str | None) -> torch.dtype:
    known = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
    if name is not None and name not in known:
        raise InvalidInputError(f"dtype: expected one of {', '.join(known)}, got {name!r}")
    return known[name or "float32"]


def _placed(pipe: Any, device: str, dtype: torch.dtype) -> Any:
    """The pipeline on `device` in `dtype`; a cast that changes nothing would only make diffusers warn."""
    pipe = pipe.to(device)
    return pipe if pipe.dtype == dtype else pipe.to(dtype)


def _pipeline(name: str, device: str, dtype: torch.dtype, alone: bool) -> Loaded:
    if name == "miniature":
        from vldebias.miniature import load_pipeline

        return Loaded(_placed(load_pipeline(), device, dtype), name)
    from diffusers import DiffusionPipeline

    # Cast afterwards: the name of the argument differs between releases of diffusers and transformers.
    pipe = DiffusionPipeline.from_pretrained(name, local_files_only=alone)
    return Loaded(_placed(pipe, device, dtype), name)


def _clip(name: str, pretrained: str | None, device: str, dtype: torch.dtype, alone: bool) -> Loaded:
    """By its library, which a folder tells by its files."""
    if pretrained is not None:
        return _open_clip(name, pretrained, device, dtype)
    if name.startswith(_SCHEMAS):
        return _open_clip(name, None, device, dtype)
    folder = Path(name)
    if (folder / "config.json").is_file():  # first: repositories often hold a model for both libraries
        return _transformers(name, device, dtype, alone)
    if (folder / "open_clip_config.json").is_file():
        return replace(_open_clip(f"local-dir:{name}", None, device, dtype), name=name)
    if (folder / "clip.safetensors").is_file():
        return _miniature_clip(device, dtype, folder)
    return _transformers(name, device, dtype, alone)


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


def _transformers(name: str, device: str, dtype: torch.dtype, alone: bool) -> Loaded:
    from transformers import AutoModel, AutoProcessor

    model = AutoModel.from_pretrained(name, local_files_only=alone).to(device, dtype).eval()
    processor = AutoProcessor.from_pretrained(name, local_files_only=alone)
    return Loaded(model, name, processor.tokenizer, processor.image_processor)
