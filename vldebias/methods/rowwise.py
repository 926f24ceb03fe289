"""Apply an edit to each embedding separately, in float64."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError


class Rowwise(Edit):
    """Replace each embedding by a function of its unit vector, times its length."""

    @abstractmethod
    def _turned(self, unit: Tensor, image: bool) -> Tensor | None:
        """Return what replaces unit rows (n, d) of texts or of images; None leaves them as they are."""

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed text embeddings (..., d) in the shape, dtype and device of `z`."""
        return self._applied(z, strength, image=False)

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed image embeddings (..., d)."""
        return self._applied(x, strength, image=True)

    def _applied(self, z: Tensor, strength: float, *, image: bool) -> Tensor:
        self.check_strength(strength)
        if z.ndim == 0 or z.shape[-1] != self.dim or not z.is_floating_point():
            raise InvalidInputError(f"expected float embeddings (..., {self.dim}), got {z.dtype} {tuple(z.shape)}")
        if strength == 0:
            return z
        rows = z.detach().cpu().double().reshape(-1, self.dim)
        length = rows.norm(dim=1, keepdim=True)
        turned = self._turned(rows / length.clamp(min=1e-12), image)
        return z if turned is None else torch.lerp(rows, length * turned, strength).reshape(z.shape).to(z)
