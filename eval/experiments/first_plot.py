"""Count women among the first results of a real CLIP, before and after re-ranking by gender.

    python -m eval.experiments.first_plot --json eval/results/first_plot.json

The gallery is 804 faces of CelebA (CLIP ViT-B/32), and the queries are "A photo of {profession}"
for 51 professions. `vldebias.rerank` gets no labels. Labels are only used to count women, and for
`true labels`, the same order with the labels of all faces. `cali` is the paper's projection of the
queries (`vldebias.fit_projections`), without re-ranking. The faces are in $VLDEBIAS_REAL and not
part of the project. The result has the counts for each profession, and no row for a face.

"surplus" is how many of the first 20 results are too many of one gender: their number of women
minus that expected from the gallery. A random order has a surplus, too.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

import vldebias
from eval.experiments import embeddings
from eval.photographs import is_present
from eval.tables import parser, run
from vldebias.measure.resampling import resampled_values
from vldebias.measure.rows import NONE, TaskProvenance, TaskResult
from vldebias.metrics import Metric

K = 20
SEED = 0
RESAMPLES = 2000
RERANK = "rerank"
CALI = "cali"
TRUE_LABELS = "true labels"
RANDOM = "random order"
SURPLUS = Metric("surplus@20", "results too many of one gender, of the first 20", "bias", "lower")
STAY = Metric("stay@20", "share of the first 20 results that stay", "similarity")
WORSE = Metric("queries_worse", "share of the queries whose surplus grows", "fact", "lower")
# The gallery and its number of women and men.
GALLERIES = {"half women": (402, 402), "one woman in five": (100, 402)}

Rows = NDArray[np.int64]


def searches(gallery: embeddings.Gallery, rows: Rows) -> dict[str, dict[str, Rows]]:
    """Return the first 20 rows of the gallery for each method and query."""
    features = gallery.rows[rows].numpy()
    genders = np.array(["male", "female"])[gallery.gender[rows]].tolist()
    rng = np.random.default_rng(SEED)
    edit = vldebias.fit_projections(gallery.texts, gallery.prompt_set, method=CALI).only
    methods = (NONE, RERANK, TRUE_LABELS, CALI, RANDOM)
    found: dict[str, dict[str, Rows]] = {name: {} for name in methods}
    for query in gallery.queries:
        scores = features @ np.asarray(gallery.texts.rows[query], dtype=float)
        found[NONE][query] = np.argsort(-scores, kind="stable")[:K]
        found[RERANK][query] = vldebias.rerank(
            scores, K, features=features, attribute=gallery.prompt_set, model=gallery.texts
        )
        found[TRUE_LABELS][query] = vldebias.rerank(scores, K, labels=genders)
        edited = edit(torch.as_tensor(gallery.texts.rows[query])[None].double())[0].numpy()
        found[CALI][query] = np.argsort(-features @ edited, kind="stable")[:K]
        found[RANDOM][query] = rng.permutation(len(rows))[:K]
    return found


def measure_gallery(gallery: embeddings.Gallery, name: str) -> TaskResult:
    """Count women among the first results, for each query and method."""
    women, men = GALLERIES[name]
    rng = np.random.default_rng(SEED)
    rows = np.concatenate(
        [
            rng.choice(np.flatnonzero(gallery.gender == code), size, replace=False)
            for code, size in ((0, men), (1, women))
        ]
    )
    is_woman = gallery.gender[rows] == 1
    found = searches(gallery, rows)
    counts = {
        method: np.array([int(is_woman[first].sum()) for first in results.values()])
        for method, results in found.items()
    }
    stay = {
        method: np.array(
            [len(np.intersect1d(first, found[NONE][q])) for q, first in results.items()]
        )
        for method, results in found.items()
    }
    n = {"queries": len(gallery.queries), "images": len(rows)}
    result = TaskResult(
        TaskProvenance(
            task=name,
            title=f"First {K} results, {name}",
            description=(
                f"Women among the first {K} of {len(rows)} faces of CelebA ({name}), for"
                f" {len(gallery.queries)} professions; intervals over professions."
            ),
            model="CLIP ViT-B/32 openai",
            methods={TRUE_LABELS: {"uses_labels": True}},
            seeds=[SEED],
            n=n,
            settings={
                "k": K,
                "women": {
                    query: [int(counts[method][i]) for method in (NONE, RERANK)]
                    for i, query in enumerate(gallery.queries)
                },
            },
        )
    )
    surplus = {method: np.abs(count - K * is_woman.mean()) for method, count in counts.items()}
    values, draws = resampled_values(surplus, resamples=RESAMPLES, seed=SEED)
    for method in found:
        low, high = np.quantile(draws[method], (0.025, 0.975))
        change = None
        if method != NONE:
            moved = np.quantile(draws[method] - draws[NONE], (0.025, 0.975))
            change = (values[method] - values[NONE], *moved)
        result.add(SURPLUS, method, values[method], (low, high), n=n, change=change)
        result.add(STAY, method, float(stay[method].mean() / K), n=n)
        result.add(WORSE, method, float((surplus[method] > surplus[NONE]).mean()), n=n)
    return result


def measure() -> Iterator[TaskResult]:
    """Measure both galleries."""
    gallery = embeddings.celeba()
    for name in GALLERIES:
        yield measure_gallery(gallery, name)


def main() -> None:
    """Measure, unless the faces are missing."""
    path = parser(__doc__).parse_args().json
    if not is_present(embeddings.FILE):
        sys.exit(f"SKIPPED: {embeddings.FILE} was not found; set VLDEBIAS_REAL to its folder")
    run("first_plot", measure, path)


if __name__ == "__main__":
    main()
