"""What ssa.py measures of one learner, image by image: accuracy, attacks, shift gaps, partners of the mixing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from eval.experiments.ssa_training import Recipe, Views
from eval.miniature.birds import Birds
from vldebias.evaluation.classifiers import Scaling, logistic_regression
from vldebias.hosts.towers import Towers
from vldebias.miniature.words import SPECIES
from vldebias.training.augmentation import mix_amplitudes, most_similar
from vldebias.training.monitor import image_features
from vldebias.training.sampling import torch_generator

ATTACKS = (1, 2, 8)  # in 1/255
READINGS = {"": {}, ", power 1/2": {"exponent": 0.5}, ", index 1/2": {"norm": 0.5}}
MIXED = 0.2  # alpha under which the gap is measured, whatever the arm was trained with
C, TOLERANCE = 1.0, 1e-5  # of the logistic regression
CHUNK = 500

PerImage = dict[str, NDArray[np.float64]]


class LinearClassifier(nn.Module):
    """Pixels in [0, 1] -> logits: the features of norm 1, and a logistic regression on them.

    Fitted on standardised features (n, d) with labels (n,), to convergence.
    """

    def __init__(self, read: Towers, features: Tensor, labels: Tensor, classes: int) -> None:
        super().__init__()
        scaling = Scaling.standard(features)
        fitted = logistic_regression(
            features, labels.numpy(), classes, c=C, scaling=scaling, tolerance=TOLERANCE
        ).unscaled(scaling)
        weight, bias = fitted.head()
        self.model, self.image = read.model, read.image
        self.weight, self.bias = weight.float(), bias.float()

    def forward(self, pixels: Tensor) -> Tensor:
        return F.normalize(self.image(pixels), dim=1) @ self.weight.T + self.bias


def measure(read: Towers, train: Birds, test: Birds, recipe: Recipe, seed: int) -> PerImage:
    """Metric -> value (n,) of every test image."""
    classifier = LinearClassifier(read, embed(read, train.images), train.species, len(SPECIES))
    found = {
        "accuracy" if by == 0 else f"robust_accuracy@{by}/255": robust_correct(
            classifier, test.images, test.species, by / 255
        )
        for by in (0, *ATTACKS)
    }
    return {name: values.double().numpy() for name, values in found.items()} | gaps(read, test, recipe, seed)


def embed(read: Towers, images: Tensor) -> Tensor:
    """Features (n, d) of norm 1."""
    return torch.cat([image_features(read, some) for some in images.split(CHUNK)])


def gaps(read: Towers, test: Birds, recipe: Recipe, seed: int) -> PerImage:
    """Distances of the shift gap with the views as they are and with mixed amplitudes, and whose those were."""
    species = test.species.numpy()
    plain, mixed, own, same = [], [], [], []
    for index, two in view_pairs(test, recipe, seed):
        whose = index.repeat(2)
        before = image_features(read, two)
        partner = most_similar(before)
        generator = torch_generator("gap mixing", seed, len(plain))
        after = image_features(read, mix_amplitudes(two, partner, MIXED * torch.rand(len(two), generator=generator)))
        plain.append(before)
        mixed.append(after)
        own.append(whose[partner] == whose)
        same.append(test.species[whose[partner]] == test.species[whose])
    images = embed(read, test.images).numpy()
    found = {"partner is the other view": _by_image(own, recipe), "partner is of the species": _by_image(same, recipe)}
    shapes = {"original": _by_image(plain, recipe), "mixed": _by_image(mixed, recipe)}
    found = {name: values.mean(1) for name, values in found.items()}
    for told, reading in READINGS.items():
        for name, views in shapes.items():
            found[f"gap{told}, {name}"] = shift_distances(views, species, images, **reading)
        found[f"gap{told}, change"] = found[f"gap{told}, mixed"] - found[f"gap{told}, original"]
    return found


def fgsm(classifier: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """clip(x + epsilon sign(grad_x CE(classifier(x), y)), 0, 1): fast gradient signs (Goodfellow et al., 2015).

    With m = log sum_{j != y} e^{z_j} - z_y the cross-entropy is log(1 + e^m): both gradients have one sign. The one of
    m is taken, because that of the cross-entropy underflows to 0 where the classifier is sure.
    """
    classifier.eval()
    with torch.enable_grad():
        pixels = images.detach().clone().requires_grad_()
        logits = classifier(pixels)
        true = F.one_hot(labels, logits.shape[1]).bool()
        margins = logits.masked_fill(true, -torch.inf).logsumexp(1) - logits[true]
        (gradient,) = torch.autograd.grad(margins.sum(), pixels)
    return (images + epsilon * gradient.sign()).clamp(0, 1)


def robust_correct(classifier: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """Which images (n,) are still classified right after `fgsm`; at epsilon = 0 that is the accuracy."""
    right = []
    for some, of in zip(images.split(256), labels.split(256), strict=True):
        attacked = fgsm(classifier, some, of, epsilon)
        with torch.no_grad():
            right.append(classifier(attacked).argmax(1) == of)
    return torch.cat(right)


def shift_distances(
    views: NDArray[np.float64], labels: NDArray[np.int64], images: NDArray[np.float64], *, norm: float = 2.0,
    exponent: float = 1.0,
) -> NDArray[np.float64]:  # fmt: skip
    """|| mu_c - mean_t f(t(x)) ||_norm ^ exponent (n,) of images of class c: views (n, t, d), images (n, d).

    Their mean is the distribution shift gap of SSA-CLR, which prints the norm in three ways: to the power 1/2 (Theorem
    4), with the index 1/2 (section 6.2), and Euclidean where it proves the bound (Theorem 9), which is the default.
    """
    sums = np.zeros((labels.max() + 1, images.shape[1]))
    np.add.at(sums, labels, images.astype(np.float64))
    centres = sums / np.maximum(np.bincount(labels), 1)[:, None]
    return np.linalg.norm(centres[labels] - views.mean(axis=1), ord=norm, axis=1) ** exponent


def view_pairs(test: Birds, recipe: Recipe, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Two views (2 b, 3, h, w) of each image of a batch, as in training, every image `recipe.views` / 2 times."""
    augment = Views(recipe.smallest_crop, recipe.brightness)
    for draw in range(recipe.views // 2):
        for number, index in enumerate(torch.arange(len(test)).split(recipe.batch_size)):
            generator = torch_generator("gap views", seed, draw, number)
            yield index, augment(test.images[index].repeat(2, 1, 1, 1), generator)


def _by_image(parts: list[Tensor], recipe: Recipe) -> NDArray[np.float64]:
    """What `view_pairs` gave, (2 b, ...) each, as (n, views, ...)."""
    batches = len(parts) // (recipe.views // 2)
    draws = [parts[i : i + batches] for i in range(0, len(parts), batches)]
    seen = [torch.cat([part.chunk(2)[view] for part in draw]) for draw in draws for view in (0, 1)]
    return torch.stack(seen, 1).double().numpy()
