"""Skew of a ranking: are the first k results spread over the groups as they should be?

Source: Geyik et al., "Fairness-Aware Ranking in Search & Recommendation Systems" (2019), with the uniform prior that
Berg et al. (2022) and chapter 7 of the thesis use for retrieval. Papers differ in prior, ties and empty groups, so
all three are visible here: the prior is a parameter, ties keep the order of the rows, an empty share is raised to
`floor`. All values are in nats and hold for one query; the figures of papers are means over queries, and
`vldebias.metrics.rankings` has many rankings at once.
"""

from __future__ import annotations

import numpy as np

from vldebias.errors import InvalidInputError
from vldebias.metrics.arrays import Values, codes, vector, vectors

__all__ = ["max_skew", "min_skew", "ndkl"]


def max_skew(
    scores: Values,
    groups: Values,
    k: int,
    *,
    prior: str | Values = "uniform",
    floor: float = 0.0,
    n_groups: int | None = None,
) -> float:
    """MaxSkew@k = max_a log(r_{a,k} / p_a), with r_{a,k} the share of group a among the k highest scores; 0 is fair.

    Args:
        scores: (n,), one per row, higher is ranked first; equal scores keep the order of the rows.
        groups: (n,) labels.
        k: rows that are looked at, 1 <= k <= n.
        prior: p_a: "uniform" (1 / number of groups), "dataset" (shares among all n rows), or shares (n_groups,) in
            the order of the sorted labels.
        floor: shares r_{a,k} below it count as `floor`.
        n_groups: number of groups where some may not occur; labels are then 0 .. n_groups - 1.

    Raises:
        InvalidInputError: shapes, k > n, a prior that is no distribution or gives a group nothing.

    >>> max_skew([0.9, 0.8, 0.7, 0.1], [0, 0, 1, 1], k=2)  # log 2: one group where there should be two
    0.6931471805599453
    """
    return float(_log_ratios(scores, groups, k, prior, floor, n_groups).max())


def min_skew(
    scores: Values,
    groups: Values,
    k: int,
    *,
    prior: str | Values = "uniform",
    floor: float = 0.0,
    n_groups: int | None = None,
) -> float:
    """MinSkew@k = min_a log(r_{a,k} / p_a) <= 0: how far the worst served group falls short.

    With floor = 0 it is -inf where a group is missing from the first k; a floor such as 1 / (2 k) keeps means over
    queries finite. Arguments and Raises: see `max_skew`.
    """
    return float(_log_ratios(scores, groups, k, prior, floor, n_groups).min())


def ndkl(
    scores: Values,
    groups: Values,
    k: int | None = None,
    *,
    prior: str | Values = "uniform",
    n_groups: int | None = None,
) -> float:
    """NDKL = 1/Z sum_{i=1}^{k} KL(r_{.,i} || p) / log2(i + 1), Z = sum_i 1 / log2(i + 1); 0 is fair.

    k: length of the ranking that is looked at; None for all n rows. Other arguments and Raises: see `max_skew`.
    """
    names, ranked, p = _ranking(scores, groups, prior, n_groups)
    k = _check_k(len(ranked) if k is None else k, len(ranked))
    places = np.arange(1, k + 1)
    shares = np.cumsum(ranked[:k, None] == np.arange(len(names)), axis=0) / places[:, None]
    logs = np.log(np.where(shares > 0, shares, 1.0) / p)  # 0 log 0 = 0
    discount = 1 / np.log2(places + 1)
    return float(discount @ (shares * logs).sum(1) / discount.sum())


def _log_ratios(
    scores: Values, groups: Values, k: int, prior: str | Values, floor: float, n_groups: int | None
) -> np.ndarray:
    """log(max(r_{a,k}, floor) / p_a) for each group a."""
    if not 0 <= floor <= 1:
        raise InvalidInputError(f"floor: expected a share in [0, 1], got {floor}")
    names, ranked, p = _ranking(scores, groups, prior, n_groups)
    shares = np.bincount(ranked[: _check_k(k, len(ranked))], minlength=len(names)) / k
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(shares, floor) / p)


def _ranking(
    scores: Values, groups: Values, prior: str | Values, n_groups: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Names of the groups, group codes in the order of the ranking, and the prior."""
    score, group = vectors(scores=scores, groups=groups)
    names, index = codes(group, n_groups)
    order = np.argsort(-score.astype(np.float64), kind="stable")
    return names, index[order], _prior(prior, names, index)


def _check_k(k: int, n: int) -> int:
    if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= n:
        raise InvalidInputError(f"k: expected an integer between 1 and the {n} rows that are ranked, got {k!r}")
    return int(k)


def _prior(prior: str | Values, names: np.ndarray, index: np.ndarray) -> np.ndarray:
    if isinstance(prior, str):
        if prior not in ("uniform", "dataset"):
            raise InvalidInputError(f"prior: expected 'uniform', 'dataset' or an array of shares, got {prior!r}")
        counts = np.ones(len(names)) if prior == "uniform" else np.bincount(index, minlength=len(names))
        shares = counts / counts.sum()
    else:
        shares = vector(prior, "prior").astype(np.float64)
    if len(shares) != len(names) or (shares <= 0).any() or abs(shares.sum() - 1) > 1e-6:
        raise InvalidInputError(
            f"prior: expected {len(names)} positive shares that sum to 1, for the groups {names.tolist()}, "
            f"got {shares.tolist()}; leave out groups that cannot occur"
        )
    return shares
