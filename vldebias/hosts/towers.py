"""An image-text model as functions to train it with: pixels and tokens in, features that carry gradients out."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from vldebias.attachment import attachment_of
from vldebias.errors import AlreadyAttachedError, InvalidInputError, TruncatedPromptWarning, UnsupportedHostError
from vldebias.hosts import resolve
from vldebias.hosts.images import ImageEncoder, image_encoder
from vldebias.hosts.padding import text_features
from vldebias.hosts.text import JointHost, bare

__all__ = ["SCALARS", "Part", "Towers", "checkpointing", "towers"]

SCALARS = ("logit_scale", "logit_bias", "temperature")
"""What a model has of a loss of its own: log(1/t) and SigLIP's bias; ALIGN has t itself."""

Part = nn.Module | nn.Parameter


@dataclass(frozen=True, eq=False)
class Towers:
    """Two towers into one space.

    The functions call `model` by the names of its methods and parts, so they see what is done to it afterwards:
    frozen or adapted weights, another device, the weights that FSDP gathers for the module that holds the model. A
    projection never reaches them.

    Attributes:
        model: the whole model.
        image: pixels (b, 3, h, w) -> features (b, d), before normalising.
        text: what `tokenize` gives, on the model's device -> features (b, d), before normalising. Of a batch of short
            captions only as many tokens are read as the longest has, where that changes nothing.
        tokenize: captions -> arguments of the text tower, (b, context length) each, on the CPU.
        prepare: image -> pixels (3, h, w), as the model is evaluated.
        size: (h, w) of the pixels.
        mean, std: of each channel, as `prepare` subtracts and divides values in [0, 1].
        temperature: of the softmax over cosines, as loaded.
        image_parts, text_parts: each tower with its head.
        heads: what ends in the joint space and has weights: of the image tower, of the text tower.
        set_temperature: writes a temperature into the model.
        bias: SigLIP's logit_bias as loaded; None of a model without.
        set_bias: writes a bias into the model.
        tokenizer, preprocess: as the model came with them, to be saved with it.
    """

    model: nn.Module
    image: Callable[[Tensor], Tensor]
    text: Callable[[Mapping[str, Tensor]], Tensor]
    tokenize: Callable[[Sequence[str]], dict[str, Tensor]]
    prepare: Callable[[Image.Image], Tensor]
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    temperature: float
    image_parts: tuple[Part, ...]
    text_parts: tuple[Part, ...]
    heads: tuple[Part, ...]
    set_temperature: Callable[[float], None]
    bias: float | None
    set_bias: Callable[[float], None]
    tokenizer: Any = None
    preprocess: Any = None

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device


def towers(model: Any, tokenizer: Any, preprocess: Any) -> Towers:
    """The towers of an open_clip or transformers image-text model, on whatever device it is.

    Args:
        model: open_clip's CLIP, CustomTextCLIP or CoCa; transformers' CLIPModel, SiglipModel and their kin.
        tokenizer: what came with it; None where the model says which it is.
        preprocess: what came with it, for evaluation: open_clip's second transform, a transformers (image) processor,
            or any function of a PIL image that resizes, crops and normalises.

    Raises:
        UnsupportedHostError: another class; a model whose images are no (3, h, w).
        AlreadyAttachedError: the model carries a projection.
        InvalidInputError: no tokenizer, or preprocessing that is no normalised resizing.
    """
    encoder = image_encoder(model, preprocess, preprocessing="not described")
    _refuse_patches(model)
    host = resolve(model, tokenizer=tokenizer)
    assert isinstance(host, JointHost)  # `image_encoder` takes nothing else
    _refuse_attached(host)
    prepare = partial(_prepare, encoder)
    size, mean, std = _normalisation(prepare)
    return Towers(
        model=model,
        image=partial(_image_features, encoder, _reader(encoder)),
        text=partial(_text_features, text_features(host)),
        tokenize=_Tokenize(host),
        prepare=prepare,
        size=size,
        mean=mean,
        std=std,
        temperature=_temperature(model),
        image_parts=tuple(host.image_tower()),
        text_parts=tuple(host.tower()),
        heads=tuple(part for part in (host.image_head, host.head) if _has_weights(part)),  # type: ignore[misc]
        set_temperature=partial(_set_temperature, model),
        bias=None if getattr(model, "logit_bias", None) is None else float(model.logit_bias.detach()),
        set_bias=partial(_set_bias, model),
        tokenizer=host.tokenizer,
        preprocess=preprocess,
    )


def checkpointing(towers: Towers) -> None:
    """Activations are computed again in the backward pass: less memory for about a third more time.

    Raises:
        UnsupportedHostError: a model that cannot.
    """
    model: Any = towers.model
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # a newer name in transformers 5, which 4 has not
            if hasattr(model, "set_grad_checkpointing"):
                model.set_grad_checkpointing(True)
            else:
                model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    except (AssertionError, NotImplementedError, ValueError) as error:
        raise UnsupportedHostError(f"{type(model).__name__}: has no gradient checkpointing ({error})") from error
    for part in model.modules():
        if hasattr(part, "disable_input_require_grads"):  # only reentrant checkpointing needs what transformers put on
            part.disable_input_require_grads()


