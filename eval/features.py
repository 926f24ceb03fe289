"""Features of renders that are tensors already, for the scripts beside it; data sets go through `embed_images`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["image_features", "text_features"]


@torch.no_grad()
def image_features(model: Any, images: Tensor, preprocess: Callable[[Tensor], Tensor]) -> Tensor:
    """Normalised (n, d) features of images (n, 3, h, w) in [0, 1] from an open_clip model."""
    batches = (torch.stack([preprocess(image) for image in batch]) for batch in images.split(500))
    return torch.cat([model.encode_image(batch, normalize=True) for batch in batches])


@torch.no_grad()
def text_features(model: Any, tokenizer: Any, prompts: Sequence[str]) -> Tensor:
    """Normalised (k, d) features of prompts, projected where the model carries an attachment."""
    return model.encode_text(tokenizer(list(prompts)), normalize=True)
