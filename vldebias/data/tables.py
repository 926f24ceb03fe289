"""Read labels and captions of rows from tables: csv, tsv, parquet and jsonl."""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.errors import InvalidInputError, Lazily, SuspectInputWarning, warn
from vldebias.files import SHIELDED

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")
pc, pcsv, pj, pq = Lazily("pyarrow.compute"), Lazily("pyarrow.csv"), Lazily("pyarrow.json"), Lazily("pyarrow.parquet")

UNKNOWN = -1  # a code, never a value: -1 in a column of numbers is a value as 0 and 1 are
ENDINGS = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")

# Names of a column in their order, or value in the table -> name; None for the values that occur, sorted.
Names = Sequence[str] | Mapping[str, str] | None
# Columns that become labels: their names, or name here -> name in the table.
ColumnNames = Sequence[str] | Mapping[str, str]

_MOST_NAMES = 1000  # more names than this on more than half of the rows are no labels but ids or captions
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")  # all but tabs and line ends
_FEW, _RARE, _MANY = 5, 0.02, 100  # rows of a group, their share of all; groups of a column
_NEAR = 0.85  # similarity of two spellings, as difflib counts it: "femal" and "female" have .91, "male" and "female" .8
_ABSENT = ("nan", "NaN", "NAN", "None", "<NA>", "NaT", "null", "NULL", "N/A", "n/a")  # how programs write nothing
_NOT_KNOWN = ("unknown", "unk", "unclear", "undetermined", "not known", "?")  # how people write it, in any case
_MARKS = ("255", "65535", "99", "999", "9999", "-9", "-99", "-100", "-999")  # how tables write unknown beside codes
_NO_CAPTION = re.compile(r"nan|none|null|n/a|<na>|#n/a", re.IGNORECASE)
_NO_WORDS = {
    "numbers": re.compile(r"[-+]?\d+([.,]\d+)*"),
    "names of files": re.compile(r"\S+\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic)", re.IGNORECASE),
}
_MOST_NO_WORDS = 0.5  # share of such captions from which on they are refused


