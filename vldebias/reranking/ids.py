"""Read the ids of search results, and find each result's labels."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError, warn_of_input
from vldebias.reranking.candidates import UNKNOWN, Rows

_LARGEST = np.iinfo(np.int64).max


def as_ids(ids: Any) -> NDArray[np.generic]:
    """Return ids as an int64 array, or as an array of objects if they are not such integers.

    Raises:
        InvalidInputError: If an id is not hashable, such as a list.
    """
    if hasattr(ids, "detach"):
        ids = ids.detach().cpu().numpy()
    array: NDArray[np.generic] = np.asarray(ids)
    if array.dtype.kind in "iu" and (array.dtype != np.uint64 or array.max(initial=0) <= _LARGEST):
        return array.astype(np.int64)
    # NumPy would convert numbers mixed with strings to strings, and large integers to floats.
    is_list = not isinstance(ids, np.ndarray)
    objects = np.array(ids, dtype=object) if is_list else array.astype(object)
    if not all(isinstance(key, Hashable) for key in objects.ravel()):
        raise InvalidInputError(f"ids: expected integers or strings, got {str(ids)[:60]}")
    return objects


def rows_of_ids(id_rows: NDArray[Any], labels: object, *, is_index: bool) -> tuple[object, Rows]:
    """Return the labels by row, and each candidate's row (q, n), or -1 if it has none.

    Args:
        id_rows: ids (q, n).
        labels: mapping from id to label, or the labels, probabilities or features of the rows or of
            the candidates.
        is_index: whether integer ids may be rows of an index.

    Raises:
        InvalidInputError: If the ids cannot be assigned to labels, or in two ways.
    """
    # In a mapping from column to labels, the values are lists.
    if isinstance(labels, Mapping) and any(np.ndim(label) != 1 for label in labels.values()):
        keys = id_rows.ravel().tolist()
        row_of_id = {key: row for row, key in enumerate(dict.fromkeys(keys))}
        _check_keys(row_of_id, labels)
        rows: Rows = np.array([row_of_id[key] for key in keys], np.intp).reshape(id_rows.shape)
        is_none = (id_rows == UNKNOWN) & (id_rows.dtype.kind in "iu")
        return list(map(labels.get, row_of_id)), np.where(is_none, UNKNOWN, rows)
    in_order = np.arange(id_rows.shape[1])[None]
    is_integer = id_rows.dtype.kind in "iu"
    if not is_index or not is_integer:
        if len(id_rows) == 1:
            return labels, in_order
        raise InvalidInputError(
            "ids: for text ids of several queries, expected labels as a mapping from id to label"
        )
    rows = np.asarray(id_rows, np.intp)
    if rows.min(initial=UNKNOWN) < UNKNOWN:
        raise InvalidInputError(
            f"ids: expected an index into the labels (0 or more), or -1 for a missing result; got"
            f" {rows.min()}"
        )
    n_labels = _length(labels)
    if len(rows) > 1 or n_labels != rows.shape[1]:
        return labels, rows
    # There is one label per candidate, so labels may be listed by candidate or by row.
    if rows.max(initial=UNKNOWN) >= n_labels:
        return labels, np.where(rows == UNKNOWN, UNKNOWN, in_order)
    if _differ(labels, rows[0]):
        first = rows[0, 0]
        raise InvalidInputError(
            f"ids: with {n_labels} ids and {n_labels} labels, the label of id {first} could be the"
            f" first one or the one in row {first}; expected labels as a mapping from id to label"
        )
    return labels, rows


def _check_keys(ids: Mapping[Any, int], labels: Mapping[Any, object]) -> None:
    """Warn of ids without a label, and raise InvalidInputError if no id has one."""
    missing = [key for key in ids if key not in labels and key != UNKNOWN]
    if missing and len(missing) == len(ids) - (UNKNOWN in ids):
        raise InvalidInputError(
            f"labels: no id has a label; expected keys such as {missing[0]!r}, got"
            f" {next(iter(labels), None)!r}"
        )
    if missing:
        warn_of_input(
            f"labels: {len(missing)} of {len(ids)} ids have no label, such as {missing[0]!r}, and"
            " count as unknown; add them, or map them to None if they belong to no group",
        )


def _length(labels: object) -> int:
    """Return the number of labels, probabilities or features, or -1 if they have no length."""
    if isinstance(labels, Mapping):
        labels = next(iter(labels.values()), ())
    return len(labels) if hasattr(labels, "__len__") else -1


def _differ(labels: object, rows: Rows) -> bool:
    """Return whether the order of the candidates and the rows give candidates other labels."""
    columns: list[Any] = list(labels.values()) if isinstance(labels, Mapping) else [labels]
    for column in columns:
        values = column.to_numpy() if hasattr(column, "to_numpy") else column
        for place in np.flatnonzero(rows != UNKNOWN):
            if not np.array_equal(values[place], values[rows[place]]):
                return True
    return False
