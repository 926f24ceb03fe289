"""Define the base host of image-text models, and the encoder for their images."""

from __future__ import annotations

import hashlib
import json
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.errors import (
    InvalidInputError,
    TruncatedPromptWarning,
    UnsupportedHostError,
    need,
    warn,
)
from vldebias.hosts.clip.merge import foldable, last_layer
from vldebias.hosts.clip.stated import StatedRows
from vldebias.hosts.edits import IMAGE, TEXT, EditAttachment
from vldebias.hosts.host import Host, weights_fingerprint
from vldebias.hosts.reading import TOKENIZING, reading
from vldebias.hosts.resolving import resolve
from vldebias.projection.edit import Rewording
from vldebias.projection.fingerprint import Fingerprint
from vldebias.projection.projection import CalibratedProjection

if TYPE_CHECKING:
    from open_clip.tokenizer import HFTokenizer, SimpleTokenizer
    from PIL import Image
    from transformers import PreTrainedTokenizerBase

Pixels = Mapping[str, Tensor]
"""The image tower's arguments for one image, as tensors (1, ...) by name."""
Layer = nn.Module | nn.Parameter
"""The last layer of a tower: a module, or a parameter (width, d)."""


class JointHost(Host):
    """Support models whose text tower maps into a space shared with images.

    The roles are "text" for text, "image" for images, or both (see `at`). Text and images lie in
    one space, so a projection fitted on text works for both. The tokenizer is only looked up when
    text has to be encoded, so a fitted projection can be attached without one.
    """

    roles: tuple[str, ...] = (TEXT,)

    def __init__(self, model: nn.Module, tokenizer: object = None) -> None:
        self.model = model
        self.name = type(model).__name__
        self.model_id = getattr(model, "name_or_path", None) or None
        self._given_tokenizer = tokenizer

    @property
    @abstractmethod
    def head(self) -> Layer | None:
        """Return the last layer of the text tower."""

    @property
    @abstractmethod
    def image_head(self) -> Layer | None:
        """Return the last layer of the image tower."""

    @property
    @abstractmethod
    def context_length(self) -> int:
        """Return the text tower's maximum number of tokens, including special tokens."""

    @abstractmethod
    def wrapped_modules(self, role: str) -> tuple[object, ...]:
        """Return those modules of a tower that other models may share."""

    @abstractmethod
    def find_tokenizer(
        self, tokenizer: object
    ) -> PreTrainedTokenizerBase | HFTokenizer | SimpleTokenizer:
        """Return the tokenizer, given the `tokenizer` argument of `debias`, which may be None."""

    @abstractmethod
    def count_tokens(self, prompts: Sequence[str]) -> list[int]:
        """Count the tokens of each prompt without truncation, including special tokens."""

    @abstractmethod
    def tokenize(self, prompts: Sequence[str]) -> dict[str, Tensor]:
        """Return the text tower's inputs by name, (n, length) on the CPU, padded as in training."""

    @abstractmethod
    def decode(self, ids: tuple[int, ...]) -> str:
        """Decode token ids to text, without padding or special tokens."""

    @abstractmethod
    def features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Return text features (n, d) on the model's device, before normalisation."""

    @abstractmethod
    def image_features(self, pixels: Mapping[str, Tensor]) -> Tensor:
        """Return image features (n, d) on the model's device, before normalisation."""

    @property
    def exclusive_modules(self) -> tuple[object, ...]:  # type: ignore[override]
        """Return the model and its shareable modules, which only one attachment may use."""
        shared = [module for role in self.roles for module in self.wrapped_modules(role)]
        return (self.model, *shared)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase | HFTokenizer | SimpleTokenizer:
        """Return the tokenizer, or raise InvalidInputError if there is none."""
        return self.find_tokenizer(self._given_tokenizer)

    @cached_property
    def image_fingerprint(self) -> Fingerprint | None:  # type: ignore[override]
        """Return the image tower's fingerprint, including the head's."""
        return weights_fingerprint(*self.image_tower)

    def texts(self, ids: Tensor) -> list[str]:
        """Return the text of each row of token ids (b, length)."""
        rows = ids.reshape(-1, ids.shape[-1]).tolist()
        with TOKENIZING:
            return [self.decode(tuple(row)) for row in rows]

    def stated_rows(self, attachment: EditAttachment) -> StatedRows | None:
        """Return a function that finds rows of token ids in which the attribute is stated.

        Returns None if all rows are edited.

        Raises:
            InvalidInputError: If token ids have to be decoded for the attachment, but the model's
                tokenizer is not found.
        """
        edits = attachment.projections.values()
        is_reworded = any(isinstance(edit, Rewording) for edit in edits)
        if TEXT in self.roles and (is_reworded or attachment.gate is not None):
            self.tokenizer  # noqa: B018  (raises now, not at the first call, if there is none)
        return None if attachment.gate is None else StatedRows(attachment.gate, self.texts)

    def trained_features(self, tokens: Mapping[str, Tensor]) -> Tensor:
        """Return the same as `features`, perhaps computed without padding that has no effect."""
        return self.features(tokens)

    def encode(self, prompts: Sequence[str]) -> Tensor:
        """Return prompt embeddings (n, d) before normalisation.

        Raises:
            InvalidInputError: If the tokenizer returns ids outside the model's vocabulary.
        """
        with TOKENIZING:
            tokens = self.tokenize(list(prompts))
        # The largest embedding layer of the text tower embeds the tokens.
        rows = 0
        for module in self.text_modules:
            for part in module.modules():
                if isinstance(part, nn.Embedding):
                    rows = max(rows, part.num_embeddings)
        ids = [tensor for tensor in tokens.values() if not tensor.is_floating_point()]
        highest = max((int(tensor.max()) for tensor in ids), default=0)
        # On a CPU, an unknown id raises an IndexError, but on a GPU, it makes all later calls fail.
        if rows and highest >= rows:
            raise InvalidInputError(
                f"tokenizer: got token ids up to {highest}; expected ids below {rows}, the"
                f" vocabulary size of {self.name}. Pass the model's own tokenizer"
            )
        device = next(self.model.parameters()).device
        if device.type == "meta":
            # For offloaded weights, accelerate moves both weights and arguments during the call.
            device = torch.device("cpu")
        return self.features({name: tensor.to(device) for name, tensor in tokens.items()})

    def read(self, prompts: Sequence[str], role: str = TEXT) -> dict[tuple[str, str], Tensor]:
        """Embed prompts with the model, without a cache.

        Args:
            prompts: the prompts, without duplicates.
            role: the role of the returned rows.

        Warns:
            TruncatedPromptWarning: If prompts exceed the context length.
        """
        limit = self.context_length
        with TOKENIZING:
            counts = dict(zip(prompts, self.count_tokens(list(prompts)), strict=True))
        too_long = []
        for prompt, count in counts.items():
            if count > limit:
                too_long.append(f"{shorten(prompt, 60, placeholder=' ...')!r} ({count} tokens)")
        if too_long:
            shown = "; ".join(too_long[:3])
            if len(too_long) > 3:
                shown += f"; and {len(too_long) - 3} more"
            warn(
                f"{self.name}: these prompts were truncated to the context length of {limit}"
                f" tokens; shorten them: {shown}",
                TruncatedPromptWarning,
            )
        return self.read_by(self.encode, prompts, role, self.model)

    def embed(self, prompts: Sequence[str], role: str = TEXT) -> Tensor:
        # An image edit is also fitted on text, because both share one space.
        return super().embed(list(prompts), TEXT)

    def space(self, role: str) -> str:
        """Return the name of the space shared by text and images."""
        return super().space(TEXT)

    def dim(self, role: str) -> int:
        """Return the width d of the joint space, determined from the head if possible."""
        last = last_layer(self.head)
        if isinstance(last, nn.Parameter):
            return last.shape[1]
        width = getattr(last, "out_features", None)
        return width if isinstance(width, int) else super().dim(role)

    def merge(self, edits: Mapping[str, CalibratedProjection], strength: float) -> Sequence[object]:
        heads = {TEXT: self.head, IMAGE: self.image_head}
        refusal = f"{self.name}: the last layer of the"
        # Check all heads before changing the first one.
        folds = {role: foldable(f"{refusal} {role} tower", heads[role]) for role in edits}
        for role, fold in folds.items():
            fold(edits[role], strength)
        return [self.model]


