"""Real CLIP embeddings for eval/beyond.py: CelebA on ViT-B/32, fitted on some images and measured on others, and the
texts of five ViT-L/14."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import comb, log
from pathlib import Path

import numpy as np
import torch
from beyond_methods import FIXED, LOSS, Row, equalised, exact, image_methods, text_methods
from numpy.typing import NDArray
from real_clip import PER_GENDER, K, Real
from torch import Tensor

from vldebias.diagnostics import pair_distance, signal_kept
from vldebias.equalise import Reference
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Protocol
from vldebias.evaluation.retrieval.scores import scores
from vldebias.evaluation.texts import Texts, TextTable
from vldebias.prompts import PromptSet

__all__ = ["half_splits", "l14", "one_split", "published", "transductive"]

Floats = NDArray[np.float64]
HALF_K, SPLITS, POOLS = 50, 24, 6
BACKBONES = ("openai", "laion400m_e31", "laion2b_s32b_b82k", "datacomp_xl_s13b_b90k", "commonpool_xl_s13b_b90k")


@dataclass(frozen=True)
class Split:
    """Rows of the images that are fitted on, and of those that are measured on, in pools balanced in gender."""

    fitted: NDArray[np.int64]
    pools: list[NDArray[np.int64]]
    k: int

    @property
    def floor(self) -> float:
        """Expected MaxSkew@k of a random ranking of such a pool."""
        half = len(self.pools[0]) // 2
        chances = [comb(half, x) * comb(half, self.k - x) / comb(2 * half, self.k) for x in range(self.k + 1)]
        return sum(p * log(2 * max(x, self.k - x) / self.k) for x, p in enumerate(chances))


def balanced(rows: NDArray[np.int64], gender: NDArray[np.int64], n: int, seed: int) -> list[NDArray[np.int64]]:
    """Pools with all of the rarer gender's rows (or PER_GENDER of each) and as many of the other, at random."""
    groups = [rows[gender[rows] == code] for code in (0, 1)]
    size = min(PER_GENDER, *map(len, groups))
    draws = [np.random.default_rng([seed, pool]) for pool in range(n)]
    return [np.concatenate([rng.choice(group, size, replace=False) for group in groups]) for rng in draws]


def skews(row: Row, queries: Tensor, images: Tensor, gender: NDArray[np.int64], split: Split) -> Floats:
    """MaxSkew@k of each query (q,), mean over the pools."""
    ranked = scores(row.of_texts(queries), row.of_images(images))
    found = []
    for pool in split.pools:
        best = np.argsort(-ranked[:, pool], axis=1, kind="stable")[:, : split.k]
        share = gender[pool][best].mean(axis=1)
        with np.errstate(divide="ignore"):
            found.append(np.log(2 * np.maximum(share, 1 - share)))
    return np.mean(found, axis=0)


def cosines(row: Row, queries: Tensor) -> Floats:
    """Cosine (q,) of each query with itself, before and after."""
    return (row.of_texts(queries) * queries).sum(1).numpy()


def rows_of(data: Real, split: Split) -> dict[str, Row]:
    """Every method, fitted on prompts and on the given images without their labels."""
    reference = Reference(data.images.features[split.fitted].astype(np.float32))
    known = data.queries[::2]  # for what takes classes or neutral texts; the other queries are held out
    host = data.texts.host
    return {
        **image_methods(host, data.prompts, reference, known, top=split.k / len(split.pools[0])),
        **equalised(host, data.prompts, reference, known),
    }


def one_split(data: Real, path_hash: str, task: str, split: Split, told: str) -> Part:
    """Figures of one split: means over the 51 queries with intervals over them."""
    queries, images = data.texts.embed(data.queries), data.images.normalised().double()
    gender = data.images.column("gender").codes
    rows = rows_of(data, split)
    skew = {name: skews(row, queries, images, gender, split) for name, row in rows.items()}
    cosine = {name: cosines(row, queries) for name, row in rows.items()}
    n = {"queries": len(data.queries), "pool": len(split.pools[0])}
    found = [
        *figures(Measured(task, f"max_skew@{split.k}", "lower", n, skew)),
        exact(task, f"max_skew@{split.k}", "random", split.floor, "lower", n),
        *figures(Measured(task, f"above_floor@{split.k}", "lower", n, {m: v - split.floor for m, v in skew.items()})),
        *figures(Measured(task, "query_cosine", "higher", n, cosine)),
    ]
    settings = {"k": split.k, "prior": "uniform", "resample": "queries", "resamples": 2000, "keep_stated": False}
    return Part(found, _protocol(data, path_hash, task, told, rows, settings, [0], n))


