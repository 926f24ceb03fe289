"""Read text and rows of tables that other programs wrote: find their encoding and separator.

Ambiguous files are refused; a guess is reported in a warning.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError, SuspectInputWarning, need, warn

SEPARATORS = {"comma": ",", "tab": "\t", "semicolon": ";", "pipe": "|"}
_FULL_WIDTH = ("\uff0c", "\uff1b")  # comma and semicolon of Chinese and Japanese keyboards
_BYTE_ORDER_MARKS = {  # the longer ones first: that of UTF-32 begins as that of UTF-16 does
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What programs write that do not write UTF-8; charset-normalizer says which.
_LATIN_ENCODINGS = ["cp1252", "cp1250", "cp1254", "cp1257"]
_OTHER_ENCODINGS = [
    *("cp1251", "cp1253", "cp1255", "cp1256", "koi8_r"),
    *("gb18030", "big5", "cp932", "euc_jp", "cp949"),
]
# ending -> what such a file is that people take for a list or a table.
OTHER_FORMS = {
    **dict.fromkeys((".yaml", ".yml"), "YAML"),
    **dict.fromkeys((".md", ".markdown"), "Markdown"),
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".numbers"), "a spreadsheet"),
    **dict.fromkeys((".docx", ".doc", ".pdf", ".rtf", ".odt"), "a document"),
    **dict.fromkeys((".html", ".htm", ".xml"), "markup"),
    **dict.fromkeys((".zip", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".tar"), "an archive"),
}
# What a file begins with whose ending says something else.
_MAGIC = {
    b"PK\x03\x04": "a spreadsheet (.xlsx) or an archive (.zip)",
    b"\xd0\xcf\x11\xe0": "a spreadsheet of an old Excel (.xls)",
    b"\x1f\x8b": "a file that gzip compressed",
    b"PAR1": "parquet",
    b"%PDF": "a PDF document",
    b"\x89PNG": "a picture (.png)",
    b"\xff\xd8\xff": "a picture (.jpg)",
}
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\x0b\x0c]")  # all but tabs and line ends
_EXCEL = re.compile(r"\ufeff?sep=(.)\r?\n")  # a first line that tells Excel the separator
_SAMPLE = 1 << 16  # characters that show how a table is separated
_SAMPLE_ROWS = 50
_MOST_SHORT = 0.05  # share of rows by pipes that may lack their last cell


def read_text(path: Path, encoding: str | None = None) -> str:
    """Return the text of a file in UTF-8, UTF-16, or the encoding that its bytes suggest.

    Raises:
        InvalidInputError: no such file, no text, or bytes that do not fit the encoding.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"{path}: cannot be read: {error.strerror or error}; check the path"
        ) from None
    return decoded(content, str(path), encoding)


def decoded(content: bytes, where: str, encoding: str | None = None) -> str:
    """Return bytes as text; warn where the encoding was guessed.

    Args:
        where: the file, for messages.
        encoding: its name; None: by the mark at the beginning, else UTF-8, else guessed.

    Raises:
        InvalidInputError: bytes that do not fit, or that fit no encoding.
    """
    form = form_of_bytes(content)
    if form:
        raise InvalidInputError(
            f"{where}: expected text, got {form}, whatever its name says; unpack it, save it as"
            " .csv, or name it by what it is"
        )
    if encoding is None:
        encoding = _marked_encoding(content)
    if encoding is not None:
        try:
            return content.decode(encoding).removeprefix("\ufeff")
        except (LookupError, UnicodeError) as error:
            raise InvalidInputError(
                f"{where}: cannot be read as {encoding}: {error}; save it as UTF-8, or name its"
                " encoding (`vldebias train --encoding`)"
            ) from None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        return _guessed(content, where, error)


def form_of_bytes(content: bytes) -> str:
    """Return what bytes are that are no text, by their first ones; "" where these say nothing.

    >>> form_of_bytes(b"PK\\x03\\x04...")
    'a spreadsheet (.xlsx) or an archive (.zip)'
    """
    for start, form in _MAGIC.items():
        # A table may begin with a column that is called PAR1; no text has these control characters.
        if content.startswith(start) and re.search(rb"[\x00-\x08\x0e-\x1f]", content[:4096]):
            return form
    return ""


