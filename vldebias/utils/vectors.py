"""Convert user-supplied vectors to tensors and back.

Search libraries pass vectors as arrays, tensors, or lists of floats, lists or arrays. Results have
the type and precision of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.utils.arrays import refuse_masked


class Vectors(NamedTuple):
    """Store vectors as rows, with a function that restores their original type.

    Attributes:
        rows: the vectors (n, d), in the original precision and on the original device.
        restore: a function that converts edited rows (n, d) to the original type.
        is_single: whether the input was a single vector (d,).
    """

    rows: Tensor
    restore: Callable[[Tensor], object]
    is_single: bool = False


def read_vectors(vectors: object, name: str, *, expected: int | None = None) -> Vectors:
    """Convert one vector (d,) or several vectors (n, d) to rows.

    Args:
        vectors: an array, a tensor, or a list of numbers, lists, arrays or tensors.
        name: the argument named in messages.
        expected: the expected number of vectors. A single vector may have shape (d,).

    Raises:
        InvalidInputError: If the vectors have the wrong shape, different widths or an integer type
            (quantised), or their number differs from the expected one.
    """
    if isinstance(vectors, Tensor):
        read = _of_tensor(vectors, name)
    elif isinstance(vectors, np.ndarray):
        read = _of_array(vectors, name)
    elif isinstance(vectors, Sequence) and not isinstance(vectors, str | bytes):
        read = _of_sequence(vectors, name)
    elif hasattr(vectors, "__array__"):
        read = _of_array(np.asarray(vectors), name)
    else:
        raise InvalidInputError(
            f"{name}: got {type(vectors).__name__}; expected vectors (n, d) as an array, a tensor"
            " or a list"
        )
    if expected is not None and len(read.rows) != expected:
        raise InvalidInputError(
            f"{name}: got {len(read.rows)} vectors for {expected} texts; expected one per text"
        )
    return read


def _of_tensor(vectors: Tensor, name: str) -> Vectors:
    if vectors.layout is not torch.strided:
        raise InvalidInputError(
            f"{name}: got a sparse tensor ({vectors.layout}); expected a dense one; pass"
            " vectors.to_dense()"
        )
    _check(vectors.shape, str(vectors.dtype), vectors.is_floating_point(), name)
    rows = vectors.reshape(-1, vectors.shape[-1])
    return Vectors(rows, lambda rows: rows.reshape(vectors.shape).to(vectors), vectors.ndim == 1)


def _of_array(vectors: NDArray[np.floating], name: str) -> Vectors:
    refuse_masked(vectors, name)
    _check(vectors.shape, str(vectors.dtype), vectors.dtype.kind == "f", name)
    shape = vectors.shape
    # torch does not support negative strides, non-native byte order or longdouble.
    kind = vectors.dtype if vectors.dtype.itemsize <= 8 else np.dtype(np.float64)
    plain = np.ascontiguousarray(vectors, dtype=kind.newbyteorder("="))
    rows = torch.from_numpy(plain if plain.flags.writeable else plain.copy())

    def restore(changed: Tensor) -> NDArray[np.floating]:
        array = changed.detach().cpu().numpy().reshape(shape)
        return np.ascontiguousarray(array, dtype=vectors.dtype)

    return Vectors(rows.reshape(-1, shape[-1]), restore, len(shape) == 1)


def _of_sequence(vectors: Sequence[object], name: str) -> Vectors:
    if not len(vectors):
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return Vectors(empty, lambda rows: vectors)
    first = vectors[0]
    if isinstance(first, Tensor):
        return _joined([_of_tensor(torch.as_tensor(vector), name) for vector in vectors], name)
    if isinstance(first, np.ndarray):
        return _joined([_of_array(np.asarray(vector), name) for vector in vectors], name)
    try:
        array = np.array(vectors, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{name}: got a list of {type(first).__name__} that are not vectors of the same width;"
            " expected n lists of d floats"
        ) from None
    _check(array.shape, "list", True, name)
    rows = torch.from_numpy(array).reshape(-1, array.shape[-1])
    return Vectors(rows, lambda rows: rows.reshape(array.shape).tolist(), array.ndim == 1)


def _joined(parts: Sequence[Vectors], name: str) -> Vectors:
    """Stack a list of arrays or tensors that contain one vector each."""
    widths = {part.rows.shape for part in parts}
    # A matrix in the list would mean several vectors for one text.
    if len(widths) > 1 or next(iter(widths))[0] != 1:
        shapes = sorted(tuple(shape) for shape in widths)
        raise InvalidInputError(
            f"{name}: got arrays of shapes {shapes}; expected vectors of the same width"
        )

    def restore(changed: Tensor) -> list[object]:
        return [part.restore(row[None]) for part, row in zip(parts, changed, strict=True)]

    return Vectors(torch.cat([part.rows for part in parts]), restore)


def _check(shape: Sequence[int], kind: str, is_float: bool, name: str) -> None:
    """Raise an error if values are not floats with shape (d,) or (n, d)."""
    if len(shape) in (1, 2) and shape[-1] > 0 and is_float:
        return
    quantised = "" if is_float else "; edit vectors before they are quantised"
    raise InvalidInputError(
        f"{name}: got {kind} {tuple(shape)}; expected floats (d,) or (n, d){quantised}"
    )
