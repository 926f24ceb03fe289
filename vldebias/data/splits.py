"""Select the rows of a split by one rule for tables, tars and folders."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vldebias.data.labels import Labels
from vldebias.errors import InvalidInputError

SPLIT = "split"  # name of the column that names each row's split
ALIASES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}


def spellings(split: str) -> tuple[str, ...]:
    """Return all names of a split.

    >>> spellings("dev"), spellings("extra")
    (('val', 'validation', 'valid', 'dev'), ('extra',))
    """
    return next((names for names in ALIASES.values() if split in names), (split,))


def files_name_split(files: Iterable[str | Path], split: str) -> bool:
    """Return True if all file names consist of a split and a part number, as on the hub.

    Args:
        files: the files.
        split: the split, in any spelling.

    >>> files_name_split(["data/validation-00000-of-00001.parquet"], "val")
    True
    """
    name = re.compile(rf"(?:{'|'.join(map(re.escape, spellings(split)))})(?:-\d+(?:-of-\d+)?)?")
    return all(name.fullmatch(Path(file).stem) for file in files)


def rows_of_split(data: str | Path, split: str, splits: Labels) -> NDArray[np.int64]:
    """Return the indices of a split's rows.

    Args:
        data: data name for messages.
        split: a split name, or "all".
        splits: the split of each row.

    Raises:
        InvalidInputError: If the split does not exist, or has no rows.
    """
    if split == "all":
        return np.arange(len(splits))
    names = [split] if split in splits.names else spellings(split)
    codes = [code for code, name in enumerate(splits.names) if name in names]
    if not codes:
        raise InvalidInputError(
            f"{data}: expected split {' or '.join((*splits.names, 'all'))}, got {split!r}"
        )
    rows = np.flatnonzero(np.isin(splits.codes, codes))
    if not len(rows):
        counts = ", ".join(f"{name} {count}" for name, count in splits.counts.items() if count)
        raise InvalidInputError(
            f"{data}: split {split!r} is empty; the splits are {counts}; choose one of them, or all"
        )
    return rows


def no_split_column(data: str | Path, split: str, columns: Iterable[str]) -> InvalidInputError:
    """Return the error for a split of data without a split column.

    Args:
        data: the file or folder, for the message.
        split: the split that was asked for.
        columns: the columns that there are.
    """
    return InvalidInputError(
        f"{data}: got split {split!r}, but there is no column {SPLIT!r}; the columns are"
        f" {list(columns)}; add it, use all rows (--split all), omit --val-split, or pass another"
        " file (--set val_data=FILE)"
    )
