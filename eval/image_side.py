"""Which side to project, the texts, the images or both? Measured on real CLIP embeddings and on the miniature world.

python eval/image_side.py                                      # print the tables
python eval/image_side.py --json eval/results/image_side.json  # and write them

One projection is fitted from prompts (and, for cali+equalise, from unlabelled images that are not measured on), and
applied to the texts, to the images or to both; what stands between image and text then is P, its transpose or P^T P
(`vldebias.hosts.sides`). Prompts that state the attribute are left alone on the text side, as `vldebias.debias` does;
images state nothing. "products" are scores with projected images that are not normalised, as an index that ranks by
inner products may keep them; a model normalises. Beside the bias stands what it costs:

rank_kept        Spearman's correlation of the scores of images of one group before and after: is the order that has
                 nothing to do with the attribute still there?
stated@k         share of the first k images that show the stated attribute, for prompts that name it; 1 is right, and
                 what a random ranking gives is the share in the gallery
query_cosine     mean cosine of a query with itself, before and after; image_cosine, of an image

CelebA is read as in eval/real_clip.py, and skipped with a message where it is not there.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import real_clip
import torch
from image_side_measures import LAM, Row, Search, class_part, fitted, search_part
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings, Labels
from vldebias.evaluation.part import Part
from vldebias.evaluation.report.pages import print_table
from vldebias.evaluation.result import Protocol, Result, commit, versions
from vldebias.evaluation.texts import Texts
from vldebias.prompts import PromptSet, load_prompts

REAL_K, WORLD_K = 50, 100
WORLD = {"birds": (9001, 9011), "portraits": (9002, 9013)}  # seeds: measured on, fitted on
IMAGES, REFERENCE = 4000, 2000
err = Console(stderr=True)


def celeba(path: Path) -> list[Part]:
    """Fitted on images 1-500 of CelebA, measured on 501-1000."""
    data = real_clip.load(path)
    prompts = replace(data.prompts, stated_words=("man", "woman"))
    images, gender = data.images.normalised().double(), data.images.column("gender")
    half = len(images) // 2
    rows = fitted(data.texts, prompts, images[:half])
    ids = np.arange(half, len(images))
    pool = np.concatenate([ids[gender.codes[ids] == code][: _rarest(gender, ids)] for code in (0, 1)])
    men = tuple(one for one, _ in prompts.pairs)
    stated = {"male": men, "female": tuple(other for _, other in prompts.pairs)}
    search = Search(data.texts, images[pool], gender[pool], data.queries, stated, REAL_K)
    about = _Told(data.texts, prompts, hashlib.sha256(path.read_bytes()).hexdigest()[:16], rows, "CLIP ViT-B/32 openai")
    split = f"CelebA 000501-001000, {len(pool) // 2} men and {len(pool) // 2} women; fitted on 000001-000500"
    old = tuple(p for p in (*men, *stated["female"]) if " old " in p)
    young = tuple(p for p in (*men, *stated["female"]) if " young " in p)

    def ages(row: Row) -> Tensor:
        return torch.stack([normalize(row.texts(data.texts, p, False).mean(0), dim=0) for p in (old, young)])

    return [
        search_part(search, rows, about.protocol("celeba retrieval", SEARCH, split, {"k": REAL_K, "pool": len(pool)})),
        class_part(
            images[ids],
            rows,
            ages,
            _attribute(path, "Young", ("old", "young"))[ids],
            gender[ids],
            about.protocol("celeba age", AGE, split, {"images": len(ids)}),
        ),
    ]


def _rarest(gender: Labels, ids: NDArray[np.int64]) -> int:
    return int(np.bincount(gender.codes[ids]).min())


def _attribute(path: Path, name: str, values: tuple[str, str]) -> Labels:
    with np.load(path, allow_pickle=False) as arrays:
        column = arrays["attr"][:, list(arrays["attr_names"]).index(name)]
    return Labels.of(np.where(column > 0, values[1], values[0]), names=values)


def miniature(images: int = IMAGES, reference: int = REFERENCE) -> list[Part]:
    """Birds to classify and portraits to search, on renders without correlation; fitted on others that have it."""
    from vldebias.data.cache import embed_images
    from vldebias.hosts.images import image_encoder
    from vldebias.miniature import load_clip
    from vldebias.miniature.data import open_world

    model, preprocess, tokenizer = load_clip()
    encoder, texts = image_encoder(model, preprocess), Texts(model, tokenizer)

    def features(world: str) -> tuple[Embeddings, Tensor]:
        measured, fitted_on = WORLD[world]
        held = embed_images(open_world(world, n=images, seed=measured, balanced=True), encoder)
        others = embed_images(open_world(world, n=reference, seed=fitted_on), encoder)
        return held, others.normalised().double()

    return [_birds(texts, *features("birds")), _portraits(texts, *features("portraits"))]


def _birds(texts: Texts, held: Embeddings, reference: Tensor) -> Part:
    prompts = load_prompts("waterbirds")
    rows = fitted(texts, prompts, reference)
    split = f"birds, {len(held)} renders, seed {WORLD['birds'][0]}; fitted on seed {WORLD['birds'][1]}"
    about = _Told(texts, prompts, prompts.hash, rows, "miniature CLIP")
    return class_part(
        held.normalised().double(),
        rows,
        lambda row: row.texts(texts, prompts.classes),
        held.column("label"),
        held.column("place"),
        about.protocol("birds", CLASSES, split, {"images": len(held)}),
    )


def _portraits(texts: Texts, held: Embeddings, reference: Tensor) -> Part:
    prompts, concepts = load_prompts("professions-gender"), load_prompts("fairface-gender")
    rows = fitted(texts, prompts, reference)
    men, women = zip(*prompts.held_out_pairs, strict=True)
    search = Search(
        texts,
        held.normalised().double(),
        held.column("gender"),
        (*prompts.held_out_classes, *concepts.classes),
        {"male": men, "female": women},
        WORLD_K,
    )
    split = f"portraits, {len(held)} renders, seed {WORLD['portraits'][0]}; fitted on seed {WORLD['portraits'][1]}"
    about = _Told(texts, prompts, prompts.hash, rows, "miniature CLIP")
    return search_part(search, rows, about.protocol("portraits", SEARCH, split, {"k": WORLD_K, "gallery": len(held)}))


SEARCH = "Retrieval: skew in gender of the first images for queries that nothing was fitted on, and what it costs"
AGE = "Zero-shot old or young; groups are age x gender, the projections are about gender"
CLASSES = "Zero-shot landbird or waterbird; groups are label x place, the projections are about the place"


@dataclass(frozen=True)
class _Told:
    """What the protocols of one model and prompt set share."""

    texts: Texts
    prompts: PromptSet
    prompts_hash: str
    rows: Sequence[Row]
    model: str

    def protocol(self, task: str, told: str, split: str, n: dict[str, int]) -> Protocol:
        sides = {row.name: row for row in self.rows if row.projection is not None}
        return Protocol(
            task=task,
            title=f"Text side, image side or both: {task}",
            description=f"{told}. One projection from prompts, and for cali+equalise from unlabelled images beside "
            "them, applied to texts, images or both.",
            model=self.model,
            fingerprint=self.texts.host.fingerprint(),
            prompts=self.prompts.name,
            prompts_hash=self.prompts_hash,
            split=split,
            methods={
                name: {
                    "side": row.side,
                    "method": row.projection.method,
                    "lam": LAM,
                    "rank": row.projection.rank,
                    "images normalised": row.unit,
                }
                for name, row in sides.items()
                if row.projection is not None
            },
            seeds=[0],
            n=n,
            settings={
                "prior": "uniform",
                "ties": "stable",
                "keep_stated": "texts; not the texts of age",
                "resamples": 2000,
                "rank_kept": "Spearman, inside each value of the attribute, mean over values",
            },
        )


def measure() -> Result:
    """Everything that is at hand."""
    started, parts = time.monotonic(), []
    path = real_clip.data_file()
    if path.is_file():
        parts += celeba(path)
    else:
        err.print(f"SKIPPED: {path} is missing; set VLDEBIAS_REAL to its folder", style="yellow", highlight=False)
    parts += miniature()
    return Result(
        name="image_side",
        figures=[figure for part in parts for figure in part.figures],
        protocols=[part.protocol for part in parts],
        versions=versions(),
        commit=commit(),
        seconds=round(time.monotonic() - started, 1),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    result = measure()
    print_table(result, Console())
    if arguments.json:
        result.write(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
