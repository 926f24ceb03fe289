"""Validate arguments shared by all losses."""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError, warn

_HALF = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_HALF)
_NORM_TOLERANCE = 0.1  # allows for rounding in half precision
_READ: set[tuple[str, torch.device]] = set()  # arguments that have been read on a GPU


def matched(image_features: Tensor, text_features: Tensor) -> tuple[Tensor, Tensor]:
    """Validate image and text features, and return them with half precision promoted to float32.

    Args:
        image_features: (n, d), with a floating point dtype.
        text_features: (n, d), with the same dtype and on the same device.

    Raises:
        InvalidInputError: If the features are not floating point or differ in shape, dtype or
            device.
    """
    for name, features in (("image_features", image_features), ("text_features", text_features)):
        is_known = isinstance(features, Tensor) and features.dtype in _FLOATS
        if not is_known or features.ndim != 2:
            raise InvalidInputError(
                f"{name}: expected a tensor (n, d) of floating-point features, got"
                f" {described(features)}"
            )
    for name, image, text in (
        ("shape", tuple(image_features.shape), tuple(text_features.shape)),
        ("device", image_features.device, text_features.device),
        ("dtype", image_features.dtype, text_features.dtype),
    ):
        if image != text:
            raise InvalidInputError(
                f"expected image_features and text_features of the same {name}, got {image} and"
                f" {text}; their rows form pairs"
            )
    # bfloat16 has 8 significant bits. Logits at t = 0.01 lie between 64 and 128, where its numbers
    # are 0.5 apart, so a logit would be off by up to 0.25.
    if image_features.dtype in _HALF:
        return image_features.float(), text_features.float()
    return image_features, text_features


def check_temperature(temperature: float | Tensor) -> None:
    """Raise an error unless the temperature is a positive number or a floating point tensor ().

    A value above 1 is probably CLIP's logit scale, which is 1 / t, so it causes a warning.
    """
    value = temperature
    if isinstance(temperature, Tensor):
        if temperature.ndim or not temperature.is_floating_point():
            raise InvalidInputError(
                "temperature: expected a number or a floating point tensor of shape (), got"
                f" {described(temperature)}"
            )
        if not _is_readable("temperature", temperature):
            return
        value = float(temperature.detach())
    if not isinstance(value, Real) or not 0 < value < math.inf:
        logarithm = isinstance(value, Real) and -math.inf < value < 0
        raise InvalidInputError(
            f"temperature: expected a positive number, got {value!r}"
            + ("; if it is a logarithm, pass its exponential" if logarithm else "")
        )
    if value > 1:
        warn(
            f"temperature: expected at most 1, got {float(value):.3g}; is this a logit scale? Pass"
            " 1 / it, or exp(-it) if it is the logarithm of one"
        )


def warn_of_norms(*features: Tensor) -> None:
    """Warn if the largest norm of a tensor's rows is not about 1."""
    for rows in features:
        if len(rows) and _is_readable("features", rows):
            norm = float(rows.detach().norm(dim=1).max())
            if abs(norm - 1) > _NORM_TOLERANCE:
                # Two digits, so that Python shows the warning for few batches of a run.
                warn(
                    f"expected rows of norm 1, got {norm:.2g}; normalise the features, or the loss"
                    " may overflow"
                )
                return


def _is_readable(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor's values may be read.

    Reading synchronises with a GPU, so values on a GPU are only read the first time.
    """
    if tensor.device.type == "cpu":
        return not torch.compiler.is_compiling()
    is_first = (name, tensor.device) not in _READ
    _READ.add((name, tensor.device))
    return is_first and tensor.device.type != "meta" and not torch.compiler.is_compiling()


def check_interval(name: str, value: float, interval: str) -> None:
    """Raise an error if a value lies outside an interval.

    Args:
        name: name of the argument, for the message.
        value: the argument to check.
        interval: interval in mathematical notation, such as "(0, 1]".
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    # Comparisons with NaN are false, so NaN is rejected too.
    is_inside = isinstance(value, (Real, Tensor)) and bool(low <= value <= high)
    if interval[0] == "(":
        is_inside = is_inside and value != low
    if interval[-1] == ")":
        is_inside = is_inside and value != high
    if not is_inside:
        raise InvalidInputError(f"{name}: expected a number in {interval}, got {value!r}")


def check_count(name: str, value: int, least: int) -> None:
    """Raise an error unless a value is an integer that is at least `least`.

    Args:
        name: name of the argument, for the message.
        value: the argument to check.
        least: smallest allowed value.
    """
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or value < least:
        raise InvalidInputError(
            f"{name}: expected a whole number of at least {least}, got {value!r}"
        )


def check_labels(name: str, labels: Tensor, n: int) -> None:
    """Raise an error unless labels are integers (n,), one per feature row.

    Args:
        name: name of the argument, for the message.
        labels: the labels to check.
        n: number of feature rows.
    """
    is_integer = isinstance(labels, Tensor) and not labels.is_floating_point()
    if not is_integer or tuple(labels.shape) != (n,):
        raise InvalidInputError(
            f"{name}: expected an integer tensor of shape ({n},), one per row, got"
            f" {described(labels)}"
        )


def described(value: object) -> str:
    """Return a tensor's dtype and shape, a number, or the type of anything else, for a message."""
    if isinstance(value, Tensor):
        return f"a {value.dtype} tensor of shape {tuple(value.shape)}"
    return repr(value) if isinstance(value, Real) else type(value).__name__
