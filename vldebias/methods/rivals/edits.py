"""What the rivals' methods give: an affine map of each tower, and a learned residual of the image tower."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class Affine:
    """x -> x - (x right) left^T + |x| shift for rows x (..., d): fitted at length 1, applied at any.

    left, right: (d, rank) float64; shift: (d,) float64.
    """

    axes: ClassVar = {"left": "d rank", "right": "d rank", "shift": "d"}

    left: Tensor
    right: Tensor
    shift: Tensor

    @classmethod
    def linear(cls, left: Tensor, right: Tensor) -> Affine:
        """Without a shift."""
        return cls(left, right, torch.zeros(len(left), dtype=torch.float64))

    @classmethod
    def imputing(cls, dims: Tensor, values: Tensor, width: int) -> Affine:
        """The dimensions (m,) replaced by values (m,), all others as they are."""
        unit = torch.eye(width, dtype=torch.float64)[:, dims]
        return cls(unit, unit, unit @ values.double())

    @classmethod
    def of_matrix(cls, matrix: Tensor) -> Affine:
        """x -> matrix x, of any rank."""
        eye = torch.eye(len(matrix), dtype=torch.float64)
        return cls.linear(eye - matrix.double(), eye)

    def __call__(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """x + strength (map(x) - x) in the shape, dtype and device of x; half precision is computed in float32."""
        if strength == 0:
            return x
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        change = wide.norm(dim=-1, keepdim=True) * self.shift.to(wide)
        change = change - (wide @ self.right.to(wide)) @ self.left.to(wide).T
        return (wide + strength * change).to(x.dtype)

    def matrix(self) -> Tensor:
        """The linear part as a dense (d, d) float64 matrix."""
        return torch.eye(len(self.left), dtype=torch.float64) - self.left @ self.right.T


@dataclass(frozen=True, eq=False, repr=False)
class TwoTowers(Edit):
    """An affine map of the texts and another of the images; None leaves that tower alone."""

    kind = "two-towers"
    parts: ClassVar = {"texts": Affine, "images": Affine}

    texts: Affine | None = None
    images: Affine | None = None
    provenance: Provenance = field(default_factory=lambda: Provenance("two-towers"))

    def __post_init__(self) -> None:
        if self.texts is None and self.images is None:
            raise InvalidInputError("expected a map of texts or of images, or both, got none")
        super().__post_init__()

    @property
    def side(self) -> str:
        """Where it has a map."""
        if self.texts is None:
            return "image"
        return "text" if self.images is None else "both"

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """Texts (..., d), changed; `rows` are not read."""
        self.check_strength(strength)
        return z if self.texts is None else self.texts(z, strength)

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Images (..., d), changed."""
        self.check_strength(strength)
        return x if self.images is None else self.images(x, strength)


@dataclass(frozen=True, eq=False, repr=False)
class Residual(Edit):
    """x -> x + |x| r(x / |x|) for images, r of two layers with tanh between them; texts stay.

    down: (h, d), bias: (h,), up: (d, h), float32.
    """

    kind = "residual"
    axes: ClassVar = {"down": "h d", "bias": "h", "up": "d h"}

    down: Tensor
    bias: Tensor
    up: Tensor
    provenance: Provenance = field(default_factory=lambda: Provenance("residual"))

    @property
    def side(self) -> str:
        """Images."""
        return "image"

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """Texts, as they are."""
        self.check_strength(strength)
        return z

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Images (..., d) with the residual, in the dtype of x."""
        self.check_strength(strength)
        if strength == 0:
            return x
        wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
        length = wide.norm(dim=-1, keepdim=True)
        hidden = torch.tanh(torch.nn.functional.normalize(wide, dim=-1) @ self.down.to(wide).T + self.bias.to(wide))
        return (wide + strength * length * (hidden @ self.up.to(wide).T)).to(x.dtype)
