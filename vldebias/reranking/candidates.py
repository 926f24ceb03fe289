"""Represent the candidates for a query, with their scores, groups and requested shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, warn_of_input
from vldebias.utils.arrays import refuse_masked

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]
UNKNOWN = -1  # Code assigned to candidates whose group is unknown.
_SMALLEST = 1e-30  # squared norm below which a row is scaled before its norm is computed


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
        is_near: mask (n,) of the candidates that are near the border of their group, or None if
            the groups are certain.
        near_shares: share (g,) of each group's places for candidates near the border.

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
    is_near: Mask | None = None
    near_shares: Floats | None = None

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

    def subset(self, rows: Rows) -> Candidates:
        """Return a subset of the candidates, in the order of `rows`."""
        return replace(
            self,
            scores=self.scores[rows],
            codes=self.codes[rows],
            probabilities=None if self.probabilities is None else self.probabilities[rows],
            is_near=None if self.is_near is None else self.is_near[rows],
        )


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
    refuse_masked(values, name)
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
    refuse_masked(features, "features")
    rows = np.asarray(features) if is_float32 else as_floats(features, "features")
    if rows.ndim != 2:
        raise InvalidInputError(f"features: expected (n, d), got shape {rows.shape}")
    if rows.shape[1] != directions.shape[1]:
        raise InvalidInputError(
            f"features: got width {rows.shape[1]}, but the model's texts have width"
            f" {directions.shape[1]}; expected the same model for both"
        )
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        squares = np.einsum("nd,nd->n", rows, rows)
        # The squares of very large or very small numbers overflow, so scale such rows first.
        is_extreme = ~((squares > _SMALLEST) & (squares < np.inf))
        if is_extreme.any():
            rows = np.where(
                is_extreme[:, None], rows / np.abs(rows).max(axis=1, keepdims=True), rows
            )
            squares = np.einsum("nd,nd->n", rows, rows)
        products = (rows @ directions.T.astype(rows.dtype)).astype(np.float64)
        products /= np.sqrt(squares)[:, None]
    products[~np.isfinite(squares)] = np.nan
    return products.round(6 if is_float32 else 12)


def warn_of_rows(is_broken: Mask, name: str, problem: str) -> None:
    """Warn once about rows that cannot be used.

    Args:
        is_broken: mask (n,) of these rows.
        name: argument name.
        problem: what is wrong with them, such as "are NaN".
    """
    if is_broken.any():
        warn_of_input(
            f"{name}: {int(is_broken.sum()):,} of {len(is_broken):,} rows {problem}, the first in"
            f" row {int(is_broken.argmax())}; their group is unknown, so they keep their places",
        )
