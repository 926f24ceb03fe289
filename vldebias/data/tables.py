"""Read labels and captions of rows from tables: csv, tsv, txt, parquet, jsonl and json."""

from __future__ import annotations

import ast
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.data.spellings import (
    dates_among_ranges,
    is_sentence,
    meaning_of,
    spreadsheet_range,
    written_twice,
)
from vldebias.errors import InvalidInputError, Lazily, warn
from vldebias.utils.files import unshielded
from vldebias.utils.json_tables import (
    cell_of,
    column_around,
    flat_rows,
    is_json_document,
    names_of,
    rows_of_json,
    rows_of_lines,
)
from vldebias.utils.text_tables import read_text, split_rows

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = Lazily("pyarrow")
pd = Lazily("pandas")
pc = Lazily("pyarrow.compute")
pj = Lazily("pyarrow.json")
pq = Lazily("pyarrow.parquet")

UNKNOWN = -1  # a code, never a value: -1 in a column of numbers is a value as 0 and 1 are
ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".jsonl", ".ndjson", ".json")

# Names of a column in their order, or value in the table -> name; None for the values that occur,
# sorted.
Names = Sequence[str] | Mapping[str, str] | None
# Columns that become labels: their names, or name here -> name in the table.
ColumnNames = Sequence[str] | Mapping[str, str]

