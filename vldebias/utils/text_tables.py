"""Read tables from other programs, detecting encoding and separator.

Ambiguous files raise errors, and guesses are reported as warnings.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from contextlib import suppress
from itertools import compress, islice
from pathlib import Path
from typing import Literal

from vldebias.errors import InvalidInputError, need, shown, warn_of_input
from vldebias.utils.files import refuse_special

SEPARATORS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|"}
_FULL_WIDTH = ("\uff0c", "\uff1b")  # comma and semicolon on Chinese and Japanese keyboards
_BYTE_ORDER_MARKS = {  # longest first, because UTF-32's BOM starts with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# Encodings other than UTF-8 that charset-normalizer may choose.
_LATIN_ENCODINGS = ["cp1252", "cp1250", "cp1254", "cp1257"]
_OTHER_ENCODINGS = [
    *("cp1251", "cp1253", "cp1255", "cp1256", "koi8_r"),
    *("gb18030", "big5", "cp932", "euc_jp", "cp949"),
]
# Extensions of files in other formats that users may pass instead of a list or table.
OTHER_FORMS = {
    **dict.fromkeys((".yaml", ".yml"), "YAML"),
    ".toml": "TOML",
    **dict.fromkeys((".md", ".markdown"), "Markdown"),
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".numbers"), "a spreadsheet"),
    **dict.fromkeys((".docx", ".doc", ".pdf", ".rtf", ".odt"), "a document"),
    **dict.fromkeys((".html", ".htm", ".xml"), "markup"),
    **dict.fromkeys((".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".tar"), "an archive"),
}
# First bytes of such files, which identify them regardless of their extension.
_MAGIC = {
    b"PK\x03\x04": "a spreadsheet (.xlsx) or an archive (.zip)",
    b"\xd0\xcf\x11\xe0": "an old Excel spreadsheet (.xls)",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "parquet",
    b"%PDF": "a PDF document",
    b"\x89PNG": "an image (.png)",
    b"\xff\xd8\xff": "an image (.jpg)",
}
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\x0b\x0c]")  # except tabs and line ends
_EXCEL = re.compile(r"\ufeff?sep=(.)\r?\n")  # a first line that sets the separator for Excel
# Most commands have no option for the encoding, so advise what works for all of them.
_REMEDY = "save it as UTF-8 in the program that wrote it"
_SAMPLE = 1 << 16  # number of characters used to detect the separator
_SAMPLE_ROWS = 50
_MOST_SHORT = 0.05  # maximum share of pipe-separated rows without their last cell


def read_text(path: Path, encoding: str | None = None) -> str:
    """Read a text file in UTF-8, UTF-16, or a detected encoding.

    Args:
        path: the file to read.
        encoding: the encoding, which is detected if None.

    Raises:
        InvalidInputError: If the file does not exist, is not text, or does not match the encoding.
    """
    refuse_special(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"{path}: cannot be read: {error.strerror or error}; check the path"
        ) from None
    return decoded(content, str(path), encoding)


def decoded(content: bytes, source: str, encoding: str | None = None) -> str:
    """Decode bytes, with a warning if the encoding was guessed.

    Args:
        content: the bytes to decode.
        source: the file named in messages.
        encoding: the encoding. If None, a byte order mark is used if present. Otherwise, UTF-8 is
            tried first, and then the encoding is detected.

    Raises:
        InvalidInputError: If the bytes do not match the encoding, or none is detected.
    """
    form = form_of_bytes(content)
    if form:
        raise InvalidInputError(
            f"{source}: expected text, got {form}; unpack it, save it as .csv, or correct its"
            " extension"
        )
    if encoding is None:
        encoding = _marked_encoding(content)
    if encoding is not None:
        try:
            return content.decode(encoding).removeprefix("\ufeff")
        except (LookupError, UnicodeError) as error:
            raise InvalidInputError(
                f"{source}: cannot be read as {encoding}: {error}; {_REMEDY}"
            ) from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        return _guessed(content, source, error)


def form_of_bytes(content: bytes) -> str:
    """Identify a binary file's kind from its first bytes, or return "" if it may be text.

    >>> form_of_bytes(b"PK\\x03\\x04...")
    'a spreadsheet (.xlsx) or an archive (.zip)'
    """
    for start, form in _MAGIC.items():
        # Also look for control characters, because a table may start with a column called PAR1.
        if content.startswith(start) and re.search(rb"[\x00-\x08\x0e-\x1f]", content[:4096]):
            return form
    return ""


def json_form(text: str) -> str:
    """Return the layout of a JSON string: "list", "lines" (one value per line), or "object".

    If the text is long, it is enough to pass its beginning.

    >>> json_form('[{"a": 1}]'), json_form('{"a": 1}\\n{"a": 2}'), json_form('{"a": {"b": 1}}')
    ('list', 'lines', 'object')
    """
    first_line, _, rest = text.lstrip().partition("\n")
    try:
        json.loads(first_line)
    except (ValueError, RecursionError):
        return "list" if first_line.startswith("[") else "object"
    if rest.strip():
        return "lines"
    return "list" if first_line.startswith("[") else "object"


def decoded_text(content: bytes, source: str, encoding: str | None = None) -> str:
    """Decode a short text, such as a caption in a file of its own, without guessing its encoding.

    Args:
        content: the bytes to decode.
        source: the file named in messages.
        encoding: the encoding. If None, a byte order mark is used if present, and otherwise UTF-8.

    Raises:
        InvalidInputError: If the bytes do not match the encoding.
    """
    return decoded(content, source, encoding or _marked_encoding(content) or "utf-8")


def _marked_encoding(content: bytes) -> str | None:
    """Return the encoding indicated by a byte order mark, or by UTF-16's zero bytes."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return encoding
    start = content[:200]
    # For Latin letters in UTF-16, every second byte is zero.
    if len(start) >= 4 and not any(start[1::2]) and all(start[::2]):
        return "utf-16-le"
    if len(start) >= 4 and not any(start[::2]) and all(start[1::2]):
        return "utf-16-be"
    return None


