"""Folders that open_clip and transformers read as models of their own: written from a model and its weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.seam import reading
from vldebias.hosts.towers import Towers

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"

Config = dict[str, Any]


@dataclass(frozen=True)
class Format:
    """How a library stores a model with its tokenizer and preprocessing.

    write: (towers, weights, folder, name), see `write_checkpoint`. check: (towers, weights, name), without writing.
    """

    write: Callable[[Towers, Mapping[str, Tensor], Path, str], None]
    check: Callable[[Towers, Mapping[str, Tensor], str], None]


def write_checkpoint(towers: Towers, weights: Mapping[str, Tensor], folder: Path, *, name: str) -> None:
    """Writes the model with `weights` into `folder`, which exists, with its tokenizer and its preprocessing.

    Args:
        towers: the model; it may carry adapters or be sharded, its own weights are not read.
        weights: a whole state dict without adapters.
        folder: then opened by open_clip as "local-dir:FOLDER", by `from_pretrained`, and by `--model FOLDER`.
        name: what the model was loaded by; an open_clip model does not know its own architecture.

    Raises:
        InvalidInputError: see `check_checkpoint`.
    """
    _format(towers).write(towers, weights, folder, name)


def check_checkpoint(towers: Towers, weights: Mapping[str, Tensor], *, name: str) -> None:
    """Finds out whether what `write_checkpoint` would write is this model, without writing it.

    Raises:
        InvalidInputError: an unknown architecture or another one than that of the model, a tokenizer or preprocessing
            that its library cannot store. UnsupportedHostError: a library that `FORMATS` has not.
    """
    _format(towers).check(towers, weights, name)


def _format(towers: Towers) -> Format:
    try:
        return FORMATS[towers.library]
    except KeyError:
        raise UnsupportedHostError(
            f"{type(towers.model).__name__}: nothing says how a model of {towers.library} is written to a folder; "
            f"known are those of {', '.join(FORMATS)}. Add a vldebias.hosts.checkpoints.Format to FORMATS"
        ) from None


def _write_transformers(towers: Towers, weights: Mapping[str, Tensor], folder: Path, name: str) -> None:
    model: Any = towers.model
    model.save_pretrained(folder, state_dict=dict(weights))
    for part in _savable_parts(towers):
        part.save_pretrained(folder)


def _check_transformers(towers: Towers, weights: Mapping[str, Tensor], name: str) -> None:
    _savable_parts(towers)


def _write_open_clip(towers: Towers, weights: Mapping[str, Tensor], folder: Path, name: str) -> None:
    from safetensors.torch import save_file

    config = _config(towers, name)
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    plain = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
    save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})
    if hasattr(towers.tokenizer, "save_pretrained"):
        towers.tokenizer.save_pretrained(str(folder))


def _check_open_clip(towers: Towers, weights: Mapping[str, Tensor], name: str) -> None:
    config = _config(towers, name)
    _compare_features(towers, weights, config["model_cfg"], name)
    _compare_preprocessing(towers, config["preprocess_cfg"])


def _savable_parts(towers: Towers) -> list[Any]:
    processor = getattr(towers.preprocess, "image_processor", None) or towers.preprocess
    parts = {"tokenizer": towers.tokenizer, "preprocess": processor}
    for name, part in parts.items():
        if not hasattr(part, "save_pretrained"):
            raise InvalidInputError(
                f"{name}: {type(part).__name__} cannot be saved with a model of transformers; expected its processor, "
                "or its tokenizer and image processor (AutoProcessor.from_pretrained)"
            )
    return list(parts.values())


def _config(towers: Towers, name: str) -> Config:
    """What open_clip_config.json says: the architecture by its name, with what the model itself says otherwise."""
    model: Any = towers.model
    architecture = _architecture(name)
    text, vision = architecture["text_cfg"], architecture["vision_cfg"]
    size = model.visual.image_size
    height, width = (size, size) if isinstance(size, int) else size
    vision["image_size"] = height if height == width else [height, width]
    if "hf_model_name" not in text:
        text["context_length"] = getattr(model, "text", model).context_length
    architecture["custom_text"] = hasattr(model, "text")
    architecture["quick_gelu"] = any(type(part).__name__ == "QuickGELU" for part in model.modules())
    architecture["nonscalar_logit_scale"] = model.logit_scale.ndim == 1
    if model.logit_bias is not None:
        architecture.setdefault("init_logit_bias", 0.0)
    _describe_tokenizer(towers.tokenizer, text, name)
    preprocessing = {"mean": list(towers.mean), "std": list(towers.std)}
    preprocessing |= getattr(model.visual, "preprocess_cfg", None) or {}
    preprocessing.pop("size", None)  # of the image tower
    return {"model_cfg": architecture, "preprocess_cfg": preprocessing}


def _architecture(name: str) -> Config:
    open_clip = need("open_clip")

    folder = Path(name.removeprefix("local-dir:"))
    if (folder / CONFIG).is_file():
        name = f"local-dir:{folder}"
    config: Config | None = open_clip.get_model_config(name) or open_clip.get_model_config(name.partition("/")[0])
    if config is None:
        raise InvalidInputError(
            f"name: {name!r} is no open_clip architecture, and a model of open_clip does not say which it is; expected "
            "the name that it was created by: one of open_clip.list_models(), 'hf-hub:...' or 'local-dir:...'"
        )
    return config


def _describe_tokenizer(tokenizer: Any, text: Config, name: str) -> None:
    """open_clip looks for a stored tokenizer where its config names one."""
    SimpleTokenizer = need("open_clip").SimpleTokenizer

    if hasattr(tokenizer, "save_pretrained"):
        text.setdefault("hf_tokenizer_name", name)
        return
    text.pop("hf_tokenizer_name", None)
    if not isinstance(tokenizer, SimpleTokenizer) or tokenizer.bpe_ranks != SimpleTokenizer().bpe_ranks:
        raise InvalidInputError(
            f"tokenizer: {type(tokenizer).__name__} with a vocabulary of its own cannot be saved with an open_clip "
            "model; expected what open_clip.get_tokenizer(model_name) returns"
        )


def _compare_features(towers: Towers, weights: Mapping[str, Tensor], architecture: Config, name: str) -> None:
    """Builds the model that the config describes and compares what it makes of an image and of a text."""
    mismatch = f"name: {name!r} describes another architecture than that of the model"
    twin = _build(architecture)
    try:
        twin.load_state_dict({key: tensor.detach().cpu() for key, tensor in weights.items()})
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise InvalidInputError(f"{mismatch}: {lines[min(1, len(lines) - 1)].strip()}") from error
    pixels = torch.linspace(-1, 1, 3 * towers.size[0] * towers.size[1]).reshape(1, 3, *towers.size)
    tokens = towers.tokenize(["a photo"])
    with reading(towers.model):
        features = [
            towers.image(pixels.to(towers.device)),
            towers.text({key: tensor.to(towers.device) for key, tensor in tokens.items()}),
        ]
    with reading(twin):
        expected = [twin.encode_image(pixels, normalize=False), twin.encode_text(tokens["text"], normalize=False)]
    for side, one, other in zip(("images", "texts"), features, expected, strict=True):
        difference = float((one.cpu().float() - other).norm() / other.norm())
        if not difference < (1e-2 if one.dtype in (torch.float32, torch.float64) else 0.1):
            raise InvalidInputError(
                f"{mismatch}: with the same weights its features of {side} differ by {difference:.1%}"
            )


def _build(architecture: Config) -> Any:
    """As open_clip.create_model does it, in single precision and without downloading anything."""
    open_clip = need("open_clip")

    options = json.loads(json.dumps(architecture))
    custom = options.pop("custom_text")
    for part, key, flag in (
        ("vision_cfg", "timm_model_name", "timm_model_pretrained"),
        ("text_cfg", "hf_model_name", "hf_model_pretrained"),
    ):
        if key in options[part]:
            options[part][flag] = False
    kind = (open_clip.CoCa if "multimodal_cfg" in options else open_clip.CustomTextCLIP) if custom else open_clip.CLIP
    with torch.random.fork_rng(devices=[]):
        return kind(**options)


def _compare_preprocessing(towers: Towers, preprocessing: Config) -> None:
    """What open_clip will make of the config must treat a picture as the given preprocessing does."""
    made = need("open_clip.transform")
    transform = made.image_transform_v2(made.PreprocessCfg(size=towers.size, **preprocessing), is_train=False)
    picture = need("PIL.Image").linear_gradient("L").point(lambda value: value * 37 % 256).convert("RGB")
    picture = picture.resize((towers.size[1] * 2, towers.size[0] * 3))
    difference = float((transform(picture) - towers.prepare(picture)).abs().max())
    if difference > 1e-3:
        raise InvalidInputError(
            f"preprocess: open_clip would store {preprocessing}, which makes other pixels of a picture (by up to "
            f"{difference:.2f}); expected the second transform that open_clip.create_model_and_transforms returns"
        )


FORMATS = {
    "open_clip": Format(_write_open_clip, _check_open_clip),
    "transformers": Format(_write_transformers, _check_transformers),
}
"""Library of a host -> how its models are stored."""
