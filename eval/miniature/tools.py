"""Define tools for the world of portraits.

Lengths are in image heights around the middle of the face. `colour` (n, 3) contains the colors for
the images in the batch.
"""

from eval.miniature.garments import (
    BLACK,
    BLUE,
    BROWN,
    CREAM,
    GLASS,
    GOLD,
    GREEN,
    ORANGE,
    PINK,
    RED,
    SILVER,
    STEEL,
    WHITE,
    YELLOW,
    union,
)
from eval.miniature.pen import Pen, below, box, line, oval, polygon
from eval.miniature.world import Floats


def stethoscope(pen: Pen, colour: Floats) -> None:
    """Paint a stethoscope around the neck."""
    pen(line(-0.10, 0.23, -0.12, 0.36, 0.032).both, colour)
    pen((oval(0, 0.36, 0.136, 0.09) - oval(0, 0.36, 0.104, 0.058)) & below(0.355), colour)
    pen(line(0, 0.44, 0, 0.48, 0.03), colour)
    pen(oval(0, 0.505, 0.052), colour)
    pen(oval(0, 0.505, 0.03), SILVER)


def syringe(pen: Pen, colour: Floats) -> None:
    """Paint a syringe with the needle pointing upwards."""
    pen(line(0.30, 0.29, 0.30, 0.19, 0.022), STEEL)
    pen(box(0.255, 0.345, 0.28, 0.49), GLASS)
    pen(box(0.265, 0.335, 0.36, 0.48), colour)
    pen(line(0.30, 0.49, 0.30, 0.58, 0.03), STEEL)
    pen(box(0.24, 0.36, 0.555, 0.585), STEEL)


def axe(pen: Pen, colour: Floats) -> None:
    """Paint an axe."""
    pen(line(0.22, 0.62, 0.31, 0.20, 0.042), BROWN)
    pen(polygon((0.27, 0.17), (0.40, 0.12), (0.42, 0.33), (0.27, 0.29)), SILVER)
    pen(polygon((0.21, 0.19), (0.31, 0.17), (0.31, 0.29), (0.21, 0.25)), colour)


def ladle(pen: Pen, colour: Floats) -> None:
    """Paint a large wooden spoon."""
    pen(line(0.29, 0.62, 0.31, 0.28, 0.042), colour)
    pen(oval(0.315, 0.22, 0.07, 0.085), colour)
    pen(oval(0.315, 0.22, 0.042, 0.055), colour * 0.72)


def gavel(pen: Pen, colour: Floats) -> None:
    """Paint a judge's gavel."""
    pen(line(0.15, 0.58, 0.29, 0.39, 0.042), colour * 1.4)
    pen(line(0.235, 0.31, 0.365, 0.43, 0.115), colour)
    pen(line(0.27, 0.40, 0.335, 0.335, 0.03), GOLD)


def scales(pen: Pen, colour: Floats) -> None:
    """Paint the scales of justice."""
    pen(line(0.27, 0.20, 0.27, 0.62, 0.04), colour)
    pen(line(0.14, 0.255, 0.40, 0.255, 0.036) | oval(0.27, 0.20, 0.035), colour)
    for x in (0.145, 0.395):
        pen(
            line(x, 0.26, x - 0.055, 0.42, 0.02) | line(x, 0.26, x + 0.055, 0.42, 0.02),
            colour * 0.8,
        )
        pen(oval(x, 0.42, 0.085, 0.07) & below(0.42), colour)


def hay_fork(pen: Pen, colour: Floats) -> None:
    """Paint a fork with three tines."""
    pen(line(0.32, 0.7, 0.32, 0.24, 0.04), colour)
    pen(line(0.245, 0.22, 0.395, 0.22, 0.036), STEEL)
    pen(union(line(x, 0.22, x, 0.07, 0.034) for x in (0.245, 0.32, 0.395)), STEEL)


