"""Define named colours, and garments for the world of portraits.

Lengths are in image heights around the middle of the face. A garment is painted over a body with
the color of its cloth. `cloth` and `trim` are colors (n, 3) for the images in the batch.
"""

from collections.abc import Iterable
from functools import reduce
from operator import or_

from eval.miniature.pen import Pen, Shape, below, box, line, oval, polygon
from eval.miniature.world import Floats, colours

WHITE = colours(0.96, 0.96, 0.97)
BLACK = colours(0.08, 0.08, 0.10)
STEEL = colours(0.42, 0.46, 0.53)
SILVER = colours(0.78, 0.80, 0.84)
RED = colours(0.82, 0.12, 0.12)
WINE = colours(0.60, 0.10, 0.20)
ORANGE = colours(0.97, 0.48, 0.10)
YELLOW = colours(0.98, 0.83, 0.12)
GOLD = colours(0.93, 0.74, 0.20)
STRAW = colours(0.90, 0.76, 0.42)
CREAM = colours(0.96, 0.92, 0.80)
KHAKI = colours(0.72, 0.62, 0.42)
BROWN = colours(0.45, 0.28, 0.15)
GREEN = colours(0.18, 0.50, 0.24)
LIME = colours(0.45, 0.75, 0.25)
TEAL = colours(0.15, 0.58, 0.58)
SKY = colours(0.55, 0.75, 0.95)
BLUE = colours(0.18, 0.36, 0.75)
DENIM = colours(0.25, 0.38, 0.62)
NAVY = colours(0.10, 0.14, 0.34)
PURPLE = colours(0.50, 0.26, 0.58)
PINK = colours(0.95, 0.52, 0.70)
GLASS = colours(0.82, 0.94, 0.98)
NEON = colours(0.94, 0.98, 0.70)

BODY = (oval(0, 0.67, 0.375, 0.43) & below(0.24)) | box(-0.375, 0.375, 0.64, 0.9)
VEE = polygon((-0.09, 0.22), (0.09, 0.22), (0.0, 0.42))
DEEP = polygon((-0.11, 0.22), (0.11, 0.22), (0.0, 0.62))


def union(shapes: Iterable[Shape]) -> Shape:
    """Return the union of several shapes."""
    return reduce(or_, shapes)


def bands(heights: Iterable[float], thickness: float) -> Shape:
    """Return bands around the body that extend downwards from their heights."""
    return BODY & union(box(-0.4, 0.4, y, y + thickness) for y in heights)


def stripes_down(places: Iterable[float], thickness: float) -> Shape:
    """Return symmetric vertical stripes that extend outwards from their positions."""
    return (BODY & union(box(x, x + thickness, 0.2, 0.9) for x in places)).both


