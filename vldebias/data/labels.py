"""Represent labels of rows as codes and names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.tables import as_texts
from vldebias.errors import InvalidInputError, Lazily

if TYPE_CHECKING:
    import pyarrow as pa
pd = Lazily("pandas")

UNKNOWN = -1  # a code, never a value: -1 in a column of numbers is a value as 0 and 1 are
# Names of a column in their order, or value in the table -> name; None for the values that occur,
# sorted.
Names = Sequence[str] | Mapping[str, str] | None
# Columns that become labels: their names, or name here -> name in the table.
ColumnNames = Sequence[str] | Mapping[str, str]
# More names than this on more than half of the rows are no labels but ids or captions.
_MOST_NAMES = 1000


@dataclass(frozen=True, eq=False)
class Labels:
    """Hold labels of rows: codes (n,) int64 in 0 .. len(names) - 1, or UNKNOWN; a name may have no
    row.

    Raises:
        InvalidInputError: codes that are not (n,) integers or have no name, a name twice.
    """

    codes: NDArray[np.int64]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        names = tuple(self.names)
        if codes.ndim != 1 or codes.dtype.kind not in "iub":
            raise InvalidInputError(
                f"labels: expected integer codes (n,), got {codes.shape} of {codes.dtype}"
            )
        if len(set(names)) != len(names):
            raise InvalidInputError(f"labels: expected different names, got {list(names)}")
        is_outside = (codes < UNKNOWN) | (codes >= len(names))
        if is_outside.any():
            raise InvalidInputError(
                f"labels: expected codes {UNKNOWN} (unknown) .. {len(names) - 1} for {list(names)},"
                f" got {np.unique(codes[is_outside])[:8].tolist()}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int64))
        object.__setattr__(self, "names", names)

    @classmethod
    def from_values(cls, values: Iterable[Any], names: Sequence[str] | None = None) -> Labels:
        """Return labels from one value per row; None, NaN and "" are unknown.

        Args:
            values: one for each row.
            names: the values that may occur, in their order; others are refused. None: those that
                occur, sorted.
        """
        texts = [cls.text_of(value) for value in values]
        if names is None:
            names = sorted(set(texts) - {""})
        code_of_name = {name: code for code, name in enumerate(names)} | {"": UNKNOWN}
        strangers = sorted(set(texts) - set(code_of_name))
        if strangers:
            raise InvalidInputError(f"labels: expected one of {list(names)}, got {strangers[:8]}")
        codes = [code_of_name[text] for text in texts]
        return cls(np.array(codes, dtype=np.int64), tuple(names))

    @classmethod
    def from_array(cls, values: Any, names: Sequence[str] | None = None) -> Labels:
        """Return labels of a column (n,): a numpy array, a tensor, a list, or a column of pandas.

        Booleans are "no" and "yes"; whole numbers stand for themselves, -1 as well. None, NaN and
        "" are unknown.

        Args:
            values: the column.
            names: what the numbers 0 .. k - 1 of the column mean, which are then codes: -1 is
                unknown.

        Raises:
            InvalidInputError: something else, or a value that is not among `names`.
        """
        if isinstance(values, Labels):
            return values
        try:
            array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        except ValueError:
            raise InvalidInputError(
                "labels: expected strings or integers (n,), got lists of different lengths"
            ) from None
        if array.ndim != 1:
            raise InvalidInputError(
                f"labels: expected strings or integers (n,), got {array.shape} of {array.dtype}"
            )
        if array.dtype.kind in "SU":
            # Each different text is read once. A set instead of sorting n texts; in blocks, since
            # each text becomes a Python object.
            different_texts: set[Any] = set()
            for block in np.array_split(array, 1 + len(array) // 65536):
                different_texts |= set(block.tolist())
            texts = sorted(different_texts)
            labels = cls.from_values(texts, names)
            places = np.searchsorted(np.array(texts, array.dtype), array)
            return cls(labels.codes[places], labels.names)
        # Whole numbers with gaps between them come as floats or objects.
        column = pd.Series(array).convert_dtypes()
        if column.dtype.kind == "O":
            return cls.from_values(array.tolist(), names)
        if column.dtype.kind not in "iub":
            raise InvalidInputError(
                f"expected strings or integers, got {array.dtype}; of scores take the class, such"
                " as scores > 0"
            )
        if column.dtype.kind == "b" and names is None:
            names = ("no", "yes")
        if names is not None:
            return cls(column.astype("Int64").fillna(UNKNOWN).to_numpy(np.int64), tuple(names))
        codes, different = pd.factorize(column, sort=True)
        return cls(codes, tuple(map(str, different.tolist())))

    @classmethod
    def from_column(cls, column: pa.Array, names: Names, where: str, unknown: Any = ()) -> Labels:
        """Return labels of a column of a table; empty and missing values, and those in `unknown`,
        are unknown.

        Space around a value does not count.

        Args:
            column: the column.
            names: the values, or code in the table -> name; None: those that occur.
            where: name of the table, for messages.
            unknown: further values that mean unknown.
        """
        texts = [text.strip() for text in as_texts(column, where)]
        labels = cls.from_values(texts).without(unknown)
        if names is None:
            if len(labels.names) > max(_MOST_NAMES, len(labels) // 2):
                raise InvalidInputError(
                    f"{where}: {len(labels.names)} values in {len(labels)} rows; expected a label"
                )
            return labels
        name_of_value = {str(value): str(name) for value, name in mapped_columns(names).items()}
        unnamed = sorted(set(labels.names) - set(name_of_value))
        if unnamed:
            raise InvalidInputError(
                f"{where}: expected one of {list(name_of_value)}, got {unnamed[:8]}"
            )
        new_names = list(dict.fromkeys(name_of_value.values()))
        new_codes = [new_names.index(name_of_value[value]) for value in labels.names]
        new_codes.append(UNKNOWN)  # which the code -1 reads
        return cls(np.array(new_codes, dtype=np.int64)[labels.codes], tuple(new_names))

    @staticmethod
    def text_of(value: Any) -> str:
        """Return a value as the name of a label, "" where it is empty."""
        if not isinstance(value, str) and pd.isna(value) is True:  # importing pandas takes a second
            return ""
        # 1.0, of a column with gaps, is the label 1 of a column without.
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            value = int(value)
        if not isinstance(value, bytes):
            return str(value)
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"expected strings or bytes of UTF-8, got {value[:40]!r}: {error}"
            ) from None

    def without(self, unknown: Any) -> Labels:
        """Return the same rows with one or several values set to unknown; numbers are compared as
        written."""
        is_text = isinstance(unknown, (str, bytes))
        if is_text or not isinstance(unknown, Iterable):
            unknown = [unknown]
        unknown_names = {self.text_of(value) for value in unknown}
        kept = tuple(name for name in self.names if name not in unknown_names)
        code_of_name = {name: code for code, name in enumerate(kept)}
        new_codes = [code_of_name.get(name, UNKNOWN) for name in self.names]
        new_codes.append(UNKNOWN)  # which the code -1 reads
        return Labels(np.array(new_codes)[self.codes], kept)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: ArrayLike | slice) -> Labels:
        """Return the labels of some rows: a slice, indices or a mask."""
        return Labels(self.codes[indices_of(rows)], self.names)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Return the (n,) mask of the rows that have a label."""
        return self.codes != UNKNOWN

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of rows of each name, in the order of the names; unknown rows are left
        out."""
        rows = np.bincount(self.codes[self.known], minlength=len(self.names))
        return dict(zip(self.names, rows.tolist(), strict=True))

    def __repr__(self) -> str:
        return f"Labels({len(self)} rows, {self.counts}, {int((~self.known).sum())} unknown)"


def indices_of(rows: ArrayLike | slice) -> Any:
    """Return indices or a mask as an array, which numpy would make floats of an empty list; a slice
    is itself."""
    if isinstance(rows, slice):
        return rows
    array = np.asarray(rows)
    return array if array.size else array.astype(np.int64)


def cross(*labels: Labels) -> Labels:
    """Return intersections, such as "landbird/water" or "female/black"; unknown where one of the
    labels is unknown.

    The code is row-major: for two labels code = first.code * len(second.names) + second.code.
    """
    lengths = [len(column) for column in labels]
    if len(set(lengths)) != 1:
        raise InvalidInputError(f"cross: expected labels of one length, got lengths {lengths}")
    crossed = labels[0]
    for column in labels[1:]:
        # Where one is unknown (-1), the number means nothing, and is replaced below.
        codes = crossed.codes * len(column.names) + column.codes
        known = crossed.known & column.known
        names = tuple("/".join(pair) for pair in product(crossed.names, column.names))
        crossed = Labels(np.where(known, codes, UNKNOWN), names)
    return crossed


def mapped_columns(labels: ColumnNames) -> dict[str, str]:
    """Return the columns that become labels, as {name here: name in the table}."""
    if isinstance(labels, str):
        return {labels: labels}
    if isinstance(labels, Mapping):
        return dict(labels)
    return {column: column for column in labels}
