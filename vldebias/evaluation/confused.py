"""Figures solved for with the confusion table of a judge, that somebody counted elsewhere: a block of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vldebias.data.tables import as_texts, column_of, read_table
from vldebias.errors import InvalidInputError
from vldebias.evaluation.result import TaskResult
from vldebias.files import digest
from vldebias.metrics.confusion import tables_like, unconfused_shares

Floats = NDArray[np.float64]
TRUE = "true"
ABOUT = (
    "Shares of all images together, and their parity gap, solved for with the confusion table of the judge (Rogan and "
    "Gladen, 1978), with an interval for the images and for the table; right where it errs here as it did there."
)


def confused_values(path: Path) -> tuple[str, ...]:
    """The values that a table counts, of its column "true".

    Raises:
        InvalidInputError: a file that cannot be read, or without that column.
    """
    return tuple(as_texts(column_of(read_table(path), TRUE, path), f"{path}: {TRUE}"))


def read_confusion(path: Path, names: Sequence[str]) -> Floats:
    """(k, k) counts in the order of the values: what is true down, what the judge says across.

    Raises:
        InvalidInputError: rows or columns other than the values, cells that are no counts, or a table that is not
            invertible.
    """
    table, true = read_table(path), confused_values(path)
    if sorted(true) != sorted(names):
        raise InvalidInputError(
            f"{path}: expected a row for each of {list(names)} in the column {TRUE!r}, got {list(true)}"
        )
    columns = [as_texts(column_of(table, name, path), f"{path}: {name}") for name in names]
    try:
        counts = np.array([[float(cell or 0) for cell in column] for column in columns]).T
    except ValueError as error:
        raise InvalidInputError(f"{path}: expected counts; {error}") from None
    counts = counts[[true.index(name) for name in names]]
    try:
        tables_like(counts)
    except InvalidInputError as error:
        raise InvalidInputError(f"{path}: {error}") from None
    return counts


def confused_block(
    raw: TaskResult, names: Sequence[str], path: Path, counts: Mapping[str, Mapping[str, Floats]], *, seed: int = 0
) -> TaskResult:
    """Share and discrepancy of each method behind those of a judge.

    names: the values. path: of the table. counts: subset -> method -> (k,) images that the judge calls each value.

    Raises:
        InvalidInputError: see `read_confusion`.
    """
    fields = {"task": f"{raw.provenance.task} by confusion", "title": "By a confusion table", "description": ABOUT}
    settings = {**raw.provenance.settings, "confusion table": path.name}
    data = {**raw.provenance.data, path.name: digest(path)}
    done = TaskResult(raw.provenance.model_copy(update={**fields, "settings": settings, "data": data}))
    confusion = read_confusion(path, names)
    for subset, methods in counts.items():
        for method, own in methods.items():
            if not own.sum():
                continue
            shares, n = unconfused_shares(own, confusion, seed=seed), {"images": round(float(own.sum()))}
            one = shares.discrepancy()
            done.add("discrepancy", method, one.value, (one.low, one.high), n=n, subset=subset)
            for code, value in enumerate(names):
                one = shares.interval(code)
                of = f"{subset}: {value}" if subset else value
                done.add("share", method, one.value, (one.low, one.high), n=n, subset=of)
    return done