@dataclass(frozen=True, eq=False)
class ImageEncoder:
    """Encode images with an image-text model's image tower, ignoring attached edits.

    Attributes:
        name: name of the model.
        model: the full model, whose device and precision the encoder uses.
        tower: the modules that compute the features, including the head.
        preprocessing: a string that identifies the preprocessing.
        prepare: a function from an RGB image to its pixels; called from several threads.
        forward: a function from a batch of pixels to features (b, d), before normalisation.
    """

    name: str
    model: nn.Module
    tower: tuple[nn.Module, ...]
    preprocessing: str
    prepare: Callable[[Image.Image], Pixels]
    forward: Callable[[Pixels], Tensor]

    @cached_property
    def fingerprint(self) -> dict[str, object] | None:
        """Return the tower's fingerprint, which is the same in half precision."""
        mark = weights_fingerprint(*self.tower)
        return None if mark is None else mark.to_dict()

    @cached_property
    def digest(self) -> str:
        """Return a hash of the tower's weights, buffers and settings.

        The hash identifies cached features. The fingerprint cannot do that, because it tolerates
        casts and ignores adapters, and two architectures may use the same weights (open_clip's
        ViT-B-32 and ViT-B-32-quickgelu).
        """
        state = hashlib.sha256()
        for module in self.tower:
            for name, part in module.named_modules():
                # Include settings such as sizes, pooling types and activation constants.
                settings = {}
                for setting, value in sorted(vars(part).items()):
                    is_plain = isinstance(value, (bool, int, float, str, tuple))
                    if is_plain and not setting.startswith("_") and setting != "training":
                        settings[setting] = str(value)
                state.update(f"{name} {type(part).__qualname__} {settings}\n".encode())
            # Include buffers: the running means of norm layers affect features.
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if tensor.is_meta:
                    raise InvalidInputError(
                        f"{self.name}: {name} is on the meta device, where weights have no values;"
                        " load the weights first"
                    )
                state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                # Hash the raw bytes, because numpy has no bfloat16.
                values = tensor.detach().cpu().contiguous().flatten()
                state.update(values.view(torch.uint8).numpy().data)
        return state.hexdigest()

    @property
    def first_weight(self) -> Tensor:
        """Return the first weight applied to the pixels, whose dtype the pixels must have.

        Surrounding norm layers may have a different dtype.
        """
        for module in self.tower:
            for part in module.modules():
                # Skip quantised layers, whose weights are integers but which take floats as input.
                if isinstance(part, (nn.Conv2d, nn.Linear)) and part.weight.is_floating_point():
                    return part.weight
        return torch.zeros(())

    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        """Return features (b, d) of RGB images before normalisation, as float32 on the CPU."""
        return self.start([self.prepare(image) for image in images]).float().cpu()

    def start(self, prepared: Sequence[Pixels]) -> Tensor:
        """Return features (b, d) for outputs of `prepare`, in the model's precision on its device.

        On a GPU, the call does not wait for the result.
        """
        first = self.first_weight
        batch = {}
        for name in prepared[0]:
            tensor = torch.cat([pixels[name] for pixels in prepared])
            dtype = first.dtype if tensor.is_floating_point() else None
            if first.device.type == "cuda":  # a copy from pageable memory would block
                tensor = tensor.pin_memory()
            batch[name] = tensor.to(first.device, dtype, non_blocking=True)
        with reading(self.model), torch.inference_mode():
            return self.forward(batch)

    @cached_property
    def side(self) -> int:
        """Return the shorter side of the model's pixel input, or 0 if its input is not an image."""
        grey = need("PIL.Image").new("RGB", (64, 96))
        images = [tensor for tensor in self.prepare(grey).values() if tensor.ndim == 4]
        return min(images[0].shape[-2:]) if len(images) == 1 else 0


