"""The learning rate as a function of the step."""

from __future__ import annotations

import math

from vldebias.errors import InvalidInputError

__all__ = ["cosine_rate"]


def cosine_rate(step: int, steps: int, *, peak: float, warmup: float = 0.0, end: float = 0.0) -> float:
    """Linear rise to `peak` over the first share `warmup` of `steps`, then half a cosine towards `end`.

    The end is where step `steps` would be, so that the last step still moves something.

    Raises:
        InvalidInputError: step outside 0 .. steps - 1.

    >>> [round(cosine_rate(step, 5, peak=1.0, warmup=0.4), 2) for step in range(5)]
    [0.5, 1.0, 1.0, 0.75, 0.25]
    """
    if not 0 <= step < steps:
        raise InvalidInputError(f"step: expected 0 .. {steps - 1}, got {step}")
    rising = round(warmup * steps)
    if step < rising:
        return peak * (step + 1) / rising
    passed = (step - rising) / (steps - rising)
    return end + (peak - end) * (1 + math.cos(math.pi * passed)) / 2
