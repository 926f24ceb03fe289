"""Steering: every generated image is given an attribute value, drawn from target shares.

A projection makes a text say less about an attribute, and what the image shows is then left to the rest of the model.
Steering decides it: for each image a value v is drawn from the shares, and what tells the values apart in the text is
set to what v has on average over the concepts of a prompt set,

    z* = argmin |z - z0|^2 + lam/p sum_(a,b) (D_ab^T (z - m_v))^2,    D_ab = m_a - m_b,

with m_a the mean text of value a (`vldebias.methods.target`). Over many images the shares come out as far as the model
follows its text. That is what it is: the attribute is sampled. The model itself is as biased as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from itertools import chain, combinations
from typing import Any, ClassVar

import torch
from torch import Tensor

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError, PromptSetError
from vldebias.methods.method import LAM_OF_PIPELINES, Method, Need, Problem, register_method
from vldebias.methods.shares import AllShares, Shares
from vldebias.methods.target import TargetProjection
from vldebias.prompts import PromptSet


class SampledEdit(Edit):
    """Draws a combination of values for each row, by its number or its seed; a subclass says what follows from it.

    Attributes:
        shares: the target shares. stratify: see `SamplingMethod`.
    """

    sampled = True

    shares: Shares
    stratify: int | None

    def draw(self, rows: Rows) -> list[str]:
        """The value, "female" or "female/Black", that each row is given."""
        return [shares.names[code] for shares, code in zip(self.targets(rows), self.codes(rows), strict=True)]

    def targets(self, rows: Rows) -> list[Shares]:
        """The shares that each row is drawn from."""
        return [self.shares] * len(rows.texts)

    def codes(self, rows: Rows | None) -> list[int]:
        """Place of the combination that each row is given, among those of its shares.

        Raises:
            InvalidInputError: the prompts and seeds of the rows are not given.
        """
        if rows is not None and rows.numbers is not None:
            return [shares.at(number) for shares, number in zip(self.targets(rows), rows.numbers, strict=True)]
        if rows is None or rows.seeds is None or len(rows.seeds) != len(rows.texts):
            raise InvalidInputError(f"{self!r}: a value is drawn by prompt and seed; expected both for each row")
        prompts = zip(self.targets(rows), rows.texts, rows.seeds, strict=True)
        return [shares.draw(seed, text, self.stratify) for shares, text, seed in prompts]

    def settings(self) -> dict[str, Any]:
        """As of every edit, the fields of the shares among them."""
        own = super().settings()
        return {**own, **own.pop("shares")}

    @classmethod
    def fields_of(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """See `Edit.fields_of`."""
        return super().fields_of({**settings, "shares": {one.name: settings[one.name] for one in fields(Shares)}})


@dataclass(frozen=True, eq=False, repr=False)
class Steering(SampledEdit):
    """Sets what tells the values apart to that of a value drawn for each row.

    Attributes:
        target: the closed form. shifts: (g, d), what each combination of values adds.
    """

    kind = "steer"
    axes: ClassVar = {"shifts": "g d"}
    parts: ClassVar = {"target": TargetProjection}

    target: TargetProjection
    shifts: Tensor
    shares: Shares
    stratify: int | None
    provenance: Provenance

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.shifts) != len(self.shares.codes):
            raise InvalidInputError(f"shifts: expected {len(self.shares.codes)}, got {len(self.shifts)}")

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """`embeddings` (b, ..., d), each row with the value of its image.

        Raises:
            InvalidInputError: the prompts and seeds of the rows are not given, or are of another number.
        """
        self.check_strength(strength)
        if strength == 0:
            return z
        codes = self.codes(rows)
        if len(codes) != len(z):
            raise InvalidInputError(f"{self!r}: {len(z)} embeddings for {len(codes)} images; expected one for each")
        shift = self.shifts[codes].reshape(-1, *[1] * (z.ndim - 2), z.shape[-1])
        return self.target.apply(z, shift, strength)


class SamplingMethod(Method):
    """Gives each image of a pipeline an attribute value, drawn from target shares.

    Args:
        shares: as of `Shares.of`: {"female": 0.5, "male": 0.5}, the column of a data set, or combination -> share.
        stratify: where seeds are told, of this many images with consecutive seeds from a multiple of it on, and one
            prompt, each value has its share to within one image. None: every image is drawn by itself.

    Raises:
        InvalidInputError: a value outside its range.
    """

    models = False

    def __init__(self, shares: AllShares | None = None, *, stratify: int | None = None) -> None:
        if stratify is not None and (isinstance(stratify, bool) or not isinstance(stratify, int) or stratify < 1):
            raise InvalidInputError(f"stratify: expected a number of images, at least 1, or None, got {stratify!r}")
        self.shares, self.stratify = shares, stratify

    def check(self, problem: Problem) -> None:
        """Refuse image-text models, prompt sets without values, and shares of other values."""
        super().check(problem)
        self.wanted(problem)

    def wanted(self, problem: Problem) -> Shares:
        """The shares of the values of a problem."""
        return Shares.of([list(s.attributes) for s in problem.attributes], self.shares)


class Steer(SamplingMethod):
    """Give each image of a pipeline an attribute value, drawn from target shares, by moving the states of its text.

    Args:
        shares, stratify: see `SamplingMethod`.
        push: how far from the middle of all values to go; 1 is where texts that name the value are.

    Raises:
        InvalidInputError: a value outside its range.
    """

    name, title, source, color = "steer", "a value drawn for each image", "this package", "#439894"
    needs, has_lam = frozenset({Need.PAIRS, Need.VALUES}), True

    def __init__(self, shares: AllShares | None = None, *, push: float = 1.0, stratify: int | None = None) -> None:
        super().__init__(shares, stratify=stratify)
        if not 0 <= push < float("inf"):
            raise InvalidInputError(f"push: expected a number from 0 on, got {push}")
        self.push = push

    def check(self, problem: Problem) -> None:
        """Refuse what `SamplingMethod` refuses, and sets without a group that has a prompt for every value."""
        super().check(problem)
        for prompt_set in problem.attributes:
            value_groups(prompt_set)

    def fit(self, problem: Problem, role: str) -> Steering:
        """The closed form and the shift of each combination: for each attribute, its component is that of its value."""
        shares = self.wanted(problem)
        lam = problem.weight if isinstance(problem.weight, float) else LAM_OF_PIPELINES
        differences, weights, targets = [], [], []
        for attribute, prompt_set in enumerate(problem.attributes):
            groups = value_groups(prompt_set)  # that name every value: the same concepts for all
            problem.embed(chain.from_iterable(chain.from_iterable(groups)), role)  # in full batches
            values = [torch.stack([problem.embed(texts, role).mean(0) for texts in group]) for group in groups]
            means = torch.stack(values).mean(0)
            middle = means.mean(0)
            rows = torch.stack([means[i] - means[j] for i, j in combinations(range(len(means)), 2)])
            aims = (middle + self.push * (means - middle)) @ rows.T
            differences.append(rows)
            weights.append(torch.full((len(rows),), lam / len(rows), dtype=torch.float64))
            targets.append(aims[[code[attribute] for code in shares.codes]])
        solved = TargetProjection.solve(torch.cat(differences), torch.cat(weights))
        origin = Provenance("steer", lam)
        solved = replace(solved, plain=replace(solved.plain, provenance=origin))
        return Steering(solved, solved.shift(torch.cat(targets, dim=1)), shares, self.stratify, origin)


def value_groups(prompt_set: PromptSet) -> list[list[tuple[str, ...]]]:
    """The groups that have a prompt for every value, each sorted by value.

    Raises:
        PromptSetError: fewer than two values, or no such group.
    """
    sorted_groups = [list(prompt_set.by_value(group).values()) for group in prompt_set.groups]
    complete = [group for group in sorted_groups if all(group)]
    if len(prompt_set.attributes) < 2 or not complete:
        raise PromptSetError(
            f"prompt set {prompt_set.name!r}: expected words for two or more values, and groups with a prompt for "
            f"each, got values {list(prompt_set.attributes)} and {len(complete)} such groups; add `attribute` words"
        )
    return complete


register_method(Steer())