def jumper(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a plain jumper with a ribbed collar."""
    pen(oval(0, 0.235, 0.10, 0.06), cloth * 0.7)
    pen(oval(0, 0.225, 0.07, 0.04), trim)


def shirt(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a shirt with a collar and a row of buttons."""
    pen(line(0, 0.30, 0, 0.7, 0.022), cloth * 0.65)
    pen(polygon((-0.11, 0.22), (-0.005, 0.29), (-0.075, 0.37)).both, trim)


def suit(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a jacket with lapels over a white shirt, and a tie."""
    pen(DEEP, WHITE)
    pen(polygon((-0.035, 0.26), (0.035, 0.26), (0.022, 0.31), (-0.022, 0.31)), trim)
    pen(polygon((-0.022, 0.31), (0.022, 0.31), (0.038, 0.50), (0, 0.57), (-0.038, 0.50)), trim)
    pen(polygon((-0.12, 0.22), (-0.095, 0.22), (-0.005, 0.60), (-0.11, 0.40)).both, cloth * 0.72)


def jacket(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint an open jacket over a coloured top."""
    pen(polygon((-0.11, 0.22), (0.11, 0.22), (0.07, 0.9), (-0.07, 0.9)), trim)
    pen(line(-0.105, 0.24, -0.065, 0.8, 0.03).both, cloth * 0.6)
    pen(oval(0, 0.225, 0.07, 0.035), trim * 0.75)


def stripes(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a striped top."""
    pen(bands((0.31, 0.39, 0.47, 0.55), 0.04), trim)


def pullunder(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a sleeveless pullover over a shirt."""
    pen(BODY - box(-0.21, 0.21, 0.0, 0.9), trim)
    pen(VEE, trim)
    pen(line(-0.09, 0.22, 0, 0.42, 0.03).both, cloth * 0.65)


def dots(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a top with large dots."""
    places = (
        (0.0, 0.36),
        (0.12, 0.32),
        (0.24, 0.40),
        (0.06, 0.46),
        (0.17, 0.48),
        (0.29, 0.52),
        (0.0, 0.56),
        (0.11, 0.58),
    )
    pen(BODY & union(oval(x, y, 0.026).both for x, y in places), trim)


def coat(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a laboratory coat over a shirt, with pens in its pocket."""
    pen(DEEP, trim)
    pen(polygon((-0.13, 0.22), (-0.10, 0.22), (-0.005, 0.62), (-0.12, 0.42)).both, cloth * 0.86)
    pen(box(-0.25, -0.13, 0.47, 0.495), cloth * 0.72)
    pen(line(-0.205, 0.42, -0.205, 0.47, 0.025), BLUE)
    pen(line(-0.165, 0.43, -0.165, 0.47, 0.025), RED)


def scrubs(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a hospital top with a V-neck and a pocket."""
    pen(polygon((-0.11, 0.22), (0.11, 0.22), (0, 0.43)), cloth * 0.65)
    pen(polygon((-0.075, 0.22), (0.075, 0.22), (0, 0.37)), trim)
    pen(box(-0.24, -0.11, 0.44, 0.56), cloth * 0.82)


def fire_coat(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a heavy coat with reflecting bands."""
    pen(bands((0.38, 0.51), 0.085), trim)
    pen(bands((0.408, 0.538), 0.03), SILVER)
    pen(box(-0.12, 0.12, 0.22, 0.29), BLACK)
    pen(line(0, 0.29, 0, 0.7, 0.025), BLACK)


def chef_jacket(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a jacket with two rows of buttons, and a neckerchief."""
    pen(polygon((-0.12, 0.21), (0.12, 0.21), (0.07, 0.30), (0, 0.35), (-0.07, 0.30)), trim)
    pen(line(-0.14, 0.30, -0.10, 0.7, 0.02), cloth * 0.75)
    pen(union(oval(-0.06, y, 0.023) for y in (0.39, 0.47, 0.55)).both, BLACK)


def uniform(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a uniform shirt with a tie, a badge and a pocket."""
    pen(polygon((-0.10, 0.22), (-0.005, 0.30), (-0.08, 0.36)).both, cloth * 0.7)
    pen(polygon((-0.025, 0.28), (0.025, 0.28), (0.037, 0.50), (0, 0.56), (-0.037, 0.50)), BLACK)
    pen(box(-0.25, -0.11, 0.40, 0.425), cloth * 0.6)
    pen(box(-0.36, -0.22, 0.285, 0.32) & BODY, trim)
    pen(box(0.22, 0.36, 0.285, 0.32) & BODY, trim)
    pen(oval(0.18, 0.43, 0.055, 0.06), trim)
    pen(oval(0.18, 0.43, 0.024), trim * 0.6)


def guard_uniform(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a dark uniform with a bright label on the chest."""
    pen(polygon((-0.10, 0.22), (-0.005, 0.30), (-0.08, 0.36)).both, STEEL)
    pen(line(0, 0.30, 0, 0.7, 0.02), STEEL)
    pen(bands((0.37,), 0.10), trim)
    pen(box(0.09, 0.25, 0.385, 0.455), BLACK)
    pen(box(-0.25, -0.09, 0.385, 0.455), BLACK)
    pen(box(-0.22, -0.12, 0.41, 0.43), WHITE)


def pilot_jacket(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a dark jacket with epaulettes and wings."""
    suit(pen, cloth, BLACK)
    pen((BODY & union(box(x, x + 0.025, 0.26, 0.39) for x in (0.21, 0.26, 0.31))).both, trim)
    pen(line(0.11, 0.44, 0.26, 0.42, 0.035), trim)
    pen(oval(0.185, 0.43, 0.036), trim)


def robe(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a black robe with white bands at the neck."""
    pen(union(line(x, 0.33, x + 0.03, 0.7, 0.016) for x in (0.15, 0.25)).both, cloth + 0.14)
    pen(polygon((-0.09, 0.21), (0.09, 0.21), (0.06, 0.29), (-0.06, 0.29)), trim)
    pen(polygon((-0.05, 0.26), (-0.004, 0.26), (-0.015, 0.47), (-0.085, 0.47)).both, trim)


def dungarees(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint dungarees over a chequered shirt."""
    pen(bands((0.31, 0.40, 0.49), 0.03), cloth * 0.6)
    pen(stripes_down((0.22, 0.31), 0.028), cloth * 0.6)
    pen(box(-0.18, 0.18, 0.40, 0.9), trim)
    pen(line(-0.14, 0.42, -0.125, 0.26, 0.06).both, trim)
    pen(oval(-0.135, 0.425, 0.026).both, GOLD)
    pen(box(-0.08, 0.08, 0.47, 0.55), trim * 0.72)


def safety_vest(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a bright vest with reflecting stripes."""
    pen(DEEP, trim)
    pen(stripes_down((0.115,), 0.07), NEON)
    pen((BODY & box(0.06, 0.4, 0.465, 0.535)).both, NEON)


def smock(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a smock with paint stains."""
    shirt(pen, cloth, trim)
    spots = (
        (-0.21, 0.40, 0.035, RED),
        (-0.12, 0.52, 0.032, BLUE),
        (0.13, 0.36, 0.028, YELLOW),
        (0.06, 0.50, 0.028, PURPLE),
        (-0.28, 0.53, 0.03, ORANGE),
        (-0.09, 0.40, 0.022, GREEN),
    )
    for x, y, radius, colour in spots:
        pen(oval(x, y, radius), colour)


def space_suit(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a space suit with a neck ring, controls, and coloured stripes on the sleeves."""
    pen(stripes_down((0.24,), 0.045), trim)
    pen(oval(0, 0.29, 0.24, 0.07), STEEL)
    pen(oval(0, 0.275, 0.21, 0.055), cloth * 0.92)
    pen(box(-0.13, 0.13, 0.40, 0.56), SILVER * 0.9)
    pen(oval(-0.075, 0.445, 0.027), RED)
    pen(oval(0, 0.445, 0.027), YELLOW)
    pen(oval(0.075, 0.445, 0.027), GREEN)
    pen(box(-0.09, 0.09, 0.49, 0.53), NAVY)
    pen(box(-0.225, -0.15, 0.37, 0.43), BLUE)


def sailor_top(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a white top with stripes, a wide dark collar and a red knot."""
    pen(bands((0.44, 0.52), 0.035), trim)
    pen(polygon((-0.17, 0.22), (-0.07, 0.21), (0.0, 0.44), (-0.21, 0.37)).both, trim)
    pen(oval(0, 0.42, 0.045, 0.04), RED)


def trench(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a trench coat with a wide collar and two rows of buttons."""
    pen(VEE, WHITE)
    pen(polygon((-0.026, 0.26), (0.026, 0.26), (0.018, 0.4), (-0.018, 0.4)), trim)
    pen(polygon((-0.15, 0.21), (-0.085, 0.21), (-0.005, 0.44), (-0.20, 0.34)).both, cloth * 0.74)
    pen(union(oval(-0.065, y, 0.024) for y in (0.47, 0.56)).both, BROWN)


def apron(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint an apron over a shirt."""
    pen(line(-0.12, 0.36, -0.08, 0.24, 0.035).both, trim)
    pen(polygon((-0.14, 0.34), (0.14, 0.34), (0.19, 0.9), (-0.19, 0.9)), trim)
    pen(box(-0.09, 0.09, 0.48, 0.57), trim * 0.82)


def tuxedo(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a black jacket with a bow tie."""
    pen(DEEP, WHITE)
    pen(polygon((-0.085, 0.24), (0, 0.28), (-0.085, 0.33)).both, trim)
    pen(union(oval(0, y, 0.017) for y in (0.40, 0.47)), BLACK)
    pen(line(-0.115, 0.24, -0.01, 0.61, 0.02).both, STEEL)


def medic(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a bright jacket with a red cross and a reflecting band."""
    pen(bands((0.50,), 0.06), NEON)
    pen(VEE, trim)
    pen(box(0.10, 0.26, 0.33, 0.49), WHITE)
    pen(box(0.16, 0.20, 0.35, 0.47) | box(0.12, 0.24, 0.39, 0.43), RED)
    pen(box(-0.25, -0.11, 0.40, 0.45), WHITE)


def track_suit(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a training jacket with a zip and stripes down the sleeves."""
    pen(stripes_down((0.235, 0.30), 0.03), trim)
    pen(box(-0.11, 0.11, 0.22, 0.29), cloth * 0.7)
    pen(line(0, 0.24, 0, 0.7, 0.022), trim)


def sequins(pen: Pen, cloth: Floats, trim: Floats) -> None:
    """Paint a glittering stage costume with a low neckline."""
    places = (
        (0.05, 0.50),
        (0.12, 0.38),
        (0.15, 0.52),
        (0.21, 0.33),
        (0.24, 0.46),
        (0.31, 0.40),
        (0.33, 0.55),
    )
    pen(union(oval(x, y, 0.018).both for x, y in places), trim)
    pen(line(-0.10, 0.23, 0, 0.45, 0.028).both, trim)
