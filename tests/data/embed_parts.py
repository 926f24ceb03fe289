"""A tiny encoder whose features are exact in half precision, and data sets that count what is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from vldebias.data import Embeddings, ImageData, Labels, Record
from vldebias.data.cache import embed_images
from vldebias.hosts.images import ImageEncoder, Pixels
from vldebias.progress import SILENT

DIM = 6


class Tower(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.linear = nn.Linear(12, DIM)
        with torch.no_grad():  # small whole numbers: sums are exact, whatever the batch
            self.linear.weight.copy_(torch.randint(-2, 3, (DIM, 12), generator=generator))
            self.linear.bias.fill_(1.0)


@dataclass
class Counting:
    """An encoder that remembers the sizes of its batches, and stops before image number `stop_at`."""

    seed: int = 0
    preprocessing: str = "2x2"
    scale: float = 1.0
    stop_at: int | None = None
    stop_with: type[BaseException] = KeyboardInterrupt
    batches: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        tower = Tower(self.seed)

        def forward(batch: Pixels) -> Tensor:
            pixels = batch["pixel_values"]
            if self.stop_at is not None and self.images + len(pixels) > self.stop_at:
                raise self.stop_with
            self.batches.append(len(pixels))
            return tower.linear(pixels) * self.scale

        self.encoder = ImageEncoder("tiny", tower, (tower,), self.preprocessing, prepare, forward)

    @property
    def images(self) -> int:
        return sum(self.batches)


def prepare(image: Image.Image) -> Pixels:
    return {"pixel_values": torch.from_numpy(np.array(image, dtype=np.float32)).reshape(1, 12)}


def picture(index: int) -> Image.Image:
    """A 2 x 2 image of small numbers that follow from the index."""
    return Image.fromarray(np.random.default_rng(index).integers(0, 16, (2, 2, 3), dtype=np.uint8))


def reading(bad: Collection[int], error: Callable[[int], OSError]) -> Callable[[int], Image.Image]:
    def read(index: int) -> Image.Image:
        if index in bad:
            raise error(index)
        return picture(index)

    return read


def broken(index: int) -> OSError:
    return OSError(f"image {index} is truncated <_io.BytesIO object at {hex(id(object()))}>")


def make_data(n: int, bad: Collection[int] = (), *, error: Callable[[int], OSError] = broken, **more: Any) -> ImageData:
    settings = {
        "name": "tiny/set",
        "split": "test",
        "labels": {"parity": Labels(np.arange(n) % 2, ("even", "odd"))},
        "fingerprint": f"{n} pictures",
        "captions": tuple(f"picture {i}" for i in range(n)),
        "about": {"root": Path("here")},
    }
    return ImageData(ids=tuple(f"img{i}" for i in range(n)), read=reading(bad, error), **(settings | more))


@dataclass
class Stream:
    """n records; `starts` remembers where it was opened, `drawn` how many records were taken."""

    n: int
    bad: Collection[int] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"parity": ("even", "odd")})
    starts: list[int] = field(default_factory=list)
    drawn: int = 0
    name: str = "tiny stream"
    split: str = "train"
    fingerprint: str = "a stream"
    about: Mapping[str, Any] = field(default_factory=dict)

    def records(self, start: int = 0) -> Iterator[Record]:
        self.starts.append(start)
        read = reading(self.bad, broken)
        for i in range(start, self.n):
            self.drawn += 1
            labels = {"parity": ("even", "odd")[i % 2]} | ({"third": str(i // 3)} if i % 3 == 0 else {})
            yield Record(f"row{i}", lambda i=i: read(i), labels, f"caption {i}" if i % 4 else None)


def embed(data: Any, encoder: Counting, folder: Path, **options: Any) -> Embeddings:
    """Without a bar."""
    return embed_images(data, encoder.encoder, folder, progress=SILENT, **options)


def naive(rows: Sequence[int], seed: int = 0) -> np.ndarray:
    """The features one by one, without batches, threads, shards or files."""
    linear = Tower(seed).linear
    with torch.no_grad():
        features = [linear(prepare(picture(i))["pixel_values"])[0].numpy() for i in rows]
    return np.array(features, dtype=np.float32).reshape(len(rows), DIM)


def contents(folder: Path) -> dict[str, bytes]:
    """Path below `folder` -> bytes."""
    files = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}


def shards(folder: Path) -> list[Path]:
    return sorted(folder.rglob("shard-*.safetensors"))
