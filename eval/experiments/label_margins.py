"""Measure the margins of networks that fit digits with correct or partly random labels.

    python -m eval.experiments.run label_margins

This corresponds to Figure 8-2 in the thesis, and to Figure 8-3, in which correct labels of an easy
and of a hard task are compared: scikit-learn's digits, and MNIST (`make mnist`) at the same size.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from apps.diagnose.diagnosis import margins
from eval.experiments.mnist import read
from eval.experiments.run import Cell

LEARNED = 300  # number of training images
GAP = "generalisation error"
EASY, HARD = "scikit-learn's digits", "MNIST"


def task(data: str) -> tuple[torch.Tensor, np.ndarray]:
    """Return grey images (n, 64) of 8 x 8 pixels in [0, 1], and their digits (n,)."""
    if data == HARD:
        images, digits = read("test")
        pixels = nn.functional.adaptive_avg_pool2d(images / 255, 8).flatten(1)
        return pixels, digits.astype(np.int64)
    images, digits = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), digits


def medians(seed: int, share: float = 0.0, data: str = EASY, steps: int = 600) -> dict[str, float]:
    """Return the median margins of a network that fits labels, a share of which are random.

    The result includes the generalisation error, which is the difference between the accuracies on
    training images and on held-out images.

    Raises:
        RuntimeError: If the network does not fit all labels.
    """
    pixels, digits = task(data)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits))
    rows, unseen = order[:LEARNED], order[LEARNED:]
    labels = digits[rows].copy()
    is_random = rng.random(LEARNED) < share
    labels[is_random] = rng.integers(0, 10, is_random.sum())
    torch.manual_seed(seed)
    body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU())
    head = nn.Linear(64, 10)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 3e-3)
    target = torch.tensor(labels)
    for _ in range(steps):
        loss = nn.functional.cross_entropy(head(body(pixels[rows])), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    features = body(pixels).detach()
    predicted = head(features).argmax(1).numpy()
    if (predicted[rows] != labels).any():
        raise RuntimeError(f"seed {seed}, share {share}: the network does not fit all labels")
    margins_of_rows, _ = margins(head, features[rows], labels)
    medians_of_metric = {name: float(np.median(values)) for name, values in margins_of_rows.items()}
    # The spectral norm of the whole network is at most the product of those of its layers.
    for layer in body[::2]:
        medians_of_metric["sn_margin"] /= float(torch.linalg.matrix_norm(layer.weight.detach(), 2))
    return medians_of_metric | {GAP: 1 - float((predicted == digits)[unseen].mean())}


def work(cell: Cell) -> dict[str, float]:
    """Return the generalisation error, and the ratios of margins with correct labels to these."""
    medians_of_metric = medians(cell["seed"], steps=cell["steps"], **cell["settings"])
    figures = {GAP: medians_of_metric.pop(GAP)}
    if cell["settings"]:
        correct = medians(cell["seed"], steps=cell["steps"])
        for name, value in medians_of_metric.items():
            figures[f"ratio, {name}"] = correct[name] / value
    return figures
