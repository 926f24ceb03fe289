"""Represent row labels as integer codes with names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.tables import as_texts
from vldebias.errors import CLOSE_LABELS, InvalidInputError, Lazily, did_you_mean
from vldebias.utils.arrays import refuse_masked

if TYPE_CHECKING:
    import pyarrow as pa

    from vldebias.typing import ColumnLike
pd = Lazily("pandas")

UNKNOWN = -1  # internal code; in a column of numbers, -1 is an ordinary value
# A column's values in order, or a mapping from table values to names. If None, the values that
# occur are used in sorted order.
Names = Sequence[str] | Mapping[str, str] | None
# Label columns: a list of names, or a mapping from the name to use to the name in the table.
ColumnNames = Sequence[str] | Mapping[str, str]
# A column is assumed to contain ids or captions if it has more distinct values than this, and more
# than half as many distinct values as rows.
_MOST_NAMES = 1000


@dataclass(frozen=True, eq=False)
class Labels:
    """Store the labels of n rows.

    Attributes:
        codes: (n,) int64, each in 0 .. len(names) - 1 or UNKNOWN.
        names: unique names of the codes. Not every code has to occur.

    Raises:
        InvalidInputError: If codes are not (n,) integers or have no name, or names are not unique.

    >>> labels = Labels.from_values(["female", "male", None, "male"])
    >>> labels.names, labels.codes.tolist()
    (('female', 'male'), [0, 1, -1, 1])
    """

    codes: NDArray[np.int64]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        codes = np.asarray(self.codes)
        names = tuple(self.names)
        if codes.ndim != 1 or codes.dtype.kind not in "iub":
            raise InvalidInputError(
                f"labels: expected integer codes (n,), got shape {codes.shape}, dtype {codes.dtype}"
            )
        if len(set(names)) != len(names):
            raise InvalidInputError(f"labels: expected distinct names, got {list(names)}")
        is_outside = (codes < UNKNOWN) | (codes >= len(names))
        if is_outside.any():
            raise InvalidInputError(
                f"labels: expected codes {UNKNOWN} (unknown) .. {len(names) - 1} for {list(names)},"
                f" got {np.unique(codes[is_outside])[:8].tolist()}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int64))
        object.__setattr__(self, "names", names)

    @classmethod
    def from_values(cls, values: Iterable[object], names: Sequence[str] | None = None) -> Labels:
        """Create labels from one value per row; None, NaN and "" are unknown.

        Args:
            values: one value per row.
            names: allowed values in order. Default: the values that occur, sorted.

        Raises:
            InvalidInputError: If a value is not allowed.
        """
        texts = [cls.text_of(value) for value in values]
        if names is None:
            names = sorted(set(texts) - {""})
        code_of_name = {name: code for code, name in enumerate(names)} | {"": UNKNOWN}
        _refuse_unknown("labels", set(texts) - {""}, names, "choose one of them")
        codes = [code_of_name[text] for text in texts]
        return cls(np.array(codes, dtype=np.int64), tuple(names))

    @classmethod
    def from_array(cls, values: Labels | ColumnLike, names: Sequence[str] | None = None) -> Labels:
        """Create labels from a column (n,): a numpy array, a tensor, a list or a pandas column.

        Booleans become "no" and "yes". Without `names`, every integer is a value, including -1.
        None, NaN and "" are unknown.

        Args:
            values: strings, integers or booleans (n,).
            names: names of the codes 0 .. k - 1 in the column; -1 then means unknown.

        Raises:
            InvalidInputError: If the column has an unsupported type, or contains a value that is
                not in `names`.
        """
        if isinstance(values, Labels):
            return values
        refuse_masked(values, "labels")
        try:
            array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        except ValueError:
            raise InvalidInputError(
                "labels: expected strings or integers (n,), got lists of different lengths"
            ) from None
        if array.ndim != 1:
            raise InvalidInputError(
                f"labels: expected strings or integers (n,), got shape {array.shape} with dtype"
                f" {array.dtype}"
            )
        if array.dtype.kind in "SU":
            # Collect distinct strings in blocks, which is faster than sorting n strings and needs
            # less memory than converting all of them to Python objects.
            different_texts: set[str | bytes] = set()
            for block in np.array_split(array, 1 + len(array) // 65536):
                different_texts |= set(block.tolist())
            texts = sorted(different_texts)
            labels = cls.from_values(texts, names)
            places = np.searchsorted(np.array(texts, array.dtype), array)
            return cls(labels.codes[places], labels.names)
        # Integer columns with missing values may have dtype float or object.
        column = pd.Series(array).convert_dtypes()
        if column.dtype.kind == "O":
            return cls.from_values(array.tolist(), names)
        if column.dtype.kind not in "iub":
            raise InvalidInputError(
                f"expected strings or integers, got {array.dtype}; convert scores to classes, for"
                " example with scores > 0"
            )
        if column.dtype.kind == "b" and names is None:
            names = ("no", "yes")
        if names is not None:
            return cls(column.astype("Int64").fillna(UNKNOWN).to_numpy(np.int64), tuple(names))
        codes, different = pd.factorize(column, sort=True)
        return cls(codes, tuple(map(str, different.tolist())))

    @classmethod
    def from_column(cls, column: pa.Array, names: Names, source: str) -> Labels:
        """Create labels from a table column.

        Empty and missing values are unknown. Surrounding whitespace is ignored.

        Args:
            column: strings or numbers, one per row.
            names: allowed values, or a mapping from codes in the table to names. If None, all
                values that occur are allowed.
            source: column name for messages.

        Raises:
            InvalidInputError: If a value is not allowed, or there are too many values for labels.
        """
        texts = [text.strip() for text in as_texts(column, source)]
        labels = cls.from_values(texts)
        if names is None:
            if len(labels.names) > max(_MOST_NAMES, len(labels) // 2):
                raise InvalidInputError(
                    f"{source}: {len(labels.names)} distinct values in {len(labels)} rows are too"
                    " many for labels; choose a column with a few groups"
                )
            return labels
        return renamed(labels, names, source)

    @staticmethod
    def text_of(value: object) -> str:
        """Convert a value to a label name; missing values become ""."""
        if not isinstance(value, str) and pd.isna(value) is True:  # importing pandas takes a second
            return ""
        # Integer columns with missing values are stored as floats, so 1.0 is the label 1.
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

    def without(self, unknown: object) -> Labels:
        """Return labels with one or several values set to unknown."""
        is_text = isinstance(unknown, (str, bytes))
        if is_text or not isinstance(unknown, Iterable):
            unknown = [unknown]
        unknown_names = {self.text_of(value) for value in unknown}
        kept = tuple(name for name in self.names if name not in unknown_names)
        code_of_name = {name: code for code, name in enumerate(kept)}
        new_codes = [code_of_name.get(name, UNKNOWN) for name in self.names]
        new_codes.append(UNKNOWN)  # the last element, selected by the code -1
        return Labels(np.array(new_codes)[self.codes], kept)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: ArrayLike | slice) -> Labels:
        """Return the labels of rows selected by a slice, an index array or a mask."""
        return Labels(self.codes[indices_of(rows)], self.names)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Return a mask (n,) of the rows with a known label."""
        return self.codes != UNKNOWN

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of rows per name, excluding unknown rows."""
        rows = np.bincount(self.codes + 1, minlength=len(self.names) + 1)[1:]  # UNKNOWN is -1
        return dict(zip(self.names, rows.tolist(), strict=True))

    def __repr__(self) -> str:
        return f"Labels({len(self)} rows, {self.counts}, {int((~self.known).sum())} unknown)"


def renamed(labels: Labels, names: Sequence[str] | Mapping[str, str], source: str) -> Labels:
    """Return labels with other names, in the order of `names`.

    Args:
        labels: the labels as they appear in the data.
        names: allowed values, or a mapping from values to their new names.
        source: column name for messages.

    Raises:
        InvalidInputError: If a value is not allowed.
    """
    name_of_value = {str(value): str(name) for value, name in mapped_columns(names).items()}
    _refuse_unknown(source, labels.names, name_of_value, "correct the table")
    new_names = list(dict.fromkeys(name_of_value.values()))
    new_codes = [new_names.index(name_of_value[value]) for value in labels.names]
    new_codes.append(UNKNOWN)  # the last element, selected by the code -1
    return Labels(np.array(new_codes, dtype=np.int64)[labels.codes], tuple(new_names))


def _refuse_unknown(
    source: str, values: Iterable[str], known: Iterable[str], otherwise: str
) -> None:
    """Raise an error for values that are not known."""
    unknown = sorted(set(values).difference(known))
    if unknown:
        hint = did_you_mean(unknown[0], known, otherwise, CLOSE_LABELS)
        raise InvalidInputError(
            f"{source}: expected one of {list(known)}, got {unknown[:8]}; {hint}"
        )


def indices_of(rows: ArrayLike | slice) -> slice | NDArray[Any]:
    """Convert indices or a mask to an array; slices are returned unchanged."""
    if isinstance(rows, slice):
        return rows
    array = np.asarray(rows)
    # numpy converts an empty list to floats.
    return array if array.size else array.astype(np.int64)


def cross(*labels: Labels) -> Labels:
    """Combine label columns into one, such as "landbird/water"; unknown if any label is unknown.

    Codes are row-major: for two labels, code = first.code * len(second.names) + second.code.

    >>> gender = Labels.from_values(["female", "male"])
    >>> age = Labels.from_values(["old", "young"])
    >>> crossed = cross(gender, age)
    >>> [crossed.names[code] for code in crossed.codes]
    ['female/old', 'male/young']
    """
    lengths = [len(column) for column in labels]
    if len(set(lengths)) != 1:
        raise InvalidInputError(f"cross: expected labels of the same length, got {lengths}")
    crossed = labels[0]
    for column in labels[1:]:
        # Codes computed from an unknown label (-1) are meaningless and are replaced below.
        codes = crossed.codes * len(column.names) + column.codes
        known = crossed.known & column.known
        names = tuple("/".join(pair) for pair in product(crossed.names, column.names))
        crossed = Labels(np.where(known, codes, UNKNOWN), names)
    return crossed


def mapped_columns(labels: ColumnNames) -> dict[str, str]:
    """Return the label columns as a mapping {name to use: name in the table}."""
    if isinstance(labels, str):
        return {labels: labels}
    if isinstance(labels, Mapping):
        return dict(labels)
    return {column: column for column in labels}
