"""Define headgear and things around the neck for the world of portraits.

Lengths are in image heights around the middle of the face. `colour` (n, 3) contains the colors for
the images in the batch.
"""

from eval.miniature.garments import (
    BLACK,
    BLUE,
    GLASS,
    GOLD,
    NAVY,
    RED,
    SILVER,
    STEEL,
    WHITE,
    YELLOW,
    union,
)
from eval.miniature.pen import Pen, above, below, box, line, oval, polygon
from eval.miniature.world import Floats, colours

_FOLD = colours(0.55, 0.72, 0.80)
_DARK_GLASS = colours(0.20, 0.45, 0.30)


def nothing(pen: Pen, colour: Floats) -> None:
    """Paint nothing."""


def nurse_cap(pen: Pen, colour: Floats) -> None:
    """Paint a white cap with a red cross."""
    pen(polygon((-0.14, -0.30), (0.14, -0.30), (0.17, -0.14), (-0.17, -0.14)), colour)
    pen(box(-0.022, 0.022, -0.285, -0.165) | box(-0.06, 0.06, -0.247, -0.203), RED)


def fire_helmet(pen: Pen, colour: Floats) -> None:
    """Paint a helmet with a ridge, a wide brim and a golden shield."""
    pen(oval(0, -0.10, 0.205, 0.20) & above(-0.10), colour)
    pen(line(0, -0.29, 0, -0.16, 0.04), colour * 0.7)
    pen(oval(0, -0.11, 0.27, 0.04), colour * 0.8)
    pen(polygon((-0.075, -0.26), (0.075, -0.26), (0.06, -0.16), (0, -0.11), (-0.06, -0.16)), GOLD)
    pen(oval(0, -0.20, 0.032), RED)


def toque(pen: Pen, colour: Floats) -> None:
    """Paint a tall hat with a puffed top."""
    puffs = ((-0.12, -0.29, 0.09), (0.12, -0.29, 0.09), (0.0, -0.31, 0.105))
    pen(union(oval(x, y, radius + 0.012) for x, y, radius in puffs), colour * 0.8)
    pen(union(oval(x, y, radius) for x, y, radius in puffs), colour)
    pen(box(-0.15, 0.15, -0.27, -0.11), colour)
    pen(line(-0.06, -0.27, -0.06, -0.19, 0.014).both, colour * 0.8)
    pen(box(-0.155, 0.155, -0.165, -0.145), colour * 0.72)


def flat_toque(pen: Pen, colour: Floats) -> None:
    """Paint a low, puffed hat."""
    pen(oval(0, -0.21, 0.205, 0.095), colour)
    pen(box(-0.165, 0.165, -0.19, -0.12), colour * 0.84)


def peaked_cap(pen: Pen, colour: Floats) -> None:
    """Paint a cap with a dark peak and a badge."""
    pen(oval(0, -0.21, 0.235, 0.10), colour)
    pen(box(-0.175, 0.175, -0.20, -0.13), BLACK)
    pen(oval(0, -0.13, 0.18, 0.04) & below(-0.14), BLACK + 0.1)
    pen(oval(0, -0.215, 0.042, 0.048), GOLD)


def guard_cap(pen: Pen, colour: Floats) -> None:
    """Paint a cap with a long peak and bright letters."""
    pen(oval(0, -0.12, 0.18, 0.16) & above(-0.11), colour)
    pen(oval(0, -0.115, 0.20, 0.035), colour * 0.6)
    pen(box(-0.11, 0.11, -0.215, -0.155), YELLOW)


def pilot_cap(pen: Pen, colour: Floats) -> None:
    """Paint a white cap with a dark band, golden braid and wings."""
    pen(oval(0, -0.21, 0.235, 0.10), colour)
    pen(box(-0.175, 0.175, -0.20, -0.12), NAVY)
    pen(oval(0, -0.13, 0.18, 0.04) & below(-0.14), BLACK)
    pen(box(-0.175, 0.175, -0.15, -0.125), GOLD)
    pen(line(-0.11, -0.22, 0.11, -0.22, 0.034), GOLD)
    pen(oval(0, -0.22, 0.036), GOLD * 0.8)


