"""Fourier mixing of images: the amplitudes lean towards those of a similar image, the phases stay (SSA-CLR, 4.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.losses.checks import check_interval

__all__ = ["FourierMixing", "mix_amplitudes", "most_similar"]

_CHUNK = 1024  # rows whose similarities are in memory at once


@dataclass(frozen=True)
class FourierMixing:
    """Mixes each image with the most similar other one of its batch, by a weight uniform in (0, alpha).

    The phase of an image holds most of its foreground, the amplitude most of its background; so the image keeps what
    it shows, while the background moves within what is probably the same class.

    Args:
        alpha: in [0, 1]; .2 is best in SSA-CLR, Table 3.

    Raises:
        InvalidInputError: alpha outside its interval.
    """

    alpha: float = 0.2

    def __post_init__(self) -> None:
        check_interval("alpha", self.alpha, "[0, 1]")

    def __call__(self, images: Tensor, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Mixed images (b, c, h, w); with two views of a batch, pass both as one: the partner may be the other view.

        Args:
            images: (b, c, h, w).
            features: (b, d) of the same images; a good extractor finds partners of the same class.
            generator: draws the weights, on its own device; None is torch's default of the CPU.

        Raises:
            InvalidInputError: features of another number than images, or fewer than 2.
        """
        if len(features) != len(images):
            raise InvalidInputError(f"features: expected one row per image, {len(images)}, got {len(features)}")
        device = generator.device if generator is not None else "cpu"
        weight = self.alpha * torch.rand(len(images), generator=generator, device=device)
        return mix_amplitudes(images, most_similar(features), weight.to(images.device))


@torch.no_grad()
def most_similar(features: Tensor, *, chunk_size: int = _CHUNK) -> Tensor:
    """(b,) index of the row of largest cosine with each row of `features` (b, d), other than itself.

    Raises:
        InvalidInputError: fewer than 2 rows, or no positive `chunk_size`.
    """
    if features.ndim != 2 or len(features) < 2:
        raise InvalidInputError(f"features: expected (b, d) with b >= 2, got {tuple(features.shape)}")
    check_interval("chunk_size", chunk_size, "[1, inf)")
    with torch.autocast(features.device.type, enabled=False):
        rows = F.normalize(features.to(_wide(features)), dim=1)
        nearest = []
        for start in range(0, len(rows), chunk_size):
            cosines = rows[start : start + chunk_size] @ rows.T
            cosines.diagonal(start).fill_(-torch.inf)
            nearest.append(cosines.argmax(dim=1))
        return torch.cat(nearest)


@torch.no_grad()
def mix_amplitudes(images: Tensor, partner: Tensor, weight: Tensor) -> Tensor:
    """Inverse transform of ((1 - w) A + w A') e^{i P}, with A' of the partner, per channel and frequency.

    A is the amplitude and P the phase of the image's two-dimensional Fourier transform; the phase of amplitude 0 is
    0. The transform is in float32 at least, also under autocast; the images come back in their own type. They are
    not clamped, as in the paper, and so may leave the range that pixels have.

    Args:
        images: (b, c, h, w).
        partner: (b,) integers, which image of the batch each is mixed with.
        weight: (b,) w in [0, 1]; 0 changes nothing, 1 takes the partner's amplitude.

    Raises:
        InvalidInputError: other shapes.
    """
    _check(images, partner, weight)
    with torch.autocast(images.device.type, enabled=False):
        spectrum = torch.fft.rfft2(images.to(_wide(images)))
        amplitude = spectrum.abs()
        w = weight.to(amplitude)[:, None, None, None]
        mixed = torch.lerp(amplitude, amplitude[partner], w)
        phase = torch.where(amplitude > 0, spectrum / amplitude, 1.0)
        return torch.fft.irfft2(mixed * phase, s=images.shape[-2:]).to(images.dtype)


def _check(images: Tensor, partner: Tensor, weight: Tensor) -> None:
    if images.ndim != 4 or not images.is_floating_point():
        raise InvalidInputError(
            f"images: expected floating-point (b, c, h, w), got {images.dtype} {tuple(images.shape)}"
        )
    if partner.shape != images.shape[:1] or partner.is_floating_point():
        raise InvalidInputError(
            f"partner: expected integers ({len(images)},), got {partner.dtype} {tuple(partner.shape)}"
        )
    if weight.shape != images.shape[:1]:
        raise InvalidInputError(f"weight: expected ({len(images)},), one per image, got {tuple(weight.shape)}")


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)
