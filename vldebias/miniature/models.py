"""Load the miniature models.

Weights are loaded from `folder`, by default `weights_dir()`. Every loader raises InvalidInputError
if the folder contains no weights or weights for different architectures.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import nn

from vldebias.errors import InvalidInputError, need
from vldebias.miniature.architectures import (
    CONFIGS,
    IMAGE_MEAN,
    IMAGE_STD,
    AttributeNetwork,
    Widths,
    build_clip,
    text_config,
)
from vldebias.miniature.tokenizer import BUILD, open_clip_tokenizer, transformers_tokenizer
from vldebias.miniature.words import SIZE

if TYPE_CHECKING:
    import open_clip
    from diffusers import StableDiffusionPipeline
    from PIL import Image
    from transformers import CLIPTextModel, CLIPTokenizer

    from vldebias.miniature.autoencoder import PatchAutoencoder

VARIABLE = "VLDEBIAS_MINIATURE"
Module = TypeVar("Module", bound=nn.Module)


def weights_dir() -> Path:
    """Return the weights folder from VLDEBIAS_MINIATURE, or else the packaged folder."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return Path(__file__).parent / "weights"
    if not Path(folder).is_dir():
        raise InvalidInputError(
            f"{VARIABLE}: got {folder!r}; expected a folder created by {BUILD.format('FOLDER')}"
        )
    return Path(folder)


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Load weights in single precision."""
    from safetensors.torch import load_file

    if not path.is_file():
        raise InvalidInputError(
            f"no weights at {path}; build them with {BUILD.format(path.parent)}, or unset"
            f" {VARIABLE} to use the ones that ship with the package"
        )
    weights = load_file(path)
    for name, tensor in weights.items():
        if tensor.is_floating_point():
            weights[name] = tensor.float()
    return weights


class Preprocess:
    """Convert a PIL image, or a tensor (3, h, w) in [0, 1], to an input for the image tower."""

    def __call__(self, image: "Image.Image | torch.Tensor") -> torch.Tensor:
        """Resize the shorter side to 64 pixels, crop the center, and normalize."""
        T = need("torchvision.transforms.functional")
        if isinstance(image, torch.Tensor):
            pixels = image
        else:
            pixels = T.to_tensor(image.convert("RGB"))
        if pixels.ndim != 3 or pixels.shape[0] != 3:
            raise InvalidInputError(
                "expected a PIL image or a tensor (3, h, w) in [0, 1], got a tensor"
                f" {tuple(pixels.shape)}"
            )
        bicubic = T.InterpolationMode.BICUBIC
        pixels = T.center_crop(T.resize(pixels, [SIZE], bicubic, antialias=True), [SIZE])
        return T.normalize(pixels.clamp(0, 1), list(IMAGE_MEAN), list(IMAGE_STD))

    def __repr__(self) -> str:
        return f"Preprocess(size={SIZE}, mean={IMAGE_MEAN}, std={IMAGE_STD})"


def load_clip(
    folder: Path | str | None = None,
) -> "tuple[open_clip.CLIP, Preprocess, open_clip.SimpleTokenizer]":
    """Load the miniature CLIP model in eval mode, with its preprocessing and its tokenizer."""
    folder = _folder(folder)
    tokenizer = open_clip_tokenizer(folder)
    path = folder / "clip.safetensors"
    model = build_clip(tokenizer.vocab_size, Widths.from_weights(load_weights(path)))
    return _filled(model, path), Preprocess(), tokenizer


def load_text_tower(folder: Path | str | None = None) -> "tuple[CLIPTextModel, CLIPTokenizer]":
    """Load the pipeline's text tower, without a projection, and its tokenizer."""
    folder = _folder(folder)
    tokenizer = transformers_tokenizer(folder)
    path = folder / "text.safetensors"
    width = load_weights(path)["text_model.final_layer_norm.weight"].numel()
    model = need("transformers").CLIPTextModel(text_config(len(tokenizer), width))
    # Newer transformers releases have no inner `text_model`.
    prefix = "" if hasattr(model, "text_model") else "text_model."
    return _filled(model, path, prefix), tokenizer


def load_vae(folder: Path | str | None = None) -> "PatchAutoencoder":
    """Load the pipeline's autoencoder in eval mode."""
    from vldebias.miniature.autoencoder import PatchAutoencoder

    folder = _folder(folder)
    vae: PatchAutoencoder = _filled(PatchAutoencoder(**CONFIGS["vae"]), folder / "vae.safetensors")
    vae.register_to_config(
        scaling_factor=json.loads((folder / "vae.json").read_text())["scaling_factor"]
    )
    return vae.requires_grad_(False)


def load_pipeline(folder: Path | str | None = None) -> "StableDiffusionPipeline":
    """Load the miniature Stable Diffusion pipeline for 64 x 64 portraits and birds."""
    folder = _folder(folder)
    text_encoder, tokenizer = load_text_tower(folder)
    diffusers = need("diffusers")
    unet = diffusers.UNet2DConditionModel(
        cross_attention_dim=text_encoder.config.hidden_size, **CONFIGS["unet"]
    )
    pipeline = diffusers.StableDiffusionPipeline(
        vae=load_vae(folder),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=_filled(unet, folder / "unet.safetensors"),
        scheduler=diffusers.DDIMScheduler(**CONFIGS["scheduler"]),
        # The safety checker needs a gigabyte of weights and does not support 64 x 64 pixels.
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def is_miniature(pipe: object) -> bool:
    """Return whether a pipeline has the miniature's autoencoder, with any weights."""
    return type(getattr(pipe, "vae", None)).__name__ == "PatchAutoencoder"


def load_judge(folder: Path | str | None = None) -> AttributeNetwork:
    """Load the classifier for portraits and birds in eval mode."""
    return _filled(AttributeNetwork(), _folder(folder) / "judge.safetensors")


def _folder(folder: Path | str | None) -> Path:
    return weights_dir() if folder is None else Path(folder)


def _filled(module: Module, path: Path, prefix: str = "") -> Module:
    """Load weights into a module, with a prefix removed from their names, in eval mode."""
    weights = {name.removeprefix(prefix): tensor for name, tensor in load_weights(path).items()}
    # In older transformers releases, position ids are a buffer that is not saved.
    tensors = module.state_dict()
    saved = [name for name in tensors if not name.endswith("position_ids")]
    shapes = {name: tensors[name].shape for name in saved}
    mismatches = sorted(weights.keys() ^ shapes.keys())
    for name, tensor in weights.items():
        if name in shapes and tensor.shape != shapes[name]:
            mismatches.append(name)
    if mismatches:
        raise InvalidInputError(
            f"{path} contains weights from a different version: {len(mismatches)} do not match,"
            f" such as {mismatches[0]}; build them with {BUILD.format(path.parent)}, or unset"
            f" {VARIABLE}"
        )
    module.load_state_dict(weights, strict=False)
    return module.eval()
