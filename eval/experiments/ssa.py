"""SSA-CLR on miniature birds: what do flat minima and mixed amplitudes do for contrastive learning
of two views?

python -m eval.experiments.run ssa         # half an hour on one core

Tables 1 to 4 of SSA-CLR (with CIFAR and a ResNet-50 there) on renders of 48 species in front of any
background. An arm learns from two views of each picture without labels: contrastive learning alone
("none"), with SAM, with ASAM, with amplitudes mixed with those of the most similar view ("fft",
alpha), with the last two ("ssa-clr", alpha). Then, with the image tower frozen, a logistic
regression on its features is fitted with labels and measured on other renders: accuracy, and
accuracy under the fast gradient sign method. The distribution shift gap is measured with the views
as they are and with mixed amplitudes. The most similar view is mostly the other view of the same
picture, so one more arm leaves that out ("other image").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from eval.experiments.captions import fresh
from eval.experiments.run import Cell
from eval.experiments.tensor_batches import TensorBatches
from eval.miniature.birds import Birds, sample
from vldebias.hosts.clip.towers import Towers
from vldebias.miniature.words import SPECIES
from vldebias.study.tasks.classifiers import logistic_regression
from vldebias.training.augmentation import mix_amplitudes, most_similar
from vldebias.training.loop import Entry, fit
from vldebias.training.model import tune
from vldebias.training.monitor import image_features
from vldebias.training.objective import Objective, Trainee
from vldebias.training.sampling import torch_generator
from vldebias.training.settings import LoopSettings, LossSettings

WORLD = 52_000  # seeds of the renders: two for each seed of a run
ATTACKS = (1, 2, 8)  # in 1/255
MIXED = 0.2  # alpha under which the gap is measured, whatever the arm was trained with
TOLERANCE = 1e-5  # of the logistic regression
PerImage = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class Recipe:
    """What all arms share.

    items, test_items: renders to learn from (without labels, then with them for the linear
    classifier) and to test.
    smallest_crop: share of the area that a view keeps at least. brightness: by which share it may
    change.
    views: augmentations per test image of which the shift gap takes the mean; even.
    """

    items: int
    test_items: int
    batch_size: int
    steps: int
    lr: float
    warmup: float
    weight_decay: float
    temperature: float
    smallest_crop: float
    brightness: float
    views: int


@dataclass(frozen=True)
class Views:
    """Random crop, mirror image and brightness of a batch in memory: pixels (b, 3, h, w) in [0, 1]
    -> the same.

    Neither hue nor saturation changes: species of this world differ by the colours of their plumage
    alone, so a view without its colours would be a view without its class.
    """

    smallest_crop: float
    brightness: float

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        b = len(images)
        drawn = torch.rand(5, b, generator=generator)
        side = (self.smallest_crop + (1 - self.smallest_crop) * drawn[0]).sqrt()
        mirror = torch.where(drawn[1] < 0.5, -1.0, 1.0)
        zero = torch.zeros(b)
        left, top = ((2 * share - 1) * (1 - side) for share in drawn[2:4])
        crop = torch.stack(
            [torch.stack([side * mirror, zero, left], 1), torch.stack([zero, side, top], 1)], 1
        )
        grid = F.affine_grid(crop, list(images.shape), align_corners=False)
        seen = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
        light = 1 + self.brightness * (2 * drawn[4] - 1)
        return (seen * light[:, None, None, None]).clamp(0, 1)


def work(cell: Cell) -> dict[str, float]:
    """Return the mean of everything that is measured of one learner over its test images."""
    recipe, seed = Recipe(**cell["recipe"], steps=cell["steps"]), cell["seed"]
    learn, test = world(seed, recipe)
    read, _ = train(cell["settings"], seed, recipe, learn.images)
    return {
        metric: float(values.mean())
        for metric, values in measure(read, learn, test, recipe, seed).items()
    }


def world(seed: int, recipe: Recipe) -> tuple[Birds, Birds]:
    """Return renders to learn from and to test on; the background says nothing about the
    species."""
    sizes = enumerate((recipe.items, recipe.test_items))
    learn, test = (sample(n, seed=WORLD + 2 * seed + i, balanced=True) for i, n in sizes)
    return learn, test


def train(
    arm: Mapping[str, Any], seed: int, recipe: Recipe, images: Tensor
) -> tuple[Towers, list[Entry]]:
    """Return towers of fresh weights after contrastive learning on two views of `images` (n, 3, 64,
    64) in [0, 1].

    arm: sharpness, rho and fourier of LoopSettings, and "partner" of the mixing. The weights, the
    order of the images and their views are those of the seed, the same for every arm.
    """
    read = fresh_towers(seed)
    tune(read, "image")
    loss = LossSettings(loss="info_nce", temperature=recipe.temperature)
    objective = Objective(loss, temperature=recipe.temperature, items=len(images), two_views=True)
    stepping = {name: value for name, value in arm.items() if name != "partner"}
    alike = {
        name: getattr(recipe, name)
        for name in ("steps", "batch_size", "lr", "warmup", "weight_decay")
    }
    settings = LoopSettings(**alike, **stepping, seed=seed)
    augment = Views(recipe.smallest_crop, recipe.brightness)
    batches = TensorBatches(
        images, batch_size=recipe.batch_size, augment=augment, two_views=True, seed=seed
    )
    trainee = Trainee(read, objective, fourier=settings.fourier, partner=arm.get("partner", "any"))
    return read, fit(trainee, batches, settings)


def fresh_towers(seed: int) -> Towers:
    """Return towers that read pixels in [0, 1], so that amplitudes are mixed, and attacks counted,
    in pixels."""
    torch.manual_seed(seed)
    read = fresh()
    mean, std = (torch.tensor(values)[:, None, None] for values in (read.mean, read.std))
    of_normalised = read.image
    read.image = lambda pixels: of_normalised((pixels - mean) / std)  # type: ignore[method-assign]
    read.mean, read.std = (0.0,) * 3, (1.0,) * 3
    return read


# ---- what is measured of a learner, image by image
# -------------------------------------------------------------------


class LinearClassifier(nn.Module):
    """Pixels in [0, 1] -> logits: the features of norm 1, and a logistic regression on them,
    standardised."""

    def __init__(self, read: Towers, features: Tensor, labels: Tensor, classes: int) -> None:
        super().__init__()
        how = {"c": 1.0, "like": features, "tolerance": TOLERANCE}
        weight, bias = logistic_regression(features, labels.numpy(), classes, **how)
        self.model, self.image = read.model, read.image
        self.weight, self.bias = weight.float(), bias.float()

    def forward(self, pixels: Tensor) -> Tensor:
        return F.normalize(self.image(pixels), dim=1) @ self.weight.T + self.bias


def measure(read: Towers, train: Birds, test: Birds, recipe: Recipe, seed: int) -> PerImage:
    """Return metric -> value (n,) of every test image."""
    classifier = LinearClassifier(read, embed(read, train.images), train.species, len(SPECIES))
    found = gaps(read, test, recipe, seed)
    for by in (0, *ATTACKS):
        right = robust_correct(classifier, test.images, test.species, by / 255)
        found[f"robust_accuracy@{by}/255" if by else "accuracy"] = right.double().numpy()
    return found


def embed(read: Towers, images: Tensor) -> Tensor:
    """Return features (n, d) of norm 1."""
    return torch.cat([image_features(read, some) for some in images.split(500)])


def gaps(read: Towers, test: Birds, recipe: Recipe, seed: int) -> PerImage:
    """Return distances of the shift gap with the views as they are and mixed, and how often the
    other view was."""
    plain, mixed, own = [], [], []
    for index, two in view_pairs(test, recipe, seed):
        before = image_features(read, two)
        partner = most_similar(before)
        generator = torch_generator("gap mixing", seed, len(plain))
        after = image_features(
            read, mix_amplitudes(two, partner, MIXED * torch.rand(len(two), generator=generator))
        )
        plain.append(before)
        mixed.append(after)
        own.append(index.repeat(2)[partner] == index.repeat(2))
    species, images = test.species.numpy(), embed(read, test.images).numpy()
    found = {"partner is the other view": _by_image(own, recipe).mean(1)}
    for name, views in (("original", plain), ("mixed", mixed)):
        found[f"gap, {name}"] = shift_distances(_by_image(views, recipe), species, images)
    return found


def shift_distances(
    views: NDArray[np.float64], labels: NDArray[np.int64], images: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return || mu_c - mean_t f(t(x)) || (n,) of images of class c: views (n, t, d), images (n, d).

    Their mean is the distribution shift gap of SSA-CLR. The paper prints the norm in three ways: to
    the power 1/2 (Theorem 4), with the index 1/2 (section 6.2), and Euclidean where it proves the
    bound (Theorem 9), as here.
    """
    sums = np.zeros((labels.max() + 1, images.shape[1]))
    np.add.at(sums, labels, images.astype(np.float64))
    centres = sums / np.maximum(np.bincount(labels), 1)[:, None]
    return np.linalg.norm(centres[labels] - views.mean(axis=1), axis=1)


