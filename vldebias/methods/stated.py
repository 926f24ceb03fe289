"""A value drawn for each image, and said in the prompt that the image is drawn from.

Steering (`vldebias.methods.steer`) draws a value and moves the states of the prompt to it; a denoiser that reads values
from words of their own follows that in part. So the draw is that of steering, and the image gets the states of the
prompt with the drawn value in it, "A photo of a male nurse." in the place of "A photo of a nurse.", encoded anew in
every call as all other wordings are (`vldebias.methods.rivals.wording`).

The attribute is sampled: the model itself is as biased as before, and what it draws beside a value comes with the word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from vldebias.edit import Provenance, Rows
from vldebias.methods.method import Problem, register_method
from vldebias.methods.rivals.wording import EachValue, Wording
from vldebias.methods.shares import Shares
from vldebias.methods.steer import SampledEdit, SamplingMethod

__all__ = ["Stated", "StatedValue"]


@dataclass(frozen=True, eq=False, repr=False)
class Stated(SampledEdit, Wording):
    """The states of a prompt in the words of the value that is drawn for each row.

    words: of each value, in the order of the shares.
    """

    kind = "stated"

    shares: Shares = field(kw_only=True)
    stratify: int | None = field(default=None, kw_only=True)

    def wordings(self, rows: Rows) -> list[tuple[str, ...]]:
        """For each row the words of its value."""
        return [(self.words[code],) for code in self.codes(rows)]

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """From `settings`."""
        words, width = tuple(map(str, settings["words"])), int(settings["width"])
        return cls(words, width, provenance, shares=cls.shares_of(settings), stratify=settings["stratify"])


class StatedValue(SamplingMethod, EachValue):
    """Give each image of a pipeline an attribute value, drawn from target shares, by stating it in the prompt.

    Args:
        shares, stratify: see `SamplingMethod`, of one attribute.

    Raises:
        InvalidInputError: a value outside its range.
    """

    name, title = "stated-value", "a value drawn for each image and stated in its prompt"
    source, color = "prompt augmentation; this package", "#31708f"

    def fit(self, problem: Problem, role: str) -> Stated:
        """The words and the shares."""
        words, width = self.words(problem.attributes[0]), problem.host.dim(role)
        return Stated(words, width, shares=self.wanted(problem), stratify=self.stratify)


register_method(StatedValue())
