"""Augmentation of many images at once, for those that are in memory as tensors already."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vldebias.training.augmentation import JITTER, JITTER_SHARE, RATIO, VIEWS, Draws
from vldebias.training.noise import CropNoise

__all__ = ["BatchAugmentation"]

_GREY = (0.299, 0.587, 0.114)  # luma of ITU-R BT.601, as Pillow has it


@dataclass(frozen=True)
class BatchAugmentation:
    """The draws of `vldebias.training.augmentation`, each image its own, in a few passes over the batch.

    In place of an exact crop the image is sampled along a grid (bilinear); crops that lead out of the image are clipped
    to it, where the other one draws again; colours change in the order brightness, contrast, saturation, hue; hue is
    turned about the grey axis. Images stay of their size.

    mean, std: of the channels, by which the images are normalised. draws: see `Draws`. noise: crop noise, after all.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    draws: Draws = VIEWS
    noise: CropNoise | None = None

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (b, 3, h, w), normalised -> the same, augmented; all randomness is the generator's."""
        images = _cropped(images, self.draws, generator)
        if self.draws.jitter or self.draws.grayscale:
            images = self._coloured(images, generator)
        return images if self.noise is None else self.noise(images, generator)

    def _coloured(self, images: Tensor, generator: torch.Generator) -> Tensor:
        mean, std = (images.new_tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
        pixels = images * std + mean
        if self.draws.jitter:
            chosen = _chosen(JITTER_SHARE, pixels, generator)
            pixels = torch.where(chosen, _jittered(pixels, self.draws.jitter, generator), pixels)
        pixels = torch.where(_chosen(self.draws.grayscale, pixels, generator), _grey(pixels).expand_as(pixels), pixels)
        return (pixels - mean) / std


def _cropped(images: Tensor, draws: Draws, generator: torch.Generator) -> Tensor:
    """Resized crops, mirrored with the probability of `flip`."""
    b, _, h, w = images.shape
    unit = torch.rand(b, 5, generator=generator)
    area = draws.crop[0] + (draws.crop[1] - draws.crop[0]) * unit[:, 0]
    low, high = (math.log(ratio * h / w) for ratio in RATIO)
    ratio = torch.exp(low + (high - low) * unit[:, 1])  # of the shares of width and height
    size = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], dim=1).clamp(max=1)  # (b, 2) as x, y
    centre = (2 * unit[:, 2:4] - 1) * (1 - size)
    sign = torch.where(unit[:, 4] < draws.flip, -1.0, 1.0)
    theta = torch.zeros(b, 2, 3)
    theta[:, 0, 0], theta[:, 1, 1], theta[:, :, 2] = size[:, 0] * sign, size[:, 1], centre
    grid = F.affine_grid(theta.to(images), [b, 1, h, w], align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _jittered(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Pixels (b, 3, h, w) in [0, 1] with other colours; factors as in `JITTER`, within 1 +- strength * reach."""
    unit = (2 * torch.rand(4, len(pixels), 1, 1, 1, generator=generator) - 1).to(pixels)
    brightness, contrast, saturation = (1 + strength * reach * u for reach, u in zip(JITTER[:3], unit[:3], strict=True))
    pixels = (pixels * brightness).clamp(0, 1)
    pixels = torch.lerp(_grey(pixels).mean(dim=(2, 3), keepdim=True), pixels, contrast).clamp(0, 1)
    pixels = torch.lerp(_grey(pixels), pixels, saturation).clamp(0, 1)
    return _turned(pixels, 2 * math.pi * strength * JITTER[3] * unit[3]).clamp(0, 1)


def _turned(pixels: Tensor, angle: Tensor) -> Tensor:
    """Colours turned about the axis of the greys by `angle` (b, 1, 1, 1), Rodrigues' formula."""
    mean = pixels.mean(dim=1, keepdim=True)
    across = (pixels.roll(1, dims=1) - pixels.roll(-1, dims=1)) / math.sqrt(3)  # axis x pixel
    return mean + (pixels - mean) * angle.cos() + across * angle.sin()


def _grey(pixels: Tensor) -> Tensor:
    return (pixels * pixels.new_tensor(_GREY).view(-1, 1, 1)).sum(dim=1, keepdim=True)


def _chosen(probability: float, images: Tensor, generator: torch.Generator) -> Tensor:
    """(b, 1, 1, 1) bool."""
    return (torch.rand(len(images), 1, 1, 1, generator=generator) < probability).to(images.device)
