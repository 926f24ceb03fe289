"""The judge: a small classifier that reads profession, gender, tone and age from a portrait."""

import itertools

import torch
from torch import nn

from vldebias.errors import InvalidInputError
from vldebias.miniature.people import AGES, GENDERS, PROFESSIONS, TONES

__all__ = ["FIELDS", "Judge"]

FIELDS = {"profession": len(PROFESSIONS), "gender": len(GENDERS), "tone": len(TONES), "age": len(AGES)}


class Judge(nn.Module):
    """A convolutional network with one head per field, trained on renders and on their VAE reconstructions."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 96)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.heads = nn.ModuleDict({name: nn.Linear(96 * 16, count) for name, count in FIELDS.items()})

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits (n, classes) of each field, for images (n, 3, 32, 32) in [0, 1]."""
        features = self.features(images * 2 - 1)
        return {name: head(features) for name, head in self.heads.items()}

    @torch.no_grad()
    def predict(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the portraits show.

        Args:
            images: (n, 3, 32, 32) in [0, 1].

        Returns:
            For each field `name` the most likely label (n,) under `name`, and the probabilities (n, classes) of
            all labels under `name_probabilities`. Labels index PROFESSIONS, GENDERS, TONES and AGES.

        Raises:
            InvalidInputError: images of another shape.
        """
        if images.ndim != 4 or images.shape[1:] != (3, 32, 32):
            raise InvalidInputError(f"the judge reads images (n, 3, 32, 32) in [0, 1], got {tuple(images.shape)}")
        weight = next(self.parameters())
        probabilities = {name: z.softmax(dim=1) for name, z in self(images.to(weight)).items()}
        labels = {name: p.argmax(dim=1) for name, p in probabilities.items()}
        return labels | {f"{name}_probabilities": p for name, p in probabilities.items()}
