"""Gender skew of retrieval on real CLIP ViT-B/32 embeddings of 1000 CelebA images, before and after each projection.

python -m eval.experiments.real_clip                                         # print the table
python -m eval.experiments.real_clip --json eval/results/real_clip_b32.json  # and write it

See embeddings.py for where the embeddings are read from. Each query is "A photo of {profession}"; MaxSkew@100 over
gender with a uniform prior, mean over 51 queries and over 10 pools of 402 men and 402 women. Pairs are the 32 prompts
with "man" and the same with "woman", spurious prompts "a photo of a man" and "a photo of a woman", lam = 1000. Nothing
is fitted on images, so any method that needs prompts alone can be named.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from eval.experiments.embeddings import LAM, PER_GENDER, Gallery, Sides, celeba, chance, file, protocol
from eval.experiments.run import parser, run
from eval.tables import shows_rows
from vldebias.api import fit_projection
from vldebias.evaluation.result import TaskResult
from vldebias.metrics.rankings import rankings
from vldebias.metrics.skew import log_ratios, ndkls

TASK = "celeba-1000"
METHODS = ("orth", "orth-cali", "cali", "difference")  # difference: P0 of the one direction "man" - "woman"
K, POOLS = 100, 10
UNIFORM = np.array([0.5, 0.5])


def skews(data: Gallery, side: Sides) -> dict[str, np.ndarray]:
    """Metric -> values (q,) of the queries, means over the pools."""
    scores = (side.of_texts(data.texts.embed(data.queries)) @ data.rows.T).numpy()
    pools = []
    for rows in data.pools(range(POOLS)):
        groups = data.gender[rows][rankings(scores[:, rows])]
        highest, lowest = log_ratios(groups, K, UNIFORM), log_ratios(groups, K, UNIFORM, floor=1 / (2 * K))
        pools.append((highest.max(axis=1), lowest.min(axis=1), ndkls(groups, K, UNIFORM)))
    return dict(zip((f"max_skew@{K}", f"min_skew@{K}", f"ndkl@{K}"), np.mean(pools, axis=0), strict=True))


def measure(path: Path, methods: Sequence[str] = METHODS) -> Iterator[TaskResult]:
    """All figures, with 95 % intervals over the queries."""
    data = celeba(path)
    queries = data.texts.embed(data.queries)
    sides = {"none": Sides()}
    sides |= {m: Sides(fit_projection(data.texts.host, data.prompts, method=m, lam=LAM)) for m in methods}
    about = protocol(
        TASK,
        "Retrieval of professions on real embeddings: gender",
        f"Skew@{K} over gender, uniform prior, stable ties, mean over queries and pools; cosine of a query with itself "
        "before and after. Intervals: bootstrap over queries, given the images.",
        {"images": len(data.images), "queries": len(data.queries), "pairs": len(data.prompts.pairs)},
        sides,
        (data.texts, data.prompts),
        split=f"CelebA 000001-001000, {POOLS} pools of {PER_GENDER} men and {PER_GENDER} women",
        seeds=range(POOLS),
        data={"embeddings": data.digest},
        **{"k": K, "prior": "uniform", "ties": "stable", "keep_stated": False, "resample": "queries"},
    )
    done = TaskResult(about)
    measured = {method: skews(data, side) for method, side in sides.items()}
    n = {"queries": len(queries)}
    for metric in measured["none"]:
        done.add_resampled(metric, {method: of[metric] for method, of in measured.items()}, n=n)
    cosines = {method: side.cosines(queries) for method, side in sides.items()}
    done.add_resampled("query_cosine", cosines, n=n)
    value = chance(K, PER_GENDER, PER_GENDER)
    done.add(f"max_skew@{K}", "random ranking", value, n={"pool": 2 * PER_GENDER})
    yield done


SHOWN = [("celeba-1000", "max_skew@100"), ("celeba-1000", "query_cosine")]
shows_rows("docs/results.md", "real_clip_b32", SHOWN)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=file(), help="the embeddings (default: %(default)s)")
    options.add_argument("--methods", nargs="+", default=METHODS, help="names of methods that need prompts alone")
    given = options.parse_args()
    if not given.data.is_file():
        print(f"{given.data}: not found; set VLDEBIAS_REAL to its folder", file=sys.stderr)
        return 2
    run("real_clip_b32", lambda: measure(given.data, given.methods), given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