def json_form(text: str) -> str:
    """Tell how JSON is written, whatever its ending says: "list", "lines" (a value a line), or
    "object"; of a long text its beginning is enough.

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


def decoded_texts(contents: Sequence[bytes], where: str, encoding: str | None = None) -> list[str]:
    """Return short texts, such as captions in files of their own; those that are no UTF-8 are
    guessed together, since each alone is too short to tell its encoding."""
    texts: list[str | None] = []
    not_utf8 = []
    for content in contents:
        text = None
        try:
            text = content.decode(encoding or _marked_encoding(content) or "utf-8").strip()
        except (LookupError, UnicodeError):
            # Line breaks part the texts below; those of a text are kept as carriage returns.
            not_utf8.append(content.replace(b"\r\n", b"\n").replace(b"\n", b"\r"))
        texts.append(text)
    if not not_utf8:
        return [text or "" for text in texts]
    guessed = iter(
        decoded(b"\n".join(not_utf8), f"{where}: {len(not_utf8)} texts", encoding).split("\n")
    )
    return [next(guessed).replace("\r", "\n").strip() if text is None else text for text in texts]


def _marked_encoding(content: bytes) -> str | None:
    """Return the encoding that the first bytes say: a byte order mark, or the zeros of UTF-16."""
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return encoding
    start = content[:200]
    # Letters of Latin scripts in UTF-16: every second byte is zero.
    if len(start) >= 4 and not any(start[1::2]) and all(start[::2]):
        return "utf-16-le"
    if len(start) >= 4 and not any(start[::2]) and all(start[1::2]):
        return "utf-16-be"
    return None


def _guessed(content: bytes, where: str, error: UnicodeDecodeError) -> str:
    """Return the text of bytes that are no UTF-8, by the encoding that charset-normalizer finds."""
    line = content.count(b"\n", 0, error.start) + 1
    wrong = content[error.start : error.start + 1]
    remedy = "save it as UTF-8, or name its encoding (`vldebias train --encoding`)"
    high_bytes = len(re.findall(rb"[\x80-\xff]", content))
    high_bytes_of_utf8 = len(
        re.findall(rb"[\x80-\xff]", content.decode("utf-8", "ignore").encode())
    )
    # UTF-8 with a damaged place: a guess of another encoding would change the letters of all other
    # lines.
    if 2 * high_bytes_of_utf8 > high_bytes:
        raise InvalidInputError(
            f"{where}: line {line}: the byte {wrong!r} is no UTF-8, as other letters of the file"
            f" are; correct this line, or {remedy}"
        ) from None
    encoding = None
    if not re.search(rb"[\x00-\x08\x0e-\x1f\x7f]", content):
        # In Latin scripts most letters are ASCII, and the others stand alone among them.
        runs = re.findall(rb"[\x80-\xff]+", content)
        is_latin = high_bytes < 1.5 * len(runs)
        candidates = _LATIN_ENCODINGS if is_latin else _OTHER_ENCODINGS
        match = need("charset_normalizer").from_bytes(content, cp_isolation=candidates).best()
        # Western texts of few words fit several; that of Windows is by far the most frequent.
        if is_latin and (match is None or "cp1252" in match.could_be_from_charset):
            encoding = "cp1252"
        elif match is not None:
            encoding = str(match.encoding)
    try:
        text = content.decode(encoding or "ascii")
    except UnicodeDecodeError:
        raise InvalidInputError(
            f"{where}: line {line}: the byte {wrong!r} is no UTF-8, and no other encoding fits;"
            f" expected text; {remedy}"
        ) from None
    sample = next(row for row in text.splitlines() if not row.isascii())
    warn(
        f"{where}: is no UTF-8 and was read as {encoding}, such as {sample[:60]!r}; if letters"
        f" look wrong, {remedy}",
        SuspectInputWarning,
    )
    return text


def separator_named(text: str | None) -> str | None:
    """Return the separator that a user names: "tab", "\\t", or the character itself.

    Raises:
        InvalidInputError: it is more than one character.
    """
    if text is None:
        return None
    separator = {**SEPARATORS, "\\t": "\t"}.get(text, text)
    if len(separator) != 1:
        raise InvalidInputError(
            f"separator: got {text!r}; expected {', '.join(SEPARATORS)} or one character"
        )
    return separator


def split_rows(
    text: str, where: str, *, separator: str | None = None, usual: str = ","
) -> list[list[str]]:
    """Return the rows of a table, without blank lines; the first row names the columns.

    A reader that meets a stray quote takes the rows after it for one cell: such a quote, and rows
    of another number of cells, are refused, and cells with line breaks are warned of.

    Args:
        text: its content.
        where: its file, for messages.
        separator: what stands between cells; None: `usual` where it fits, else what fits.

    Raises:
        InvalidInputError: no row, rows of different lengths, control characters, or several
            separators that fit.
    """
    control = _CONTROL.search(text)
    if control:
        line = text.count("\n", 0, control.start()) + 1
        raise InvalidInputError(
            f"{where}: line {line}: got the control character {control.group()!r}; expected a text"
            " file in UTF-8"
        )
    separator = separator_named(separator)
    table, above, excel_separator = _without_preamble(text, where)
    separator = separator or excel_separator or _separator_of(table, where, usual)
    try:
        rows, broken, short = _parsed(table, separator)
    except _RowError as error:
        unquoted = _unquoted(table, separator)
        if unquoted is None:
            raise InvalidInputError(
                f"{where}: line {above + error.line}: {error}; a cell that holds a"
                f" {_name_of(separator)} or a quote stands in quotes, and quotes inside of it are"
                " doubled"
            ) from None
        rows, short = unquoted
        broken = []
        warn(
            f"{where}: quotes are not closed, so they were read as characters of the texts",
            SuspectInputWarning,
        )
    if not rows:
        raise InvalidInputError(f"{where}: is empty; expected names of columns in the first line")
    rows = _without_empty_ends(rows, where)
    if len(set(rows[0])) != len(rows[0]):
        raise InvalidInputError(
            f"{where}: expected different names of columns in the first line, got {rows[:1]}"
        )
    if short:
        warn(
            f"{where}: {len(short)} of {len(rows) - 1} rows lack their last cell"
            f" ({rows[0][-1]!r}), the first in line {above + short[0]}; it was read as empty",
            SuspectInputWarning,
        )
    if broken:
        warn(
            f"{where}: {len(broken)} rows have a cell with a line break, the first in line"
            f" {above + broken[0]}; if that is no text of several lines, a quote is missing there"
            " and rows were read as a part of the cell",
            SuspectInputWarning,
        )
    return rows


def _without_empty_ends(rows: list[list[str]], where: str) -> list[list[str]]:
    """Return rows without those at the end, and columns without a name, in which no cell is filled:
    spreadsheets write ",,," for what once had a cell."""
    filled = len(rows)
    while filled > 1 and len(rows[0]) > 1 and not any(rows[filled - 1]):
        filled -= 1
    if filled < len(rows):
        warn(
            f"{where}: {len(rows) - filled} rows at the end have no cell that is filled, and were"
            " left out",
            SuspectInputWarning,
        )
    rows = [[name.strip() for name in rows[0]], *rows[1:filled]]
    kept = []
    for place, name in enumerate(rows[0]):
        if name or any(row[place] for row in rows[1:]):
            kept.append(place)
    if len(kept) == len(rows[0]):
        return rows
    return [[row[place] for place in kept] for row in rows]


class _RowError(Exception):
    """Report a line of a table that cannot be read, with its number."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


