"""Folders that open_clip and transformers read as models of their own: written from a model and its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts.seam import reading
from vldebias.hosts.towers import Towers

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"

Config = dict[str, Any]


def write_checkpoint(towers: Towers, weights: Mapping[str, Tensor], folder: Path, *, name: str) -> None:
    """Writes the model with `weights` into `folder`, which exists, with its tokenizer and its preprocessing.

    Args:
        towers: the model; it may carry adapters, its own weights are not read.
        weights: a whole state dict without adapters.
        folder: then opened by open_clip as "local-dir:FOLDER", by `from_pretrained`, and by `--model FOLDER`.
        name: what the model was loaded by; an open_clip model does not know its own architecture.

    Raises:
        InvalidInputError: see `check_checkpoint`.
    """
    if _library(towers) == "transformers":
        towers.model.save_pretrained(folder, state_dict=dict(weights))
        for part in _savable_parts(towers):
            part.save_pretrained(folder)
        return
    from safetensors.torch import save_file

    (folder / CONFIG).write_text(json.dumps(_config(towers, name), indent=2) + "\n", encoding="utf-8")
    plain = {key: tensor.detach().cpu().clone().contiguous() for key, tensor in weights.items()}
    save_file(plain, folder / WEIGHTS, metadata={"format": "pt"})
    if hasattr(towers.tokenizer, "save_pretrained"):
        towers.tokenizer.save_pretrained(str(folder))


def check_checkpoint(towers: Towers, weights: Mapping[str, Tensor], *, name: str) -> None:
    """Finds out whether what `write_checkpoint` would write is this model, without writing it.

    Raises:
        InvalidInputError: an unknown architecture or another one than that of the model, a tokenizer or preprocessing
            that its library cannot store. UnsupportedHostError: a model of another library.
    """
    if _library(towers) == "transformers":
        _savable_parts(towers)
        return
    config = _config(towers, name)
    _compare_features(towers, weights, config["model_cfg"], name)
    _compare_preprocessing(towers, config["preprocess_cfg"])


def _library(towers: Towers) -> str:
    if towers.library not in ("open_clip", "transformers"):
        raise UnsupportedHostError(
            f"{type(towers.model).__name__}: nothing says how a model of {towers.library} is written to a folder; "
            "known are those of open_clip and transformers"
        )
    return towers.library


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
    open_clip, model = need("open_clip"), towers.model
    folder = Path(name.removeprefix("local-dir:"))
    known = f"local-dir:{folder}" if (folder / CONFIG).is_file() else name
    config: Config | None = open_clip.get_model_config(known) or open_clip.get_model_config(known.partition("/")[0])
    if config is None:
        raise InvalidInputError(
            f"name: {name!r} is no open_clip architecture, and a model of open_clip does not say which it is; expected "
            "the name that it was created by: one of open_clip.list_models(), 'hf-hub:...' or 'local-dir:...'"
        )
    text, vision, size = config["text_cfg"], config["vision_cfg"], model.visual.image_size
    height, width = (size, size) if isinstance(size, int) else size
    vision["image_size"] = height if height == width else [height, width]
    if "hf_model_name" not in text:
        text["context_length"] = getattr(model, "text", model).context_length
    config["custom_text"] = hasattr(model, "text")
    config["quick_gelu"] = any(type(part).__name__ == "QuickGELU" for part in model.modules())
    config["nonscalar_logit_scale"] = model.logit_scale.ndim == 1
    if model.logit_bias is not None:
        config.setdefault("init_logit_bias", 0.0)
    if hasattr(towers.tokenizer, "save_pretrained"):  # open_clip looks for one where its config names one
        text.setdefault("hf_tokenizer_name", name)
    else:
        text.pop("hf_tokenizer_name", None)
        plain = open_clip.SimpleTokenizer
        if not isinstance(towers.tokenizer, plain) or towers.tokenizer.bpe_ranks != plain().bpe_ranks:
            raise InvalidInputError(
                f"tokenizer: {type(towers.tokenizer).__name__} with a vocabulary of its own cannot be saved with an "
                "open_clip model; expected what open_clip.get_tokenizer(model_name) returns"
            )
    preprocessing = {"mean": list(towers.mean), "std": list(towers.std)}
    preprocessing |= getattr(model.visual, "preprocess_cfg", None) or {}
    preprocessing.pop("size", None)  # of the image tower
    return {"model_cfg": config, "preprocess_cfg": preprocessing}


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
    there = {key: tensor.to(towers.device) for key, tensor in tokens.items()}
    with reading(towers.model):
        features = [towers.image(pixels.to(towers.device)), towers.text(there)]
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
    open_clip, options = need("open_clip"), json.loads(json.dumps(architecture))
    custom = options.pop("custom_text")
    for part, key in (("vision_cfg", "timm_model"), ("text_cfg", "hf_model")):
        if f"{key}_name" in options[part]:
            options[part][f"{key}_pretrained"] = False
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
