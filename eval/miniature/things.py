"""Define papers, devices, sweets, animals and other objects for the world of portraits.

Lengths are in image heights around the middle of the face. `colour` (n, 3) contains the colors for
the images in the batch.
"""

from eval.miniature.garments import (
    BLACK,
    BLUE,
    BROWN,
    CREAM,
    GOLD,
    GREEN,
    NAVY,
    PINK,
    RED,
    SILVER,
    STEEL,
    STRAW,
    WHITE,
    YELLOW,
    union,
)
from eval.miniature.pen import Pen, above, below, box, line, oval, polygon
from eval.miniature.world import Floats


def camera(pen: Pen, colour: Floats) -> None:
    """Paint a camera on a strap."""
    pen(line(-0.10, 0.24, -0.14, 0.45, 0.03).both, BROWN)
    pen(box(-0.07, 0.07, 0.365, 0.41), colour)
    pen(box(-0.17, 0.17, 0.395, 0.575), colour)
    pen(oval(0, 0.487, 0.078), SILVER)
    pen(oval(0, 0.487, 0.055), NAVY)
    pen(oval(-0.02, 0.467, 0.018), WHITE)
    pen(oval(0.125, 0.43, 0.018), RED)


def video_camera(pen: Pen, colour: Floats) -> None:
    """Paint a video camera."""
    pen(box(0.10, 0.32, 0.36, 0.54), colour)
    pen(polygon((0.30, 0.45), (0.41, 0.38), (0.41, 0.54), (0.30, 0.48)), STEEL)
    pen(oval(0.145, 0.31, 0.058), BLACK)
    pen(oval(0.265, 0.31, 0.058), BLACK)
    pen(oval(0.145, 0.31, 0.022) | oval(0.265, 0.31, 0.022), SILVER)
    pen(oval(0.15, 0.41, 0.02), RED)


def bouquet(pen: Pen, colour: Floats) -> None:
    """Paint three flowers in paper."""
    pen(line(0.27, 0.56, 0.20, 0.36, 0.026) | line(0.27, 0.56, 0.35, 0.36, 0.026), GREEN)
    pen(polygon((0.18, 0.43), (0.36, 0.43), (0.29, 0.62), (0.25, 0.62)), CREAM)
    for x, y, petals in ((0.19, 0.36, YELLOW), (0.36, 0.36, RED)):
        pen(oval(x, y, 0.06), petals)
        pen(oval(x, y, 0.022), WHITE)
    pen(
        union(
            oval(x, y, 0.042)
            for x, y in ((0.275, 0.24), (0.275, 0.345), (0.22, 0.29), (0.33, 0.29))
        ),
        colour,
    )
    pen(oval(0.275, 0.292, 0.032), YELLOW)


def wheel(pen: Pen, colour: Floats) -> None:
    """Paint a steering wheel in front of the chest."""
    pen(oval(0, 0.53, 0.22) - oval(0, 0.53, 0.175), colour)
    pen(box(-0.2, 0.2, 0.505, 0.555) | box(-0.025, 0.025, 0.53, 0.75) | oval(0, 0.53, 0.06), colour)
    pen(oval(0, 0.53, 0.03), SILVER)


def blackboard(pen: Pen, colour: Floats) -> None:
    """Paint an apple, and a small blackboard with letters."""
    pen(box(0.06, 0.42, 0.33, 0.60), STRAW * 0.8)
    pen(box(0.085, 0.395, 0.355, 0.575), GREEN * 0.6)
    pen(
        line(0.13, 0.53, 0.16, 0.41, 0.024)
        | line(0.16, 0.41, 0.19, 0.53, 0.024)
        | line(0.14, 0.49, 0.18, 0.49, 0.02),
        WHITE,
    )
    pen(oval(0.30, 0.47, 0.058) - oval(0.30, 0.47, 0.03), WHITE)
    pen(oval(-0.27, 0.47, 0.075, 0.08), colour)
    pen(line(-0.27, 0.41, -0.25, 0.35, 0.028), BROWN)
    pen(oval(-0.215, 0.365, 0.045, 0.024), GREEN)


def apple(pen: Pen, colour: Floats) -> None:
    """Paint an apple with a leaf."""
    pen(line(0.26, 0.38, 0.28, 0.31, 0.028), BROWN)
    pen(oval(0.32, 0.325, 0.05, 0.025), GREEN)
    pen(oval(0.225, 0.45, 0.075, 0.085) | oval(0.295, 0.45, 0.075, 0.085), colour)
    pen(oval(0.205, 0.42, 0.02, 0.03), WHITE)


