"""Define shapes with soft edges, and a pen that paints them on many images at once.

A shape is a signed distance, which is negative inside and zero on the outline. Lengths are in image
heights, x points to the right and y downwards, relative to the pen's origin in each image.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# These are always float32, but type checkers lose track of the precision in arithmetic.
Floats = NDArray[np.floating[Any]]
Box = tuple[float, float, float, float]  # left, right, top, bottom

_FAR = 9.0  # outside of all images


@dataclass(frozen=True)
class Shape:
    """A region of the plane enclosed by `bounds`; `distance(x, y)` is negative inside."""

    bounds: Box
    distance: Callable[[Floats, Floats], Floats]

    def __or__(self, other: "Shape") -> "Shape":
        """Return the union."""
        a, b = self.bounds, other.bounds
        around = (min(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), max(a[3], b[3]))
        return Shape(around, lambda x, y: np.minimum(self.distance(x, y), other.distance(x, y)))

    def __and__(self, other: "Shape") -> "Shape":
        """Return the intersection."""
        a, b = self.bounds, other.bounds
        within = (max(a[0], b[0]), min(a[1], b[1]), max(a[2], b[2]), min(a[3], b[3]))
        return Shape(within, lambda x, y: np.maximum(self.distance(x, y), other.distance(x, y)))

    def __sub__(self, other: "Shape") -> "Shape":
        """Return this shape without the other shape."""
        return Shape(
            self.bounds, lambda x, y: np.maximum(self.distance(x, y), -other.distance(x, y))
        )

    @property
    def both(self) -> "Shape":
        """Return the union with the mirror image across the vertical axis."""
        left, right, top, bottom = self.bounds
        return self | Shape((-right, -left, top, bottom), lambda x, y: self.distance(-x, y))


def oval(x: float, y: float, rx: float, ry: float | None = None) -> Shape:
    """Return an ellipse around (x, y) with radii rx and ry, which are equal by default."""
    ry = rx if ry is None else ry
    small = min(rx, ry)
    return Shape(
        (x - rx, x + rx, y - ry, y + ry),
        lambda u, v: (np.sqrt(((u - x) / rx) ** 2 + ((v - y) / ry) ** 2) - 1) * small,
    )


def box(left: float, right: float, top: float, bottom: float) -> Shape:
    """Return a rectangle."""
    x, y, rx, ry = (left + right) / 2, (top + bottom) / 2, (right - left) / 2, (bottom - top) / 2
    return Shape(
        (left, right, top, bottom), lambda u, v: np.maximum(np.abs(u - x) - rx, np.abs(v - y) - ry)
    )


def polygon(*corners: tuple[float, float]) -> Shape:
    """Return a convex polygon, whose corners appear in clockwise order."""
    points = np.array(corners)
    sides = []
    for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, axis=0), strict=True):
        nx, ny = np.array([y1 - y0, x0 - x1]) / np.hypot(x1 - x0, y1 - y0)
        sides.append((np.float32(nx), np.float32(ny), np.float32(nx * x0 + ny * y0)))

    def distance(x: Floats, y: Floats) -> Floats:
        return np.maximum.reduce([nx * x + ny * y - offset for nx, ny, offset in sides])

    (left, top), (right, bottom) = points.min(axis=0), points.max(axis=0)
    return Shape((left, right, top, bottom), distance)


def line(x0: float, y0: float, x1: float, y1: float, width: float) -> Shape:
    """Return a stroke with round ends from one point to another."""
    dx, dy, half = x1 - x0, y1 - y0, width / 2

    def distance(x: Floats, y: Floats) -> Floats:
        along = np.clip(((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy), 0, 1)
        return np.hypot(x - x0 - along * dx, y - y0 - along * dy) - half

    return Shape(
        (min(x0, x1) - half, max(x0, x1) + half, min(y0, y1) - half, max(y0, y1) + half), distance
    )


def above(y0: float) -> Shape:
    """Return the half plane above a height."""
    return Shape((-_FAR, _FAR, -_FAR, y0), lambda x, y: y - y0 + 0 * x)


def below(y0: float) -> Shape:
    """Return the half plane below a height."""
    return Shape((-_FAR, _FAR, y0, _FAR), lambda x, y: y0 - y + 0 * x)


@dataclass(frozen=True)
class Pen:
    """Paint on images in a batch, each with its own origin, size and direction.

    Args:
        pixels: The images (n, size, size, 3) in [0, 1], which are modified in place.
        x: The origins (n,), or one origin for all, in image heights from the left.
        y: The origins (n,), or one origin for all, in image heights from the top.
        pick: The indices of the images to paint on (by default, all).
        scale: The scales (n,), or one scale for all.
        flip: The directions (n,), or one direction for all, where -1 mirrors shapes.
    """

    pixels: Floats
    x: Floats | float
    y: Floats | float
    pick: NDArray[np.integer[Any]] | None = None
    scale: Floats | float = 1.0
    flip: Floats | float = 1.0

    def where(self, condition: NDArray[np.bool_]) -> "Pen":
        """Return a pen for the images that meet a condition (n,)."""
        if self.pick is not None:
            chosen = np.zeros(len(self.pixels), bool)
            chosen[self.pick] = True
            condition = condition & chosen
        return Pen(self.pixels, self.x, self.y, np.flatnonzero(condition), self.scale, self.flip)

    def __call__(self, shape: Shape, colour: ArrayLike) -> None:
        """Paint a shape in one colour (3,) or in a separate colour for each image (n, 3)."""
        pick = np.arange(len(self.pixels)) if self.pick is None else self.pick
        if not len(pick):
            return
        size = self.pixels.shape[1]
        frame = (self.x, self.y, self.scale, self.flip)
        x, y, scale, flip = (np.broadcast_to(np.float32(v), len(self.pixels))[pick] for v in frame)
        left, right, top, bottom = shape.bounds
        first = np.where(flip > 0, left, -right) * scale + x
        last = np.where(flip > 0, right, -left) * scale + x
        columns = _pixels(first.min(), last.max(), size)
        rows = _pixels((y + top * scale).min(), (y + bottom * scale).max(), size)
        if columns.start >= columns.stop or rows.start >= rows.stop:
            return
        u = (_centres(columns, size) - x[:, None]) * (flip / scale)[:, None]
        v = (_centres(rows, size) - y[:, None]) / scale[:, None]
        distance = shape.distance(u[:, None, :], v[:, :, None])
        # The bounds cut off soft corners, because images would otherwise depend on the batch.
        beside = np.maximum(left - u, u - right)[:, None, :]
        over = np.maximum(top - v, v - bottom)[:, :, None]
        outside = np.maximum(np.maximum(distance, beside), over) * (scale * size)[:, None, None]
        cover = np.clip(0.5 - outside, 0, 1).astype(np.float32)[
            ..., None
        ]  # the share of a pixel that is covered, within half a pixel of the edge
        paint = np.broadcast_to(np.asarray(colour, np.float32), (len(self.pixels), 3))[pick][
            :, None, None, :
        ]
        old = self.pixels[pick, rows, columns]
        self.pixels[pick, rows, columns] = old + cover * (paint - old)


def _pixels(first: float, last: float, size: int) -> slice:
    """Return the range of pixels in an interval of the image, plus one on each side."""
    return slice(max(int(first * size) - 1, 0), min(int(last * size) + 2, size))


def _centres(pixels: slice, size: int) -> Floats:
    return (np.arange(pixels.start, pixels.stop, dtype=np.float32) + np.float32(0.5)) / np.float32(
        size
    )
