"""The contrastive adapter: pulls what zero-shot gets wrong to what it gets right within the same class."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.evaluation.baselines.adapters import AdapterBaseline, AdapterHead, batches, classification_loss
from vldebias.evaluation.baselines.problem import Allowed, OnStep, RobustnessProblem, promoted
from vldebias.losses.sums import softplus

_CHUNK = 64  # anchors whose similarities to all training rows are held at a time


def anchored_contrastive(anchors: Tensor, positives: Tensor, negatives: Tensor, *, temperature: float) -> Tensor:
    """(a,) mean over positives p of -log e^{s_p} / (e^{s_p} + sum over negatives e^{s_n}), as in Zhang and Ré (2022).

    The supervised contrastive loss with the other positives left out of the denominator: L_attract of
    `losses.spread` (alpha = 1), but with positives and negatives of each anchor's own.

    Args:
        anchors: (a, d) rows of norm 1.
        positives: (a, p, d) rows of norm 1.
        negatives: (a, m, d) rows of norm 1.
        temperature: t of the similarities s = cosine / t.
    """
    scaled = anchors / temperature
    positive = torch.einsum("ad,apd->ap", scaled, positives)
    negative = torch.einsum("ad,amd->am", scaled, negatives)
    return softplus(torch.logsumexp(negative, 1, keepdim=True) - positive).mean(1)


@dataclass(frozen=True, eq=False)
class _Contrasts:
    """Training rows by their part: anchors (a,), their nearest rows of other classes (a, m), positives by class."""

    anchors: Tensor
    classes: Tensor  # (a,)
    nearest: Tensor  # (a, m)
    positives: dict[int, Tensor]

    def sample(self, which: Tensor, positives: int, negatives: int, generator: torch.Generator) -> Tensor:
        """(b, 1 + positives + negatives) training rows for the anchors `which` (b,), drawn with replacement."""
        rows = torch.empty(len(which), positives, dtype=torch.int64)
        for label, pool in self.positives.items():
            own = self.classes[which] == label
            rows[own] = pool[torch.randint(len(pool), (int(own.sum()), positives), generator=generator)]
        columns = torch.randint(self.nearest.shape[1], (len(which), negatives), generator=generator)
        return torch.cat([self.anchors[which, None], rows, self.nearest[which].gather(1, columns).long()], 1)

    def epoch(self, per_class: int, generator: torch.Generator) -> Tensor:
        """Indices of anchors, at most `per_class` of each class and the same number of all."""
        own = [torch.nonzero(self.classes == label).flatten() for label in self.positives]
        size = min(per_class, *(len(one) for one in own)) if len(own) > 1 else min(per_class, len(own[0]))
        return torch.cat([one[torch.randperm(len(one), generator=generator)[:size]] for one in own])


@dataclass(frozen=True, kw_only=True)
class ContrastiveAdapter(AdapterBaseline):
    """An adapter trained by contrast and by classification in turns (Zhang and Ré 2022).

    As in the authors' code: an epoch of contrast, whose losses are summed over the anchors of a step, and an epoch of
    cross-entropy on groups of equal size, in turns. Anchors are the rows that zero-shot gets wrong, positives rows of
    the same class that it gets right, negatives nearest neighbours of the anchor from other classes by cosine of the
    frozen features; temperature .1; 300 rows per group; anchors balanced over classes. Groups: those given, by
    default class x zero-shot prediction.

    Our choices, so that a run takes minutes on a CPU and memory grows linearly with the rows: the source contrasts
    an anchor with 2048 positives and as many of its 4096 nearest rows, of which those of other classes count; we draw
    `positives` and `negatives` anew in every epoch, the latter from the `neighbours` nearest rows of other classes,
    and take at most `anchors` anchors of a class per epoch. A class without a wrong or without a right row has no
    anchors and learns from cross-entropy alone.

    Attributes:
        temperature: of the contrastive loss.
        positives, negatives: drawn for each anchor.
        neighbours: nearest rows of other classes that negatives are drawn from.
        anchors: of a class per epoch, at most.
        group_size: rows of each group in an epoch of cross-entropy, drawn with replacement where it has fewer.
    """

    name: str = "contrastive-adapter"
    title: str = "CA"
    source: str = "Zhang and Ré 2022"
    temperature: float = 0.1
    positives: int = 32
    negatives: int = 64
    neighbours: int = 1024
    anchors: int = 1024
    group_size: int = 300

    allowed: ClassVar[Allowed] = {
        "temperature": "(0, inf)",
        **dict.fromkeys(("positives", "negatives", "neighbours", "anchors", "group_size"), "[1, inf)"),
    }

    def _prepare(self, problem: RobustnessProblem, on_step: OnStep) -> _Contrasts:
        labels, right = problem.train.labels, problem.predicted == problem.train.labels
        usable = [
            label for label in range(problem.n_classes) if 0 < right[labels == label].sum() < (labels == label).sum()
        ]
        if not usable:
            raise InvalidInputError(
                "contrastive adapter: expected a class that zero-shot gets right in some training rows and wrong in "
                f"others; of {np.bincount(labels).tolist()} rows it gets "
                f"{np.bincount(labels[right], minlength=problem.n_classes).tolist()} right"
            )
        anchors = np.flatnonzero(~right & np.isin(labels, usable))
        positives = {label: torch.from_numpy(np.flatnonzero(right & (labels == label))) for label in usable}
        nearest = _nearest_of_other_classes(problem, anchors, self.neighbours)
        on_step(f"{len(anchors)} anchors")
        return _Contrasts(torch.from_numpy(anchors), torch.from_numpy(labels[anchors]), nearest, positives)

    def _losses(
        self, epoch: int, head: AdapterHead, problem: RobustnessProblem, data: Any, generator: torch.Generator
    ) -> Iterator[Tensor]:
        if epoch % 2:
            for rows in batches(_balanced_rows(problem, self.group_size, generator), self.batch_size, generator):
                yield classification_loss(head, problem, rows)
            return
        features = problem.train.features
        for which in batches(data.epoch(self.anchors, generator), self.batch_size, generator):
            rows = data.sample(which, self.positives, self.negatives, generator).to(features.device)
            adapted = head.adapter(promoted(features[rows]).float())
            anchor, positive, negative = adapted.split([1, self.positives, self.negatives], 1)
            yield anchored_contrastive(anchor[:, 0], positive, negative, temperature=self.temperature).sum()


def _balanced_rows(problem: RobustnessProblem, size: int, generator: torch.Generator) -> Tensor:
    """Row indices, `size` of each group: without replacement where the group is large enough."""
    groups = torch.from_numpy(problem.groups)
    drawn = []
    for group in range(int(groups.max()) + 1):
        rows = torch.nonzero(groups == group).flatten()
        if len(rows) >= size:
            drawn.append(rows[torch.randperm(len(rows), generator=generator)[:size]])
        else:
            drawn.append(rows[torch.randint(len(rows), (size,), generator=generator)])
    return torch.cat(drawn)


def _nearest_of_other_classes(problem: RobustnessProblem, anchors: NDArray[np.int64], count: int) -> Tensor:
    """(a, m) int32 rows of other classes with the largest cosine to each anchor, at most `count` of them."""
    features = promoted(problem.train.features)
    labels = torch.from_numpy(problem.train.labels).to(features.device)
    sizes = np.bincount(problem.train.labels)
    others = len(labels) - int(sizes[problem.train.labels[anchors]].max())
    nearest = []
    for rows in torch.from_numpy(anchors).to(features.device).split(_CHUNK):
        same = labels[rows, None] == labels
        cosines = (features[rows] @ features.T).masked_fill(same, -torch.inf)
        nearest.append(cosines.topk(min(count, others), dim=1).indices.to(torch.int32).cpu())
    return torch.cat(nearest)
