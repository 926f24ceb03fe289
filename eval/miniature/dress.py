"""Define how the professions in the world of portraits are dressed.

Well-known professions have a dress that is defined by hand. The others hold or stand behind a
suitable object, which several professions share. Garments and headgear are assigned such that any
two professions differ in two things.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from eval.miniature import everyday, garments, headgear, things, tools
from eval.miniature.garments import (
    BLACK,
    BLUE,
    BROWN,
    CREAM,
    DENIM,
    GOLD,
    GREEN,
    KHAKI,
    LIME,
    NAVY,
    ORANGE,
    PINK,
    PURPLE,
    RED,
    SILVER,
    SKY,
    STEEL,
    STRAW,
    TEAL,
    WHITE,
    WINE,
    YELLOW,
)
from eval.miniature.headgear import nothing
from eval.miniature.pen import Pen
from eval.miniature.people import PROFESSIONS
from eval.miniature.world import Codes, Floats, colours, shuffled

Garment = Callable[[Pen, Floats, Floats], None]
Part = Callable[[Pen, Floats], None]


class Dress(NamedTuple):
    """A garment with the colours of its cloth and trim, headgear, and a held object."""

    garment: Garment
    cloth: Floats
    trim: Floats
    worn: Part = nothing
    worn_colour: Floats = WHITE
    thing: Part = nothing
    thing_colour: Floats = WHITE


_COAT = (garments.coat, WHITE)
_CHEQUERED = (garments.dungarees, colours(0.85, 0.28, 0.24))

_BY_HAND = {
    "astronaut": Dress(garments.space_suit, WHITE, ORANGE, headgear.space_helmet, WHITE),
    "baker": Dress(
        garments.apron,
        SKY,
        WHITE,
        headgear.flat_toque,
        WHITE,
        tools.loaf,
        colours(0.80, 0.54, 0.25),
    ),
    "barber": Dress(
        garments.scrubs, colours(0.30, 0.34, 0.42), WHITE, thing=tools.pole, thing_colour=BLACK
    ),
    "blacksmith": Dress(
        garments.apron, STEEL, BROWN, headgear.welding_mask, STEEL * 0.8, tools.hammer, STEEL
    ),
    "bricklayer": Dress(
        garments.dungarees,
        BLUE,
        STEEL,
        headgear.hard_hat,
        ORANGE,
        tools.trowel,
        colours(0.72, 0.30, 0.20),
    ),
    "bus driver": Dress(
        garments.uniform, SKY * 0.9, SILVER, headgear.driver_cap, BLUE, things.wheel, BLACK
    ),
    "butcher": Dress(garments.apron, WHITE, RED, headgear.cap, WHITE, tools.cleaver, SILVER),
    "carpenter": Dress(garments.dungarees, GREEN, BROWN, thing=tools.saw, thing_colour=SILVER),
    "chef": Dress(
        garments.chef_jacket,
        WHITE,
        RED,
        headgear.toque,
        WHITE,
        tools.ladle,
        colours(0.62, 0.40, 0.20),
    ),
    "chemist": Dress(*_COAT, YELLOW, headgear.glasses, BLACK, tools.flask, PURPLE),
    "civil engineer": Dress(
        garments.safety_vest, YELLOW, STEEL, headgear.hard_hat, WHITE, things.blueprint, BLUE
    ),
    "cleaner": Dress(garments.apron, SKY, YELLOW, headgear.bandana, PINK, tools.broom, STRAW),
    "coach": Dress(garments.track_suit, BLUE, WHITE, headgear.cap, NAVY, tools.whistle, RED),
    "construction worker": Dress(garments.safety_vest, ORANGE, DENIM, headgear.hard_hat, YELLOW),
    "dancer": Dress(
        garments.sequins, colours(0.45, 0.80, 0.85), WHITE, thing=tools.ribbon, thing_colour=PINK
    ),
    "dentist": Dress(
        garments.scrubs,
        colours(0.66, 0.90, 0.86),
        WHITE,
        headgear.head_mirror,
        SILVER,
        tools.tooth,
        TEAL,
    ),
    "detective": Dress(garments.trench, KHAKI, NAVY, headgear.fedora, BROWN, tools.lens, BROWN),
    "dj": Dress(garments.jumper, PURPLE, BLACK, headgear.headphones, BLACK),
    "doctor": Dress(*_COAT, SKY, thing=tools.stethoscope, thing_colour=BLACK),
    "driver": Dress(garments.shirt, WHITE, BLACK, headgear.cap, BLACK + 0.06, things.wheel, BROWN),
    "electrician": Dress(
        garments.dungarees, YELLOW * 0.9, DENIM, headgear.hard_hat, BLUE, things.bolt, YELLOW
    ),
    "farmer": Dress(*_CHEQUERED, DENIM, headgear.straw_hat, STRAW, tools.hay_fork, BROWN),
    "firefighter": Dress(
        garments.fire_coat,
        colours(0.50, 0.38, 0.20),
        YELLOW,
        headgear.fire_helmet,
        RED,
        tools.axe,
        RED,
    ),
    "florist": Dress(garments.apron, LIME, GREEN, thing=things.bouquet, thing_colour=PINK),
    "hairdresser": Dress(garments.apron, PINK, BLACK + 0.1, thing=tools.scissors, thing_colour=RED),
    "judge": Dress(garments.robe, BLACK, WHITE, thing=tools.gavel, thing_colour=BROWN),
    "lawyer": Dress(garments.suit, NAVY * 0.8, WINE, thing=tools.scales, thing_colour=GOLD),
    "magician": Dress(garments.tuxedo, BLACK, RED, headgear.top_hat, BLACK, tools.wand, YELLOW),
    "mechanic": Dress(
        garments.dungarees, SILVER, STEEL * 0.8, headgear.cap, NAVY, tools.wrench, STEEL * 0.6
    ),
    "musician": Dress(
        garments.stripes, NAVY, WHITE, thing=tools.guitar, thing_colour=colours(0.80, 0.45, 0.15)
    ),
    "nurse": Dress(
        garments.scrubs,
        colours(0.42, 0.68, 0.90),
        WHITE,
        headgear.nurse_cap,
        WHITE,
        tools.syringe,
        GREEN,
    ),
    "optician": Dress(*_COAT, NAVY, headgear.glasses, BLACK, things.eye_chart, BLACK),
    "painter": Dress(
        garments.smock, CREAM, WHITE, headgear.beret, WINE, tools.palette, colours(0.78, 0.56, 0.30)
    ),
    "paramedic": Dress(garments.medic, GREEN, WHITE),
    "pastry chef": Dress(
        garments.chef_jacket, PINK, WHITE, headgear.flat_toque, WHITE, things.cake, PINK
    ),
    "pediatrician": Dress(
        *_COAT, PINK, headgear.glasses, RED, things.teddy, colours(0.65, 0.43, 0.22)
    ),
    "pharmacist": Dress(*_COAT, GREEN, headgear.lanyard, GREEN, tools.pills, GREEN),
    "photographer": Dress(
        garments.shirt, STEEL, WHITE, thing=things.camera, thing_colour=BLACK + 0.06
    ),
    "pilot": Dress(garments.pilot_jacket, NAVY, GOLD, headgear.pilot_cap, WHITE),
    "plumber": Dress(*_CHEQUERED, NAVY, headgear.cap, RED, tools.wrench, STEEL),
    "police officer": Dress(
        garments.uniform, colours(0.26, 0.44, 0.78), GOLD, headgear.peaked_cap, NAVY
    ),
    "professor": Dress(
        garments.suit, BROWN, GREEN, headgear.mortarboard, BLACK, things.book, GREEN
    ),
    "receptionist": Dress(
        garments.suit, NAVY, PINK, headgear.headset, BLACK, things.clipboard, STEEL
    ),
    "sailor": Dress(garments.sailor_top, WHITE, NAVY, headgear.sailor_cap, WHITE),
    "scientist": Dress(
        *_COAT, SKY, headgear.goggles, STEEL, tools.flask, colours(0.30, 0.85, 0.35)
    ),
    "security guard": Dress(
        garments.guard_uniform, BLACK, YELLOW, headgear.guard_cap, BLACK + 0.05
    ),
    "singer": Dress(
        garments.sequins, colours(0.80, 0.10, 0.50), GOLD, thing=tools.microphone, thing_colour=GOLD
    ),
    "surgeon": Dress(
        garments.scrubs,
        colours(0.16, 0.52, 0.46),
        WHITE,
        headgear.surgeon_cap,
        colours(0.24, 0.64, 0.58),
    ),
    "surveyor": Dress(
        garments.safety_vest, LIME, NAVY, headgear.hard_hat, RED, tools.level, YELLOW
    ),
    "teacher": Dress(
        garments.pullunder, WINE, SKY, headgear.glasses, BLACK, things.blackboard, RED
    ),
    "vet": Dress(
        garments.scrubs, GREEN, WHITE, thing=things.cat, thing_colour=colours(0.88, 0.55, 0.22)
    ),
    "waiter": Dress(garments.tuxedo, BLACK, BLACK, thing=tools.tray, thing_colour=SILVER),
}

# The professions that hold each object, of which there are no more than things to wear.
_HELD: tuple[tuple[Part, Floats, str], ...] = (
    (things.screen, STEEL, "software developer, web developer, computer programmer"),
    (things.chart, GREEN, "statistician, economist, manager, consultant"),
    (things.calculator, SILVER, "accountant, clerk"),
    (things.books, ORANGE, "librarian, author, historian"),
    (tools.pencil, YELLOW, "writer, editor, designer, graphic designer"),
    (things.bubbles, BLUE, "translator, interpreter"),
    (things.clipboard, STEEL, "recruiter, researcher, counselor"),
    (tools.microphone, RED, "comedian, reporter, politician"),
    (things.newspaper, RED, "journalist"),
    (things.briefcase, BROWN, "entrepreneur, salesperson"),
    (things.house, RED, "real estate agent"),
    (things.blueprint, BLUE, "architect"),
    (things.gear, STEEL, "engineer, technician"),
    (tools.flask, PURPLE, "biologist"),
    (things.atom, YELLOW, "physicist"),
    (things.sums, GREEN * 0.6, "mathematician"),
    (things.fish, ORANGE, "marine biologist"),
    (things.heart, RED, "social worker, therapist"),
    (things.notebook, PURPLE, "psychologist"),
    (things.teddy, colours(0.65, 0.43, 0.22), "nanny"),
    (things.apple, RED, "dietitian, nutritionist"),
    (tools.brush, PINK, "makeup artist"),
    (things.video_camera, BLACK + 0.1, "videographer"),
    (things.parrot, RED, "zoologist"),
    (tools.flag, RED, "tour guide"),
    (things.mask, WHITE, "actor"),
    (things.handbag, PURPLE, "model"),
    (things.sound, NAVY, "audiologist"),
)
_GARMENTS = (
    garments.jumper,
    garments.shirt,
    garments.suit,
    garments.jacket,
    garments.stripes,
    garments.pullunder,
    garments.dots,
)
# Colours of cloth, each with a colour for the trim.
_CLOTHS = (
    (BLUE, WHITE),
    (YELLOW * 0.9, NAVY),
    (WINE, CREAM),
    (TEAL, YELLOW),
    (STEEL, SKY),
    (PINK, WINE),
    (GREEN, CREAM),
    (PURPLE, PINK),
    (ORANGE * 0.9, BLUE),
    (BROWN, SKY),
)
_TO_WEAR = (
    (nothing, WHITE),
    (headgear.glasses, BLACK),
    (headgear.scarf, ORANGE),
    (headgear.lanyard, RED),
)


def _assign_dresses() -> dict[str, Dress]:
    """Assign a dress to each of the other professions.

    Cycling through 7 garments and 10 colours at the same time repeats a pair only after 70 steps,
    and neighbors, who may hold the same object, differ in both. Professions with the same object
    wear different headgear.
    """
    garment_of_profession = {}
    number = int(shuffled(len(_GARMENTS) * len(_CLOTHS), "dress")[0])
    for group, (thing, colour, names) in enumerate(_HELD):
        order = np.roll(shuffled(len(_TO_WEAR), "worn"), group)
        for place, name in enumerate(names.split(", ")):
            cloth, trim = _CLOTHS[number * 3 % len(_CLOTHS)]
            worn, worn_colour = _TO_WEAR[order[place]]
            garment_of_profession[name] = Dress(
                _GARMENTS[number % len(_GARMENTS)], cloth, trim, worn, worn_colour, thing, colour
            )
            number += 1
    return garment_of_profession


_ASSIGNED = _assign_dresses()
DRESSES = tuple({**_ASSIGNED, **_BY_HAND}[name] for name in PROFESSIONS)
# Clothes for people off duty follow those for professions, by garment and colour of the cloth.
_TRIMS = (CREAM, NAVY, NAVY, CREAM, WHITE, PINK, WINE, BLUE, SKY, STRAW)
EVERYDAY = tuple(
    Dress(garment, everyday.PAINT[colour], trim)
    for _, garment in everyday.GARMENTS
    for colour, trim in enumerate(_TRIMS)
)
_ALL = (*DRESSES, *EVERYDAY)


class Wardrobe:
    """Paint the dress for each image's profession, one kind of part after the other.

    Args:
        pen: The pen for all images in the batch.
        profession: Indices (n,) into PROFESSIONS.
        light: Factors (n,) for the colours.
        scene: The clothes of people off duty, which replace those of the profession.
    """

    def __init__(self, pen: Pen, profession: Codes, light: Floats, scene: everyday.Scene) -> None:
        self._pen = pen
        own = len(DRESSES) + scene.garment * len(everyday.COLOURS) + scene.cloth
        self._profession = np.where(scene.garment >= 0, own, profession)
        self._light = light[:, None]
        self.cloth = self._colour(_CLOTH)

    def garments(self) -> None:
        """Paint the garments on bodies that already have the colour `cloth`."""
        kinds, trim = _GARMENT[self._profession], self._colour(_TRIM)
        for kind in np.unique(kinds):
            _GARMENT_KINDS[kind](self._pen.where(kinds == kind), self.cloth, trim)

    def worn(self) -> None:
        """Paint headgear and things worn around the neck."""
        self._parts(_WORN_KINDS, _WORN[self._profession], self._colour(_WORN_COLOUR))

    def things(self) -> None:
        """Paint the held objects."""
        self._parts(_THING_KINDS, _THING[self._profession], self._colour(_THING_COLOUR))

    def _parts(self, parts: tuple[Part, ...], kinds: Codes, colour: Floats) -> None:
        for kind in np.unique(kinds):
            parts[kind](self._pen.where(kinds == kind), colour)

    def _colour(self, table: Floats) -> Floats:
        return np.clip(table[self._profession] * self._light, 0, 1)


_GARMENT_KINDS = tuple(dict.fromkeys(dress.garment for dress in _ALL))
_WORN_KINDS = tuple(dict.fromkeys(dress.worn for dress in _ALL))
_THING_KINDS = tuple(dict.fromkeys(dress.thing for dress in _ALL))
_GARMENT = np.array([_GARMENT_KINDS.index(dress.garment) for dress in _ALL])
_WORN = np.array([_WORN_KINDS.index(dress.worn) for dress in _ALL])
_THING = np.array([_THING_KINDS.index(dress.thing) for dress in _ALL])
_CLOTH = np.stack([dress.cloth for dress in _ALL])
_TRIM = np.stack([dress.trim for dress in _ALL])
_WORN_COLOUR = np.stack([dress.worn_colour for dress in _ALL])
_THING_COLOUR = np.stack([dress.thing_colour for dress in _ALL])
