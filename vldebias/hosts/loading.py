"""Load a model or pipeline by name from open_clip, transformers, diffusers or this package."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from vldebias import miniature
from vldebias.errors import (
    InvalidInputError,
    UnsupportedHostError,
    VldebiasError,
    check_arguments,
    check_kind,
    need,
    shortened,
)
from vldebias.hosts.clip.open_clip import folder_address
from vldebias.hosts.host import Host
from vldebias.hosts.loaded import Loaded
from vldebias.hosts.resolving import resolve
from vldebias.miniature.photograph_model import load_encoder
from vldebias.miniature.photographs import NAME as PHOTOGRAPHS
from vldebias.projection.hub import NO_CODE, offline_reason, reason, wrong_content
from vldebias.utils.devices import device_of
from vldebias.utils.names import (
    NAMES_WITH_SCHEMA,
    check_model,
    check_one_host,
    check_path,
    is_function,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PreTrainedTokenizerBase

_DTYPES = ("float32", "float16", "bfloat16")
_SHOWN: set[str] = set()  # messages about cut prompts


@check_arguments("model")
def load_host(
    model: str | None = None,
    pretrained: str | None = None,
    pipeline: str | None = None,
    *,
    device: str | torch.device = "auto",
    dtype: str | None = None,
) -> Loaded:
    """Load a model or pipeline by name.

    See also docs/explanation/pipelines.md.

    Args:
        model: with `pretrained`, an open_clip architecture. Otherwise a transformers id, an
            open_clip "hf-hub:..." or "local-dir:...", a folder saved by `vldebias train` or by one
            of these libraries, "miniature", or "photographs", which only embeds text. It can also
            be "module:function": this function is imported and called without arguments, and
            returns the model, its preprocessing and its tokenizer.
        pretrained: an open_clip tag or a checkpoint file.
        pipeline: a diffusers id or folder, or "miniature".
        device: the device for the weights, such as "cuda:1" or "mps". "auto" is a CUDA device if
            there is one, and the CPU otherwise.
        dtype: precision of the weights: "float32", "float16" or "bfloat16"; if None, "float32".

    Returns:
        A `Loaded` with the fields `host` (the model or pipeline), `name` (a string), `tokenizer`
        and `preprocess`. The last two are None for pipelines.

    Raises:
        InvalidInputError: If options contradict each other, or the weights cannot be loaded.

    >>> import vldebias
    >>> loaded = load_host("miniature")  # or load_host("ViT-B-32", pretrained="openai")
    >>> attachment = vldebias.debias(loaded, "gender", method="cali")
    >>> attachment.remove()
    """
    for option, value in (("model", model), ("pipeline", pipeline)):
        expected = "a name; what is already loaded is passed to vldebias.debias as it is"
        check_kind(option, value, str | Path | None, expected)
    check_one_host({"model": model, "pretrained": pretrained, "pipeline": pipeline})
    if dtype not in (None, *_DTYPES):
        raise InvalidInputError(f"dtype: expected one of {', '.join(_DTYPES)}, got {dtype!r}")
    name = str(pipeline or model or "")
    if pipeline is not None:
        check_path(name, "pipeline")
    elif pretrained is None and not name.startswith(NAMES_WITH_SCHEMA):
        check_path(name, "model")
    problem = wrong_content(pretrained or name)
    if problem:
        raise InvalidInputError(problem)
    # For the miniature models, pass a local folder, so that the hub is not checked.
    with _explained(name, pretrained):
        if pipeline is None:
            loaded = _model(name, pretrained)
        elif name == "miniature":
            loaded = Loaded(miniature.load_pipeline(), name)
        else:
            load = need("diffusers").DiffusionPipeline.from_pretrained
            logging.getLogger("diffusers.pipelines.pipeline_utils").addFilter(_shorten)
            # diffusers only loads parts from other packages if these are imported.
            import_module("vldebias.miniature.autoencoder")
            loaded = Loaded(load(name, **NO_CODE), name)
        if pipeline is not None:
            _shorten_logs(loaded.host)
        return _placed(loaded, device_of(str(device)), getattr(torch, dtype or "float32"))


def check_pipeline(name: str) -> None:
    """Check that a pipeline exists, without loading its weights.

    Args:
        name: a diffusers id or folder, or "miniature".

    Raises:
        InvalidInputError: If its configuration cannot be loaded.
    """
    if name != "miniature":
        check_path(name, "pipeline")
        with _explained(name):
            need("diffusers").DiffusionPipeline.load_config(name)


@contextmanager
def _explained(name: str, pretrained: str | None = None) -> Iterator[None]:
    """Convert the libraries' errors to one that says what cannot be loaded, and why."""
    requested = "."
    if name not in ("miniature", PHOTOGRAPHS):
        requested = pretrained or name.removeprefix("local-dir:")
    with offline_reason(requested) as why:
        try:
            yield
        except VldebiasError:
            raise
        except Exception as error:
            # The libraries may raise any type of error for damaged files.
            shown = f"{name!r} with {pretrained!r}" if pretrained else repr(name)
            cause = reason(error)
            repository = name.removeprefix("hf-hub:")
            if why and not is_function(name):
                way = "pass a file of weights as `pretrained`"
                if not pretrained:
                    way = f"run `hf download {repository} --local-dir DIR` elsewhere, and pass DIR"
                cause += f" ({why}). To use it without a network, {way}"
                if not pretrained and "/" not in repository:
                    cause = "it is neither a folder here nor OWNER/NAME on the hub; check the name"
            raise InvalidInputError(f"cannot load {shown}: {cause}") from error


