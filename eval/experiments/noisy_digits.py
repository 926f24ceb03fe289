"""Test whether RINCE helps with wrong classes when training on real images from scratch.

python -m eval.experiments.run noisy_digits

The design follows Table A.1 in the thesis, with scikit-learn's digits. A positive pair consists of
two images with the same label, and class noise replaces a class by the one with the nearest mean
image with probability eta / 2. A small network is trained on the pairs alone, with the other rows
in both views as negatives. A logistic regression on its features is then trained on the true labels
of a hundred images, and scored on held-out images. The temperature for each arm is selected on
separate images with a noise rate of 0.4 and a seed that is not reported.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample, normalize

from apps.baselines.classifiers import logistic_regression
from eval.experiments.captions import class_noise
from eval.experiments.run import Cell, scored
from vldebias.training.batches import Batch
from vldebias.training.objective import Objective
from vldebias.training.sampling import numpy_generator
from vldebias.training.settings import LossSettings

SIDE, CLASSES, BATCH, LR = 8, 10, 128, 1e-3
TEST, VALIDATION, READ = 500, 300, 100  # numbers of test, validation and labelled training images
METRIC = "linear evaluation"


@lru_cache(maxsize=1)
def digits() -> dict[str, tuple[Tensor, np.ndarray]]:
    """Return training, validation and test images (n, 1, 8, 8) in [0, 1] with their classes."""
    loaded = load_digits()
    images = torch.from_numpy(loaded.images / 16.0).float()[:, None]
    labels = loaded.target.astype(np.int64)
    order = numpy_generator("digits").permutation(len(labels))
    parts = np.split(order, [TEST, TEST + VALIDATION])
    names = ("test", "validation", "train")
    return {name: (images[rows], labels[rows]) for name, rows in zip(names, parts, strict=True)}


def similar_classes(images: Tensor, labels: np.ndarray) -> np.ndarray:
    """Return, for each class (C,), the other class whose mean image is nearest."""
    means = np.stack([images[labels == code].mean(0).numpy().ravel() for code in range(CLASSES)])
    distances = np.linalg.norm(means[:, None] - means, axis=2)
    np.fill_diagonal(distances, np.inf)
    return distances.argmin(1)


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Rotate images by up to 15 degrees, shift them by a pixel, scale by 10%, and add noise."""
    n = len(images)
    angle = (torch.rand(n, generator=generator) - 0.5) * (np.pi / 6)
    scale = 1 + (torch.rand(n, generator=generator) - 0.5) * 0.2
    shift = (torch.rand(n, 2, generator=generator) - 0.5) * (4 / SIDE)
    cos, sin = scale * angle.cos(), scale * angle.sin()
    grid = torch.stack(
        [torch.stack([cos, -sin, shift[:, 0]], 1), torch.stack([sin, cos, shift[:, 1]], 1)], 1
    )
    moved = grid_sample(
        images, affine_grid(grid, list(images.shape), align_corners=False), align_corners=False
    )
    return moved + 0.05 * torch.randn(images.shape, generator=generator)


def network() -> tuple[nn.Module, nn.Module]:
    """Return an encoder, whose features are scored, and the projection for the loss."""
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 64),
        nn.ReLU(),
    )
    return encoder, nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))


def partners(labels: np.ndarray, rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return, for each row, a random other image with the same label."""
    rows_of_class = [np.flatnonzero(labels == code) for code in range(CLASSES)]
    return np.array([generator.choice(rows_of_class[labels[row]]) for row in rows])


def work(cell: Cell) -> dict[str, Any]:
    """Score one training run with a logistic regression."""
    images, true = digits()["train"]
    seed, steps = cell["seed"], cell["steps"]
    labels = class_noise(true, cell["eta"], similar_classes(images, true), seed)
    torch.manual_seed(seed)
    encoder, projection = network()
    settings = LossSettings(**cell["settings"], temperature=cell["temperature"])
    objective = Objective(
        settings, temperature=cell["temperature"], items=len(images), two_views=True
    )
    parameters = [*encoder.parameters(), *projection.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=1e-4)
    drawn, views = numpy_generator("digit pairs", seed), torch.Generator().manual_seed(seed)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LR * 0.5 * (1 + np.cos(np.pi * step / steps))
        objective.schedule(step, steps)
        rows = drawn.permutation(len(images))[:BATCH]
        both = torch.cat([images[rows], images[partners(labels, rows, drawn)]])
        first, second = normalize(projection(encoder(augmented(both, views))), dim=1).chunk(2)
        optimizer.zero_grad()
        objective(first, second, Batch(images=images[:0])).backward()
        optimizer.step()
    return read(encoder, "validation" if cell.get("tuning") else "test")


@torch.no_grad()
def read(encoder: nn.Module, part: str) -> dict[str, Any]:
    """Return the accuracy of a logistic regression that is fitted to some true labels."""
    encoder.eval()
    (images, labels), (asked, true) = digits()["train"], digits()[part]
    images, labels = images[:READ], labels[:READ]
    learn = encoder(images)
    how = {"c": 1.0, "like": learn, "tolerance": 1e-4}
    weight, bias = logistic_regression(learn, labels, CLASSES, **how)
    right = ((encoder(asked).double() @ weight.T + bias).argmax(1).numpy() == true).astype(float)
    return scored(METRIC, right)