@dataclass(frozen=True, eq=False)
class Labels:
    """Hold labels of rows: codes (n,) int64 in 0 .. len(names) - 1, or UNKNOWN; a name may have no row.

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
        outside = np.unique(codes[(codes < UNKNOWN) | (codes >= len(self.names))])[:8].tolist()
        if outside:
            raise InvalidInputError(
                f"labels: expected codes {UNKNOWN} (unknown) .. {len(self.names) - 1} for {list(self.names)}, "
                f"got {outside}"
            )
        object.__setattr__(self, "codes", codes.astype(np.int64))
        object.__setattr__(self, "names", tuple(self.names))

    @classmethod
    def of(cls, values: Iterable[Any], names: Sequence[str] | None = None) -> Labels:
        """Return labels from one value per row; None, NaN and "" are unknown.

        names: the values that may occur, in their order; by default those that occur, sorted.

        Raises:
            InvalidInputError: a value that is not among `names`.
        """
        texts = [text_of(value) for value in values]
        known = tuple(names) if names is not None else tuple(sorted(set(texts) - {""}))
        code = {name: i for i, name in enumerate(known)} | {"": UNKNOWN}
        if strangers := sorted(set(texts) - set(code)):
            raise InvalidInputError(f"labels: expected one of {list(known)}, got {strangers[:8]}")
        return cls(np.array([code[text] for text in texts], dtype=np.int64), known)

    @classmethod
    def of_array(cls, values: Any, names: Sequence[str] | None = None) -> Labels:
        """Return labels of a column (n,): a numpy array, a tensor, a list, or a column of pandas.

        Strings are names. Booleans are "no" and "yes". Whole numbers stand for themselves, -1 as well, in the order of
        numbers. None, NaN and "" are unknown.

        names: what the numbers 0 .. k - 1 of the column mean, which are then codes: -1 is unknown.

        Raises:
            InvalidInputError: something else, or a value that is not among `names`.
        """
        if isinstance(values, Labels):
            return values
        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.ndim != 1:
            raise InvalidInputError(f"labels: expected strings or integers (n,), got {array.shape} of {array.dtype}")
        if array.dtype.kind == "O":  # None and NaN beside texts or numbers
            cells = [None if _absent(value) else value for value in array.tolist()]
            if not any(isinstance(value, (str, bytes)) for value in cells):
                array = np.array([np.nan if value is None else value for value in cells])
        if array.dtype.kind in "SUO":
            return cls.of(array.tolist(), names)
        known = np.ones(len(array), dtype=bool)
        if array.dtype.kind == "f" and np.all(np.isnan(array) | (array == np.round(array)) & np.isfinite(array)):
            known = ~np.isnan(array)
            array = np.where(known, array, 0).astype(np.int64)
        if array.dtype.kind not in "iub":
            raise InvalidInputError(
                f"expected strings or integers, got {array.dtype}; of scores take the class, such as scores > 0"
            )
        if names is not None:
            return cls(np.where(known, array.astype(np.int64), UNKNOWN), tuple(names))
        if array.dtype.kind == "b":
            return cls(array.astype(np.int64), ("no", "yes"))
        different = np.unique(array[known])
        codes = np.where(known, np.searchsorted(different, array), UNKNOWN)
        return cls(codes, tuple(map(str, different.tolist())))

    def without(self, unknown: Any) -> Labels:
        """Return the same rows with one or several values set to unknown; numbers are compared as written."""
        marks = {text_of(value) for value in _several(unknown)}
        kept = tuple(name for name in self.names if name not in marks)
        if len(kept) == len(self.names):
            return self
        code = np.array([kept.index(name) if name in kept else UNKNOWN for name in self.names] + [UNKNOWN])
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
        """Return the number of rows of each name, in the order of the names; unknown rows are left out."""
        rows = np.bincount(self.codes[self.known], minlength=len(self.names))
        return dict(zip(self.names, rows.tolist(), strict=True))

    def __repr__(self) -> str:
        return f"Labels({len(self)} rows, {self.counts}, {int((~self.known).sum())} unknown)"


def _several(unknown: Any) -> Iterable[Any]:
    return unknown if isinstance(unknown, Iterable) and not isinstance(unknown, (str, bytes)) else [unknown]


def _absent(value: Any) -> bool:
    """Tell whether a cell is empty; NAType and NaTType are pandas' names for it."""
    nothing = type(value).__name__ in ("NoneType", "NAType", "NaTType")
    return nothing or (isinstance(value, (float, np.floating)) and bool(value != value))


def text_of(value: Any) -> str:
    """Return a value as the name of a label, "" where it is empty."""
    if _absent(value):
        return ""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"expected strings or bytes of UTF-8, got {value[:40]!r}: {error}") from None


