"""Apply an edit to each embedding separately, in float64."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from vldebias.edit import Edit


class Rowwise(Edit):
    """Replace each embedding by a function of its unit vector, times its length."""

    @abstractmethod
    def _turned(self, unit: Tensor, image: bool) -> Tensor | None:
        """Return what replaces unit rows (n, d) of texts or of images; None leaves them as they are."""

    def __call__(self, z: Tensor, strength: float = 1.0, *, image: bool = False) -> Tensor:
        """Return changed embeddings (..., d) of texts, or of images, in the shape, dtype and device of `z`."""
        self.check_input(z, strength)
        rows = z.detach().cpu().double().reshape(-1, self.dim)
        length = rows.norm(dim=1, keepdim=True)
        turned = None if strength == 0 else self._turned(rows / length.clamp(min=1e-12), image)
        return z if turned is None else torch.lerp(rows, length * turned, strength).reshape(z.shape).to(z)

    def image(self, x: Tensor, strength: float = 1.0) -> Tensor:
        """Return changed image embeddings (..., d)."""
        return self(x, strength, image=True)
