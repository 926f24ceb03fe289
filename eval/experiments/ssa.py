"""Test whether flat minima and mixed amplitudes are worth their cost in contrastive learning.

python -m eval.experiments.run ssa          # MNIST
python -m eval.experiments.run ssa_batches  # MNIST, over batch sizes

This corresponds to tables 1 to 4 and figure 3 in SSA-CLR (Tran et al., 2023), with a small network.
It is trained on two views of each image without labels, using InfoNCE alone, with SAM, with ASAM,
with Fourier mixing, and with ASAM and mixing. A logistic regression on its features is scored on
unmodified test images and on images perturbed by the fast gradient sign method. The shift gap is
the distance between the mean feature of a class and the mean feature over views of an image.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from apps.baselines.classifiers import logistic_regression
from eval.experiments.mnist import (
    CLASSES,
    TOLERANCE,
    Images,
    Learner,
    Views,
    learn,
    sample,
    steps_of,
    two_views,
)
from eval.experiments.run import Cell, scored
from vldebias.training.augmentation import mix_amplitudes, most_similar
from vldebias.training.sampling import torch_generator

GAP_MIXING = 0.2  # maximum weight of the partner's amplitudes in the mixed gap, for all arms
GAP_BATCH = 250


def work(cell: Cell) -> dict[str, Any]:
    """Train on two views, and return the accuracy, robust accuracy, shift gap and cost.

    The optional setting "times" multiplies the number of steps. The optional column "epochs"
    replaces it, so that all batch sizes see as many images. With the optional column "labelled",
    only as many images have labels for the classifier.
    """
    images, test = sample(cell, cell["items"], cell["tested"])
    settings = dict(cell["settings"])
    steps = steps_of(cell) * settings.pop("times", 1)
    start = time.process_time()
    settings.setdefault("loss", "info_nce")
    learner = learn(two_views(images, cell), settings, {**cell, "steps": steps})
    seconds = time.process_time() - start
    labelled = cell.get("labelled", len(images))
    known = Images(images.pixels[:labelled], images.labels[:labelled])
    classifier = linear_classifier(learner, known)
    figures = scored("accuracy", robust_correct(classifier, test, 0.0))
    for epsilon in cell["attacks"]:
        rows = robust_correct(classifier, test, epsilon / 255)
        figures |= scored(f"robust_accuracy@{epsilon}/255", rows)
    figures |= gaps(learner, test, Views(**cell["views"]), cell["gap_views"])
    return {**figures, "ms a step": 1000 * seconds / steps}


def linear_classifier(learner: Learner, images: Images) -> nn.Module:
    """Return a classifier of pixels, which is a logistic regression on the encoder's features."""
    features = learner.features(images.pixels)
    weight, bias = logistic_regression(
        features, images.labels, CLASSES, c=1.0, like=features, tolerance=TOLERANCE
    )
    linear = nn.Linear(features.shape[1], CLASSES)
    linear.load_state_dict({"weight": weight, "bias": bias})
    return nn.Sequential(learner.encoder, linear).eval()


def fgsm(classifier: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """Return clip(x + epsilon sign(grad_x CE(classifier(x), y)), 0, 1) (Goodfellow et al., 2015).

    With m = log sum_{j != y} e^{z_j} - z_y, the cross-entropy is log(1 + e^m), so both gradients
    have the same sign. The gradient of m is used, because that of the cross-entropy underflows to 0
    if the classifier is confident.

    Args:
        classifier: A function from pixels to logits.
        images: The images (n, c, h, w) in [0, 1].
        labels: The true classes (n,).
        epsilon: The maximum change in a pixel.
    """
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        logits = classifier(pixels)
        is_true = F.one_hot(labels, logits.shape[1]).bool()
        margins = logits.masked_fill(is_true, -torch.inf).logsumexp(1) - logits[is_true]
        (gradient,) = torch.autograd.grad(margins.sum(), pixels)
    return (images + epsilon * gradient.sign()).clamp(0, 1)


def robust_correct(classifier: nn.Module, test: Images, epsilon: float) -> NDArray[np.float64]:
    """Return which images (n,) are classified correctly after an `fgsm` attack of size epsilon."""
    rows = []
    labels = torch.from_numpy(test.labels)
    for pixels, true in zip(test.pixels.split(500), labels.split(500), strict=True):
        seen = fgsm(classifier, pixels, true, epsilon) if epsilon else pixels
        with torch.no_grad():
            rows.append(classifier(seen).argmax(1) == true)
    return torch.cat(rows).double().numpy()


def gaps(learner: Learner, test: Images, views: Views, count: int) -> dict[str, float]:
    """Return shift gaps with and without mixed amplitudes.

    Args:
        learner: The network.
        test: The images and classes.
        views: The augmentation.
        count: The number of views per image, which must be even.
    """
    plain, mixed = [], []
    for pair in range(count // 2):
        parts: tuple[list[Tensor], list[Tensor]] = ([], [])
        for number, pixels in enumerate(test.pixels.split(GAP_BATCH)):
            generator = torch_generator("gap", pair, number)
            both = views(torch.cat([pixels, pixels]), generator)
            before = learner.embeddings(both)
            partner = most_similar(before)
            weight = GAP_MIXING * torch.rand(len(both), generator=generator)
            after = learner.embeddings(mix_amplitudes(both, partner, weight))
            for part, features in zip(parts, (before, after), strict=True):
                part.append(torch.stack(features.chunk(2), 1))
        plain.append(torch.cat(parts[0]))
        mixed.append(torch.cat(parts[1]))
    embeddings = learner.embeddings(test.pixels)
    labels = torch.from_numpy(test.labels)
    return {
        "gap, original": shift_gap(torch.cat(plain, 1), labels, embeddings),
        "gap, mixed": shift_gap(torch.cat(mixed, 1), labels, embeddings),
    }


def shift_gap(views: Tensor, labels: Tensor, images: Tensor) -> float:
    """Return the mean of || mu_c - mean_t f(t(x)) || over images x of class c.

    The paper writes the norm in three ways: with the exponent 1/2 (Theorem 4), with the index 1/2
    (section 6.2), and as the Euclidean norm in the proof of the bound (Theorem 9), which is used
    here.

    Args:
        views: The features (n, t, d) of t views of each image.
        labels: The classes (n,).
        images: The features (n, d) of the images without augmentation.
    """
    kinds = int(labels.max()) + 1
    sums = images.new_zeros(kinds, images.shape[1]).index_add(0, labels, images)
    centres = sums / torch.bincount(labels, minlength=kinds).clamp(min=1)[:, None]
    return float((centres[labels] - views.mean(1)).norm(dim=1).mean())