def driver_cap(pen: Pen, colour: Floats) -> None:
    """Paint a flat blue cap with a silver band."""
    pen(oval(0, -0.20, 0.22, 0.09), colour)
    pen(box(-0.175, 0.175, -0.19, -0.135), SILVER)
    pen(oval(0, -0.13, 0.18, 0.04) & below(-0.14), BLACK)


def straw_hat(pen: Pen, colour: Floats) -> None:
    """Paint a hat with a very wide brim and a red ribbon."""
    pen(oval(0, -0.13, 0.33, 0.055), colour * 0.9)
    pen(oval(0, -0.18, 0.165, 0.15) & above(-0.12), colour)
    pen(box(-0.168, 0.168, -0.185, -0.135), RED)


def hard_hat(pen: Pen, colour: Floats) -> None:
    """Paint a hard hat with a ridge and a short brim."""
    pen(oval(0, -0.10, 0.20, 0.19) & above(-0.10), colour)
    pen(oval(0, -0.11, 0.06, 0.19) & above(-0.11), colour * 0.82)
    pen(oval(0, -0.105, 0.225, 0.035), colour * 0.85)


def beret(pen: Pen, colour: Floats) -> None:
    """Paint a beret, slightly to one side."""
    pen(line(-0.04, -0.27, -0.03, -0.32, 0.03), colour)
    pen(oval(-0.05, -0.205, 0.235, 0.09), colour)
    pen(box(-0.155, 0.155, -0.17, -0.125), colour * 0.72)


def goggles(pen: Pen, colour: Floats) -> None:
    """Paint transparent laboratory goggles."""
    pen(box(-0.175, 0.175, -0.035, 0.01), colour)
    pen(
        box(-0.145, -0.005, -0.062, 0.052).both - box(-0.122, -0.022, -0.04, 0.03).both,
        BLACK + 0.15,
    )
    pen(box(-0.122, -0.022, -0.04, 0.03).both, GLASS)
    pen(oval(-0.068, -0.004, 0.022).both, BLACK)


def space_helmet(pen: Pen, colour: Floats) -> None:
    """Paint a helmet with a transparent visor."""
    pen(oval(0, 0, 0.28, 0.305) - oval(0, 0.005, 0.225, 0.245), colour)
    pen(oval(0, 0.005, 0.235, 0.255) - oval(0, 0.005, 0.21, 0.23), STEEL)
    pen(line(-0.15, -0.13, -0.10, -0.18, 0.035), GLASS)
    pen(box(-0.31, -0.25, -0.08, 0.09).both, SILVER * 0.85)
    pen(box(-0.035, 0.035, -0.315, -0.27), RED)


def surgeon_cap(pen: Pen, colour: Floats) -> None:
    """Paint a cap, and a mask worn below the chin."""
    pen(oval(0, -0.12, 0.185, 0.14) & above(-0.09), colour)
    pen(box(-0.175, 0.175, -0.12, -0.09), colour * 0.75)
    pen(line(-0.15, 0.03, -0.11, 0.20, 0.018).both, WHITE)
    pen(box(-0.12, 0.12, 0.185, 0.275), GLASS)
    pen(box(-0.10, 0.10, 0.215, 0.23), _FOLD)


def sailor_cap(pen: Pen, colour: Floats) -> None:
    """Paint a round white cap."""
    pen(oval(0, -0.22, 0.165, 0.08), colour)
    pen(box(-0.18, 0.18, -0.215, -0.135), colour)
    pen(box(-0.18, 0.18, -0.16, -0.135), NAVY)


def fedora(pen: Pen, colour: Floats) -> None:
    """Paint a hat with a brim and a dark band."""
    pen(oval(0, -0.13, 0.27, 0.048), colour * 0.85)
    pen(oval(0, -0.20, 0.16, 0.125) & above(-0.12), colour)
    pen(box(-0.16, 0.16, -0.18, -0.135), BLACK)
    pen(oval(0, -0.315, 0.06, 0.03), colour * 0.65)


