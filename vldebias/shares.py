"""Target shares: which share each attribute value should have, and a draw of one value for each image by its seed.

A draw is a hash of seed and prompt, compared with the cumulated shares. It needs no state, so that an image has the
same value whatever the batch, the order and the machine; and a larger share keeps all images that a value had.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, product
from math import isclose, isfinite, prod
from typing import Any

from vldebias.errors import InvalidInputError

__all__ = ["AllShares", "Shares"]

AllShares = Mapping[str, float] | Sequence[Mapping[str, float] | None]


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
            given: None (uniform); value -> share for one attribute; a list with such a mapping, or None, for each
                attribute, drawn independently; or combination ("male/White") -> share for all of them.

        Raises:
            InvalidInputError: a value that is missing or unknown, a negative share, shares that do not sum to 1.
        """
        codes = tuple(product(*(range(len(values)) for values in attributes)))
        names = tuple("/".join(values[c] for values, c in zip(attributes, code, strict=True)) for code in codes)
        if given is None:
            given = [None] * len(attributes)
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

    def draw(self, seed: int, prompt: str, stratify: int | None = None) -> int:
        """Place of the combination that the image with this seed and prompt has.

        stratify: among the seeds n k .. n k + n - 1 of this many (n) images of one prompt, the number with each
            combination is n times its share, rounded up or down. None: every image by itself.
        """
        return bisect_right(self._cumulated, self._number(seed, prompt, stratify))

    def _number(self, seed: int, prompt: str, stratify: int | None) -> float:
        """A number in [0, 1), uniform over seeds; stratified: one of n evenly spaced ones, each taken once."""
        if stratify is None:
            return _uniform(seed, prompt, *self.names)
        block, place = divmod(seed, stratify)
        rank = _permutation(stratify, block, prompt, self.names)[place]
        return (rank + _uniform(block, prompt, "offset", *self.names)) / stratify

    @cached_property
    def _cumulated(self) -> list[float]:
        """Upper ends of all combinations but the last, scaled so that a share of 0 at the end is never drawn."""
        sums = list(accumulate(self.shares))
        return [s / sums[-1] for s in sums[:-1]]


def _checked(names: tuple[str, ...], given: Mapping[str, float] | None) -> tuple[float, ...]:
    """Shares in the order of `names`."""
    if given is None:
        return (1 / len(names),) * len(names)
    if not isinstance(given, Mapping) or set(given) != set(names):
        found: Any = list(given) if isinstance(given, Mapping) else given
        raise InvalidInputError(f"shares: expected one for each of {list(names)}, got {found!r}")
    shares = tuple(float(given[name]) for name in names)
    if not all(isfinite(s) and s >= 0 for s in shares) or not isclose(sum(shares), 1, abs_tol=1e-6):
        raise InvalidInputError(
            f"shares: expected numbers from 0 on that sum to 1, got {dict(given)} with sum {sum(shares):g}"
        )
    return shares


def _uniform(*parts: object) -> float:
    """A number in [0, 1) from the text of `parts`."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:6], "big") / 2**48  # 48 bits: a float holds them exactly


@lru_cache(maxsize=4096)
def _permutation(n: int, block: int, prompt: str, names: tuple[str, ...]) -> tuple[int, ...]:
    """A permutation of 0 .. n - 1 that block and prompt decide."""
    return tuple(sorted(range(n), key=lambda i: _uniform(block, prompt, i, *names)))
