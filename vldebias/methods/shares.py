"""Target shares: which share each attribute value should have, and a draw of one value for each image by its seed.

A number in [0, 1) is compared with the cumulated shares. By seed it is a hash of seed and prompt, which needs no state,
and a larger share keeps all images that a value had. By call (`Numbers`) it is one of evenly spread ones.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product
from math import isclose, isfinite, isnan, prod
from typing import Any

from vldebias.errors import InvalidInputError
from vldebias.hosts.draws import permutation, uniform_number

OneShares = Mapping[str, float] | Sequence[str | None] | None
"""Of one attribute: value -> share, the column of a data set whose shares it should have, or None for uniform."""
AllShares = Mapping[str, float] | Sequence[str | None] | Sequence[OneShares]


@dataclass(frozen=True)
class Shares:
    """Shares of the values of one attribute, or of the combinations of several.

    Attributes:
        codes: of each combination the place of its value in each attribute: (0,), (1,) or (0, 0), (0, 1), ...
        names: of each combination, "female" or "female/black".
        shares: of each combination; they sum to 1.
    """

    codes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]
    shares: tuple[float, ...]

    @classmethod
    def of(cls, attributes: Sequence[Sequence[str]], given: AllShares | None = None) -> Shares:
        """Shares for the values of `attributes`, each a list of names.

        Args:
            attributes: values of each attribute: [["male", "female"], ["White", "Black"]].
            given: None (uniform); value -> share for one attribute; the column of a data set with a value in each row
                (list, array or series; None and "" are left out), whose shares are taken; a list with one of these for
                each attribute, drawn independently; or combination ("male/White") -> share for all of them.

        Raises:
            InvalidInputError: a value that is missing or unknown, a negative share, shares that do not sum to 1.
        """
        codes = tuple(product(*(range(len(values)) for values in attributes)))
        names = tuple("/".join(values[c] for values, c in zip(attributes, code, strict=True)) for code in codes)
        if given is None:
            given = [None] * len(attributes)
        column = _column(given)
        if column is not None:
            given = _counted(names, column)
        if isinstance(given, Mapping):
            return cls(codes, names, _checked(names, given))
        if isinstance(given, str) or len(given) != len(attributes):
            raise InvalidInputError(
                f"shares: expected a mapping of {list(names)} to shares, or a list of one mapping for each of the "
                f"{len(attributes)} attributes, got {given!r}"
            )
        each = [_checked(tuple(values), one) for values, one in zip(attributes, given, strict=True)]
        joint = tuple(prod(shares[c] for shares, c in zip(each, code, strict=True)) for code in codes)
        return cls(codes, names, joint)

    def over(self, attributes: Sequence[int], values: Sequence[Sequence[str]]) -> Shares:
        """Shares of the values of some of the attributes, whatever the others are.

        attributes: their places; none: one combination of nothing. values: the names of the values of all attributes.
        """
        sums: defaultdict[str, float] = defaultdict(float)
        for code, share in zip(self.codes, self.shares, strict=True):
            sums["/".join(values[i][code[i]] for i in attributes)] += share
        return Shares.of([values[i] for i in attributes], sums)

    def draw(self, seed: int, prompt: str, stratify: int | None = None) -> int:
        """Place of the combination that the image with this seed and prompt has.

        stratify: among the seeds n k .. n k + n - 1 of this many (n) images of one prompt, the number with each
            combination is n times its share, rounded up or down. None: every image by itself.
        """
        return self.at(self._number(seed, prompt, stratify))

    def at(self, number: float) -> int:
        """Place of the combination whose part of [0, 1) holds `number`."""
        return bisect_right(self._cumulated, number)

    def _number(self, seed: int, prompt: str, stratify: int | None) -> float:
        """A number in [0, 1), uniform over seeds; stratified: one of n evenly spaced ones, each taken once."""
        if stratify is None:
            return uniform_number(seed, prompt, *self.names)
        block, place = divmod(seed, stratify)
        rank = permutation(stratify, block, prompt, *self.names)[place]
        return (rank + uniform_number(block, prompt, "offset", *self.names)) / stratify

    @cached_property
    def _cumulated(self) -> list[float]:
        """Upper ends of all combinations but the last, scaled so that a share of 0 at the end is never drawn."""
        sums = list(accumulate(self.shares))
        return [s / sums[-1] for s in sums[:-1]]


def _column(given: Any) -> list[str | None] | None:
    """The rows of a column of values; None where it is something else."""
    if given is None or isinstance(given, (str, Mapping)):
        return None
    rows = [None if isinstance(value, float) and isnan(value) else value for value in given]  # as in a frame
    texts = any(isinstance(value, str) for value in rows)
    return rows if texts and all(value is None or isinstance(value, str) for value in rows) else None


def _counted(names: tuple[str, ...], column: Sequence[str | None]) -> dict[str, float]:
    """Value -> its share of the rows that have one."""
    known = [value for value in column if value]
    strangers = sorted(set(known) - set(names))
    if strangers or not known:
        came = f"the values {strangers[:8]}" if strangers else "no value in any row"
        raise InvalidInputError(f"shares: expected a column with values of {list(names)}, got {came}")
    counts = Counter(known)
    return {name: counts[name] / len(known) for name in names}


def _checked(names: tuple[str, ...], given: OneShares) -> tuple[float, ...]:
    """Shares in the order of `names`."""
    if given is None:
        return (1 / len(names),) * len(names)
    column = _column(given) if isinstance(given, Iterable) else None
    given = given if column is None else _counted(names, column)
    if not isinstance(given, Mapping) or set(given) != set(names):
        came: Any = list(given) if isinstance(given, Mapping) else given
        raise InvalidInputError(f"shares: expected one for each of {list(names)}, got {came!r}")
    shares = tuple(float(given[name]) for name in names)
    if not all(isfinite(s) and s >= 0 for s in shares) or not isclose(sum(shares), 1, abs_tol=1e-6):
        raise InvalidInputError(
            f"shares: expected numbers from 0 on that sum to 1, got {dict(given)} with sum {sum(shares):g}"
        )
    return shares
