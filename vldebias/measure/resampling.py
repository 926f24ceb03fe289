"""Validate and resample metric arrays, and compute intervals.

All methods share the same resamples, so differences between methods are paired. The worst group is
selected again in each resample. Resample units that were sampled independently, such as the images
in a test split, because several rows for the same image would make the intervals too narrow.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 8 and 13.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import ceil
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vldebias.errors import InvalidInputError, VldebiasWarning, need, warn_of_input
from vldebias.utils.arrays import Floats, refuse_masked
from vldebias.utils.label_words import names_no_group, written_alike

if TYPE_CHECKING:
    from torch import Tensor

# Tensors are recognised by their methods to avoid importing torch.
Values: TypeAlias = "Tensor | ArrayLike"
# Function that maps arrays, a number of resamples and a seed to the value of each resample.
Resampled: TypeAlias = Callable[..., Floats]
_Rows = ParamSpec("_Rows")
LEVEL = 0.95  # nominal coverage of all intervals
_BLOCK = 1 << 20  # Maximum number of entries in a block of resampled rows, to limit memory use.
_WEIGHTS = 1 << 23  # Maximum number of entries in a block of weights.
_REPEATED = 8  # Minimum number of rows per distinct row for resampling counts.


def vectors(ndim: int | None = 1, **named: Values) -> list[np.ndarray]:
    """Convert values to arrays, checking that they are non-empty, equally long and without NaN.

    Args:
        ndim: required number of axes. If None, any number is allowed.
        named: values by the name to use in messages.
    """
    array_of_name = {name: _array(name, values, ndim) for name, values in named.items()}
    lengths = {name: len(array) for name, array in array_of_name.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"expected arrays of the same length, got {lengths}")
    return list(array_of_name.values())


def _array(name: str, values: Values, ndim: int | None) -> np.ndarray:
    """Convert values to a non-empty array without NaN, or raise InvalidInputError."""
    # Convert to float64, because half precision would round means over thousands of rows.
    if hasattr(values, "detach"):
        layout = str(getattr(values, "layout", "torch.strided"))
        if layout != "torch.strided":
            raise InvalidInputError(
                f"{name}: got a sparse tensor ({layout}); expected a dense one; pass"
                f" {name}.to_dense()"
            )
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    refuse_masked(values, name)
    try:
        array = np.asarray(values)
    except ValueError:
        raise InvalidInputError(
            f"{name}: got rows of different lengths; expected rows of equal length"
        ) from None
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)  # This covers, for example, a pandas column of strings.
    has_shape = array.size > 0 and array.ndim > 0 and ndim in (None, array.ndim)
    if array.dtype.kind in "Oc" or not has_shape:
        expected = {None: "(n, ...)", 1: "(n,)", 2: "(n, d)"}[ndim]
        raise InvalidInputError(
            f"{name}: expected a non-empty array {expected}, got shape {array.shape} with dtype"
            f" {array.dtype}"
        )
    # Do not drop NaN: the caller must decide which rows are unknown, and report their number.
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise InvalidInputError(
            f"{name}: {int(np.isnan(array).sum())} of {array.size} values are NaN; drop these rows"
        )
    return array


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted distinct values (k,) and each value's index among them (n,)."""
    if values.dtype.kind in "iu" and values.dtype != np.uint64:
        low = int(values.min())
        # Counting is several times faster than sorting if the integers are close together.
        if int(values.max()) - low < len(values):
            shifted = values.astype(np.int64) - low
            present = np.bincount(shifted) > 0
            names = (np.flatnonzero(present) + low).astype(values.dtype)
            if len(names) == len(present):
                return names, shifted
            return names, (np.cumsum(present) - 1)[shifted]
    names, index = np.unique(values, return_inverse=True)
    return names, index


