"""The miniature models with their weights: those that ship, or another build named by VLDEBIAS_MINIATURE."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from vldebias.errors import InvalidInputError, need
from vldebias.miniature.architectures import (
    IMAGE_MEAN,
    IMAGE_STD,
    NARROW,
    AttributeNetwork,
    Widths,
    build_clip,
    build_scheduler,
    build_unet,
    build_vae,
    to_transformers,
    transformers_config,
)
from vldebias.miniature.tokenizer import open_clip_tokenizer, transformers_tokenizer
from vldebias.miniature.world import BUILD, SIZE

if TYPE_CHECKING:
    import open_clip
    from diffusers import StableDiffusionPipeline
    from PIL import Image
    from transformers import CLIPImageProcessor, CLIPModel, CLIPTextModel, CLIPTokenizer

    from vldebias.miniature.autoencoder import PatchAutoencoder

VARIABLE = "VLDEBIAS_MINIATURE"
TEXT_FILE = "text.safetensors"  # the pipeline's text tower, where it is not the CLIP's


def weights_dir() -> Path:
    """The folder of the weights: the value of VLDEBIAS_MINIATURE, or what ships with the package.

    Raises:
        InvalidInputError: VLDEBIAS_MINIATURE names no folder.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return Path(__file__).parent / "weights"
    if not Path(named).is_dir():
        raise InvalidInputError(f"{VARIABLE} must name a folder made by {BUILD.format('FOLDER')}, got {named!r}")
    return Path(named)


def load_weights(path: Path) -> dict[str, torch.Tensor]:
    """Reads weights into single precision.

    Raises:
        InvalidInputError: there is no such file.
    """
    from safetensors.torch import load_file

    if not path.is_file():
        raise InvalidInputError(
            f"no weights at {path}; build them with {BUILD.format(path.parent)}, or unset "
            f"{VARIABLE} to use the ones that ship with the package"
        )
    return {name: t.float() if t.is_floating_point() else t for name, t in load_file(path).items()}


class Preprocess:
    """Turns a PIL image, or a tensor (3, h, w) in [0, 1], into what the image tower reads: (3, 64, 64)."""

    def __call__(self, image: "Image.Image | torch.Tensor") -> torch.Tensor:
        """Resizes the shorter side to 64 where needed, crops the centre, and normalises."""
        InterpolationMode = need("torchvision.transforms").InterpolationMode
        T = need("torchvision.transforms.functional")

        pixels = image if isinstance(image, torch.Tensor) else T.to_tensor(image.convert("RGB"))
        if pixels.ndim != 3 or pixels.shape[0] != 3:
            raise InvalidInputError(
                f"expected a PIL image or a tensor (3, h, w) in [0, 1], got a tensor {tuple(pixels.shape)}"
            )
        if tuple(pixels.shape[1:]) != (SIZE, SIZE):
            pixels = T.center_crop(T.resize(pixels, [SIZE], InterpolationMode.BICUBIC, antialias=True), [SIZE])
        return T.normalize(pixels.clamp(0, 1), list(IMAGE_MEAN), list(IMAGE_STD))

    def __repr__(self) -> str:
        return f"Preprocess(size={SIZE}, mean={IMAGE_MEAN}, std={IMAGE_STD})"


def load_clip(
    folder: Path | str | None = None,
) -> "tuple[open_clip.CLIP, Preprocess, open_clip.SimpleTokenizer]":
    """The miniature CLIP as open_clip gives its models: (model in eval mode, preprocess, tokenizer).

    Raises:
        InvalidInputError: the folder holds no build.
    """
    folder = _folder(folder)
    tokenizer = open_clip_tokenizer(folder)
    weights = folder / "clip.safetensors"
    model = build_clip(tokenizer.vocab_size, Widths.of(load_weights(weights)))
    _fill(model, weights)
    return model.eval(), Preprocess(), tokenizer


