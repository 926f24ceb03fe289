"""A program that embeds birds with the miniature CLIP, slowly; run by test_cache_processes.py.

python slow_cache.py FOLDER SECONDS_PER_BATCH [SUMMARY]
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vldebias.data import Embeddings, ImageData, Labels
from vldebias.data.cache import embed_images
from vldebias.hosts.images import Pixels, image_encoder
from vldebias.miniature import birds, load_clip

N, SHARD, BATCH = 150, 20, 10


def make_birds() -> ImageData:
    sample = birds.sample(N, seed=5)
    pixels = (sample.images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()

    def read(index: int) -> Image.Image:
        if index in (33, 90):
            raise OSError("truncated")
        return Image.fromarray(pixels[index])

    labels = {"label": Labels(sample.label.numpy(), birds.CLASSES)}
    return ImageData("birds", "test", tuple(map(str, range(N))), read, labels, "150 birds of seed 5")


def embed_birds(folder: Path, seconds: float = 0.0) -> tuple[Embeddings, list[int]]:
    """The embeddings, and the sizes of the batches that went through the model."""
    torch.set_num_threads(1)
    model, preprocess, _ = load_clip()
    encoder, batches = image_encoder(model, preprocess), []
    forward = encoder.forward

    def counting(batch: Pixels) -> Tensor:
        time.sleep(seconds)
        batches.append(len(batch["pixel_values"]))
        return forward(batch)

    object.__setattr__(encoder, "forward", counting)
    return embed_images(make_birds(), encoder, folder, shard_size=SHARD, batch_size=BATCH), batches


def main(folder: str, seconds: str, summary: str = "") -> None:
    embeddings, batches = embed_birds(Path(folder), float(seconds))
    if summary:
        from vldebias.data.parallel import processes

        told: dict[str, Any] = {"batches": batches, "sum": float(embeddings.normalised().double().sum())}
        Path(f"{summary}.{processes().rank}").write_text(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
