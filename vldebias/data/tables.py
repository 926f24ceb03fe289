"""Read labels and captions of rows from tables: csv, tsv, parquet and jsonl."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.errors import InvalidInputError, Lazily, SuspectInputWarning, warn
from vldebias.files import unshielded

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")
pd, pc, pj, pq = (
    Lazily("pandas"),
    Lazily("pyarrow.compute"),
    Lazily("pyarrow.json"),
    Lazily("pyarrow.parquet"),
)

UNKNOWN = -1  # a code, never a value: -1 in a column of numbers is a value as 0 and 1 are
ENDINGS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")

# Names of a column in their order, or value in the table -> name; None for the values that occur,
# sorted.
Names = Sequence[str] | Mapping[str, str] | None
# Columns that become labels: their names, or name here -> name in the table.
ColumnNames = Sequence[str] | Mapping[str, str]

_MOST_NAMES = (
    1000  # more names than this on more than half of the rows are no labels but ids or captions
)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # all but tabs and line ends
_FEW, _RARE = 5, 0.02  # rows of a group, their share of all
_UNSAID = (
    "nan",
    "none",
    "<na>",
    "nat",
    "null",
    "n/a",
    "unknown",
    "unk",
    "unclear",
    "undetermined",
    "not known",
    "?",
)
_MARKS = (
    "255",
    "65535",
    "99",
    "999",
    "9999",
    "-9",
    "-99",
    "-100",
    "-999",
)  # how tables write unknown beside codes
_NO_CAPTION = re.compile(r"nan|none|null|n/a|<na>|#n/a", re.IGNORECASE)
_NO_WORDS = {
    "numbers": re.compile(r"[-+]?\d+([.,]\d+)*"),
    "names of files": re.compile(r"\S+\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic)", re.IGNORECASE),
}
_MOST_NO_WORDS = 0.5  # share of such captions from which on they are refused


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
        codes, names = np.asarray(self.codes), tuple(self.names)
        if codes.ndim != 1 or codes.dtype.kind not in "iub":
            raise InvalidInputError(
                f"labels: expected integer codes (n,), got {codes.shape} of {codes.dtype}"
            )
        if len(set(names)) != len(names):
            raise InvalidInputError(f"labels: expected different names, got {list(names)}")
        if outside := np.unique(codes[(codes < UNKNOWN) | (codes >= len(names))])[:8].tolist():
            raise InvalidInputError(
                f"labels: expected codes {UNKNOWN} (unknown) .. {len(names) - 1} for {list(names)},"
                f" got {outside}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int64))
        object.__setattr__(self, "names", names)

    @classmethod
    def of(cls, values: Iterable[Any], names: Sequence[str] | None = None) -> Labels:
        """Return labels from one value per row; None, NaN and "" are unknown.

        names: the values that may occur, in their order, others are refused; by default those that
        occur, sorted.
        """
        texts = [cls.text_of(value) for value in values]
        known = tuple(names) if names is not None else tuple(sorted(set(texts) - {""}))
        code = {name: i for i, name in enumerate(known)} | {"": UNKNOWN}
        if strangers := sorted(set(texts) - set(code)):
            raise InvalidInputError(f"labels: expected one of {list(known)}, got {strangers[:8]}")
        return cls(np.array([code[text] for text in texts], dtype=np.int64), known)

    @classmethod
    def of_array(cls, values: Any, names: Sequence[str] | None = None) -> Labels:
        """Return labels of a column (n,): a numpy array, a tensor, a list, or a column of pandas.

        Booleans are "no" and "yes"; whole numbers stand for themselves, -1 as well. None, NaN and
        "" are unknown.

        names: what the numbers 0 .. k - 1 of the column mean, which are then codes: -1 is unknown.

        Raises:
            InvalidInputError: something else, or a value that is not among `names`.
        """
        if isinstance(values, Labels):
            return values
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.ndim != 1:
            raise InvalidInputError(
                f"labels: expected strings or integers (n,), got {array.shape} of {array.dtype}"
            )
        if array.dtype.kind in "SU":
            texts = sorted(
                {
                    text
                    for some in np.array_split(array, 1 + len(array) // 65536)
                    for text in some.tolist()
                }
            )
            different = cls.of(texts, names)
            return cls(
                different.codes[np.searchsorted(np.array(texts, array.dtype), array)],
                different.names,
            )
        column = pd.Series(
            array
        ).convert_dtypes()  # whole numbers with gaps between them come as floats or objects
        if column.dtype.kind == "O":
            return cls.of(array.tolist(), names)
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
    def of_column(cls, column: pa.Array, names: Names, where: str, unknown: Any = ()) -> Labels:
        """Return labels of a column of a table; empty and missing values, and those in `unknown`,
        are unknown.

        Space around a value does not count.
        """
        found = cls.of([text.strip() for text in as_texts(column, where)]).without(unknown)
        if names is None:
            if len(found.names) > max(_MOST_NAMES, len(found) // 2):
                raise InvalidInputError(
                    f"{where}: {len(found.names)} values in {len(found)} rows; expected a label"
                )
            return found
        known = {str(k): str(v) for k, v in mapped_columns(names).items()}
        if unnamed := sorted(set(found.names) - set(known)):
            raise InvalidInputError(f"{where}: expected one of {list(known)}, got {unnamed[:8]}")
        texts = list(dict.fromkeys(known.values()))
        code = np.array(
            [texts.index(known[name]) for name in found.names] + [UNKNOWN], dtype=np.int64
        )
        return cls(code[found.codes], tuple(texts))

    @staticmethod
    def text_of(value: Any) -> str:
        """Return a value as the name of a label, "" where it is empty."""
        if not isinstance(value, str) and pd.isna(value) is True:  # importing pandas takes a second
            return ""
        if isinstance(value, (float, np.floating)) and float(value).is_integer():
            value = int(value)
        try:
            return value.decode("utf-8") if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError as error:
            raise InvalidInputError(
                f"expected strings or bytes of UTF-8, got {value[:40]!r}: {error}"
            ) from None

    def without(self, unknown: Any) -> Labels:
        """Return the same rows with one or several values set to unknown; numbers are compared as
        written."""
        several = (
            unknown
            if isinstance(unknown, Iterable) and not isinstance(unknown, (str, bytes))
            else [unknown]
        )
        marks = set(map(self.text_of, several))
        kept = tuple(name for name in self.names if name not in marks)
        code = np.array(
            [kept.index(name) if name in kept else UNKNOWN for name in self.names] + [UNKNOWN]
        )
        return Labels(code[self.codes], kept)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: ArrayLike | slice) -> Labels:
        """Return the labels of some rows: a slice, indices or a mask."""
        return Labels(self.codes[rows if isinstance(rows, slice) else np.asarray(rows)], self.names)

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


def cross(*labels: Labels) -> Labels:
    """Return intersections, such as "landbird/water" or "female/black"; unknown where one of the
    labels is unknown.

    The code is row-major: for two labels code = first.code * len(second.names) + second.code.
    """
    if not labels or len({len(one) for one in labels}) > 1:
        raise InvalidInputError(
            f"cross: expected labels of one length, got lengths {[len(one) for one in labels]}"
        )

    def pair(a: Labels, b: Labels) -> Labels:
        codes = np.where(a.known & b.known, a.codes * len(b.names) + b.codes, UNKNOWN)
        return Labels(codes, tuple(f"{x}/{y}" for x in a.names for y in b.names))

    return reduce(pair, labels)


_ALIKE = 0.8  # of difflib: a letter of five may differ
_MANY_TIMES = 4  # how many times the rows of a slip the right value has at least


def odd_values(labels: Labels) -> list[str]:
    """List probable slips in a column of groups, each as the value found and a remedy; usually
    none.

    Values that differ by case or blanks alone, marks of an empty cell, groups of fewer than five
    rows and 2 % of all, and values of few rows that are spelt almost as one of many.
    """
    rows, alike = {name: n for name, n in labels.counts.items() if n}, defaultdict(list)
    for name in rows:
        alike[" ".join(name.split()).casefold()].append(name)
    problems = [
        f"{' and '.join(map(repr, names))} differ by case or blanks alone; write them alike (in"
        f" `vldebias eval shares` --same {names[0]}={names[1]})"
        for names in alike.values()
        if len(names) > 1
    ]
    numbers = (
        (*_MARKS, "-1") if "0" in rows else _MARKS
    )  # codes of pandas; -1 and 1 alone are values
    codes = all(re.fullmatch(r"[0-4]?\d|50", name) or name in numbers for name in rows)
    unsaid = set(_UNSAID) - (
        {"none"} if "none" in rows else set()
    )  # "none" beside "glasses" is a value, None is not
    marks = [name for name in rows if name.casefold() in unsaid or (codes and name in numbers)]
    if 0 < len(marks) < len(rows):
        named = " and for ".join(map(repr, marks))
        problems.append(
            f"a group of its own for {named}; say unknown={marks[0]!r} (--unknown {marks[0]})"
        )
    rare = [
        n
        for n in rows
        if n not in marks and rows[n] < _FEW and rows[n] <= _RARE * sum(rows.values())
    ]
    if rare:
        shown = ", ".join(f"{name!r} ({rows[name]})" for name in rare[:5]) + (
            " ..." if len(rare) > 5 else ""
        )
        problems.append(
            f"{len(rare)} of {len(rows)} groups have fewer than {_FEW} rows: {shown}; correct the"
            " value, leave these rows out, or add images; row numbers and scores cannot be groups"
        )
    known = {*marks, *rare}
    for name, other in misspelt(rows):
        if name not in known:
            problems.append(
                f"{name!r} ({rows[name]} of {sum(rows.values())} rows) is spelt almost as"
                f" {other!r}; if it is the same, write them alike (--same {name}={other})"
            )
    return problems


def misspelt(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return values of few rows that are spelt almost as one of many: "femle" and "female".

    A value that is part of the other, as "male" of "female", is a word of its own, and so is one
    that differs by its case alone, which is another slip.
    """
    found = []
    for name, number in counts.items():
        frequent = [other for other, rows in counts.items() if rows >= _MANY_TIMES * number]
        for other in get_close_matches(name, frequent, n=1, cutoff=_ALIKE):
            is_part = name in other and len(other) - len(name) > 1
            if number < _FEW and not is_part and name.casefold() != other.casefold():
                found.append((name, other))
    return found


