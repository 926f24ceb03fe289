"""Estimate the share of false negatives, tau+, from positive pairs and random pairs.

python -m eval.experiments.run class_prior

The thesis (section 3.3.1) says that the class prior can be estimated from data. Here, a network is
trained on two views without labels. A random pair has the same label with probability tau+, so the
distribution of its cosine is a mixture, of which the cosines of positive pairs are one component.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eval.experiments.mnist import CLASSES, learn, sample, two_views
from eval.experiments.run import Cell

LEAST = 0.1  # share of the positive pairs above a threshold, as ratios of few pairs are noisy


def class_prior(positive: NDArray[np.float64], mixed: NDArray[np.float64]) -> float:
    """Return the smallest ratio P(mixed >= t) / P(positive >= t) over thresholds t.

    The share of positives in the mixture is at most this ratio, and equal to it if some threshold
    excludes all negatives (Blanchard et al., Semi-Supervised Novelty Detection, 2010).

    Args:
        positive: The cosines (n,) of positive pairs.
        mixed: The cosines (m,) of random pairs.
    """
    thresholds = np.sort(positive)[: round((1 - LEAST) * len(positive))]
    above = 1 - np.searchsorted(np.sort(mixed), thresholds) / len(mixed)
    above_of_positive = 1 - np.arange(len(thresholds)) / len(positive)
    return float((above / above_of_positive).min())


def work(cell: Cell) -> dict[str, Any]:
    """Estimate tau+ for some of the digits, with labels for a few images."""
    shares = (np.arange(CLASSES) < cell["classes"]).astype(float)
    images, _ = sample(cell, cell["items"], 1, shares=shares)
    learner = learn(two_views(images, cell), cell["settings"], cell)
    known = slice(0, cell["labelled"])
    unknown = slice(cell["labelled"], None)
    embeddings = learner.embeddings(images.pixels)
    same, _ = cosines(embeddings[known], images.labels[known])
    same_of_rest, other_of_rest = cosines(embeddings[unknown], images.labels[unknown])
    mixed = np.concatenate([same_of_rest, other_of_rest])
    truth, estimate = len(same_of_rest) / len(mixed), class_prior(same, mixed)
    return {"truth": truth, "estimate": estimate, "estimate / truth": estimate / truth}


def cosines(
    embeddings: torch.Tensor, labels: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the cosines of pairs of different images with the same label, and of other pairs."""
    above = np.triu_indices(len(labels), 1)
    values = (embeddings @ embeddings.T).double().numpy()[above]
    is_same = labels[above[0]] == labels[above[1]]
    return values[is_same], values[~is_same]
