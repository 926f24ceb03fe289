"""Read prompts from a file of lines, a table, JSON or a data frame."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError, need, shortened
from vldebias.utils.json_tables import (
    cell_of,
    column_around,
    flat,
    is_json_document,
    names_of,
    parsed,
    rows_of_json,
)
from vldebias.utils.text_tables import OTHER_FORMS, decoded, split_rows

STDIN = Path("-")
COLUMNS = ("prompt", "prompts", "text", "caption", "captions")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_TABLES = {".csv": ",", ".tsv": "\t"}
# The lines of the infotexts that Automatic1111 and its forks save, and of their script "Prompts
# from file".
_NEGATIVE = re.compile(r"Negative prompt:")
_SETTINGS = re.compile(r"Steps: \d+, (?=.*\b(?:Sampler|Seed|Size|CFG scale): )")
_OPTIONS = re.compile(r"--(?:prompt|negative_prompt|steps|cfg_scale|sampler_name|seed)\b")
# "# people" and "#a welder" of wildcard files; "#1 fan" and "#ff8800 dress" are prompts.
_COMMENT = re.compile(r"#(?!\d|[0-9a-f]{6}\b)", re.IGNORECASE)


@dataclass(frozen=True)
class PromptList:
    """Prompts that were read from a file or a data frame.

    Attributes:
        prompts: the prompts, with repetitions.
        column: the column they were read from; None for lines.
        comments: number of lines that were skipped as comments.
        note: what else was skipped, in words.
    """

    prompts: tuple[str, ...]
    column: str | None = None
    comments: int = 0
    note: str = ""

    def __str__(self) -> str:
        """Describe what was read."""
        text = "1 prompt" if len(self.prompts) == 1 else f"{len(self.prompts)} prompts"
        if self.column is not None:
            text += f" of the column {self.column!r}"
        if self.comments:
            text += f"; {self.comments} left out as comments, since they begin with #"
        if self.note:
            text += f"; {self.note}"
        return text


def read_prompts(source: Any, column: str | None = None) -> PromptList:
    """Read prompts from a file, standard input ("-"), or a pandas data frame.

    - Text files contain one prompt per line; lines end with \\n or \\r\\n only. A pair of quotes
      around a line is removed; empty lines and comments of wildcard files ("# people") are skipped.
      From infotexts saved by Automatic1111, and lines for its script "Prompts from file", only the
      prompts are read.
    - .csv, .tsv, .parquet, .jsonl (objects or texts), .json (a list of either, or an object that
      contains one list of objects) and data frames contain a column of prompts, such as
      "body.prompt" if objects are nested.

    Args:
        source: the file or the data frame.
        column: the column of the prompts. None: the column `prompt`, otherwise the only one named
            like one of `COLUMNS`.

    Raises:
        InvalidInputError: the file or the column does not exist, the file has an unknown format, a
            row has no prompt, or there are no prompts.
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
            f"{where}: got {OTHER_FORMS[ending]} ({ending}); expected a text file with a prompt a"
            " line, .csv, .tsv, .jsonl, .json or .parquet: save the prompts as one of these"
        )
    if ending == ".parquet":
        return _of_parquet(path, column)
    text = _text_of(path)
    if ending in _TABLES:
        names, *cells = split_rows(text, where, usual=_TABLES[ending])
        rows = [dict(zip(names, row, strict=True)) for row in cells]
        lines = range(2, len(rows) + 2)
        return _of_rows(rows, [f"{where}: row {n}" for n in lines], column, where, names)
    if ending in (".json", ".jsonl", ".ndjson"):
        if is_json_document(text, ending):
            return _of_json(text, where, column)
        return _of_json_lines(text, where, column)
    if column is not None:
        raise InvalidInputError(
            f"{where}: column {column!r}: a text file has a prompt a line and no columns; expected"
            " .csv, .tsv, .jsonl or .parquet with it"
        )
    return _of_lines(text, where)


def prompt_list(prompts: Any, column: str | None = None) -> PromptList:
    """Return the prompts of texts, a file, a pandas frame or a `PromptList`.

    Args:
        prompts: texts, the path of a file, a frame, or the result of `read_prompts`.
        column: see `read_prompts`.

    Raises:
        InvalidInputError: as `read_prompts`, or texts of another type.
    """
    if isinstance(prompts, PromptList):
        return prompts
    if isinstance(prompts, str | Path) or _is_frame(prompts):
        return read_prompts(prompts, column)
    return PromptList(checked_texts(prompts))


def _is_frame(prompts: Any) -> bool:
    """Return whether prompts are a data frame of pandas or polars, which iterates over names."""
    return hasattr(prompts, "columns") and hasattr(prompts, "iloc")


