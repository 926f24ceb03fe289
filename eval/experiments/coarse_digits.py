"""Test whether digits within a coarse class stay separate (MNIST with the labels "below 5" or not).

python -m eval.experiments.run coarse_digits
python -m eval.experiments.run head_digits
python -m eval.experiments.run hard_digits
python -m eval.experiments.run rare_digit

According to Fu et al., The Details Matter (2022), classes collapse with a supervised contrastive
loss, while the spread loss preserves their parts. A network is trained with each loss on the two
coarse labels, and a logistic regression then predicts the ten digits from its features. One data
set contains few eights. For this data set, the embeddings are clustered within each coarse class,
and Group DRO uses the clusters as groups to train a classifier for the coarse label. The classifier
is scored by the digit with the lowest accuracy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import Tensor, nn

from eval.experiments.mnist import (
    CLASSES,
    Images,
    Learner,
    Views,
    correct,
    learn,
    sample,
    two_views,
)
from eval.experiments.run import Cell, scored
from vldebias.losses import GroupWeights
from vldebias.training.sampling import Sampler, numpy_generator, torch_generator

RARE = 8
FINE, FINE_EMBEDDINGS = "fine accuracy", "fine accuracy of embeddings"
PAIRS = ("same digit", "other digit of the class", "other class")


def work(cell: Cell) -> dict[str, Any]:
    """Train with one loss, and measure how well the features and embeddings separate the digits.

    With "strata" instead of a loss, only the classifier is trained, with the true digits as groups
    ("digits") or without groups ("none").
    """
    images, test = data(cell)
    if "strata" in cell["settings"]:
        groups = images.labels if cell["settings"]["strata"] == "digits" else None
        return {"worst digit": worst_digit(cell, images, test, groups)}
    learner = trained(cell, images)
    truth = (images.labels, test.labels)
    features = [learner.features(part.pixels) for part in (images, test)]
    embeddings = [learner.embeddings(part.pixels) for part in (images, test)]
    figures: dict[str, Any] = {}
    for metric, (known, asked) in ((FINE, features), (FINE_EMBEDDINGS, embeddings)):
        figures |= scored(metric, correct(known, truth[0], asked, truth[1]))
    for name, cosines in pair_cosines(embeddings[1], test.labels).items():
        figures[f"cosine, {name}"] = float(cosines.mean())
    if cell["digits"] == "tail":
        means = mean_cosines(embeddings[1], test.labels)
        figures["rank correlation"] = float(spearmanr(shares_of(cell), means).statistic)
    clusters = strata(embeddings[0], images.labels >= 5, cell["clusters"], cell["seed"])
    figures["agreement of clusters"] = float(adjusted_rand_score(images.labels, clusters))
    if cell["digits"] == "few eights" and not cell.get("tuning"):
        figures["worst digit"] = worst_digit(cell, images, test, clusters)
    return figures


def data(cell: Cell) -> tuple[Images, Images]:
    """Return training images, in which digits have the frequencies of the cell, and test images."""
    return sample(cell, cell["items"], cell["tested"], shares=shares_of(cell))


def shares_of(cell: Cell) -> NDArray[np.float64]:
    """Return the relative frequency of each digit (10,): equal, few eights, or a long tail.

    With a tail, the frequencies within each coarse class are 1, "rare", "rare" squared, ..., in an
    order that depends on the seed, because some digits are more uniform than others by themselves.
    """
    shares = np.ones(CLASSES)
    if cell["digits"] == "few eights":
        shares[RARE] = cell["rare"]
    if cell["digits"] == "tail":
        generator = numpy_generator("tail", cell["seed"])
        ranks = [generator.permutation(CLASSES // 2) for _ in range(2)]
        shares = cell["rare"] ** np.concatenate(ranks)
    return shares


def mean_cosines(embeddings: Tensor, digits: NDArray[np.int64]) -> list[float]:
    """Return the mean cosine between different images of each digit (10,)."""
    means = []
    for digit in range(CLASSES):
        part = embeddings[torch.from_numpy(digits == digit)]
        n = len(part)
        # The squared norm of the sum includes the cosine 1 of each image with itself.
        means.append(float((part.sum(0).square().sum() - n) / (n * (n - 1))))
    return means


def trained(cell: Cell, images: Images) -> Learner:
    """Train a network on two views of each image and the coarse labels."""
    labels = (images.labels >= 5).astype(np.int64)
    return learn(two_views(images, cell, labels), cell["settings"], cell)


def pair_cosines(embeddings: Tensor, digits: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
    """Return the cosines between different images, by what the images have in common."""
    cosines = (embeddings @ embeddings.T).numpy()
    upper = np.triu(np.ones(cosines.shape, bool), k=1)
    same_digit = digits[:, None] == digits
    same_class = (digits[:, None] >= 5) == (digits >= 5)
    kinds = (same_digit, same_class & ~same_digit, ~same_class)
    return {name: cosines[upper & kind] for name, kind in zip(PAIRS, kinds, strict=True)}


def strata(
    embeddings: Tensor, is_high: NDArray[np.bool_], clusters: int, seed: int
) -> NDArray[np.int64]:
    """Return the cluster of each image (n,) from k-means within each coarse class."""
    found = np.empty(len(is_high), np.int64)
    for code in (False, True):
        rows = is_high == code
        means = KMeans(clusters, n_init=3, random_state=seed).fit(embeddings[rows].numpy())
        found[rows] = means.labels_ + code * clusters
    return found


def worst_digit(
    cell: Cell, images: Images, test: Images, groups: NDArray[np.int64] | None
) -> float:
    """Return the lowest accuracy on any digit for a classifier of the coarse label.

    `groups` (n,) are the groups for Group DRO. If None, the mean loss is minimised.
    """
    torch.manual_seed(cell["seed"])
    network = Learner(images.pixels)
    classifier = nn.Sequential(network.encoder, nn.Linear(64, 2))
    optimizer = torch.optim.AdamW(
        classifier.parameters(), lr=cell["classifier_lr"], weight_decay=cell["classifier_decay"]
    )
    weights = None
    if groups is not None:
        weights = GroupWeights(int(groups.max()) + 1, step=cell["dro_step"])
    views = Views(**cell["views"])
    sampler = Sampler(len(images), cell["batch_size"], cell["seed"])
    for step in range(cell["classifier_steps"]):
        rows = sampler.rows(step)
        pixels = views(images.pixels[rows], torch_generator("classifier", cell["seed"], step))
        labels = torch.from_numpy((images.labels[rows] >= 5).astype(np.int64))
        losses = F.cross_entropy(classifier(pixels), labels, reduction="none")
        loss = losses.mean()
        if weights is not None:
            assert groups is not None
            loss = weights(losses, torch.from_numpy(groups[rows]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        is_high = classifier(test.pixels).argmax(1).numpy() == 1
    is_right = is_high == (test.labels >= 5)
    return float(min(is_right[test.labels == digit].mean() for digit in range(CLASSES)))