def top_hat(pen: Pen, colour: Floats) -> None:
    """Paint a tall black hat with a red band."""
    pen(box(-0.155, 0.155, -0.385, -0.13), colour)
    pen(oval(0, -0.13, 0.25, 0.04), colour)
    pen(box(-0.155, 0.155, -0.205, -0.15), RED)


def cap(pen: Pen, colour: Floats) -> None:
    """Paint a cap with a peak to one side."""
    pen(oval(0, -0.12, 0.18, 0.16) & above(-0.11), colour)
    pen(oval(0.11, -0.115, 0.17, 0.035), colour * 0.75)


def headphones(pen: Pen, colour: Floats) -> None:
    """Paint large headphones."""
    pen((oval(0, -0.04, 0.225, 0.24) - oval(0, -0.03, 0.185, 0.195)) & above(0.0), colour)
    pen(box(-0.24, -0.15, -0.07, 0.09).both, colour)
    pen(box(-0.225, -0.185, -0.03, 0.05).both, RED)


def headset(pen: Pen, colour: Floats) -> None:
    """Paint a thin headset with a microphone in front of the mouth."""
    pen((oval(0, -0.04, 0.205, 0.215) - oval(0, -0.03, 0.175, 0.185)) & above(0.0), colour)
    pen(oval(-0.175, 0.0, 0.035, 0.05).both, colour)
    pen(line(-0.17, 0.03, -0.10, 0.125, 0.022), colour)
    pen(oval(-0.09, 0.13, 0.025), colour)


def glasses(pen: Pen, colour: Floats) -> None:
    """Paint glasses with thick rims."""
    pen((oval(-0.068, -0.004, 0.064, 0.056) - oval(-0.068, -0.004, 0.043, 0.035)).both, colour)
    pen(line(-0.012, -0.01, 0.012, -0.01, 0.02), colour)
    pen(line(-0.13, -0.015, -0.165, -0.02, 0.02).both, colour)


def bandana(pen: Pen, colour: Floats) -> None:
    """Paint a dotted cloth around the head."""
    pen(oval(0, -0.06, 0.182, 0.175) & above(-0.09), colour)
    pen(
        union((oval(-0.08, -0.15, 0.018).both, oval(0, -0.125, 0.018), oval(0, -0.19, 0.018))),
        WHITE,
    )


def mortarboard(pen: Pen, colour: Floats) -> None:
    """Paint a square academic cap with a tassel."""
    pen(oval(0, -0.10, 0.18, 0.13) & above(-0.09), colour)
    pen(polygon((0, -0.36), (0.29, -0.25), (0, -0.15), (-0.29, -0.25)), colour + 0.08)
    pen(line(0, -0.25, 0.22, -0.22, 0.022), GOLD)
    pen(line(0.22, -0.22, 0.22, -0.09, 0.035), GOLD)


def head_mirror(pen: Pen, colour: Floats) -> None:
    """Paint a round mirror on a band around the forehead."""
    pen(oval(0, 0, 0.178, 0.215) & box(-0.2, 0.2, -0.15, -0.115), BLACK)
    pen(oval(0, -0.145, 0.066), STEEL)
    pen(oval(0, -0.145, 0.05), colour)
    pen(oval(0, -0.145, 0.02), BLACK)


def welding_mask(pen: Pen, colour: Floats) -> None:
    """Paint a welder's mask, pushed up on the forehead."""
    pen(oval(0, -0.12, 0.195, 0.18) & above(-0.085), colour)
    pen(box(-0.14, 0.14, -0.225, -0.12), BLACK)
    pen(box(-0.115, 0.115, -0.205, -0.14), _DARK_GLASS)


def lanyard(pen: Pen, colour: Floats) -> None:
    """Paint a name card on a ribbon around the neck."""
    pen(line(-0.085, 0.235, 0, 0.43, 0.025).both, colour)
    pen(box(-0.06, 0.06, 0.42, 0.56), WHITE)
    pen(box(-0.035, 0.035, 0.445, 0.49), BLUE)


def scarf(pen: Pen, colour: Floats) -> None:
    """Paint a scarf with one end hanging down."""
    pen(box(-0.155, -0.075, 0.27, 0.52), colour * 0.78)
    pen(oval(0, 0.255, 0.155, 0.065) & below(0.205), colour)