def checked_texts(prompts: Any) -> tuple[str, ...]:
    """Return the texts of a list, a column or an array.

    Raises:
        InvalidInputError: something else; the message says which entry, and of frames to name the
            column.
    """
    if _is_frame(prompts):
        raise InvalidInputError(
            f"prompts: got a frame with the columns {list(map(str, prompts.columns))}; expected"
            " texts: give its column, such as frame['prompt']"
        )
    # A set has no order, and the letters of a text are no prompts.
    is_no_list = isinstance(prompts, str | bytes | Mapping | set | frozenset)
    if is_no_list or not isinstance(prompts, Iterable):
        raise InvalidInputError(
            f"prompts: got {shortened(repr(prompts), 200)}; expected a text or a list of texts, one"
            " for each image"
        )
    # Arrays of arrow give scalars.
    texts = prompts.to_pylist() if hasattr(prompts, "to_pylist") else list(prompts)
    for place, text in enumerate(texts):
        # A tokenizer cannot read half of an emoji.
        if not isinstance(text, str) or _LONE_SURROGATE.search(text):
            raise InvalidInputError(
                f"prompts: got {shortened(repr(text), 200)} in place {place} of {len(texts)};"
                " expected a text or a list of texts, one for each image"
            )
    return tuple(texts)


def _text_of(path: Path) -> str:
    """Return the text of a file, or of standard input."""
    if path == STDIN:
        return sys.stdin.read().removeprefix("\ufeff")
    if not path.is_file():
        raise InvalidInputError(f"{path}: no such file; expected prompts, one a line, or -")
    text = decoded(path.read_bytes(), str(path))
    # Images and archives contain null bytes, whatever their file extension.
    if "\0" in text:
        raise InvalidInputError(f"{path}: expected a text file in UTF-8, got other bytes")
    return text


def _of_lines(text: str, where: str) -> PromptList:
    """Return the prompts of lines.

    str.splitlines would also split at U+2028, NEL and other characters that prompts may contain.
    """
    lines = re.split(r"\r\n|\n", text)
    if any(_SETTINGS.match(line.strip()) or _NEGATIVE.match(line.strip()) for line in lines):
        return _of_infotexts(lines, where)
    if any(_OPTIONS.match(line.strip()) for line in lines):
        return _of_options(lines, where)
    prompts = []
    comments = 0
    for line in lines:
        prompt = line.strip(" \t\r\ufeff")
        if _COMMENT.match(prompt):
            comments += 1
        elif prompt:
            prompts.append(_unquoted(prompt))
    if not prompts:
        raise InvalidInputError(f"{where}: got no prompts; expected one a line")
    return PromptList(tuple(prompts), None, comments)


def _of_infotexts(lines: Sequence[str], where: str) -> PromptList:
    """Return the prompts of infotexts, which follow each other in a file.

    Each is a prompt, "Negative prompt: ..." and "Steps: 20, Sampler: ...". Only the prompt matters
    to a reader of prompts.

    Raises:
        InvalidInputError: a negative prompt or settings without a prompt before them.
    """
    prompts: list[str] = []
    joined = {"prompt": 0, "negative prompt": 0}
    parts: dict[str, list[str]] = {"prompt": [], "negative prompt": []}

    def end_of_infotext() -> None:
        if parts["prompt"]:
            prompts.append(" ".join(parts["prompt"]))
        for kind, texts in parts.items():
            joined[kind] += len(texts) > 1
            texts.clear()

    kind = ""
    for number, text in enumerate(map(str.strip, lines), start=1):
        goes_on = kind == "negative prompt" and bool(parts[kind])
        kind = _kind_of_line(text, goes_on)
        # If the settings of an infotext are missing, the next prompt or negative prompt ends it.
        is_next = kind == "prompt" or _NEGATIVE.match(text) is not None
        if is_next and parts["negative prompt"]:
            end_of_infotext()
        if kind in ("settings", "negative prompt") and not parts["prompt"]:
            raise InvalidInputError(
                f"{where}: line {number}: expected a prompt before {text[:40]!r}; the file looks"
                " like infotexts of Automatic1111: a prompt, its negative prompt, its settings"
            )
        if kind == "settings":
            end_of_infotext()
        elif kind:
            parts[kind].append(text)
    end_of_infotext()
    note = "infotexts of Automatic1111, without their negative prompts and settings"
    for kind, number in joined.items():
        if number:
            note += f"; {number} with the {kind} on several lines, which belong together"
    return PromptList(tuple(prompts), note=note)


def _kind_of_line(text: str, goes_on: bool) -> str:
    """Return the part of an infotext that a line belongs to; "" for a blank line.

    Args:
        text: the line.
        goes_on: whether the line before belongs to a negative prompt.
    """
    if _SETTINGS.match(text):
        return "settings"
    if _NEGATIVE.match(text) or (text and goes_on):
        return "negative prompt"
    return "prompt" if text else ""


