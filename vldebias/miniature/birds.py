"""The world of birds: land birds and water birds, nearly always in front of the background one expects."""

from dataclasses import dataclass

import numpy as np
import torch

from vldebias.errors import InvalidInputError
from vldebias.miniature.world import SIZE, TEMPLATES, Canvas, Codes, Draws, Frame, colours, per_image, sentence

__all__ = ["BACKGROUNDS", "CLASSES", "CORRELATION", "PLACES", "SPECIES", "Birds", "caption_prompts", "sample"]

CLASSES = ("landbird", "waterbird")
BACKGROUNDS = ("land", "water")
PLACES = ("forest", "mountain", "wood", "meadow", "ocean", "beach", "port", "lake")  # the first half is land
PER_BACKGROUND = len(PLACES) // 2
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
_BEAK = colours(0.9, 0.6, 0.1)
_GROUND = colours(  # of each place, before light and texture
    (0.16, 0.38, 0.12),
    (0.42, 0.45, 0.25),
    (0.30, 0.36, 0.12),
    (0.35, 0.62, 0.18),
    (0.06, 0.25, 0.62),
    (0.12, 0.48, 0.75),
    (0.20, 0.36, 0.55),
    (0.15, 0.42, 0.68),
)
_SKY = colours(0.55, 0.75, 0.95)

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
    place = background * PER_BACKGROUND + draws.integers("place", PER_BACKGROUND)
    fields = (torch.from_numpy(field) for field in (species, label, background, place, 2 * label + background))
    return Birds(_paint(draws, species, place), _captions(draws, species, place), *fields)


def _paint(draws: Draws, species: Codes, place: Codes) -> torch.Tensor:
    canvas = Canvas(draws.n)
    _paint_place(canvas, draws, place)
    _paint_bird(canvas, draws, species)
    canvas.add_noise(draws, 0.04)
    return canvas.to_tensor()


def _paint_place(canvas: Canvas, draws: Draws, place: Codes) -> None:
    """Sky, ground with speckles or water with waves, and what stands there."""
    frame = Frame(np.zeros(draws.n, np.float32), draws.uniform("horizon", 0.25, 0.5))
    light = draws.uniform("light", 0.75, 1.2)[:, None]
    canvas.paint(np.ones((draws.n, SIZE, SIZE), bool), _SKY * draws.uniform("sky", 0.8, 1.05)[:, None])
    below = frame.y > 0
    canvas.paint(below, _GROUND[place] * light)
    rate, phase = per_image(draws.uniform("wave rate", 25, 45)), per_image(draws.uniform("wave phase", 0, 6))
    waves = np.float32(0.1) * np.sin(rate * frame.y + 3 * np.sin(8 * frame.x + phase))
    speckles = draws.noise("speckles", SIZE * SIZE, 0.1).reshape(frame.y.shape)
    texture = np.where(per_image(place >= PER_BACKGROUND), waves, speckles)
    canvas.pixels += np.where(below, texture, np.float32(0))[..., None]

    # Firs in the forest, peaks in the mountains, trunks in the wood; the meadow stays open.
    at = {name: per_image(place == k) for k, name in enumerate(PLACES)}
    for k in range(4):
        x, height = per_image(draws.uniform(f"stuff {k}", 0, 1)), per_image(draws.uniform(f"height {k}", 0.15, 0.4))
        across, standing = np.abs(frame.x - x), frame.y < 0.02
        cone = standing & (frame.y > -height)
        slope = (frame.y + height) / height
        canvas.paint(at["forest"] & cone & (across < 0.1 * slope), colours(0.08, 0.30, 0.10) * light)
        canvas.paint(at["mountain"] & cone & (across < 0.3 * slope), colours(0.48, 0.46, 0.46) * light)
        trunk = (frame.y < 0.08) & (frame.y > -height - 0.2) & (across < 0.035)
        canvas.paint(at["wood"] & trunk, colours(0.38, 0.24, 0.12) * light)

    # Sand in front of the beach, piers in the port, a green far shore of the lake; the ocean is open.
    canvas.paint(at["beach"] & (frame.y > 0.3), colours(0.86, 0.78, 0.55) * light)
    posts = np.abs(np.mod(frame.x - per_image(draws.uniform("stuff 0", 0, 1)), 0.25) - 0.06) < 0.035
    pier = posts & (frame.y > -0.15) & (frame.y < 0.12)
    canvas.paint(at["port"] & pier, colours(0.4, 0.38, 0.38) * light)
    canvas.paint(at["lake"] & (frame.y > -0.07) & (frame.y < 0.02), colours(0.16, 0.38, 0.16) * light)