def image_encoder(
    model: object,
    preprocess: object,
    *,
    name: str | None = None,
    preprocessing: str | None = None,
) -> ImageEncoder:
    """Return the image encoder of an open_clip or transformers image-text model.

    Args:
        model: an open_clip or transformers model with an image tower.
        preprocess: the model's own preprocessing: open_clip's transform, a transformers processor
            or image processor, or any function from a PIL image to a tensor (3, h, w). Called from
            several threads.
        name: name of the model. If None, it is derived from the model.
        preprocessing: a string that identifies `preprocess`, if its own description does not.

    Raises:
        UnsupportedHostError: If the model's class is not supported.
        InvalidInputError: If `preprocess` cannot be called or identified.
    """
    host = resolve(model)
    if not isinstance(host, JointHost) or not host.image_tower:
        raise UnsupportedHostError(
            f"{host.name}: no image tower shares a space with the text tower; expected an"
            " open_clip or transformers image-text model. To use features from other models, load"
            " them with vldebias.data.embeddings.load_embeddings"
        )
    processor = getattr(preprocess, "image_processor", preprocess)
    text = preprocessing
    # transformers processors are described by their config.
    if text is None and hasattr(processor, "to_dict"):
        kind = type(processor)
        settings = {"class": f"{kind.__module__}.{kind.__qualname__}", **processor.to_dict()}
        text = json.dumps(settings, sort_keys=True, default=str)
    elif text is None:
        # The address in a function's repr differs between processes.
        text = re.sub(r"<function ([^\s<>]+) at 0x[0-9a-f]+>", r"<function \1>", repr(processor))
        is_ambiguous = any(part in text for part in (" at 0x", "Lambda(", "<lambda>"))
        if not callable(processor) or is_ambiguous:
            raise InvalidInputError(
                f"preprocess: {text} cannot be identified, so cached features could be mixed up;"
                " expected open_clip's transform, a transformers image processor or a named"
                " function, or pass preprocessing='a string that identifies it'"
            )
    name = name or host.model_id or host.name
    return ImageEncoder(
        name,
        host.model,
        tuple(host.image_tower),
        text,
        partial(_prepare, processor),
        host.image_features,
    )


def _prepare(processor: Any, image: Image.Image) -> Pixels:
    """Prepare an image with a transformers processor, or with a transform to (3, h, w)."""
    if hasattr(processor, "to_dict"):
        prepared = processor(images=[image], return_tensors="pt")
        return {name: value for name, value in prepared.items() if name != "labels"}
    pixels = processor(image)
    if not isinstance(pixels, Tensor) or pixels.ndim != 3:
        shape = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
        raise InvalidInputError(
            f"preprocess: expected a tensor (3, h, w) for an image, got {shape}"
        )
    return {"pixel_values": pixels[None]}
