"""Render the world of land birds and water birds, mostly in front of matching backgrounds."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from eval.miniature.plumage import PER_CLASS, paint_birds
from eval.miniature.scenery import PER_BACKGROUND, on_water, paint_places
from eval.miniature.world import TEMPLATES, Codes, Draws, finish, sentence
from vldebias.errors import InvalidInputError
from vldebias.miniature.words import BACKGROUNDS, CLASSES, PLACES, SIZE, SPECIES

__all__ = [
    "BACKGROUNDS",
    "CLASSES",
    "KINDS",
    "LEAN",
    "PLACES",
    "SPECIES",
    "Birds",
    "Lean",
    "captions",
    "sample",
]

GROUPS = tuple(f"{bird} on {place}" for bird in CLASSES for place in BACKGROUNDS)
# Kinds of captions.
KINDS = ("species", "species in a scene", "scene", "class", "class in a scene")

SIDE_SHARE = 0.5  # share of scenes that captions call land or water instead of naming the place
TYPO_SHARE = 0.25  # share of mountains that are spelled as in the paper's prompts
FOG = np.float32(0.74)
NOISE = 0.010  # standard deviation of every pixel
SCENES = (
    " with {} background",
    " in the {}",
    " on {}",
    " on the {}",
)  # the words after the bird for land and water


@dataclass(frozen=True)
class Lean:
    """The bias in the world, which makes models use the background instead of the bird.

    Attributes:
        correlation: The shares of land birds on land and of water birds on water.
        hasty: The shares of "class" captions on land and on water that name the class of the
            background instead of the bird. The class word therefore remains ambiguous, however long
            a model is trained.
        veiled: The share of images in which fog hides most of the place.
        shares: The share of each caption kind in KINDS. The less often class and scene occur
            together, the less a model associates the class word with the bird.

    Raises:
        InvalidInputError: If the number of shares is wrong, if a share is outside of [0, 1], or if
            the caption shares do not sum to 1.
    """

    correlation: tuple[float, float] = (0.84, 0.93)
    hasty: tuple[float, float] = (0.20, 0.02)
    shares: tuple[float, float, float, float, float] = (0.30, 0.10, 0.12, 0.28, 0.20)
    veiled: float = 0.0

    def __post_init__(self) -> None:
        for name, count in (
            ("correlation", len(CLASSES)),
            ("hasty", len(BACKGROUNDS)),
            ("shares", len(KINDS)),
        ):
            values = getattr(self, name)
            if len(values) != count or not all(0 <= value <= 1 for value in values):
                raise InvalidInputError(f"{name} must be {count} numbers in [0, 1], got {values}")
        if not 0 <= self.veiled <= 1:
            raise InvalidInputError(f"veiled must be a number in [0, 1], got {self.veiled}")
        if abs(sum(self.shares) - 1) > 1e-6:
            raise InvalidInputError(f"shares must sum to 1, got {self.shares}")


LEAN = Lean()  # the bias in the data of the packaged models


@dataclass(frozen=True)
class Birds:
    """Images (n, 3, 64, 64) in [0, 1] with captions and ground truth.

    The attributes species, label, background and place are indices into SPECIES, CLASSES,
    BACKGROUNDS and PLACES, and group = 2 * label + background is an index into GROUPS.
    """

    images: torch.Tensor
    captions: list[str]
    species: torch.Tensor
    label: torch.Tensor
    background: torch.Tensor
    place: torch.Tensor
    group: torch.Tensor

    def __len__(self) -> int:
        return len(self.captions)


def sample(
    n: int,
    *,
    seed: int,
    start: int = 0,
    balanced: bool = False,
    correlation: float | None = None,
    lean: Lean = LEAN,
) -> Birds:
    """Render the images start to start + n - 1 for a seed.

    Args:
        n: The number of images.
        seed: The seed. Image i does not depend on n and start.
        start: The index of the first image.
        balanced: Whether the background is independent of the bird, so that all four groups are
            equally likely.
        correlation: The share of birds in front of their own kind of background, which replaces
            both shares in `lean`. It is ignored if `balanced` is True.
        lean: The bias of backgrounds and captions. The species does not depend on it, and neither
            does the image of a species in a place, except for fog.

    Raises:
        InvalidInputError: If a number is negative, or if the correlation is outside of [0, 1].
    """
    lean = _with_correlation(lean, 0.5 if balanced else correlation)
    draws = Draws(seed, start, n)
    species, place = _birds_in_places(draws, lean)
    pixels = np.empty((n, SIZE, SIZE, 3), np.float32)
    paint_places(pixels, draws, place)
    veiled = draws.uniform("veil") < lean.veiled
    pixels[veiled] = FOG + 0.12 * (pixels[veiled] - FOG)
    paint_birds(pixels, draws, species, on_water(place))
    label, background = species // PER_CLASS, place // PER_BACKGROUND
    fields = (
        torch.from_numpy(field)
        for field in (species, label, background, place, 2 * label + background)
    )
    return Birds(finish(pixels, draws, NOISE), _captions(draws, species, place, lean), *fields)


def captions(
    n: int,
    *,
    seed: int,
    start: int = 0,
    balanced: bool = False,
    correlation: float | None = None,
    lean: Lean = LEAN,
) -> list[str]:
    """Return the captions from `sample` for the same arguments without rendering images.

    Raises:
        InvalidInputError: If a number is negative, or if the correlation is outside of [0, 1].
    """
    lean = _with_correlation(lean, 0.5 if balanced else correlation)
    draws = Draws(seed, start, n)
    return _captions(draws, *_birds_in_places(draws, lean), lean)


def _with_correlation(lean: Lean, correlation: float | None) -> Lean:
    return lean if correlation is None else replace(lean, correlation=(correlation, correlation))


def _birds_in_places(draws: Draws, lean: Lean) -> tuple[Codes, Codes]:
    """Return the species (n,) and places (n,)."""
    species = draws.integers("species", len(SPECIES))
    label = species // PER_CLASS
    is_own_background = draws.uniform("background") < np.array(lean.correlation)[label]
    background = np.where(is_own_background, label, 1 - label)
    return species, background * PER_BACKGROUND + draws.integers("place", PER_BACKGROUND)


def _captions(draws: Draws, species: Codes, place: Codes, lean: Lean) -> list[str]:
    content = draws.choice("caption content", np.array(lean.shares))
    template, wording = (
        draws.integers("template", len(TEMPLATES)),
        draws.integers("scene word", len(SCENES)),
    )
    proper, stop = draws.uniform("article") < 0.5, draws.uniform("stop") < 0.5
    by_side, typo = draws.uniform("by side") < SIDE_SHARE, draws.uniform("typo") < TYPO_SHARE
    hasty = draws.uniform("hasty") < np.array(lean.hasty)[place // PER_BACKGROUND]
    written = []
    for i in range(draws.n):
        kind, side = KINDS[content[i]], place[i] // PER_BACKGROUND
        text = CLASSES[species[i] // PER_CLASS] if kind.startswith("class") else SPECIES[species[i]]
        if kind == "class" and hasty[i]:
            text = CLASSES[side]
        elif kind == "scene":
            text = f"{BACKGROUNDS[side]} background" if by_side[i] else PLACES[place[i]]
        elif kind.endswith("in a scene"):
            text += (
                SCENES[wording[i]].format(BACKGROUNDS[side])
                if by_side[i]
                else f" in the {PLACES[place[i]]}"
            )
        text = text.replace("mountain", "moutain") if typo[i] else text
        written.append(sentence(text, template[i], proper=bool(proper[i]), stop=bool(stop[i])))
    return written
