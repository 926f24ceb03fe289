"""Load the miniature models with the shipped weights, or with those in the folder
VLDEBIAS_MINIATURE.

`folder` holds the weights; None is `weights_dir()`. Every loader raises InvalidInputError if the
folder has no weights, or weights of other architectures.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

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


def weights_dir() -> Path:
    """Return the folder of the weights: the value of VLDEBIAS_MINIATURE, or the one in the
    package."""
    named = os.environ.get(VARIABLE)
    if not named:
        return Path(__file__).parent / "weights"
    if not Path(named).is_dir():
        raise InvalidInputError(
            f"{VARIABLE} must name a folder made by {BUILD.format('FOLDER')}, got {named!r}"
        )
    return Path(named)


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Read weights in single precision."""
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
    """Convert a PIL image, or a tensor (3, h, w) in [0, 1], to an input (3, 64, 64) of the image
    tower."""

    def __call__(self, image: "Image.Image | torch.Tensor") -> torch.Tensor:
        """Resize the shorter side to 64 where needed, crop the centre, and normalise."""
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
    """Load the miniature CLIP as open_clip does: (model in eval mode, preprocess, tokenizer)."""
    folder = _folder(folder)
    tokenizer = open_clip_tokenizer(folder)
    path = folder / "clip.safetensors"
    model = build_clip(tokenizer.vocab_size, Widths.from_weights(load_weights(path)))
    return _filled(model, path), Preprocess(), tokenizer


def load_text_tower(folder: Path | str | None = None) -> "tuple[CLIPTextModel, CLIPTokenizer]":
    """Load the text tower of the pipeline, without a projection, and its tokenizer."""
    folder = _folder(folder)
    tokenizer = transformers_tokenizer(folder)
    path = folder / "text.safetensors"
    width = load_weights(path)["text_model.final_layer_norm.weight"].numel()
    model = need("transformers").CLIPTextModel(text_config(len(tokenizer), width))
    # Newer releases of transformers have no inner `text_model`.
    prefix = "" if hasattr(model, "text_model") else "text_model."
    return _filled(model, path, prefix), tokenizer


def load_vae(folder: Path | str | None = None) -> "PatchAutoencoder":
    """Load the autoencoder of the pipeline, in eval mode."""
    from vldebias.miniature.autoencoder import PatchAutoencoder

    folder = _folder(folder)
    vae: PatchAutoencoder = _filled(PatchAutoencoder(**CONFIGS["vae"]), folder / "vae.safetensors")
    vae.register_to_config(
        scaling_factor=json.loads((folder / "vae.json").read_text())["scaling_factor"]
    )
    return vae.requires_grad_(False)


def load_pipeline(folder: Path | str | None = None) -> "StableDiffusionPipeline":
    """Load the miniature Stable Diffusion, which generates 64 x 64 portraits and birds, without
    progress bar."""
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
        # It would need weights of a gigabyte, and reads nothing in pictures of 64 pixels.
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_judge(folder: Path | str | None = None) -> AttributeNetwork:
    """Load the classifier of portraits and birds, in eval mode."""
    return _filled(AttributeNetwork(), _folder(folder) / "judge.safetensors")


def _folder(folder: Path | str | None) -> Path:
    return weights_dir() if folder is None else Path(folder)


def _filled(module: Any, path: Path, prefix: str = "") -> Any:
    """Load weights, whose names begin with `prefix`, into a module and put it into eval mode."""
    weights = {name.removeprefix(prefix): tensor for name, tensor in load_weights(path).items()}
    shapes = dict[str, torch.Size]()
    for name, tensor in module.state_dict().items():
        # Older releases of transformers keep position ids as a buffer, which has no counterpart
        # among the weights.
        if not name.endswith("position_ids"):
            shapes[name] = tensor.shape
    # Names that one side lacks, and below shapes that differ.
    misfits = sorted(weights.keys() ^ shapes.keys())
    for name, tensor in weights.items():
        if name in shapes and tensor.shape != shapes[name]:
            misfits.append(name)
    if misfits:
        raise InvalidInputError(
            f"{path} has weights of another version: {len(misfits)} do not fit, {misfits[0]} first;"
            f" build them with {BUILD.format(path.parent)}, or unset {VARIABLE}"
        )
    module.load_state_dict(weights, strict=False)
    return module.eval()
