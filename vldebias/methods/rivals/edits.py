"""What the rivals' methods give: an affine map of each tower, and a learned residual of the image tower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class Affine:
    """x -> x - (x right) left^T + |x| shift for rows x (..., d): fitted at length 1, applied at any.

    left, right: (d, rank) float64; shift: (d,) float64.
    """

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

    texts: Affine | None = None
    images: Affine | None = None
    provenance: Provenance = field(default_factory=lambda: Provenance("two-towers"))

    def __post_init__(self) -> None:
        widths = {len(one.shift) for one in (self.texts, self.images) if one is not None}
        if len(widths) != 1:
            raise InvalidInputError(f"expected a map of texts or of images, or both of one width, got {sorted(widths)}")
        super().__post_init__()

    @property
    def side(self) -> str:
        """Where it has a map."""
        if self.texts is None:
            return "image"
        return "text" if self.images is None else "both"

    @property
    def dim(self) -> int:
        """Width d."""
        one = self.texts or self.images
        assert one is not None
        return len(one.shift)

    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor:
        """Texts (..., d), changed; `rows` are not read."""
        self.check_strength(strength)
        return z if self.texts is None else self.texts(z, strength)

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Images (..., d), changed."""
        self.check_strength(strength)
        return x if self.images is None else self.images(x, strength)

    def tensors(self) -> dict[str, Tensor]:
        """The factors and shifts, by tower."""
        towers = {"texts": self.texts, "images": self.images}
        parts = ("left", "right", "shift")
        return {f"{name}.{p}": getattr(one, p) for name, one in towers.items() if one is not None for p in parts}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """From `tensors`.

        Raises:
            InvalidInputError: shapes that do not fit.
        """

        def tower(name: str) -> Affine | None:
            own = [tensors.get(f"{name}.{part}") for part in ("left", "right", "shift")]
            if all(one is None for one in own):
                return None
            left, right, shift = own
            if left is None or right is None or shift is None or left.ndim != 2 or shift.ndim != 1:
                raise InvalidInputError(f"{name}: expected left and right (d, rank) and shift (d,)")
            if left.shape != right.shape or len(left) != len(shift):
                raise InvalidInputError(f"{name}: got {tuple(left.shape)}, {tuple(right.shape)}, {tuple(shift.shape)}")
            return Affine(left, right, shift)

        return cls(tower("texts"), tower("images"), provenance)


@dataclass(frozen=True, eq=False, repr=False)
class Residual(Edit):
    """x -> x + |x| r(x / |x|) for images, r of two layers with tanh between them; texts stay.

    down: (h, d), bias: (h,), up: (d, h), float32.
    """

    kind = "residual"

    down: Tensor
    bias: Tensor
    up: Tensor
    provenance: Provenance = field(default_factory=lambda: Provenance("residual"))

    @property
    def side(self) -> str:
        """Images."""
        return "image"

    @property
    def dim(self) -> int:
        """Width d."""
        return len(self.up)

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
        hidden = torch.tanh((wide / length) @ self.down.to(wide).T + self.bias.to(wide))
        return (wide + strength * length * (hidden @ self.up.to(wide).T)).to(x.dtype)

    def tensors(self) -> dict[str, Tensor]:
        """Both layers."""
        return {"down": self.down, "bias": self.bias, "up": self.up}

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], provenance: Provenance) -> Self:
        """From `tensors`.

        Raises:
            InvalidInputError: shapes that do not fit.
        """
        down, bias, up = (tensors[name] for name in ("down", "bias", "up"))
        if down.ndim != 2 or down.T.shape != up.shape or bias.shape != down.shape[:1]:
            raise InvalidInputError("expected down (h, d), bias (h,) and up (d, h)")
        return cls(down, bias, up, provenance)
