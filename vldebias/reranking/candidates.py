"""Represent the candidates for a query, with their scores, groups and requested shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
UNKNOWN = -1  # Code assigned to candidates whose group is unknown.


@dataclass(frozen=True, eq=False)
class Candidates:
    """Store the candidates for one query, the input to a re-ranking method.

    Attributes:
        scores: scores (n,), higher is better. Equal scores keep the order of the rows.
        codes: group of each candidate (n,) as a position in `names`, or -1 if unknown.
        names: names of the g groups.
        shares: requested shares (g,) of the top results, which sum to 1.
        probabilities: group probabilities (n, g), for methods that use more than the most likely
            group.
        expected_shares: requested shares (g,) of the sum of the probabilities. If None, `shares`.

    >>> import numpy as np
    >>> from vldebias.reranking import quota
    >>> scores, codes = np.array([0.9, 0.8, 0.7, 0.2]), np.array([0, 0, 0, 1])
    >>> candidates = Candidates(scores, codes, ["m", "f"], shares=np.array([0.5, 0.5]))
    >>> quota(candidates, k=2).tolist()
    [0, 3]
    """

    scores: Floats
    codes: NDArray[np.integer]
    names: Sequence[str]
    shares: Floats
    probabilities: Floats | None = None
    expected_shares: Floats | None = None

    def __len__(self) -> int:
        return len(self.scores)

    @cached_property
    def ranked(self) -> Rows:
        """Return the rows (n,), best first, and in ascending order if scores tie."""
        # Sorting and then ordering the ties is faster than a stable sort, unless most scores tie.
        rows = np.argsort(-self.scores)
        scores = self.scores.take(rows)
        is_repeated = np.zeros(len(rows) + 1, dtype=bool)
        is_repeated[1:-1] = scores[1:] == scores[:-1]
        tied = np.flatnonzero(is_repeated[1:] | is_repeated[:-1])
        if len(tied):
            rows[tied] = rows[tied][np.lexsort((rows[tied], -scores[tied]))]
        return rows

    @property
    def statistics(self) -> Floats:
        """Return each candidate's membership in the groups (n, g).

        These are the probabilities, if available, and one-hot vectors otherwise.
        """
        if self.probabilities is not None:
            return self.probabilities
        return (self.codes[:, None] == np.arange(len(self.names))).astype(np.float64)

    def best_of_groups(self, k: int) -> Rows:
        """Return the k best rows of each group and of the unknown group, in ascending order."""
        best = []
        for group in range(UNKNOWN, len(self.names)):
            rows = np.flatnonzero(self.codes == group)
            best.append(rows[best_rows(self.scores[rows], k)])
        return np.sort(np.concatenate(best))

    def subset(self, rows: Rows) -> Candidates:
        """Return a subset of the candidates, in the order of `rows`."""
        return Candidates(
            self.scores[rows],
            self.codes[rows],
            self.names,
            self.shares,
            None if self.probabilities is None else self.probabilities[rows],
            self.expected_shares,
        )


def best_rows(scores: Floats, k: int) -> Rows:
    """Return the k rows with the highest scores, in ascending order of their positions.

    If scores tie, earlier rows are preferred. Scores are partitioned instead of sorted, so the cost
    is linear in n.

    Args:
        scores: the candidates' scores (n,).
        k: number of rows.
    """
    if k >= len(scores):
        return np.arange(len(scores))
    # Select the rows above the k-th highest score, and fill the remaining places with rows that
    # equal it.
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    is_selected = scores > threshold
    tied = np.flatnonzero(scores == threshold)
    is_selected[tied[: k - int(is_selected.sum())]] = True
    return np.flatnonzero(is_selected)


def as_floats(values: object, name: str) -> Floats:
    """Convert an array, a list, or a tensor on any device to float64.

    Args:
        values: the numbers to convert.
        name: argument name, for messages.

    Raises:
        InvalidInputError: If the values are not numbers.
    """
    array: object = values
    if hasattr(values, "detach"):
        tensor: Any = values.detach().cpu()
        array = (tensor if tensor.is_complex() else tensor.double()).numpy()
    try:
        numbers = np.asarray(array)
        # Reject complex numbers, of which NumPy would only keep the real parts.
        if np.iscomplexobj(numbers):
            raise TypeError
        return numbers.astype(np.float64, copy=False)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{name}: expected numbers, got {str(array)[:60]}") from None


def unit_products(features: object, directions: Floats) -> Floats:
    """Return the products (n, m) of rows scaled to norm 1 with some directions.

    float32 rows are multiplied in float32, because converting them would take longer than the
    product. Products are rounded, so that identical rows tie regardless of the summation order.

    Args:
        features: features (n, d). Rows that are zero, NaN or infinite have NaN products.
        directions: directions (m, d), such as the unit text embeddings of the groups.

    Raises:
        InvalidInputError: If the features do not have shape (n, d).
    """
    rows: NDArray[np.floating]
    is_float32 = isinstance(features, np.ndarray) and features.dtype == np.float32
    rows = np.asarray(features) if is_float32 else as_floats(features, "features")
    if rows.ndim != 2:
        raise InvalidInputError(f"features: expected (n, d), got shape {rows.shape}")
    if rows.shape[1] != directions.shape[1]:
        raise InvalidInputError(
            f"features: got width {rows.shape[1]}, but the model's texts have width"
            f" {directions.shape[1]}; expected the same model for both"
        )
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", rows, rows))
        products = (rows @ directions.T.astype(rows.dtype)).astype(np.float64) / lengths[:, None]
    products[~(np.isfinite(lengths) & (lengths > 0))] = np.nan
    return products.round(6 if is_float32 else 12)
