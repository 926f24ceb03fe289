"""Check the arrays that metrics accept, resample them, and compute intervals from resampled values.

An evaluator gives a value and its draws (resamples,) on the same resamples for every method, so the
difference of two methods' draws is paired, and a worst group is picked again in each. Resample what
was sampled independently, such as the images of a test split: rows that repeat an image make
intervals too narrow.

Source: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapters 8 and 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import ceil
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
# A tensor is known by its methods, so that what reads arrays alone does not wait for torch.
Values: TypeAlias = "Tensor | np.ndarray | Sequence[Any]"
_BLOCK = 1 << 20  # entries of a block of resampled rows: bounds the memory
_WEIGHTS = 1 << 23  # entries of a block of weights
_REPEATED = 8  # rows per different row from which on counts are resampled instead of rows


def vectors(ndim: int | None = 1, **named: Values) -> list[np.ndarray]:
    """Return non-empty arrays of one length, with `ndim` axes or any number; NaN raises an
    error."""
    array_of_name = {name: _array(name, values, ndim) for name, values in named.items()}
    lengths = {name: len(array) for name, array in array_of_name.items()}
    if len(set(lengths.values())) > 1:
        raise InvalidInputError(f"expected arrays of one length, got {lengths}")
    return list(array_of_name.values())


def _array(name: str, values: Values, ndim: int | None) -> np.ndarray:
    """Return values as a non-empty array without NaN; other shapes and objects raise an error."""
    # float64 before anything else: half precision would round means of thousands of rows.
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
    array = np.asarray(values)
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)  # a column of pandas
    has_shape = array.size > 0 and array.ndim > 0 and ndim in (None, array.ndim)
    if array.dtype == object or not has_shape:
        expected = {None: "(n, ...)", 1: "(n,)", 2: "(n, d)"}[ndim]
        raise InvalidInputError(
            f"{name}: expected a non-empty array {expected}, got shape {array.shape} of"
            f" {array.dtype}"
        )
    # Never dropped here: which rows are unknown is for the caller to say and to count.
    if array.dtype.kind in "fc" and np.isnan(array).any():
        raise InvalidInputError(
            f"{name}: {int(np.isnan(array).sum())} of {array.size} values are NaN"
        )
    return array


def codes(
    groups: np.ndarray, n_groups: int | None, name: str = "groups"
) -> tuple[np.ndarray, np.ndarray]:
    """Return the names (g,) of the groups, sorted, and the code (n,) of each row; fractions are
    refused.

    With `n_groups`, labels are 0 .. n_groups - 1, and a group may be empty.
    """
    names, index = np.unique(groups, return_inverse=True)
    if n_groups is None:
        if groups.dtype.kind in "fc" and (names != np.round(names)).any():
            raise InvalidInputError(
                f"{name}: expected labels, got fractions such as {names[:3].tolist()}; are they"
                " scores, and the arguments in another order?"
            )
        return names, index
    # Codes below 0 usually mean "unknown", and np.bincount would refuse or shift them.
    if groups.dtype.kind not in "iub" or names[0] < 0 or names[-1] >= n_groups:
        raise InvalidInputError(
            f"{name}: with n_groups={n_groups} expected integers 0 .. {n_groups - 1}, got"
            f" {names[:8].tolist()}"
        )
    return np.arange(n_groups), groups.astype(np.int64)


class Interval(NamedTuple):
    """Hold a value with the ends of its interval."""

    value: float
    low: float
    high: float


def percentile_interval(draws: Floats, level: float = 0.95) -> tuple[float, float]:
    """Return the ends of the middle `level` of the draws (resamples,); a level outside (0, 1)
    raises an error."""
    if not 0 < level < 1:
        raise InvalidInputError(f"level: expected a coverage in (0, 1), got {level}")
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def recentred_interval(value: float, draws: Floats, level: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval, moved so that the mean of the draws is `value`, which it
    contains.

    It is for statistics that a resample pushes one way, such as a maximum over groups.
    """
    # Example: a value of .30 with draws around .34, [.26, .42], gives [.22, .38].
    low, high = np.add(percentile_interval(draws, level), value - draws.mean()).tolist()
    return min(value, low), max(value, high)