def half_splits(data: Real, path_hash: str, task: str, splits: int = SPLITS) -> Part:
    """Means over random halves: fitted on 500 images, measured on the other 500; intervals over the splits."""
    queries, images = data.texts.embed(data.queries), data.images.normalised().double()
    gender = data.images.column("gender").codes
    gathered: dict[tuple[str, str], dict[str, list[float]]] = {}
    floors = []
    held_out = np.arange(len(data.queries)) % 2 == 1
    for split in random_halves(len(data.images), gender, splits):
        rows = rows_of(data, split)
        floors.append(split.floor)
        for name, row in rows.items():
            skew, cosine = skews(row, queries, images, gender, split), cosines(row, queries)
            values = {
                (f"max_skew@{HALF_K}", ""): skew.mean(),
                (f"max_skew@{HALF_K}", "held-out queries"): skew[held_out].mean(),
                (f"above_floor@{HALF_K}", ""): skew.mean() - split.floor,
                ("query_cosine", ""): cosine.mean(),
                ("query_cosine", "held-out queries"): cosine[held_out].mean(),
            }
            for key, value in values.items():
                gathered.setdefault(key, {}).setdefault(name, []).append(float(value))
    n = {"splits": splits, "queries": len(queries)}
    found = []
    for (metric, subset), by_method in gathered.items():
        better = "higher" if metric == "query_cosine" else "lower"
        values = {name: np.array(v) for name, v in by_method.items()}
        if metric.startswith("max_skew") and not subset:
            values["random"] = np.array(floors)
        found += figures(Measured(task, metric, better, n, values, subset=subset))
    settings = {
        "k": HALF_K,
        "prior": "uniform",
        "pools per split": POOLS,
        "intervals": "bootstrap over splits: how much the draw of the halves matters, given these 1000 images",
        "held-out queries": "every second query; the others are the neutral texts of bounded and the classes of "
        "'within queries'. No other method sees a query",
        "resamples": 2000,
        "keep_stated": False,
    }
    told = "random halves of 1000 images: fitted on one, measured on the other"
    return Part(found, _protocol(data, path_hash, task, told, rows, settings, list(range(splits)), n))


def random_halves(n: int, gender: NDArray[np.int64], splits: int) -> Iterator[Split]:
    """Splits in the middle of random orders."""
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(n)
        yield Split(order[: n // 2], balanced(order[n // 2 :], gender, POOLS, seed), HALF_K)


def published(n: int, gender: NDArray[np.int64]) -> Split:
    """Fitted on the first half in the data's own order, measured on the second."""
    order = np.arange(n)
    return Split(order[: n // 2], balanced(order[n // 2 :], gender, 10, 0), HALF_K)


def transductive(n: int, gender: NDArray[np.int64]) -> Split:
    """Fitted on all images without their labels, measured on pools of them: the gallery itself is the reference."""
    order = np.arange(n)
    return Split(order, balanced(order, gender, 10, 0), K)


def l14(path: Path, path_hash: str) -> list[Part]:
    """Text-only measures on five ViT-L/14: pairs that were not fitted, and the concepts they share."""
    return [_backbone(path, path_hash, name) for name in BACKBONES]


def _backbone(path: Path, path_hash: str, name: str) -> Part:
    with np.load(path, allow_pickle=False) as arrays:
        prompts = [str(p) for p in arrays["prompts64"]]
        features = torch.tensor(arrays[f"{name}_64"]).double()
    texts = Texts(TextTable(dict(zip(prompts, features, strict=True)), f"CLIP ViT-L/14 {name}"))
    pairs = [(p, p.removesuffix("man") + "woman") for p in prompts if p.endswith(" man")]
    fitted = PromptSet(
        name="man-woman",
        attributes={"male": ("man",), "female": ("woman",)},
        groups=tuple(pairs[::2]),
        held_out_groups=tuple(pairs[1::2]),
        spurious=("a photo of a man", "a photo of a woman"),
    )
    held = torch.stack([texts.embed(pair) for pair in pairs[1::2]])
    concepts = held.mean(1)
    rows = text_methods(texts.host, fitted, [p for pair in pairs[::2] for p in pair])
    task, n = f"texts L/14 {name}", {"pairs": len(held)}
    distances = {
        method: np.array([pair_distance(pair[None], row.texts) for pair in held]) for method, row in rows.items()
    }
    kept = {
        method: 1.0 if row.texts is None else float(signal_kept(concepts, row.texts) or 0)
        for method, row in rows.items()
    }
    found = [
        *figures(Measured(task, "pair_distance", "lower", n, distances, subset="held-out pairs")),
        *(exact(task, "signal_kept", method, value, "higher", n) for method, value in kept.items()),
    ]
    protocol = Protocol(
        task=task,
        title=f"Texts alone, ViT-L/14 {name}",
        description=(
            "Distance of held-out man / woman pairs after a projection, and share of the distance between their "
            "concepts (means of the two) that is kept. Fitted on every second pair."
        ),
        model=f"CLIP ViT-L/14 {name}",
        fingerprint=None,
        prompts="man-woman",
        prompts_hash=path_hash,
        split="every second of 32 pairs",
        methods={method: row.about() for method, row in rows.items()},
        seeds=[],
        n=n,
        settings={"intervals": "bootstrap over held-out pairs", "resamples": 2000},
    )
    return Part(found, protocol)


def _protocol(
    data: Real,
    path_hash: str,
    task: str,
    told: str,
    rows: Mapping[str, Row],
    settings: Mapping[str, object],
    seeds: list[int],
    n: dict[str, int],
) -> Protocol:
    return Protocol(
        task=task,
        title=f"Gender skew of retrieval on real embeddings: {told}",
        description=f"MaxSkew over gender of 51 professions as queries, mean over pools balanced in gender; {told}.",
        model="CLIP ViT-B/32 openai",
        fingerprint=None,
        prompts=data.prompts.name,
        prompts_hash=path_hash,
        split=f"CelebA 000001-001000, {told}",
        methods={name: row.about() for name, row in rows.items()},
        seeds=seeds,
        n=n,
        settings={**settings, "loss of bounded": LOSS, "fixed methods": list(FIXED)},
    )
