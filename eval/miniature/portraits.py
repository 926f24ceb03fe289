"""Render the world of portraits: cartoon people whose profession correlates with their gender
presentation, tone and age.

The dress shows the profession (see eval.miniature.dress), while hair, brows, lips and beard show
the gender presentation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from eval.miniature import everyday, garments, people
from eval.miniature.dress import Wardrobe
from eval.miniature.pen import Pen, above, below, box, line, oval, polygon
from eval.miniature.people import CONCEPTS, LIFE, Life, Looks, write_captions
from eval.miniature.world import SIZE, Codes, Draws, Floats, colours, finish
from vldebias.errors import InvalidInputError
from vldebias.miniature.words import AGES, GENDERS, PROFESSIONS, TONES

# Hair colours by gender presentation. Blond hair is more often female, as in CelebA.
_HAIR_SHARES = np.array([[0.40, 0.40, 0.07, 0.13], [0.25, 0.25, 0.37, 0.13]])

BEARD_SHARE = 0.5  # share of men with a beard

_SKIN = colours(
    (0.98, 0.86, 0.76),
    (0.90, 0.73, 0.58),
    (0.76, 0.57, 0.42),
    (0.55, 0.38, 0.26),
    (0.34, 0.22, 0.15),
)
_HAIR = colours((0.10, 0.07, 0.05), (0.36, 0.21, 0.10), (0.88, 0.74, 0.38), (0.60, 0.22, 0.08))
_GREY = colours(0.83, 0.83, 0.85)
_PUPILS = colours(0.07, 0.05, 0.08)
_LIPS = colours((0.58, 0.27, 0.25), (0.82, 0.14, 0.24))  # colours for the two gender presentations

_HEAD = oval(0, 0, 0.165, 0.205)
_EARS = oval(-0.163, 0.01, 0.028, 0.045).both


@dataclass(frozen=True)
class Portraits:
    """Images (n, 3, 64, 64) in [0, 1] with captions and ground truth.

    The attributes profession, gender, tone, age, hair and concept (n,) are indices into
    PROFESSIONS, GENDERS, TONES, AGES, HAIRS and CONCEPTS. Old people have grey hair. off_duty (n,)
    is True if the dress does not reveal the profession, and mixed (n,) if hair, face or beard match
    the other gender presentation.
    """

    images: torch.Tensor
    captions: list[str]
    profession: torch.Tensor
    gender: torch.Tensor
    tone: torch.Tensor
    age: torch.Tensor
    hair: torch.Tensor
    concept: torch.Tensor
    off_duty: torch.Tensor
    mixed: torch.Tensor

    def __len__(self) -> int:
        return len(self.captions)


def sample(
    n: int,
    *,
    seed: int,
    start: int = 0,
    professions: Sequence[str] | None = None,
    balanced: bool = False,
    life: Life = LIFE,
    shares: Mapping[str, float] | None = None,
    mixed: float = 0.0,
) -> Portraits:
    """Render the images start to start + n - 1 for a seed.

    Args:
        n: The number of images.
        seed: The seed. Image i does not depend on n and start.
        start: The index of the first image.
        professions: The professions to sample from with equal probabilities (by default, all 100).
        balanced: Whether gender, tone and age are uniform and independent of the profession.
        life: What else images show and captions mention. With STUDIO, as for the packaged pipeline,
            people wear the dress of their job in a plain room. With LIFE, as for the packaged CLIP
            model, two in five people are off duty, and all are in some place.
        mixed: The share of people whose hair, face or beard match the other gender presentation.
            The attribute gender then applies to most cues.
        shares: The shares of the kinds of captions in `people.LIFE_CAPTIONS`. If None, the shares
            in `life` are used.

    Raises:
        InvalidInputError: If a profession is unknown, or if a number is negative.
    """
    draws = Draws(seed, start, n)
    looks, scene = _looks(draws, professions or PROFESSIONS, balanced, life)
    images, odd = _paint(draws, looks, scene, mixed)
    texts = write_captions(draws, looks, scene, life, shares)
    codes = {name: torch.from_numpy(rows) for name, rows in vars(looks).items()}
    return Portraits(images, texts, **codes, mixed=torch.from_numpy(odd))


def _looks(
    draws: Draws, professions: Sequence[str], balanced: bool, life: Life
) -> tuple[Looks, everyday.Scene]:
    if unknown := sorted({*professions} - {*PROFESSIONS}):
        raise InvalidInputError(
            f"unknown professions {unknown}, expected any of: {', '.join(PROFESSIONS)}"
        )
    pool = np.array([PROFESSIONS.index(name) for name in professions])
    profession = pool[draws.integers("profession", len(pool))]
    male, old = people.MALE_SHARE[profession], people.OLD_SHARE[profession]
    drawn = {}
    for slot, names, shares in (
        ("gender", GENDERS, np.stack([male, 1 - male], axis=1)),
        ("tone", TONES, people.tone_shares(profession)),
        ("age", AGES, np.stack([1 - old, old], axis=1)),
    ):
        drawn[slot] = draws.choice(slot, np.ones(len(names)) if balanced else shares)
    shares = people.concept_shares(drawn["gender"], drawn["tone"], life.concepts)
    concept = draws.choice("concept", np.ones(len(CONCEPTS)) if balanced and life.seen else shares)
    free = draws.uniform("off duty") < life.off_duty
    hair = draws.choice("hair", _HAIR_SHARES[drawn["gender"]])
    looks = Looks(profession, **drawn, hair=hair, concept=concept, off_duty=free)
    return looks, everyday.draw_scene(draws, looks.gender, concept, len(CONCEPTS), free, life.seen)


def _paint(
    draws: Draws, looks: Looks, scene: everyday.Scene, mixed: float
) -> tuple[torch.Tensor, NDArray[np.bool_]]:
    """Return images (n, 3, 64, 64), and whether each has contradictory cues (n,)."""
    pixels = np.empty((draws.n, SIZE, SIZE, 3), np.float32)
    everyday.paint_place(pixels, draws, scene.place)
    everyday.paint_beside(pixels, draws, scene.beside)
    close, far, left, right = (scene.frame == k for k in range(len(everyday.FRAMES)))
    size = draws.uniform("size", 0.98, 1.04) * np.where(
        close, np.float32(1.22), np.where(far, np.float32(0.74), 1)
    )
    pen = Pen(
        pixels,
        x=0.5
        + draws.uniform("x", -0.03, 0.03)
        + np.float32(0.15) * (right.astype(np.float32) - left),
        y=0.425 + draws.uniform("y", -0.012, 0.012) + np.float32(0.04) * close,
        scale=size.astype(np.float32),
    )
    skin = np.clip(_SKIN[looks.tone] * draws.uniform("skin light", 0.95, 1.03)[:, None], 0, 1)
    natural = _HAIR[looks.hair] * draws.uniform("hair light", 0.85, 1.1)[:, None]
    grey = _GREY * draws.uniform("grey light", 0.95, 1.06)[:, None]
    hair = np.where(looks.age[:, None] == 1, grey, natural)
    wardrobe = Wardrobe(pen, looks.profession, draws.uniform("cloth light", 0.94, 1.04), scene)

    odd = draws.uniform("mixed") < mixed
    other = draws.integers("which is mixed", 3)
    of_hair, of_face, of_beard = (
        np.where(odd & (other == k), 1 - looks.gender, looks.gender) for k in range(3)
    )
    woman, man = pen.where(of_hair == 1), pen.where(of_hair == 0)
    style = draws.uniform("hair style")
    woman(
        oval(0, 0.0, 0.225, 0.245) | box(-0.225, 0.225, 0.0, 0.24), hair * 0.93
    )  # behind the shoulders and the neck
    woman.where(style < 0.6)(box(-0.225, 0.225, 0.1, 0.36), hair * 0.93)
    everyday.paint_style(pen, scene.style, hair, behind=True)
    pen(garments.BODY, wardrobe.cloth)
    pen(box(-0.065, 0.065, 0.12, 0.27) | oval(0, 0.27, 0.065, 0.045), skin * 0.87)  # neck
    wardrobe.garments()
    pen(_EARS, skin * 0.9)
    pen(_HEAD, skin)
    _paint_short_hair(man, style, hair)
    old = pen.where(looks.age == 1)
    old.where(of_hair == 0)(
        box(-0.198, -0.140, -0.11, 0.045).both, hair * 0.94
    )  # visible under any hat
    _paint_fringe(woman, style, hair)
    everyday.paint_style(pen, scene.style, hair, behind=False)
    beard = pen.where(of_beard == 0).where(draws.uniform("beard") < BEARD_SHARE)
    beard(
        (oval(0, 0.05, 0.168, 0.17) & below(0.07)) | box(-0.168, -0.132, -0.02, 0.09).both,
        hair * 0.92,
    )
    for lines, shade in _LINES_OF_AGE:
        old(lines, skin * shade)
    _paint_face(pen, draws, replace(looks, gender=of_face), scene.mouth, skin, hair)
    wardrobe.worn()
    scene.paint_worn(pen)
    wardrobe.things()
    scene.paint_hands(pen, wardrobe.cloth, skin)
    scene.paint_air(pixels, draws)
    return finish(pixels, draws, 0.008), odd


def _paint_fringe(pen: Pen, style: Floats, hair: Floats) -> None:
    """Paint long hair in front of the head, parted or straight, with strands at the cheeks."""
    top = oval(0, -0.025, 0.18, 0.205) & above(-0.085)
    parted = (style % 0.3) < 0.15
    pen.where(parted)(top - polygon((0.0, -0.155), (0.12, -0.07), (-0.12, -0.07)), hair)
    pen.where(~parted)(top, hair)
    pen(box(-0.22, -0.138, -0.10, 0.21).both, hair)


def _paint_short_hair(pen: Pen, style: Floats, hair: Floats) -> None:
    """Paint short hair that is close to the head, or fuller and parted at the side."""
    sides = box(-0.174, -0.143, -0.13, 0.0).both
    pen((oval(0, -0.03, 0.176, 0.20) & above(-0.10)) | sides, hair)
    pen.where(style < 0.45)(
        (oval(0.01, -0.155, 0.165, 0.095) | oval(0.09, -0.13, 0.09, 0.06)) & above(-0.075), hair
    )


# Wrinkles on the forehead and next to the eyes, in shades of the skin colour.
_LINES_OF_AGE = (
    (line(-0.055, -0.083, 0.055, -0.083, 0.012), 0.84),
    (
        (line(-0.118, 0.002, -0.14, -0.012, 0.012) | line(-0.118, 0.015, -0.14, 0.024, 0.012)).both,
        0.75,
    ),
    (line(-0.09, 0.042, -0.045, 0.046, 0.014).both, 0.8),
    (line(-0.058, 0.068, -0.088, 0.10, 0.013).both, 0.87),
)


def _paint_face(
    pen: Pen, draws: Draws, looks: Looks, mouth: Codes, skin: Floats, hair: Floats
) -> None:
    """Paint the eyes, brows, nose and one of four mouths."""
    woman, man = pen.where(looks.gender == 1), pen.where(looks.gender == 0)
    woman((oval(-0.068, -0.006, 0.045, 0.036) & above(0.0)).both, _PUPILS)  # lashes
    pen(oval(-0.068, -0.004, 0.038, 0.028).both, garments.WHITE)
    pen(oval(-0.066, -0.003, 0.0215, 0.025).both, _PUPILS)
    raised = np.where(draws.uniform("brows") < 0.5, 0, -1)
    for step in (0, -1):
        y = -0.053 + 0.012 * step
        man.where(raised == step)(line(-0.10, y + 0.004, -0.04, y, 0.026).both, hair * 0.8)
        woman.where(raised == step)(
            line(-0.10, y + 0.006, -0.042, y - 0.004, 0.015).both, hair * 0.8
        )
    pen(line(0.0, 0.02, 0.010, 0.052, 0.02), skin * 0.78)

    lips = _LIPS[looks.gender]
    full = oval(0, 0.112, 0.058, 0.026)
    smile = oval(0, 0.098, 0.075, 0.048) - oval(0, 0.078, 0.085, 0.042)
    pen.where(mouth == 0)(full, lips)
    pen.where(mouth == 1)(smile, lips)
    grin = pen.where(mouth == 2)
    grin(oval(0, 0.092, 0.075, 0.054) & below(0.094), lips)
    grin(oval(0, 0.092, 0.055, 0.03) & below(0.094), garments.WHITE)
    pen.where(mouth == 3)(line(-0.045, 0.112, 0.045, 0.108, 0.03), lips)
