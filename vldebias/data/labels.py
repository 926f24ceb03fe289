"""Labels of rows: codes with names, read from columns as people have them, and what in a column looks like a slip."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.errors import InvalidInputError

UNKNOWN = -1  # a code, never a value: -1 in a column of numbers is a value as 0 and 1 are

_FEW, _MANY = 5, 100  # rows of a group; groups of a column
_ABSENT = ("nan", "NaN", "NAN", "None", "<NA>", "NaT", "null", "NULL", "N/A", "n/a")  # how programs write nothing
_NOT_KNOWN = ("unknown", "unk", "unclear", "undetermined", "not known", "?")  # how people write it, in any case
_MARKS = ("255", "65535", "99", "999", "9999", "-9", "-99", "-100", "-999")  # how tables write unknown beside codes


@dataclass(frozen=True, eq=False)
class Labels:
    """Labels of rows: codes (n,) int64 in 0 .. len(names) - 1, or UNKNOWN; a name may have no row.

    Raises:
        InvalidInputError: codes that are not (n,) integers or have no name, a name twice.
    """

    codes: NDArray[np.int64]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        if codes.ndim != 1 or codes.dtype.kind not in "iub":
            raise InvalidInputError(f"labels: expected integer codes (n,), got {codes.shape} of {codes.dtype}")
        if len(set(self.names)) != len(self.names):
            raise InvalidInputError(f"labels: a name stands twice in {list(self.names)}")
        if len(codes) and not (codes.min() >= UNKNOWN and codes.max() < len(self.names)):
            outside = np.unique(codes[(codes < UNKNOWN) | (codes >= len(self.names))])[:8].tolist()
            raise InvalidInputError(
                f"labels: expected codes {UNKNOWN} (unknown) .. {len(self.names) - 1} for {list(self.names)}, "
                f"got {outside}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int64))
        object.__setattr__(self, "names", tuple(self.names))

    @classmethod
    def of(cls, values: Iterable[Any], names: Sequence[str] | None = None) -> Labels:
        """Labels from one value per row; None, NaN and "" are unknown.

        names: the values that may occur, in their order; by default those that do, sorted.

        Raises:
            InvalidInputError: a value that is not among `names`.
        """
        texts = ["" if _absent(value) else _text(value) for value in values]
        known = tuple(names) if names is not None else tuple(sorted(set(texts) - {""}))
        code = {name: i for i, name in enumerate(known)} | {"": UNKNOWN}
        strangers = sorted(set(texts) - set(code))
        if strangers:
            raise InvalidInputError(f"labels: expected one of {list(known)}, got {strangers[:8]}")
        return cls(np.array([code[text] for text in texts], dtype=np.int64), known)

    @classmethod
    def of_array(cls, values: Any, names: Sequence[str] | None = None, *, unknown: Any = ()) -> Labels:
        """Labels of a column (n,) as people have it: a numpy array, a torch tensor, a list, a column of pandas.

        Strings are names. Booleans are "no" and "yes". Whole numbers stand for themselves, -1 as well, in the order of
        numbers. None, NaN and "" are unknown, and what `unknown` names.

        Args:
            names: what the numbers 0 .. k - 1 of the column mean, which are codes then: -1 is unknown.
            unknown: a value that means "not known", such as -1, or several.

        Raises:
            InvalidInputError: something else, or a value that is not among `names`.
        """
        if isinstance(values, Labels):
            return values.without(unknown)
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.ndim != 1:
            raise InvalidInputError(f"labels: expected strings or integers (n,), got {array.shape} of {array.dtype}")
        if array.dtype.kind == "O":  # None and NaN beside texts or numbers
            cells = [None if _absent(value) else value for value in array.tolist()]
            if any(isinstance(value, (str, bytes)) for value in cells):
                return cls.of(cells, names).without(unknown)
            array = np.array([np.nan if value is None else value for value in cells])
        if array.dtype.kind in "SUO":
            return cls.of(array.tolist(), names).without(unknown)
        known = np.ones(len(array), dtype=bool)
        if array.dtype.kind == "f" and np.all(np.isnan(array) | (array == np.round(array)) & np.isfinite(array)):
            known = ~np.isnan(array)
            array = np.where(known, array, 0).astype(np.int64)
        if array.dtype.kind not in "iub":
            raise InvalidInputError(
                f"expected strings or integers, got {array.dtype}; of scores take the class, such as scores > 0"
            )
        if names is not None:
            return cls(np.where(known, array.astype(np.int64), UNKNOWN), tuple(names)).without(unknown)
        if array.dtype.kind == "b":
            return cls(array.astype(np.int64), ("no", "yes"))
        different = np.unique(array[known])
        codes = np.where(known, np.searchsorted(different, array), UNKNOWN)
        return cls(codes, tuple(map(str, different.tolist()))).without(unknown)

    @classmethod
    def joined(cls, parts: Sequence[Labels]) -> Labels:
        """The labels of parts one below the other; names in the order in which the parts have them."""
        names = tuple(dict.fromkeys(name for one in parts for name in one.names))
        at = {name: i for i, name in enumerate(names)}
        code = [np.array([*(at[name] for name in one.names), UNKNOWN], dtype=np.int64) for one in parts]
        codes = [of[one.codes] for of, one in zip(code, parts, strict=True)]
        return cls(np.concatenate(codes) if codes else np.empty(0, dtype=np.int64), names)

    def without(self, unknown: Any) -> Labels:
        """The same rows with one value, or several, as unknown; numbers are compared as they are written."""
        several = isinstance(unknown, Iterable) and not isinstance(unknown, (str, bytes))
        marks = {_text(value) for value in (unknown if several else [unknown])}
        kept = tuple(name for name in self.names if name not in marks)
        if len(kept) == len(self.names):
            return self
        code = np.array([kept.index(name) if name in kept else UNKNOWN for name in self.names] + [UNKNOWN])
        return Labels(code[self.codes], kept)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: ArrayLike | slice) -> Labels:
        """The labels of some rows: a slice, indices or a mask."""
        return Labels(self.codes[rows if isinstance(rows, slice) else np.asarray(rows)], self.names)

    @property
    def known(self) -> NDArray[np.bool_]:
        """(n,) mask of the rows that have a label."""
        return self.codes != UNKNOWN

    @property
    def counts(self) -> dict[str, int]:
        """Rows of each name, in the order of the names; unknown rows are left out."""
        rows = np.bincount(self.codes[self.known], minlength=len(self.names))
        return dict(zip(self.names, rows.tolist(), strict=True))

    def __repr__(self) -> str:
        return f"Labels({len(self)} rows, {self.counts}, {int((~self.known).sum())} unknown)"


def _absent(value: Any) -> bool:
    """Whether a cell is empty; NAType and NaTType are how pandas writes it."""
    nothing = type(value).__name__ in ("NoneType", "NAType", "NaTType")
    return nothing or (isinstance(value, (float, np.floating)) and bool(value != value))


def _text(value: Any) -> str:
    """A value as the name of a label."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"expected strings or bytes of UTF-8, got {value[:40]!r}: {error}") from None


