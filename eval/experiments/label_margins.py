"""Measure the margins of networks that fit digits with correct or partly random labels.

    python -m eval.experiments.label_margins --json label_margins.json

This corresponds to Figure 8-2 in the thesis, and to Figure 8-3, in which correct labels of an easy
and of a hard task are compared: scikit-learn's digits, and MNIST (`make mnist`) at the same size.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from apps.diagnose.diagnosis import margins
from eval.experiments.mnist import read
from eval.experiments.run import interval
from eval.tables import parser, run, subset
from vldebias.measure.rows import TaskProvenance, TaskResult
from vldebias.metrics import Metric

SEEDS = range(5)
SHARES = (0.5, 1.0)
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


@cache
def medians(seed: int, share: float, data: str = EASY, steps: int = 600) -> dict[str, float]:
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


def _add_ratios(part: TaskResult, medians_of_seed: list[dict[str, float]], place: str) -> None:
    """Add the ratios of margins to those with correct labels of the easy task."""
    metric = Metric("ratio", "clean / random, or easy / hard", "utility", "higher")
    for name in medians_of_seed[0]:
        if name != GAP:
            ratios = [
                medians(seed, 0.0)[name] / own[name]
                for seed, own in zip(SEEDS, medians_of_seed, strict=True)
            ]
            _add(part, metric, name, ratios, place)


def _add(part: TaskResult, metric: Metric, name: str, values: list[float], place: str) -> None:
    """Add the mean over seeds with its interval."""
    mean = interval(values)
    ends = (mean["low"], mean["high"])
    part.add(metric, name, mean["value"], ends, n={"seeds": len(values)}, subset=place)


def measure() -> Iterator[TaskResult]:
    """Yield the ratios of margins with correct and random labels, and generalisation errors."""
    provenance = TaskProvenance(
        task="label_margins",
        description="Median margin with correct labels over that with random ones or on MNIST.",
        seeds=list(SEEDS),
        settings={
            "images": f"{LEARNED} of scikit-learn's digits to learn from, the others left out",
            "MNIST": f"{LEARNED} of its test images at 8 x 8 pixels, the others left out",
            "model": "64-256-64-10, 600 steps of Adam; all labels are fitted",
            "intervals": "of Student's t over seeds of images, labels and weights",
        },
    )
    part = TaskResult(provenance)
    for share in (0.0, *SHARES):
        place = subset({"random": share})
        values = [medians(seed, share) for seed in SEEDS]
        _add(part, Metric(GAP, GAP, "utility", "lower"), GAP, [one[GAP] for one in values], place)
        if share:
            _add_ratios(part, values, place)
    hard = [medians(seed, 0.0, HARD) for seed in SEEDS]
    place = subset({"task": HARD})
    _add(part, Metric(GAP, GAP, "utility", "lower"), GAP, [one[GAP] for one in hard], place)
    _add_ratios(part, hard, place)
    yield part


def main() -> None:
    run("label_margins", measure, parser(__doc__).parse_args().json)


if __name__ == "__main__":
    main()
