"""Train adapters on frozen features with cross-entropy, and optionally a contrastive loss.

The adapter is from Gao et al. (2021). Both adapters in Table 7.2 of the thesis are trained as in
Zhang and Ré (2022).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vldebias.errors import InvalidInputError
from vldebias.losses.sums import softplus
from vldebias.study.tasks.examples import Examples, Logits, Predictor
from vldebias.utils.arrays import Codes

BATCH = 128  # rows per step, or anchors per contrastive step
NEAREST_CHUNK = 64  # anchors per block of cosines with all training rows


class Adapter(nn.Module):
    """Two-layer adapter: features x (n, d) become W2 relu(W1 x + b1) + b2, normalised to length 1.

    There is no residual connection, as in the code of Zhang and Ré (2022).
    """

    def __init__(self, texts: Tensor, hidden: int) -> None:
        super().__init__()
        width = texts.shape[1]
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width))
        self.texts = texts.detach().clone().float()

    def forward(self, features: Tensor) -> Tensor:
        """Return adapted features (n, d) with norm 1."""
        return F.normalize(self.layers(features), dim=-1)

    def logits(self, features: Tensor) -> Tensor:
        """Return the logits (n, k): 100 times the cosines with the class embeddings."""
        return 100.0 * self(features) @ self.texts.T


Epoch = Callable[[int, Adapter], Iterator[Tensor]]  # yields the loss of each step in an epoch


@torch.random.fork_rng([])
@torch.inference_mode(False)
@torch.enable_grad()
def train_adapter(
    examples: Examples,
    losses: Epoch,
    *,
    hidden: int = 128,
    epochs: int = 100,
    patience: int = 20,
    rate: float = 1e-3,
) -> Predictor:
    """Train an adapter with SGD and keep the best epoch on the validation split.

    Momentum (0.9) and weight decay (5e-5) are taken from the code of Zhang and Ré (2022).

    Args:
        examples: training and validation data, and the random seed.
        losses: function (epoch, adapter) that yields the loss of each step in that epoch.
        hidden: width of the bottleneck.
        epochs: maximum number of epochs.
        patience: stop after this many epochs without improvement.
        rate: learning rate.

    Returns:
        The function that returns the logits, and a mapping with the best epoch (the earliest on a
        tie) and its validation scores.
    """
    torch.default_generator.manual_seed(examples.seed)
    adapter = Adapter(examples.zero_shot, hidden)
    optimizer = torch.optim.SGD(adapter.parameters(), lr=rate, momentum=0.9, weight_decay=5e-5)
    best_epoch = -1
    best_scores: tuple[float, ...] = ()
    best_weights = adapter.state_dict()
    for epoch in range(epochs):
        for loss in losses(epoch, adapter):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scores = tuple(examples.best([adapter.logits])[1].values())
        # Tuples are compared by worst-group accuracy first, then by the average (see
        # `Examples.best`).
        if scores > best_scores:
            best_epoch = epoch
            best_scores = scores
            best_weights = copy.deepcopy(adapter.state_dict())
        if epoch - best_epoch >= patience:
            break
    adapter.load_state_dict(best_weights)
    adapter.requires_grad_(False)
    logits: Logits = adapter.logits
    return logits, {"epoch": best_epoch + 1, **examples.best([logits])[1]}


def erm_adapter(examples: Examples, **training: Any) -> Predictor:
    """Train an adapter to minimise cross-entropy over the training rows (Gao et al., 2021).

    Args:
        examples: training and validation data.
        training: further arguments of `train_adapter`.
    """
    labels = torch.from_numpy(examples.labels)

    def losses(epoch: int, adapter: Adapter) -> Iterator[Tensor]:
        for rows in torch.randperm(len(labels)).split(BATCH):
            yield F.cross_entropy(adapter.logits(examples.features[rows]), labels[rows])

    return train_adapter(examples, losses, **training)


def contrastive_adapter(
    examples: Examples,
    *,
    temperature: float = 0.1,
    positives: int = 32,
    negatives: int = 64,
    anchors: int = 1024,
    group_size: int = 300,
    **training: Any,
) -> Predictor:
    """Train an adapter by alternating a contrastive loss and cross-entropy (Zhang and Ré, 2022).

    A contrastive epoch pulls rows that the zero-shot classifier gets wrong towards correctly
    classified rows of the same class, and pushes them away from nearby rows of other classes. The
    next epoch minimises cross-entropy on groups of equal size. The contrastive loss of a step is
    summed over its anchors.

    Unlike the original, this runs in minutes on a CPU. The original contrasts each anchor with
    2,048 positives and 2,048 of its 4,096 nearest rows. Here, `positives` and `negatives` are
    sampled in each epoch, with negatives drawn from the 1,024 nearest rows of other classes, and
    there are at most `anchors` anchors per class. If the zero-shot classifier gets all rows of a
    class right, or all of them wrong, the class has no anchors and only contributes to the
    cross-entropy.

    Args:
        examples: training and validation data.
        temperature: temperature of the contrastive loss.
        positives: number of rows of the same class for each anchor.
        negatives: number of rows of other classes for each anchor.
        anchors: maximum number of anchors per class and epoch.
        group_size: number of rows per group in a cross-entropy epoch.
        training: further arguments of `train_adapter`.

    Raises:
        InvalidInputError: If no class has both correctly and wrongly classified rows.
    """
    # Compute neighbours once, from the frozen features.
    contrasts = Contrasts.find(examples)
    features = examples.features
    labels = torch.from_numpy(examples.labels)

    def contrast(adapter: Adapter) -> Iterator[Tensor]:
        for places in contrasts.balanced_anchors(anchors).split(BATCH):
            rows = contrasts.sample(places, positives, negatives)
            parts = adapter(features[rows]).split([1, positives, negatives], dim=1)
            anchor, positive, negative = parts
            loss = anchored_contrastive(anchor[:, 0], positive, negative, temperature=temperature)
            yield loss.sum()

    def classification(adapter: Adapter) -> Iterator[Tensor]:
        balanced_rows = rows_of_groups(examples.groups, group_size)
        for rows in balanced_rows[torch.randperm(len(balanced_rows))].split(BATCH):
            yield F.cross_entropy(adapter.logits(features[rows]), labels[rows])

    def losses(epoch: int, adapter: Adapter) -> Iterator[Tensor]:
        # Alternate, because only cross-entropy involves the classifier's text features.
        if epoch % 2 == 0:
            return contrast(adapter)
        return classification(adapter)

    return train_adapter(examples, losses, **training)


def anchored_contrastive(
    anchors: Tensor, positives: Tensor, negatives: Tensor, *, temperature: float
) -> Tensor:
    """Return the contrastive loss (a,) of each anchor, averaged over its positives.

    For a positive p, the loss is -log e^{s_p} / (e^{s_p} + sum_n e^{s_n}), where s is a cosine
    divided by the temperature. This is the supervised contrastive loss without the other positives
    in the denominator, as in Zhang and Ré (2022).

    Args:
        anchors: (a, d) with norm 1.
        positives: (a, p, d) with norm 1.
        negatives: (a, m, d) with norm 1.
        temperature: value that the cosines are divided by.
    """
    # -log e^p / (e^p + sum e^n) is softplus(log sum e^n - p), which does not overflow at small
    # temperatures.
    queries = anchors / temperature
    positive = torch.einsum("ad,apd->ap", queries, positives)
    negative = torch.einsum("ad,amd->am", queries, negatives)
    log_negatives = torch.logsumexp(negative, dim=1, keepdim=True)
    return softplus(log_negatives - positive).mean(1)


@dataclass(frozen=True, eq=False)
class Contrasts:
    """Anchors, positives and negatives for the contrastive loss.

    Attributes:
        anchors: (a,) rows that the zero-shot classifier gets wrong.
        classes: (a,) classes of the anchors.
        nearest: (a, m) closest rows of other classes, closest first.
        positives: class -> rows of the class that the zero-shot classifier gets right.
    """

    anchors: Tensor
    classes: Tensor
    nearest: Tensor
    positives: Mapping[int, Tensor]

    @classmethod
    def find(cls, examples: Examples, neighbours: int = 1024) -> Contrasts:
        """Find the anchors, positives and negatives among the training rows.

        Args:
            examples: training data, with the zero-shot classifier.
            neighbours: maximum number of nearest rows per anchor.

        Raises:
            InvalidInputError: If no class has both correctly and wrongly classified rows.
        """
        labels = examples.labels
        right = examples.predicted == labels
        positives = dict[int, Tensor]()
        for label in np.unique(labels).tolist():
            in_class = labels == label
            # An anchor needs at least one correctly classified row of its class to be pulled
            # towards.
            if right[in_class].any() and not right[in_class].all():
                positives[label] = torch.from_numpy(np.flatnonzero(right & in_class))
        if not positives:
            raise InvalidInputError(
                "contrastive-adapter: expected a class with training rows that the zero-shot"
                f" classifier gets right and others that it gets wrong; it gets {int(right.sum())}"
                f" of {len(right)} right"
            )
        wrong = ~right & np.isin(labels, list(positives))
        anchors = torch.from_numpy(np.flatnonzero(wrong))
        classes = torch.from_numpy(labels)
        # All anchors get the same number of nearest rows, which cannot exceed the number of rows
        # outside the largest class.
        largest_class = int(np.bincount(labels)[list(positives)].max())
        count = min(neighbours, len(labels) - largest_class)
        nearest = []
        # Compute 64 x n cosines at a time, which takes 40 MB for CelebA (160,000 rows).
        for rows in anchors.split(NEAREST_CHUNK):
            cosines = examples.features[rows] @ examples.features.T
            same_class = classes[rows, None] == classes
            nearest.append(cosines.masked_fill(same_class, -torch.inf).topk(count, dim=1).indices)
        return cls(anchors, classes[anchors], torch.cat(nearest), positives)

    def balanced_anchors(self, limit: int) -> Tensor:
        """Sample equally many positions in `anchors` per class, at most `limit` each."""
        positions = [torch.nonzero(self.classes == label).flatten() for label in self.positives]
        size = min(limit, min(len(part) for part in positions))
        subsets = [part[torch.randperm(len(part))[:size]] for part in positions]
        return torch.cat(subsets)

    def sample(self, places: Tensor, positives: int, negatives: int) -> Tensor:
        """Sample positives and negatives for anchors, with replacement.

        Args:
            places: (b,) positions in `anchors`.
            positives: number of correctly classified rows of the anchor's class.
            negatives: number of nearest rows of other classes.

        Returns:
            Training rows (b, 1 + positives + negatives), starting with the anchor.
        """
        same_class = torch.empty(len(places), positives, dtype=torch.int64)
        for label, pool in self.positives.items():
            is_label = self.classes[places] == label
            draws = torch.randint(len(pool), (int(is_label.sum()), positives))
            same_class[is_label] = pool[draws]
        columns = torch.randint(self.nearest.shape[1], (len(places), negatives))
        near = self.nearest[places].gather(1, columns)
        return torch.cat([self.anchors[places, None], same_class, near], dim=1)


def rows_of_groups(groups: Codes, size: int) -> Tensor:
    """Sample `size` row indices per group, with replacement only if the group is smaller.

    Args:
        groups: (n,) codes 0 .. g - 1, each of which must occur.
        size: number of rows per group.
    """
    parts = []
    for group in range(int(groups.max()) + 1):
        rows = torch.from_numpy(np.flatnonzero(groups == group))
        if len(rows) < size:
            draws = torch.randint(len(rows), (size,))
        else:
            draws = torch.randperm(len(rows))[:size]
        parts.append(rows[draws])
    return torch.cat(parts)
