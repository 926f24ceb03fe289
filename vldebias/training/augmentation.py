"""Augment images with crops, flips, colour changes, blur and Fourier mixing.

Fourier mixing follows SSA-CLR (Tran et al., 2023, section 4.3). torchvision's own transforms use
the global generator. Here, results only depend on the generator that is passed, in any thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from vldebias.errors import need

if TYPE_CHECKING:
    from PIL import Image

# Converts an RGB image to pixels (3, h, w), drawing all random numbers from the generator.
Augment = Callable[["Image.Image", torch.Generator], Tensor]
RATIO = (3 / 4, 4 / 3)  # Range of width / height for a crop.
# Changes of brightness, contrast, saturation and hue at strength 1 (SimCLR, Chen et al., 2020,
# appendix A).
JITTER = (0.8, 0.8, 0.8, 0.2)
JITTER_SHARE = 0.8  # share of images whose colours change
BLUR_SIGMA = (0.1, 2.0)  # Range in pixels, sampled uniformly (SimCLR, appendix A).
BLUR_KERNEL = 0.1  # kernel width as a fraction of the image height


@dataclass(frozen=True)
class Augmentation:
    """Crop, flip, recolour and blur an image, in this order, and normalise its pixels.

    Args:
        size: height and width (h, w) of the result.
        mean: channel means that the image tower expects.
        std: channel standard deviations that the image tower expects.
        crop: minimum fraction of the image area that a crop keeps.
        flip: whether to mirror half of the images.
        jitter: strength of colour changes, from 0 (none) to 1 (SimCLR).
        grayscale: share of images to convert to greyscale. SimCLR uses 0.2.
        blur: share of images to blur. SimCLR uses 0.5.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float = 0.9
    flip: bool = False
    jitter: float = 0.0
    grayscale: float = 0.0
    blur: float = 0.0

    def __call__(self, image: Image.Image, generator: torch.Generator) -> Tensor:
        """Return augmented pixels (3, h, w) of an RGB image."""
        bicubic = need("torchvision.transforms").InterpolationMode.BICUBIC
        T = need("torchvision.transforms.v2.functional")
        box = self.box(image.height, image.width, generator)
        image = T.resized_crop(image, *box, list(self.size), bicubic)
        # Draw a number even without flips, so that the later draws for the colours stay the same.
        if _uniform(0, 1, generator) < 0.5 * self.flip:
            image = T.horizontal_flip(image)
        if self.jitter and _uniform(0, 1, generator) < JITTER_SHARE:
            adjust = (T.adjust_brightness, T.adjust_contrast, T.adjust_saturation, T.adjust_hue)
            unchanged = (1.0, 1.0, 1.0, 0.0)
            factors = []
            for middle, full_reach in zip(unchanged, JITTER, strict=True):
                reach = self.jitter * full_reach
                factors.append(_uniform(middle - reach, middle + reach, generator))
            # The adjustments do not commute, so apply them in random order, as SimCLR does.
            for place in torch.randperm(len(adjust), generator=generator).tolist():
                image = adjust[place](image, factors[place])
        if self.grayscale and _uniform(0, 1, generator) < self.grayscale:
            image = T.rgb_to_grayscale(image, num_output_channels=3)
        if self.blur and _uniform(0, 1, generator) < self.blur:
            # The kernel width must be odd.
            width = 2 * int(BLUR_KERNEL * self.size[0] / 2) + 1
            sigma = _uniform(*BLUR_SIGMA, generator)
            image = T.gaussian_blur(image, [width, width], [sigma, sigma])
        pixels: Tensor = T.normalize(
            T.pil_to_tensor(image).float() / 255, list(self.mean), list(self.std)
        )
        return pixels

    def box(self, height: int, width: int, generator: torch.Generator) -> tuple[int, int, int, int]:
        """Sample (top, left, height, width) for a crop, as in torchvision's RandomResizedCrop.

        Args:
            height: height of the image in pixels.
            width: width of the image in pixels.
            generator: source of random numbers.
        """
        for _ in range(10):
            area = height * width * _uniform(self.crop, 1, generator)
            # Sample the logarithm uniformly, so that 3:4 is as frequent as 4:3.
            ratio = math.exp(_uniform(math.log(RATIO[0]), math.log(RATIO[1]), generator))
            w = round(math.sqrt(area * ratio))
            h = round(math.sqrt(area / ratio))
            if w and h and w <= width and h <= height:
                top_row = int(torch.randint(height - h + 1, (), generator=generator))
                left_column = int(torch.randint(width - w + 1, (), generator=generator))
                return top_row, left_column, h, w
        # If no crop fits in ten trials, use the largest central crop with an allowed ratio.
        w = min(width, round(height * RATIO[1]))
        h = min(height, round(width / RATIO[0]))
        return (height - h) // 2, (width - w) // 2, h, w


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


@torch.no_grad()
def most_similar(features: Tensor) -> Tensor:
    """Return the index (b,) of the row that is most similar to each row (b, d) by cosine."""
    with torch.autocast(features.device.type, enabled=False):
        rows = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=1)
        # Cosines between all pairs of rows, (b, b).
        cosines = (rows @ rows.T).fill_diagonal_(-torch.inf)
        return cosines.argmax(dim=1)


@torch.no_grad()
def mix_amplitudes(images: Tensor, partner: Tensor, weight: Tensor) -> Tensor:
    """Mix each image's Fourier amplitudes with a partner's amplitudes, keeping its own phases.

        inverse transform of ((1 - w) A + w A') e^{i P}, per channel and frequency

    A and P are the amplitude and phase of the image's two-dimensional Fourier transform, and A' is
    the partner's amplitude. All three are computed in float32 or higher precision. An amplitude of
    0 has phase 0. As in the paper, the result is not clamped. It has the dtype of the images.

    Args:
        images: pixels (b, c, h, w).
        partner: (b,) integers, index of each image's partner.
        weight: (b,), weights w in [0, 1].
    """
    spectrum = torch.fft.rfft2(images.to(torch.promote_types(images.dtype, torch.float32)))
    amplitude = spectrum.abs()
    mixed = torch.lerp(amplitude, amplitude[partner], weight.to(amplitude)[:, None, None, None])
    # Compute e^{iP} without the angle, by dividing each number by its absolute value.
    phase = torch.where(amplitude > 0, spectrum / amplitude, 1.0)
    return torch.fft.irfft2(mixed * phase, s=images.shape[-2:]).to(images.dtype)
