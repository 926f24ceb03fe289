"""Encode images into the joint space, and identify an image tower."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, UnsupportedHostError, need
from vldebias.hosts import open_clip, resolve, transformers
from vldebias.hosts.base import reading
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hosts.joint import JointHost

if TYPE_CHECKING:
    from PIL import Image

Pixels = Mapping[str, Tensor]
"""One image as its tower reads it: names of arguments -> tensors (1, ...)."""


@dataclass(frozen=True, eq=False)
class ImageEncoder:
    """Encode images by the image side of an image-text model, never edited.

    name: of the model. model: the whole model, whose device and precision the encoder uses. tower: the modules that
    make the features, with the head. preprocessing: a text that identifies it. prepare: RGB image ->
    pixels, from several threads. forward: pixels of a batch -> (b, d), before normalising.
    """

    name: str
    model: nn.Module
    tower: tuple[nn.Module, ...]
    preprocessing: str
    prepare: Callable[[Image.Image], Pixels]
    forward: Callable[[Pixels], Tensor]

    @cached_property
    def fingerprint(self) -> dict[str, Any] | None:
        """Return `vldebias.hosts.fingerprint.weights_fingerprint` of the tower, which survives half precision."""
        mark = weights_fingerprint(*self.tower)
        return None if mark is None else mark.to_dict()

    @cached_property
    def digest(self) -> str:
        """Return a hash of every weight, every buffer and the architecture, which any change of the tower changes.

        The fingerprint allows for casts and leaves adapters out, and the same weights serve two architectures
        (open_clip's ViT-B-32 and ViT-B-32-quickgelu): it cannot identify cached features.
        """
        state = hashlib.sha256()
        for module in self.tower:
            for name, part in module.named_modules():
                # the plain values that it was built with: sizes, kinds of pooling, constants of activations
                plain = {k: v for k, v in vars(part).items() if isinstance(v, (bool, int, float, str, tuple))}
                settings = {k: str(plain[k]) for k in sorted(plain) if k[0] != "_" and k != "training"}
                state.update(f"{name} {type(part).__qualname__} {settings}\n".encode())
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                if tensor.is_meta:
                    raise InvalidInputError(f"{self.name}: {name} is on the meta device; load the weights first")
                state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
                state.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return state.hexdigest()

    @cached_property
    def dim(self) -> int:
        """Return the width d of the features, found with a blank image."""
        return int(self.encode([need("PIL.Image").new("RGB", (64, 64))]).shape[1])

    @property
    def first_weight(self) -> Tensor:
        """Return the weight that reads the pixels, which need its dtype; norms around it may have another."""
        layers = (m.weight for t in self.tower for m in t.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
        return next((w for w in layers if w.is_floating_point()), torch.zeros(()))

    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        """Return features (b, d) of RGB images, before normalising, float32 on the CPU."""
        return self.embed([self.prepare(image) for image in images])

    def embed(self, prepared: Sequence[Pixels]) -> Tensor:
        """Return the same from outputs of `prepare`."""
        batch, first = {}, self.first_weight
        for name in prepared[0]:
            tensor = torch.cat([pixels[name] for pixels in prepared])
            batch[name] = tensor.to(first.device, first.dtype if tensor.is_floating_point() else None)
        with reading(self.model), torch.inference_mode():
            features = self.forward(batch)
        return features.float().cpu()


def image_encoder(
    model: Any, preprocess: Any, *, name: str | None = None, preprocessing: str | None = None
) -> ImageEncoder:
    """Return the image encoder of an open_clip or transformers image-text model.

    Args:
        preprocess: the model's own preprocessing: open_clip's transform, a transformers processor or image processor,
            or any function of a PIL image that gives a tensor (3, h, w). Called from several threads.
        preprocessing: a text that identifies `preprocess` where its own description does not.

    Raises:
        UnsupportedHostError: a model of another class. InvalidInputError: `preprocess` cannot be called or described.
    """
    try:
        host = resolve(model)
    except UnsupportedHostError:
        host = None
    if not isinstance(host, JointHost) or not host.image_tower():
        raise UnsupportedHostError(
            f"{type(model).__module__}.{type(model).__qualname__}: expected an image-text model: of open_clip "
            f"{', '.join(open_clip.SUPPORTED)}, of transformers {', '.join(transformers.WITH_IMAGES)}. Of a wrapper "
            "(DistributedDataParallel, torch.compile, peft) pass the model inside; features made elsewhere are read by "
            "vldebias.data.embeddings.load_embeddings"
        )
    processor = getattr(preprocess, "image_processor", preprocess)
    text = preprocessing
    if text is None and hasattr(processor, "to_dict"):
        kind = type(processor)
        settings = {"class": f"{kind.__module__}.{kind.__qualname__}", **processor.to_dict()}
        text = json.dumps(settings, sort_keys=True, default=str)
    elif text is None:
        text = re.sub(r"<function ([^\s<>]+) at 0x[0-9a-f]+>", r"<function \1>", repr(processor))
        if not callable(processor) or " at 0x" in text or "Lambda(" in text or "<lambda>" in text:
            raise InvalidInputError(
                f"preprocess: {text} cannot be told from another one, so its features could be taken for the other's; "
                "expected open_clip's transform, a transformers image processor or a named function, or give "
                "preprocessing='a text for it'"
            )
    return ImageEncoder(
        name=name or getattr(model, "name_or_path", None) or type(model).__name__,
        model=model,
        tower=tuple(host.image_tower()),
        preprocessing=text,
        prepare=partial(_prepare, processor),
        forward=host.image_features,
    )


def _prepare(processor: Any, image: Image.Image) -> Pixels:
    """Prepare an image by a processor of transformers, or by a transform that gives (3, h, w)."""
    if hasattr(processor, "to_dict"):
        made = processor(images=[image], return_tensors="pt")
        return {name: value for name, value in made.items() if name != "labels"}
    pixels = processor(image)
    if not isinstance(pixels, Tensor) or pixels.ndim != 3:
        shape = tuple(pixels.shape) if isinstance(pixels, Tensor) else type(pixels).__name__
        raise InvalidInputError(f"preprocess: expected a tensor (3, h, w) for an image, got {shape}")
    return {"pixel_values": pixels[None]}
