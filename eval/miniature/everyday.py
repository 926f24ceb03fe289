"""Define what portraits show besides the person and the job, such as place, light and clothes.

None of these depends on the profession. Captions have a few words for each visible thing
(`phrases`). They correlate slightly with the gender presentation and the concept of a person, by a
random assignment that makes no claims about people.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eval.miniature import garments
from eval.miniature.garments import (
    BLACK,
    BLUE,
    BROWN,
    GOLD,
    GREEN,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    SKY,
    STEEL,
    STRAW,
    WHITE,
    YELLOW,
    union,
)
from eval.miniature.pen import Pen, Shape, above, box, line, oval, polygon
from eval.miniature.world import SIZE, Codes, Draws, Floats, colours, shuffled

GENDER_TILT, CONCEPT_TILT = 0.5, 0.9  # maximum change in the log odds of an option

_NAMED = {
    "red": RED,
    "orange": ORANGE,
    "yellow": YELLOW,
    "green": GREEN,
    "blue": BLUE,
    "purple": PURPLE,
    "pink": PINK,
    "white": WHITE,
    "black": BLACK,
    "brown": BROWN,
}
COLOURS = tuple(_NAMED)
_SKY = colours(0.66, 0.76, 0.84)
PAINT = np.stack(list(_NAMED.values()))


class Backdrop(NamedTuple):
    """A place with its phrase, upper and lower colours, the height of their border, and objects."""

    words: str
    upper: tuple[float, float, float]
    lower: tuple[float, float, float]
    line: float = 0.62
    there: Shape | None = None
    colour: tuple[float, float, float] = (0.5, 0.5, 0.5)


def _row(shape: Callable[[float], Shape], *places: float) -> Shape:
    return union(shape(x) for x in places)


_ACROSS = (0.02, 0.14, 0.26, 0.38, 0.5, 0.62, 0.74, 0.86, 0.98)
_EDGES = (0.04, 0.17, 0.83, 0.95)
_BRICKS = union(
    box(x + 0.07 * (k % 2), x + 0.115 + 0.07 * (k % 2), 0.02 + 0.1 * k, 0.1 + 0.1 * k)
    for k in range(10)
    for x in (-0.1, 0.04, 0.18, 0.32, 0.46, 0.6, 0.74, 0.88)
)
_TILES = union(
    box(x, x + 0.105, y, y + 0.105) for x in np.arange(0, 1, 0.125) for y in np.arange(0, 1, 0.125)
)
_SHELVES = union(box(0, 1, y, y + 0.025) for y in (0.19, 0.41, 0.63)) | union(
    box(x, x + 0.03, y - 0.13, y) for x in np.arange(0.02, 1, 0.055) for y in (0.19, 0.41, 0.63)
)
_HOUSES = (
    box(-0.1, 0.14, 0.2, 0.7)
    | box(0.16, 0.3, 0.32, 0.7)
    | box(0.7, 0.84, 0.14, 0.7)
    | box(0.86, 1.1, 0.3, 0.7)
)
_FIRS = _row(lambda x: polygon((x, 0.12), (x + 0.09, 0.64), (x - 0.09, 0.64)), *_EDGES)
_CROWNS = _row(lambda x: oval(x, 0.24, 0.11, 0.14) | box(x - 0.02, x + 0.02, 0.3, 0.66), 0.08, 0.92)
_BARS = _row(lambda x: box(x, x + 0.035, 0.0, 1.0), *_ACROSS)
_SLATS = _row(lambda x: box(x, x + 0.06, 0.22, 0.9), *_ACROSS) | box(0, 1, 0.32, 0.38)
_WAVES = union(
    line(x, y, x + 0.16, y, 0.018) for x in (0.0, 0.3, 0.62, 0.86) for y in (0.55, 0.64, 0.74)
)
_BLOOMS = union(
    oval(x, y, 0.028) for x in (0.03, 0.12, 0.2, 0.81, 0.89, 0.97) for y in (0.5, 0.6, 0.71)
)
_PEAKS = polygon((0.12, 0.1), (0.42, 0.62), (-0.2, 0.62)) | polygon(
    (0.86, 0.18), (1.2, 0.62), (0.56, 0.62)
)
_DUNES = oval(0.1, 0.66, 0.4, 0.12) | oval(0.9, 0.68, 0.42, 0.16)
_PANE = box(0.04, 0.24, 0.08, 0.4) | box(0.76, 0.96, 0.08, 0.4)
_FOLDS = _row(lambda x: box(x, x + 0.07, 0.0, 1.0), 0.0, 0.12, 0.24, 0.7, 0.82, 0.94)
_LAMPS = _row(lambda x: oval(x, 0.1, 0.05), 0.1, 0.3, 0.7, 0.9)
_BEAM = polygon((-0.4, 0.0), (-0.3, 0.0), (0.05, 1.0), (-0.3, 1.0)).both
_BEAMS = Shape((0.0, 1.0, 0.0, 1.0), lambda x, y: _BEAM.distance(x - 0.5, y))
_SKY_LIGHTS = ((0.06, 0.1), (0.16, 0.3), (0.27, 0.06), (0.74, 0.12), (0.86, 0.34), (0.95, 0.07))
_STARS = union(oval(x, y, 0.014) for x, y in _SKY_LIGHTS)
_RINGS = (oval(0.5, 0.45, 0.55) - oval(0.5, 0.45, 0.48)) | (
    oval(0.5, 0.45, 0.42) - oval(0.5, 0.45, 0.35)
)
_CHECKS = union(
    box(x, x + 0.125, y, y + 0.125)
    for i, x in enumerate(np.arange(0, 1, 0.125))
    for y in np.arange(i % 2 / 8, 1, 0.25)
)

PLACES = (
    Backdrop("in a room", (0.63, 0.63, 0.61), (0.60, 0.60, 0.58)),
    Backdrop(
        "in a park", (0.62, 0.80, 0.95), (0.42, 0.66, 0.30), 0.55, _CROWNS, (0.20, 0.48, 0.20)
    ),
    Backdrop(
        "in a forest", (0.55, 0.70, 0.60), (0.26, 0.40, 0.18), 0.62, _FIRS, (0.10, 0.32, 0.18)
    ),
    Backdrop(
        "in a garden", (0.70, 0.86, 0.96), (0.36, 0.58, 0.26), 0.46, _BLOOMS, (0.95, 0.42, 0.62)
    ),
    Backdrop(
        "on a beach", (0.56, 0.80, 0.96), (0.92, 0.82, 0.56), 0.60, _WAVES, (0.30, 0.60, 0.85)
    ),
    Backdrop(
        "by the sea", (0.72, 0.84, 0.94), (0.12, 0.40, 0.66), 0.44, _WAVES, (0.80, 0.92, 0.98)
    ),
    Backdrop(
        "in the mountains", (0.60, 0.74, 0.92), (0.46, 0.52, 0.36), 0.62, _PEAKS, (0.50, 0.50, 0.58)
    ),
    Backdrop(
        "in a desert", (0.96, 0.78, 0.50), (0.86, 0.62, 0.32), 0.60, _DUNES, (0.92, 0.70, 0.38)
    ),
    Backdrop(
        "in a street", (0.72, 0.78, 0.84), (0.34, 0.34, 0.37), 0.68, _HOUSES, (0.62, 0.42, 0.34)
    ),
    Backdrop(
        "in a city", (0.56, 0.62, 0.76), (0.26, 0.28, 0.33), 0.68, _HOUSES, (0.34, 0.38, 0.48)
    ),
    Backdrop(
        "in the snow", (0.80, 0.86, 0.93), (0.95, 0.96, 0.99), 0.50, _FIRS, (0.50, 0.62, 0.60)
    ),
    Backdrop(
        "at a fence", (0.66, 0.82, 0.95), (0.44, 0.62, 0.32), 0.60, _SLATS, (0.95, 0.93, 0.88)
    ),
    Backdrop(
        "at a brick wall", (0.70, 0.64, 0.58), (0.70, 0.64, 0.58), 0.9, _BRICKS, (0.66, 0.30, 0.22)
    ),
    Backdrop(
        "in a bathroom", (0.90, 0.94, 0.95), (0.90, 0.94, 0.95), 0.9, _TILES, (0.60, 0.82, 0.86)
    ),
    Backdrop(
        "in a kitchen", (0.94, 0.88, 0.66), (0.74, 0.56, 0.36), 0.58, _PANE, (0.66, 0.84, 0.95)
    ),
    Backdrop(
        "in a library", (0.58, 0.42, 0.28), (0.42, 0.28, 0.18), 0.70, _SHELVES, (0.26, 0.16, 0.12)
    ),
    Backdrop(
        "on a stage", (0.16, 0.10, 0.22), (0.38, 0.20, 0.16), 0.78, _BEAMS, (0.86, 0.80, 0.50)
    ),
    Backdrop(
        "at a curtain", (0.66, 0.10, 0.18), (0.66, 0.10, 0.18), 0.9, _FOLDS, (0.50, 0.05, 0.12)
    ),
    Backdrop("in a gym", (0.86, 0.74, 0.52), (0.66, 0.46, 0.26), 0.66, _BARS, (0.70, 0.58, 0.40)),
    Backdrop("in a hall", (0.90, 0.88, 0.80), (0.64, 0.58, 0.50), 0.72, _LAMPS, (1.0, 0.86, 0.30)),
    Backdrop(
        "under the stars", (0.07, 0.09, 0.26), (0.10, 0.16, 0.20), 0.72, _STARS, (0.98, 0.96, 0.80)
    ),
    Backdrop(
        "in a tunnel", (0.20, 0.19, 0.20), (0.20, 0.19, 0.20), 0.9, _RINGS, (0.40, 0.38, 0.36)
    ),
    Backdrop("in a red room", (0.80, 0.28, 0.24), (0.62, 0.20, 0.18)),
    Backdrop("in a blue room", (0.30, 0.46, 0.80), (0.22, 0.34, 0.64)),
    Backdrop("in a green room", (0.36, 0.66, 0.44), (0.26, 0.50, 0.34)),
    Backdrop("in a purple room", (0.60, 0.42, 0.74), (0.46, 0.32, 0.58)),
    Backdrop(
        "in a checked room",
        (0.92, 0.92, 0.90),
        (0.92, 0.92, 0.90),
        0.9,
        _CHECKS,
        (0.24, 0.24, 0.27),
    ),
)


Strokes = tuple[tuple[Shape, Floats | float], ...]
"""Shapes to paint on top of each other, each with a colour or a factor for the assigned colour."""

BESIDE: dict[str, Strokes] = {
    "a lamp": (
        (line(0.38, 0.05, 0.38, 0.7, 0.02), BLACK),
        (polygon((0.33, -0.12), (0.43, -0.12), (0.48, 0.06), (0.28, 0.06)), YELLOW),
    ),
    "a clock": (
        (oval(0.37, 0.0, 0.105), BLACK),
        (oval(0.37, 0.0, 0.085), WHITE),
        (line(0.37, 0.0, 0.37, -0.06, 0.02) | line(0.37, 0.0, 0.41, 0.02, 0.02), BLACK),
    ),
    "a tree": (
        (box(0.36, 0.41, 0.05, 0.8), BROWN),
        (oval(0.385, -0.04, 0.11, 0.15), GREEN),
    ),
    "a house": (
        (box(0.28, 0.48, 0.0, 0.2), STRAW),
        (polygon((0.38, -0.15), (0.5, 0.0), (0.26, 0.0)), RED),
        (box(0.36, 0.41, 0.08, 0.2), BROWN),
    ),
    "a car": (
        (box(0.24, 0.5, 0.06, 0.16) | oval(0.37, 0.06, 0.09, 0.08), RED),
        (oval(0.37, 0.05, 0.06, 0.045) & above(0.06), SKY),
        (oval(0.29, 0.17, 0.04) | oval(0.45, 0.17, 0.04), BLACK),
    ),
    "a bicycle": (
        (
            (oval(0.28, 0.12, 0.085) - oval(0.28, 0.12, 0.06))
            | (oval(0.46, 0.12, 0.085) - oval(0.46, 0.12, 0.06)),
            BLACK,
        ),
        (
            line(0.28, 0.12, 0.36, 0.0, 0.022)
            | line(0.36, 0.0, 0.46, 0.12, 0.022)
            | line(0.43, -0.05, 0.46, 0.12, 0.022),
            RED,
        ),
    ),
    "a dog": (
        (oval(0.38, 0.14, 0.10, 0.09) | box(0.29, 0.47, 0.14, 0.3), BROWN),
        (oval(0.35, 0.02, 0.075), BROWN * 1.3),
        (oval(0.29, 0.03, 0.03, 0.06) | oval(0.41, 0.03, 0.03, 0.06), BROWN * 0.6),
        (oval(0.33, 0.0, 0.014) | oval(0.37, 0.0, 0.014) | oval(0.35, 0.05, 0.02), BLACK),
    ),
    "a cat": (
        (oval(0.38, 0.16, 0.085, 0.12), ORANGE),
        (oval(0.38, 0.02, 0.07), ORANGE),
        (
            polygon((0.33, -0.09), (0.37, -0.03), (0.31, 0.0))
            | polygon((0.43, -0.09), (0.45, 0.0), (0.39, -0.03)),
            ORANGE,
        ),
        (oval(0.355, 0.01, 0.013) | oval(0.405, 0.01, 0.013), BLACK),
    ),
    "some birds": (
        (line(0.28, -0.04, 0.37, 0.02, 0.035) | line(0.37, 0.02, 0.47, -0.05, 0.035), BLACK),
        (line(0.30, 0.13, 0.36, 0.17, 0.03) | line(0.36, 0.17, 0.43, 0.12, 0.03), BLACK),
    ),
    "a plant": (
        (union(line(0.38, 0.1, x, -0.12, 0.035) for x in (0.27, 0.34, 0.42, 0.49)), GREEN),
        (
            polygon((0.31, 0.08), (0.45, 0.08), (0.42, 0.24), (0.34, 0.24)),
            colours(0.75, 0.38, 0.22),
        ),
    ),
    "a sign": (
        (box(0.37, 0.40, 0.05, 0.8), STEEL),
        (oval(0.385, -0.02, 0.105), RED),
        (box(0.31, 0.46, -0.045, 0.005), WHITE),
    ),
    "a window": (
        (box(0.26, 0.49, -0.16, 0.24), WHITE),
        (box(0.28, 0.365, -0.14, 0.03) | box(0.385, 0.47, -0.14, 0.03), SKY),
        (box(0.28, 0.365, 0.05, 0.22) | box(0.385, 0.47, 0.05, 0.22), SKY),
    ),
    "a painting": (
        (box(0.27, 0.48, -0.12, 0.14), GOLD),
        (box(0.295, 0.455, -0.095, 0.115), BLUE),
        (oval(0.375, 0.01, 0.06), PINK),
    ),
    "a candle": (
        (box(0.35, 0.41, 0.02, 0.3), WHITE),
        (oval(0.38, -0.06, 0.035, 0.065), ORANGE),
        (oval(0.38, -0.04, 0.018, 0.035), YELLOW),
    ),
    "a flag": (
        (line(0.28, -0.14, 0.28, 0.7, 0.02), STEEL),
        (box(0.29, 0.49, -0.14, 0.0), BLUE),
        (box(0.29, 0.49, -0.095, -0.045), YELLOW),
    ),
    "a ladder": (
        (line(0.28, -0.2, 0.28, 0.8, 0.022) | line(0.42, -0.2, 0.42, 0.8, 0.022), BROWN),
        (union(line(0.28, y, 0.42, y, 0.02) for y in (-0.13, -0.03, 0.07, 0.17, 0.27)), BROWN),
    ),
}
HELD: dict[str, Strokes] = {
    "balloon": (
        (line(0.27, 0.62, 0.34, 0.0, 0.014), BLACK),
        (oval(0.34, -0.10, 0.105, 0.13), 1.0),
    ),
    "umbrella": (
        (line(0.30, -0.1, 0.30, 0.66, 0.024), BLACK),
        (oval(0.30, -0.06, 0.21, 0.17) & above(-0.06), 1.0),
    ),
    "cup": (
        (oval(0.35, 0.45, 0.06) - oval(0.35, 0.45, 0.035), 1.0),
        (box(0.18, 0.34, 0.36, 0.55), 1.0),
        (oval(0.26, 0.36, 0.08, 0.025), BROWN),
    ),
    "flower": (
        (line(0.28, 0.25, 0.26, 0.66, 0.024), GREEN),
        (
            union(
                oval(0.28 + x, 0.22 + y, 0.05)
                for x, y in ((-0.06, 0), (0.06, 0), (0, -0.06), (0, 0.06))
            ),
            1.0,
        ),
        (oval(0.28, 0.22, 0.035), YELLOW * 0.9),
    ),
    "ball": (
        (oval(0.27, 0.46, 0.125), 1.0),
        (line(0.17, 0.42, 0.37, 0.50, 0.03), 0.6),
    ),
    "ice cream": (
        (polygon((0.19, 0.38), (0.35, 0.38), (0.27, 0.64)), STRAW * 0.9),
        (oval(0.27, 0.32, 0.095), 1.0),
    ),
    "kite": (
        (line(0.25, 0.62, 0.36, 0.08, 0.014), BLACK),
        (polygon((0.36, -0.22), (0.46, -0.06), (0.36, 0.12), (0.26, -0.06)), 1.0),
    ),
    "present": (
        (box(0.15, 0.39, 0.36, 0.60), 1.0),
        (
            box(0.25, 0.29, 0.36, 0.60)
            | box(0.15, 0.39, 0.46, 0.50)
            | oval(0.23, 0.34, 0.035)
            | oval(0.31, 0.34, 0.035),
            GOLD,
        ),
    ),
}
WORN: dict[str, Strokes] = {
    "woolly hat": (
        (oval(0, -0.09, 0.19, 0.19) & above(-0.10), 1.0),
        (box(-0.195, 0.195, -0.145, -0.085), 0.72),
        (oval(0, -0.29, 0.05), 0.8),
    ),
    "headband": ((box(-0.18, 0.18, -0.135, -0.085), 1.0),),
    "bow": (
        (polygon((0.02, -0.20), (0.15, -0.29), (0.15, -0.12)).both, 1.0),
        (oval(0, -0.205, 0.035), 0.7),
    ),
    "sunglasses": (
        (oval(-0.07, -0.004, 0.062, 0.048).both | box(-0.165, 0.165, -0.02, 0.0), 0.45),
    ),
    "neckerchief": ((polygon((-0.14, 0.20), (0.14, 0.20), (0.0, 0.38)), 1.0),),
    "necklace": (
        (
            union(
                oval(x, y, 0.024).both
                for x, y in ((0.0, 0.335), (0.05, 0.32), (0.09, 0.285), (0.115, 0.24))
            ),
            1.0,
        ),
    ),
}
POSES = ("waving", "with raised arms", "with crossed arms", "pointing")
GARMENTS = (
    ("jumper", garments.jumper),
    ("shirt", garments.shirt),
    ("suit", garments.suit),
    ("jacket", garments.jacket),
    ("striped top", garments.stripes),
    ("vest", garments.pullunder),
    ("dotted top", garments.dots),
)
WEATHER = ("in the rain", "in falling snow", "in the fog", "in the sun")
LIGHTS = (
    "at night",
    "in bright light",
    "in warm light",
    "in cold light",
    "in black and white",
    "in pink light",
)
FRAMES = ("up close", "far away", "on the left", "on the right")
MOUTHS = ("calm", "smiling", "laughing", "serious")
HAIR_WORDS = ("with dark hair", "with brown hair", "with blond hair", "with red hair")
STYLES = ("with curls", "with a bun", "with bunches")


# Phrases for things that need only a word or two.
_SAID: dict[str, Sequence[str]] = {
    "place": [place.words for place in PLACES],
    "weather": WEATHER,
    "light": LIGHTS,
    "frame": FRAMES,
    "pose": POSES,
    "mouth": MOUTHS,
    "style": STYLES,
    "beside": [f"next to {name}" for name in BESIDE],
}


def _assigned_tilts(name: str, count: int) -> Floats:
    return np.linspace(-1, 1, count, dtype=np.float32)[shuffled(count, name)]


@dataclass(frozen=True)
class Scene:
    """The surroundings of people in n images, as indices (n,) that are -1 for none."""

    place: Codes  # a room by default
    weather: Codes
    light: Codes
    frame: Codes
    beside: Codes
    garment: Codes
    cloth: Codes
    worn: Codes
    worn_colour: Codes
    held: Codes
    held_colour: Codes
    pose: Codes
    mouth: Codes
    style: Codes

    def phrases(self, picture: int, hair: int, old: bool) -> list[str]:
        """Return the phrases for an image in any order, except that the hair comes last."""
        seen = {name: int(codes[picture]) for name, codes in vars(self).items()}
        parts = [words[seen[name]] for name, words in _SAID.items() if seen[name] >= 0]
        if seen["garment"] >= 0:
            parts.append(f"in a {COLOURS[seen['cloth']]} {GARMENTS[seen['garment']][0]}")
        for kind, table in (("worn", WORN), ("held", HELD)):
            if seen[kind] >= 0:
                parts.append(_with(COLOURS[seen[f"{kind}_colour"]], list(table)[seen[kind]]))
        return [*parts, "with grey hair" if old else HAIR_WORDS[hair]]

    def paint_worn(self, pen: Pen) -> None:
        """Paint the clothes of people off duty."""
        _each(pen, self.worn, WORN, PAINT[self.worn_colour])

    def paint_hands(self, pen: Pen, cloth: Floats, skin: Floats) -> None:
        """Paint the objects that people off duty hold, and their arms."""
        _each(pen, self.held, HELD, PAINT[self.held_colour])
        waving, raised, crossed, pointing = (pen.where(self.pose == k) for k in range(len(POSES)))
        arm, hand = line(0.33, 0.55, 0.36, 0.12, 0.10), oval(0.36, 0.05, 0.062)
        waving(arm, cloth * 0.85)
        waving(hand, skin)
        raised(arm.both, cloth * 0.85)
        raised(hand.both, skin)
        crossed(
            (line(-0.30, 0.46, 0.16, 0.56, 0.09) | line(0.30, 0.46, -0.16, 0.56, 0.09)),
            cloth * 0.75,
        )
        crossed(oval(0.19, 0.565, 0.05).both, skin)
        pointing(line(0.30, 0.56, 0.16, 0.36, 0.10), cloth * 0.8)
        pointing(oval(0.14, 0.33, 0.055) | line(0.14, 0.33, 0.06, 0.24, 0.035), skin)

    def paint_air(self, pixels: Floats, draws: Draws) -> None:
        """Paint weather and light over the image."""
        pen = Pen(pixels, draws.uniform("air x", -0.1, 0.1), draws.uniform("air y", -0.1, 0.1))
        rain, snow, _, sun = (pen.where(self.weather == k) for k in range(len(WEATHER)))
        rows, columns = np.arange(-0.1, 1.1, 0.17), np.arange(-0.1, 1.1, 0.19)
        grid = [(x + 0.07 * (j % 2), y) for j, y in enumerate(rows) for x in columns]
        rain(
            union(line(x, y, x - 0.03, y + 0.09, 0.016) for x, y in grid), colours(0.68, 0.80, 0.95)
        )
        snow(union(oval(x, y, 0.022) for x, y in grid), WHITE)
        sun(oval(0.13, 0.13, 0.10), YELLOW)
        sun(
            union(
                line(0.13 + 0.13 * c, 0.13 + 0.13 * s, 0.13 + 0.2 * c, 0.13 + 0.2 * s, 0.024)
                for c, s in _RAYS
            ),
            YELLOW,
        )
        fog = self.weather == WEATHER.index("in the fog")
        pixels[fog] = pixels[fog] * 0.5 + 0.43
        for k, tint in enumerate(_TINTS):
            here = self.light == k
            if tint is None:
                pixels[here] = pixels[here].mean(axis=-1, keepdims=True)
            else:
                pixels[here] *= colours(tint)


# The frequency of each kind, and whether it depends on gender presentation and concept.
_SHOWN = {
    "place": (len(PLACES), 1.0),
    "weather": (len(WEATHER), 0.25),
    "light": (len(LIGHTS), 0.35),
    "frame": (len(FRAMES), 0.45),
    "beside": (len(BESIDE), 0.55),
    "garment": (len(GARMENTS), 1.0),
    "cloth": (len(COLOURS), 1.0),
    "worn": (len(WORN), 0.45),
    "worn_colour": (len(COLOURS), 1.0),
    "held": (len(HELD), 0.45),
    "held_colour": (len(COLOURS), 1.0),
    "pose": (len(POSES), 0.45),
    "mouth": (len(MOUTHS), 1.0),
    "style": (len(STYLES), 0.35),
}
_OFF_DUTY = ("garment", "cloth", "worn", "worn_colour", "held", "held_colour", "pose")


def draw_scene(
    draws: Draws,
    gender: Codes,
    concept: Codes,
    concepts: int,
    off_duty: NDArray[np.bool_],
    seen: float,
) -> Scene:
    """Sample the surroundings of people, which are visible `seen` times as often as usual."""
    drawn = {}
    for name, (count, share) in _SHOWN.items():
        leans = (
            GENDER_TILT
            * np.where(gender == 0, 1.0, -1.0)[:, None]
            * _assigned_tilts(f"{name} by gender", count)
        )
        by_concept = np.stack(
            [_assigned_tilts(f"{name} by concept {k}", count) for k in range(concepts)]
        )
        leans = leans + CONCEPT_TILT * by_concept[concept]
        kind = draws.choice(f"everyday {name}", np.exp(leans))
        dressed = name in _OFF_DUTY
        shown = (
            off_duty if share == 1.0 and dressed else draws.uniform(f"any {name}") < share * seen
        )
        drawn[name] = np.where(shown & (off_duty if dressed else True), kind, -1)
    drawn["place"] = np.maximum(drawn["place"], 0)  # a room
    drawn["mouth"] = np.where(
        drawn["mouth"] < 0, draws.integers("mouth", len(MOUTHS)), drawn["mouth"]
    )
    drawn["pose"] = np.where(drawn["held"] >= 0, -1, drawn["pose"])  # one pair of hands
    return Scene(**drawn)


def _with(colour: str, thing: str) -> str:
    return f"with {colour} {thing}" if thing.endswith("glasses") else f"with a {colour} {thing}"


def all_phrases() -> list[str]:
    """Return every phrase that captions can contain."""
    every = [phrase for words in _SAID.values() for phrase in words]
    every += [f"in a {colour} {name}" for colour in COLOURS for name, _ in GARMENTS]
    every += [_with(colour, name) for colour in COLOURS for name in (*WORN, *HELD)]
    return [*every, *HAIR_WORDS, "with grey hair"]


def paint_place(pixels: Floats, draws: Draws, place: Codes) -> None:
    """Cover images with places (n,), the first of which is a room."""
    _paint_room(pixels, draws)
    elsewhere = place > 0
    rooms = pixels[~elsewhere].copy()
    light = draws.uniform("place light", 0.93, 1.07)[:, None]
    shift = draws.uniform("place line", -0.03, 0.03)
    upper, lower = (
        np.array([getattr(p, side) for p in PLACES], np.float32)[place]
        for side in ("upper", "lower")
    )
    tint = draws.uniforms("place tint", 3, -0.04, 0.04)
    pixels[:] = np.clip(upper * light + tint, 0, 1)[:, None, None, :]
    pixels *= np.linspace(1.03, 0.96, SIZE, dtype=np.float32)[None, :, None, None]
    lines = np.array([p.line for p in PLACES], np.float32)[place]
    Pen(pixels, 0.5, lines + shift)(box(-0.6, 0.6, 0.0, 1.0), np.clip(lower * light + tint, 0, 1))
    pen = Pen(pixels, 0.0 + draws.uniform("place x", -0.03, 0.03), shift)
    for k, kind in enumerate(PLACES):
        if kind.there is not None:
            pen.where(place == k)(kind.there, np.clip(colours(kind.colour) * light, 0, 1))
    pixels[~elsewhere] = rooms


def _paint_room(pixels: Floats, draws: Draws) -> None:
    """Paint plain walls, some with a window, a picture or a skirting board."""
    level = draws.uniform("wall", 0.55, 0.70)[:, None]
    wall = level + draws.uniforms("wall tint", 3, -0.07, 0.07)
    pixels[:] = wall[:, None, None, :]
    pixels *= np.linspace(1.03, 0.95, SIZE, dtype=np.float32)[None, :, None, None]
    kind = draws.uniform("room")
    pen = Pen(
        pixels, 0.5, 0.0, flip=np.where(draws.uniform("room side") < 0.5, -1, 1).astype(np.float32)
    )
    window, picture, panel = (
        pen.where(kind < 0.2),
        pen.where((kind >= 0.2) & (kind < 0.35)),
        pen.where(kind > 0.75),
    )
    window(box(0.24, 0.47, 0.06, 0.36), np.clip(wall * 1.2, 0, 1))
    window(box(0.265, 0.345, 0.085, 0.335) | box(0.37, 0.445, 0.085, 0.335), _SKY)
    picture(box(0.29, 0.45, 0.08, 0.24), wall * 0.7)
    picture(box(0.315, 0.425, 0.105, 0.215), np.clip(wall * 1.15, 0, 1))
    panel(box(-0.6, 0.6, 0.62, 1.1), wall * 0.86)


def paint_beside(pixels: Floats, draws: Draws, beside: Codes) -> None:
    """Paint an object to the left or right of the person."""
    flip = np.where(draws.uniform("beside side") < 0.5, -1, 1).astype(np.float32)
    pen = Pen(pixels, 0.5, 0.22 + draws.uniform("beside y", -0.04, 0.04), flip=flip)
    _each(pen, beside, BESIDE)


def paint_style(pen: Pen, style: Codes, hair: Floats, *, behind: bool) -> None:
    """Paint the parts of curls, a bun or bunches that are behind or in front of the head."""
    curls, bun, bunches = (pen.where(style == k) for k in range(len(STYLES)))
    if behind:
        bunches(oval(0.235, -0.02, 0.07, 0.10).both | oval(0.25, 0.10, 0.05, 0.09).both, hair * 0.9)
        bun(oval(0, -0.265, 0.085, 0.075), hair * 0.9)
    else:
        places = ((0.04, -0.19), (0.11, -0.16), (0.165, -0.10), (0.19, -0.02), (0.2, 0.05))
        curls(union(oval(x, y, 0.05) for x, y in places).both, hair * 0.88)


# Factors for red, green and blue in each light, or None for grey.
_TINTS = (
    (0.42, 0.46, 0.66),
    (1.28, 1.28, 1.28),
    (1.12, 0.96, 0.70),
    (0.80, 0.97, 1.18),
    None,
    (1.12, 0.74, 0.96),
)
_RAYS = tuple((float(np.cos(a)), float(np.sin(a))) for a in np.arange(8) * np.pi / 4)


def _each(
    pen: Pen, kinds: Codes, table: Mapping[str, Strokes], colour: Floats | float = 1.0
) -> None:
    for k, strokes in enumerate(table.values()):
        chosen = pen.where(kinds == k)
        for shape, paint in strokes:
            chosen(shape, paint * colour if isinstance(paint, float) else paint)
