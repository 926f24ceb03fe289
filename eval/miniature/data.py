"""Provide newly rendered images from the two worlds as data sets.

For packaged images, see `vldebias.miniature.open_world`.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from eval.miniature import birds, portraits
from eval.miniature.world import Codes
from vldebias.data import ImageData, Labels
from vldebias.data.labels import UNKNOWN
from vldebias.errors import need
from vldebias.miniature.words import AGES, COLUMNS, SIZE

_BLOCK = 500  # images rendered at once


def open_world(
    name: str,
    *,
    n: int = 4000,
    seed: int = 0,
    start: int = 0,
    balanced: bool = False,
    split: str = "test",
) -> ImageData:
    """Render images with the same columns as in `vldebias.miniature.open_world`.

    Args:
        name: "birds" or "portraits".
        n: The number of images, which are all held in memory as 8-bit values (12 KiB each).
        seed: The seed. Image i does not depend on n and start.
        start: The index of the first image.
        balanced: Whether to omit the world's correlations, see `birds.sample` and
            `portraits.sample`.
        split: A name for reports. Use a different seed for each split.
    """
    world: Any = {"birds": birds, "portraits": portraits}[name]
    pixels = np.empty((n, SIZE, SIZE, 3), dtype=np.uint8)
    blocks = []
    for first in range(0, n, _BLOCK):
        size = min(_BLOCK, n - first)
        block = world.sample(size, seed=seed, start=start + first, balanced=balanced)
        pixels[first : first + len(block)] = (
            (block.images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
        )
        blocks.append(block)

    def codes(field: str) -> Codes:
        return torch.cat([getattr(block, field) for block in blocks]).numpy()

    if name == "birds":
        columns = {
            "label": codes("label"),
            "place": codes("background"),
            "species": codes("species"),
        }
    else:
        columns = {field: codes(field) for field in ("profession", "gender", "tone", "age", "hair")}
        shade = np.array([0, 0, 1, UNKNOWN])[
            columns["hair"]
        ]  # black and brown count as dark, and red as neither
        columns |= {
            "duty": codes("off_duty").astype(np.int64),
            "label": np.where(columns["age"] == AGES.index("old"), UNKNOWN, shade),
        }
    return ImageData(
        name=name,
        split=split,
        ids=tuple(f"{seed}/{index:06d}" for index in range(start, start + n)),
        read=lambda index: need("PIL.Image").fromarray(pixels[index]),
        labels={column: Labels(columns[column], names) for column, names in COLUMNS[name].items()},
        fingerprint=lambda: hashlib.sha256(pixels.tobytes()).hexdigest()[:24],
        captions=tuple(caption for block in blocks for caption in block.captions),
        about={"world": name, "seed": seed, "start": start, "balanced": balanced},
    )
