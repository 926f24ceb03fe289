"""Affine forms for pipelines: what tells the values apart is set to a level, not to zero.

A text state z of a pipeline is read as it is, not by its direction, and zero is no level that its denoiser has seen.
With mu the midpoint of the mean states of the values at the same place, counted from the end of the text, and
P = I - L R^T,

    z* = mu + P (z - mu) = P z + (I - P) mu.

"midpoint" takes for P the projection along the differences of the mean states alone: one direction for two values. The
other directions in which prompt pairs differ are noise, and removing them costs the subject. "cali-midpoint" has the P
of the paper's calibration. Tokens before the last of the prompt itself are left alone; "midpoint-end" leaves that one
alone too, and moves the end of the text and the padding behind it, which no word of the prompt owns. One level for all
tokens would be that of the end of the text, near zero: that is "difference", which is linear and can be merged; a level
for each place cannot, since the layers that read the states know no places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.methods.closed_form import CALI
from vldebias.methods.method import Method, Need, Problem, register_method
from vldebias.methods.steer import value_groups
from vldebias.projection import CalibratedProjection

BEFORE = 1  # tokens before the end of the text that are moved too: the last of the prompt itself


@dataclass(frozen=True, eq=False, repr=False)
class Affine(Edit):
    """z + strength L (levels - R^T z), for states of tokens (b, tokens, d) and pooled ones (b, d).

    Attributes:
        plain: P = I - L R^T.
        levels: (n, rank) float64, what R^T z is set to at the places from `before` the end of the text on; the last of
            them stands for all further ones.
        before: tokens before the end of the text that are moved too.
    """

    kind = "affine"
    reads_text = True

    plain: CalibratedProjection
    levels: Tensor
    provenance: Provenance
    before: int = field(default=BEFORE, kw_only=True)

    @property
    def dim(self) -> int:
        """Width d."""
        return self.plain.dim

    @property
    def rank(self) -> int:
        """Columns of the factors."""
        return self.plain.rank

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """As the class says; see `Edit.__call__`.

        Raises:
            InvalidInputError: states of another width, or rows that are not told where places count.
        """
        moved = self.plain(z, strength)  # checks
        if strength == 0:
            return z
        wide = moved if moved.dtype in (torch.float32, torch.float64) else moved.float()
        left, last = self.plain.left.to(wide), len(self.levels) - 1
        if z.ndim == 2:  # the end of the text, pooled
            place = torch.full((1,), min(self.before, last), device=z.device)
            return (wide + strength * (self.level(place, rows).to(wide) @ left.T).reshape(-1, self.dim)).to(z.dtype)
        if rows is None or rows.embed is None:
            raise InvalidInputError(f"{self!r}: expected the prompt of each row, to find where it ends")
        place = torch.arange(z.shape[1], device=z.device) - self._ends(z, rows)[:, None] + self.before
        shift = self.level(place.clamp(0, last), rows).to(wide) @ left.T
        return torch.where((place >= 0)[..., None], wide + strength * shift, z.to(wide)).to(z.dtype)

    def level(self, place: Tensor, rows: Rows | None) -> Tensor:
        """(*place, rank) what R^T z is set to at each place."""
        return self.levels.to(place.device)[place]

    def _ends(self, z: Tensor, rows: Rows) -> Tensor:
        """(b,) place of the token that ends each prompt: the one whose state is that of the bare prompt."""
        assert rows.embed is not None
        return cosine_similarity(z, rows.embed(rows.texts).to(z)[:, None], dim=-1).argmax(1)

    def tensors(self) -> dict[str, Tensor]:
        """Factors and levels."""
        return {**self.plain.tensors(), "levels": self.levels}

    def settings(self) -> dict[str, Any]:
        """Where the levels begin."""
        return {"before": self.before}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """From `tensors` and `settings`, checked."""
        factors = {name: tensors[name] for name in ("left", "right")}
        plain, levels = CalibratedProjection.build(factors, {}, provenance), tensors["levels"]
        if levels.ndim != 2 or levels.shape[1] != plain.rank or not len(levels):
            raise InvalidInputError(f"levels: expected (n, {plain.rank}), got {tuple(levels.shape)}")
        before = int(settings.get("before", BEFORE))  # edits saved by 0.2 do not say it
        if before not in (0, BEFORE):
            raise InvalidInputError(f"before: expected 0 or {BEFORE} tokens before the end of the text, got {before}")
        return cls(plain, levels, provenance, before=before)

    def folded(self) -> CalibratedProjection:
        """Refused.

        Raises:
            VldebiasError: its levels depend on where a text ends.
        """
        raise VldebiasError(
            f"Affine ({self.method}) is not one linear map of an embedding: its levels depend on where the text ends, "
            "which the layers that read its states do not know; keep it attached, or save it and attach it after "
            "loading. method='difference' sets one level for all tokens, and merges"
        )


class Midpoint(Method):
    """The affine form with the midpoint of the mean states of the values.

    calibrated: take the P of the paper's calibration (Lemma 7.2, lam = 500), not that of the mean difference.
    level: c of an attribute of two values: 0 is the midpoint, 1 the level of the first value, -1 that of the second.
    tokens: the first that is moved: "last", the last of the prompt itself, or "end", the one that ends the text.

    Raises:
        InvalidInputError: other tokens.
    """

    needs, models, source = frozenset({Need.PAIRS, Need.VALUES}), False, "this package"
    colors: ClassVar = {"midpoint": "#8c6d31", "cali-midpoint": "#e7ba52", "midpoint-end": "#637939",
                        "cali-midpoint-end": "#b5cf6b"}  # fmt: skip

    def __init__(self, *, calibrated: bool = False, level: float = 0.0, tokens: str = "last") -> None:
        if tokens not in ("last", "end"):
            raise InvalidInputError(f'tokens: expected "last" or "end", got {tokens!r}')
        self.calibrated = self.has_lam = calibrated
        self.level, self.tokens = float(level), tokens
        end = tokens == "end"
        self.name = "cali-" * calibrated + "midpoint" + "-end" * end
        self.color = self.colors[self.name]
        self.title = "affine form with the midpoint" + ", calibration" * calibrated + ", end of the text alone" * end

    def check(self, problem: Problem) -> None:
        """Refuse image-text models and prompt sets without values."""
        super().check(problem)
        for prompt_set in problem.attributes:
            value_groups(prompt_set)
        if self.level and [len(prompt_set.attributes) for prompt_set in problem.attributes] != [2]:
            raise InvalidInputError(
                f"{self.name}: a level apart from 0 is of one attribute with two values, got "
                f"{[list(prompt_set.attributes) for prompt_set in problem.attributes]}"
            )

    def settings(self) -> dict[str, Any]:
        """The level, where it is not the midpoint."""
        return {"level": self.level} if self.level else {}

    def at(self, level: float) -> Midpoint:
        """The same at another level."""
        return Midpoint(calibrated=self.calibrated, level=level, tokens=self.tokens)

    def fit(self, problem: Problem, role: str) -> Affine:
        """The closed form."""
        states = _States.of(problem, role, self.level)
        plain = CALI.fit(problem, role) if self.calibrated else _along(states.directions)
        origin = replace(plain.provenance, method=self.name)
        before = BEFORE if self.tokens == "last" else 0
        return Affine(plain, (states.by_place @ plain.right)[BEFORE - before :], origin, before=before)


@dataclass(frozen=True)
class _States:
    """Mean states of the values of all attributes, as the pipeline reads them.

    means: (values, d) at the end of the text, those of all attributes. middle: (d,). directions: (k, d) differences.
    by_place: (places, d) from `BEFORE` the end on.
    """

    means: Tensor
    middle: Tensor
    directions: Tensor
    by_place: Tensor

    @classmethod
    def of(cls, problem: Problem, role: str, level: float = 0.0) -> _States:
        means, middles, places = [], [], []
        for prompt_set in problem.attributes:
            groups = value_groups(prompt_set)
            own, laid = [], []
            for value in zip(*groups, strict=True):  # the prompts of one value, over the concepts
                tokens, ends = problem.host.sequences(list(chain.from_iterable(value)), role)
                laid.append(_by_place(tokens, ends))
                own.append(tokens[torch.arange(len(tokens)), ends].mean(0))
            shortest = min(map(len, laid))
            same = torch.stack([one[:shortest] for one in laid])
            places.append(same.mean(0) + level * (same[0] - same[-1]) / 2)
            means.append(torch.stack(own))
            middles.append(means[-1].mean(0))
        shortest = min(map(len, places))
        directions = torch.cat([one - one.mean(0) for one in means])
        by_place = torch.stack([one[:shortest] for one in places]).mean(0)
        return cls(torch.cat(means), torch.stack(middles).mean(0), directions, by_place)


def _by_place(tokens: Tensor, ends: Tensor) -> Tensor:
    """(places, d) mean state at every place from `BEFORE` the end on that all prompts have."""
    length = int(tokens.shape[1] - ends.max())
    first = (ends - BEFORE).clamp(min=0)
    places = first[:, None] + torch.arange(length + BEFORE)
    return tokens[torch.arange(len(tokens))[:, None], places.clamp(max=tokens.shape[1] - 1)].mean(0)


def _along(directions: Tensor) -> CalibratedProjection:
    """P0 of directions (k, d)."""
    return CalibratedProjection.solve([], directions, 0.0)


for _method in (Midpoint(), Midpoint(calibrated=True), Midpoint(tokens="end")):
    register_method(_method)
