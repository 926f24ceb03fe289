"""Two small towers in the place of an image-text model: known functions of pixels and letters."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

SIZE = 4


class TinyModel(nn.Module):
    """Linear towers with dropout, so that train mode gives other features than eval mode."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.image = nn.Linear(3 * SIZE * SIZE, dim)
        self.letters = nn.Embedding(128, dim)
        self.drop = nn.Dropout(0.5)


def tokenize(texts: Any) -> dict[str, Tensor]:
    ids = torch.zeros(len(texts), 24, dtype=torch.int64)
    for i, text in enumerate(texts):
        ids[i, : len(text)] = torch.tensor([ord(letter) % 128 for letter in text[:24]])
    return {"ids": ids}


def prepare(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255


def tiny_towers(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = TinyModel().train()
    weight = torch.arange(1.0, 25.0)[:, None]
    return SimpleNamespace(
        model=model,
        image=lambda images: model.drop(model.image(images.flatten(1))),
        text=lambda texts: model.drop((model.letters(texts["ids"]) * weight).sum(dim=1)),
        tokenize=tokenize,
        prepare=prepare,
        size=(SIZE, SIZE),
        mean=(0.0, 0.0, 0.0),
        std=(1.0, 1.0, 1.0),
        temperature=0.2,
    )


def tiny_image(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