def _guessed(content: bytes, source: str, error: UnicodeDecodeError) -> str:
    """Decode bytes that are not UTF-8, in the encoding detected by charset-normalizer."""
    line = content.count(b"\n", 0, error.start) + 1
    wrong = content[error.start : error.start + 1]
    high_bytes = len(re.findall(rb"[\x80-\xff]", content))
    high_bytes_of_utf8 = len(
        re.findall(rb"[\x80-\xff]", content.decode("utf-8", "ignore").encode())
    )
    # If UTF-8 is damaged, decoding it with a different encoding would change letters in all lines.
    if 2 * high_bytes_of_utf8 > high_bytes:
        raise InvalidInputError(
            f"{source}: line {line}: the byte {wrong!r} is not UTF-8, but the rest of the file is;"
            f" correct this line, or {_REMEDY}"
        ) from None
    encoding = None
    if not re.search(rb"[\x00-\x08\x0e-\x1f\x7f]", content):
        # In Latin scripts, most letters are ASCII, and other letters are isolated.
        runs = re.findall(rb"[\x80-\xff]+", content)
        is_latin = high_bytes < 1.5 * len(runs)
        candidates = _LATIN_ENCODINGS if is_latin else _OTHER_ENCODINGS
        match = need("charset_normalizer").from_bytes(content, cp_isolation=candidates).best()
        # Short Western text matches several encodings, of which cp1252 is by far the most common.
        if is_latin and (match is None or "cp1252" in match.could_be_from_charset):
            encoding = "cp1252"
        elif match is not None:
            encoding = str(match.encoding)
    try:
        text = content.decode(encoding or "ascii")
    except UnicodeDecodeError:
        raise InvalidInputError(
            f"{source}: line {line}: the byte {wrong!r} is not UTF-8, and no other encoding was"
            f" detected; {_REMEDY}"
        ) from None
    sample = next(row for row in text.splitlines() if not row.isascii())
    warn_of_input(
        f"{source}: not UTF-8, read as {encoding}, such as {sample[:60]!r}; if letters look wrong,"
        f" {_REMEDY}",
    )
    return text