def screen(pen: Pen, colour: Floats) -> None:
    """Paint a laptop screen with lines of code."""
    pen(box(0.05, 0.42, 0.34, 0.61), STEEL)
    pen(box(0.08, 0.39, 0.365, 0.585), BLACK)
    for y, right, paint in (
        (0.395, 0.26, GREEN * 1.7),
        (0.455, 0.35, YELLOW),
        (0.515, 0.30, WHITE),
    ):
        pen(box(0.11, right, y, y + 0.033), paint)
    pen(box(0.02, 0.45, 0.60, 0.64), colour)


def chart(pen: Pen, colour: Floats) -> None:
    """Paint a board with a bar chart."""
    pen(box(0.10, 0.42, 0.30, 0.60), STEEL)
    pen(box(0.12, 0.40, 0.32, 0.58), WHITE)
    for x, top, paint in ((0.145, 0.48, RED), (0.23, 0.42, BLUE), (0.315, 0.35, colour)):
        pen(box(x, x + 0.06, top, 0.56), paint)


def book(pen: Pen, colour: Floats) -> None:
    """Paint a closed book."""
    pen(box(0.16, 0.40, 0.34, 0.61), colour)
    pen(box(0.16, 0.195, 0.34, 0.61), colour * 0.55)
    pen(box(0.38, 0.40, 0.355, 0.595), CREAM)
    pen(box(0.23, 0.35, 0.40, 0.45), GOLD)


def books(pen: Pen, colour: Floats) -> None:
    """Paint a pile of books."""
    for y, paint, shift in (
        (0.53, RED, 0.0),
        (0.455, GREEN, 0.03),
        (0.38, BLUE, -0.01),
        (0.305, colour, 0.02),
    ):
        pen(box(0.12 + shift, 0.38 + shift, y, y + 0.07), paint)
        pen(box(0.35 + shift, 0.38 + shift, y + 0.015, y + 0.055), CREAM)


def clipboard(pen: Pen, colour: Floats) -> None:
    """Paint a clipboard with a list."""
    pen(box(0.13, 0.39, 0.32, 0.63), BROWN)
    pen(box(0.155, 0.365, 0.36, 0.61), WHITE)
    pen(box(0.20, 0.32, 0.30, 0.35), STEEL)
    pen(union(box(0.19, 0.335, y, y + 0.026) for y in (0.40, 0.46, 0.52)), colour)


def bubbles(pen: Pen, colour: Floats) -> None:
    """Paint two speech bubbles, which represent two languages."""
    pen(
        oval(-0.31, 0.40, 0.10, 0.085) | polygon((-0.33, 0.44), (-0.23, 0.44), (-0.22, 0.54)), WHITE
    )
    pen(union(oval(x, 0.40, 0.02) for x in (-0.36, -0.31, -0.26)), BLACK)
    pen(oval(0.29, 0.42, 0.12, 0.095) | polygon((0.20, 0.46), (0.30, 0.47), (0.19, 0.58)), colour)
    pen(box(0.22, 0.36, 0.385, 0.41) | box(0.22, 0.33, 0.435, 0.46), WHITE)


def briefcase(pen: Pen, colour: Floats) -> None:
    """Paint a briefcase."""
    pen(box(0.18, 0.32, 0.35, 0.43) - box(0.21, 0.29, 0.38, 0.45), BLACK)
    pen(box(0.09, 0.41, 0.42, 0.64), colour)
    pen(box(0.09, 0.41, 0.49, 0.515), colour * 0.6)
    pen(box(0.225, 0.275, 0.48, 0.53), GOLD)


def house(pen: Pen, colour: Floats) -> None:
    """Paint a small house."""
    pen(box(0.16, 0.38, 0.42, 0.60), CREAM)
    pen(polygon((0.27, 0.27), (0.43, 0.43), (0.11, 0.43)), colour)
    pen(box(0.235, 0.295, 0.48, 0.60), BROWN)
    pen(box(0.32, 0.36, 0.465, 0.515) | box(0.18, 0.22, 0.465, 0.515), BLUE)


def blueprint(pen: Pen, colour: Floats) -> None:
    """Paint a blueprint with white lines on blue."""
    pen(box(0.08, 0.42, 0.32, 0.61), colour)
    frame = box(0.13, 0.37, 0.37, 0.56) - box(0.155, 0.345, 0.395, 0.535)
    pen(frame | box(0.24, 0.265, 0.37, 0.50) | box(0.25, 0.36, 0.46, 0.485), WHITE)