def read_table(path: Path) -> pa.Table:
    """Return a table from a .csv, .tsv, .parquet, .jsonl or .ndjson file.

    Columns of csv are unchanged texts ("01" is "01"), except for the apostrophe of
    `files.shielded`. Nested objects of jsonl become columns with a dot: {"labels": {"gender": ...}}
    is "labels.gender".

    Raises:
        InvalidInputError: no such file, another ending, or a content that does not fit; the message
            says where.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS or not path.is_file():
        raise InvalidInputError(
            f"{path}: expected a file that is there and ends in {', '.join(ENDINGS)}"
        )
    try:
        if ending == ".parquet":
            table = pq.read_table(path, page_checksum_verification=True)
            if table.num_rows != (
                told := pq.read_metadata(path).num_rows
            ):  # the footer has no checksum
                raise pa.ArrowInvalid(
                    f"it says that it has {told} rows, and {table.num_rows} are there"
                )
        elif ending in (".csv", ".tsv"):
            header, *rows = _read_csv(path, "," if ending == ".csv" else "\t")
            columns = zip(*rows, strict=True) if rows else [()] * len(header)
            table = pa.table(
                [pa.array(map(unshielded, column), pa.string()) for column in columns], names=header
            )
        else:
            table = _read_json(path)
        table.validate(full=True)  # such as texts that are no UTF-8
        return table.rename_columns(table.column_names)  # raises here where a name is none
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: cannot be read as {ending[1:]}: {error}") from error


def _read_csv(path: Path, delimiter: str) -> list[list[str]]:
    """Return the rows of a csv file in UTF-8, the names of the columns first; blank lines are left
    out.

    A reader that meets a stray quote takes the rows after it for one cell: such a quote, and rows
    of another number of cells, are refused, and cells with line breaks are warned of.
    """
    content = path.read_bytes()
    if control := _CONTROL.search(content):
        line = content.count(b"\n", 0, control.start()) + 1
        raise InvalidInputError(
            f"{path}: line {line}: got the control character {control.group()!r}; expected a text"
            " file in UTF-8"
        )
    lines = io.StringIO(content.decode("utf-8-sig"), newline="")
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    rows, broken, start = list[list[str]](), list[int](), 1
    try:
        for row in reader:
            if row and rows and len(row) != len(rows[0]):
                raise csv.Error(
                    f"expected {len(rows[0])} columns as in the first line, got {len(row)}"
                )
            rows += [row] if row else []
            broken += [start] if reader.line_num > start else []
            start = reader.line_num + 1
    except csv.Error as error:
        raise InvalidInputError(
            f"{path}: line {start}: {error}; quotes inside of a quoted cell are doubled, and a"
            " stray one is taken out"
        ) from None
    if not rows or len(set(rows[0])) != len(rows[0]):
        raise InvalidInputError(
            f"{path}: expected different names of columns in the first line, got {rows[:1]}"
        )
    if broken:
        warn(
            f"{path}: {len(broken)} rows have a cell with a line break, the first in line"
            f" {broken[0]}; if that is no text of several lines, a quote is missing there and rows"
            " were read as a part of the cell",
            SuspectInputWarning,
        )
    return rows


def _read_json(path: Path) -> pa.Table:
    with path.open(
        "rb"
    ) as file:  # a line that is no object can end the process: pyarrow runs into a null pointer
        for number, line in enumerate(file, 1):
            if line.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"", b"{"):
                shown = line.strip()[:40].decode(errors="replace")
                raise InvalidInputError(
                    f'{path}: line {number}: expected an object such as {{"image": ...}}, got'
                    f" {shown}"
                )
    return pj.read_json(path).flatten()


def mapped_columns(labels: ColumnNames) -> dict[str, str]:
    """Return the columns that become labels, as {name here: name in the table}."""
    listed = [labels] if isinstance(labels, str) else labels
    return dict(listed) if isinstance(listed, Mapping) else {column: column for column in listed}


def column_of(table: pa.Table, name: str, where: str | Path) -> pa.Array:
    """Return a column of a table in one piece."""
    if name not in table.column_names:
        raise InvalidInputError(
            f"{where}: expected a column {name!r}; there are {table.column_names}"
        )
    return table.column(name).combine_chunks()


def as_texts(column: pa.Array, where: str) -> list[str]:
    """Return the texts of a column, "" for missing ones; numbers as they are written, 1.0 as 1
    among whole ones."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        whole = pc.and_(pc.less_equal(pc.abs(column), 2.0**53), pc.equal(column, pc.round(column)))
        if pc.all(whole, min_count=0).as_py():
            column = column.cast(pa.int64())  # 0 and 1 with gaps between them are stored as floats
    try:
        texts: list[str] = column.cast(pa.string()).fill_null("").to_pylist()
    except pa.ArrowException as error:
        raise InvalidInputError(
            f"{where}: expected texts or numbers, got a column of {column.type}"
        ) from error
    return texts