def _refuse_patches(model: Any) -> None:
    if any(base.__name__ == "Siglip2Model" for base in type(model).__mro__):
        raise UnsupportedHostError(
            f"{type(model).__name__}: reads images as lists of patches of any number, which cannot be augmented as "
            "pixels (3, h, w). Train a checkpoint of one resolution, such as google/siglip2-base-patch16-224, "
            "which loads as SiglipModel"
        )


def _refuse_attached(host: JointHost) -> None:
    attachment = attachment_of(host.model)
    if attachment is not None:
        raise AlreadyAttachedError(
            f"{host.name}: carries {attachment!r}, which training would not see. Call .remove() on it, train, and fit "
            "it again: a projection belongs to the weights that it was fitted for"
        )


def _reader(encoder: ImageEncoder) -> nn.Module:
    """The layer that reads the pixels: they come in its precision."""
    layers = (m for part in encoder.tower for m in part.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    return next(layers)


def _image_features(encoder: ImageEncoder, reader: Any, pixels: Tensor) -> Tensor:
    with bare():
        return encoder.forward({"pixel_values": pixels.to(reader.weight.dtype)})


def _text_features(features: Callable[[Mapping[str, Tensor]], Tensor], texts: Mapping[str, Tensor]) -> Tensor:
    with bare():
        return features(texts)


def _prepare(encoder: ImageEncoder, image: Image.Image) -> Tensor:
    return encoder.prepare(image)["pixel_values"][0]


class _Tokenize:
    """Captions -> tokens, padded and cut to the context length; says so once when something was cut."""

    def __init__(self, host: JointHost) -> None:
        self._host = host
        self._told = False

    def __call__(self, captions: Sequence[str]) -> dict[str, Tensor]:
        tokens = self._host.tokens(list(captions), full=True)
        if not self._told:
            self._warn_of_cuts(captions, next(iter(tokens.values())))
        return tokens

    def _warn_of_cuts(self, captions: Sequence[str], ids: Tensor) -> None:
        """A padded row ends in padding twice, a cut one in a word and the end token: only those are counted."""
        full = (ids[:, -1] != ids[:, -2]).nonzero().flatten().tolist()
        limit = self._host.context_length
        cut = sum(count > limit for count in self._host.token_counts([captions[i] for i in full])) if full else 0
        if cut:
            self._told = True
            warnings.warn(
                f"{self._host.name} reads {limit} tokens; {cut} of {len(captions)} captions are longer and were cut. "
                "This is said once",
                TruncatedPromptWarning,
                stacklevel=3,
            )


def _normalisation(
    prepare: Callable[[Image.Image], Tensor],
) -> tuple[tuple[int, int], tuple[float, ...], tuple[float, ...]]:
    """Size, mean and std of what `prepare` makes, measured on plain images: true of whatever it is made of."""
    pixels = [prepare(Image.new("RGB", (80, 80), (value,) * 3)).double() for value in (0, 102, 255)]  # 0, 0.4, 1
    other = prepare(Image.new("RGB", (96, 64)))
    black, grey, white = (p.flatten(1).mean(dim=1) for p in pixels)
    levels = zip(pixels, (black, grey, white), strict=True)
    flat = all((p - level[:, None, None]).abs().max() < 1e-3 for p, level in levels)
    linear = flat and torch.allclose(grey, black + 0.4 * (white - black), atol=1e-3) and bool((white > black).all())
    shape = tuple(other.shape)
    if shape != tuple(pixels[0].shape) or shape[0] != 3 or not linear:
        raise InvalidInputError(
            f"preprocess: plain images became {tuple(pixels[0].shape)} and {shape}; expected (3, h, w) of one size, "
            "each channel with a mean subtracted and divided by a std, so that training can augment images in the same "
            "way. Pass what came with the model for evaluation: open_clip's second transform, or the image processor"
        )
    std = 1 / (white - black)
    mean = -black * std
    return (shape[1], shape[2]), tuple(round(m, 6) for m in mean.tolist()), tuple(round(s, 6) for s in std.tolist())


def _temperature(model: Any) -> float:
    name = _scalar(model)
    value = float(getattr(model, name).detach())
    return value if name == "temperature" else math.exp(-value)


def _set_temperature(model: Any, temperature: float) -> None:
    """Raises InvalidInputError: no positive number."""
    if not (0 < temperature < math.inf):
        raise InvalidInputError(f"temperature: expected a positive number, got {temperature!r}")
    name = _scalar(model)
    with torch.no_grad():
        getattr(model, name).fill_(temperature if name == "temperature" else -math.log(temperature))


def _set_bias(model: Any, bias: float) -> None:
    with torch.no_grad():
        model.logit_bias.fill_(bias)


def _scalar(model: Any) -> str:
    return "logit_scale" if hasattr(model, "logit_scale") else "temperature"


def _has_weights(part: object) -> bool:
    return isinstance(part, nn.Parameter) or (isinstance(part, nn.Module) and any(True for _ in part.parameters()))