def gear(pen: Pen, colour: Floats) -> None:
    """Paint a cog wheel."""
    teeth = line(0.15, 0.45, 0.41, 0.45, 0.05) | line(0.28, 0.32, 0.28, 0.58, 0.05)
    slanted = line(0.19, 0.36, 0.37, 0.54, 0.05) | line(0.19, 0.54, 0.37, 0.36, 0.05)
    pen(teeth | slanted | oval(0.28, 0.45, 0.10), colour)
    pen(oval(0.28, 0.45, 0.045), WHITE)


def bolt(pen: Pen, colour: Floats) -> None:
    """Paint a yellow lightning bolt on a black sign."""
    pen(polygon((0.27, 0.26), (0.44, 0.60), (0.10, 0.60)), BLACK)
    pen(polygon((0.30, 0.33), (0.32, 0.33), (0.28, 0.47), (0.20, 0.47)), colour)
    pen(polygon((0.25, 0.44), (0.34, 0.44), (0.25, 0.585), (0.235, 0.585)), colour)


def fish(pen: Pen, colour: Floats) -> None:
    """Paint a fish."""
    pen(polygon((0.33, 0.44), (0.43, 0.35), (0.43, 0.55), (0.33, 0.46)), colour * 0.8)
    pen(oval(0.24, 0.45, 0.13, 0.085), colour)
    pen(box(0.22, 0.25, 0.37, 0.53) | box(0.29, 0.32, 0.39, 0.51), WHITE)
    pen(oval(0.165, 0.43, 0.025), BLACK)


def heart(pen: Pen, colour: Floats) -> None:
    """Paint a heart."""
    pen(oval(0.21, 0.40, 0.078) | oval(0.33, 0.40, 0.078), colour)
    pen(polygon((0.139, 0.43), (0.401, 0.43), (0.27, 0.58)), colour)
    pen(oval(0.195, 0.375, 0.022), WHITE)


def teddy(pen: Pen, colour: Floats) -> None:
    """Paint a teddy bear."""
    pen(oval(0.27, 0.58, 0.12, 0.12), colour)
    pen(oval(0.19, 0.32, 0.05) | oval(0.35, 0.32, 0.05), colour * 0.8)
    pen(oval(0.27, 0.40, 0.11, 0.10), colour)
    pen(oval(0.27, 0.44, 0.055, 0.042), CREAM)
    pen(oval(0.23, 0.38, 0.02) | oval(0.31, 0.38, 0.02) | oval(0.27, 0.43, 0.02), BLACK)


def cake(pen: Pen, colour: Floats) -> None:
    """Paint a cake with cherries."""
    pen(oval(0.26, 0.59, 0.175, 0.035), SILVER)
    pen(box(0.13, 0.39, 0.44, 0.59), colour)
    pen(
        box(0.13, 0.39, 0.40, 0.475) | union(oval(x, 0.48, 0.035) for x in (0.17, 0.26, 0.35)),
        WHITE,
    )
    pen(union(oval(x, 0.38, 0.034) for x in (0.18, 0.26, 0.34)), RED)


def cat(pen: Pen, colour: Floats) -> None:
    """Paint a cat."""
    pen(oval(0.27, 0.62, 0.13, 0.14), colour)
    pen(
        polygon((0.165, 0.29), (0.24, 0.35), (0.17, 0.42))
        | polygon((0.375, 0.29), (0.37, 0.42), (0.30, 0.35)),
        colour,
    )
    pen(oval(0.27, 0.42, 0.108, 0.09), colour)
    pen(oval(0.23, 0.405, 0.024) | oval(0.31, 0.405, 0.024), YELLOW)
    pen(oval(0.23, 0.405, 0.012, 0.02) | oval(0.31, 0.405, 0.012, 0.02), BLACK)
    pen(oval(0.27, 0.455, 0.022, 0.016), PINK)


def parrot(pen: Pen, colour: Floats) -> None:
    """Paint a parrot on the shoulder."""
    pen(polygon((0.27, 0.36), (0.33, 0.36), (0.37, 0.58), (0.33, 0.58)), BLUE)
    pen(oval(0.28, 0.26, 0.075, 0.125), colour)
    pen(oval(0.32, 0.27, 0.04, 0.09), YELLOW)
    pen(oval(0.265, 0.135, 0.062), colour)
    pen(polygon((0.215, 0.115), (0.225, 0.20), (0.18, 0.155)), CREAM)
    pen(oval(0.255, 0.12, 0.02), BLACK)