def flask(pen: Pen, colour: Floats) -> None:
    """Paint a flask with a bright liquid."""
    pen(box(0.235, 0.305, 0.19, 0.34), GLASS)
    pen(polygon((0.235, 0.30), (0.305, 0.30), (0.40, 0.56), (0.14, 0.56)), GLASS)
    pen(polygon((0.21, 0.40), (0.33, 0.40), (0.39, 0.55), (0.15, 0.55)), colour)
    pen(box(0.22, 0.32, 0.175, 0.21), STEEL)
    pen(oval(0.24, 0.49, 0.022) | oval(0.30, 0.44, 0.018), WHITE)


def palette(pen: Pen, colour: Floats) -> None:
    """Paint a palette with blobs of paint and a brush."""
    pen(line(-0.30, 0.6, -0.24, 0.24, 0.035), BROWN)
    pen(line(-0.24, 0.24, -0.23, 0.17, 0.055), BLUE)
    pen(oval(0.23, 0.45, 0.185, 0.135), colour)
    blobs = (
        (0.11, 0.46, RED),
        (0.17, 0.375, YELLOW),
        (0.265, 0.365, BLUE),
        (0.345, 0.42, GREEN),
        (0.20, 0.52, WHITE),
    )
    for x, y, paint in blobs:
        pen(oval(x, y, 0.038), paint)
    pen(oval(0.30, 0.50, 0.032), BLACK)


def lens(pen: Pen, colour: Floats) -> None:
    """Paint a magnifying glass."""
    pen(line(0.21, 0.60, 0.27, 0.45, 0.05), colour)
    pen(oval(0.30, 0.35, 0.11), BLACK)
    pen(oval(0.30, 0.35, 0.08), GLASS)
    pen(line(0.265, 0.36, 0.30, 0.315, 0.025), WHITE)


def wand(pen: Pen, colour: Floats) -> None:
    """Paint a magic wand with sparks around its tip."""
    pen(line(0.20, 0.58, 0.31, 0.26, 0.04), BLACK)
    pen(line(0.297, 0.30, 0.315, 0.245, 0.045), WHITE)
    pen(union(oval(x, y, 0.024) for x, y in ((0.24, 0.19), (0.33, 0.155), (0.40, 0.23))), colour)


def wrench(pen: Pen, colour: Floats) -> None:
    """Paint a wrench."""
    pen(line(0.22, 0.60, 0.31, 0.32, 0.055), colour)
    pen(oval(0.325, 0.27, 0.08) - box(0.295, 0.36, 0.15, 0.275), colour)


def microphone(pen: Pen, colour: Floats) -> None:
    """Paint a microphone."""
    pen(line(0.21, 0.60, 0.165, 0.37, 0.055), BLACK)
    pen(oval(0.155, 0.30, 0.066, 0.07), SILVER)
    pen(line(0.11, 0.355, 0.215, 0.34, 0.035), colour)


def guitar(pen: Pen, colour: Floats) -> None:
    """Paint a guitar across the chest."""
    pen(line(0.02, 0.50, 0.38, 0.25, 0.045), BROWN)
    pen(line(0.35, 0.27, 0.41, 0.225, 0.075), BROWN)
    pen(oval(-0.10, 0.55, 0.14, 0.115) | oval(0.04, 0.49, 0.10, 0.085), colour)
    pen(oval(0.0, 0.515, 0.042), BLACK)


def loaf(pen: Pen, colour: Floats) -> None:
    """Paint a loaf of bread."""
    pen(line(0.17, 0.54, 0.35, 0.32, 0.125), colour)
    pen(
        union(
            line(x, y, x + 0.06, y + 0.035, 0.024)
            for x, y in ((0.175, 0.46), (0.225, 0.395), (0.28, 0.335))
        ),
        CREAM,
    )


def tray(pen: Pen, colour: Floats) -> None:
    """Paint a tray with a bottle and a glass."""
    pen(box(0.31, 0.375, 0.19, 0.35), GREEN)
    pen(box(0.327, 0.358, 0.11, 0.20), GREEN)
    pen(polygon((0.17, 0.19), (0.27, 0.19), (0.24, 0.29), (0.20, 0.29)), RED)
    pen(line(0.22, 0.28, 0.22, 0.34, 0.025), GLASS)
    pen(oval(0.26, 0.36, 0.17, 0.036), colour)
    pen(line(0.26, 0.40, 0.26, 0.6, 0.06), WHITE * 0.85)


