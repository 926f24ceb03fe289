"""What the embedding cache saves: reading features from it (ours) against computing them (plain).

python -m eval.benchmarks.cache                                                 # print the table
python -m eval.benchmarks.cache --json eval/results/bench_embedding_cache.json  # and write it

Renders of the miniature world through the miniature CLIP. "Computing" is the first call, into an empty folder: reading
the images, the model, writing the shards. "Reading" is every later call: hashing the weights for the key, checking the
shards, joining them. The miniature is the smallest of models: with a larger one only computing takes longer. Both are
checked to give the same features.
"""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from eval.benchmarks.timing import arguments, compared, report
from vldebias.data import Embeddings, ImageData
from vldebias.data.cache import embed_images
from vldebias.hosts.images import image_encoder
from vldebias.miniature import load_clip, open_world

SIZES = [(500, 100), (2000, 100), (2000, 2000)]  # images, images in a shard
SEED = 7001


def measure(data: ImageData, shard_size: int, repetitions: int) -> dict[str, Any]:
    """One size; a fresh encoder for every call, so that each pays for its key."""
    model, preprocess, _ = load_clip()
    with tempfile.TemporaryDirectory() as folder:

        def embedded(cache: Path) -> Embeddings:
            encoder = image_encoder(model, preprocess)
            return embed_images(data, encoder, cache, shard_size=shard_size, workers=0)

        kept, fresh = Path(folder, "kept"), (Path(folder, str(i)) for i in itertools.count())
        computed, read = embedded(kept), embedded(kept)
        if not np.array_equal(computed.features, read.features):
            raise RuntimeError("the cache gives other features than the model")
        size = f"{len(data)} images, {shard_size} in a shard"
        stored = sum(path.stat().st_size for path in kept.rglob("*.safetensors"))
        ours, plain = (lambda: embedded(kept)), (lambda: embedded(next(fresh)))
        return compared("embed, read / computed", size, ours, plain, repetitions, bytes=stored)


def main() -> None:
    given = arguments(__doc__, repetitions=3)
    data = open_world("birds", n=max(images for images, _ in SIZES), seed=SEED)
    rows = [measure(data[:images], shard_size, given.repetitions) for images, shard_size in SIZES]
    report("bench_embedding_cache", rows, given.json)


if __name__ == "__main__":
    main()