def split_rows(
    text: str, source: str, *, separator: str | None = None, usual: str = ","
) -> list[list[str]]:
    """Parse a table, skipping blank lines.

    The first row contains the column names. A stray quote would merge the following rows into one
    cell, so stray quotes and rows of unequal length are errors, and cells with line breaks trigger
    a warning.

    Args:
        text: the content of the file.
        source: the file named in messages.
        separator: the cell separator, which is detected if None.
        usual: the separator to choose if several match.

    Raises:
        InvalidInputError: If there are no rows, rows have different lengths, the text contains
            control characters, or the separator is ambiguous.
    """
    control = _CONTROL.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        raise InvalidInputError(
            f"{source}: line {line}: got the control character {control.group()!r}; expected a text"
            " file in UTF-8"
        )
    # The user may also pass a name, such as "tab".
    separator = separator and {**SEPARATORS, "\\t": "\t"}.get(separator, separator)
    if separator is not None and len(separator) != 1:
        raise InvalidInputError(
            f"separator: got {separator!r}; expected {', '.join(SEPARATORS)} or one character"
        )
    table, above, excel_separator = _without_preamble(text, source)
    separator = separator or excel_separator or _separator_of(table, source, usual)
    try:
        rows, broken, short = _parsed(table, separator)
    except _RowError as error:
        try:
            if separator not in "\t|":
                raise
            # In a table separated by tabs or pipes, quotes may be normal characters.
            rows, _, short = _parsed(table, separator, quoting=csv.QUOTE_NONE)
        except _RowError:
            raise InvalidInputError(
                f"{source}: line {above + error.line}: {error}; enclose cells that contain a"
                f" {_name_of(separator)} or a quote in quotes, and double the quotes inside"
            ) from None
        broken = []
        warn_of_input(
            f"{source}: quotes are not closed, so they were read as normal characters",
        )
    if not rows:
        raise InvalidInputError(f"{source}: is empty; expected column names in the first line")
    rows = _without_empty_ends(rows, source)
    if len(set(rows[0])) != len(rows[0]):
        raise InvalidInputError(
            f"{source}: expected unique column names in the first line, got {shown(rows[0])}"
        )
    if short:
        warn_of_input(
            f"{source}: {len(short)} of {len(rows) - 1} rows lack their last cell"
            f" ({rows[0][-1]!r}), which was read as empty; the first is in line {above + short[0]}",
        )
    if broken:
        warn_of_input(
            f"{source}: {len(broken)} rows have a cell with a line break, the first in line"
            f" {above + broken[0]}. If the text should be on one line, a quote is missing there,"
            " and rows were merged into the cell",
        )
    return rows


def _without_empty_ends(rows: list[list[str]], source: str) -> list[list[str]]:
    """Drop empty rows at the end and empty columns without a name.

    Spreadsheets write ",,," for cells that were deleted.
    """
    filled = len(rows)
    while filled > 1 and len(rows[0]) > 1 and not any(rows[filled - 1]):
        filled -= 1
    if filled < len(rows):
        warn_of_input(
            f"{source}: ignored {len(rows) - filled} empty rows at the end",
        )
    rows = [[name.strip() for name in rows[0]], *rows[1:filled]]
    has_cells = [any(column) for column in zip(*rows, strict=True)]
    return rows if all(has_cells) else [list(compress(row, has_cells)) for row in rows]


