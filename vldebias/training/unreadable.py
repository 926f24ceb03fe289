"""What to do about images that cannot be read, hours into a run: stop, or take another row and say so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.training.sampling import numpy_generator

__all__ = ["ATTEMPTS", "OnError", "Unreadable", "readable"]

OnError = Literal["raise", "skip"]
ATTEMPTS = 10  # rows that are tried in place of one; so many in a row mean that something else is wrong

T = TypeVar("T")


@dataclass
class Unreadable:
    """Rows whose image could not be read, id -> reason; it warns of the 1st, 10th, 100th, and by `report` of all."""

    name: str
    reasons: dict[str, str] = field(default_factory=dict)

    def add(self, found: Mapping[str, str]) -> None:
        """Notes rows; one that is met again in another epoch counts once."""
        before = len(self.reasons)
        self.reasons.update(found)
        if _digits(len(self.reasons)) > _digits(before):
            row, reason = next(reversed(self.reasons.items()))
            self._warn(
                f"{self.name}: the image of {row!r} cannot be read ({reason}); another row takes its place "
                f"({len(self.reasons)} so far)"
            )

    def report(self) -> None:
        """Warns of how many there were, with the first ids."""
        if len(self.reasons) > 1:
            first = ", ".join(list(self.reasons)[:5])
            self._warn(f"{self.name}: {len(self.reasons)} images could not be read and were replaced, such as {first}")

    @staticmethod
    def _warn(text: str) -> None:
        warnings.warn(text, VldebiasWarning, stacklevel=4)


def _digits(n: int) -> int:
    return len(str(n)) if n else 0


def readable(
    row: int,
    read: Callable[[int], T],
    *,
    items: int,
    ids: Callable[[int], str],
    on_error: OnError,
    place: tuple[int, int],
) -> tuple[int, T, dict[str, str]]:
    """A row that can be read, what was read, and those that could not be: id -> reason.

    With "skip" the row is replaced by one drawn from all `items` by the generator of (seed, epoch) = `place` and the
    row, so that every process and every resumed run draws the same.

    Raises:
        InvalidInputError: the row cannot be read and on_error is "raise", or neither can `ATTEMPTS` others.
    """
    generator = numpy_generator("replacement", *place, row)
    failed: dict[str, str] = {}
    for _ in range(ATTEMPTS + 1):
        try:
            return row, read(row), failed
        except OSError as error:
            failed[ids(row)] = str(error)
            if on_error == "raise":
                raise InvalidInputError(
                    f"the image of {ids(row)!r} cannot be read: {error}. Mend it, or take other rows in place of such "
                    "ones with on_error='skip'"
                ) from error
            row = int(generator.integers(items))
    first, reason = next(iter(failed.items()))
    raise InvalidInputError(
        f"the image of {first!r} cannot be read ({reason}), nor those of {ATTEMPTS} rows tried in its place; are the "
        "images where the data set says?"
    )
