"""Tensors that a dataclass declares: `axes` of its own, and `parts` that declare theirs.

    axes = {"left": "d rank", "right": "d rank"}     field -> axes of its tensor
    parts = {"target": TargetProjection}             field -> a class with axes of its own; the field may be None

A number is that size, "d" the width of the embeddings, one in all parts; other letters have one size in a class. A
class may say the `dtype` of its tensors. Of several parts the tensors are named "part.tensor", of one as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor

from vldebias.errors import InvalidInputError


def tensors_of(given: Any) -> dict[str, Tensor]:
    """Name -> tensor, those of its parts among them."""
    tensors = {name: getattr(given, name) for name in given.axes}
    for field, prefix, _ in _parts(given):
        if (part := getattr(given, field)) is not None:
            tensors |= {prefix + name: tensor for name, tensor in tensors_of(part).items()}
    return tensors


def fields_from(kind: Any, tensors: Mapping[str, Tensor], **more: Any) -> dict[str, Any]:
    """The fields that `tensors_of` came from. more: fields that a part may have as well."""
    made: dict[str, Any] = {name: tensors[name] for name in kind.axes}
    for field, prefix, part in _parts(kind):
        own = {name: tensors[prefix + name] for name in _names(part) if prefix + name in tensors}
        known = {one.name for one in fields(part)}
        shared = {name: value for name, value in more.items() if name in known}
        made[field] = part(**fields_from(part, own, **more), **shared) if own else None
    return made


def width_of(given: Any) -> int:
    """Size of the axis "d"."""
    for name, spec in given.axes.items():
        if "d" in (axes := spec.split()):
            return int(getattr(given, name).shape[axes.index("d")])
    return next(width_of(part) for field in given.parts if (part := getattr(given, field)) is not None)


def check_axes(kind: Any, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not those that `kind` declares.

    Raises:
        InvalidInputError: one is missing, has other axes or another dtype, or is not declared; the message names it.
    """
    strangers = sorted(tensors.keys() - set(_names(kind)))
    if strangers:
        raise InvalidInputError(f"{', '.join(strangers)}: not among the tensors {', '.join(_names(kind))}")
    _check(kind, tensors, "", {})


def _check(kind: Any, tensors: Mapping[str, Tensor], prefix: str, width: dict[str, int]) -> None:
    sizes: dict[str, int] = {}
    for name, spec in kind.axes.items():
        axes, tensor = spec.split(), tensors.get(prefix + name)
        shape = None if tensor is None else tuple(tensor.shape)
        fits = shape is not None and len(shape) == len(axes)
        for axis, size in zip(axes, shape or (), strict=False):
            known = width if axis == "d" else sizes
            fits = fits and size == (int(axis) if axis.isdigit() else known.setdefault(axis, size))
        if tensor is None or not fits:
            known = {axis: size for axis, size in (width | sizes).items() if axis in axes}
            raise InvalidInputError(
                f"{prefix}{name}: expected a tensor ({', '.join(axes)})"
                f"{' with ' * bool(known)}{', '.join(f'{axis} = {size}' for axis, size in known.items())}, got {shape}"
            )
        dtype = getattr(kind, "dtype", None)
        if dtype not in (None, tensor.dtype):
            raise InvalidInputError(f"{prefix}{name}: expected {dtype}, got {tensor.dtype}")
    for _, own, part in _parts(kind):
        if not own or any(name.startswith(prefix + own) for name in tensors):
            _check(part, tensors, prefix + own, width)


def _parts(given: Any) -> Iterator[tuple[str, str, Any]]:
    """Field, prefix of its tensors and class of each part."""
    parts = getattr(given, "parts", {})
    for field, part in parts.items():
        yield field, f"{field}." if len(parts) > 1 else "", part


def _names(kind: Any) -> Iterator[str]:
    yield from kind.axes
    for _, prefix, part in _parts(kind):
        yield from (prefix + name for name in _names(part))
