"""Random changes of images: crops, mirror images and colours, crop noise, and Fourier mixing (SSA-CLR, 4.3).

Every image gets the same ones for the same generator, in any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from vldebias.errors import InvalidInputError, need
from vldebias.training.pairs import check_rate

if TYPE_CHECKING:
    from PIL import Image

Augment = Callable[["Image.Image", torch.Generator], Tensor]
"""RGB image -> (3, h, w), as the image tower reads it; all its randomness must be the generator's."""

RATIO = (3 / 4, 4 / 3)  # width to height of a crop
JITTER = (0.8, 0.8, 0.8, 0.2)  # brightness, contrast, saturation, hue at strength 1 (SimCLR, appendix A)
JITTER_SHARE = 0.8  # of the images whose colours change at all
PATCH = 0.2  # of each side, what crop noise keeps


@dataclass(frozen=True)
class CropNoise:
    """Crops an image to a fifth of its height and width, and enlarges that, with probability eta (thesis 5.3.1).

    The source says "1/5 of their original size" after all other augmentation; size is read as that of the sides, since
    a patch of a fifth of the area still shows most objects.

    eta: noise rate in [0, 1].
    """

    eta: float

    def __post_init__(self) -> None:
        check_rate(self.eta)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (b, 3, h, w) -> a copy with some of them cropped; all randomness is the generator's."""
        b, _, h, w = images.shape
        draws = torch.rand(b, 3, generator=generator)
        chosen = torch.nonzero(draws[:, 0] < self.eta).squeeze(1)
        if not len(chosen):
            return images.clone()
        height, width = max(1, round(h * PATCH)), max(1, round(w * PATCH))
        first = (draws[chosen, 1:] * torch.tensor([h - height + 1, w - width + 1])).long()
        y = (first[:, :1].clamp(max=h - height) + torch.arange(height)).to(images.device)
        x = (first[:, 1:].clamp(max=w - width) + torch.arange(width)).to(images.device)
        chosen = chosen.to(images.device)
        patches = images[chosen[:, None, None], :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)
        return images.index_copy(0, chosen, F.interpolate(patches, (h, w), mode="bilinear", align_corners=False))


@dataclass(frozen=True)
class Augmentation:
    """Crop, flip, colours, in this order, then the tower's size, mean and std, then crop noise.

    size: (h, w). mean, std: of the channels, as the tower was trained.
    crop: (smallest, largest) share of the area that is kept; its shape varies within `RATIO`. Nearly all by default, as
        open_clip does: a caption may say left, red or both.
    flip, grayscale: probability of the mirror image and of losing the colour.
    jitter: strength of the change of colours, 0 for none, SimCLR's 1 or less.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: tuple[float, float] = (0.9, 1.0)
    flip: float = 0.0
    jitter: float = 0.0
    grayscale: float = 0.0
    noise: CropNoise | None = None

    def __call__(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        """RGB image -> (3, h, w)."""
        InterpolationMode = need("torchvision.transforms").InterpolationMode
        T = need("torchvision.transforms.v2.functional")

        top, left, height, width = crop_box(image.height, image.width, self.crop, generator)
        image = T.resized_crop(image, top, left, height, width, list(self.size), InterpolationMode.BICUBIC)
        if _chance(self.flip, generator):
            image = T.horizontal_flip(image)
        if self.jitter and _chance(JITTER_SHARE, generator):
            adjust = (T.adjust_brightness, T.adjust_contrast, T.adjust_saturation, T.adjust_hue)
            reach = [self.jitter * full for full in JITTER]
            middle = (1.0, 1.0, 1.0, 0.0)
            factors = [_uniform(m - r, m + r, generator) for m, r in zip(middle, reach, strict=True)]
            for which in torch.randperm(len(adjust), generator=generator).tolist():
                image = adjust[which](image, factors[which])
        if _chance(self.grayscale, generator):
            image = T.rgb_to_grayscale(image, num_output_channels=3)
        pixels = T.normalize(T.pil_to_tensor(image).float() / 255, list(self.mean), list(self.std))
        return pixels if self.noise is None else self.noise(pixels[None], generator)[0]


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
            top, left = (int(torch.randint(last + 1, (), generator=generator)) for last in (height - h, width - w))
            return top, left, h, w
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, max(h, 1), max(w, 1)


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


def _chance(probability: float, generator: torch.Generator) -> bool:
    """One draw, whatever the probability, so that what is drawn next does not depend on it."""
    return _uniform(0, 1, generator) < probability


@torch.no_grad()
def most_similar(features: Tensor, source: Tensor | None = None) -> Tensor:
    """(b,) index of the row of largest cosine with each row of `features` (b, d), other than itself.

    source: (b,) integers, which image each row shows; rows of one image are then no partners either.

    Raises:
        InvalidInputError: fewer than 2 rows, or rows of one image alone.
    """
    if features.ndim != 2 or len(features) < 2:
        raise InvalidInputError(f"features: expected (b, d) with b >= 2, got {tuple(features.shape)}")
    if source is not None and bool((source == source[0]).all()):
        raise InvalidInputError(f"source: expected rows of two images or more, got {len(source)} of one")
    with torch.autocast(features.device.type, enabled=False):
        rows = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)
        cosines = (rows @ rows.T).fill_diagonal_(-torch.inf)
        if source is not None:
            cosines[source[:, None] == source] = -torch.inf
        return cosines.argmax(dim=1)


@torch.no_grad()
def mix_amplitudes(images: Tensor, partner: Tensor, weight: Tensor) -> Tensor:
    """Inverse transform of ((1 - w) A + w A') e^{i P}, with A' of the partner, per channel and frequency.

    The phase holds most of the foreground, the amplitude most of the background, which moves within a likely class.

    A is the amplitude and P the phase of the image's two-dimensional Fourier transform, in float32 at least, also under
    autocast; the phase of amplitude 0 is 0. The images come back in their own type, not clamped, as in the paper.

    Args:
        images: (b, c, h, w).
        partner: (b,) integers, which image of the batch each is mixed with.
        weight: (b,) w in [0, 1]; 0 changes nothing, 1 takes the partner's amplitude.
    """
    with torch.autocast(images.device.type, enabled=False):
        spectrum = torch.fft.rfft2(images.to(torch.promote_types(images.dtype, torch.float32)))
        amplitude = spectrum.abs()
        w = weight.to(amplitude)[:, None, None, None]
        mixed = torch.lerp(amplitude, amplitude[partner], w)
        phase = torch.where(amplitude > 0, spectrum / amplitude, 1.0)
        return torch.fft.irfft2(mixed * phase, s=images.shape[-2:]).to(images.dtype)
