"""Measurements in words: names of measures and methods, numbers with intervals, and the verdict on a change."""

from __future__ import annotations

from vldebias.evaluation.result import CHANCE, Measurement
from vldebias.metrics.metric import metric_of

DAGGER = "†"


def label(row: Measurement, lam: bool = True, strength: bool = True) -> str:
    """The name of a row's method: "orth-cali, λ = 200", a dagger where it was given labels; "chance" of rankings."""
    words = ["chance" if row.method == CHANCE else row.method + (DAGGER if row.uses_labels else "")]
    if lam and row.lam is not None:
        words.append(f"λ = {row.lam:g}")
    if strength and row.strength is not None:
        words.append(f"strength {row.strength:g}")
    return ", ".join(words)


def metric_title(metric: str) -> str:
    """ "max_skew@1000" -> "MaxSkew@1000"; a name that is not known stays, with spaces."""
    return metric_of(metric).title


def capitalised(text: str) -> str:
    """With a capital letter."""
    return text[:1].upper() + text[1:]


def direction(row: Measurement) -> str:
    """ "higher is better", or nothing where neither is."""
    return f"{row.better} is better" if row.better in ("higher", "lower") else ""


def number(row: Measurement) -> str:
    """ "0.474 [0.444, 0.506]"."""
    value, low, high = row.value, *row.interval
    digits = _digits(value)
    return f"{value:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def change(row: Measurement) -> str:
    """ "+0.443 [+0.410, +0.475]", the paired difference to none; "" where there is none."""
    if row.change is None:
        return ""
    value, low, high = row.change
    digits = _digits(row.value)
    return f"{value:+.{digits}f} [{low:+.{digits}f}, {high:+.{digits}f}]"


def _digits(value: float) -> int:
    return 3 if abs(value) < 10 else 1


def verdict(row: Measurement) -> str:
    """better or worse where the interval of the paired difference excludes zero, else unclear; same if none moved."""
    return "" if row.change is None else verdict_on(row.change, row.better)


def verdict_on(difference: tuple[float, float, float], better: str) -> str:
    """The verdict on a difference (value, low, high); "changed" where neither "higher" nor "lower" is better."""
    _, low, high = difference
    if low <= 0 <= high:
        return "same" if low == high else "unclear"
    if better not in ("higher", "lower"):
        return "changed"
    return "better" if (low > 0) == (better == "higher") else "worse"