def load_transformers_clip(
    folder: Path | str | None = None,
) -> "tuple[CLIPModel, CLIPTokenizer, CLIPImageProcessor]":
    """The same model in transformers: (CLIPModel in eval mode, tokenizer, image processor).

    Raises:
        InvalidInputError: the folder holds no build.
    """
    transformers = need("transformers")

    folder = _folder(folder)
    tokenizer = transformers_tokenizer(folder)
    weights = load_weights(folder / "clip.safetensors")
    model = transformers.CLIPModel(transformers_config(len(tokenizer), Widths.of(weights)))
    _load(model, to_transformers(weights))
    size = {"height": SIZE, "width": SIZE}
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": SIZE}, crop_size=size, image_mean=list(IMAGE_MEAN), image_std=list(IMAGE_STD)
    )
    return model.eval(), tokenizer, processor


def load_text_tower(folder: Path | str | None = None) -> "tuple[CLIPTextModel, CLIPTokenizer]":
    """The text tower of the pipeline, without a projection, and its tokenizer.

    That of the same CLIP, or a tower of its own where the build has one (text.safetensors).
    """
    CLIPTextModel = need("transformers").CLIPTextModel

    folder = _folder(folder)
    tokenizer = transformers_tokenizer(folder)
    own = folder / TEXT_FILE
    weights = load_weights(own) if own.is_file() else to_transformers(load_weights(folder / "clip.safetensors"))
    weights = {name: tensor for name, tensor in weights.items() if name.startswith("text_model.")}
    width = weights["text_model.final_layer_norm.weight"].numel()
    model = CLIPTextModel(transformers_config(len(tokenizer), NARROW._replace(text=width)).text_config)
    # Newer transformers drop the inner `text_model`.
    cut = "" if hasattr(model, "text_model") else "text_model."
    _load(model, {name.removeprefix(cut): tensor for name, tensor in weights.items()})
    return model.eval(), tokenizer


def load_vae(folder: Path | str | None = None) -> "PatchAutoencoder":
    """The VAE of the pipeline, in eval mode."""
    folder = _folder(folder)
    vae = build_vae()
    _fill(vae, folder / "vae.safetensors")
    config: dict[str, Any] = json.loads((folder / "vae.json").read_text())
    vae.register_to_config(scaling_factor=config["scaling_factor"])
    return vae.eval().requires_grad_(False)


def load_pipeline(folder: Path | str | None = None) -> "StableDiffusionPipeline":
    """The miniature Stable Diffusion: 64 x 64 portraits and birds, no progress bar.

    Raises:
        InvalidInputError: the folder holds no build.
    """
    StableDiffusionPipeline = need("diffusers").StableDiffusionPipeline

    folder = _folder(folder)
    text_encoder, tokenizer = load_text_tower(folder)
    unet = build_unet(text_encoder.config.hidden_size)
    _fill(unet, folder / "unet.safetensors")
    pipeline = StableDiffusionPipeline(
        vae=load_vae(folder),
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet.eval(),
        scheduler=build_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def load_judge(folder: Path | str | None = None) -> AttributeNetwork:
    """The classifier of portraits and birds, in eval mode.

    Raises:
        InvalidInputError: the folder holds no build.
    """
    judge = AttributeNetwork()
    _fill(judge, _folder(folder) / "judge.safetensors")
    return judge.eval()


def _folder(folder: Path | str | None) -> Path:
    return weights_dir() if folder is None else Path(folder)


def _fill(module: torch.nn.Module, path: Path) -> None:
    """Loads weights that a build of this edition has written."""
    weights, expected = load_weights(path), module.state_dict()
    others = sorted(weights.keys() ^ expected.keys())
    others += [name for name, t in weights.items() if name in expected and t.shape != expected[name].shape]
    if others:
        raise InvalidInputError(
            f"{path} holds the weights of another edition: {len(others)} do not fit, {others[0]} first; build them "
            f"anew with {BUILD.format(path.parent)}, or unset {VARIABLE}"
        )
    module.load_state_dict(weights)


def _load(model: torch.nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Older transformers keep position ids as a buffer, which has no counterpart among the weights."""
    missing, unexpected = model.load_state_dict(weights, strict=False)
    rest = [name for name in missing if not name.endswith("position_ids")]
    if rest or unexpected:
        raise InvalidInputError(f"the weights do not fit: missing {rest}, unexpected {unexpected}; build them anew")
