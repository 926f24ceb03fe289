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

from vldebias.data import Embeddings, Labels
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Figure, Protocol, Result, commit, versions
from vldebias.evaluation.retrieval.evaluator import evaluate_retrieval
from vldebias.evaluation.texts import Texts, TextTable
from vldebias.prompts import PromptSet

ROOT = Path(__file__).resolve().parents[1]
FILE = "celeba1000_vitb32_openai.npz"
TASK = "celeba-1000"
METHODS = ("none", "orth", "orth-cali", "cali", "difference")  # difference: P0 of the one direction "man" - "woman"
METRICS = {"max_skew": "lower", "min_skew": "higher", "ndkl": "lower"}
K, LAM, POOLS, PER_GENDER = 100, 1000.0, 10, 402


def data_file() -> Path:
    """Where the embeddings should be; it may not exist."""
    return Path(os.environ.get("VLDEBIAS_REAL", ROOT.parent / "shared" / "real")) / FILE


@dataclass(frozen=True)
class Real:
    """1000 images with their gender, the texts of the same model, 51 queries, and the prompts about gender."""

    images: Embeddings
    texts: Texts
    queries: tuple[str, ...]
    prompts: PromptSet


def load(path: Path) -> Real:
    with np.load(path, allow_pickle=False) as arrays:
        read = {name: arrays[name] for name in arrays.files}
    male = read["attr"][:, list(read["attr_names"]).index("Male")] > 0
    queries = tuple(map(str, read["prof_prompts"]))
    about = [str(prompt) for prompt in read["prompts64"]]
    rows = dict(zip([*about, *queries], torch.tensor(np.concatenate([read["text64"], read["prof"]])), strict=True))
    return Real(
        images=Embeddings(
            features=read["image"],
            ids=tuple(map(str, read["names"])),
            labels={"gender": Labels.of(np.where(male, "male", "female"), names=("male", "female"))},
            about={"model": "CLIP ViT-B/32 openai", "data": "CelebA", "split": "000001-001000"},
        ),
        texts=Texts(TextTable(rows, "CLIP ViT-B/32 openai")),
        queries=queries,
        prompts=PromptSet(
            name="man-woman",
            attributes={"male": ("man",), "female": ("woman",)},
            groups=tuple((p, p.removesuffix("man") + "woman") for p in about if p.endswith(" man")),
            spurious=("a photo of a man", "a photo of a woman"),
        ),
    )


def pools(gender: Labels) -> list[np.ndarray]:
    """Rows of each pool: as many men as women, drawn without replacement."""
    draws = [np.random.default_rng(seed) for seed in range(POOLS)]
    groups = [np.flatnonzero(gender.codes == code) for code in (0, 1)]
    return [np.concatenate([rng.choice(group, PER_GENDER, replace=False) for group in groups]) for rng in draws]


def evaluate(data: Real, rows: np.ndarray) -> Part:
    """One pool; its own intervals are not used, so they are not resampled."""
    (part,) = evaluate_retrieval(
        data.images[rows],
        data.texts,
        {"gender": data.prompts},
        task=TASK,
        queries=data.queries,
        k=K,
        methods=METHODS,
        lam=LAM,
        keep_stated=False,
        resamples=1,
    )
    return part


def over_pools(parts: list[Part], queries: tuple[str, ...], metric: str) -> dict[str, np.ndarray]:
    """Method -> metric of each query, mean over the pools: (51,)."""
    found = [{(f.method, f.subset): f.value for f in part.figures if f.metric == metric} for part in parts]
    return {method: np.mean([[one[method, q] for q in queries] for one in found], axis=0) for method in METHODS}


def cosines(data: Real) -> dict[str, np.ndarray]:
    """Method -> cosine of each query with itself before and after: (51,)."""
    before = data.texts.embed(data.queries)
    fitted = {method: data.texts.fit(data.prompts, method, LAM) for method in METHODS}
    after = {m: data.texts.under(data.queries, p, keep_stated=False) for m, p in fitted.items()}
    return {method: (before * rows).sum(1).numpy() for method, rows in after.items()}


def floor() -> float:
    """Expected MaxSkew@100 of a random ranking of a pool: the hypergeometric mean of log(2 max(r, 1 - r))."""
    total = comb(2 * PER_GENDER, K)
    chances = [comb(PER_GENDER, x) * comb(PER_GENDER, K - x) / total for x in range(K + 1)]
    return sum(p * log(2 * max(x, K - x) / K) for x, p in enumerate(chances))


def measure(path: Path) -> Result:
    """All figures, with 95 % intervals over the queries."""
    started = time.monotonic()
    data = load(path)
    parts = [evaluate(data, rows) for rows in pools(data.images.column("gender"))]
    n = {"queries": len(data.queries)}
    measured = [
        Measured(TASK, f"{metric}@{K}", better, n, over_pools(parts, data.queries, f"{metric}@{K}"))
        for metric, better in METRICS.items()
    ]
    measured.append(Measured(TASK, "query_cosine", "higher", n, cosines(data)))
    return Result(
        name="real_clip_b32",
        figures=[*(figure for one in measured for figure in figures(one)), _random_ranking()],
        protocols=[_protocol(path, data, parts[0].protocol)],
        versions=versions(),
        commit=commit(),
        seconds=round(time.monotonic() - started, 1),
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


def _protocol(path: Path, data: Real, pool: Protocol) -> Protocol:
    """What one pool did, with what is different for the mean over pools."""
    gender = data.images.column("gender")
    kept = ("k", "prior", "ties", "floor", "queries", "keep_stated")
    return pool.model_copy(
        update={
            "task": TASK,
            "description": (
                f"Skew@{K} over gender, uniform prior, stable ties, mean over queries and pools; cosine of a query "
                "with itself before and after. Intervals: bootstrap over queries, given the images."
            ),
            "title": "Retrieval of professions on real embeddings: gender",
            "prompts_hash": hashlib.sha256(path.read_bytes()).hexdigest()[:16],
            "split": f"CelebA 000001-001000, {POOLS} pools of {PER_GENDER} men and {PER_GENDER} women",
            "seeds": list(range(POOLS)),
            "n": {
                "images": len(data.images),
                "men": gender.counts["male"],
                "queries": len(data.queries),
                "pairs": len(data.prompts.pairs),
                "spurious": len(data.prompts.spurious),
            },
            "settings": {name: pool.settings[name] for name in kept} | {"resample": "queries", "resamples": 2000},
        }
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
