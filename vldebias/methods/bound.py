"""How much of their cosine neutral texts may lose; `vldebias.methods.bounded` keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vldebias.errors import InvalidInputError


@dataclass(frozen=True)
class Bound:
    """At most `loss` = 1 - cosine of a text with its projection.

    Attributes:
        loss: in [1e-6, 1), below which float32 embeddings tell nothing; 0.02 keeps a cosine of 0.98.
        over: "every": for every neutral text; "mean": for their mean.
        neutral: prompts that do not state the attribute. None given: the class prompts of the prompt sets.

    Raises:
        InvalidInputError: a value outside its range.
    """

    loss: float
    over: str = "every"
    neutral: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        number = isinstance(self.loss, (int, float)) and not isinstance(self.loss, bool)
        if not number or not 1e-6 <= self.loss < 1:
            raise InvalidInputError(f"max_loss: expected a loss of cosine in [1e-6, 1), as 0.02 is, got {self.loss!r}")
        if self.over not in ("every", "mean"):
            raise InvalidInputError(f"over: expected 'every' or 'mean', got {self.over!r}")
        if isinstance(self.neutral, str):
            raise InvalidInputError(f"neutral: expected a list of prompts, got the text {self.neutral!r}")
        object.__setattr__(self, "neutral", tuple(self.neutral))

    @classmethod
    def of(cls, given: Any) -> Bound:
        """`given` itself if it is a Bound, else one on every text with this loss."""
        return given if isinstance(given, cls) else cls(given)

    def value(self, losses: Tensor) -> float:
        """What is bounded, of the losses (n,) of the neutral texts."""
        return float(losses.max() if self.over == "every" else losses.mean())