def captions_in(cell: Any, where: str) -> tuple[str, tuple[str, ...] | None]:
    """Return the caption of a cell, "" if it has none, and the further captions of a list, without
    blank ones."""
    texts = cell if isinstance(cell, list) else []
    if isinstance(cell, Mapping) or not all(
        text is None or isinstance(text, str) for text in texts
    ):
        raise InvalidInputError(
            f"{where}: expected a text or a list of texts in every row, got {str(cell)[:60]}"
        )
    if not isinstance(cell, list):
        return "" if cell is None else str(cell), None
    first, *more = [text for text in texts if text and text.strip()] or [""]
    return first, tuple(more)


def one_row_per_image(
    where: str,
    names: Sequence[str],
    captions: Sequence[str],
    more: Sequence[tuple[str, ...]],
    labels: Mapping[str, Labels],
) -> tuple[NDArray[np.int64], list[str], list[tuple[str, ...]]]:
    """Return the first row of each image, its caption, and further ones: COCO and Flickr have a row
    per caption.

    names: (n,) of the images. captions: n texts, or none; more: the further captions of each row,
    or none.
    """
    rows = defaultdict[str, list[int]](list)
    for row, name in enumerate(names):
        rows[name].append(row)
    if len(rows) == len(names):
        return np.arange(len(names)), list(captions), list(more)
    if not captions:
        repeated = next(name for name, own in rows.items() if len(own) > 1)
        raise InvalidInputError(
            f"{where}: {len(names) - len(rows)} rows name an image that is there more than once,"
            f" such as {repeated!r}; leave them out, or name their column of captions"
            " (caption=...): they become one row with several captions"
        )
    for column, values in labels.items():
        apart = next(
            (name for name, own in rows.items() if len(set(values.codes[own].tolist())) > 1), None
        )
        if apart is not None:
            raise InvalidInputError(
                f"{where}: column {column!r}: the rows of image {apart!r} have different values;"
                " expected one per image"
            )
    every = []
    for own in rows.values():
        texts = [
            text
            for row in own
            for text in (captions[row], *(more[row] if more else ()))
            if says_something(text)
        ]
        every.append(texts or [""])
    first = np.array([own[0] for own in rows.values()])
    return first, [texts[0] for texts in every], [tuple(texts[1:]) for texts in every]


def says_something(caption: str) -> bool:
    """Tell whether a caption is neither blank nor a placeholder for no text: nan, none, null,
    n/a."""
    text = caption.strip()
    return bool(text) and _NO_CAPTION.fullmatch(text) is None


def check_captions(name: str, captions: Sequence[str], remedy: str) -> None:
    """Warn of captions that are numbers or file names; refuse them if more than half are, or if all
    are the same."""
    if len(captions) > 1 and len(set(captions)) == 1:
        raise InvalidInputError(
            f"{name}: all {len(captions)} captions say {captions[0]!r}, so none tells images apart."
            f" {remedy}"
        )
    for kind, pattern in _NO_WORDS.items():
        strange = [text for text in captions if pattern.fullmatch(text.strip())]
        share = len(strange) / max(1, len(captions))
        told = (
            f"{name}: {len(strange)} of {len(captions)} captions ({share:.0%}) are {kind}, such as"
            f" {strange[:1]}"
        )
        if share > _MOST_NO_WORDS:
            raise InvalidInputError(f"{told}; expected words. {remedy}")
        if strange:
            warn(f"{told}; they are learned as they are. {remedy}")