def cleaver(pen: Pen, colour: Floats) -> None:
    """Paint a cleaver."""
    pen(line(0.30, 0.62, 0.30, 0.46, 0.05), BROWN)
    pen(box(0.21, 0.40, 0.22, 0.46), colour)
    pen(box(0.21, 0.245, 0.22, 0.46), WHITE)
    pen(oval(0.365, 0.26, 0.018), STEEL)


def saw(pen: Pen, colour: Floats) -> None:
    """Paint a hand saw."""
    pen(polygon((0.13, 0.27), (0.19, 0.23), (0.40, 0.50), (0.28, 0.58)), colour)
    pen(union(oval(0.125 + 0.04 * k, 0.30 + 0.075 * k, 0.022) for k in range(4)), colour)
    pen(oval(0.34, 0.56, 0.082) - oval(0.34, 0.56, 0.034), BROWN)


def hammer(pen: Pen, colour: Floats) -> None:
    """Paint a heavy hammer above an anvil."""
    pen(polygon((-0.34, 0.44), (-0.08, 0.44), (-0.08, 0.50), (-0.34, 0.49)), STEEL * 0.6)
    pen(polygon((-0.25, 0.48), (-0.12, 0.48), (-0.09, 0.65), (-0.28, 0.65)), STEEL * 0.6)
    pen(line(0.30, 0.64, 0.30, 0.26, 0.045), BROWN)
    pen(box(0.19, 0.41, 0.20, 0.32), colour)


def tooth(pen: Pen, colour: Floats) -> None:
    """Paint a large tooth."""
    outline = (
        oval(0.215, 0.38, 0.075, 0.072)
        | oval(0.315, 0.38, 0.075, 0.072)
        | box(0.19, 0.34, 0.36, 0.45)
    )
    roots = polygon((0.155, 0.42), (0.262, 0.42), (0.205, 0.58)) | polygon(
        (0.268, 0.42), (0.375, 0.42), (0.325, 0.58)
    )
    pen(oval(0.265, 0.43, 0.16, 0.17), colour)
    pen(outline | roots, WHITE)


def pole(pen: Pen, colour: Floats) -> None:
    """Paint a barber's pole, and scissors."""
    pen(box(-0.40, -0.28, 0.20, 0.54), WHITE)
    tilted = [
        polygon((-0.40, y + 0.06), (-0.28, y), (-0.28, y + 0.05), (-0.40, y + 0.11))
        for y in (0.19, 0.37)
    ]
    pen(union(tilted), RED)
    pen(polygon((-0.40, 0.34), (-0.28, 0.28), (-0.28, 0.33), (-0.40, 0.39)), BLUE)
    pen(box(-0.42, -0.26, 0.51, 0.56) | oval(-0.34, 0.18, 0.06), GOLD)
    scissors(pen, colour)


def scissors(pen: Pen, colour: Floats) -> None:
    """Paint a pair of scissors."""
    pen(line(0.23, 0.45, 0.34, 0.20, 0.036) | line(0.35, 0.45, 0.24, 0.20, 0.036), STEEL)
    pen(
        (oval(0.205, 0.50, 0.068) - oval(0.205, 0.50, 0.032))
        | (oval(0.365, 0.50, 0.068) - oval(0.365, 0.50, 0.032)),
        colour,
    )


def broom(pen: Pen, colour: Floats) -> None:
    """Paint a broom, and a bucket."""
    pen(line(0.32, 0.68, 0.32, 0.30, 0.04), BROWN)
    pen(polygon((0.23, 0.08), (0.41, 0.08), (0.37, 0.28), (0.27, 0.28)), colour)
    pen(box(0.26, 0.38, 0.25, 0.285), RED)
    pen(polygon((-0.39, 0.40), (-0.19, 0.40), (-0.22, 0.60), (-0.36, 0.60)), BLUE)
    pen(oval(-0.29, 0.40, 0.10, 0.03), WHITE)


