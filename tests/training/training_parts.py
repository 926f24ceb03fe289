"""Define small pairs, streams, towers and a tokenizer for the tests."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from vldebias.data import ImageData, Labels
from vldebias.data.dataset import Record
from vldebias.hosts.clip.towers import Towers
from vldebias.hosts.loading import load_host
from vldebias.training.batches import Batch, MapBatches, StreamBatches
from vldebias.training.pairs import Pairs
from vldebias.training.settings import load_settings

SIZE = 4
NAMES = ("cat", "dog", "owl")


class TinyModel(nn.Module):
    """Use linear towers with dropout, so that features differ between training and evaluation
    mode."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.image = nn.Linear(3 * SIZE * SIZE, dim)
        self.letters = nn.Embedding(128, dim)
        self.drop = nn.Dropout(0.5)


def pairs_of(data: ImageData, **settings: Any) -> Any:
    return Pairs.from_data(data, load_settings(**{"data": "own", **settings}))


def letters_of(texts: Sequence[str]) -> dict[str, Tensor]:
    ids = torch.zeros(len(texts), 24, dtype=torch.int64)
    for i, text in enumerate(texts):
        ids[i, : len(text)] = torch.tensor([ord(letter) % 128 for letter in text[:24]])
    return {"ids": ids}


def plain(image: Image.Image, generator: torch.Generator | None = None) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def jittered(image: Image.Image, generator: torch.Generator) -> Tensor:
    return plain(image) + torch.rand(3, 1, 1, generator=generator)


def tiny_towers(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = TinyModel().train()
    weight = torch.arange(1.0, 25.0)[:, None]
    return SimpleNamespace(
        model=model,
        image=lambda images: model.drop(model.image(images.flatten(1))),
        text=lambda texts: model.drop((model.letters(texts["ids"]) * weight).sum(dim=1)),
        tokenize=letters_of,
        prepare=plain,
        size=(SIZE, SIZE),
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        temperature=0.2,
    )


def tiny_image(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def picture(number: int) -> Image.Image:
    """Return an image that encodes its number in every pixel of the first two channels."""
    pixels = np.full((SIZE, SIZE, 3), 7, dtype=np.uint8)
    pixels[..., 0], pixels[..., 1] = divmod(number, 256)
    return Image.fromarray(pixels)


def number_of(image: Tensor) -> int:
    """Read the number from `plain(picture(number))`."""
    high, low, _ = (image[:, 0, 0] * 255).round().long().tolist()
    return high * 256 + low


def tokenize(captions: Sequence[str]) -> dict[str, Tensor]:
    """Return the number at the end of each caption, in both arguments."""
    numbers = torch.tensor([[int(caption.split()[-1]), len(caption)] for caption in captions])
    return {"input_ids": numbers, "attention_mask": torch.ones_like(numbers)}


def caption(number: int) -> str:
    return f"a photo of {number}"


def reader(broken: Sequence[int] = (), image: Any = picture) -> Any:
    def read(index: int) -> Image.Image:
        if index in broken:
            raise OSError(f"broken {index}")
        return image(index)

    return read


def image_data(
    n: int, *, broken: Sequence[int] = (), kinds: Sequence[str | None] | None = None, **changes: Any
) -> Any:
    """Return n rows.

    more: Fields of ImageData.
    """
    labels = {
        "kind": Labels.from_values(
            kinds if kinds is not None else [NAMES[i % 3] for i in range(n)], NAMES
        )
    }
    fields = {
        "labels": labels,
        "captions": tuple(caption(i) for i in range(n)),
        "read": reader(broken),
        **changes,
    }
    return ImageData(
        name="own", split="train", ids=tuple(f"id{i}" for i in range(n)), fingerprint="x", **fields
    )


@dataclass
class Stream:
    """Yield n rows from several shards, the last of which is the largest, and count the reads."""

    n: int
    broken: Sequence[int] = ()
    without_caption: Sequence[int] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {"kind": NAMES})
    name: str = "stream"
    decoded: list[int] = field(default_factory=list)
    passed: int = 0
    shards: int = 1

    def records(self, start: int = 0, shard: int = 0) -> Iterator[Record]:
        size = self.n // self.shards
        stop = self.n if shard == self.shards - 1 else (shard + 1) * size
        for index in range(shard * size + start, stop):
            self.passed += 1
            text = "" if index in self.without_caption else caption(index)
            yield Record(
                f"id{index}", lambda i=index: self._read(i), {"kind": NAMES[index % 3]}, text, None
            )

    def _read(self, index: int) -> Image.Image:
        self.decoded.append(index)
        return reader(self.broken)(index)


def equal_batches(batch: Batch, expected: Batch) -> bool:
    """Return True if two batches are bit-identical."""
    parts = [
        (batch.images, expected.images),
        (batch.index, expected.index),
        (batch.views, expected.views),
    ]
    parts += [
        (batch.labels, expected.labels),
        *((batch.texts[k], expected.texts[k]) for k in batch.texts),
    ]
    return all(a is b is None or torch.equal(a, b) for a, b in parts)  # type: ignore[arg-type]


def equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model" / "clip.safetensors")


def opened(folder: Path) -> Towers:
    loaded = load_host(model=str(folder))
    assert not loaded.host.training
    return Towers(loaded.host, loaded.tokenizer, loaded.preprocess)


def take(source: MapBatches | StreamBatches, first: int, n: int) -> list[Any]:
    with closing(source.starting(first)) as coming:
        return list(islice(coming, n))
