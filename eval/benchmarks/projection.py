"""What the low rank of the projection saves: each fast path (ours) against its dense twin (plain).

python -m eval.benchmarks.projection                                            # print the table
python -m eval.benchmarks.projection --json eval/results/bench_projection.json  # and write it

Every pair of paths is checked to give the same numbers; `difference` is the largest in value.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from eval.benchmarks.timing import arguments, compared, report
from vldebias.projection import CalibratedProjection, PairScatter

LAM = 1000.0
FITS = [(512, 31, 2), (768, 80, 2), (1024, 100, 10), (2048, 400, 20)]  # d, pairs, spurious
APPLIES = [(512, 33, 1000), (768, 82, 1000), (1024, 110, 1000), (4096, 100, 1000)]  # d, rank, embeddings
GROUPS = [(5, 20), (20, 20), (40, 10)]  # prompts in a group, groups; d = 768
Row = dict[str, Any]


def embeddings(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, generator=generator, dtype=torch.float64), dim=-1)


def dense_matrix(pairs: Tensor, spurious: Tensor, lam: float) -> Tensor:
    """Lemma 7.1 with d x d matrices."""
    eye = torch.eye(pairs.shape[-1], dtype=torch.float64)
    differences = pairs[:, 0] - pairs[:, 1]
    inverse = torch.linalg.inv(eye + lam / len(pairs) * differences.T @ differences)
    p0 = eye - spurious.T @ torch.linalg.pinv(spurious @ spurious.T, hermitian=True) @ spurious
    return p0 @ inverse


def fit(d: int, n_pairs: int, n_spurious: int, repetitions: int) -> Row:
    pairs, spurious = embeddings(n_pairs, 2, d), embeddings(n_spurious, d, seed=1)
    projection, dense = CalibratedProjection(lam=LAM).fit(pairs, spurious), dense_matrix(pairs, spurious, LAM)
    return compared(
        "fit: thin / dense inverse",
        f"d {d}, pairs {n_pairs}, spurious {n_spurious}",
        lambda: CalibratedProjection(lam=LAM).fit(pairs, spurious),
        lambda: dense_matrix(pairs, spurious, LAM),
        repetitions,
        difference=float((projection.matrix() - dense).abs().max()),
    )


def apply(d: int, rank: int, n: int, repetitions: int) -> Row:
    projection = CalibratedProjection(lam=LAM).fit(embeddings(rank, 2, d), None)
    z, matrix = embeddings(n, d, seed=1).float(), projection.matrix().T.float()
    return compared(
        "apply: two thin products / d x d product",
        f"d {d}, rank {projection.rank}, embeddings {n}",
        lambda: projection(z),
        lambda: z @ matrix,
        repetitions,
        difference=float((projection(z) - z @ matrix).abs().max()),
    )


def fit_groups(members: int, n_groups: int, repetitions: int, d: int = 768) -> Row:
    groups = [embeddings(members, d, seed=k) for k in range(n_groups)]
    first, second = zip(*combinations(range(members), 2), strict=True)

    def explicit() -> CalibratedProjection:
        pairs = torch.cat([torch.stack([g[list(first)], g[list(second)]], 1) for g in groups])
        return CalibratedProjection.solve([PairScatter.from_pairs(pairs)], None, LAM)

    def grouped() -> CalibratedProjection:
        return CalibratedProjection.solve([PairScatter.from_groups(groups)], None, LAM)

    return compared(
        "fit: centred scatter / all pairs",
        f"d {d}, {n_groups} groups of {members}, pairs {n_groups * len(first)}",
        grouped,
        explicit,
        repetitions,
        difference=float((grouped().matrix() - explicit().matrix()).abs().max()),
    )


def run(
    fits: Sequence[tuple[int, int, int]] = FITS,
    applies: Sequence[tuple[int, int, int]] = APPLIES,
    groups: Sequence[tuple[int, int]] = GROUPS,
    repetitions: int = 5,
) -> list[Row]:
    """All rows; a difference in value would make them meaningless, so it is checked here."""
    rows = [
        *(fit(*size, repetitions) for size in fits),
        *(apply(*size, repetitions) for size in applies),
        *(fit_groups(*size, repetitions) for size in groups),
    ]
    wrong = [row for row in rows if row["difference"] > (1e-5 if row["what"].startswith("apply") else 1e-8)]
    if wrong:
        raise RuntimeError(f"fast and dense paths differ: {wrong}")
    return rows


if __name__ == "__main__":
    given = arguments(__doc__)
    report("bench_projection", run(repetitions=given.repetitions), given.json)
