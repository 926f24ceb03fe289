"""Random crops, mirror images and colours: every image gets the same ones for the same generator, in any thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from PIL import Image
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.training.noise import CropNoise

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = ["CAPTIONS", "JITTER", "JITTER_SHARE", "RATIO", "VIEWS", "Augment", "Augmentation", "Draws", "augmentation"]

Augment = Callable[[Image.Image, torch.Generator], Tensor]
"""RGB image -> (3, h, w), as the image tower reads it; all its randomness must be the generator's."""

RATIO = (3 / 4, 4 / 3)  # width to height of a crop
JITTER = (0.8, 0.8, 0.8, 0.2)  # brightness, contrast, saturation, hue at strength 1 (SimCLR, appendix A)
JITTER_SHARE = 0.8  # of the images whose colours change at all


@dataclass(frozen=True)
class Draws:
    """What is drawn for an image.

    crop: (smallest, largest) share of the area that is kept; its shape varies within `RATIO`.
    flip, grayscale: probability of the mirror image and of losing the colour.
    jitter: strength of the change of colours, 0 for none, SimCLR's 1 or less.

    Raises:
        InvalidInputError: a share or probability outside [0, 1], a crop of nothing.
    """

    crop: tuple[float, float] = (0.9, 1.0)
    flip: float = 0.0
    jitter: float = 0.0
    grayscale: float = 0.0

    def __post_init__(self) -> None:
        smallest, largest = self.crop
        if not 0 < smallest <= largest <= 1:
            raise InvalidInputError(f"crop: expected 0 < smallest <= largest <= 1, got {self.crop}")
        values = {"flip": self.flip, "jitter": self.jitter, "grayscale": self.grayscale}
        outside = {name: value for name, value in values.items() if not 0 <= value <= 1}
        if outside:
            raise InvalidInputError(f"expected numbers in [0, 1], got {outside}")


CAPTIONS = Draws()
"""Fine-tuning on captions: a crop that keeps nearly all, as open_clip does; a caption may say left, red or both."""

VIEWS = Draws(crop=(0.08, 1.0), flip=0.5, jitter=1.0, grayscale=0.2)
"""Two views of an image, as SimCLR draws them (Chen et al. 2020, appendix A), without its blur of large images."""


@dataclass(frozen=True)
class Augmentation:
    """Crop, flip, colours, in this order, then the tower's size, mean and std, then crop noise.

    size: (h, w). mean, std: of the channels, as the tower was trained.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    draws: Draws = CAPTIONS
    noise: CropNoise | None = None

    def __call__(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        """RGB image -> (3, h, w)."""
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional as T

        top, left, height, width = crop_box(image.height, image.width, self.draws.crop, generator)
        image = T.resized_crop(image, top, left, height, width, list(self.size), InterpolationMode.BICUBIC)
        if _chance(self.draws.flip, generator):
            image = T.horizontal_flip(image)
        image = _coloured(image, self.draws, generator)
        pixels = T.normalize(T.pil_to_tensor(image).float() / 255, list(self.mean), list(self.std))
        return pixels if self.noise is None else self.noise(pixels[None], generator)[0]


@dataclass(frozen=True)
class _Prepared:
    """The preprocessing of evaluation, with crop noise where asked."""

    prepare: Callable[[Image.Image], Tensor]
    noise: CropNoise | None

    def __call__(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        pixels = self.prepare(image)
        return pixels if self.noise is None else self.noise(pixels[None], generator)[0]


def augmentation(
    kind: Literal["none", "captions", "views"],
    towers: Towers,
    *,
    crop: tuple[float, float] | None = None,
    flip: float | None = None,
    jitter: float | None = None,
    grayscale: float | None = None,
    noise: CropNoise | None = None,
) -> Augment:
    """The augmentation of a run.

    Args:
        kind: "captions" (see `CAPTIONS`), "views" (`VIEWS`), or "none": the towers' own preprocessing.
        towers: say what the image tower reads.
        crop, flip, jitter, grayscale: see `Draws`; by default those of the kind.
        noise: crop noise, after all else.

    Raises:
        InvalidInputError: another kind, a number outside its range, draws for "none".
    """
    given = {"crop": crop, "flip": flip, "jitter": jitter, "grayscale": grayscale}
    given = {name: value for name, value in given.items() if value is not None}
    if kind == "none":
        if given:
            raise InvalidInputError(f"augmentation none draws nothing; got {given}")
        return _Prepared(towers.prepare, noise)
    if kind not in ("captions", "views"):
        raise InvalidInputError(f"augmentation: expected none, captions or views, got {kind!r}")
    draws = replace(CAPTIONS if kind == "captions" else VIEWS, **given)  # type: ignore[arg-type]
    return Augmentation(towers.size, towers.mean, towers.std, draws, noise)


def crop_box(
    height: int, width: int, share: tuple[float, float], generator: torch.Generator
) -> tuple[int, int, int, int]:
    """(top, left, height, width) of a random crop; of an image too long for its share, the middle is taken.

    The law is that of torchvision's RandomResizedCrop: area and the logarithm of the ratio uniform, ten attempts.
    """
    for _ in range(10):
        area = height * width * _uniform(*share, generator)
        ratio = math.exp(_uniform(math.log(RATIO[0]), math.log(RATIO[1]), generator))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return _integer(height - h, generator), _integer(width - w, generator), h, w
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, max(h, 1), max(w, 1)


def _coloured(image: Image.Image, draws: Draws, generator: torch.Generator) -> Image.Image:
    from torchvision.transforms.v2 import functional as T

    if draws.jitter and _chance(JITTER_SHARE, generator):
        adjust = (T.adjust_brightness, T.adjust_contrast, T.adjust_saturation, T.adjust_hue)
        reach = [draws.jitter * full for full in JITTER]
        middle = (1.0, 1.0, 1.0, 0.0)
        factors = [_uniform(m - r, m + r, generator) for m, r in zip(middle, reach, strict=True)]
        for which in torch.randperm(len(adjust), generator=generator).tolist():
            image = adjust[which](image, factors[which])
    if _chance(draws.grayscale, generator):
        image = T.rgb_to_grayscale(image, num_output_channels=3)
    return image


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


def _integer(last: int, generator: torch.Generator) -> int:
    return int(torch.randint(last + 1, (), generator=generator))


def _chance(probability: float, generator: torch.Generator) -> bool:
    """One draw, whatever the probability, so that what is drawn next does not depend on it."""
    return _uniform(0, 1, generator) < probability
