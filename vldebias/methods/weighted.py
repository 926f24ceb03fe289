"""A mean over the prompt that states each value, weighted for every prompt so that what is drawn of it comes out even.

The plain mean of "A photo of a male nurse." and "A photo of a female nurse." (`EachValue`) is drawn as one or the
other, and how often as which depends on the subject. So for each subject there is a weight w of the first at which both
are drawn alike. `WeightedValues` is given how often the pipeline drew the first value for some prompts at several
weights, as a judge reads the pictures, and takes for a prompt e

    w = 1/2 + (1/2 - s) / b,

with s the share that is expected at equal weights and b the slope of the shares over the weights, the same for all
prompts. s is a line in what the pipeline's first step says about the prompt (`vldebias.hosts.first_step`), fitted to
the readings. So a judge is needed once; every prompt then costs one step for a few noises in each call, is given one
embedding, and nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from vldebias.edit import Provenance, Rows
from vldebias.errors import InvalidInputError
from vldebias.methods.method import Need, Problem, Show, register_method
from vldebias.methods.rivals.wording import EachValue, FixedRewrite, rewrite_prompt

WEIGHTS = (0.5, 0.35, 0.65)  # at which a pipeline is read: near where most subjects change over


@dataclass(frozen=True, eq=False, repr=False)
class Weighted(FixedRewrite):
    """The mean of two wordings, the first with the weight bias + slope p in [0, 1], p where the mean of both begins.

    Attributes:
        line: (2,), bias and slope.
    """

    kind = "weighted"
    axes: ClassVar = {"line": "2"}

    line: Tensor = field(kw_only=True)

    def weights(self, rows: Rows) -> Tensor:
        """(b,) of the first wording of each row, float64."""
        bias, slope = self.line.tolist()
        if slope == 0:
            return torch.full((len(rows.texts),), bias, dtype=torch.float64)
        if rows.begun is None:
            raise InvalidInputError(
                f"{self!r}: expected the pipeline beside the prompts; attach it with vldebias.debias"
            )
        first, second = zip(*self.wordings(rows), strict=True)
        return (bias + slope * rows.begun(list(zip(first, second, strict=True)))).clamp(0, 1)

    def mean(self, each: Tensor, rows: Rows) -> Tensor:
        """See `PromptRewrite.mean`, with the weights of each row."""
        first = self.weights(rows).to(each).view(-1, *[1] * (each.ndim - 2))
        return first * each[:, 0] + (1 - first) * each[:, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.words) != 2:
            raise InvalidInputError(f"words: expected those of two wordings, got {self.words}")


class WeightedValues(EachValue):
    """The mean over a wording for each of two values, weighted so that the pipeline is expected to draw both alike.

    Args:
        readings: prompt -> weight w of the wording of the first value -> share of that value among its pictures drawn
            so; of three prompts or more, each at two weights or more. None: they are still to be made (`read`), and it
            cannot be fitted.
        weight: one weight for all prompts instead, in [0, 1].

    Raises:
        InvalidInputError: other readings; or shares that do not rise with the weight.
    """

    name, title = "weighted-values", "mean over a wording for each value, weighted by the prompt"
    source, color = "this package", "#5254a3"
    needs, models = frozenset({Need.VALUES, Need.JUDGED}), False

    def __init__(
        self, readings: Mapping[str, Mapping[float, float]] | None = None, *, weight: float | None = None
    ) -> None:
        if weight is not None and (readings is not None or not 0 <= weight <= 1):
            raise InvalidInputError(f"weighted-values: expected readings or a weight from 0 to 1, got weight={weight}")
        self.weight, self.readings = weight, {prompt: dict(shares) for prompt, shares in (readings or {}).items()}
        if weight is None and readings is None:
            return
        self.needs = self.needs - {Need.JUDGED}
        if readings is not None:
            self.rise, self.shares = _rise_and_shares(self.readings)

    def check(self, problem: Problem) -> None:
        """Refuse what `EachValue` refuses, and other than two values."""
        super().check(problem)
        values = list(problem.attributes[0].attributes)
        if len(values) != 2:
            raise InvalidInputError(f"weighted-values: expected an attribute of two values, got {values}")

    def settings(self) -> dict[str, Any]:
        """The readings, or the weight."""
        return {"readings": self.readings} if self.weight is None else {"weight": self.weight}

    def read(self, problem: Problem, show: Show) -> WeightedValues:
        """Read the class prompts at each of `WEIGHTS`.

        Raises:
            InvalidInputError: as `check`; or too few prompts whose images tell the value.
        """
        WeightedValues(weight=0.5).check(problem)
        readings: dict[str, dict[float, float]] = {}
        for weight in WEIGHTS:
            for prompt, shares in show(WeightedValues(weight=weight), problem.attributes[0].classes).items():
                readings.setdefault(prompt, {})[weight] = shares[0]
        return WeightedValues({prompt: shares for prompt, shares in readings.items() if len(shares) > 1})

    def fit(self, problem: Problem, role: str) -> Weighted:
        """The line; or one weight for all."""
        words, width = self.words(problem.attributes[0]), problem.host.dim(role)
        bias, slope = self.weight, 0.0
        if bias is None:
            first, second = ([rewrite_prompt(prompt, word) for prompt in self.readings] for word in words)
            begun = problem.host.first_step_similarity(list(zip(first, second, strict=True)))
            apart = begun - begun.mean()
            follows = float(apart @ self.shares / apart.square().sum().clamp(min=1e-12))
            slope = -follows / self.rise
            bias = 0.5 + (0.5 - float(self.shares.mean())) / self.rise - slope * float(begun.mean())
        line = torch.tensor([bias, slope], dtype=torch.float64)
        return Weighted(words, width, Provenance(self.name), line=line)


def _rise_and_shares(readings: Mapping[str, Mapping[float, float]]) -> tuple[float, Tensor]:
    """Rise of the share of the first value over the weights, the same for all prompts; and each share at equal weights.

    Raises:
        InvalidInputError: too few readings, others than shares, or shares that do not rise.
    """
    few = [prompt for prompt, shares in readings.items() if len(shares) < 2]
    if len(readings) < 3 or few:
        raise InvalidInputError(
            "weighted-values: expected shares of three prompts or more, each at two weights or more, got "
            f"{len(readings)} prompts, {len(few)} of them at fewer weights: {few[:3]}"
        )
    rows = [torch.tensor(list(shares.items()), dtype=torch.float64).T for shares in readings.values()]
    if not all(((share >= 0) & (share <= 1)).all() for _, share in rows):
        raise InvalidInputError(
            "weighted-values: expected shares from 0 to 1; leave out prompts whose pictures say nothing"
        )
    centred = [(weight - weight.mean(), share) for weight, share in rows]
    rise = float(sum(w @ share for w, share in centred) / sum(w @ w for w, _ in centred))
    if not rise > 0:
        raise InvalidInputError(
            f"weighted-values: the share of the first value falls by {-rise:.2f} a weight; expected a rise: are "
            "weights and shares those of the same value, the first of the prompt set?"
        )
    return rise, torch.stack([share.mean() - rise * (weight.mean() - 0.5) for weight, share in rows])


register_method(WeightedValues())
