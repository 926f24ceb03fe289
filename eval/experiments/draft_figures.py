"""Measure how `embed_images(..., fast=True)` changes figures by decoding images at two sizes.

    python -m eval.experiments.draft_figures        # eval/results/draft_figures.json, minutes

Images of the miniature world are enlarged and saved as JPEG files, so that they can be decoded at
the smallest possible size, which is one eighth and twice the input size of the model. Both tasks
are then measured with both kinds of features.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import vldebias
from eval.tables import RESULTS, write_records
from vldebias.data import Embeddings, embed_images, file_images
from vldebias.data.dataset import ImageData
from vldebias.hosts.clip.images import image_encoder
from vldebias.miniature import load_clip, open_world
from vldebias.utils.progress import SILENT

SIDE = 1024  # image width and height in pixels, sixteen times the model's input size
GRAIN = 6  # standard deviation of simulated camera noise, for pixel values up to 255
QUALITY = 90  # JPEG quality
IMAGES = 400

SETTINGS: dict[str, dict[str, Any]] = {
    "portraits": {"prompts": "gender", "k": 50},
    "birds": {"task": "groups", "prompts": "waterbirds", "label": "label", "spurious": "place"},
}
"""The measurements in each world."""


def write_files(world: ImageData, rows: list[int], folder: Path) -> list[str]:
    """Write images as large JPEG files and return the file names."""
    rng = np.random.default_rng(0)
    names = []
    for row in rows:
        large = world.read(row).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        pixels = np.asarray(large) + rng.normal(0, GRAIN, size=(SIDE, SIDE, 3))
        picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        names.append(f"{row:05d}.jpg")
        picture.save(folder / names[-1], quality=QUALITY)
    return names


def embeddings_of(world: str, count: int) -> Iterator[Embeddings]:
    """Yield embeddings of a world's files decoded at full size, and then at a reduced size."""
    images = open_world(world)
    chosen = np.random.default_rng(0).permutation(len(images))[:count]
    rows = sorted(chosen.tolist())
    labels = {name: column[np.asarray(rows)] for name, column in images.labels.items()}
    model, preprocess, _ = load_clip()
    encoder = image_encoder(model, preprocess)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "images")
        folder.mkdir()
        names = write_files(images, rows, folder)
        files = file_images(world, "test", folder, names, labels)
        for is_fast in (False, True):
            yield embed_images(
                files, encoder, Path(place, "cache"), dtype="float32", fast=is_fast, progress=SILENT
            )


def rows_of(world: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield each figure in a world for both decoding sizes."""
    full, small = embeddings_of(world, count)
    cosines = torch.nn.functional.cosine_similarity(
        torch.from_numpy(np.array(full.features)), torch.from_numpy(np.array(small.features))
    )
    yield {
        "figure": "cosine of both features, least",
        "data": world,
        "read small": float(cosines.min()),
    }
    model, _, tokenizer = load_clip()
    results = []
    for features in (full, small):
        results.append(
            vldebias.evaluate(
                model, features, tokenizer=tokenizer, methods="default", **SETTINGS[world]
            )
        )
    figures_read_small = {(row.metric, row.method, row.subset): row for row in results[1].rows}
    for row in results[0].rows:
        is_of_texts = row.metric.startswith("cosine")
        is_of_a_query = world == "portraits" and bool(row.subset)
        if is_of_texts or is_of_a_query:
            continue
        small_figure = figures_read_small[row.metric, row.method, row.subset]
        low, high = row.interval
        yield {
            "figure": row.metric,
            "data": ", ".join(filter(None, (world, row.method, row.subset))),
            "read whole": row.value,
            "low": low,
            "high": high,
            "read small": small_figure.value,
            "change": small_figure.value - row.value,
        }


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--images", type=int, default=IMAGES, help="of each world")
    options.add_argument("--json", type=Path, default=RESULTS / "draft_figures.json")
    arguments = options.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for world in SETTINGS:
        rows += rows_of(world, arguments.images)
    for row in rows:
        print(*(f"{value:.4f}" if isinstance(value, float) else value for value in row.values()))
    write_records(
        arguments.json,
        "Figures of features that were read whole, and of a draft",
        rows,
        "figure",
        ("data",),
        images=arguments.images,
        side=SIDE,
        quality=QUALITY,
        grain=GRAIN,
    )


if __name__ == "__main__":
    main()
