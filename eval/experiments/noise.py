"""Noise of classes and of crops as in the thesis, and scores that tell which pairs are wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.training.sampling import numpy_generator

_PATCH = 0.2  # of each side, what crop noise keeps


def class_noise(labels: ArrayLike, eta: float, classes: int, seed: int) -> NDArray[np.int64]:
    """Return labels (n,) flipped to a related class with probability eta / 2: class noise, thesis section 5.3.1.

    Each class is taken for the next one, and the last for the first; of two classes for each other.

    labels: (n,) codes; -1, unknown, stays. eta: noise rate in [0, 1]; at 1 a class and the next cannot be told apart by
    their labels. classes: how many there are.
    """
    if not 0 <= eta <= 1:
        raise InvalidInputError(f"eta: expected a noise rate in [0, 1], got {eta}")
    codes = np.asarray(labels, dtype=np.int64)
    flipped = (numpy_generator("class noise", seed).random(len(codes)) < eta / 2) & (codes >= 0)
    return np.where(flipped, (codes + 1) % classes, codes)


@dataclass(frozen=True)
class CropNoise:
    """Crops an image to a fifth of its height and width, and enlarges that, with probability eta (thesis 5.3.1).

    The source says "1/5 of their original size" after all other augmentation; size is read as that of the sides, since
    a patch of a fifth of the area still shows most objects.

    eta: noise rate in [0, 1].
    """

    eta: float

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Images (b, 3, h, w) -> a copy with some of them cropped; all randomness is the generator's."""
        b, _, h, w = images.shape
        draws = torch.rand(b, 3, generator=generator)
        chosen = torch.nonzero(draws[:, 0] < self.eta).squeeze(1)
        if not len(chosen):
            return images.clone()
        height, width = max(1, round(h * _PATCH)), max(1, round(w * _PATCH))
        first = (draws[chosen, 1:] * torch.tensor([h - height + 1, w - width + 1])).long()
        y = (first[:, :1].clamp(max=h - height) + torch.arange(height)).to(images.device)
        x = (first[:, 1:].clamp(max=w - width) + torch.arange(width)).to(images.device)
        chosen = chosen.to(images.device)
        patches = images[chosen[:, None, None], :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)
        return images.index_copy(0, chosen, F.interpolate(patches, (h, w), mode="bilinear", align_corners=False))


def softmax_scores(images: Tensor, texts: Tensor, codes: Tensor, *, t: float) -> Tensor:
    """Return how surely image and caption pick each other: (n,) at most 0, low where they do not fit.

        (log softmax_j(<x_i, v_j> / t) + log softmax_i(<x_i, v_j> / t)) / 2  at j = codes[i]

    images: (n, d) and texts: (m, d) of norm 1, each different caption once. codes: (n,) the caption of each image.
    """
    logits = images @ texts.T / t
    own = logits.gather(1, codes[:, None])[:, 0]
    return own - (logits.logsumexp(1) + logits.logsumexp(0)[codes]) / 2
