"""Zero-shot classification and retrieval with an image-text model: text weights times image features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vldebias.metrics import max_skew

__all__ = ["image_features", "precision_at", "query_skews", "text_features", "worst_group"]


@torch.no_grad()
def image_features(
    model: Any,
    images: Tensor,
    preprocess: Callable[[Tensor], Tensor],
    *,
    batch_size: int = 500,
    on_batch: Callable[[int], None] | None = None,
) -> Tensor:
    """Normalised (n, d) features of images (n, 3, h, w) in [0, 1] from an open_clip model."""
    features = []
    for batch in images.split(batch_size):
        features.append(model.encode_image(torch.stack([preprocess(image) for image in batch]), normalize=True))
        if on_batch is not None:
            on_batch(len(batch))
    return torch.cat(features)


@torch.no_grad()
def text_features(model: Any, tokenizer: Any, prompts: Sequence[str]) -> Tensor:
    """Normalised (k, d) features of prompts, projected where the model carries an attachment."""
    return model.encode_text(tokenizer(list(prompts)), normalize=True)


def worst_group(correct: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """min over groups of the accuracy, for each row of `correct` and `groups` (b, n): the vectorised statistic.

    A group that a resample does not hold has no accuracy and is left out, as in `worst_group_accuracy`.
    """
    accuracies = []
    for group in np.unique(groups):
        inside = groups == group
        count = inside.sum(axis=-1)
        hits = (correct * inside).sum(axis=-1)
        accuracies.append(np.where(count > 0, hits / np.maximum(count, 1), np.inf))
    return np.min(accuracies, axis=0)


def query_skews(scores: Tensor, groups: Tensor, k: int, n_groups: int) -> np.ndarray:
    """MaxSkew@k of each query (q,) from scores (q, n); uniform prior (section 7.4.2)."""
    return np.array([max_skew(row, groups, k, n_groups=n_groups) for row in scores])


def precision_at(scores: Tensor, relevant: Tensor, k: int) -> np.ndarray:
    """Share of the k best (q,) that is relevant, from scores and relevance (q, n)."""
    best = scores.topk(k, dim=1).indices
    return relevant.gather(1, best).double().mean(1).numpy()