def view_pairs(test: Birds, recipe: Recipe, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield two views (2 b, 3, h, w) of each image of a batch, as in training, every image
    `recipe.views` / 2 times."""
    augment = Views(recipe.smallest_crop, recipe.brightness)
    for draw in range(recipe.views // 2):
        for number, index in enumerate(torch.arange(len(test)).split(recipe.batch_size)):
            generator = torch_generator("gap views", seed, draw, number)
            yield index, augment(test.images[index].repeat(2, 1, 1, 1), generator)


def _by_image(parts: list[Tensor], recipe: Recipe) -> NDArray[np.float64]:
    """Return what `view_pairs` gave, (2 b, ...) each, as (n, views, ...)."""
    batches = len(parts) // (recipe.views // 2)
    draws = [parts[i : i + batches] for i in range(0, len(parts), batches)]
    seen = [torch.cat([part.chunk(2)[view] for part in draw]) for draw in draws for view in (0, 1)]
    return torch.stack(seen, 1).double().numpy()


def fgsm(classifier: nn.Module, images: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """Return clip(x + epsilon sign(grad_x CE(classifier(x), y)), 0, 1): fast gradient signs
    (Goodfellow et al., 2015).

    With m = log sum_{j != y} e^{z_j} - z_y the cross-entropy is log(1 + e^m): both gradients have
    one sign. The one of m is taken, because that of the cross-entropy underflows to 0 where the
    classifier is sure.
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
    """Tell which images (n,) are still classified right after `fgsm`; at epsilon = 0 that is the
    accuracy."""
    right = []
    for some, of in zip(images.split(256), labels.split(256), strict=True):
        attacked = fgsm(classifier, some, of, epsilon)
        with torch.no_grad():
            right.append(classifier(attacked).argmax(1) == of)
    return torch.cat(right)
