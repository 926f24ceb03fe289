"""The closed form with a target: differences take given values instead of zero.

Eq. 7.4 of Chuang et al. (2023) asks that D_p^T z = 0 for every difference D_p of a pair. With a target t_p instead,

    z* = argmin |z - z0|^2 + sum_p w_p (D_p^T z - t_p)^2 = P z0 + sum_p t_p w_p P D_p
    P  = (I + sum_p w_p D_p D_p^T)^-1,

the same matrix and a shift. t = 0 is eq. 7.4. Where t_p = D_p^T m for a vector m, z* = P z0 + (I - P) m: the text keeps
everything of its own except what the differences span, which it takes from m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.projection import CalibratedProjection, PairScatter


@dataclass(frozen=True, eq=False)
class TargetProjection:
    """z -> P z + |z| shift(t): positively homogeneous, for embeddings are fitted at length 1 and applied as they are.

    plain: P, the projection of t = 0. lift: (p, d) float64, row p is w_p P D_p, by which t_p moves a unit embedding.
    """

    axes: ClassVar = {"lift": "p d"}
    parts: ClassVar = {"plain": CalibratedProjection}

    plain: CalibratedProjection
    lift: Tensor

    @classmethod
    @torch.inference_mode(False)
    def solve(
        cls,
        differences: Tensor,
        weights: Tensor,
        others: Sequence[PairScatter] = (),
        lam: float | Sequence[float] = (),
    ) -> TargetProjection:
        """The solution for differences D (p, d) of weight w (p,) that have targets.

        others, lam: further pairs without a target, with one weight each, as of `CalibratedProjection.solve`.

        Raises:
            InvalidInputError: shapes that do not fit, weights that are not positive, differences of length 0.
        """
        rows, w = differences.detach().cpu().double(), weights.detach().cpu().double()
        if rows.ndim != 2 or w.shape != rows.shape[:1] or not len(rows):
            raise InvalidInputError(
                f"expected differences (p, d) and weights (p,), got {tuple(rows.shape)} and {tuple(w.shape)}"
            )
        if not (torch.isfinite(w) & (w > 0)).all() or not (torch.isfinite(rows).all() and rows.any(dim=1).all()):
            raise InvalidInputError(
                "expected finite differences other than 0 with positive weights: two values whose texts or images are "
                "alike cannot be told apart"
            )
        more = [float(lam)] * len(others) if isinstance(lam, (int, float)) else list(lam)
        weighted = PairScatter(rows * w.sqrt()[:, None], 1)
        plain = CalibratedProjection.solve([weighted, *others], None, [1.0, *more])
        return cls(plain, plain(rows) * w[:, None])

    @property
    def dim(self) -> int:
        """Width d."""
        return self.plain.dim

    def shift(self, targets: Tensor) -> Tensor:
        """(..., d) float64: what targets (..., p) add to P z for an embedding of length 1."""
        return targets.double() @ self.lift

    def apply(self, z: Tensor, shift: Tensor, strength: float = 1.0) -> Tensor:
        """z + strength (P z + |z| shift - z) for embeddings (..., d), in the shape, dtype and device of `z`.

        shift: broadcasts against `z`; from `shift`. strength: in [0, 1]; 0 returns `z` itself. Half precision is
        computed in float32 and rounded once.
        """
        if not 0 <= strength <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {strength}")
        if strength == 0:
            return z
        wide = z if z.dtype in (torch.float32, torch.float64) else z.float()
        moved = self.plain(wide) + wide.norm(dim=-1, keepdim=True) * shift.to(wide)
        return torch.lerp(wide, moved, strength).to(z.dtype)
