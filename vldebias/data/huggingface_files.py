"""Files behind a Hugging Face data set: one table, one tar, or many tars named by a pattern."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any

from vldebias.errors import InvalidInputError

__all__ = ["FORMATS", "expand_braces", "is_pattern", "source_of", "title_of"]

FORMATS = {".parquet": "parquet", ".arrow": "arrow", ".tar": "webdataset"}
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_BRACES = re.compile(r"\{([^{}]*)\}")


def source_of(root: str, config: str | None, revision: str | None) -> dict[str, Any]:
    """Arguments of load_dataset: files are opened by their format (and are called train), anything else by its name.

    Raises:
        InvalidInputError: a file of another format, a pattern that names no file.
    """
    if is_pattern(root):
        files = _files(root)
    elif Path(root).is_file() or _ending(root) in FORMATS:
        files = [root]
    else:
        return {"path": root, "name": config, "revision": revision}
    formats = {_ending(file) for file in files}
    if len(formats) > 1 or not formats <= set(FORMATS):
        raise InvalidInputError(
            f"huggingface: {root}: expected files ending in {' or '.join(FORMATS)}, got {sorted(formats)}; open tables "
            "of paths as 'manifest'"
        )
    return {"path": FORMATS[formats.pop()], "data_files": {"train": files}}


def is_pattern(root: str) -> bool:
    """Whether a name stands for several files: "shards/{000..010}.tar", "shards/*.tar"."""
    return not Path(root).exists() and any(sign in root for sign in "{*")


def _ending(file: str) -> str:
    """Of a path or address, whose query does not count."""
    return Path(file.partition("?")[0] if "://" in file else file).suffix


def title_of(root: str) -> str:
    """What reports call the data: the last part of the name, of a pattern the folder."""
    return Path(root).parent.name or "files" if is_pattern(root) else Path(root).stem


def _files(pattern: str) -> list[str]:
    found: list[str] = []
    for name in expand_braces(pattern):
        here = [name] if "://" in name else sorted(glob.glob(name, recursive=True))
        if not here:
            raise InvalidInputError(f"huggingface: {pattern}: there is no file {name}")
        found += here
    return found


def expand_braces(pattern: str) -> list[str]:
    """Every name that a pattern stands for: {000..010} counts, with as many digits; {a,b} lists.

    Raises:
        InvalidInputError: a range that runs backwards, braces without a range or a list.
    """
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    return [
        name
        for choice in _choices(found.group(1), pattern)
        for name in expand_braces(pattern[: found.start()] + choice + pattern[found.end() :])
    ]


def _choices(text: str, pattern: str) -> list[str]:
    numbers = _RANGE.fullmatch(text)
    if numbers is None:
        if "," not in text:
            raise InvalidInputError(f"huggingface: {pattern}: expected {{000..010}} or {{a,b}}, got {{{text}}}")
        return text.split(",")
    first, last = numbers.groups()
    if int(first) > int(last):
        raise InvalidInputError(f"huggingface: {pattern}: the range {{{text}}} runs backwards")
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
