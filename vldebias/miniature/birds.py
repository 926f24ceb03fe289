"""The world of birds: land birds and water birds, nearly always in front of the background one expects."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.errors import InvalidInputError
from vldebias.miniature.canvas import Canvas, Frame
from vldebias.miniature.hashing import Draws
from vldebias.miniature.scenery import PLACES, paint_scenery
from vldebias.miniature.wording import TEMPLATES, sentence

__all__ = ["BACKGROUNDS", "CLASSES", "CORRELATION", "SPECIES", "Birds", "caption_prompts", "sample"]

CLASSES = ("landbird", "waterbird")
BACKGROUNDS = ("land", "water")
GROUPS = tuple(f"{bird} on {place}" for bird in CLASSES for place in BACKGROUNDS)
CORRELATION = 0.95  # share of birds in front of their own kind of background

_LAND = """
    robin sparrow finch wren cardinal crow raven magpie jay thrush starling oriole
    warbler woodpecker cuckoo nightingale lark swallow bunting tanager grosbeak flycatcher vireo nuthatch
"""
_WATER = """
    gull duck pelican albatross cormorant heron egret swan goose tern puffin penguin
    loon grebe mallard gannet frigatebird kittiwake auklet guillemot merganser stork flamingo ibis
"""
SPECIES = (*_LAND.split(), *_WATER.split())  # the first half lives on land
PER_CLASS = len(SPECIES) // 2
BIRD_SIZES = (1.1, 1.45)  # scale of the drawing; 1 is a body of a third of the picture

# Plumage is random, not true to nature: neither colour nor a rule over colours tells the class.
_PLUMAGE = Draws(0, 0, len(SPECIES)).uniforms("plumage", 6, 0.08, 0.95)
_BEAK = np.array([0.9, 0.6, 0.1], np.float32)

# Shares of what a caption says; the class word and the scene stay apart most of the time.
CAPTION_SHARES = {"species": 0.34, "species in a scene": 0.16, "scene": 0.14, "class": 0.30, "class in a scene": 0.06}
# Share of the writers of "class" captions who do not look at the bird: they go by the background, and are right as
# often as the two agree. So the class word keeps meaning both, however long one trains.
HASTY_SHARE = 0.4
TYPO_SHARE = 0.25  # of the mountains are spelt as in the paper's prompts


@dataclass(frozen=True)
class Birds:
    """Images (n, 3, 32, 32) in [0, 1] with captions and ground truth.

    species indexes SPECIES, label indexes CLASSES, background indexes BACKGROUNDS, place indexes PLACES and
    group = 2 * label + background indexes GROUPS.
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


def sample(n: int, *, seed: int, start: int = 0, balanced: bool = False, correlation: float = CORRELATION) -> Birds:
    """Renders the images start ... start + n - 1 of a seed.

    Args:
        n: number of images.
        seed: names the stream; image i of it is the same whatever n and start.
        start: index of the first image.
        balanced: background independent of the bird (the four groups are equally likely).
        correlation: share of birds in front of their own kind of background; ignored where balanced.

    Raises:
        InvalidInputError: a negative number, or a correlation outside [0, 1].
    """
    if not 0 <= correlation <= 1:
        raise InvalidInputError(f"correlation must lie in [0, 1], got {correlation}")
    draws = Draws(seed, start, n)
    species = draws.integers("species", len(SPECIES))
    label = species // PER_CLASS
    own = draws.uniform("background") < (0.5 if balanced else correlation)
    background = np.where(own, label, 1 - label)
    place = background * (len(PLACES) // 2) + draws.integers("place", len(PLACES) // 2)
    images = _render(draws, species, place)
    fields = (torch.from_numpy(field) for field in (species, label, background, place, 2 * label + background))
    return Birds(images, _captions(draws, species, place), *fields)


def _render(draws: Draws, species: NDArray[np.int64], place: NDArray[np.int64]) -> torch.Tensor:
    canvas = Canvas(draws.n)
    paint_scenery(canvas, draws, place)
    _paint_bird(canvas, draws, species)
    canvas.add_noise(draws, 0.04)
    return canvas.to_tensor()


def _paint_bird(canvas: Canvas, draws: Draws, species: NDArray[np.int64]) -> None:
    flip = np.where(draws.uniform("flip") < 0.5, -1, 1).astype(np.float32)
    frame = Frame(
        draws.uniform("bird x", 0.38, 0.62),
        draws.uniform("bird y", 0.55, 0.68),
        draws.uniform("size", *BIRD_SIZES),
        flip,
    )
    plumage = np.clip(_PLUMAGE[species] + draws.uniforms("plumage", 6, -0.07, 0.07), 0, 1)
    water = (species >= PER_CLASS)[:, None, None]
    swimmer = frame.ellipse(0, 0, 0.2, 0.11) | frame.box(0.095, 0.185, -0.24, 0)
    body = np.where(water, swimmer, frame.ellipse(0, 0, 0.17, 0.14))
    head = np.where(water, frame.ellipse(0.16, -0.25, 0.07, 0.06), frame.ellipse(0.13, -0.14, 0.09, 0.09))
    beak = np.where(water, frame.box(0.2, 0.34, -0.262, -0.218), frame.box(0.2, 0.27, -0.16, -0.1))
    for mask, colour in ((body, plumage[:, :3]), (head, plumage[:, 3:]), (beak, _BEAK)):
        canvas.paint(mask, colour)


def _captions(draws: Draws, species: NDArray[np.int64], place: NDArray[np.int64]) -> list[str]:
    content = draws.choice("caption content", np.array(list(CAPTION_SHARES.values())))
    template, word, generic = (draws.integers(slot, 4) for slot in ("template", "scene word", "generic"))
    proper, stop = draws.uniform("article") < 0.5, draws.uniform("stop") < 0.5
    typo, hasty = draws.uniform("typo") < TYPO_SHARE, draws.uniform("hasty") < HASTY_SHARE
    kinds = list(CAPTION_SHARES)
    captions = []
    for i in range(draws.n):
        kind = kinds[content[i]]
        text = _content(kind, int(species[i]), int(place[i]), int(word[i]), int(generic[i]))
        if kind == "class" and hasty[i]:
            text = CLASSES[place[i] // (len(PLACES) // 2)]
        text = text.replace("mountain", "moutain") if typo[i] else text
        captions.append(sentence(text, int(template[i]), proper=bool(proper[i]), stop=bool(stop[i])))
    return captions


def _content(kind: str, species: int, place: int, word: int, generic: int) -> str:
    """What a caption is about; one scene in four is named as plain land or water instead of its place."""
    side = BACKGROUNDS[place // (len(PLACES) // 2)]
    name = CLASSES[species // PER_CLASS] if kind.startswith("class") else SPECIES[species]
    if kind == "scene":
        return f"{side} background" if generic == 0 else PLACES[place]
    if not kind.endswith("in a scene"):
        return name
    if generic:
        return f"{name} in the {PLACES[place]}"
    return f"{name} with {side} background" if word >= 2 else f"{name} in the {side}"


def caption_prompts() -> list[str]:
    """Prompts with every content that a caption of this world can have (to learn a vocabulary from)."""
    ends = [f" in the {place}" for place in (*PLACES, *BACKGROUNDS)] + [f" with {b} background" for b in BACKGROUNDS]
    names = [name + end for name in (*SPECIES, *CLASSES) for end in ("", *ends)]
    scenes = [*PLACES, "moutain", *(f"{side} background" for side in BACKGROUNDS)]
    return [sentence(text, template) for template in range(len(TEMPLATES)) for text in (*names, *scenes)]
