"""Train an image-text model by functions from pixels and tokens to features that carry gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    TruncatedPromptWarning,
    UnsupportedHostError,
    need,
    warn,
)
from vldebias.hosts import resolve
from vldebias.hosts.attachment import attachment_of
from vldebias.hosts.base import BARE, TOKENIZING, during
from vldebias.hosts.images import image_encoder
from vldebias.hosts.joint import JointHost

if TYPE_CHECKING:
    from PIL import Image

Part = nn.Module | nn.Parameter
Tokens = Mapping[str, Tensor]


class Towers:
    """Encode images and texts by the two towers of a model, never edited, on whatever device it is.

    model: an open_clip or transformers image-text model. tokenizer: the model's own; None to find it by the model.
    preprocess: for evaluation, of a PIL image. library: that reads the saved model, "open_clip" or "transformers".
    size: (h, w) of the pixels. mean, std: of each channel, as `prepare` subtracts and divides values in [0, 1].
    temperature, bias: of the softmax over cosines, as loaded; the bias is SigLIP's, else None. image_parts, text_parts:
    each tower with its head. heads: the layers with weights that end in the joint space.

    Raises:
        UnsupportedHostError: another class; a model whose images are not (3, h, w). AlreadyAttachedError: the model
            carries a projection. InvalidInputError: no tokenizer, or preprocessing that is no normalised resizing.
    """

    def __init__(self, model: Any, tokenizer: Any, preprocess: Any) -> None:
        self._encoder = image_encoder(model, preprocess, preprocessing="not described")
        if any(base.__name__ == "Siglip2Model" for base in type(model).__mro__):
            raise UnsupportedHostError(
                f"{type(model).__name__}: reads images as lists of patches of any number, which cannot be augmented as "
                "pixels (3, h, w). Train a checkpoint of one resolution, such as google/siglip2-base-patch16-224, "
                "which loads as SiglipModel"
            )
        host = resolve(model, tokenizer=tokenizer)
        assert isinstance(host, JointHost)  # `image_encoder` takes nothing else
        attachment = attachment_of(model)
        if attachment is not None:
            raise AlreadyAttachedError(
                f"{host.name}: carries {attachment!r}, which training would not see. Call .remove() on it, train, and "
                "fit it again: a projection belongs to the weights that it was fitted for"
            )
        self.model, self._host, self.library = model, host, host.library
        self.tokenizer, self.preprocess = host.tokenizer, preprocess
        self._normalisation()
        self.image_parts: tuple[Part, ...] = tuple(host.image_tower())
        self.text_parts: tuple[Part, ...] = tuple(host.text_modules())
        heads = (head for head in (host.image_head, host.head) if isinstance(head, (nn.Module, nn.Parameter)))
        self.heads = tuple(h for h in heads if isinstance(h, nn.Parameter) or next(h.parameters(), None) is not None)
        self._scalar = "logit_scale" if hasattr(model, "logit_scale") else "temperature"
        value, bias = float(getattr(model, self._scalar).detach()), getattr(model, "logit_bias", None)
        self.temperature = value if self._scalar == "temperature" else math.exp(-value)
        self.bias = None if bias is None else float(bias.detach())
        self._cuts_warned = False

    @property
    def device(self) -> torch.device:
        """Return the device of the weights."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def prepare(self, image: Image.Image) -> Tensor:
        """Convert an image to pixels (3, h, w), as in evaluation of the model."""
        return self._encoder.prepare(image)["pixel_values"][0]

    def image(self, pixels: Tensor) -> Tensor:
        """Encode pixels (b, 3, h, w) to features (b, d), before normalising."""
        with during(BARE):
            return self._encoder.forward({"pixel_values": pixels.to(self._encoder.first_weight.dtype)})

    def text(self, tokens: Tokens) -> Tensor:
        """Encode outputs of `tokenize`, on the model's device, to features (b, d), before normalising."""
        with during(BARE):
            return self._host.features(tokens)

    def tokenize(self, captions: Sequence[str]) -> dict[str, Tensor]:
        """Convert captions to text tower arguments, (b, length) each, on the CPU; warn once of cut ones."""
        with TOKENIZING:
            tokens = self._host.tokenize(list(captions))
            if self._cuts_warned:
                return tokens
            ids, limit = next(iter(tokens.values())), self._host.context_length
            # A padded row ends in padding twice, a cut one in a word and the end token: only those are counted.
            full = [captions[i] for i in (ids[:, -1] != ids[:, -2]).nonzero().flatten().tolist()]
            cut = sum(count > limit for count in self._host.count_tokens(full)) if full else 0
        if cut:
            self._cuts_warned = True
            cuts = f"{cut} of {len(captions)} captions are longer and were cut"
            warn(f"{self._host.name} reads {limit} tokens; {cuts}. This is said once", TruncatedPromptWarning)
        return tokens

    def set_temperature(self, temperature: float) -> None:
        """Write a temperature above 0 into the model."""
        with torch.no_grad():
            value = temperature if self._scalar == "temperature" else -math.log(temperature)
            getattr(self.model, self._scalar).fill_(value)

    def set_bias(self, bias: float) -> None:
        """Write a bias into the model."""
        with torch.no_grad():
            self.model.logit_bias.fill_(bias)

    def _normalisation(self) -> None:
        """Measure size, mean and std of the outputs of `prepare` on plain images."""
        new = need("PIL.Image").new
        plain = [self.prepare(new("RGB", (80, 80), (value,) * 3)).double() for value in (0, 102, 255)]  # 0, 0.4, 1
        other = self.prepare(new("RGB", (96, 64)))
        black, grey, white = levels = [pixels.flatten(1).mean(dim=1) for pixels in plain]
        flat = all((one - level[:, None, None]).abs().max() < 1e-3 for one, level in zip(plain, levels, strict=True))
        linear = flat and torch.allclose(grey, black + 0.4 * (white - black), atol=1e-3) and bool((white > black).all())
        if other.shape != plain[0].shape or other.shape[0] != 3 or not linear:
            raise InvalidInputError(
                f"preprocess: plain images became {tuple(plain[0].shape)} and {tuple(other.shape)}; expected (3, h, w) "
                "of one size, each channel with a mean subtracted and divided by a std, so that training can augment "
                "images in the same way. Pass what came with the model for evaluation: open_clip's second transform, "
                "or the image processor"
            )
        rows = (-black / (white - black), 1 / (white - black))
        self.mean, self.std = (tuple(round(x, 6) for x in row.tolist()) for row in rows)
        self.size: tuple[int, int] = (other.shape[1], other.shape[2])