def mask(pen: Pen, colour: Floats) -> None:
    """Paint a theatre mask."""
    pen(box(0.15, 0.40, 0.31, 0.46) | oval(0.275, 0.45, 0.125, 0.14), colour)
    pen(oval(0.215, 0.40, 0.034, 0.026) | oval(0.335, 0.40, 0.034, 0.026), BLACK)
    pen((oval(0.275, 0.48, 0.075, 0.065) - oval(0.275, 0.455, 0.075, 0.055)) & below(0.47), RED)


def handbag(pen: Pen, colour: Floats) -> None:
    """Paint a small bag with a golden clasp."""
    pen((oval(0.27, 0.44, 0.10, 0.14) - oval(0.27, 0.44, 0.068, 0.105)) & above(0.46), colour * 0.7)
    pen(polygon((0.16, 0.44), (0.38, 0.44), (0.42, 0.62), (0.12, 0.62)), colour)
    pen(oval(0.27, 0.47, 0.034), GOLD)


def eye_chart(pen: Pen, colour: Floats) -> None:
    """Paint an eye chart with letters."""
    pen(box(0.13, 0.41, 0.27, 0.62), BLACK)
    pen(box(0.15, 0.39, 0.29, 0.60), WHITE)
    pen(
        box(0.22, 0.25, 0.315, 0.41) | box(0.22, 0.32, 0.315, 0.34) | box(0.22, 0.30, 0.352, 0.377),
        colour,
    )
    pen(box(0.22, 0.32, 0.385, 0.41), colour)
    pen(union(box(x, x + 0.04, 0.45, 0.49) for x in (0.19, 0.25, 0.31)), colour)
    pen(union(box(x, x + 0.022, 0.535, 0.56) for x in (0.18, 0.22, 0.26, 0.30, 0.34)), colour)


def sums(pen: Pen, colour: Floats) -> None:
    """Paint a blackboard with a sum."""
    pen(box(0.07, 0.43, 0.32, 0.60), BROWN)
    pen(box(0.09, 0.41, 0.34, 0.58), colour)
    plus = box(0.12, 0.22, 0.445, 0.475) | box(0.155, 0.185, 0.405, 0.515)
    pen(plus | box(0.28, 0.38, 0.42, 0.45) | box(0.28, 0.38, 0.475, 0.505), WHITE)


def atom(pen: Pen, colour: Floats) -> None:
    """Paint an atom with a nucleus and two orbits."""
    pen(oval(0.27, 0.44, 0.155, 0.165), NAVY)
    pen(oval(0.27, 0.44, 0.135, 0.062) - oval(0.27, 0.44, 0.105, 0.034), colour)
    pen(oval(0.27, 0.44, 0.062, 0.145) - oval(0.27, 0.44, 0.034, 0.115), colour)
    pen(oval(0.27, 0.44, 0.035), RED)


def newspaper(pen: Pen, colour: Floats) -> None:
    """Paint a folded newspaper."""
    pen(box(0.11, 0.41, 0.32, 0.63), WHITE * 0.92)
    pen(box(0.14, 0.38, 0.345, 0.395), BLACK)
    pen(box(0.14, 0.25, 0.42, 0.52), colour)
    pen(union(box(0.28, 0.38, y, y + 0.02) for y in (0.425, 0.465, 0.505)), STEEL)
    pen(union(box(0.14, 0.38, y, y + 0.02) for y in (0.55, 0.585)), STEEL)


def sound(pen: Pen, colour: Floats) -> None:
    """Paint sound waves."""
    centre = (0.20, 0.44)
    pen(oval(*centre, 0.05), colour)
    for radius in (0.12, 0.20):
        ring = oval(*centre, radius) - oval(*centre, radius - 0.036)
        pen(ring & box(0.22, 0.45, 0.44 - radius * 0.75, 0.44 + radius * 0.75), colour)


def notebook(pen: Pen, colour: Floats) -> None:
    """Paint a notebook with a large question mark."""
    pen(box(0.14, 0.40, 0.32, 0.62), colour)
    pen((oval(0.27, 0.41, 0.062) - oval(0.27, 0.41, 0.028)) - box(0.19, 0.265, 0.415, 0.5), WHITE)
    pen(box(0.255, 0.287, 0.455, 0.51) | oval(0.271, 0.555, 0.021), WHITE)


def calculator(pen: Pen, colour: Floats) -> None:
    """Paint a calculator."""
    pen(box(0.15, 0.39, 0.29, 0.63), BLACK)
    pen(box(0.18, 0.36, 0.32, 0.39), GREEN * 1.5)
    pen(
        union(
            box(x, x + 0.045, y, y + 0.045)
            for x in (0.18, 0.248, 0.315)
            for y in (0.42, 0.488, 0.555)
        ),
        colour,
    )