# More names than this on more than half of the rows are no labels but ids or captions.
_MOST_NAMES = 1000
# rows of a group, their share of all
_FEW = 5
_RARE = 0.02
# How tables write unknown in words, and beside codes.
_UNKNOWN_WORDS = {"nan", "none", "<na>", "nat", "null", "n/a", "?"}
_UNKNOWN_WORDS |= {"unknown", "unk", "unclear", "undetermined", "not known"}
# The largest numbers of one and two bytes, and what survey software writes for "missing".
_UNKNOWN_NUMBERS = ("255", "65535", "99", "999", "9999", "-9", "-99", "-100", "-999")
_NO_CAPTION = re.compile(r"nan|none|null|n/a|<na>|#n/a", re.IGNORECASE)
_NO_WORDS = {
    "numbers": re.compile(r"[-+]?\d+([.,]\d+)*"),
    "names of files": re.compile(r"\S+\.(jpe?g|png|webp|gif|bmp|tiff?|avif|heic)", re.IGNORECASE),
}
# Types of JSON -> what a message calls their values.
_KINDS: dict[type, str] = {
    **{str: "a text", int: "a number", float: "a number", bool: "a truth value"},
    **{list: "a list", dict: "an object"},
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


_MANY_GROUPS = 4  # groups below which as many rows are no sign of ids
_MOST_GROUPS = 0.8  # share of groups among the rows from which on they are taken for ids
_ALIKE = 0.8  # of difflib: a letter of five may differ
_MANY_TIMES = 4  # times as many rows the right value has at least as a typing error


def odd_values(labels: Labels) -> list[str]:
    """List probable mistakes in a column of groups, each with a remedy; usually none.

    Values that are one value in two spellings (`spellings.written_twice`), sentences and scores,
    marks of an empty cell, groups of fewer than five rows and 2 % of all, and values of few rows
    that are spelt almost as one of many.
    """
    rows = {name: number for name, number in labels.counts.items() if number}
    total = sum(rows.values())
    unknown_names = names_of_unknown(rows)
    known_names = [name for name in rows if name not in unknown_names]
    problems = [*odd_names(tuple(known_names))]
    if 0 < len(unknown_names) < len(rows):
        first = unknown_names[0]
        names = " and ".join(map(repr, unknown_names))
        problems.append(
            f"a group called {names}; if that is a missing value, say unknown={first!r}"
            f" (--unknown {first})"
        )
    rare = [name for name in known_names if rows[name] < _FEW and rows[name] <= _RARE * total]
    if rare:
        examples = ", ".join(f"{name!r} ({rows[name]})" for name in rare[:5])
        if len(rare) > 5:
            examples += " ..."
        problems.append(
            f"{len(rare)} of {len(rows)} groups have fewer than {_FEW} rows: {examples}; correct"
            " the value, leave these rows out, or add images; row numbers and scores cannot be"
            " groups"
        )
    for name, frequent_name in misspelt(rows):
        if name not in (*unknown_names, *rare):
            problems.append(
                f"{name!r} ({rows[name]} of {total} rows) is spelt almost as {frequent_name!r}; if"
                f" it is the same, write them alike (--same {name}={frequent_name})"
            )
    return problems


@lru_cache(maxsize=256)
def odd_names(names: tuple[str, ...], *, has_flags: bool = True) -> tuple[str, ...]:
    """List probable mistakes in the names of groups, each with a remedy, whatever their rows.

    Args:
        names: of the groups.
        has_flags: whether the reader has `vldebias eval shares` and its flag --same.
    """
    problems = [*_written_twice(names), *_written_otherwise(names)]
    if has_flags:
        return tuple(problems)
    # A remedy in parentheses names a flag.
    flag = r" \((?:in `vldebias eval shares` )?(?:by the flag|--same [^()]*(?:\([^()]*\)[^()]*)*)\)"
    return tuple(re.sub(flag, "", problem) for problem in problems)


def groups_as_many_as_rows(labels: Labels) -> str:
    """Write that a column has about as many groups as rows, as ids, scores and ages have; "" if it
    has not."""
    names = [name for name, number in labels.counts.items() if number]
    n_rows = int(labels.known.sum())
    if len(names) < _MANY_GROUPS or len(names) <= _MOST_GROUPS * n_rows:
        return ""
    # Two spellings of one group have a warning of their own.
    groups = len(names) - sum(len(spellings) - 1 for spellings in written_twice(names))
    if groups <= _MOST_GROUPS * n_rows:
        return ""
    return (
        f"got {groups} groups in {n_rows} rows, such as {', '.join(names[:4])}; expected a few"
        " groups with several rows each; group the values first (ages into ranges, scores into yes"
        " and no)"
    )


def _written_twice(names: Sequence[str]) -> list[str]:
    """Return a remedy for values that are one value in two spellings."""
    problems = []
    pairs = []
    for spellings in written_twice(names):
        listed = " and ".join(map(repr, spellings))
        # The plainest spelling is what the others become: F=female, 9-Mar=3-9.
        plain = []
        for name in spellings:
            if name.casefold() == meaning_of(name) and name.removesuffix("s") not in plain:
                plain.append(name)
        value = plain[-1] if plain else spellings[-1]
        flags = [f"--same {name}={value}" for name in spellings if name != value]
        if len({" ".join(name.split()).casefold() for name in spellings}) == 1:
            problems.append(
                f"{listed} differ by case or blanks alone; write them alike (in `vldebias eval"
                f" shares` {' '.join(flags)})"
            )
        elif any(map(spreadsheet_range, spellings)):
            pairs.append(f"{listed}, a range that a spreadsheet took for a date ({flags[0]})")
        else:
            pairs.append(f"{listed} ({' '.join(flags)})")
    if pairs:
        problems.append(
            f"{'; '.join(pairs)} look like one value written in two ways; if they are, write them"
            " alike (in `vldebias eval shares` by the flag)"
        )
    return problems


def _written_otherwise(names: Sequence[str]) -> list[str]:
    """Return a remedy for dates among ranges, codes beside words and lists."""

    def fitting(pattern: str) -> list[str]:
        return [name for name in names if re.fullmatch(pattern, name)]

    problems = []
    dates = dates_among_ranges(names)
    for spellings in written_twice(names):
        for name in spellings:
            dates.pop(name, None)
    if dates:
        listed = ", ".join(f"{name!r} was {text!r}" for name, text in dates.items())
        first = next(iter(dates))
        problems.append(
            f"a spreadsheet took ranges for dates: {listed}; write them back"
            f" (--same {first}={dates[first]})"
        )
    codes = fitting(r"[-+]?\d+")
    words = fitting(r"\D*")
    if len(codes) > 1 and words:
        problems.append(
            f"the codes {', '.join(map(repr, codes[:5]))} stand beside the words"
            f" {', '.join(map(repr, words[:5]))}; say which code means which word (--same"
            f" {codes[0]}={words[0]})"
        )
    sentences = [name for name in names if is_sentence(name)]
    if sentences:
        problems.append(
            f"{sentences[0][:80]!r} is a sentence and not the name of a group"
            f" ({len(sentences)} of {len(names)} values); ask the judge for one word, or write the"
            " value that each means (--same 'SENTENCE=value')"
        )
    scores = fitting(r"[-+]?\d*\.\d*[1-9]\d*(?:e[-+]?\d+)?")
    if 2 * len(scores) > len(names) and len(scores) > 1:
        problems.append(
            f"numbers such as {scores[0]!r} look like probabilities or scores; write the group that"
            " each means into a column, such as p > 0.5"
        )
    objects = fitting(r"\{.*\}")
    if objects:
        problems.append(
            f"{objects[0][:60]!r} is written as a JSON object; write its value into a column of its"
            " own"
        )
    lists = fitting(r"\[.*\]")
    if lists:
        problems.append(
            f"{lists[0]!r} is written as a list; write a value in each row, and a row for each"
            f' value (--same "{lists[0]}={lists[0].strip("[]").strip(chr(39))}")'
        )
    return problems


def names_of_unknown(names: Collection[str]) -> list[str]:
    """Return the names that stand for an empty cell: words, and marks beside codes.

    -1 is a mark beside 0 (codes of pandas); -1 and 1 alone are values. "none" beside "glasses" is a
    value, "None" is not.
    """
    marks = set(_UNKNOWN_NUMBERS)
    if "0" in names:
        marks.add("-1")
    words = set(_UNKNOWN_WORDS)
    if "none" in names:
        words.remove("none")
    # Numbers are marks only where all names are codes, from 0 to 50.
    are_codes = all(re.fullmatch(r"[0-4]?\d|50", name) or name in marks for name in names)
    if not are_codes:
        marks = set()
    return [name for name in names if name.casefold() in words or name in marks]


def misspelt(counts: Mapping[str, int]) -> list[tuple[str, str]]:
    """Return values of few rows that are spelt almost as one of many: "femle" and "female".

    A value that is part of the other, as "male" of "female", is a word of its own, and so is one
    that differs by its case alone, which is another slip.
    """
    pairs = []
    for name, number in counts.items():
        if number >= _FEW:
            continue
        frequent = [word for word, rows in counts.items() if rows >= _MANY_TIMES * number]
        # Typing errors are rare beside the right word: "femle" once, "female" four times or more.
        for word in get_close_matches(name, frequent, n=1, cutoff=_ALIKE):
            is_part = name in word and len(word) - len(name) > 1
            if not is_part and name.casefold() != word.casefold():
                pairs.append((name, word))
    return pairs


def read_table(
    path: Path, *, separator: str | None = None, encoding: str | None = None
) -> pa.Table:
    """Return a table from a .csv, .tsv, .txt, .parquet, .jsonl, .ndjson or .json file.

    Columns of csv are unchanged texts ("01" is "01"), except for the apostrophe of
    `files.shielded`. Nested objects become columns with dots: {"labels": {"gender": ...}} is
    "labels.gender". A .json file may also be the answer of an API, with one list of objects inside.

    Args:
        path: the file.
        separator: what stands between cells of csv, tsv and txt; None: what fits.
        encoding: of a text file; None: UTF-8, or what fits, which is said in a warning.

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
            # Pages have their checksums; the footer has none, so its number of rows is compared.
            table = with_flat_columns(pq.read_table(path, page_checksum_verification=True))
            expected = pq.read_metadata(path).num_rows
            if table.num_rows != expected:
                raise pa.ArrowInvalid(
                    f"it says that it has {expected} rows, and {table.num_rows} are there"
                )
        elif ending in (".csv", ".tsv", ".txt"):
            usual = "\t" if ending == ".tsv" else ","
            text = read_text(path, encoding)
            rows = split_rows(text, str(path), separator=separator, usual=usual)
            columns = []
            for place in range(len(rows[0])):
                texts = [unshielded(row[place]) for row in rows[1:]]
                columns.append(pa.array(texts, pa.string()))
            table = pa.table(columns, names=[unshielded(name) for name in rows[0]])
        else:
            table = _read_json(path, encoding)
        repeated = [name for name, count in Counter(table.column_names).items() if count > 1]
        if repeated:
            raise InvalidInputError(
                f"{path}: expected different names of columns, got {repeated[0]!r} more than once"
            )
        table.validate(full=True)  # such as texts that are no UTF-8
        return table.rename_columns(table.column_names)  # raises here where a name is none
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(f"{path}: cannot be read as {ending[1:]}: {error}") from error


def _read_json(path: Path, encoding: str | None) -> pa.Table:
    """Return the table of a file with an object a line, or with a list of objects."""
    text = read_text(path, encoding)
    if not text.strip():
        raise InvalidInputError(f"{path}: is empty; expected an object a line")
    if is_json_document(text, path.suffix):
        return _table_of_rows(rows_of_json(text, str(path)), path)
    # A line that is no object is refused first: pyarrow can end the process there.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and not line.lstrip().startswith("{"):
            raise InvalidInputError(
                f'{path}: line {number}: expected an object such as {{"image": ...}}, got'
                f" {line.strip()[:40]}"
            )
    try:
        table = pj.read_json(io.BytesIO(text.encode()))
    except pa.ArrowException:
        rows, _ = rows_of_lines(text.split("\n"), str(path))
        _refuse_mixed(path, rows)
        raise
    return with_flat_columns(table)


def _table_of_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> pa.Table:
    """Return objects as a table; a cell that an object lacks is missing."""
    table = flat_rows(rows, str(path))
    columns = {name: [row.get(name) for row in table] for name in names_of(table)}
    # Columns that are an object in one row and a value in another.
    objects = {name.rpartition(".")[0] for name in columns}
    for name in objects & set(columns):
        if any(cell is not None for cell in columns[name]):
            _refuse_mixed(path, rows)
    try:
        return pa.table(columns)
    except (pa.ArrowException, OverflowError):
        _refuse_mixed(path, rows)
        raise


def with_flat_columns(table: pa.Table) -> pa.Table:
    """Return a table with a column for each part of its nested objects: "payload.gender"."""
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table


def _refuse_mixed(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Raise InvalidInputError for the first column that mixes kinds of values, such as texts and
    lists; pyarrow names its own types, and rows by their place in a block."""
    first_of_column: dict[str, Any] = {}
    for number, row in enumerate(rows, 1):
        parts: list[tuple[str, Any]] = []
        for column, value in row.items():
            parts += _with_parts(column, value)
        for column, value in parts:
            first = first_of_column.setdefault(column, value)
            kind = _KINDS[type(value)]
            first_kind = _KINDS[type(first)]
            if kind == first_kind:
                continue
            remedy = "write the same kind of value in every row"
            if {kind, first_kind} == {"a text", "a list"}:
                remedy = 'write a text as a list of one, ["a text"]'
            raise InvalidInputError(
                f"{path}: column {column!r}: row {number} has {kind}, {str(value)[:40]!r}, and an"
                f" earlier row {first_kind}, {str(first)[:40]!r}; {remedy}"
            )


def _with_parts(column: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the value of a column and what is inside of it, with their names: "labels.gender" is in
    an object, "captions[]" in a list; nothing for a missing value."""
    if value is None:
        return
    yield column, value
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _with_parts(f"{column}.{name}", part)
    elif isinstance(value, list):
        for part in value:
            yield from _with_parts(f"{column}[]", part)


def mapped_columns(labels: ColumnNames) -> dict[str, str]:
    """Return the columns that become labels, as {name here: name in the table}."""
    if isinstance(labels, str):
        return {labels: labels}
    if isinstance(labels, Mapping):
        return dict(labels)
    return {column: column for column in labels}


def column_of(table: pa.Table, name: str, where: str | Path) -> pa.Array:
    """Return a column of a table in one piece; where no column is called exactly so, the only one
    whose name differs by case and blanks at its ends.

    Args:
        table: the table.
        name: the column.
        where: name of the table, for messages.
    """
    names = table.column_names
    if name not in names:
        around = column_around(names, name)
        if around is not None:
            cells = table.column(around).to_pylist()
            parts = [cell_of({around: cell}, name) for cell in cells]
            if any(part is not None for part in parts):
                return _array_of(parts, where)
        alike = [column for column in names if column.strip().casefold() == name.strip().casefold()]
        if len(alike) != 1:
            raise InvalidInputError(f"{where}: expected a column {name!r}; there are {names}")
        name = alike[0]
    return table.column(name).combine_chunks()


def _array_of(values: Sequence[Any], where: str | Path) -> pa.Array:
    """Return values of one kind as a column."""
    try:
        return pa.array(values)
    except pa.ArrowException as error:
        raise InvalidInputError(f"{where}: expected values of one kind: {error}") from error


def as_texts(column: pa.Array, where: str) -> list[str]:
    """Return the texts of a column, "" for missing ones; numbers as they are written, 1.0 as 1
    among whole ones.

    Args:
        column: the column.
        where: name of the table, for messages.
    """
    # Categories of pandas and parquet: numbers with a list of texts.
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
        is_whole = pc.and_(
            pc.less_equal(pc.abs(column), 2.0**53), pc.equal(column, pc.round(column))
        )
        if pc.all(is_whole, min_count=0).as_py():
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
    blank ones.

    Args:
        cell: a text or a list of texts.
        where: name of the table, for messages.
    """
    if cell is None:
        return "", None
    if not isinstance(cell, (list, Mapping)):
        return str(cell), None
    are_texts = isinstance(cell, list) and all(isinstance(text, str | None) for text in cell)
    if not are_texts:
        raise InvalidInputError(
            f"{where}: expected a text or a list of texts in every row, got {str(cell)[:60]}"
        )
    texts = [text for text in cell if text and text.strip()]
    if not texts:
        return "", ()
    return texts[0], tuple(texts[1:])


def texts_of_list(cell: Any) -> list[str] | None:
    """Return the texts of a cell that is a list written as text, by JSON or by Python; None where
    it is something else.

    >>> texts_of_list("['a nurse', 'a man']"), texts_of_list('["a nurse"]'), texts_of_list("[sic]")
    (['a nurse', 'a man'], ['a nurse'], None)
    """
    if not isinstance(cell, str) or not re.fullmatch(
        r"""\s*\[\s*["'].*["']\s*,?\s*\]\s*""", cell, re.DOTALL
    ):
        return None
    for read in (json.loads, ast.literal_eval):
        try:
            texts = read(cell.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(texts, list) and all(isinstance(text, str) for text in texts):
            return texts
    return None


def one_row_per_image(
    where: str,
    names: Sequence[str],
    captions: Sequence[str],
    further_captions: Sequence[tuple[str, ...]],
    labels: Mapping[str, Labels],
) -> tuple[NDArray[np.int64], list[str], list[tuple[str, ...]]]:
    """Return the first row of each image, its caption, and further ones: COCO and Flickr have a row
    per caption.

    Args:
        where: name of the table, for messages.
        names: (n,), the image of each row.
        captions: n texts, or none.
        further_captions: further ones of each row, or none.
        labels: column -> labels of the rows.

    Raises:
        InvalidInputError: an image is on several rows without captions, or with several values of
            a label.
    """
    rows_of_image = defaultdict[str, list[int]](list)
    for row, name in enumerate(names):
        rows_of_image[name].append(row)
    if len(rows_of_image) == len(names):
        return np.arange(len(names)), list(captions), list(further_captions)
    if not captions:
        repeated = next(name for name, rows in rows_of_image.items() if len(rows) > 1)
        raise InvalidInputError(
            f"{where}: {len(names) - len(rows_of_image)} rows name an image that is there more than"
            f" once, such as {repeated!r}; leave them out, or name their column of captions"
            " (caption=...): they become one row with several captions"
        )
    for column, values in labels.items():
        for name, rows in rows_of_image.items():
            if len(set(values.codes[rows].tolist())) > 1:
                raise InvalidInputError(
                    f"{where}: column {column!r}: the rows of image {name!r} have different values;"
                    " expected one per image"
                )
    firsts = []
    further_of_image = []
    for rows in rows_of_image.values():
        texts: list[str] = []
        for row in rows:
            texts.append(captions[row])
            if further_captions:
                texts += further_captions[row]
        # Those that say something; one blank one without any.
        texts = list(filter(says_something, texts)) or [""]
        firsts.append(texts[0])
        further_of_image.append(tuple(texts[1:]))
    first_rows = np.array([rows[0] for rows in rows_of_image.values()])
    return first_rows, firsts, further_of_image


def says_something(caption: str) -> bool:
    """Tell whether a caption is neither blank nor a placeholder for no text: nan, none, null,
    n/a."""
    text = caption.strip()
    return bool(text) and _NO_CAPTION.fullmatch(text) is None


def check_captions(name: str, captions: Sequence[str], remedy: str) -> None:
    """Warn of captions that are numbers or file names; refuse them if more than half are, or if all
    are the same.

    Args:
        name: of the data, for messages.
        captions: the texts.
        remedy: what the message advises.
    """
    if len(captions) > 1 and len(set(captions)) == 1:
        raise InvalidInputError(
            f"{name}: all {len(captions)} captions say {captions[0]!r}, so none tells images apart."
            f" {remedy}"
        )
    for kind, pattern in _NO_WORDS.items():
        strange = [text for text in captions if pattern.fullmatch(text.strip())]
        # A few of them occur in real captions; half of them mean that it is the wrong column.
        share = len(strange) / max(1, len(captions))
        finding = (
            f"{name}: {len(strange)} of {len(captions)} captions ({share:.0%}) are {kind}, such as"
            f" {strange[:1]}"
        )
        if share > _MOST_NO_WORDS:
            raise InvalidInputError(f"{finding}; expected words. {remedy}")
        if strange:
            warn(f"{finding}; they are learned as they are. {remedy}")
