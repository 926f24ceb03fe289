"""Training data for supervised classifiers, and model selection on a validation split."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.measure.classification import group_accuracy
from vldebias.utils.arrays import Codes

Logits = Callable[[Tensor], Tensor]  # features (m, d) -> logits (m, k)
Predictor = tuple[Logits, dict[str, object]]  # a fitted classifier and the selected settings


@dataclass(frozen=True, eq=False)
class Examples:
    """A training split, a validation split and the zero-shot classifier.

    Together with the seed, they determine the predictor, since sampling neither uses nor changes
    the state of the global random number generators.

    Attributes:
        features: (n, d) float32 image features of norm 1.
        labels: (n,) classes 0 .. k - 1, each of which must occur.
        zero_shot: (k, d) text features of the classes, of norm 1.
        val: features, labels and groups of the validation split. Settings and epochs are selected
            by worst-group accuracy, with ties broken by average accuracy, as in Zhang and Ré
            (2022).
        seed: random seed for all sampling.

    Raises:
        InvalidInputError: If the widths differ, or a class has no rows.
    """

    features: Tensor
    labels: Codes
    zero_shot: Tensor
    val: tuple[Tensor, Codes, Codes]
    seed: int = 0

    def __post_init__(self) -> None:
        widths = [rows.shape[1] for rows in (self.features, self.val[0], self.zero_shot)]
        if len(set(widths)) > 1:
            raise InvalidInputError(
                f"train, val and texts: got the widths {widths}; expected features from a single"
                " model"
            )
        sizes = np.bincount(self.labels, minlength=len(self.zero_shot))
        if not sizes.all():
            raise InvalidInputError(
                f"train labels: expected at least one row per class, got {sizes.tolist()} rows"
            )

    @cached_property
    def predicted(self) -> Codes:
        """Return zero-shot predictions (n,) for the training rows."""
        return (self.features @ self.zero_shot.T).argmax(1).numpy()

    @cached_property
    def groups(self) -> Codes:
        """Return the groups (n,) to balance during training: class x zero-shot prediction.

        The true groups are unknown, so predictions replace the spurious value, as in Zhang and Ré
        (2022). Groups that occur are numbered consecutively.
        """
        cells = self.labels * len(self.zero_shot) + self.predicted
        return np.unique(cells, return_inverse=True)[1]

    @torch.no_grad()
    def best(self, classifiers: Sequence[Logits]) -> tuple[int, dict[str, float]]:
        """Return the index of the best classifier on the validation split, and its scores.

        On a tie, the first classifier is selected.
        """
        features, labels, groups = self.val
        ranked = []
        for logits in classifiers:
            accuracy = group_accuracy(logits(features).argmax(1), labels, groups)
            # Compare (worst, average). The average only breaks ties, because a classifier that
            # fails on an entire group can have a high average.
            ranked.append((accuracy.worst, accuracy.average))
        best = ranked.index(max(ranked))
        worst, average = ranked[best]
        return best, {"val_worst_group": worst, "val_average": average}
