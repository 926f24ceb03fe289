"""Implement Lian et al. (CVPR 2026): a closed-form compromise between the loss of a text and its remaining bias."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from vldebias.edit import Edit, Provenance
from vldebias.methods.closed_form import value_differences
from vldebias.methods.method import Method, Need, Problem, register_method
from vldebias.projection import span_of

_NONE = 1e-12  # a part of a unit vector that is shorter is none


@dataclass(frozen=True, eq=False, repr=False)
class HalfWay(Edit):
    """Rotate each embedding towards the complement of a subspace until relative loss and relative bias are equal.

    For a unit vector e let b = |B^T e| be its bias, and o = sqrt(1 - b^2) the length of the rest. Among unit vectors u
    in the plane of the two parts, bias |B^T u| and loss 1 - <u, e> cannot both be smallest; the Chebyshev solution has

        |B^T u| / b = (1 - <u, e>) / (1 - o),

    both relative to their largest values: at u = e, and at e without its part in the subspace. With
    E = b + (1 - o) / b that is |B^T u| = (E - o sqrt(E^2 - b^2)) / (E^2 + o^2). The length is kept.

    Attributes:
        basis: (d, r) orthonormal, the span of the differences of the groups' spherical means; that of "difference".
        acts: "text", "image" or "both".
    """

    kind = "half-way"
    axes: ClassVar = {"basis": "d r"}

    basis: Tensor
    acts: str = "both"
    provenance: Provenance = field(default_factory=lambda: Provenance("lian"))

    @property
    def side(self) -> str:
        """Return which embeddings it changes: "text", "image" or "both"."""
        return self.acts

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Return rotated text embeddings (..., d)."""
        return z if self.acts == "image" else self._turned(z, strength)

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Return rotated image embeddings (..., d)."""
        return x if self.acts == "text" else self._turned(x, strength)

    def _turned(self, z: Tensor, strength: float) -> Tensor:
        self.check_strength(strength)
        if strength == 0:
            return z
        wide = z.double()
        length = wide.norm(dim=-1, keepdim=True)
        unit, basis = wide / length.clamp(min=_NONE), self.basis.to(wide)
        along = (unit @ basis) @ basis.T
        rest = unit - along
        b, o = along.norm(dim=-1, keepdim=True), rest.norm(dim=-1, keepdim=True)
        e = b + (1 - o) / b.clamp(min=_NONE)
        left = (e - o * (e * e - b * b).clamp(min=0).sqrt()) / (e * e + o * o)
        turned = (1 - left * left).clamp(min=0).sqrt() * rest / o.clamp(min=_NONE) + left * along / b.clamp(min=_NONE)
        turned = torch.where((b > _NONE) & (o > _NONE), length * turned, wide)
        return torch.lerp(wide, turned, strength).to(z.dtype)


class Lian(Method):
    """Fit `HalfWay` to the texts of the set that name each value.

    The authors let a language model paraphrase the text of each group, for each class of a classification; here the
    texts of the set replace them, the same for all classes. side: "both" is what the authors recommend.
    """

    name, source = "lian", "Lian et al., 2026"
    color, needs = "#1f9e89", frozenset({Need.VALUES})

    def __init__(self, side: Literal["text", "image", "both"] = "both") -> None:
        self.side = side
        self.title = "half-way to the other groups" + ("" if side == "both" else f", {side}s alone")

    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the basis of the differences of all attributes; for a pipeline only texts are changed."""
        return HalfWay(span_of(value_differences(problem, role)), "text" if problem.host.generative else self.side)


register_method(Lian())