def codes(
    groups: np.ndarray, n_groups: int | None, name: str = "groups"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sorted group names (g,) and each row's group code (n,).

    Args:
        groups: group labels (n,).
        n_groups: number of groups if some may be empty. Labels must then be 0 .. n_groups - 1.
        name: name of the argument in messages.

    Raises:
        InvalidInputError: If the labels are fractions or out of range.
    """
    names, index = distinct(groups)
    if groups.dtype.kind == "U":
        problems = written_alike(names.tolist())
        nobody = [label for label in names.tolist() if names_no_group(label)]
        if nobody:
            problems.append(f"{nobody[0]!r} counts as a group; remove these rows if it is none")
        if problems:
            warn_of_input(f"{name}: {'; also '.join(problems)}")
    if n_groups is None:
        if groups.dtype.kind == "f" and not np.isfinite(names).all():
            raise InvalidInputError(
                f"{name}: got infinite values; expected labels, such as integers or strings"
            )
        if groups.dtype.kind == "f" and (names != np.round(names)).any():
            raise InvalidInputError(
                f"{name}: expected labels, got fractions such as {names[:3].tolist()}; check"
                " the order of the arguments, as these look like scores"
            )
        return names, index
    # Negative codes usually mean "unknown", and np.bincount would reject or shift them.
    if groups.dtype.kind not in "iub" or names[0] < 0 or names[-1] >= n_groups:
        raise InvalidInputError(
            f"{name}: with n_groups={n_groups} expected integers 0 .. {n_groups - 1}, got"
            f" {names[:8].tolist()}"
        )
    return np.arange(n_groups), groups.astype(np.int64)


class Interval(NamedTuple):
    """Store a value and the ends of its interval.

    >>> from vldebias.metrics import bootstrap_interval
    >>> interval = bootstrap_interval([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], seed=1)
    >>> value, low, high = interval
    >>> interval.high
    0.875
    """

    value: float
    low: float
    high: float


def percentile_interval(draws: Floats, level: float = LEVEL) -> tuple[float, float]:
    """Return the ends of the central interval that contains a share `level` of the draws.

    Args:
        draws: draws (b,) of the statistic.
        level: coverage in (0, 1).
    """
    _check_level(level)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _check_level(level: float) -> None:
    """Raise an error if `level` is not a coverage. NaN is none either."""
    if not 0 < level < 1:
        raise InvalidInputError(f"level: expected a coverage in (0, 1), got {level}")


def recentred_interval(value: float, draws: Floats, level: float = LEVEL) -> tuple[float, float]:
    """Return the percentile interval, shifted so that the mean of the draws equals `value`.

    Use it for statistics with a bootstrap bias, such as a maximum over groups. The interval always
    contains `value`.

    Args:
        value: value of the statistic.
        draws: draws (b,) of the statistic.
        level: coverage in (0, 1).
    """
    # For example, if the value is 0.30 and the draws have mean 0.34 and interval [0.26, 0.42], the
    # result is [0.22, 0.38].
    low, high = np.add(percentile_interval(draws, level), value - draws.mean()).tolist()
    return min(value, low), max(value, high)


def wilson_interval(hits: float, n: float, level: float = LEVEL) -> tuple[float, float]:
    """Return Wilson's score interval (1927) for a proportion.

    Its width is positive even if `hits` is 0 or `n`.

    Args:
        hits: number of hits, which may be fractional.
        n: number of trials.
        level: coverage in (0, 1).

    >>> [round(bound, 4) for bound in wilson_interval(0, 20)]
    [0.0, 0.1611]
    """
    _check_level(level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = hits / n
    half = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    centre = share + z * z / (2 * n)
    scale = 1 + z * z / n
    # Return exact ends at 0 and n, where the formula has rounding errors.
    low = 0.0 if hits == 0 else (centre - half) / scale
    high = 1.0 if hits == n else (centre + half) / scale
    return low, high


def t_interval(values: Floats) -> Interval:
    """Return the mean of independent values with Student's t interval.

    Args:
        values: values (n,), two or more.

    >>> [round(number, 2) for number in t_interval(np.array([1.0, 2.0, 3.0]))]
    [2.0, -0.48, 4.48]
    """
    mean = float(np.mean(values))
    quantile = float(need("scipy.stats").t.ppf((1 + LEVEL) / 2, len(values) - 1))
    half = quantile * float(values.std(ddof=1)) / len(values) ** 0.5
    return Interval(mean, mean - half, mean + half)


def images_for_width(width: float) -> tuple[int, int]:
    """Return how many images per prompt a 95% Wilson interval of a given width needs.

    Args:
        width: maximum width of the interval, in (0, 1).

    Returns:
        The number of images if they all show the same value, and the number for a share of one
            half.

    >>> images_for_width(0.1)
    (35, 381)

    Raises:
        InvalidInputError: If the width is not between 0 and 1.
    """
    if not 0 < width < 1:
        raise InvalidInputError(
            f"width: got {width}; expected a number between 0 and 1, such as 0.1"
        )
    square = NormalDist().inv_cdf(0.975) ** 2
    # The width is z / sqrt(n + z^2) at a share of one half, and z^2 / (n + z^2) at 0 and 1.
    n_alike = ceil(square * (1 / width - 1))
    n_mixed = ceil(square * (1 / width**2 - 1))
    return max(n_alike, 1), max(n_mixed, 1)


def widest_interval(images: int) -> float:
    """Return the width of Wilson's 95% interval for a share of one half."""
    z = NormalDist().inv_cdf(0.975)
    return float(z / (images + z * z) ** 0.5)


def _blocks(limit: int, size: int, count: int) -> Iterator[int]:
    """Yield block sizes that add up to `count` resamples.

    Args:
        limit: maximum number of entries per block, which always contains at least one resample.
        size: entries per resample.
        count: number of resamples.
    """
    block = max(limit // size, 1)
    for start in range(0, count, block):
        yield min(block, count - start)


def resampled_weights(n: int, resamples: int, seed: int, size: int) -> Iterator[NDArray[np.int32]]:
    """Yield blocks (b, size) that count how often each row occurs in resamples of n rows.

    Only `size` of the n rows are counted. The number of draws that fall on them is binomial.

    Args:
        n: number of rows.
        resamples: number of resamples.
        seed: random seed.
        size: number of rows to count.
    """
    rng = np.random.default_rng(seed)
    for b in _blocks(_WEIGHTS, size, resamples):
        block = np.empty((b, size), dtype=np.int32)
        for weights in block:  # Fill one resample at a time, to keep its counts in cache.
            draws = n if size == n else rng.binomial(n, size / n)
            weights[:] = np.bincount(rng.integers(size, size=draws), minlength=size)
        yield block


def resampled_counts(
    counts: NDArray[np.integer], resamples: int, seed: int, size: int | None = None
) -> Iterator[NDArray[np.int64]]:
    """Yield blocks (b, *counts.shape) of resampled counts.

    Rows in a cell are interchangeable, so the counts are multinomial, at a cost independent of n.

    Args:
        counts: table of counts that sum to n.
        resamples: number of resamples.
        seed: random seed.
        size: number of rows per resample. Default: n. With n - 1, the variance of a mean over few
            rows is unbiased (Rao and Wu, 1988, "Resampling inference with complex survey data").
    """
    rng = np.random.default_rng(seed)
    n = int(counts.sum())
    for b in _blocks(_BLOCK, counts.size, resamples):
        resampled = rng.multinomial(n if size is None else size, counts.ravel() / n, size=b)
        yield resampled.reshape(b, *counts.shape)


def resampled_values(
    values: Mapping[str, np.ndarray],
    *,
    statistic: Callable[..., np.ndarray] | None = None,
    resamples: int,
    seed: int,
) -> tuple[dict[str, float], dict[str, Floats]]:
    """Compute a statistic for several arrays, with its draws on shared resamples.

    Args:
        values: name -> values (n, ...).
        statistic: function that maps resampled values (b, n, ...) to (b,). If None, the mean of
            values (n,).
        resamples: number of resamples.
        seed: random seed.

    Returns:
        Two dicts by name: the statistic, and its draws (resamples,).
    """
    data = [np.asarray(array) for array in values.values()]
    n = len(data[0])
    measure = statistic or partial(np.mean, axis=-1)

    def statistics_of_rows(index: NDArray[np.int64]) -> Floats:  # index (b, n) -> (b, names)
        return np.stack([measure(array[index]) for array in data], axis=-1)

    parts = list[Floats]()
    if statistic is None:
        # If there are few distinct rows, resampling their counts is equivalent and faster.
        table = np.stack(data, axis=-1).astype(np.float64)
        different_rows, sizes = np.unique(table, axis=0, return_counts=True)
        # For example, the hits of three methods have at most 8 distinct rows.
        if len(different_rows) * _REPEATED <= n:
            for counts in resampled_counts(sizes, resamples, seed):
                parts.append(counts @ different_rows / n)
    if not parts:
        rng = np.random.default_rng(seed)
        for b in _blocks(_BLOCK, n, resamples):
            parts.append(statistics_of_rows(rng.integers(n, size=(b, n))))
    sample = statistics_of_rows(np.arange(n)[None])[0]
    draws = np.concatenate(parts)
    return dict(zip(values, sample.tolist(), strict=True)), dict(zip(values, draws.T, strict=True))


def computes_resamples(
    resampled: Resampled,
) -> Callable[[Callable[_Rows, float]], Callable[_Rows, float]]:
    """Let `bootstrap_interval` compute all resamples of the decorated statistic at once.

    Args:
        resampled: function that takes the statistic's arrays, a number of resamples and a seed, and
            returns the statistic of each resample.
    """

    def mark(statistic: Callable[_Rows, float]) -> Callable[_Rows, float]:
        setattr(statistic, "resampled", resampled)  # noqa: B010 - a function's type has no such name
        return statistic

    return mark


def bootstrap_interval(
    *arrays: Values,
    statistic: Callable[..., float] = np.mean,
    level: float = LEVEL,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return `statistic(*arrays)` with its percentile bootstrap interval.

    Args:
        arrays: arrays (n, ...) that are resampled together. Row i of each array must belong to the
            same image.
        statistic: function that returns a number. Default: the mean of one array.
        level: coverage in (0, 1).
        resamples: number of resamples.
        seed: random seed.

    Returns:
        The value with its interval.

    Raises:
        InvalidInputError: If an argument is invalid, an array of strings is passed without a
            statistic, or the statistic does not return a finite number.

    >>> bootstrap_interval([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], seed=1)
    Interval(value=0.625, low=0.25, high=0.875)
    """
    if not arrays or not isinstance(resamples, (int, np.integer)) or resamples < 1:
        raise InvalidInputError(
            f"expected at least one array and resamples >= 1, got {len(arrays)} arrays and"
            f" resamples={resamples}"
        )
    data = vectors(None, **{f"arrays[{i}]": array for i, array in enumerate(arrays)})
    has_numbers = all(array.dtype.kind in "iufb" for array in data)
    if statistic is np.mean and (len(data) > 1 or not has_numbers):
        raise InvalidInputError(
            f"expected one array of numbers to average, got {len(data)} with dtype"
            f" {', '.join(str(array.dtype) for array in data)}; pass statistic=, such as"
            " lambda labels: (labels == 'male').mean()"
        )
    rng = np.random.default_rng(seed)
    n = len(data[0])
    # The original sample comes first, followed by the resamples.
    results = [statistic(*data)]
    resampled: Resampled | None = getattr(statistic, "resampled", None)
    if resampled is not None:
        results += resampled(*data, resamples=resamples, seed=seed).tolist()
    elif statistic is np.mean and data[0].ndim == 1:
        # Means of many resamples are computed at once, from the same draws as below.
        for b in _blocks(_BLOCK, n, resamples):
            results += data[0][rng.integers(n, size=(b, n))].mean(1).tolist()
    with warnings.catch_warnings():
        # A warning about the sample would be repeated for every resample.
        warnings.simplefilter("ignore", VldebiasWarning)
        for _ in range(len(results), resamples + 1):
            index = rng.integers(n, size=n)
            results.append(statistic(*(array[index] for array in data)))
    try:
        values = np.array(results, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape != (len(results),):
        raise InvalidInputError(f"statistic: expected a number, got {results[0]!r}")
    failed = int((~np.isfinite(values)).sum())
    if failed:
        raise InvalidInputError(
            f"statistic: expected numbers, got NaN or infinity in {failed} of {len(values)} calls"
        )
    return Interval(float(values[0]), *percentile_interval(values[1:], level))