class _RowError(Exception):
    """Raised if line number `line` of a table cannot be parsed."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _without_preamble(text: str, source: str) -> tuple[str, int, str | None]:
    """Remove comments and Excel's "sep=;" above a table.

    Returns:
        The table, the number of removed lines, and the separator after "sep=".
    """
    excel = _EXCEL.match(text)
    if excel:
        return text[excel.end() :], 1, excel.group(1)
    lines = text[:_SAMPLE].splitlines(keepends=True)
    above = 0
    # "# made by hand" is a comment, but "#,image" and "#id" are column names.
    while above + 1 < len(lines) and re.match(r"#\s+[^,;|\t]*$", lines[above].rstrip("\r\n")):
        above += 1
    if above:
        warn_of_input(
            f"{source}: ignored {above} comment lines above the table, such as"
            f" {lines[0].strip()[:60]!r}",
        )
    return "".join(lines[above:]) + text[_SAMPLE:], above, None


def _separator_of(text: str, source: str, usual: str) -> str:
    """Return the separator that splits all first rows into the same number (>= 2) of cells."""
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1]
    candidates = list(dict.fromkeys((usual, *SEPARATORS.values(), *_FULL_WIDTH)))
    fitting = []
    widths = {}
    for separator in candidates:
        rows = list[list[str]]()
        reader = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
        with suppress(csv.Error):  # the rows before the error are sufficient
            for row in islice(filter(None, reader), _SAMPLE_ROWS):
                rows.append(row)
        widths[separator] = len(rows[0]) if rows else 0
        if widths[separator] > 1 and all(len(row) == widths[separator] for row in rows):
            fitting.append(separator)
    if usual in fitting:
        return usual
    if len(fitting) > 1:
        names = " and ".join(map(_name_of, fitting))
        raise InvalidInputError(
            f"{source}: the separator may be {names}; save it as .tsv, with tabs between the cells"
        )
    # If no separator matches, `_parsed` reports the first line with a different length.
    splitting = [separator for separator in candidates if widths[separator] > 1]
    return (*fitting, *splitting, usual)[0]


def _parsed(
    text: str, separator: str, quoting: Literal[0, 3] = csv.QUOTE_MINIMAL
) -> tuple[list[list[str]], list[int], list[int]]:
    """Parse rows of the same length.

    The last cell of a pipe-separated row may be missing, as in one row of Flickr30k's results.csv,
    and is then empty. Many such rows are an error.

    Returns:
        The rows, the lines of cells with line breaks, and the lines of rows without their last
        cell.

    Raises:
        _RowError: If a quote is not closed, or rows have different lengths.
    """
    first_line = text[:_SAMPLE].lstrip("\r\n").partition("\n")[0]
    # In "image, caption", the space after the separator is not part of the cell.
    spaced = f"{separator} "
    is_spaced = first_line.count(spaced) == first_line.count(separator)
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=separator,
        strict=True,
        quoting=quoting,
        skipinitialspace=is_spaced and spaced in first_line.strip(),
    )
    rows = list[list[str]]()
    broken = list[int]()
    short = list[int]()
    start = 1
    try:
        for row in reader:
            if separator == "|" and rows and len(row) == len(rows[0]) - 1 > 1:
                row.append("")
                short.append(start)
            if row and rows and len(row) != len(rows[0]):
                raise csv.Error(
                    f"expected {len(rows[0])} columns as in the first line, got {len(row)}"
                )
            if row:
                rows.append(row)
            if reader.line_num > start:
                broken.append(start)
            start = reader.line_num + 1
        if len(short) > _MOST_SHORT * len(rows):
            start = short[0]
            raise csv.Error(f"expected {len(rows[0])} columns, got {len(rows[0]) - 1}")
    except csv.Error as error:
        raise _RowError(start, str(error)) from None
    return rows, broken, short


def _name_of(separator: str) -> str:
    """Return a separator's name, such as "comma"."""
    names = [name for name, character in SEPARATORS.items() if character == separator]
    return names[0] if names else repr(separator)
