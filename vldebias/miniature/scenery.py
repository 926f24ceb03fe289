"""Eight places to put a bird in front of: four on land, four by the water."""

import numpy as np
from numpy.typing import NDArray

from vldebias.miniature.canvas import SIZE, Canvas, Frame
from vldebias.miniature.hashing import Draws

__all__ = ["PLACES", "paint_scenery"]

PLACES = ("forest", "mountain", "wood", "meadow", "ocean", "beach", "port", "lake")

# Ground colour of each place, before light and texture.
_GROUND = np.array(
    [
        (0.16, 0.38, 0.12),
        (0.42, 0.45, 0.25),
        (0.30, 0.36, 0.12),
        (0.35, 0.62, 0.18),
        (0.06, 0.25, 0.62),
        (0.12, 0.48, 0.75),
        (0.20, 0.36, 0.55),
        (0.15, 0.42, 0.68),
    ],
    np.float32,
)
_SKY = np.array([0.55, 0.75, 0.95], np.float32)


def paint_scenery(canvas: Canvas, draws: Draws, place: NDArray[np.int64]) -> None:
    """Paints sky, ground or water and what stands there; place (n,) indexes PLACES."""
    horizon = draws.uniform("horizon", 0.25, 0.5)
    frame = Frame(np.zeros(draws.n, np.float32), horizon)
    light = draws.uniform("light", 0.75, 1.2)[:, None]
    everywhere = np.ones((draws.n, SIZE, SIZE), bool)
    canvas.paint(everywhere, _SKY * draws.uniform("sky", 0.8, 1.05)[:, None])
    below = frame.y > 0
    canvas.paint(below, _GROUND[place] * light)
    canvas.pixels += np.where(below, _texture(draws, frame, place), np.float32(0))[..., None]
    _paint_land(canvas, draws, frame, place, light)
    _paint_shore(canvas, frame, place, light, draws.uniform("stuff 0", 0, 1))


def _texture(draws: Draws, frame: Frame, place: NDArray[np.int64]) -> NDArray[np.float32]:
    """Waves on water, speckles on land."""
    rate = draws.uniform("wave rate", 25, 45)[:, None, None]
    phase = draws.uniform("wave phase", 0, 6)[:, None, None]
    waves = np.float32(0.1) * np.sin(rate * frame.y + 3 * np.sin(8 * frame.x + phase))
    speckles = draws.noise("speckles", SIZE * SIZE, 0.1).reshape(frame.y.shape)
    return np.where((place >= 4)[:, None, None], waves, speckles)


def _paint_land(
    canvas: Canvas, draws: Draws, frame: Frame, place: NDArray[np.int64], light: NDArray[np.float32]
) -> None:
    """Firs in the forest, peaks in the mountains, trunks in the wood; the meadow stays open."""
    firs, peaks, trunks = ((place == k)[:, None, None] for k in (0, 1, 2))
    for k in range(4):
        x = draws.uniform(f"stuff {k}", 0, 1)[:, None, None]
        height = draws.uniform(f"height {k}", 0.15, 0.4)[:, None, None]
        across, standing = np.abs(frame.x - x), frame.y < 0.02
        cone = standing & (frame.y > -height)
        slope = (frame.y + height) / height
        canvas.paint(firs & cone & (across < 0.1 * slope), np.array([0.08, 0.30, 0.10], np.float32) * light)
        canvas.paint(peaks & cone & (across < 0.3 * slope), np.array([0.48, 0.46, 0.46], np.float32) * light)
        trunk = (frame.y < 0.08) & (frame.y > -height - 0.2) & (across < 0.035)
        canvas.paint(trunks & trunk, np.array([0.38, 0.24, 0.12], np.float32) * light)


def _paint_shore(
    canvas: Canvas,
    frame: Frame,
    place: NDArray[np.int64],
    light: NDArray[np.float32],
    at: NDArray[np.float32],
) -> None:
    """Sand in front of the beach, piers in the port, a green far shore of the lake; the ocean is open."""
    beach, port, lake = ((place == k)[:, None, None] for k in (5, 6, 7))
    canvas.paint(beach & (frame.y > 0.3), np.array([0.86, 0.78, 0.55], np.float32) * light)
    posts = np.abs(np.mod(frame.x - at[:, None, None], 0.25) - 0.06) < 0.035
    canvas.paint(port & posts & (frame.y > -0.15) & (frame.y < 0.12), np.array([0.4, 0.38, 0.38], np.float32) * light)
    canvas.paint(lake & (frame.y > -0.07) & (frame.y < 0.02), np.array([0.16, 0.38, 0.16], np.float32) * light)
