"""Paint the places of birds, half on land and half on water, with sky and horizon."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from eval.miniature.pen import Pen, above, box, line, oval, polygon
from eval.miniature.world import Codes, Draws, Floats, colours
from vldebias.miniature.words import PLACES, SIZE

PER_BACKGROUND = len(PLACES) // 2

_GROUND = colours(  # colours of each place, before light
    (0.25, 0.45, 0.20),
    (0.52, 0.53, 0.36),
    (0.46, 0.42, 0.24),
    (0.45, 0.68, 0.27),
    (0.10, 0.31, 0.60),
    (0.20, 0.55, 0.76),
    (0.24, 0.42, 0.58),
    (0.24, 0.52, 0.70),
)
_SKY = colours(0.58, 0.77, 0.95)
_SAND = colours(0.90, 0.82, 0.60)
_SHORE = 0.85  # top of the beach, in image heights from the top
_FLOWERS = colours((0.95, 0.85, 0.20), (0.95, 0.45, 0.55), (0.98, 0.98, 0.95))


def on_water(place: Codes) -> NDArray[np.bool_]:
    """Return a mask (n,) of the places that are on water."""
    return place >= PER_BACKGROUND


def paint_places(pixels: Floats, draws: Draws, place: Codes) -> None:
    """Cover images (n, size, size, 3) with places (n,), which are indices into PLACES."""
    horizon = draws.uniform("horizon", 0.36, 0.48)
    light = draws.uniform("light", 0.88, 1.10)[:, None]
    sky = _SKY * draws.uniform("sky", 0.88, 1.04)[:, None]
    haze = np.linspace(0, 0.9, SIZE, dtype=np.float32)[
        :, None
    ]  # the sky becomes paler towards the ground
    pixels[:] = (sky[:, None] + haze * (1 - sky[:, None]))[:, :, None]
    for name, (paint, count) in _STANDS.items():
        here = place == PLACES.index(name)
        for k in range(count):  # next to each other, so that they do not overlap
            x = (np.float32(k) + draws.uniform(f"stand {k}")) / np.float32(count)
            paint(
                Pen(pixels, x, horizon, scale=draws.uniform(f"size {k}", 0.7, 1.1)).where(here),
                light,
            )
    ground = _GROUND[place] * light
    Pen(pixels, 0.0, horizon)(box(-0.1, 1.1, 0, 1), ground)
    _paint_ground(pixels, draws, place, horizon, ground)
    beach = Pen(pixels, 0.0, 0.0).where(place == PLACES.index("beach"))
    beach(box(-0.1, 1.1, _SHORE - 0.03, 1.1), colours(0.93, 0.96, 0.97))
    beach(box(-0.1, 1.1, _SHORE, 1.1), _SAND * light)


def _paint_ground(
    pixels: Floats, draws: Draws, place: Codes, horizon: Floats, ground: Floats
) -> None:
    """Paint waves on water, tufts of grass on land, and flowers on the meadow."""
    wave = line(0, 0, 0.16, 0, 0.016) | line(0.42, 0.04, 0.54, 0.04, 0.014)
    tuft = line(0, 0.02, -0.02, -0.03, 0.014) | line(0.01, 0.02, 0.03, -0.03, 0.014)
    tufts = tuft | line(0.42, 0.06, 0.40, 0.01, 0.014) | line(0.43, 0.06, 0.45, 0.01, 0.014)
    for k in range(5):
        pen = Pen(pixels, draws.uniform(f"mark {k}", -0.05, 0.6), horizon + 0.06 + 0.10 * k)
        pen.where(on_water(place))(wave, ground * 0.78 + 0.20)
        pen.where(~on_water(place))(tufts, ground * 0.74)
        flowers = oval(0.10, 0, 0.018) | oval(0.55, 0.03, 0.018) | oval(0.30, 0.06, 0.018)
        pen.where(place == PLACES.index("meadow"))(flowers, _FLOWERS[k % len(_FLOWERS)])


Stand = Callable[[Pen, Floats], None]
_STANDS: dict[str, tuple[Stand, int]] = {}


def _at(place: str, count: int) -> Callable[[Stand], Stand]:
    """Return a decorator that registers objects on the horizon of a place."""

    def stand(paint: Stand) -> Stand:
        _STANDS[place] = paint, count
        return paint

    return stand


@_at("forest", 5)
def _fir(pen: Pen, light: Floats) -> None:
    pen(box(-0.02, 0.02, -0.08, 0), colours(0.35, 0.22, 0.12))
    tiers = (
        polygon((0, -0.36 + d), (0.09 + d / 3, -0.18 + d), (-0.09 - d / 3, -0.18 + d))
        for d in (0.0, 0.07, 0.14)
    )
    first, second, third = tiers
    pen(first | second | third, colours(0.10, 0.33, 0.16) * light)


@_at("mountain", 3)
def _peak(pen: Pen, light: Floats) -> None:
    pen(polygon((0, -0.34), (0.40, 0.01), (-0.40, 0.01)), colours(0.52, 0.52, 0.58) * light)
    pen(polygon((0, -0.34), (0.40, 0.01), (0.06, 0.01)), colours(0.43, 0.43, 0.50) * light)
    pen(polygon((0, -0.34), (0.12, -0.235), (-0.12, -0.235)), colours(0.96, 0.97, 0.99))


@_at("wood", 3)
def _tree(pen: Pen, light: Floats) -> None:
    pen(box(-0.035, 0.035, -0.30, 0), colours(0.42, 0.29, 0.17) * light)
    pen(oval(0, -0.33, 0.17, 0.13), colours(0.52, 0.56, 0.18) * light)
    pen(oval(-0.04, -0.37, 0.09, 0.06), colours(0.62, 0.66, 0.26) * light)


@_at("ocean", 2)
def _cloud(pen: Pen, light: Floats) -> None:
    pen(oval(0, -0.30, 0.13, 0.04) | oval(0.03, -0.33, 0.06, 0.045), colours(0.97, 0.98, 1.0))


@_at("beach", 1)
def _palm(pen: Pen, light: Floats) -> None:
    pen(oval(0, 0.01, 0.24, 0.06) & above(0), _SAND * light)
    pen(line(0, 0, 0.04, -0.28, 0.035), colours(0.55, 0.40, 0.22) * light)
    fronds = line(0.04, -0.29, -0.10, -0.22, 0.04) | line(0.04, -0.29, 0.18, -0.22, 0.04)
    fronds |= line(0.04, -0.29, -0.06, -0.34, 0.04) | line(0.04, -0.29, 0.14, -0.34, 0.04)
    pen(fronds, colours(0.20, 0.52, 0.22) * light)


@_at("port", 2)
def _boat(pen: Pen, light: Floats) -> None:
    pen(box(-0.012, 0.012, -0.36, -0.04), colours(0.40, 0.28, 0.18))
    pen(polygon((0.02, -0.35), (0.17, -0.09), (0.02, -0.09)), colours(0.97, 0.97, 0.94))
    pen(polygon((-0.02, -0.29), (-0.02, -0.09), (-0.12, -0.09)), colours(0.88, 0.86, 0.80))
    pen(
        polygon((-0.16, -0.07), (0.19, -0.07), (0.14, 0.01), (-0.11, 0.01)),
        colours(0.62, 0.20, 0.16),
    )


@_at("lake", 3)
def _hill(pen: Pen, light: Floats) -> None:
    pen(oval(0, 0, 0.42, 0.13) & above(0), colours(0.28, 0.50, 0.26) * light)
    pen(oval(0.15, 0, 0.30, 0.06) & above(0), colours(0.20, 0.40, 0.20) * light)
