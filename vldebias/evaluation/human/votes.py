"""From the answers of people to counts per image, and from counts to the measures of section 7.6.3."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.evaluation.human.log import CANNOT_TELL, NO_PERSON

__all__ = ["NO_MAJORITY", "VOTES", "Counts", "Measure", "count_votes", "measures", "options"]

NO_MAJORITY = "no majority"
VOTES = ("majority", "each")

Counts = NDArray[np.float64]  # (..., c): how often each of `options` was said
Measure = Callable[[Counts], NDArray[np.float64]]


def options(names: Sequence[str]) -> tuple[str, ...]:
    """What the columns of counts stand for: the values of the attribute, then the three ways to be unknown."""
    return (*names, CANNOT_TELL, NO_PERSON, NO_MAJORITY)


def count_votes(table: NDArray[np.int64], n_names: int, votes: str = "majority") -> Counts:
    """Counts (images, c) from codes (annotators, images) as of `Annotations.table`; a row of zeros was not labelled.

    votes: "majority": one count per image, for what most annotators said; a tie is "no majority".
        "each": one count per answer, so an image that three people labelled weighs three times.

    Raises:
        InvalidInputError: another way to vote.
    """
    if votes not in VOTES:
        raise InvalidInputError(f"votes: expected one of {', '.join(VOTES)}, got {votes!r}")
    codes = np.arange(n_names + 2)
    said = (table[:, :, None] == codes).sum(0).astype(np.float64)
    undecided = np.zeros((len(said), 1))
    if votes == "each":
        return np.concatenate([said, undecided], axis=1)
    most = said.max(1, keepdims=True)
    winners = (said == most) & (most > 0)
    tie = winners.sum(1, keepdims=True) > 1
    return np.concatenate([winners & ~tie, tie], axis=1).astype(np.float64)


def measures(names: Sequence[str]) -> list[tuple[str, str, str, Measure]]:
    """(metric, subset, better, function from counts (..., c) to values (...)) of each measure.

    discrepancy: eq. 7.2 among the answers that name a value; where there is none it has its maximum
    sqrt(1 - 1 / |A|). unknown: share of all answers that name no value, and its three kinds. share: of all answers,
    so that shares and unknown add up to 1.
    """
    k = len(names)
    found: list[tuple[str, str, str, Measure]] = [
        ("discrepancy", "", "lower", lambda counts: _discrepancy(counts[..., :k])),
        ("unknown", "", "lower", lambda counts: _share(counts, slice(k, None))),
    ]
    kinds = ("cannot_tell", "no_person", "no_majority")
    found += [(kind, "", "lower", _part(slice(k + i, k + i + 1))) for i, kind in enumerate(kinds)]
    return found + [("share", name, "neither", _part(slice(i, i + 1))) for i, name in enumerate(names)]


def _part(columns: slice) -> Measure:
    return lambda counts: _share(counts, columns)


def _share(counts: Counts, columns: slice) -> NDArray[np.float64]:
    return counts[..., columns].sum(-1) / counts.sum(-1)


def _discrepancy(counts: Counts) -> NDArray[np.float64]:
    known, uniform = counts.sum(-1, keepdims=True), 1 / counts.shape[-1]
    shares = np.divide(counts, known, out=np.zeros_like(counts), where=known > 0)
    distance = np.sqrt(((shares - uniform) ** 2).sum(-1))
    return np.where(known[..., 0] > 0, distance, np.sqrt(1 - uniform))
