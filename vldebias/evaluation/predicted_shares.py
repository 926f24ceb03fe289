"""What a calibration says of prompts: leans of texts along an attribute, lines from leans to shares, each prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.evaluation.share_lines import ShareLine
from vldebias.evaluation.share_tables import ShareTable, with_words
from vldebias.hosts import Host
from vldebias.prompts import PromptSet, StatedWords

SURE = 0.9  # chance of a side from which on a prompt is said to lean
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Leans:
    """Directions of the values of an attribute in the space of an encoder, and the leans of texts along them.

    rows: (k, d), the mean text of each value less the mean of all, of length 1.
    """

    host: Host
    rows: torch.Tensor

    @classmethod
    def of(cls, host: Host, prompts: PromptSet, listed: Sequence[str] | None) -> Leans:
        """From the texts of the set, or, of a file that lacks some of them, from its texts that name one value.

        Raises:
            InvalidInputError: a value without a text.
        """
        own = tuple(chain(prompts.spurious, *prompts.groups))
        if listed is not None and not set(own) <= set(listed):
            own = tuple(listed)
        by_value = with_words(prompts).by_value(own)
        empty = [value for value, texts in by_value.items() if not texts]
        if empty:
            raise InvalidInputError(
                f"{prompts.name}: no text names {empty} alone, so there is no direction to read leans along; embed "
                f"the texts of the set too (`vldebias audit FILE --prompts {prompts.name} --list-texts`)"
            )
        role = host.roles[0]
        rows = torch.stack([host.embed(texts, role).mean(0) for texts in by_value.values()])
        return cls(host, normalize(rows - rows.mean(0), dim=-1))

    def at(self, rows: torch.Tensor) -> Floats:
        """(m, k) leans of embedded texts (m, d)."""
        products: Floats = (rows @ self.rows.T).numpy()
        return products


@dataclass(frozen=True)
class Asked:
    """One prompt: what it states or leans to.

    gap, share, low, high: (k,). chance: (k,) that the share is above parity. distance: to the calibration's texts.
    judged: (k,) where the calibration has images of it by the same pipeline.
    """

    prompt: str
    stated: str
    covered: bool
    distance: float
    gap: Floats
    share: Floats
    low: Floats
    high: Floats
    chance: Floats
    judged: Floats | None

    @property
    def side(self) -> int:
        """The value with the largest share."""
        return int(self.share.argmax())

    @property
    def sure(self) -> bool:
        """Whether that is likely to be above parity, whatever it is."""
        return bool(self.chance[self.side] >= SURE)

    def advice(self, values: Sequence[str]) -> str:
        """What to do first about it."""
        if self.stated:
            return f"states {self.stated}: nothing to predict"
        if self.judged is not None:
            side = int(self.judged.argmax())
            return f"judged before: {self.judged[side]:.0%} {values[side]}"
        if not self.covered:
            return "not covered: draw and judge some images"
        lean = values[self.side]
        return f"leans {lean}: rewrite it or use a method" if self.sure else f"perhaps leans {lean}: draw some images"

    @property
    def rank(self) -> tuple[int, float]:
        """Sure leans first, then what the calibration does not cover, then the rest, what was judged, what is stated;
        each by its lean."""
        place = 0 if self.sure else 2
        place = 4 if self.stated else 3 if self.judged is not None else 1 if not self.covered else place
        return place, -float(self.share.max())


@dataclass(frozen=True, eq=False)
class Calibrated:
    """A calibration in the space of one encoder: its texts, their leans, and a line for each value."""

    leans: Leans
    table: ShareTable
    texts: tuple[str, ...]
    wider: float

    @cached_property
    def rows(self) -> torch.Tensor:
        """(n, d) texts of the calibration."""
        return self.leans.host.embed(self.texts, self.leans.host.roles[0])

    @cached_property
    def lines(self) -> tuple[ShareLine, ...]:
        """A line for each value."""
        gaps = self.leans.at(self.rows)
        return tuple(ShareLine(gaps[:, i], self.table.shares[:, i]) for i in range(len(self.table.values)))

    @cached_property
    def reach(self) -> float:
        """How far a text of the calibration is from its nearest neighbour there, at most: 1 - cosine."""
        cosines = self.rows @ self.rows.T
        return float(1 - cosines.fill_diagonal_(-1).amax(1).min())

    def distances(self, rows: torch.Tensor) -> Floats:
        """1 - cosine (m,) with the nearest text of the calibration."""
        nearest: Floats = (1 - (rows @ self.rows.T).amax(1)).numpy()
        return nearest

    def shares(self, gaps: Floats) -> Floats:
        """Predicted shares (m, k) at leans (m, k), which sum to 1."""
        raw = np.stack([line.at(gaps[:, i]) for i, line in enumerate(self.lines)], axis=1)
        return raw / np.maximum(raw.sum(1, keepdims=True), 1e-12)

    def ask(self, prompts: Sequence[str], about: PromptSet) -> list[Asked]:
        """Every prompt in its order."""
        rows = self.leans.host.embed(prompts, self.leans.host.roles[0])
        gaps, distances = self.leans.at(rows), self.distances(rows)
        shares = self.shares(gaps)
        ends = [line.interval(gaps[:, i], self.wider) for i, line in enumerate(self.lines)]
        low, high = (np.stack(end, axis=1) for end in zip(*ends, strict=True))
        low, high = np.minimum(low, shares), np.maximum(high, shares)
        even = 1 / len(self.lines)
        chances = np.stack([line.chance(gaps[:, i], even, self.wider) for i, line in enumerate(self.lines)], axis=1)
        within = np.all(
            [(line.x.min() <= gaps[:, i]) & (gaps[:, i] <= line.x.max()) for i, line in enumerate(self.lines)], 0
        )
        words, named = StatedWords(about.stated_words), with_words(about)
        return [
            Asked(
                prompt,
                " and ".join(named.values_in(prompt)) or ("the attribute" if words.match(prompt) else ""),
                bool(distances[i] <= self.reach + 1e-9 and within[i]),
                float(distances[i]),
                gaps[i],
                shares[i],
                low[i],
                high[i],
                chances[i],
                self.table.find(prompt) if self.wider == 1 else None,
            )
            for i, prompt in enumerate(prompts)
        ]
