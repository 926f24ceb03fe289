"""The model and its loss as one module, so that wrapping it for several processes wraps both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vldebias.training.batch import Batch
from vldebias.training.fourier import FourierMixing
from vldebias.training.objectives import Objective
from vldebias.training.sharpness import frozen_statistics

if TYPE_CHECKING:
    from vldebias.hosts.towers import Towers

__all__ = ["Trainee"]


class Trainee(nn.Module):
    """batch -> loss.

    Args:
        towers: the model, seen as functions.
        objective: the loss; its parameters (a learned temperature) train with the model's.
        fourier: alpha of the amplitude mixing of images (SSA-CLR, section 4.3); 0 is none.
    """

    def __init__(self, towers: Towers, objective: Objective, *, fourier: float = 0.0) -> None:
        super().__init__()
        self.model = towers.model
        self.objective = objective
        self.towers = towers
        self.fourier = fourier

    def forward(self, batch: Batch) -> Tensor:
        """The loss () of a batch: of images and captions, or of two views."""
        if batch.views is None:
            images = self._mixed(batch.images)
            first, second = self.towers.image(images), self.text_features(batch.texts)
        else:
            views = self._mixed(torch.cat([batch.images, batch.views]))
            first, second = self.towers.image(views).chunk(2)
        loss: Tensor = self.objective(unit(first), unit(second), batch)
        return loss

    def text_features(self, texts: Mapping[str, Tensor]) -> Tensor:
        """Features (b, d) of captions; those that say the same go through the tower once."""
        rows = torch.cat([tokens.long() for tokens in texts.values()], dim=1)
        unique, place = torch.unique(rows, dim=0, return_inverse=True)
        if len(unique) == len(rows):
            return self.towers.text(texts)
        first = torch.full((len(unique),), len(rows), device=rows.device)
        first = first.scatter_reduce(0, place, torch.arange(len(rows), device=rows.device), "amin")
        return self.towers.text({name: tokens[first] for name, tokens in texts.items()})[place]

    def _mixed(self, images: Tensor) -> Tensor:
        """Images whose amplitudes lean towards those of the most similar image, by up to `fourier`.

        Mixed are pixels in [0, 1]: of pixels with their mean taken off the brightness has a sign, which is a phase,
        and a darker partner would brighten an image.
        """
        if not self.fourier:
            return images
        mean, std = (images.new_tensor(values)[:, None, None] for values in (self.towers.mean, self.towers.std))
        with torch.no_grad(), frozen_statistics(self.model):
            features = unit(self.towers.image(images))
            return (FourierMixing(self.fourier)(images * std + mean, features) - mean) / std


def unit(features: Tensor) -> Tensor:
    """Features (n, d) of norm 1, in single precision at least: in bfloat16 a logit at t = .01 is off by .25."""
    return F.normalize(features.float() if features.dtype in (torch.bfloat16, torch.float16) else features, dim=-1)
