"""Write a model and its weights into a folder that open_clip or transformers reads as a model of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, need
from vldebias.hosts.base import reading
from vldebias.hosts.towers import Towers

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"


def write_checkpoint(towers: Towers, weights: Mapping[str, Tensor], folder: Path, *, name: str) -> None:
    """Write the model with `weights` into `folder`, which exists, with its tokenizer and its preprocessing.

    Args:
        towers: the model; it may carry adapters, its own weights are not read.
        weights: a whole state dict without adapters.
        folder: open it by open_clip as "local-dir:FOLDER", by `from_pretrained`, and by `--model FOLDER`.
        name: the name that the model was loaded by; an open_clip model does not know its own architecture.

    Raises:
        InvalidInputError: see `check_checkpoint`.
    """
    if towers.library == "transformers":
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
    """Check that the output of `write_checkpoint` would be this model: open_clip reads it from a temporary folder.

    Raises:
        InvalidInputError: an unknown architecture or another one than that of the model, a tokenizer or preprocessing
            that its library cannot store.
    """
    if towers.library == "transformers":
        _savable_parts(towers)
        return
    mismatch = f"name: {name!r} describes another architecture than that of the model"
    with TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        write_checkpoint(towers, weights, Path(folder), name=name)
        try:
            load = need("open_clip").create_model_and_transforms
            twin, _, transform = load(f"local-dir:{folder}", pretrained_hf=False)
        except RuntimeError as error:
            lines = str(error).strip().splitlines()
            raise InvalidInputError(f"{mismatch}: {lines[min(1, len(lines) - 1)].strip()}") from error
    picture = need("PIL.Image").linear_gradient("L").point(lambda value: value * 37 % 256).convert("RGB")
    picture = picture.resize((towers.size[1] * 2, towers.size[0] * 3))
    pixels, ids = towers.prepare(picture), towers.tokenize(["a photo"])["text"]
    difference = float((transform(picture) - pixels).abs().max())
    if difference > 1e-3:
        raise InvalidInputError(
            f"preprocess: open_clip stores mean, std and resizing, and with these the pixels of a picture differ by up "
            f"to {difference:.2f}; expected the second transform that open_clip.create_model_and_transforms returns"
        )
    with reading(towers.model, twin):
        images = towers.image(pixels[None].to(towers.device)), twin.encode_image(pixels[None])
        texts = towers.text({"text": ids.to(towers.device)}), twin.encode_text(ids)
    for side, (one, other) in {"images": images, "texts": texts}.items():
        difference = float((one.cpu().float() - other).norm() / other.norm())
        if not difference < (1e-2 if one.dtype in (torch.float32, torch.float64) else 0.1):
            raise InvalidInputError(
                f"{mismatch}: with the same weights its features of {side} differ by {difference:.1%}"
            )


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


def _config(towers: Towers, name: str) -> dict[str, Any]:
    """Return the content of open_clip_config.json: the architecture by its name, with the sizes of the model itself."""
    open_clip, model = need("open_clip"), towers.model
    folder = Path(name.removeprefix("local-dir:"))
    known = f"local-dir:{folder}" if (folder / CONFIG).is_file() else name
    config = open_clip.get_model_config(known) or open_clip.get_model_config(known.partition("/")[0])
    if config is None:
        raise InvalidInputError(
            f"name: {name!r} is no open_clip architecture, and a model of open_clip does not say which it is; expected "
            "the name that it was created by: one of open_clip.list_models(), 'hf-hub:...' or 'local-dir:...'"
        )
    config["vision_cfg"]["image_size"] = list(towers.size) if towers.size[0] != towers.size[1] else towers.size[0]
    config["quick_gelu"] = any(type(part).__name__ == "QuickGELU" for part in model.modules())
    if hasattr(towers.tokenizer, "save_pretrained"):  # open_clip looks for one where its config names one
        config["text_cfg"].setdefault("hf_tokenizer_name", name)
    else:
        config["text_cfg"].pop("hf_tokenizer_name", None)
        plain = open_clip.SimpleTokenizer
        if not isinstance(towers.tokenizer, plain) or towers.tokenizer.bpe_ranks != plain().bpe_ranks:
            raise InvalidInputError(
                f"tokenizer: {type(towers.tokenizer).__name__} with a vocabulary of its own cannot be saved with an "
                "open_clip model; expected what open_clip.get_tokenizer(model_name) returns"
            )
    preprocessing = {"mean": towers.mean, "std": towers.std} | (getattr(model.visual, "preprocess_cfg", None) or {})
    preprocessing.pop("size", None)  # of the image tower
    return {"model_cfg": config, "preprocess_cfg": preprocessing}
