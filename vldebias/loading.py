"""Open a model or pipeline by name: open_clip, transformers, diffusers, or the embedded miniature."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vldebias.errors import InvalidInputError, VldebiasError, need
from vldebias.hub import NO_CODE, asked_once, not_cached, reason

_LOCAL = "local-dir:"
_HUB = "hf-hub:"
_SCHEMAS = (_HUB, _LOCAL)  # names by which open_clip finds a model without a list of its own
_HUB_ID = r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?"
_FIRST_FILES = ("config.json", "model_index.json", "open_clip_config.json")  # what a library reads before anything else
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")


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
    if dtype not in (None, *_DTYPES):
        raise InvalidInputError(f"dtype: expected one of {', '.join(_DTYPES)}, got {dtype!r}")
    weight_type = _DTYPES[dtype or "float32"]
    name = pipeline or model or ""
    shown = repr(name) + (f" with {pretrained!r}" if pretrained else "")
    with asked_once("." if name == "miniature" else pretrained or name.removeprefix(_LOCAL)) as why:
        if why:
            _check_cached(name, pretrained, shown, why)
        try:
            if pipeline is not None:
                return _pipeline(pipeline, device, weight_type)
            assert model is not None
            asked = _Asked(model, pretrained, Path(model))
            return next(read for takes, read in _READERS if takes(asked))(asked, device, weight_type)
        except VldebiasError:
            raise
        except Exception as error:  # on damaged files the libraries raise whatever they stumble over
            if why and not_cached(error):
                raise InvalidInputError(_not_there(shown, why)) from error
            raise InvalidInputError(
                f"cannot load {shown}: {reason(error)}. Expected an open_clip architecture with --pretrained, a "
                "transformers or diffusers id or local folder, or 'miniature'; offline use a local folder"
            ) from error


def _check_cached(name: str, pretrained: str | None, given: str, why: str) -> None:
    """Refuse weights of which the cache of the hub has nothing, before a model is made for them."""
    from huggingface_hub import try_to_load_from_cache

    repo, files = name.removeprefix(_HUB), list(_FIRST_FILES)
    if pretrained is not None:
        open_clip = need("open_clip")

        repo = "/".join(open_clip.get_pretrained_cfg(name, pretrained).get("hf_hub", "").split("/")[:2])
        files = list(_WEIGHTS)
    if re.fullmatch(_HUB_ID, repo) and not any(isinstance(try_to_load_from_cache(repo, f), str) for f in files):
        raise InvalidInputError(_not_there(given, why, f" (`hf download {repo} --local-dir DIR`)"))


def _not_there(given: str, why: str, how: str = "") -> str:
    from huggingface_hub import constants

    return (
        f"cannot load {given}: there is no such folder, it is not in {constants.HF_HUB_CACHE}, and {why}; fetch it "
        f"where there is a network{how} and give that folder, or of open_clip the file as --pretrained; offline use a "
        "local folder or 'miniature'"
    )


def _placed(pipe: Any, device: str, dtype: torch.dtype) -> Any:
    """The pipeline on `device` in `dtype`; a cast that changes nothing would only make diffusers warn."""
    pipe = pipe.to(device)
    return pipe if pipe.dtype == dtype else pipe.to(dtype)


def _pipeline(name: str, device: str, dtype: torch.dtype) -> Loaded:
    if name == "miniature":
        from vldebias.miniature import load_pipeline

        return Loaded(_placed(load_pipeline(), device, dtype), name)
    DiffusionPipeline = need("diffusers").DiffusionPipeline

    # Cast afterwards: the name of the argument differs between releases of diffusers and transformers.
    pipe = DiffusionPipeline.from_pretrained(name, **NO_CODE)
    return Loaded(_placed(pipe, device, dtype), name)


def _miniature_clip(device: str, dtype: torch.dtype, folder: Path | None = None) -> Loaded:
    from vldebias.miniature import load_clip

    model, preprocess, tokenizer = load_clip(folder)
    return Loaded(model.to(device, dtype), "miniature" if folder is None else str(folder), tokenizer, preprocess)


def _open_clip(name: str, pretrained: str | None, device: str, dtype: torch.dtype) -> Loaded:
    open_clip = need("open_clip")

    if name not in open_clip.list_models() and not name.startswith(_SCHEMAS):
        raise InvalidInputError(f"{name!r} is not an open_clip architecture; see open_clip.list_models()")
    model, _, preprocess = open_clip.create_model_and_transforms(name, pretrained=pretrained)
    known_as = name if pretrained is None else f"{name}/{pretrained}"
    return Loaded(model.to(device, dtype).eval(), known_as, open_clip.get_tokenizer(name), preprocess)


def _transformers(name: str, device: str, dtype: torch.dtype) -> Loaded:
    transformers = need("transformers")

    model = transformers.AutoModel.from_pretrained(name, **NO_CODE).to(device, dtype).eval()
    processor = transformers.AutoProcessor.from_pretrained(name, **NO_CODE)
    return Loaded(model, name, processor.tokenizer, processor.image_processor)


@dataclass(frozen=True)
class _Asked:
    """What `--model` and `--pretrained` say; folder: of that name, if there is one."""

    name: str
    pretrained: str | None
    folder: Path

    def holds(self, file: str) -> bool:
        """A file of the folder; transformers' config.json goes first, since repositories often serve two libraries."""
        return (self.folder / file).is_file() and not (self.folder / "config.json").is_file()


_READERS: tuple[tuple[Callable[[_Asked], bool], Callable[[_Asked, str, torch.dtype], Loaded]], ...] = (
    (lambda one: one.name == "miniature", lambda one, *how: _miniature_clip(*how)),
    (lambda one: one.pretrained is not None, lambda one, *how: _open_clip(one.name, one.pretrained, *how)),
    (lambda one: one.name.startswith(_SCHEMAS), lambda one, *how: _open_clip(one.name, None, *how)),
    (
        lambda one: one.holds("open_clip_config.json"),
        lambda one, *how: replace(_open_clip(f"{_LOCAL}{one.name}", None, *how), name=one.name),
    ),
    (lambda one: one.holds("clip.safetensors"), lambda one, device, dtype: _miniature_clip(device, dtype, one.folder)),
    (lambda one: True, lambda one, *how: _transformers(one.name, *how)),
)
"""Which model is of which library, first come, first served -> how it is read."""
