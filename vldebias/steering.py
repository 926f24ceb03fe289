"""steer(): every generated image is given an attribute value, drawn from target shares by its seed.

A projection makes a text say less about an attribute, and what the image shows is then left to the rest of the model.
Steering decides it: for each image a value v is drawn from the shares, and what tells the values apart in the text is
set to what v has on average over the concepts of a prompt set,

    z* = argmin |z - z0|^2 + lam/p sum_(a,b) (D_ab^T (z - m_v))^2,    D_ab = m_a - m_b,

with m_a the mean text of value a (`vldebias.targets`). Over many images the shares come out as far as the model follows
its text. That is what it is: the attribute is sampled. The model itself is as biased as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor

from vldebias.attachment import Attachment, Gate, Texts, refuse_second
from vldebias.errors import InvalidInputError, PromptSetError, UnsupportedHostError, VldebiasError
from vldebias.fitting import GENERATOR, Fit, Prompts
from vldebias.hosts import Host, resolve
from vldebias.prompts import PromptSet
from vldebias.shares import AllShares, Shares
from vldebias.stated import StatedWords
from vldebias.targets import TargetProjection

__all__ = ["Steering", "steer"]


def steer(
    pipe: Any,
    prompts: Prompts,
    shares: AllShares | None = None,
    *,
    strength: float = 1.0,
    push: float = 1.0,
    lam: float = GENERATOR.lam,
    keep_stated: bool = True,
    stratify: int | None = None,
) -> Steering:
    """Give each image of a pipeline an attribute value, drawn from `shares` by its seed.

    The seeds have to be told for every call, since `encode_prompt` does not see them::

        steering = vldebias.steer(pipe, "professions-gender", {"female": 0.5, "male": 0.5})
        images = pipe(["A photo of a nurse."] * 4, generator=steering.generators([0, 1, 2, 3])).images

    It acts on every prompt that does not state its attribute, also on one that is not about people: attach it for
    prompts for which the attribute makes sense.

    Args:
        pipe: a diffusers pipeline that `vldebias.debias` takes.
        prompts: a prompt set with attribute words and groups that name every value, or several for combinations.
        shares: value -> share, such as {"female": 0.5, "male": 0.5}; several sets: a list of one mapping each, drawn
            independently, or combination -> share, such as {"female/Black": 0.1, ...}. None: uniform.
        strength: share of the step that is applied, in [0, 1]; 0 is bit-identical to no attachment.
        push: how far from the middle of all values to go; 1 is where texts that name the value are.
        lam: weight of the differences between values; the larger, the less the prompt's own lean counts.
        keep_stated: leave prompts alone that name an attribute word of the set.
        stratify: of this many images with consecutive seeds from a multiple of it on, and one prompt, each value has
            its share to within one image. None: every image is drawn by itself.

    Returns:
        A Steering, which comes off like any Attachment.

    Raises:
        AlreadyAttachedError, UnsupportedHostError, PromptSetError, InvalidInputError.
    """
    target = resolve(pipe)
    if not target.generative:
        raise UnsupportedHostError(
            f"{target.name} draws no images; steer() is for pipelines, and vldebias.fit_shares for retrieval"
        )
    if stratify is not None and (isinstance(stratify, bool) or not isinstance(stratify, int) or stratify < 1):
        raise InvalidInputError(f"stratify: expected a number of images, at least 1, or None, got {stratify!r}")
    if not 0 <= push < float("inf"):
        raise InvalidInputError(f"push: expected a number from 0 on, got {push}")
    refuse_second(target)
    fit = Fit.of(target, prompts, "cali", lam)
    for prompt_set in fit.attributes:
        _value_groups(prompt_set)
    wanted = Shares.of([list(s.attributes) for s in fit.attributes], shares)
    gate = StatedWords(fit.stated_words) if keep_stated and fit.stated_words else None
    return Steering(
        target, wanted, lambda role: _solve(fit, role, wanted, lam, push), strength, gate, stratify, fit.label
    )


@dataclass(frozen=True, eq=False)
class _Steps:
    """What steering does to one role. shifts: (g, d), one for each combination of values."""

    target: TargetProjection
    shifts: Tensor


class Steering(Attachment):
    """An Attachment that gives each image a value by its seed; `remove()`, `disabled()`, `strength` as there.

    Attributes:
        shares: the target shares.
        stratify: see `steer`.
    """

    def __init__(
        self,
        host: Host,
        shares: Shares,
        solve: Callable[[str], _Steps],
        strength: float = 1.0,
        gate: Gate | None = None,
        stratify: int | None = None,
        label: str = "",
    ) -> None:
        self.shares = shares
        self.stratify = stratify
        self._solve = solve
        self._steps = {role: solve(role) for role in host.roles}
        self._seeds: tuple[int, ...] | None = None
        self._served: set[str] = set()
        projections = {role: steps.target.plain for role, steps in self._steps.items()}
        super().__init__(host, projections, strength=strength, gate=gate, label=f"{label}, steered")

    @property
    def seeds(self) -> tuple[int, ...] | None:
        """Seeds of the images of the next call of the pipeline, one per image; a call uses them up."""
        return self._seeds

    @seeds.setter
    def seeds(self, seeds: Sequence[int]) -> None:
        found = list(seeds)
        if not found or not all(isinstance(s, int) and not isinstance(s, bool) for s in found):
            raise InvalidInputError(f"seeds: expected one integer per image, got {seeds!r}")
        self._seeds, self._served = tuple(found), set()

    def generators(self, seeds: Sequence[int], device: str | torch.device = "cpu") -> list[torch.Generator]:
        """Generators with these seeds, one per image, for the call's `generator=`; it tells the seeds as well."""
        self.seeds = seeds
        return [torch.Generator(device).manual_seed(seed) for seed in seeds]

    def values(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str | None]:
        """The value that each image is given, "female" or "female/Black"; None where the prompt states its own.

        prompts, seeds: one of each per image.
        """
        return [None if code is None else self.shares.names[code] for code in self._codes(prompts, seeds)]

    def apply(self, role: str, embeddings: Tensor, texts: Texts | None = None) -> Tensor:
        """`embeddings` (b, ..., d) as `role`, row by row with the value of its image.

        Raises:
            InvalidInputError: no texts, or no seeds for exactly these rows.
        """
        if self.state != "attached" or self._strength == 0:
            return embeddings
        if texts is None:
            raise InvalidInputError(f"{self._host.name}: steering needs the prompt of each row to draw its value")
        prompts = self._by_row(texts(), len(embeddings))
        codes = self._codes(prompts, self._take_seeds(role, len(embeddings)))
        if all(code is None for code in codes):
            return embeddings
        steps = self._steps_for(role)
        wide = [-1, *[1] * (embeddings.ndim - 2), embeddings.shape[-1]]
        shift = steps.shifts[[code or 0 for code in codes]].reshape(wide)
        moved = steps.target.apply(embeddings, shift, self._strength)
        keep = torch.tensor([code is None for code in codes], device=embeddings.device)
        return torch.where(keep.view(-1, *[1] * (embeddings.ndim - 1)), embeddings, moved)

    def merge(self) -> None:
        """Refused: weights cannot hold a value that differs from image to image."""
        raise VldebiasError(
            f"{self._host.name}: steering differs from image to image and cannot become part of weights"
        )

    def _codes(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[int | None]:
        stated = self.stated(prompts)
        return [
            None if kept else self.shares.draw(seed, prompt, self.stratify)
            for prompt, seed, kept in zip(prompts, seeds, stated, strict=True)
        ]

    def _by_row(self, prompts: Sequence[str], rows: int) -> list[str]:
        """The prompt of each row: images of one prompt stand together."""
        if not prompts or rows % len(prompts):
            raise InvalidInputError(
                f"{self._host.name}: {rows} embeddings for {len(prompts)} prompts; expected a multiple"
            )
        return [prompt for prompt in prompts for _ in range(rows // len(prompts))]

    def _take_seeds(self, role: str, rows: int) -> tuple[int, ...]:
        """The seeds of this call. Each role asks once a call, so one that asks again belongs to another call."""
        if self._seeds is None or role in self._served:
            state = "the seeds told last are used up" if self._seeds else "no seeds are told"
            raise InvalidInputError(
                f"{self._host.name}: {state}; every call needs those of its images: "
                "pipe(..., generator=steering.generators(seeds)), or steering.seeds = [...] before it"
            )
        if len(self._seeds) != rows:
            raise InvalidInputError(
                f"{self._host.name}: {len(self._seeds)} seeds for {rows} images; expected one for each, in the order "
                "of the prompts, each prompt with all its images"
            )
        self._served.add(role)
        return self._seeds

    def _steps_for(self, role: str) -> _Steps:
        """Under clip_skip another layer is read, which is fitted when a call first asks for it."""
        if role not in self._steps:
            self._steps[role] = self._solve(role)
            self.projections[role] = self._steps[role].target.plain
        return self._steps[role]


def _solve(fit: Fit, role: str, shares: Shares, lam: float, push: float) -> _Steps:
    """The closed form and the shift of each combination: for each attribute, its component is that of its value."""
    differences, weights, targets = [], [], []
    for attribute, prompt_set in enumerate(fit.attributes):
        means = _value_means(fit, prompt_set, role)
        middle = means.mean(0)
        rows = torch.stack([means[i] - means[j] for i, j in combinations(range(len(means)), 2)])
        aims = (middle + push * (means - middle)) @ rows.T
        differences.append(rows)
        weights.append(torch.full((len(rows),), lam / len(rows), dtype=torch.float64))
        targets.append(aims[[code[attribute] for code in shares.codes]])
    solved = TargetProjection.solve(torch.cat(differences), torch.cat(weights))
    plain = replace(solved.plain, method="steer", lam=lam, space=fit.host.space(role), prompts=fit.label)
    return _Steps(replace(solved, plain=plain), solved.shift(torch.cat(targets, dim=1)))


def _value_means(fit: Fit, prompt_set: PromptSet, role: str) -> Tensor:
    """(a, d) mean text of each value, over the groups that name every value: the same concepts for all."""
    groups = _value_groups(prompt_set)
    fit.embed(chain.from_iterable(chain.from_iterable(groups)), role)  # in full batches
    means = [torch.stack([fit.embed(texts, role).mean(0) for texts in group]) for group in groups]
    return torch.stack(means).mean(0)


def _value_groups(prompt_set: PromptSet) -> list[list[list[str]]]:
    """The groups that have a prompt for every value, each sorted by value.

    Raises:
        PromptSetError: fewer than two values, or no such group.
    """
    words = [StatedWords(words) for words in prompt_set.attributes.values()]
    sorted_groups = [[_of_value(group, words, value) for value in range(len(words))] for group in prompt_set.groups]
    found = [group for group in sorted_groups if all(group)]
    if len(words) < 2 or not found:
        raise PromptSetError(
            f"prompt set {prompt_set.name!r}: expected words for two or more values, and groups with a prompt for "
            f"each, got values {list(prompt_set.attributes)} and {len(found)} such groups; add `attribute` words"
        )
    return found


def _of_value(group: Sequence[str], words: Sequence[StatedWords], value: int) -> list[str]:
    """The prompts that name a word of this value and of no other."""
    return [p for p in group if [v for v, matcher in enumerate(words) if matcher.match(p)] == [value]]
