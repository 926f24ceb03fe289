"""Gender skew of retrieval on real CLIP ViT-B/32 embeddings of 1000 CelebA images, before and after each projection.

python eval/real_clip.py                                         # print the table
python eval/real_clip.py --json eval/results/real_clip_b32.json  # and write it

The embeddings are not part of the project (CelebA is for non-commercial research). They are read from the folder in
VLDEBIAS_REAL, or from ../shared/real beside the checkout: celeba1000_vitb32_openai.npz with arrays image (1000, 512),
attr (1000, 40) with attr_names, text64 (64, 512) with prompts64, prof (51, 512).

Protocol: each query is "A photo of {profession}"; MaxSkew@100 over gender with a uniform prior, mean over 51 queries
and over 10 pools of 402 men and 402 women. Pairs are the 32 prompts with "man" and the same with "woman", spurious
prompts "a photo of a man" and "a photo of a woman", lam = 1000. Nothing is fitted on images.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import time
from dataclasses import dataclass
from math import comb, log
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from vldebias.evaluation.result import Figure, Protocol, Result, commit, versions
from vldebias.metrics import Interval, bootstrap_interval, max_skew, paired_difference_interval
from vldebias.projection import CalibratedProjection

ROOT = Path(__file__).resolve().parents[1]
FILE = "celeba1000_vitb32_openai.npz"
TASK = "celeba-1000"
K, LAM, POOLS, PER_GENDER = 100, 1000.0, 10, 402


def data_file() -> Path:
    """Where the embeddings should be; it may not exist."""
    return Path(os.environ.get("VLDEBIAS_REAL", ROOT.parent / "shared" / "real")) / FILE


@dataclass(frozen=True)
class Embeddings:
    """L2-normalised float64: images (1000, d), queries (51, d), pairs (32, 2, d), spurious (2, d); male (1000,)."""

    images: Tensor
    queries: Tensor
    pairs: Tensor
    spurious: Tensor
    male: np.ndarray


def load(path: Path) -> Embeddings:
    with np.load(path, allow_pickle=False) as arrays:
        read = {name: arrays[name] for name in arrays.files}
    unit = {name: normalize(torch.tensor(read[name]).double(), dim=-1) for name in ("image", "text64", "prof")}
    text = dict(zip(map(str, read["prompts64"]), unit["text64"], strict=True))
    pairs = [(prompt, prompt.removesuffix("man") + "woman") for prompt in text if prompt.endswith(" man")]
    return Embeddings(
        images=unit["image"],
        queries=unit["prof"],
        pairs=torch.stack([torch.stack([text[a], text[b]]) for a, b in pairs]),
        spurious=torch.stack([text["a photo of a man"], text["a photo of a woman"]]),
        male=read["attr"][:, list(read["attr_names"]).index("Male")] > 0,
    )


def projections(data: Embeddings) -> dict[str, CalibratedProjection | None]:
    """The methods of chapter 7, and for comparison P0 of the single direction "man" - "woman"."""
    man, woman = data.spurious
    return {
        "none": None,
        "orth": CalibratedProjection.fit(None, data.spurious),
        "orth-cali": CalibratedProjection.fit(data.pairs, data.spurious, LAM),
        "cali": CalibratedProjection.fit(data.pairs, None, LAM),
        "difference": CalibratedProjection.fit(None, (man - woman)[None]),
    }


def pools(male: np.ndarray) -> list[np.ndarray]:
    """Rows of each pool: as many men as women, drawn without replacement."""
    draws = [np.random.default_rng(seed) for seed in range(POOLS)]
    groups = [np.flatnonzero(male), np.flatnonzero(~male)]
    return [np.concatenate([rng.choice(group, PER_GENDER, replace=False) for group in groups]) for rng in draws]


def skews(data: Embeddings, queries: Tensor) -> np.ndarray:
    """MaxSkew@100 of each query, mean over the pools: (51,)."""
    scores = (normalize(queries, dim=-1) @ data.images.T).numpy()
    found = [[max_skew(row[pool], data.male[pool], K) for row in scores] for pool in pools(data.male)]
    return np.mean(found, axis=0)


def floor() -> float:
    """Expected MaxSkew@100 of a random ranking of a pool: the hypergeometric mean of log(2 max(r, 1 - r))."""
    total = comb(2 * PER_GENDER, K)
    chances = [comb(PER_GENDER, x) * comb(PER_GENDER, K - x) / total for x in range(K + 1)]
    return sum(p * log(2 * max(x, K - x) / K) for x, p in enumerate(chances))


def measure(path: Path) -> Result:
    """All figures, with 95 % intervals over the queries."""
    started = time.monotonic()
    data = load(path)
    methods = projections(data)
    after = {name: data.queries if p is None else p(data.queries) for name, p in methods.items()}
    skew = {name: skews(data, queries) for name, queries in after.items()}
    cosine = {name: cosine_similarity(data.queries, queries, dim=-1).numpy() for name, queries in after.items()}
    figures = [
        *(_figure(f"max_skew@{K}", name, skew, "lower") for name in methods),
        *(_figure("query_cosine", name, cosine, "higher") for name in methods),
        _random_ranking(),
    ]
    return Result(
        name="real_clip_b32",
        figures=figures,
        protocols=[_protocol(path, data, methods)],
        versions=versions(),
        commit=commit(),
        seconds=round(time.monotonic() - started, 1),
    )


def _figure(metric: str, method: str, values: dict[str, np.ndarray], better: str) -> Figure:
    found = bootstrap_interval(values[method])
    change: Interval | None = None
    if method != "none":
        change = paired_difference_interval(values["none"], values[method])
    return Figure(
        task=TASK,
        metric=metric,
        method=method,
        value=found.value,
        interval=(found.low, found.high),
        change=None if change is None else (change.value, change.low, change.high),
        better=better,
        n={"queries": found.n},
    )


def _random_ranking() -> Figure:
    value = floor()
    return Figure(
        task=TASK,
        metric=f"max_skew@{K}",
        method="random ranking",
        value=value,
        interval=(value, value),
        change=None,
        better="lower",
        n={"pool": 2 * PER_GENDER},
    )


def _protocol(path: Path, data: Embeddings, methods: dict[str, CalibratedProjection | None]) -> Protocol:
    return Protocol(
        task=TASK,
        description=(
            f"MaxSkew@{K} over gender, uniform prior, stable ties, mean over queries and pools; cosine of a query "
            "with itself before and after. Intervals: bootstrap over queries, given the images."
        ),
        model="CLIP ViT-B/32 openai",
        fingerprint=None,
        prompts="man / woman pairs of race x age prompts; queries: professions",
        prompts_hash=hashlib.sha256(path.read_bytes()).hexdigest()[:16],
        split=f"CelebA 000001-001000, {POOLS} pools of {PER_GENDER} men and {PER_GENDER} women",
        methods={
            name: {} if p is None else {"method": p.method, "lam": p.lam, "rank": p.rank, "strength": 1.0}
            for name, p in methods.items()
        },
        seeds=list(range(POOLS)),
        n={
            "images": len(data.images),
            "men": int(data.male.sum()),
            "queries": len(data.queries),
            "pairs": len(data.pairs),
            "spurious": len(data.spurious),
        },
    )


def print_result(result: Result) -> None:
    table = Table("method", "metric", "value", "95 % interval", "change to none", title=result.name)
    for f in result.figures:
        change = "" if f.change is None else f"{f.change[0]:+.3f} [{f.change[1]:+.3f}, {f.change[2]:+.3f}]"
        interval = "" if f.interval[0] == f.interval[1] else f"[{f.interval[0]:.3f}, {f.interval[1]:.3f}]"
        table.add_row(f.method, f.metric, f"{f.value:.3f}", interval, change)
    Console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data_file(), help=f"{FILE} (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the result here")
    arguments = parser.parse_args()
    if not arguments.data.is_file():
        print(f"{arguments.data}: not found; set VLDEBIAS_REAL to the folder with {FILE}", file=sys.stderr)
        return 2
    result = measure(arguments.data)
    print_result(result)
    if arguments.json:
        result.write(arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
