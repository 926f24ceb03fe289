"""Define the colours and shapes of bird species."""

import numpy as np
from numpy.typing import NDArray

from eval.miniature.pen import Pen, above, box, line, oval, polygon
from eval.miniature.world import Codes, Draws, Floats, colours
from vldebias.miniature.words import SPECIES

PER_CLASS = len(SPECIES) // 2

PARTS = ("body", "head", "wing", "breast", "beak")
_COLOURS = {
    "white": (0.95, 0.95, 0.94),
    "grey": (0.62, 0.64, 0.67),
    "slate": (0.38, 0.45, 0.56),
    "black": (0.10, 0.10, 0.12),
    "brown": (0.46, 0.30, 0.17),
    "buff": (0.84, 0.70, 0.48),
    "rust": (0.72, 0.34, 0.14),
    "wine": (0.48, 0.12, 0.20),
    "red": (0.86, 0.15, 0.13),
    "orange": (0.96, 0.56, 0.12),
    "yellow": (0.96, 0.84, 0.20),
    "olive": (0.50, 0.54, 0.20),
    "green": (0.12, 0.45, 0.24),
    "mint": (0.50, 0.85, 0.65),
    "teal": (0.10, 0.58, 0.60),
    "blue": (0.20, 0.42, 0.86),
    "navy": (0.14, 0.17, 0.42),
    "violet": (0.48, 0.28, 0.66),
    "pink": (0.97, 0.58, 0.68),
}
# Well-known species have natural colours, in the order of PARTS.
_TRUE = {
    "robin": "brown brown brown red black",
    "sparrow": "buff brown brown white black",
    "finch": "yellow black black yellow orange",
    "cardinal": "red red wine red orange",
    "crow": "black black black black black",
    "raven": "black navy violet black black",
    "magpie": "black black blue white black",
    "jay": "blue blue slate white black",
    "starling": "black green navy violet yellow",
    "oriole": "orange black black orange grey",
    "woodpecker": "black red white white grey",
    "swallow": "navy navy navy orange black",
    "bunting": "white white grey white orange",
    "gull": "white white grey white yellow",
    "duck": "brown buff brown buff orange",
    "pelican": "white white white yellow orange",
    "albatross": "grey white black white orange",
    "cormorant": "black black brown black yellow",
    "heron": "slate grey slate white orange",
    "egret": "white white white white black",
    "swan": "white white white white orange",
    "goose": "grey grey brown white orange",
    "puffin": "black white black white red",
    "penguin": "black black black white yellow",
    "mallard": "grey green grey brown yellow",
    "stork": "white white black white red",
    "flamingo": "pink pink pink pink black",
    "ibis": "red red red red pink",
}
# The others have random colours, which are independent of the class.
_SHUFFLE = "deal 502"  # the seed, which determines the colours
_BEAKS = ("orange", "black", "yellow", "grey", "red")
_CRESTED = ("cardinal", "jay", "wren", "cuckoo", "egret", "grebe", "merganser")
_LONG_NECKED = (
    "heron",
    "egret",
    "swan",
    "goose",
    "stork",
    "flamingo",
    "ibis",
    "cormorant",
    "loon",
    "grebe",
)


def _assigned_colours(species: str) -> tuple[str, ...]:
    """Return random colours of the parts, in which the head differs from the body."""
    draws, names = Draws(0, 0, 1), list(_COLOURS)
    body, step, wing, breast = (
        int(v) for v in draws.bits(f"{_SHUFFLE} {species}", 4)[0] >> np.uint64(8)
    )
    head = body + 1 + step % (len(names) - 1)
    beak = _BEAKS[int(draws.integers(f"{_SHUFFLE} beak {species}", len(_BEAKS))[0])]
    return (*(names[k % len(names)] for k in (body, head, wing, breast)), beak)


# Red, green and blue (species, parts, 3).
PLUMAGE: Floats = np.array(
    [
        [_COLOURS[name] for name in (_TRUE[s].split() if s in _TRUE else _assigned_colours(s))]
        for s in SPECIES
    ],
    np.float32,
)

_LEGS = colours(0.80, 0.50, 0.18)
_WHITE, _PUPIL = colours(0.97, 0.97, 0.97), colours(0.06, 0.06, 0.06)
_FOAM = colours(0.86, 0.94, 0.98)
_WATERLINE = 0.075


def paint_birds(pixels: Floats, draws: Draws, species: Codes, on_water: NDArray[np.bool_]) -> None:
    """Paint a bird of the given species (n,), on land or water, on images (n, size, size, 3)."""
    flip = np.where(draws.uniform("flip") < 0.5, -1, 1).astype(np.float32)
    x, y = 0.5 + flip * draws.uniform("bird x", -0.10, 0.04), draws.uniform("bird y", 0.58, 0.66)
    pen = Pen(pixels, x, y, scale=draws.uniform("size", 1.05, 1.35), flip=flip)
    shade = draws.uniforms("plumage", 3 * len(PARTS), -0.05, 0.05).reshape(-1, len(PARTS), 3)
    plumage = np.clip(PLUMAGE[species] + shade, 0, 1)
    swimmer = species >= PER_CLASS
    _paint_perching(pen.where(~swimmer), plumage, species, on_water)
    _paint_swimming(pen.where(swimmer), plumage, species, on_water)


