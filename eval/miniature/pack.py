"""Pack the images for the package, and measure the effect of packing.

python -m eval.miniature.pack --out vldebias/miniature/worlds
"""

import argparse
import csv
from pathlib import Path
from unittest import mock

import numpy as np
from PIL import Image

from eval.miniature.data import open_world
from eval.miniature.world import finish
from vldebias.data import ImageData
from vldebias.miniature.pictures import SHEET_WIDTH, SPLITS
from vldebias.miniature.words import COLUMNS, SIZE


def painted(name: str, split: str, *, n: int | None = None, noise: bool = True) -> ImageData:
    """Return the rendered images of a split, with or without pixel noise."""
    _, count, seed = SPLITS[name][split]

    def clean(pixels, draws, sigma):
        return finish(pixels, draws, sigma if noise else 0.0)

    with mock.patch(f"eval.miniature.{name}.finish", clean):
        return open_world(name, n=n or count, seed=seed, balanced=split == "test", split=split)


def pack(name: str, out: Path) -> None:
    """Write the image sheet and the table for a world."""
    splits = [painted(name, split, noise=False) for split in SPLITS[name]]
    pictures = np.stack([np.asarray(data.read(i)) for data in splits for i in range(len(data))])
    tiles = (
        pictures.reshape(-1, SHEET_WIDTH, SIZE, SIZE, 3)
        .swapaxes(1, 2)
        .reshape(-1, SHEET_WIDTH * SIZE, 3)
    )
    Image.fromarray(tiles).save(out / f"{name}.webp", lossless=True, quality=100, method=6)
    with (out / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["id", "caption", *COLUMNS[name]])
        for data in splits:
            texts = [
                [(*values.names, "")[code] for code in values.codes]
                for values in map(data.column, COLUMNS[name])
            ]
            table.writerows(zip(data.ids, data.captions, *texts, strict=True))


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--out", type=Path, required=True)
    args = options.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name in SPLITS:
        pack(name, args.out)


if __name__ == "__main__":
    main()
