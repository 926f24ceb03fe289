"""Can an attribute still be read off features? Two readers out of sample, beside what chance would read.

A linear reader says what a projection can remove; the nearest neighbour says what a search still knows. Balanced
accuracy is the mean over values of the share of rows that is read right, so chance is 1 / |values| whatever their
shares. "Removed" is a claim about the linear reader alone, and holds where its figure is one that permuted labels give.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.data import Labels
from vldebias.diagnostics.folds import Codes, Folds, fold_numbers, unit_rows
from vldebias.errors import InvalidInputError

ASKED, SEARCHED = 5_000, 20_000  # rows that look for their nearest neighbour at most, and rows among which
_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class Readability:
    """How well a reader names a value, out of sample.

    Attributes:
        right: (n,) which rows it names right. codes: (n,) their values. chance: (b,) balanced accuracies of the same
            reader on permuted labels.
    """

    right: NDArray[np.bool_]
    codes: Codes
    chance: NDArray[np.float64]

    @cached_property
    def recalls(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Share of rows named right and number of rows, of each value that occurs."""
        sizes = np.bincount(self.codes)
        there = sizes > 0
        return np.bincount(self.codes, weights=self.right)[there] / sizes[there], sizes[there]

    @property
    def accuracy(self) -> float:
        """Balanced accuracy."""
        return float(self.recalls[0].mean())

    def draws(self, resamples: int, seed: int) -> NDArray[np.float64]:
        """Balanced accuracies (resamples,) of rows that were drawn again within each value."""
        shares, sizes = self.recalls
        drawn = np.random.default_rng(seed).binomial(sizes, shares, (resamples, len(sizes)))
        return np.asarray((drawn / sizes).mean(1))

    @property
    def limit(self) -> float:
        """The balanced accuracy that permuted labels exceed in 2.5 % of cases (normal, from mean and deviation)."""
        return float(self.chance.mean() + 1.96 * self.chance.std(ddof=1))

    @property
    def at_chance(self) -> bool:
        """Whether nothing was read: the figure is one that permuted labels give."""
        return self.accuracy <= self.limit


def readable(
    features: Any, labels: Any, *, folds: int = 5, permutations: int = 20, seed: int = 0
) -> dict[str, Readability]:
    """How well a "linear" reader and the nearest "neighbour" name the labels of features, out of sample.

    The linear reader is the discriminant with a shared covariance and equal priors, its penalty chosen inside of the
    folds that it is fitted on; its cost is linear in n. The neighbour is the one with the largest cosine other than the
    row itself, of at most 5,000 rows drawn among 20,000.

    Args:
        features: (n, d), any length of rows; compared at length 1.
        labels: (n,) values; unknown ones are left out.
        folds: every row is read by a reader of the others. permutations: of labels, for chance.

    Raises:
        InvalidInputError: shapes that do not fit, fewer than two values, or a value with fewer rows than folds.
    """
    rows, codes, classes = known_rows(features, labels)
    if permutations < 2:
        raise InvalidInputError(f"permutations: expected at least 2, got {permutations}")
    rng = np.random.default_rng(seed)
    parts = Folds.of(rows, fold_numbers(codes, folds, seed))
    read = parts.scores(codes, classes, balanced=True).argmax(1).numpy()
    chance = []
    for _ in range(permutations):
        dealt = codes.copy()
        for fold in range(parts.number.max() + 1):  # within it, so that it keeps the sizes of its values
            inside = np.flatnonzero(parts.number == fold)
            dealt[inside] = rng.permutation(codes[inside])
        named = parts.scores(dealt, classes, balanced=True, penalty=1e-2).argmax(1).numpy()
        chance.append(Readability(named == dealt, dealt, np.zeros(2)).accuracy)
    sample = np.sort(rng.permutation(len(codes))[:ASKED])
    nearest = _nearest(rows, sample, np.sort(rng.permutation(len(codes))[:SEARCHED]))
    by_chance = []
    for _ in range(permutations):
        dealt = rng.permutation(codes)
        by_chance.append(Readability(dealt[nearest] == dealt[sample], dealt[sample], np.zeros(2)).accuracy)
    return {
        "linear": Readability(read == codes, codes, np.array(chance)),
        "neighbour": Readability(codes[nearest] == codes[sample], codes[sample], np.array(by_chance)),
    }


def known_rows(features: Any, labels: Any) -> tuple[Tensor, Codes, int]:
    """Unit rows with a known label, their codes, the number of values; `labels` of n rows.

    Raises:
        InvalidInputError: other lengths, or fewer than two values that occur.
    """
    rows, column = unit_rows(features), Labels.of_array(labels)
    if len(rows) != len(column):
        raise InvalidInputError(f"labels: expected {len(rows)}, one for each row of features, got {len(column)}")
    known = column.known
    values = np.unique(column.codes[known])
    if len(values) < 2:
        raise InvalidInputError(f"labels: expected two or more values, got {list(column.names)}")
    codes = np.searchsorted(values, column.codes[known])
    return rows if known.all() else rows[torch.from_numpy(known)], codes, len(values)


def _nearest(rows: Tensor, asked: Codes, among: Codes) -> Codes:
    """For each row that is asked, the row of `among` with the largest cosine, itself left out."""
    gallery, place = rows[torch.from_numpy(among)], {row: i for i, row in enumerate(among.tolist())}
    nearest = []
    for start in range(0, len(asked), _BLOCK):
        some = asked[start : start + _BLOCK]
        cosines = rows[torch.from_numpy(some)] @ gallery.T
        for i, row in enumerate(some.tolist()):
            if row in place:
                cosines[i, place[row]] = -torch.inf
        nearest.append(among[cosines.argmax(1).numpy()])
    return np.concatenate(nearest)
