"""A batch of small pictures to paint on, and the shapes that they are painted with."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vldebias.miniature.hashing import Draws

if TYPE_CHECKING:
    import torch

__all__ = ["SIZE", "Canvas", "Frame"]

SIZE = 32

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]


class Frame:
    """Coordinates (n, 32, 32) centred on (x, y) per image, in picture heights; y points down.

    `scale` enlarges what is drawn in the frame, `flip` of -1 mirrors it.
    """

    def __init__(self, x: Floats, y: Floats, scale: Floats | float = 1.0, flip: Floats | float = 1.0) -> None:
        rows, columns = np.mgrid[0:SIZE, 0:SIZE].astype(np.float32) / np.float32(SIZE)
        factor = np.broadcast_to(np.asarray(scale, np.float32), x.shape)[:, None, None]
        sign = np.broadcast_to(np.asarray(flip, np.float32), x.shape)[:, None, None]
        self.x = (columns - x[:, None, None]) * sign / factor
        self.y = (rows - y[:, None, None]) / factor

    def ellipse(self, x: float, y: float, rx: float, ry: float) -> Mask:
        """Filled ellipse around (x, y)."""
        return ((self.x - x) / rx) ** 2 + ((self.y - y) / ry) ** 2 < 1

    def box(self, left: float, right: float, top: float, bottom: float) -> Mask:
        """Filled rectangle."""
        return (self.x > left) & (self.x < right) & (self.y > top) & (self.y < bottom)


class Canvas:
    """Pixels (n, 32, 32, 3) in [0, 1]; later paint covers earlier paint, with hard edges."""

    def __init__(self, n: int) -> None:
        self.pixels = np.zeros((n, SIZE, SIZE, 3), np.float32)

    def paint(self, mask: Mask, colour: Floats) -> None:
        """Fills a mask (n, 32, 32) with a colour, (3,) for all or (n, 3) for each image its own."""
        per_image = np.broadcast_to(colour, (len(self.pixels), 3)).astype(np.float32)
        np.copyto(self.pixels, per_image[:, None, None, :], where=mask[..., None])

    def add_noise(self, draws: Draws, sigma: float) -> None:
        """Adds independent noise of standard deviation sigma to every value and clips to [0, 1]."""
        noise = draws.noise("pixel noise", SIZE * SIZE * 3, sigma)
        np.clip(self.pixels + noise.reshape(self.pixels.shape), 0, 1, out=self.pixels)

    def to_tensor(self) -> "torch.Tensor":
        """(n, 3, 32, 32) float32 in [0, 1]."""
        import torch

        return torch.from_numpy(np.ascontiguousarray(self.pixels.transpose(0, 3, 1, 2)))