def wilson_interval(hits: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval (1927) of a proportion, which covers it with probability
    `level`; its width is above 0 even if hits is 0 or n.

    >>> [round(bound, 4) for bound in wilson_interval(0, 20)]
    [0.0, 0.1611]
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = hits / n
    half = z * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    centre = share + z * z / (2 * n)
    scale = 1 + z * z / n
    # At 0 and n the formula gives 0 and 1 but for rounding.
    low = 0.0 if hits == 0 else (centre - half) / scale
    high = 1.0 if hits == n else (centre + half) / scale
    return low, high


def images_for_width(width: float) -> tuple[int, int]:
    """Return how many images of a prompt Wilson's 95 % interval of its share takes to be at most
    `width` wide: where all images show one value, and where half of them do.

    Args:
        width: of the interval, between 0 and 1.

    Returns:
        The number for images that all show one value, and that for a share of a half.

    >>> images_for_width(0.1)
    (35, 381)

    Raises:
        InvalidInputError: a width that is not between 0 and 1.
    """
    if not 0 < width < 1:
        raise InvalidInputError(f"width: got {width}; expected one between 0 and 1, such as 0.1")
    square = NormalDist().inv_cdf(0.975) ** 2
    # The interval is z / sqrt(n + z^2) wide at a share of a half, and z^2 / (n + z^2) at 0 and 1.
    n_alike = ceil(square * (1 / width - 1))
    n_mixed = ceil(square * (1 / width**2 - 1))
    return max(n_alike, 1), max(n_mixed, 1)


def widest_interval(images: int) -> float:
    """Return the width of Wilson's 95 % interval of a share of a half among so many images."""
    z = NormalDist().inv_cdf(0.975)
    return float(z / (images + z * z) ** 0.5)


def _blocks(limit: int, size: int, count: int) -> Iterator[int]:
    """Yield numbers of resamples that add up to `count`, each as large as `limit` numbers allow.

    size: how many numbers a resample holds. A single one is held whatever the limit.
    """
    block = max(limit // size, 1)
    for start in range(0, count, block):
        yield min(block, count - start)


def resampled_weights(n: int, resamples: int, seed: int, among: int) -> Iterator[NDArray[np.int32]]:
    """Yield how often each of `among` rows occurs in each resample of all n rows: blocks (b,
    among).

    The number of draws that fall on a part of the rows is binomial.
    """
    rng = np.random.default_rng(seed)
    for b in _blocks(_WEIGHTS, among, resamples):
        block = np.empty((b, among), dtype=np.int32)
        for weights in block:  # resample by resample: its counts stay in the cache
            # Of n draws with replacement from n rows, Binomial(n, among / n) fall on these rows.
            draws = n if among == n else rng.binomial(n, among / n)
            weights[:] = np.bincount(rng.integers(among, size=draws), minlength=among)
        yield block


def resampled_counts(
    counts: NDArray[np.integer], resamples: int, seed: int, size: int | None = None
) -> Iterator[NDArray[np.int64]]:
    """Yield the table of counts in each resample of the counted rows: blocks (b, *counts.shape).

    Rows of one cell are interchangeable, so these are multinomial counts over the cells, at a cost
    that does not grow with n. size: rows of a resample, n by default; with n - 1 the mean of few
    rows has the variance of a sample mean (Rao and Wu, 1988, "Resampling inference with complex
    survey data").
    """
    rng = np.random.default_rng(seed)
    n = int(counts.sum())
    for b in _blocks(_BLOCK, counts.size, resamples):
        drawn = rng.multinomial(n if size is None else size, counts.ravel() / n, size=b)
        yield drawn.reshape(b, *counts.shape)


def resampled_values(
    values: Mapping[str, np.ndarray],
    *,
    statistic: Callable[..., Any] | None = None,
    resamples: int,
    seed: int,
) -> tuple[dict[str, float], dict[str, Floats]]:
    """Return name -> statistic of its values (n, ...), and name -> its draws (resamples,), on the
    same resamples.

    The statistic takes resampled values (b, n, ...) and gives (b,); None is the mean of values
    (n,).
    """
    data = [np.asarray(array) for array in values.values()]
    n = len(data[0])
    measure = statistic or partial(np.mean, axis=-1)

    def statistics_of_rows(index: NDArray[np.int64]) -> Floats:  # (b, n) -> (b, names)
        return np.stack([measure(array[index]) for array in data], axis=-1)

    parts = list[Floats]()
    if statistic is None:
        # Counts of few different rows, such as hits, have the distribution of resampled rows.
        table = np.stack(data, axis=-1).astype(np.float64)
        different_rows, sizes = np.unique(table, axis=0, return_counts=True)
        # 10,000 images of which three methods are right or wrong have at most 8 different rows.
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


def bootstrap_interval(
    *arrays: Values,
    statistic: Callable[..., Any] = np.mean,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Return the percentile interval of `statistic(*arrays)`, a number; by default of the mean of
    one array.

    arrays: (n, ...) each, resampled together: row i of all belongs to the same image. level:
    coverage.

    Raises:
        InvalidInputError: arrays, level or resamples that do not fit, texts without a statistic,
            or a statistic that gives NaN or no number.

    >>> bootstrap_interval([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0], seed=1)
    Interval(value=0.625, low=0.25, high=0.875)
    """
    if not arrays or not isinstance(resamples, (int, np.integer)) or resamples < 1:
        raise InvalidInputError(
            f"expected one or more arrays and resamples, got {len(arrays)} and {resamples}"
        )
    data = vectors(None, **{f"arrays[{i}]": array for i, array in enumerate(arrays)})
    has_numbers = all(array.dtype.kind in "iufb" for array in data)
    if statistic is np.mean and (len(data) > 1 or not has_numbers):
        raise InvalidInputError(
            f"expected one array of numbers for its mean, got {len(data)} of"
            f" {', '.join(str(array.dtype) for array in data)}; give statistic=, such as"
            " lambda labels: (labels == 'male').mean()"
        )
    rng = np.random.default_rng(seed)
    n = len(data[0])
    # The sample itself first, then its resamples: one list of calls for any statistic.
    picked = chain([np.arange(n)], (rng.integers(n, size=n) for _ in range(resamples)))
    results = [statistic(*(array[index] for array in data)) for index in picked]
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