def _paint_perching(pen: Pen, plumage: Floats, species: Codes, on_water: NDArray[np.bool_]) -> None:
    """Paint a round bird on thin legs, with a short beak and a raised tail."""
    body, head, wing, breast, beak = (plumage[:, k] for k in range(len(PARTS)))
    legs = line(-0.02, 0.11, -0.02, 0.205, 0.018) | line(0.035, 0.11, 0.035, 0.205, 0.018)
    toes = line(-0.03, 0.205, 0.01, 0.205, 0.016) | line(0.025, 0.205, 0.065, 0.205, 0.016)
    pen(legs | toes, _LEGS)
    pen.where(on_water)(line(-0.10, 0.21, 0.13, 0.21, 0.018), _FOAM)
    pen(polygon((-0.28, -0.09), (-0.24, -0.14), (-0.08, -0.03), (-0.08, 0.06)), wing * 0.85)
    crest = polygon((0.05, -0.29), (0.16, -0.18), (0.06, -0.13))
    pen.where(_is_one_of(species, _CRESTED))(crest, head)
    pen(oval(0, 0, 0.163, 0.138) | oval(0.115, -0.12, 0.095), body * 0.6)  # a darker outline
    pen(oval(0, 0, 0.150, 0.125), body)
    pen(oval(0.065, 0.035, 0.080, 0.080), breast)
    pen(oval(-0.05, -0.005, 0.098, 0.060), wing * 0.9)
    pen(oval(0.115, -0.12, 0.083), head)
    pen(polygon((0.185, -0.150), (0.265, -0.110), (0.185, -0.080)), beak)
    _paint_eye(pen, 0.135, -0.135)


def _paint_swimming(pen: Pen, plumage: Floats, species: Codes, on_water: NDArray[np.bool_]) -> None:
    """Paint a long, low bird with a flat beak and a neck, and with feet on land or a ripple."""
    body, head, wing, breast, beak = (plumage[:, k] for k in range(len(PARTS)))
    afloat, ashore = pen.where(on_water), pen.where(~on_water)
    legs = line(-0.03, 0.08, -0.03, 0.17, 0.022) | line(0.04, 0.08, 0.04, 0.17, 0.022)
    ashore(legs | oval(-0.01, 0.175, 0.04, 0.016) | oval(0.06, 0.175, 0.04, 0.016), _LEGS)
    pen(polygon((-0.29, -0.10), (-0.14, -0.06), (-0.12, 0.06)), wing * 0.85)
    hull, edge = oval(0, 0.01, 0.195, 0.095), oval(0, 0.01, 0.208, 0.108)
    chest = oval(0.10, 0.035, 0.085, 0.062)
    for one, within in ((afloat, above(_WATERLINE)), (ashore, above(1.0))):
        one(edge & within, body * 0.6)
        one(hull & within, body)
        one(chest & within, breast)
    pen(oval(-0.04, -0.01, 0.120, 0.055), wing * 0.9)
    long = _is_one_of(species, _LONG_NECKED)
    crest = _is_one_of(species, _CRESTED)
    for one, top in ((pen.where(long), -0.25), (pen.where(~long), -0.155)):
        neck = line(0.135, -0.01, 0.165, top + 0.04, 0.070)
        one.where(crest)(polygon((0.09, top - 0.09), (0.18, top - 0.05), (0.13, top + 0.01)), head)
        one(neck | oval(0.175, top, 0.080, 0.070), head * 0.6)
        one(neck | oval(0.175, top, 0.072, 0.062), head)
        one(box(0.23, 0.335, top - 0.012, top + 0.026), beak)
        one.where(species == SPECIES.index("pelican"))(oval(0.29, top + 0.035, 0.075, 0.045), beak)
        bill = polygon((0.225, top - 0.055), (0.335, top + 0.005), (0.225, top + 0.055))
        one.where(species == SPECIES.index("puffin"))(bill, beak)
        _paint_eye(one, 0.19, top - 0.015)
    ripple = line(-0.25, _WATERLINE + 0.015, 0.24, _WATERLINE + 0.015, 0.018)
    afloat(ripple | line(-0.10, _WATERLINE + 0.055, 0.14, _WATERLINE + 0.055, 0.014), _FOAM)


def _paint_eye(pen: Pen, x: float, y: float) -> None:
    pen(oval(x, y, 0.025), _WHITE)
    pen(oval(x + 0.004, y, 0.016), _PUPIL)


def _is_one_of(species: Codes, names: tuple[str, ...]) -> NDArray[np.bool_]:
    return np.isin(species, [SPECIES.index(name) for name in names])