def _of_options(lines: Sequence[str], where: str) -> PromptList:
    """Return the prompts of lines for "Prompts from file": --prompt "a nurse" --steps 30; a line
    without options is a prompt.

    Raises:
        InvalidInputError: a line that has options and no prompt, or quotes that are not closed.
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
        if "--prompt" not in words[:-1] or not words[words.index("--prompt") + 1].strip():
            raise InvalidInputError(
                f'{place}: expected --prompt "..." among the options, got {text[:60]}'
            )
        prompts.append(words[words.index("--prompt") + 1])
    note = 'lines of "Prompts from file", without their other options'
    return PromptList(tuple(prompts), note=note)


def _unquoted(line: str) -> str:
    """Remove the pair of quotes around a line."""
    for quote in ('"', "'"):
        inner = line[1:-1]
        if len(line) > 2 and line[0] == line[-1] == quote and quote not in inner:
            return inner.strip()
    return line


def _of_json_lines(text: str, where: str, column: str | None) -> PromptList:
    """Return the prompts of JSON lines: a text or an object on each, or a list of all."""
    rows: list[Any] = []
    places: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{where}:{number}"
        content = parsed(line, place)
        entries = content if isinstance(content, list) else [content]
        rows += entries
        places += [place] * len(entries)
    return _of_rows(rows, places, column, where)


def _of_json(text: str, where: str, column: str | None) -> PromptList:
    """Return the prompts of a JSON file: a list of texts or of objects, or the answer of an API
    that contains one list of objects."""
    rows = parsed(text, where)
    if isinstance(rows, Mapping):
        rows = rows_of_json(text, where)
    if not isinstance(rows, list):
        raise InvalidInputError(
            f'{where}: expected a list such as ["a nurse", ...], got'
            f" {type(rows).__name__} {text.strip()[:40]}"
        )
    places = [f"{where}: entry {number}" for number in range(1, len(rows) + 1)]
    return _of_rows(rows, places, column, where)


def _of_parquet(path: Path, column: str | None) -> PromptList:
    """Return the prompts of a column of a parquet file."""
    parquet = need("pyarrow.parquet")
    try:
        table = parquet.read_table(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are ValueErrors
        raise InvalidInputError(f"{path}: cannot be read as parquet: {error}") from None
    rows = table.to_pylist()
    places = [f"{path}: row {n}" for n in range(1, len(rows) + 1)]
    return _of_rows(rows, places, column, str(path))


def _of_rows(
    rows: Sequence[Any],
    places: Sequence[str],
    column: str | None,
    where: str,
    names: Iterable[str] | None = None,
) -> PromptList:
    """Return the prompts of rows: texts, or objects with a column of them.

    Args:
        rows: the rows.
        places: where each row is, for messages.
        column: the name that the user gave, or None.
        where: the file or the frame, for messages.
        names: names of the columns. None: the keys of the rows, with dotted names for the parts of
            nested objects.
    """
    if not rows:
        raise InvalidInputError(f"{where}: got no prompts; expected a row for each")
    has_columns = isinstance(rows[0], Mapping)
    name = None
    if has_columns:
        table = []
        for row, place in zip(rows, places, strict=True):
            if not isinstance(row, Mapping):
                raise InvalidInputError(f"{place}: expected an object, got {str(row)[:60]}")
            table.append(flat(row, place))
        rows = table
        name = _column_of(names_of(table) if names is None else names, column, where)
    prompts = []
    for row, place in zip(rows, places, strict=True):
        prompt = row
        if name is not None:
            prompt = cell_of(row, name)
        if not isinstance(prompt, str) or not prompt.strip():
            where_in_row = f" in {name!r}" if has_columns else ""
            raise InvalidInputError(f"{place}: expected a prompt{where_in_row}, got {prompt!r}")
        prompts.append(prompt)
    return PromptList(tuple(prompts), name)


def _column_of(names: Iterable[str], column: str | None, where: str) -> str:
    """Return the column of the prompts.

    Raises:
        InvalidInputError: none, or several that may be meant.
    """
    names = [str(name) for name in names]
    remedy = "name it (--column; in Python column=...)"
    if column is not None:
        named = _named_column(names, column)
        if named is None:
            raise InvalidInputError(f"{where}: no column {column!r} in {names}; {remedy}")
        return named
    plain = {name.strip().casefold(): name for name in names}
    if "prompt" in plain:
        return plain["prompt"]
    fitting = [name for key, name in plain.items() if key in COLUMNS]
    # "body.prompt" and "meta.prompt", if no column of the rows themselves is called so.
    if not fitting:
        fitting = [name for key, name in plain.items() if key.rpartition(".")[2] == "prompt"]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise InvalidInputError(f"{where}: prompts may be in any of {fitting}; {remedy}")
    raise InvalidInputError(f"{where}: no column 'prompt' in {names}; {remedy}")


def _named_column(names: Sequence[str], column: str) -> str | None:
    """Return the column with a name that the user gave, in whatever case, or None."""
    if column in names:
        return column
    alike = [name for name in names if name.strip().casefold() == column.strip().casefold()]
    if len(alike) == 1:
        return alike[0]
    return column if column_around(names, column) is not None else None
