"""Pairs, streams and a tokenizer small enough to see through, for the tests of the data's way to the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as T

from vldebias.data.dataset import ImageData, Labels, Record
from vldebias.training.batches import Batch, MapBatches
from vldebias.training.stream import StreamBatches

SIZE = 8
NAMES = ("cat", "dog", "owl")


def picture(number: int) -> Image.Image:
    """An image that tells its number: every pixel of the first two channels holds it."""
    pixels = np.full((SIZE, SIZE, 3), 7, dtype=np.uint8)
    pixels[..., 0], pixels[..., 1] = divmod(number, 256)
    return Image.fromarray(pixels)


def number_of(image: Tensor) -> int:
    """Reads the number back from `plain(picture(number))`."""
    high, low, _ = (image[:, 0, 0] * 255).round().long().tolist()
    return high * 256 + low


def plain(image: Image.Image, generator: torch.Generator | None = None) -> Tensor:
    return T.pil_to_tensor(image).float() / 255


def jittered(image: Image.Image, generator: torch.Generator) -> Tensor:
    return plain(image) + torch.rand(3, 1, 1, generator=generator)


def tokenize(captions: Sequence[str]) -> dict[str, Tensor]:
    """The number at the end of each caption, in both arguments."""
    numbers = torch.tensor([[int(caption.split()[-1]), len(caption)] for caption in captions])
    return {"input_ids": numbers, "attention_mask": torch.ones_like(numbers)}


def caption(number: int) -> str:
    return f"a photo of {number}"


def reader(broken: Sequence[int] = ()) -> Any:
    def read(index: int) -> Image.Image:
        if index in broken:
            raise OSError(f"broken {index}")
        return picture(index)

    return read


def image_data(
    n: int, *, broken: Sequence[int] = (), labels: Sequence[str | None] | None = None, captions: bool = True
) -> ImageData:
    values = labels if labels is not None else [NAMES[i % 3] for i in range(n)]
    return ImageData(
        name="own",
        split="train",
        ids=tuple(f"id{i}" for i in range(n)),
        read=reader(broken),
        labels={"kind": Labels.of(values, NAMES)},
        fingerprint="x",
        captions=tuple(caption(i) for i in range(n)) if captions else (),
    )


@dataclass
class Stream:
    """A stream of n rows in some shards, of which the last is the largest, that counts what was read of it."""

    n: int
    broken: Sequence[int] = ()
    without_caption: Sequence[int] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"kind": NAMES})
    name: str = "stream"
    split: str = "train"
    fingerprint: str = "x"
    about: Mapping[str, Any] = field(default_factory=dict)
    decoded: list[int] = field(default_factory=list)
    passed: int = 0
    shards: int = 1
    more: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # captions beside that of a row

    def records(self, start: int = 0, shard: int = 0) -> Iterator[Record]:
        size = self.n // self.shards
        stop = self.n if shard == self.shards - 1 else (shard + 1) * size
        for index in range(shard * size + start, stop):
            self.passed += 1
            text = "" if index in self.without_caption else caption(index)
            more = self.more.get(index, ()) if self.more else None
            yield Record(f"id{index}", lambda i=index: self._read(i), {"kind": NAMES[index % 3]}, text, more)

    def _read(self, index: int) -> Image.Image:
        self.decoded.append(index)
        return reader(self.broken)(index)


def same(one: Batch, other: Batch) -> bool:
    """All parts of two batches are equal, to the bit."""
    parts = [(one.images, other.images), (one.index, other.index), (one.views, other.views)]
    parts += [(one.labels, other.labels), (one.further, other.further)]
    parts += [(one.texts[k], other.texts[k]) for k in one.texts]
    parts += [(one.further_texts[k], other.further_texts.get(k)) for k in one.further_texts]
    return all(a is b is None or torch.equal(a, b) for a, b in parts)  # type: ignore[arg-type]


def take(source: MapBatches | StreamBatches, first: int, n: int) -> list[Batch]:
    with closing(source.starting(first)) as coming:
        return list(islice(coming, n))