def pencil(pen: Pen, colour: Floats) -> None:
    """Paint a thick pencil."""
    pen(line(0.21, 0.58, 0.32, 0.28, 0.075), colour)
    pen(line(0.325, 0.27, 0.35, 0.20, 0.05), CREAM)
    pen(oval(0.357, 0.185, 0.022), BLACK)
    pen(line(0.20, 0.61, 0.215, 0.57, 0.08), PINK)


def level(pen: Pen, colour: Floats) -> None:
    """Paint a measuring instrument on a tripod."""
    pen(
        line(0.29, 0.44, 0.19, 0.70, 0.032)
        | line(0.29, 0.44, 0.39, 0.70, 0.032)
        | line(0.29, 0.44, 0.29, 0.7, 0.03),
        BROWN,
    )
    pen(box(0.20, 0.38, 0.30, 0.44), colour)
    pen(oval(0.21, 0.37, 0.042, 0.055), BLACK)
    pen(oval(0.21, 0.37, 0.02, 0.028), GLASS)


def brush(pen: Pen, colour: Floats) -> None:
    """Paint a make-up brush and a powder box."""
    pen(line(0.30, 0.60, 0.31, 0.36, 0.042), BLACK)
    pen(box(0.285, 0.335, 0.32, 0.37), SILVER)
    pen(oval(0.31, 0.26, 0.062, 0.085), colour)
    pen(oval(-0.26, 0.50, 0.10, 0.10), BLACK)
    pen(oval(-0.26, 0.50, 0.07, 0.07), PINK)


def flag(pen: Pen, colour: Floats) -> None:
    """Paint a small flag on a stick."""
    pen(line(0.22, 0.66, 0.22, 0.12, 0.032), BROWN)
    pen(polygon((0.235, 0.11), (0.43, 0.19), (0.235, 0.28)), colour)


def whistle(pen: Pen, colour: Floats) -> None:
    """Paint a whistle on a ribbon, and a ball."""
    pen(line(-0.09, 0.24, 0, 0.42, 0.026).both, colour)
    pen(oval(0.01, 0.45, 0.045) | box(-0.07, 0.02, 0.41, 0.45), SILVER)
    pen(oval(0.28, 0.50, 0.12), ORANGE)
    pen(
        (oval(0.28, 0.50, 0.12) & (box(0.268, 0.292, 0.3, 0.7) | box(0.1, 0.45, 0.488, 0.512))),
        BLACK,
    )


def trowel(pen: Pen, colour: Floats) -> None:
    """Paint bricks, and a trowel."""
    for y, lefts in ((0.55, (-0.38, -0.22)), (0.46, (-0.30,))):
        pen(union(box(x, x + 0.145, y, y + 0.08) for x in lefts), colour)
    pen(line(0.25, 0.62, 0.28, 0.50, 0.05), BROWN)
    pen(polygon((0.30, 0.22), (0.38, 0.46), (0.20, 0.46)), SILVER)


def ribbon(pen: Pen, colour: Floats) -> None:
    """Paint a dancer's ribbon on a stick."""
    pen(
        line(0.22, 0.40, 0.40, 0.32, 0.042)
        | line(0.40, 0.32, 0.23, 0.24, 0.042)
        | line(0.23, 0.24, 0.39, 0.13, 0.042),
        colour,
    )
    pen(line(0.17, 0.60, 0.22, 0.40, 0.036), BROWN)


def pills(pen: Pen, colour: Floats) -> None:
    """Paint a bottle of medicine."""
    pen(box(0.18, 0.38, 0.33, 0.61), ORANGE * 0.9)
    pen(box(0.20, 0.36, 0.26, 0.345), WHITE)
    pen(box(0.18, 0.38, 0.40, 0.54), WHITE)
    pen(box(0.265, 0.295, 0.415, 0.525) | box(0.225, 0.335, 0.455, 0.485), colour)
