"""The world of portraits: cartoon people whose profession goes with their gender presentation, tone and age."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.miniature import people
from vldebias.miniature.hashing import Draws
from vldebias.miniature.people import (
    AGES,
    CONCEPTS,
    GENDERS,
    HAIRS,
    PROFESSIONS,
    TEST_PROFESSIONS,
    TONES,
    TRAIN_PROFESSIONS,
)
from vldebias.miniature.portrait_captions import CAPTION_SHARES, GENDER_STATED, write_captions
from vldebias.miniature.portrait_painter import Looks, paint

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
    return Portraits(paint(draws, looks), write_captions(draws, looks), *fields)


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
    shares = {
        "gender": (GENDERS, _gender_shares(profession)),
        "tone": (TONES, people.tone_shares(profession)),
        "age": (AGES, _age_shares(profession)),
    }
    drawn = {
        slot: _attribute(draws, slot, names, np.ones(len(names)) if balanced else weights, fixed.get(slot))
        for slot, (names, weights) in shares.items()
    }
    return Looks(profession, **drawn, hair=draws.choice("hair", _HAIR_SHARES[drawn["gender"]]))


def _gender_shares(profession: NDArray[np.int64]) -> NDArray[np.float64]:
    male = people.MALE_SHARE[profession]
    return np.stack([male, 1 - male], axis=1)


def _age_shares(profession: NDArray[np.int64]) -> NDArray[np.float64]:
    old = people.OLD_SHARE[profession]
    return np.stack([1 - old, old], axis=1)


def _attribute(
    draws: Draws, slot: str, names: Sequence[str], weights: NDArray[np.float64], fixed: str | None
) -> NDArray[np.int64]:
    if fixed is not None:
        return np.full(draws.n, _index(slot, fixed, names))
    return draws.choice(slot, weights)


def _index(kind: str, name: str, names: Sequence[str]) -> int:
    lowered = name.lower()
    if lowered not in names:
        raise InvalidInputError(f"unknown {kind} {name!r}; expected one of: {', '.join(names)}")
    return names.index(lowered)