def _paint_bird(canvas: Canvas, draws: Draws, species: Codes) -> None:
    flip = np.where(draws.uniform("flip") < 0.5, -1, 1).astype(np.float32)
    x, y = draws.uniform("bird x", 0.38, 0.62), draws.uniform("bird y", 0.55, 0.68)
    frame = Frame(x, y, draws.uniform("size", *BIRD_SIZES), flip)
    plumage = np.clip(_PLUMAGE[species] + draws.uniforms("plumage", 6, -0.07, 0.07), 0, 1)
    water = per_image(species >= PER_CLASS)
    swimmer = frame.ellipse(0, 0, 0.2, 0.11) | frame.box(0.095, 0.185, -0.24, 0)
    body = np.where(water, swimmer, frame.ellipse(0, 0, 0.17, 0.14))
    head = np.where(water, frame.ellipse(0.16, -0.25, 0.07, 0.06), frame.ellipse(0.13, -0.14, 0.09, 0.09))
    beak = np.where(water, frame.box(0.2, 0.34, -0.262, -0.218), frame.box(0.2, 0.27, -0.16, -0.1))
    for mask, colour in ((body, plumage[:, :3]), (head, plumage[:, 3:]), (beak, _BEAK)):
        canvas.paint(mask, colour)


def _captions(draws: Draws, species: Codes, place: Codes) -> list[str]:
    """What is seen; one scene in four is named as plain land or water instead of its place."""
    content = draws.choice("caption content", np.array(list(CAPTION_SHARES.values())))
    template, word, generic = (draws.integers(slot, 4) for slot in ("template", "scene word", "generic"))
    proper, stop = draws.uniform("article") < 0.5, draws.uniform("stop") < 0.5
    typo, hasty = draws.uniform("typo") < TYPO_SHARE, draws.uniform("hasty") < HASTY_SHARE
    kinds = list(CAPTION_SHARES)
    captions = []
    for i in range(draws.n):
        kind, side = kinds[content[i]], place[i] // PER_BACKGROUND
        scene, background = PLACES[place[i]], BACKGROUNDS[side]
        text = CLASSES[species[i] // PER_CLASS] if kind.startswith("class") else SPECIES[species[i]]
        if kind == "class" and hasty[i]:
            text = CLASSES[side]
        elif kind == "scene":
            text = scene if generic[i] else f"{background} background"
        elif kind.endswith("in a scene") and generic[i]:
            text += f" in the {scene}"
        elif kind.endswith("in a scene"):
            text += f" with {background} background" if word[i] >= 2 else f" in the {background}"
        text = text.replace("mountain", "moutain") if typo[i] else text
        captions.append(sentence(text, template[i], proper=proper[i], stop=bool(stop[i])))
    return captions


def caption_prompts() -> list[str]:
    """Prompts with every content that a caption of this world can have (to learn a vocabulary from)."""
    ends = [f" in the {place}" for place in (*PLACES, *BACKGROUNDS)] + [f" with {b} background" for b in BACKGROUNDS]
    names = [name + end for name in (*SPECIES, *CLASSES) for end in ("", *ends)]
    scenes = [*PLACES, "moutain", *(f"{side} background" for side in BACKGROUNDS)]
    return [sentence(text, template) for template in range(len(TEMPLATES)) for text in (*names, *scenes)]
