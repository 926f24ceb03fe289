"""Fair Diffusion: at every step guidance towards a value drawn for each image, and away from the others.

Friedrich et al. (2023) deal each image a value and draw it with semantic guidance (SEGA, Brack et al., 2023). With e_c
what the denoiser predicts for the text of value c, e_0 what it predicts for none, and s_c = 1 for the value of the
image, -1 for any other, the guidance of a step is

    g = sum_c keep(scale s_c (e_c - e_0)) + momentum v,    v <- beta v + (1 - beta) g,

where keep sets to zero, channel by channel, what is smaller in size than its `threshold` quantile. g is added to the
guidance of the prompt from step `warmup` on; v is gathered from the first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from vldebias.edit import Provenance, Rows
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.methods.method import Need, Problem, register_method
from vldebias.methods.shares import AllShares, Shares
from vldebias.methods.steer import SampledEdit, SamplingMethod
from vldebias.prompts import StatedWords


@dataclass(frozen=True)
class Sega:
    """How strong the guidance is; the values of Friedrich et al., for 50 steps.

    scale: of what the texts of the values add. threshold: quantile of its sizes below which it is nothing. warmup: the
    first step that is guided. momentum, beta: of steps before.

    Raises:
        InvalidInputError: a value outside its range.
    """

    scale: float = 4.0
    threshold: float = 0.95
    warmup: int = 5
    momentum: float = 0.5
    beta: float = 0.6

    def __post_init__(self) -> None:
        shares = (self.threshold, self.momentum, self.beta)
        if not all(0 <= one < 1 for one in shares) or self.scale < 0 or self.warmup < 0:
            raise InvalidInputError(
                f"expected threshold, momentum and beta in [0, 1), scale and warmup from 0 on, got {self}"
            )


class Momentum:
    """The guidance of one call. signs (k, b): of each text for each image, times the strength; 0 leaves it alone."""

    def __init__(self, how: Sega, signs: Tensor) -> None:
        self.how, self.signs = how, signs
        self._velocity: Tensor | None = None

    def __call__(self, step: int, texts: Tensor, plain: Tensor) -> Tensor:
        """What is added to the predictions (b, c, ...) of a step, given those for each text (k, b, c, ...) and none."""
        how = self.how
        signs = self.signs.to(texts).reshape(*self.signs.shape, *[1] * (plain.ndim - 1))
        terms = how.scale * signs * (texts - plain)
        size = terms.abs()
        least = size.float().flatten(3).quantile(how.threshold, dim=3).to(size)
        kept = terms.where(size >= least.reshape(*least.shape, *[1] * (plain.ndim - 2)), torch.zeros_like(terms))
        before = torch.zeros_like(plain) if step == 0 or self._velocity is None else self._velocity
        added = kept.sum(0) + how.momentum * before
        self._velocity = how.beta * before + (1 - how.beta) * added
        return added if step >= how.warmup else torch.zeros_like(added)


@dataclass(frozen=True, eq=False, repr=False)
class GuidedValue(SampledEdit):
    """Guides the drawing of each row towards the values that it is given; its embeddings stay as they are.

    concepts: for each attribute a text for each of its values. shares, stratify: see `SampledEdit`.
    """

    kind = "fair-diffusion"
    guides = True

    concepts: tuple[tuple[str, ...], ...]
    how: Sega
    shares: Shares
    stratify: int | None
    width: int
    provenance: Provenance = field(default_factory=lambda: Provenance("fair-diffusion"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shares.codes != tuple(product(*(range(len(own)) for own in self.concepts))):
            raise InvalidInputError(f"shares: expected one of every combination of {self.concepts}, got {self.shares}")

    @property
    def dim(self) -> int:
        """Width d."""
        return self.width

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """States (b, tokens, d) as they are; what is drawn from them next is guided.

        Raises:
            InvalidInputError: rows without prompts and seeds, or of a part of a call; a pipeline that is not guided.
        """
        self.check_strength(strength)
        if strength == 0 or not len(z):
            return z
        codes = self.codes(rows)
        if rows is None or rows.guide is None or rows.states is None or len(codes) != len(z):
            raise InvalidInputError(
                f"method {self.method!r} guides the drawing of whole calls of a pipeline, and not single rows: attach "
                "it with vldebias.debias, and leave method= of attachment.using away"
            )
        signs = torch.tensor([[own[k] for own in map(self._signs, codes)] for k in range(sum(map(len, self.concepts)))])
        gate = StatedWords(self.stated_words)
        stated = torch.tensor([rows.kept and gate.match(text) for text in rows.texts])
        states = rows.states([text for own in self.concepts for text in own])
        rows.guide(states, len(z), Momentum(self.how, strength * signs * ~stated))
        return z

    def _signs(self, code: int) -> list[int]:
        """Of each text: 1 where it is of a value of the combination, else -1."""
        values = self.shares.codes[code]
        places = zip(self.concepts, values, strict=True)
        return [1 if place == value else -1 for own, value in places for place in range(len(own))]


class FairDiffusion(SamplingMethod):
    """Guidance towards a value drawn for each image of a Stable Diffusion 1 or 2 pipeline, and away from the others.

    Each step takes one more row of the denoiser for each value, beside the two of an image.

    Args:
        shares, stratify: see `SamplingMethod`.
        concepts: value -> the text that stands for it; "male person", "female person" as the authors have it, from the
            first word of each value, where it is not told.
        how: see `Sega`; 5 steps of warm-up are meant for 50.

    Raises:
        InvalidInputError: a value outside its range.
    """

    name, title = "fair-diffusion", "guidance to a value drawn for each image"
    source, color = "Friedrich et al., 2023, by the formula of SEGA (Brack et al., 2023)", "#a55194"
    needs, listed = frozenset({Need.VALUES}), False  # "stated-value" leaves less, at no further pass of the denoiser

    def __init__(
        self,
        shares: AllShares | None = None,
        *,
        concepts: Mapping[str, str] | None = None,
        how: Sega | None = None,
        stratify: int | None = None,
    ) -> None:
        super().__init__(shares, stratify=stratify)
        self.concepts, self.how = dict(concepts or {}), how or Sega()

    def check(self, problem: Problem) -> None:
        """Refuse what `SamplingMethod` refuses, pipelines that cannot be guided, and texts of values nobody has."""
        super().check(problem)
        if not problem.host.guides:
            raise UnsupportedHostError(
                f"{problem.host.name}: method {self.name!r} guides the UNet of Stable Diffusion 1 and 2, and here is "
                "none; use method='stated-value'"
            )
        unknown = set(self.concepts) - {value for prompt_set in problem.attributes for value in prompt_set.attributes}
        if unknown:
            raise InvalidInputError(f"concepts: the prompt sets have no value {', '.join(map(repr, sorted(unknown)))}")

    def settings(self) -> dict[str, Any]:
        """All but the shares."""
        return {"concepts": self.concepts, "how": vars(self.how)}

    def fit(self, problem: Problem, role: str) -> GuidedValue:
        """The texts of the values and the shares."""
        concepts = tuple(
            tuple(self.concepts.get(value, f"{words[0]} person") for value, words in one.attributes.items())
            for one in problem.attributes
        )
        return GuidedValue(concepts, self.how, self.wanted(problem), self.stratify, problem.host.dim(role))


register_method(FairDiffusion())