def _shorten(record: logging.LogRecord) -> bool:
    """Replace the libraries' messages about prompts that are too long by one line per limit.

    A hub that does not respond is explained by our error, if the pipeline is not in the cache.
    """
    message = record.getMessage()
    limit = re.search("input was truncated .{0,200} up to ([0-9]+) tokens", message)
    if limit is None:
        hidden = "will result in indexing errors|^Couldn't connect to the Hub"
        return re.search(hidden, message) is None
    record.msg = f"Prompts are cut to {limit[1]} tokens; the rest has no effect (shown once)"
    record.args = ()
    is_first = record.msg not in _SHOWN
    _SHOWN.add(record.msg)
    return is_first


def _shorten_logs(pipe: object) -> None:
    """Log one line about cut prompts, in place of one for each prompt and library."""
    for name in ("transformers.tokenization_utils_base", *(c.__module__ for c in type(pipe).mro())):
        logging.getLogger(name).addFilter(_shorten)


def _placed(loaded: Loaded, device: str, dtype: torch.dtype) -> Loaded:
    """Move a loaded model to a device and cast it.

    The model is cast after loading, because the name of the loader's dtype argument differs between
    releases of the libraries.
    """
    host = loaded.host.to(device)
    # diffusers warns if a pipeline is cast to its current dtype.
    is_cast = loaded.preprocess is None and getattr(host, "dtype", None) == dtype
    return replace(loaded, host=host if is_cast else host.to(dtype))


def _model(name: str, pretrained: str | None) -> Loaded:
    if name == "miniature":
        return _miniature(name, None)
    if name == PHOTOGRAPHS and pretrained is None:
        return Loaded(load_encoder(), name)
    folder = Path(name)
    # transformers' config.json takes precedence, because many repositories support both libraries.
    is_transformers = (folder / "config.json").is_file()
    is_open_clip = not is_transformers and (folder / "open_clip_config.json").is_file()
    is_miniature = not is_transformers and (folder / "clip.safetensors").is_file()
    if pretrained is None and is_miniature and not is_open_clip:
        return _miniature(name, folder)
    # Reject an unknown name before anything is downloaded.
    check_model(name, pretrained)
    if is_function(name):
        return _returned(name)
    if pretrained is not None or is_open_clip or name.startswith(NAMES_WITH_SCHEMA):
        open_clip = need("open_clip")
        address = name
        if name.startswith("local-dir:") or (is_open_clip and pretrained is None):
            address = folder_address(name.removeprefix("local-dir:"))
        model, preprocess = open_clip.create_model_from_pretrained(address, pretrained=pretrained)
        shown = name if pretrained is None else f"{name}/{pretrained}"
        return Loaded(model.eval(), shown, open_clip.get_tokenizer(address), preprocess)
    transformers = need("transformers")
    tower = transformers.AutoModel.from_pretrained(name, **NO_CODE).eval()
    processor = transformers.AutoProcessor.from_pretrained(name, **NO_CODE)
    check_tokenizer(processor.tokenizer, name)
    return Loaded(tower, name, processor.tokenizer, processor.image_processor)


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    """Raise an error for a tokenizer without a vocabulary, which transformers creates silently.

    Args:
        tokenizer: the tokenizer.
        name: the folder or id of the model, for the message.
    """
    first, second = tokenizer(["A photo of a doctor.", "The red bus of a nurse."])["input_ids"]
    if set(first) == set(second):
        raise InvalidInputError(
            f"{name}: it has no tokenizer files, so all prompts would have the same tokens; save"
            f" the tokenizer there: tokenizer.save_pretrained({name!r})"
        )


def _returned(name: str) -> Loaded:
    """Return the model that a function named as module:function returns.

    Modules in the working directory have priority over installed ones, as in `python -m`.
    """
    module, _, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        parts = getattr(import_module(module), function)()
    finally:
        sys.path.remove(str(Path.cwd()))
    if not isinstance(parts, tuple) or len(parts) != 3:
        raise InvalidInputError(
            f"{name}: expected the function to return a model, its preprocessing and its tokenizer,"
            f" as a tuple; got {shortened(repr(parts), 100)}"
        )
    model, preprocess, tokenizer = parts
    return Loaded(model.eval(), name, tokenizer, preprocess)


def _miniature(name: str, folder: Path | None) -> Loaded:
    model, preprocess, tokenizer = miniature.load_clip(folder)
    return Loaded(model, name, tokenizer, preprocess)


def text_host(model: object, tokenizer: object = None) -> Host:
    """Return the host for an image-text model, or for a mapping from prompt to embedding (d,).

    Args:
        model: an image-text model, or a mapping from prompt to embedding (d,).
        tokenizer: the model's tokenizer, if it cannot be derived from the model.

    Raises:
        UnsupportedHostError: If it is a pipeline.
    """
    host = resolve(model, tokenizer=tokenizer)
    if host.generative:
        raise UnsupportedHostError(
            f"got the pipeline {host.name}; expected an image-text model. To evaluate a"
            ' pipeline, use the task "generation"'
        )
    return host