def cross(*labels: Labels) -> Labels:
    """Return intersections, such as "landbird/water" or "female/black"; unknown where one of the labels is unknown.

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


def odd_values(labels: Labels, *, flags: bool = False) -> list[str]:
    """List probable slips in a column of groups, each as the value found and a remedy; usually none.

    Values that differ by case or blanks alone, a rare value that is spelt nearly as a common one, texts and numbers
    that mean an empty cell, more than a hundred groups, and groups of fewer than five rows.

    flags: name the flags of `vldebias eval shares`, where a rare value has fewer than five rows and at most 2 % of all.
    """
    rows = {name: n for name, n in labels.counts.items() if n}
    total, problems = sum(rows.values()), []
    if len(rows) > _MANY:
        shown = ", ".join(map(repr, list(rows)[:3]))
        remedy = "row numbers and scores are no groups: give the values of the attribute"
        return [f"{len(rows)} groups in {total} rows, such as {shown}; {remedy}"]
    alike = defaultdict(list)
    for name in rows:
        alike[" ".join(name.split()).casefold()].append(name)
    for names in (names for names in alike.values() if len(names) > 1):
        remedy = f"say --same {names[0]}={names[1]}" if flags else "write them alike"
        problems.append(f"{' and '.join(map(repr, names))} differ by case or blanks alone; {remedy}")
    of_numbers = (*_MARKS, "-1") if "0" in rows else _MARKS  # codes of pandas; -1 and 1 alone are values
    codes = all(re.fullmatch(r"[0-4]?\d|50", name) or name in of_numbers for name in rows)
    unsaid = (*_NOT_KNOWN, "none", "na") if flags else _NOT_KNOWN  # "none" beside "glasses" is a value
    marks = [n for n in rows if n in _ABSENT or n.casefold() in unsaid or (codes and n in of_numbers)]
    if marks and len(marks) < len(rows):
        remedy = f"say --unknown {marks[0]}" if flags else f"say unknown={marks[0]!r}"
        problems.append(f"a group of its own for {' and for '.join(map(repr, marks))}; {remedy} if it is none")
    rare = [n for n in rows if n not in marks and rows[n] < _FEW and (not flags or rows[n] <= _RARE * total)]
    common = [n for n in rows if rows[n] >= _FEW and n.isalpha()]
    for name in list(rare):
        near = difflib.get_close_matches(name.casefold(), common, n=1, cutoff=_NEAR)
        if near and name not in alike[" ".join(near[0].split()).casefold()]:
            remedy = f"say --same {name}={near[0]}, or --values with all that there are" if flags else "correct it"
            problems.append(f"{name!r} ({rows[name]}) is nearly {near[0]!r} ({rows[near[0]]}); {remedy}")
            rare.remove(name)
    if rare:
        shown = ", ".join(f"{name!r} ({rows[name]})" for name in rare[:5])
        shown += f" and {len(rare) - 5} more" if len(rare) > 5 else ""
        said = f"say --same {rare[0]}=VALUE, --unknown {rare[0]}, or --values with all that there are"
        remedy = said if flags else "mend the value, leave the rows out, or add images"
        problems.append(f"groups of fewer than {_FEW} rows: {shown}; {remedy}")
    return problems


# ---- tables --------------------------------------------------------------------------------------------------


def read_table(path: Path) -> pa.Table:
    """Return a table from a .csv, .tsv, .parquet, .jsonl or .ndjson file.

    Columns of csv are unchanged texts ("01" is "01"), except for the apostrophe of `files.shielded`. Nested objects of
    jsonl become columns with a dot: {"labels": {"gender": ...}} is "labels.gender".

    Raises:
        InvalidInputError: no such file, another ending, or a content that does not fit; the message says where.
    """
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise InvalidInputError(f"{path}: expected a file ending in {', '.join(ENDINGS)}, got {path.suffix!r}")
    if not path.is_file():
        raise InvalidInputError(f"{path}: there is no such file")
    try:
        if ending == ".parquet":
            table = pq.read_table(path, page_checksum_verification=True)
            if table.num_rows != (told := pq.read_metadata(path).num_rows):  # the footer has no checksum
                raise pa.ArrowInvalid(f"it says that it has {told} rows, and {table.num_rows} are there")
        elif ending in (".csv", ".tsv"):
            table = _read_csv(path, "," if ending == ".csv" else "\t")
        else:
            table = _read_json(path)
        table.validate(full=True)  # such as texts that are no UTF-8
        return table.rename_columns(table.column_names)  # raises here where a name is none
    except (pa.ArrowException, OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInputError(f"{path}: cannot be read as {ending[1:]}: {error}") from error


def _read_csv(path: Path, delimiter: str) -> pa.Table:
    table = pcsv.read_csv(
        path,
        parse_options=pcsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pcsv.ConvertOptions(column_types=dict.fromkeys(check_csv(path, delimiter), pa.string())),
    )
    texts = [pc.replace_substring_regex(column, pattern=SHIELDED, replacement=r"\1") for column in table.columns]
    return pa.table(texts, names=table.column_names)


def check_csv(path: Path, delimiter: str = ",", skip: int = 0) -> list[str]:
    """Return the names of the columns of a csv file (UTF-8) in which every cell ends where it seems to.

    A reader that meets a stray quote takes the rows after it for one cell, without a word. Rows are looked at one by
    one only where the file has quotes. Cells with line breaks are warned of. skip: lines before the first row.

    Raises:
        InvalidInputError: no columns, a column twice, control characters, a quote that does not end or ends within a
            cell; the message names the line.
    """
    content = path.read_bytes()
    if control := _CONTROL.search(content):
        line = content.count(b"\n", 0, control.start()) + 1
        raise InvalidInputError(
            f"{path}: line {line}: got the control character {control.group()!r}; expected a text file in UTF-8: is it "
            "damaged, or of another encoding?"
        )
    lines = io.StringIO(content.decode("utf-8-sig"), newline="")
    for _ in range(skip):
        lines.readline()
    reader, start, broken = csv.reader(lines, delimiter=delimiter, strict=True), 0, list[int]()
    try:
        header = next(reader, [])
        start = reader.line_num
        for _ in reader if b'"' in content else ():
            broken += [start + 1 + skip] if reader.line_num > start + 1 else []
            start = reader.line_num
    except csv.Error as error:
        raise InvalidInputError(
            f"{path}: line {start + 1 + skip}: got a cell whose quotes do not end where it does ({error}); double the "
            "quotes inside of a quoted cell, or take the stray one out"
        ) from None
    if not header:
        raise InvalidInputError(f"{path}: is empty; expected a first line with the names of the columns")
    if len(set(header)) != len(header):
        raise InvalidInputError(f"{path}: a column stands twice in the first line: {header}")
    if broken:
        warn(
            f"{path}: {len(broken)} rows have a cell with a line break, the first in line {broken[0]}; if that is no "
            "text of several lines, a quote is missing there and rows were read as a part of the cell",
            SuspectInputWarning,
        )
    return header


def _read_json(path: Path) -> pa.Table:
    with path.open("rb") as file:  # a line that is no object can end the process: pyarrow runs into a null pointer
        for number, line in enumerate(file, 1):
            if line.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] not in (b"", b"{"):
                shown = line.strip()[:40].decode(errors="replace")
                raise InvalidInputError(
                    f'{path}: line {number}: expected an object such as {{"image": ...}}, got {shown}'
                )
    return pj.read_json(path).flatten()


def mapped_columns(labels: ColumnNames) -> dict[str, str]:
    """Return the columns that become labels, as {name here: name in the table}."""
    listed = [labels] if isinstance(labels, str) else labels
    return dict(listed) if isinstance(listed, Mapping) else {column: column for column in listed}


def column_of(table: pa.Table, name: str, where: str | Path) -> pa.Array:
    """Return a column of a table in one piece."""
    if name not in table.column_names:
        raise InvalidInputError(f"{where}: expected a column {name!r}; there are {table.column_names}")
    return table.column(name).combine_chunks()


def as_texts(column: pa.Array, where: str) -> list[str]:
    """Return the texts of a column, "" for missing ones."""
    return _as_text(column, where).fill_null("").to_pylist()


def as_labels(column: pa.Array, names: Names, where: str, unknown: Any = ()) -> Labels:
    """Return labels of a column; empty and missing values, and those in `unknown`, are unknown.

    Space around a value does not count.
    """
    values = pc.utf8_trim_whitespace(_as_text(column, where))
    nothing = pa.array(["", *map(str, _several(unknown))])
    encoded = pc.if_else(pc.is_in(values, nothing), pa.scalar(None, pa.string()), values).dictionary_encode()
    there: list[str] = encoded.dictionary.to_pylist()
    if names is None and len(there) > max(_MOST_NAMES, len(values) // 2):
        raise InvalidInputError(f"{where}: {len(there)} different values in {len(values)} rows; is that a label?")
    listed = sorted(there) if names is None else names
    known = {
        str(k): str(v) for k, v in (listed.items() if isinstance(listed, Mapping) else zip(listed, listed, strict=True))
    }
    if unnamed := sorted(set(there) - set(known)):
        raise InvalidInputError(f"{where}: expected one of {list(known)}, got {unnamed[:8]}")
    texts = list(dict.fromkeys(known.values()))
    code = np.array([texts.index(known[value]) for value in there] + [UNKNOWN], dtype=np.int64)
    rows = encoded.indices.cast(pa.int64()).fill_null(len(there)).to_numpy(zero_copy_only=False)
    return Labels(code[rows], tuple(texts))


def _as_text(column: pa.Array, where: str) -> Any:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        whole = pc.and_(pc.less_equal(pc.abs(column), 2.0**53), pc.equal(column, pc.round(column)))
        if pc.all(whole, min_count=0).as_py():
            column = column.cast(pa.int64())  # 0 and 1 with gaps between them are stored as floats
    try:
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise InvalidInputError(f"{where}: expected texts or numbers, got a column of {column.type}") from error


# ---- captions ------------------------------------------------------------------------------------------------


def captions_in(cell: Any, where: str) -> tuple[str, tuple[str, ...] | None]:
    """Return the caption of a cell, "" if it has none, and the further captions of a list, without blank ones."""
    texts = cell if isinstance(cell, list) else []
    if isinstance(cell, Mapping) or not all(text is None or isinstance(text, str) for text in texts):
        raise InvalidInputError(f"{where}: expected a text or a list of texts in every row, got {str(cell)[:60]}")
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
    """Return the first row of each image, its caption, and further ones: COCO and Flickr have a row per caption.

    names: (n,) of the images. captions: n texts, or none; more: the further captions of each row, or none.

    Raises:
        InvalidInputError: a name on several rows without captions to put together, or with different labels.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        rows.setdefault(name, []).append(row)
    if len(rows) == len(names):
        return np.arange(len(names)), list(captions), list(more)
    if not captions:
        repeated = next(name for name, own in rows.items() if len(own) > 1)
        raise InvalidInputError(
            f"{where}: {len(names) - len(rows)} rows name an image that is there more than once, such as {repeated!r}; "
            "leave them out, or name their column of captions (caption=...): they become one row with several captions"
        )
    for column, values in labels.items():
        apart = next((name for name, own in rows.items() if len(set(values.codes[own].tolist())) > 1), None)
        if apart is not None:
            raise InvalidInputError(
                f"{where}: column {column!r}: the rows of image {apart!r} have different values; expected one per image"
            )
    every = []
    for own in rows.values():
        texts = [text for row in own for text in (captions[row], *(more[row] if more else ())) if says_something(text)]
        every.append(texts or [""])
    first = np.array([own[0] for own in rows.values()])
    return first, [texts[0] for texts in every], [tuple(texts[1:]) for texts in every]


def says_something(caption: str) -> bool:
    """Tell whether a caption is neither blank nor a placeholder for no text: nan, none, null, n/a."""
    text = caption.strip()
    return bool(text) and _NO_CAPTION.fullmatch(text) is None


def check_captions(name: str, captions: Sequence[str], remedy: str) -> None:
    """Warn of captions that are numbers or file names, with their share.

    remedy: advice, such as naming another column.

    Raises:
        InvalidInputError: more than half are such, or all captions are the same.
    """
    if len(captions) > 1 and len(set(captions)) == 1:
        raise InvalidInputError(
            f"{name}: all {len(captions)} captions say {captions[0]!r}, so none tells images apart. {remedy}"
        )
    for kind, pattern in _NO_WORDS.items():
        strange = [text for text in captions if pattern.fullmatch(text.strip())]
        share = len(strange) / max(1, len(captions))
        told = f"{name}: {len(strange)} of {len(captions)} captions ({share:.0%}) are {kind}, such as {strange[:1]}"
        if share > _MOST_NO_WORDS:
            raise InvalidInputError(f"{told}; expected words. {remedy}")
        if strange:
            warn(f"{told}; they are learned as they are. {remedy}")
