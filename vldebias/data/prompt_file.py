"""Read prompts from a text file, a table, a JSON file or a data frame."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vldebias.data.tables import read_table
from vldebias.errors import InvalidInputError
from vldebias.utils.json_tables import located_values
from vldebias.utils.table_rows import (
    JSON_ENDINGS,
    cell_of,
    find_column,
    fitting_columns,
    flat,
    names_of,
    plain_name,
    read_rows,
)
from vldebias.utils.text_tables import OTHER_FORMS, decoded
from vldebias.utils.texts import checked_texts, is_frame

STDIN = Path("-")
COLUMNS = ("prompt", "prompts", "text", "caption", "captions")
# These patterns recognise the infotexts saved by Automatic1111 and its forks, and the input lines
# of their script "Prompts from file".
_NEGATIVE = re.compile(r"Negative prompt:")
_SETTINGS = re.compile(r"Steps: \d+, (?=.*\b(?:Sampler|Seed|Size|CFG scale): )")
_OPTIONS = re.compile(r"--(?:prompt|negative_prompt|steps|cfg_scale|sampler_name|seed)\b")
# The first line of a table, such as "prompt,gender", and its separator.
_HEADER = re.compile(r"\w+([,;\t])\w+(?:\1\w+)*")
# Wildcard files contain comments such as "# people" and "#a welder", whereas "#1 fan" and
# "#ff8800 dress" are prompts.
_COMMENT = re.compile(r"#(?!\d|[0-9a-f]{6}\b)", re.IGNORECASE)


@dataclass(frozen=True)
class PromptList:
    """Prompts read from a file or a data frame.

    Attributes:
        prompts: The prompts in their original order, including duplicates.
        column: The column that contained the prompts, or None if there were no columns.
        comments: The number of lines skipped as comments.
        note: A description of anything else that was skipped.
    """

    prompts: tuple[str, ...]
    column: str | None = None
    comments: int = 0
    note: str = ""

    def __str__(self) -> str:
        """Return a one-line summary for log messages and reports."""
        text = "1 prompt" if len(self.prompts) == 1 else f"{len(self.prompts)} prompts"
        if self.column is not None:
            text += f" from column {self.column!r}"
        if self.comments:
            text += f"; {self.comments} skipped as comments (they begin with #)"
        if self.note:
            text += f"; {self.note}"
        return text


def read_prompts(source: Any, column: str | None = None) -> PromptList:
    """Read prompts from a file, standard input ("-"), or a pandas data frame.

    - Text files contain one prompt per line. Lines end only with \\n or \\r\\n. Quotes around a
      line are removed, and empty lines and wildcard-file comments ("# people") are skipped. If the
      file contains Automatic1111 infotexts or input for its script "Prompts from file", everything
      except the prompts is ignored.
    - Data frames, .csv, .tsv, .parquet, .jsonl (one object or string per line) and .json (a list of
      objects or strings, an object that contains one such list, or an object of objects) have a
      prompt column. Columns of nested objects have dotted names such as "body.prompt".

    Args:
        source: The file or the data frame.
        column: The name of the prompt column, matched as in `utils.table_rows.find_column`. If
            None, the column `prompt` is used or, if there is none, the only column whose name is in
            `COLUMNS`.

    Raises:
        InvalidInputError: If the file or the column does not exist, the file format is not
            supported, a row has no prompt, or there are no prompts.
    """
    if not isinstance(source, str | Path):
        rows = source.to_dict("records")
        places = [f"row {index}" for index in source.index]
        return _of_rows(rows, places, column, "the frame")
    path = Path(source)
    where = str(path)
    ending = path.suffix.lower()
    if ending in OTHER_FORMS:
        raise InvalidInputError(
            f"{where}: got {OTHER_FORMS[ending]} ({ending}); expected a text file with one prompt"
            " per line, or a .csv, .tsv, .jsonl, .json or .parquet file. Save the prompts in one of"
            " these formats"
        )
    if ending == ".parquet":
        return _of_parquet(path, column)
    text = _text_of(path)
    if ending in JSON_ENDINGS:
        values, places = located_values(text, ending, where)
        return _of_rows(values, places, column, where)
    if ending in (".csv", ".tsv"):
        _, rows, places = read_rows(text, ending, where)
        return _of_rows(rows, places, column, where)
    if column is not None:
        raise InvalidInputError(
            f"{where}: got column {column!r}, but a text file has one prompt per line and no"
            " columns; expected a .csv, .tsv, .jsonl or .parquet file"
        )
    return _of_lines(text, where)


def prompt_list(prompts: Any, column: str | None = None) -> PromptList:
    """Convert strings, a file, a pandas data frame or a `PromptList` to a `PromptList`.

    Args:
        prompts: A list of strings, a file path, a data frame, or the result of `read_prompts`.
        column: See `read_prompts`.

    Raises:
        InvalidInputError: If a prompt is not a string, or for any reason given in `read_prompts`.
    """
    if isinstance(prompts, PromptList):
        return prompts
    if isinstance(prompts, str | Path) or is_frame(prompts):
        return read_prompts(prompts, column)
    return PromptList(checked_texts(prompts))


def _text_of(path: Path) -> str:
    """Return the contents of a file or of standard input."""
    if path == STDIN:
        return sys.stdin.read().removeprefix("\ufeff")
    if not path.is_file():
        problem = "got a folder" if path.is_dir() else "no such file"
        raise InvalidInputError(f"{path}: {problem}; expected a file of prompts, or - for stdin")
    text = decoded(path.read_bytes(), str(path))
    # Images and archives contain null bytes, whatever their file extension.
    if "\0" in text:
        raise InvalidInputError(f"{path}: expected a UTF-8 text file, got binary data")
    return text


def _of_lines(text: str, where: str) -> PromptList:
    """Parse one prompt per line, or the formats that Automatic1111 reads and writes."""
    # str.splitlines would also split at U+2028, NEL and other characters that prompts may contain.
    lines = re.split(r"\r\n|\n", text)
    if any(_SETTINGS.match(line.strip()) or _NEGATIVE.match(line.strip()) for line in lines):
        return _of_infotexts(lines, where)
    if any(_OPTIONS.match(line.strip()) for line in lines):
        return _of_options(lines, where)
    lines = [line.strip(" \t\r\ufeff") for line in lines]
    header = _HEADER.fullmatch(lines[0])
    if header and fitting_columns(lines[0].split(header[1]), COLUMNS):
        raise InvalidInputError(
            f"{where}: expected one prompt per line, got a table with the columns {lines[0]!r:.60};"
            " save it as .csv, or as .tsv if tabs separate its columns"
        )
    prompts = [_unquoted(line) for line in lines if line and not _COMMENT.match(line)]
    if not prompts:
        raise InvalidInputError(f"{where}: got no prompts; expected one per line")
    return PromptList(tuple(prompts), comments=sum(map(bool, map(_COMMENT.match, lines))))


def _of_infotexts(lines: Sequence[str], where: str) -> PromptList:
    """Parse the prompts from a file of consecutive infotexts.

    An infotext consists of a prompt, "Negative prompt: ..." and "Steps: 20, Sampler: ...".

    Raises:
        InvalidInputError: If a negative prompt or settings line is not preceded by a prompt.
    """
    prompts: list[list[str]] = []  # the lines of each prompt
    kind = ""  # of the line, which is "" if the line is empty
    part = "settings"  # the part of the infotext that was read last
    for number, text in enumerate(map(str.strip, lines), start=1):
        starts_negative = _NEGATIVE.match(text) is not None
        if _SETTINGS.match(text):
            kind = "settings"
        elif starts_negative or (text and kind == "negative prompt"):
            kind = "negative prompt"  # which may go on for several lines
        else:
            kind = "prompt" if text else ""
        if kind == "prompt":
            if part != "prompt":
                prompts.append([])
            prompts[-1].append(text)
        elif (kind and part == "settings") or (starts_negative and part == "negative prompt"):
            raise InvalidInputError(
                f"{where}: line {number}: expected a prompt before {text[:40]!r}. The file looks"
                " like Automatic1111 infotexts, which consist of a prompt, a negative prompt and"
                " settings"
            )
        part = kind or part
    joined = sum(len(lines_of_prompt) > 1 for lines_of_prompt in prompts)
    note = (
        "Automatic1111 infotexts, without their negative prompts and settings;"
        f" {joined} had the prompt on several lines, which were joined"
    )
    return PromptList(tuple(map(" ".join, prompts)), note=note)


def _of_options(lines: Sequence[str], where: str) -> PromptList:
    """Parse input for the script "Prompts from file".

    A line has options, such as --prompt "a nurse" --steps 30, or consists of a prompt only.

    Raises:
        InvalidInputError: If a line has options but no prompt, or an unclosed quote.
    """
    prompts: list[str] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        if not text.startswith("--"):
            prompts.append(_unquoted(text))
            continue
        place = f"{where}: line {number}"
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InvalidInputError(f"{place}: {error}: {text[:60]}; close the quotes") from None
        prompt = dict(pairwise(words)).get("--prompt", "")
        if not prompt.strip():
            raise InvalidInputError(
                f'{place}: expected --prompt "..." among the options, got {text[:60]}'
            )
        prompts.append(prompt)
    note = 'input for "Prompts from file", without its other options'
    return PromptList(tuple(prompts), note=note)


def _unquoted(line: str) -> str:
    """Remove the quotes around a line, unless the line contains other quotes."""
    quoted = re.fullmatch(r"([\"'])((?:(?!\1).)+)\1", line)
    return quoted[2].strip() if quoted else line


def _of_parquet(path: Path, column: str | None) -> PromptList:
    """Read the prompt column of a Parquet file."""
    rows = read_table(path).to_pylist()
    places = [f"{path}: row {n}" for n in range(1, len(rows) + 1)]
    return _of_rows(rows, places, column, str(path))


def _of_rows(
    rows: Sequence[Any], places: Sequence[str], column: str | None, where: str
) -> PromptList:
    """Extract the prompts from rows that are either strings or objects.

    Args:
        rows: The rows.
        places: The location of each row, for error messages.
        column: The column name given by the user, or None.
        where: The name of the file or data frame, for error messages.
    """
    if not rows:
        raise InvalidInputError(f"{where}: got no prompts; expected one per row")
    name = None
    if isinstance(rows[0], Mapping):
        rows = [flat(row, place) for row, place in zip(rows, places, strict=True)]
        name = _column_of(list(map(str, names_of(rows))), column, where)
    prompts = []
    for row, place in zip(rows, places, strict=True):
        prompt = row if name is None else cell_of(row, name)
        if not isinstance(prompt, str) or not prompt.strip():
            where_in_row = "" if name is None else f" in {name!r}"
            raise InvalidInputError(f"{place}: expected a prompt{where_in_row}, got {prompt!r}")
        prompts.append(prompt)
    return PromptList(tuple(prompts), name)


def _column_of(names: Sequence[str], column: str | None, where: str) -> str:
    """Return the name of the prompt column.

    Raises:
        InvalidInputError: If there is no such column, or there are several candidates.
    """
    if column is not None:
        fitting = list(filter(None, [find_column(names, column)]))
    else:
        fitting = fitting_columns(names, COLUMNS)
        prompts = [name for name in fitting if plain_name(name) == COLUMNS[0]]
        # Nested columns such as "body.prompt" are candidates only if no top-level column matches.
        nested = [name for name in names if name.rpartition(".")[2].casefold() == COLUMNS[0]]
        fitting = prompts or fitting or nested
    if len(fitting) == 1:
        return fitting[0]
    problem = f"no column {column or 'prompt'!r} in {names}"
    if fitting:
        problem = f"the prompts may be in any of {fitting}"
    raise InvalidInputError(f"{where}: {problem}; choose one with --column (column=... in Python)")
