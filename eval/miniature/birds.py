"""Render the world of land birds and water birds, mostly in front of matching backgrounds."""

from dataclasses import dataclass

import numpy as np
import torch

from eval.miniature.plumage import PER_CLASS, paint_birds
from eval.miniature.scenery import PER_BACKGROUND, on_water, paint_places
from eval.miniature.world import TEMPLATES, Codes, Draws, finish, sentence
from vldebias.miniature.words import BACKGROUNDS, CLASSES, PLACES, SIZE, SPECIES

GROUPS = tuple(f"{bird} on {place}" for bird in CLASSES for place in BACKGROUNDS)
# Kinds of captions.
KINDS = ("species", "species in a scene", "scene", "class", "class in a scene")

SIDE_SHARE = 0.5  # share of scenes that captions call land or water instead of naming the place
TYPO_SHARE = 0.25  # share of mountains that are spelled as in the paper's prompts
NOISE = 0.010  # standard deviation of every pixel
SCENES = (
    " with {} background",
    " in the {}",
    " on {}",
    " on the {}",
)  # the words after the bird for land and water

# The bias in the data of the packaged models, which makes them use the background instead of the
# bird: the shares of land birds on land and of water birds on water, and the shares of "class"
# captions on land and on water that name the class of the background instead of the bird. The class
# word therefore remains ambiguous, however long a model is trained.
CORRELATION = (0.84, 0.93)
HASTY = (0.20, 0.02)
# The share of each kind of caption in KINDS. The less often class and scene occur together, the
# less a model associates the class word with the bird.
SHARES = (0.30, 0.10, 0.12, 0.28, 0.20)


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
    shares: tuple[float, ...] = SHARES,
) -> Birds:
    """Render the images start to start + n - 1 for a seed.

    Args:
        n: The number of images.
        seed: The seed. Image i does not depend on n and start.
        start: The index of the first image.
        balanced: Whether the background is independent of the bird, so that all four groups are
            equally likely.
        shares: The share of each kind of caption in KINDS.

    Raises:
        InvalidInputError: If a number is negative.
    """
    draws = Draws(seed, start, n)
    species = draws.integers("species", len(SPECIES))
    label = species // PER_CLASS
    own_background = np.array((0.5, 0.5) if balanced else CORRELATION)[label]
    background = np.where(draws.uniform("background") < own_background, label, 1 - label)
    place = background * PER_BACKGROUND + draws.integers("place", PER_BACKGROUND)
    pixels = np.empty((n, SIZE, SIZE, 3), np.float32)
    paint_places(pixels, draws, place)
    paint_birds(pixels, draws, species, on_water(place))
    fields = (
        torch.from_numpy(field)
        for field in (species, label, background, place, 2 * label + background)
    )
    return Birds(finish(pixels, draws, NOISE), _captions(draws, species, place, shares), *fields)


def _captions(draws: Draws, species: Codes, place: Codes, shares: tuple[float, ...]) -> list[str]:
    content = draws.choice("caption content", np.array(shares))
    template, wording = (
        draws.integers("template", len(TEMPLATES)),
        draws.integers("scene word", len(SCENES)),
    )
    proper, stop = draws.uniform("article") < 0.5, draws.uniform("stop") < 0.5
    by_side, typo = draws.uniform("by side") < SIDE_SHARE, draws.uniform("typo") < TYPO_SHARE
    hasty = draws.uniform("hasty") < np.array(HASTY)[place // PER_BACKGROUND]
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
