"""Check the arguments that all losses share."""

from __future__ import annotations

import math
from numbers import Integral, Real

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError

_HALF = (torch.float16, torch.bfloat16)


def matched(image_features: Tensor, text_features: Tensor) -> tuple[Tensor, Tensor]:
    """Return both (n, d), half precision promoted to float32: at t = .01 a bfloat16 logit is off by
    .25.

    Args:
        image_features: (n, d), of a floating point type.
        text_features: (n, d), of the same type and on the same device.
    """
    for name, features in (("image_features", image_features), ("text_features", text_features)):
        if not isinstance(features, Tensor):
            raise InvalidInputError(
                f"{name}: expected a tensor (n, d), got {type(features).__name__}"
            )
        if features.dtype not in (torch.float32, torch.float64, *_HALF):
            raise InvalidInputError(
                f"{name}: expected floating point features, got {features.dtype}; encode first"
            )
        if features.ndim != 2:
            raise InvalidInputError(f"{name}: expected shape (n, d), got {tuple(features.shape)}")
    if image_features.shape != text_features.shape:
        raise InvalidInputError(
            "expected image_features and text_features of one shape, row i belonging with row i, "
            f"got {tuple(image_features.shape)} and {tuple(text_features.shape)}"
        )
    if image_features.device != text_features.device:
        raise InvalidInputError(
            f"expected one device, got {image_features.device} and {text_features.device}; move one"
            " of them"
        )
    if image_features.dtype != text_features.dtype:
        raise InvalidInputError(
            f"expected one dtype, got {image_features.dtype} and {text_features.dtype}; convert one"
            " of them"
        )
    # bfloat16 has 8 significant bits: between 64 and 128,
    # where logits at t = .01 lie, its numbers are .5 apart.
    if image_features.dtype in _HALF:
        return image_features.float(), text_features.float()
    return image_features, text_features


def check_temperature(temperature: float | Tensor) -> None:
    """Check that a temperature is positive, or a tensor (), whose sign is not read to avoid a wait
    for the GPU."""
    if isinstance(temperature, Tensor):
        if temperature.ndim or not temperature.is_floating_point():
            raise InvalidInputError(
                "temperature: expected a number or a floating point tensor of shape (), "
                f"got a {temperature.dtype} tensor of shape {tuple(temperature.shape)}"
            )
    elif not isinstance(temperature, Real) or not 0 < temperature < math.inf:
        raise InvalidInputError(f"temperature: expected a positive number, got {temperature!r}")


def check_interval(name: str, value: float, interval: str) -> None:
    """Refuse a `value` outside an interval written as in "(0, 1]".

    Args:
        name: of the argument, for the message.
        value: what was passed.
        interval: the allowed values, with [ or ] for an end that is allowed itself.
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    # NaN compares false with both ends, so it is refused too.
    is_inside = isinstance(value, (Real, Tensor)) and bool(low <= value <= high)
    if interval[0] == "(":
        is_inside = is_inside and value != low
    if interval[-1] == ")":
        is_inside = is_inside and value != high
    if not is_inside:
        raise InvalidInputError(f"{name}: expected a number in {interval}, got {value!r}")


def check_count(name: str, value: int, least: int) -> None:
    """Refuse a `value` that is no whole number from `least` on.

    Args:
        name: of the argument, for the message.
        value: what was passed.
        least: the smallest number that is allowed.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least:
        raise InvalidInputError(
            f"{name}: expected a whole number of at least {least}, got {value!r}"
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a `value` that is none of the choices.

    Args:
        name: of the argument, for the message.
        value: what was passed.
        choices: the values that are allowed.
    """
    if value not in choices:
        raise InvalidInputError(f"{name}: expected {' or '.join(choices)}, got {value!r}")


def check_labels(name: str, labels: Tensor, n: int) -> None:
    """Check that labels are integers (n,), one per row of the features.

    Args:
        name: of the argument, for the message.
        labels: what was passed.
        n: number of rows of the features.
    """
    received = type(labels).__name__
    if isinstance(labels, Tensor):
        if not labels.is_floating_point() and tuple(labels.shape) == (n,):
            return
        received = f"{labels.dtype} {tuple(labels.shape)}"
    raise InvalidInputError(
        f"{name}: expected an integer tensor of shape ({n},), one per row, got {received}"
    )
