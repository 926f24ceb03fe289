"""A hundred drawn pictures before and after, chosen by a rule and not by hand: 50 portraits and 50 birds.

python -m eval.experiments.sheet                     # some minutes of one core; writes eval/results/sheet.png; goes on

On the left the pipeline as it is, on the right the same noise with the projection attached. Portraits: of the unseen
professions the five around the median change of discrepancy, ten images each in the order in which they were drawn.
Birds: the two class words, then every species in the world's order, one image of each; their projection is fitted on
the pairs of section 7.6.4 (`birds_drawn`). What is shown stands in the PNG as JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from eval.experiments.birds_drawn import FIT, PLAIN
from eval.experiments.generation import SEEDS, STEPS, Form, Studio
from eval.experiments.generation_picture import Unseen, as_images
from eval.experiments.run import RESULTS
from vldebias.miniature.birds import CLASSES, SPECIES
from vldebias.pictures import INK, compact, font, write_png
from vldebias.prompts import fill

METHODS = {"cali": "paper", "difference": "difference"}  # name of the form -> name of the method
PROFESSIONS, COLUMNS = 5, 10
CELL, GAP, LABEL, HEAD = 64, 16, 120, 26  # pixels; CELL: least height of an image
BIRDS = (*CLASSES, *SPECIES)


def birds(studio: Studio, method: str) -> tuple[Tensor, Tensor]:
    """(birds, 3, h, w) in [0, 1] without and with the projection: the first image of each."""
    forms = (Form("none", studio.attached(None)), Form(f"{method} birds", studio.attached(METHODS[method], [FIT])))
    prompts = [fill(PLAIN, concept=bird) for bird in BIRDS]
    before, after = (as_images(studio.pixels(form, "birds", prompts, 1, SEEDS[0])) for form in forms)
    return before, after


def rows(unseen: Unseen, method: str, before: Tensor, after: Tensor) -> list[tuple[str, Tensor, Tensor]]:
    """Label, ten images without and the same with the projection; of the birds as many as fill whole rows."""
    chosen = unseen.middle(PROFESSIONS)
    found = [(unseen.names[i], *(unseen.pixels[m][i][:COLUMNS] for m in ("none", method))) for i in chosen]
    for start in range(0, len(before) - COLUMNS + 1, COLUMNS):
        last = start + COLUMNS
        found.append((f"{BIRDS[start]} to\n{BIRDS[last - 1]}", before[start:last], after[start:last]))
    return found


def composed(strips: Sequence[tuple[str, Tensor, Tensor]], heads: tuple[str, str]) -> Image.Image:
    """Both halves side by side, pixel by pixel: small images are enlarged by a whole number."""
    height, width = strips[0][1].shape[-2:]
    zoom = max(1, CELL // height)
    halves = [torch.cat([row(one[half]) for one in strips], dim=1) for half in (1, 2)]
    sheet = Image.new("RGB", (LABEL + zoom * (2 * COLUMNS * width + GAP), HEAD + zoom * halves[0].shape[1]), "white")
    pen, lefts = ImageDraw.Draw(sheet), (LABEL, LABEL + zoom * (COLUMNS * width + GAP))
    for half, head, left in zip(halves, heads, lefts, strict=True):
        pen.text((left, 5), head, INK, font(13, bold=True))
        values = (half * 255).round().byte().permute(1, 2, 0).repeat_interleave(zoom, 0).repeat_interleave(zoom, 1)
        sheet.paste(Image.fromarray(values.numpy()), (left, HEAD))
    for i, (label, _, _) in enumerate(strips):
        pen.multiline_text((6, HEAD + 6 + i * zoom * height), label, INK, font(13))
    return sheet


def row(images: Tensor) -> Tensor:
    """Images (n, 3, h, w) beside one another: (3, h, n w)."""
    return images.permute(1, 2, 0, 3).flatten(2)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--work", type=Path, default=Path("results/generation"), help="where drawn pixels are kept")
    options.add_argument("--method", default="cali", choices=METHODS)
    options.add_argument("--images", type=int, default=12, help="of each profession and seed, which decide the median")
    options.add_argument("--out", type=Path, default=RESULTS / "sheet.png")
    given = options.parse_args()
    if given.images < COLUMNS:
        options.error(f"--images: expected at least {COLUMNS}, which a row shows, got {given.images}")
    torch.set_num_threads(1)
    studio = Studio(given.work / f"{STEPS}-steps", given.images)
    unseen = Unseen.of(studio, [given.method], given.images)
    strips = rows(unseen, given.method, *birds(studio, given.method))
    about = {
        "rule": f"the {PROFESSIONS} of {len(unseen.names)} unseen professions around the median change of discrepancy "
        f"under {given.method}, then class words and species in the world's order; first images drawn",
        "rows": [label.replace("\n", " ") for label, _, _ in strips],
        "columns": f"{COLUMNS} images as the pipeline is, the same {COLUMNS} with {given.method}",
        "images counted": given.images * len(SEEDS),
        "steps": STEPS,
    }
    sheet = composed(strips, ("as it is", f"with {given.method}"))
    write_png(compact(sheet), given.out, about, optimize=True)
    print(about)


if __name__ == "__main__":
    main()
