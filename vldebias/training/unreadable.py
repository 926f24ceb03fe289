"""What to do about images that cannot be read, hours into a run: stop, or take another row and say so."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Literal, TypeVar

from vldebias.errors import InvalidInputError, VldebiasWarning

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
    spares: Iterator[int],
    ids: Callable[[int], str],
    on_error: OnError,
) -> tuple[int, T, dict[str, str]]:
    """A row that can be read, what was read, and those that could not be: id -> reason.

    With "skip" the next of `spares` that can be read takes the place of the row; they must follow from where the row
    stands alone, so that every process and every resumed run takes the same.

    Raises:
        InvalidInputError: the row cannot be read and on_error is "raise", or neither can `ATTEMPTS` spares, or there
            are none.
    """
    failed: dict[str, str] = {}
    for one in chain([row], islice(spares, ATTEMPTS)):
        try:
            return one, read(one), failed
        except OSError as error:
            failed[ids(one)] = str(error)
            if on_error == "raise":
                raise InvalidInputError(
                    f"the image of {ids(one)!r} cannot be read: {error}. Mend it, or take other rows in place of such "
                    "ones with on_error='skip'"
                ) from error
    first, reason = next(iter(failed.items()))
    raise InvalidInputError(
        f"the image of {first!r} cannot be read ({reason}), nor those of {len(failed) - 1} rows tried in its place; "
        "are the images where the data set says?"
    )
