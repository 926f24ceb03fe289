"""Measure the margins of networks that fit digits with correct or partly random labels.

    python -m eval.experiments.label_margins --json label_margins.json

This corresponds to Figure 8-2 in the thesis and uses scikit-learn's digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from eval.experiments.run import interval
from eval.tables import parser, run, subset
from vldebias.metrics import Metric
from vldebias.report.result import TaskProvenance, TaskResult
from vldebias.study.diagnosis import margins

SEEDS = range(5)
SHARES = (0.5, 1.0)
LEARNED = 300  # number of training images
GAP = "generalisation error"


@cache
def medians(seed: int, share: float) -> dict[str, float]:
    """Return the median margins of a network that fits labels, a share of which are random.

    The result includes the generalization error, which is the difference between the accuracies on
    training images and on held-out images.

    Raises:
        RuntimeError: If the network does not fit all labels.
    """
    images, digits = load_digits(return_X_y=True)
    pixels = torch.tensor(images / 16, dtype=torch.float32)
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
    for _ in range(600):
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
    return medians_of_metric | {GAP: 1 - float((predicted == digits)[unseen].mean())}


def measure() -> Iterator[TaskResult]:
    """Yield the ratios of margins with correct and random labels, and generalization errors."""
    provenance = TaskProvenance(
        task="label_margins",
        description="Median margin with correct labels over that with random ones.",
        seeds=list(SEEDS),
        settings={
            "images": f"{LEARNED} of scikit-learn's digits to learn from, the others left out",
            "model": "64-256-64-10, 600 steps of Adam; all labels are fitted",
            "intervals": "of Student's t over seeds of images, labels and weights",
        },
    )
    part = TaskResult(provenance)
    ratio = Metric("ratio", "clean / random", "utility", "higher")
    error = Metric(GAP, GAP, "utility", "lower")
    for share in (0.0, *SHARES):
        place = subset({"random": share})
        for name in medians(SEEDS[0], share):
            values = [medians(seed, share)[name] for seed in SEEDS]
            metric = error
            if name != GAP:
                if share == 0:
                    continue
                values = [medians(seed, 0.0)[name] / medians(seed, share)[name] for seed in SEEDS]
                metric = ratio
            overall = interval(values)
            ends = (overall["low"], overall["high"])
            part.add(metric, name, overall["value"], ends, n={"seeds": len(SEEDS)}, subset=place)
    yield part


def main() -> None:
    run("label_margins", measure, parser(__doc__).parse_args().json)


if __name__ == "__main__":
    main()