def _without_preamble(text: str, where: str) -> tuple[str, int, str | None]:
    """Return a table without the comments above it, their number of lines, and the separator that a
    line for Excel ("sep=;") names."""
    excel = _EXCEL.match(text)
    if excel:
        return text[excel.end() :], 1, excel.group(1)
    lines = text[:_SAMPLE].splitlines(keepends=True)
    above = 0
    # "# made by hand" is a comment; "#,image" and "#id" name columns.
    while above + 1 < len(lines) and re.match(r"#\s+[^,;|\t]*$", lines[above].rstrip("\r\n")):
        above += 1
    if above:
        warn(
            f"{where}: {above} lines that begin with # above the table were left out, such as"
            f" {lines[0].strip()[:60]!r}",
            SuspectInputWarning,
        )
    return "".join(lines[above:]) + text[_SAMPLE:], above, None


def _separator_of(text: str, where: str, usual: str) -> str:
    """Return the separator by which the first rows have the same number of cells, two or more."""
    sample = text[:_SAMPLE]
    if len(text) > _SAMPLE:
        sample = sample[: sample.rfind("\n") + 1]
    candidates = list(dict.fromkeys((usual, *SEPARATORS.values(), *_FULL_WIDTH)))
    fitting = []
    widths = {}
    for separator in candidates:
        rows = list[list[str]]()
        reader = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
        with suppress(csv.Error):  # the rows before it tell as much
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
            f"{where}: its cells may be separated by {names}; say which (--separator)"
        )
    # Where none fits, `_parsed` names the first line of another length.
    splitting = [separator for separator in candidates if widths[separator] > 1]
    return (*fitting, *splitting, usual)[0]


def _parsed(text: str, separator: str, **form: Any) -> tuple[list[list[str]], list[int], list[int]]:
    """Return rows of one length, the lines in which a cell with a line break begins, and those of
    rows that lack their last cell, which is then empty.

    The latter is known of one row of Flickr30k's results.csv, a table by pipes; rows by other
    separators, and many such rows, are refused.

    Raises:
        _RowError: a stray quote, or a row of another length.
    """
    first_line = text[:_SAMPLE].lstrip("\r\n").partition("\n")[0]
    # "image, caption": a blank after each separator is no part of the cell.
    spaced = f"{separator} "
    is_spaced = first_line.count(spaced) == first_line.count(separator)
    form["skipinitialspace"] = is_spaced and spaced in first_line.strip()
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True, **form)
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


def _unquoted(text: str, separator: str) -> tuple[list[list[str]], list[int]] | None:
    """Return rows in which quotes are characters, for tables that are written so (by tabs and
    pipes), and the lines of those that lack their last cell; None where that makes no table."""
    if separator not in "\t|":
        return None
    try:
        rows, _, short = _parsed(text, separator, quoting=csv.QUOTE_NONE)
    except _RowError:
        return None
    return rows, short


def _name_of(separator: str) -> str:
    """Return the name of a separator, "comma"."""
    for name, character in SEPARATORS.items():
        if character == separator:
            return name
    return repr(separator)