def cross(*labels: Labels) -> Labels:
    """Intersections, such as "landbird/water" or "female/black"; unknown where one of the labels is.

    The code is row-major: for two labels code = first.code * len(second.names) + second.code.

    Raises:
        InvalidInputError: none given, or of different lengths.
    """
    if not labels or len({len(one) for one in labels}) > 1:
        raise InvalidInputError(f"cross: expected labels of one length, got lengths {[len(one) for one in labels]}")

    def pair(a: Labels, b: Labels) -> Labels:
        codes = np.where(a.known & b.known, a.codes * len(b.names) + b.codes, UNKNOWN)
        return Labels(codes, tuple(f"{x}/{y}" for x in a.names for y in b.names))

    return reduce(pair, labels)


def doubts(labels: Labels) -> list[str]:
    """What about a column of groups is plausible and probably not meant, each as came and remedy; mostly nothing.

    Values that differ by case or blanks alone, texts and numbers that stand for an empty cell, so many groups that they
    are no groups, and groups of fewer than five rows.
    """
    rows = {name: n for name, n in labels.counts.items() if n}
    if len(rows) > _MANY:
        return [
            f"{len(rows)} groups in {sum(rows.values())} rows, such as {', '.join(map(repr, list(rows)[:3]))}; "
            "row numbers and scores are no groups: give the values of the attribute"
        ]
    problems, alike = [], defaultdict(list)
    for name in rows:
        alike[" ".join(name.split()).casefold()].append(name)
    for names in alike.values():
        if len(names) > 1:
            problems.append(f"{' and '.join(map(repr, names))} differ by case or blanks alone; write them alike")
    numbers = [int(name) for name in rows if re.fullmatch(r"-?\d+", name)]
    of_numbers = (*_MARKS, "-1") if "0" in rows else _MARKS  # codes of pandas; -1 and 1 alone are values
    codes = len(numbers) == len(rows) and all(0 <= n <= 50 or str(n) in of_numbers for n in numbers)
    marks = [n for n in rows if n in _ABSENT or n.casefold() in _NOT_KNOWN or (codes and n in of_numbers)]
    if marks and len(marks) < len(rows):
        problems.append(
            f"a group of its own for {' and for '.join(map(repr, marks))}; say unknown={marks[0]!r} if it is none"
        )
    few = [f"{name!r} ({n})" for name, n in rows.items() if n < _FEW and name not in marks]
    if few:
        shown = ", ".join(few[:5]) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
        problems.append(f"groups of fewer than {_FEW} rows: {shown}; mend the value, leave the rows out, or add images")
    return problems
