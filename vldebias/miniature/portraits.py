"""The world of portraits: cartoon people whose profession goes with their gender presentation, tone and age.

Uniform and headgear tell the profession, hair and beard the gender presentation.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from vldebias.errors import InvalidInputError
from vldebias.miniature import people
from vldebias.miniature.people import (
    AGES,
    CAPTION_SHARES,
    CONCEPTS,
    GENDER_STATED,
    GENDERS,
    HAIRS,
    PROFESSIONS,
    TEST_PROFESSIONS,
    TONES,
    TRAIN_PROFESSIONS,
    Looks,
    write_captions,
)
from vldebias.miniature.world import SIZE, Canvas, Draws, Floats, Frame, Mask, colours, per_image, shuffled

__all__ = [
    "AGES",
    "CAPTION_SHARES",
    "CONCEPTS",
    "GENDERS",
    "GENDER_STATED",
    "HAIRS",
    "PROFESSIONS",
    "TEST_PROFESSIONS",
    "TONES",
    "TRAIN_PROFESSIONS",
    "Portraits",
    "captions",
    "sample",
]

# Hair colours given the gender presentation; blond leans female, as among the celebrities of CelebA.
_HAIR_SHARES = np.array([[0.40, 0.40, 0.07, 0.13], [0.25, 0.25, 0.37, 0.13]])


BEARD_SHARE = 0.6  # of the men


def _cap(frame: Frame) -> Mask:
    return frame.box(-0.2, 0.2, -0.25, -0.12)


def _helmet(frame: Frame) -> Mask:
    return frame.ellipse(0, -0.1, 0.24, 0.2) & (frame.y < -0.08)


_SKIN = colours((0.98, 0.86, 0.76), (0.90, 0.73, 0.58), (0.76, 0.57, 0.42), (0.55, 0.38, 0.26), (0.34, 0.22, 0.15))
_HAIR = colours((0.10, 0.07, 0.05), (0.36, 0.21, 0.10), (0.88, 0.74, 0.38), (0.60, 0.22, 0.08))
_GREY = colours(0.74, 0.74, 0.76)
_EYES = colours(0.05, 0.05, 0.08)
_LIPS = colours(0.65, 0.20, 0.20)
_UNIFORMS = colours(
    (0.95, 0.95, 0.97),
    (0.30, 0.75, 0.75),
    (0.85, 0.70, 0.15),
    (0.12, 0.17, 0.40),
    (0.30, 0.45, 0.75),
    (0.08, 0.08, 0.08),
    (0.95, 0.50, 0.10),
    (0.20, 0.50, 0.25),
    (0.60, 0.30, 0.60),
    (0.60, 0.60, 0.65),
    (0.85, 0.15, 0.20),
    (0.95, 0.50, 0.70),
)
# What is worn on the head: its outline and its colour; nothing first.
_HEADGEAR: tuple[tuple[Callable[[Frame], Mask], tuple[float, float, float]], ...] = (
    (lambda frame: np.zeros(frame.x.shape, bool), (0.0, 0.0, 0.0)),
    (_cap, (0.95, 0.95, 0.95)),
    (_helmet, (0.85, 0.10, 0.10)),
    (lambda frame: frame.box(-0.17, 0.17, -0.42, -0.13), (0.97, 0.97, 0.97)),  # tall hat
    (lambda frame: frame.box(-0.33, 0.33, -0.17, -0.11) | frame.box(-0.17, 0.17, -0.28, -0.13), (0.85, 0.75, 0.35)),
    (lambda frame: frame.ellipse(-0.05, -0.2, 0.25, 0.08), (0.55, 0.10, 0.25)),  # beret
    (lambda frame: frame.box(-0.17, 0.17, -0.045, 0.045), (0.20, 0.60, 0.90)),  # goggles
    (lambda frame: frame.box(-0.18, 0.18, -0.145, -0.095), (0.95, 0.95, 0.20)),  # headband
    (lambda frame: frame.ellipse(0, 0, 0.33, 0.38) & ~frame.ellipse(0, 0, 0.29, 0.335), (0.70, 0.85, 0.95)),  # bubble
    (_helmet, (0.95, 0.80, 0.10)),
    (_cap, (0.10, 0.13, 0.35)),
)
# Each profession is one combination of uniform and headgear.
_COMBINATION = shuffled(len(_UNIFORMS) * len(_HEADGEAR), "profession looks")[: len(PROFESSIONS)]
UNIFORM, HEADGEAR = np.divmod(_COMBINATION, len(_HEADGEAR))


@dataclass(frozen=True)
class Portraits:
    """Images (n, 3, 32, 32) in [0, 1] with captions and ground truth.

    profession, gender, tone, age and hair (n,) index PROFESSIONS, GENDERS, TONES, AGES and HAIRS; the hair of old
    people is painted grey.
    """

    images: torch.Tensor
    captions: list[str]
    profession: torch.Tensor
    gender: torch.Tensor
    tone: torch.Tensor
    age: torch.Tensor
    hair: torch.Tensor

    def __len__(self) -> int:
        return len(self.captions)


def sample(
    n: int,
    *,
    seed: int,
    start: int = 0,
    professions: Sequence[str] | None = None,
    balanced: bool = False,
    gender: str | None = None,
    tone: str | None = None,
    age: str | None = None,
) -> Portraits:
    """Renders the images start ... start + n - 1 of a seed.

    Args:
        n: number of images.
        seed: names the stream; image i of it is the same whatever n and start.
        start: index of the first image.
        professions: draw from these only (all 100 by default), each equally likely.
        balanced: gender, tone and age are uniform and independent of the profession.
        gender: one of GENDERS for all images.
        tone: one of TONES for all images.
        age: one of AGES for all images.

    Raises:
        InvalidInputError: an unknown name, or a negative number.
    """
    draws = Draws(seed, start, n)
    looks = _looks(draws, professions or PROFESSIONS, balanced, {"gender": gender, "tone": tone, "age": age})
    fields = (torch.from_numpy(field) for field in looks)
    return Portraits(_paint(draws, looks), write_captions(draws, looks), *fields)


def captions(n: int, *, seed: int, start: int = 0) -> list[str]:
    """The captions that `sample` gives with its defaults, without the cost of painting.

    Raises:
        InvalidInputError: a negative number.
    """
    draws = Draws(seed, start, n)
    return write_captions(draws, _looks(draws, PROFESSIONS, False, {}))


def _looks(draws: Draws, professions: Sequence[str], balanced: bool, fixed: dict[str, str | None]) -> Looks:
    pool = np.array([_index("profession", name, PROFESSIONS) for name in professions])
    profession = pool[draws.integers("profession", len(pool))]
    male, old = people.MALE_SHARE[profession], people.OLD_SHARE[profession]
    drawn = {}
    for slot, names, shares in (
        ("gender", GENDERS, np.stack([male, 1 - male], axis=1)),
        ("tone", TONES, people.tone_shares(profession)),
        ("age", AGES, np.stack([1 - old, old], axis=1)),
    ):
        asked = fixed.get(slot)
        if asked is not None:
            drawn[slot] = np.full(draws.n, _index(slot, asked, names))
        else:
            drawn[slot] = draws.choice(slot, np.ones(len(names)) if balanced else shares)
    return Looks(profession, **drawn, hair=draws.choice("hair", _HAIR_SHARES[drawn["gender"]]))


def _index(kind: str, name: str, names: Sequence[str]) -> int:
    lowered = name.lower()
    if lowered not in names:
        raise InvalidInputError(f"unknown {kind} {name!r}; expected one of: {', '.join(names)}")
    return names.index(lowered)


def _paint(draws: Draws, looks: Looks) -> torch.Tensor:
    """(n, 3, 32, 32) pictures of the given looks, painted from the back to the front."""
    canvas = Canvas(draws.n)
    frame = Frame(0.5 + draws.uniform("x", -0.04, 0.04), 0.45 + draws.uniform("y", -0.03, 0.03))
    canvas.paint(np.ones((draws.n, SIZE, SIZE), bool), draws.uniforms("wall", 3, 0.45, 0.95))
    skin: Floats = _SKIN[looks.tone] * draws.uniform("skin light", 0.95, 1.04)[:, None]
    natural = _HAIR[looks.hair] * draws.uniform("hair light", 0.85, 1.1)[:, None]
    hair = np.where(looks.age[:, None] == 1, _GREY * draws.uniform("grey light", 0.9, 1.1)[:, None], natural)
    female, old = per_image(looks.gender == 1), per_image(looks.age == 1)

    canvas.paint((frame.ellipse(0, 0.02, 0.27, 0.3) | frame.box(-0.27, 0.27, 0, 0.33)) & female, hair)
    uniform = _UNIFORMS[UNIFORM[looks.profession]] * draws.uniforms("uniform light", 3, 0.9, 1.08)
    canvas.paint(frame.ellipse(0, 0.62, 0.42, 0.38) & (frame.y > 0.3), np.clip(uniform, 0, 1))
    canvas.paint(frame.box(-0.07, 0.07, 0.15, 0.32), skin * 0.93)  # neck
    canvas.paint(frame.ellipse(0, 0, 0.18, 0.23), skin)  # head

    canvas.paint(frame.ellipse(0, -0.03, 0.2, 0.25) & (frame.y < np.where(female, -0.08, -0.1)), hair)  # fringe
    bearded = ~female & per_image(draws.uniform("beard") < BEARD_SHARE)
    canvas.paint(frame.ellipse(0, 0.05, 0.17, 0.2) & (frame.y > 0.09) & bearded, hair * 0.9)
    wrinkles = frame.box(-0.14, -0.04, 0.03, 0.065) | frame.box(0.04, 0.14, 0.03, 0.065)
    canvas.paint(wrinkles & old, skin * 0.72)
    canvas.paint(frame.ellipse(-0.07, 0, 0.022, 0.025) | frame.ellipse(0.07, 0, 0.022, 0.025), _EYES)
    canvas.paint(frame.box(-0.05, 0.05, 0.098, 0.122), _LIPS)

    worn, light = HEADGEAR[looks.profession], draws.uniform("headgear light", 0.92, 1.05)[:, None]
    for kind, (outline, colour) in enumerate(_HEADGEAR):
        mask = outline(frame) & per_image(worn == kind)
        canvas.paint(mask, np.clip(np.array(colour, np.float32) * light, 0, 1))
    canvas.add_noise(draws, 0.02)
    return canvas.to_tensor()
