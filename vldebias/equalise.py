"""Equalise against unlabelled images: group means of images take the place of prompt pairs in eq. 7.4.

Unlabelled images are split by their zero-shot attribute value, within pseudo-classes where there are any, so that a
class that goes along with the attribute is not removed with it. The means of two parts are a pair: a text that is
equally close to both ranks both parts alike on average. The closed form is that of prompt pairs,

    z* = (I + lam sum_p w_p D_p D_p^T)^-1 z0,    D_p = mean_i - mean_j,    w_p ~ n_i n_j / (n_i + n_j),  sum_p w_p = 1,

alone or as one more term beside the prompt pairs. The weights are the precisions of the differences, so a thinly
populated class cannot add noise. Means are kept as running sums: the images may come in batches.

Wrong pseudo-labels: where errors do not depend on the image beyond its value, the expected difference is
(1 - e_i - e_j) D: shorter, in the same direction, which costs a factor (1 - e_i - e_j)^2 of lam and nothing else.
`GroupMeans.report` says what the model's own probabilities predict for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.projection import PairScatter

__all__ = ["GroupMeans", "MeansReport", "Reference", "group_means"]


@dataclass(frozen=True, eq=False)
class Reference:
    """Unlabelled image features to equalise against, and how to split them.

    Attributes:
        features: (n, d) tensor or ndarray, or an iterable of batches (b, d); normalised or not.
        confidence: rows whose pseudo-label has a lower probability are left out; in [0, 1).
        within_classes: compare means inside pseudo-classes of the prompt set, where it has at least two.
        min_rows: fewest rows of a part whose mean is used; classes without two such parts are pooled.
        logit_scale: inverse temperature of the probabilities; 100 in CLIP models.
        lam: weight of the image pairs; None for the weight of the prompt pairs.

    Raises:
        InvalidInputError: a number outside its range.
    """

    features: Any
    confidence: float = 0.0
    within_classes: bool = True
    min_rows: int = 10
    logit_scale: float = 100.0
    lam: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise InvalidInputError(f"confidence: expected a probability in [0, 1), got {self.confidence}")
        if self.min_rows < 1 or self.logit_scale <= 0:
            raise InvalidInputError(
                f"expected min_rows >= 1 and logit_scale > 0, got {self.min_rows} and {self.logit_scale}"
            )

    @classmethod
    def of(cls, given: Any) -> Reference:
        """`given` itself if it is a Reference, else one with defaults around features."""
        return given if isinstance(given, cls) else cls(given)

    def batches(self, size: int = 4096) -> Iterator[Tensor]:
        """The features as L2-normalised float64 batches (b, d).

        Raises:
            InvalidInputError: not (n, d), a value that is not finite, or a zero row.
        """
        whole = getattr(self.features, "features", self.features)  # data.Embeddings hold them under that name
        parts = [whole] if hasattr(whole, "shape") else whole
        for part in parts:
            for start in range(0, len(part), size):
                yield _unit_rows(part[start : start + size])


def _unit_rows(part: Any) -> Tensor:
    rows = part.detach().cpu() if isinstance(part, Tensor) else torch.from_numpy(part.copy())
    if rows.ndim != 2 or not rows.is_floating_point():
        raise InvalidInputError(f"reference: expected image features (n, d), got {rows.dtype} {tuple(rows.shape)}")
    rows = rows.double()
    norms = rows.norm(dim=1)
    bad = int((~torch.isfinite(norms) | (norms == 0)).sum())
    if bad:
        raise InvalidInputError(f"reference: {bad} of {len(rows)} image features are zero or not finite")
    return normalize(rows, dim=1)


@dataclass(frozen=True)
class MeansReport:
    """What a split of unlabelled images rests on.

    counts: class -> value -> rows used; "" for no classes. left_out: rows below the confidence.
    expected_error: value -> share of its rows that the model's probabilities give to other values; it is as good
    as the model's calibration. shrinkage: (1 - e_i - e_j), smallest over pairs of values: by its square the weight
    lam is reduced. stability: cosine between the mean differences of even and odd rows, smallest over pairs; what
    is missing to 1 is sampling noise.
    """

    counts: dict[str, dict[str, int]]
    left_out: int
    expected_error: dict[str, float]
    shrinkage: float
    stability: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


class GroupMeans:
    """Running means of image features by zero-shot attribute value and pseudo-class.

    Args:
        values: attribute value -> text embeddings (m, d) that describe it; their mean is the classifier's row.
        classes: class -> text embedding (d,), or None.
        reference: settings (its features are not read here).

    Raises:
        InvalidInputError: fewer than two values.
    """

    def __init__(
        self, values: dict[str, Tensor], classes: dict[str, Tensor] | None = None, reference: Reference | None = None
    ) -> None:
        if len(values) < 2:
            raise InvalidInputError(f"values: expected at least two values of the attribute, got {list(values)}")
        self._settings = reference or Reference(None)
        self._values = torch.stack([_direction(rows) for rows in values.values()])
        self._classes = torch.stack([_direction(row[None]) for row in classes.values()]) if classes else None
        self._value_names = tuple(values)
        self._class_names = tuple(classes) if classes else ("",)
        shape = (2, len(self._class_names), len(values))  # even and odd rows apart, for the stability
        self._counts = torch.zeros(shape, dtype=torch.float64)
        self._sums = torch.zeros((*shape, self._values.shape[1]), dtype=torch.float64)
        self._doubt = torch.zeros(len(values), dtype=torch.float64)
        self._seen = 0
        self._left_out = 0

    def update(self, features: Tensor) -> None:
        """Add L2-normalised float64 image features (b, d)."""
        if features.shape[1] != self._values.shape[1]:
            raise InvalidInputError(
                f"reference: image features have width {features.shape[1]}, texts {self._values.shape[1]}; "
                "embed both with one model"
            )
        probability, value = (self._settings.logit_scale * features @ self._values.T).softmax(1).max(1)
        cls = torch.zeros_like(value) if self._classes is None else (features @ self._classes.T).argmax(1)
        half = (torch.arange(len(features)) + self._seen) % 2
        sure = probability >= self._settings.confidence
        self._seen += len(features)
        self._left_out += int((~sure).sum())
        cell = ((half * len(self._class_names) + cls) * len(self._value_names) + value)[sure]
        self._counts.view(-1).index_add_(0, cell, torch.ones(len(cell), dtype=torch.float64))
        self._sums.view(-1, self._sums.shape[-1]).index_add_(0, cell, features[sure])
        self._doubt.index_add_(0, value[sure], 1 - probability[sure])

    def scatter(self) -> PairScatter:
        """The pairs of means as one term of the closed form; its weights sum to the number of pairs.

        Raises:
            InvalidInputError: no class has two values with enough rows.
        """
        differences, weights = self._pairs(*self._pooled())
        if not len(weights):
            found = dict(zip(self._value_names, map(int, self._counts.sum((0, 1))), strict=True))
            raise InvalidInputError(
                f"reference: expected at least {self._settings.min_rows} images of two attribute values, got {found} "
                f"and {self._left_out} below the confidence; give more images, or lower min_rows or confidence"
            )
        scaled = differences * (weights * len(weights) / weights.sum()).sqrt()[:, None]
        return PairScatter(scaled, len(weights))

    def report(self) -> MeansReport:
        """Counts, expected errors and stability of the split so far."""
        n = self._counts.sum((0, 1))
        errors = (self._doubt / n.clamp(min=1)).tolist()
        pairs = combinations(range(len(errors)), 2)
        return MeansReport(
            counts=self._table(),
            left_out=self._left_out,
            expected_error=dict(zip(self._value_names, errors, strict=True)),
            shrinkage=min(1 - errors[i] - errors[j] for i, j in pairs),
            stability=self._stability(),
        )

    def _pooled(self) -> tuple[Tensor, Tensor]:
        """Counts (c', a) and sums (c', a, d) with the classes that have no pair of their own pooled into one row."""
        counts, sums = self._counts.sum(0), self._sums.sum(0)
        thin = (counts >= self._settings.min_rows).sum(1) < 2
        return (
            torch.cat([counts[~thin], counts[thin].sum(0, keepdim=True)]),
            torch.cat([sums[~thin], sums[thin].sum(0, keepdim=True)]),
        )

    def _pairs(self, counts: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Differences (p, d) of means and their precisions (p,) for every pair of values of every class."""
        means = sums / counts.clamp(min=1)[..., None]
        differences, weights = [], []
        for c in range(len(counts)):
            filled = [a for a in range(counts.shape[1]) if counts[c, a] >= self._settings.min_rows]
            for i, j in combinations(filled, 2):
                differences.append(means[c, i] - means[c, j])
                weights.append(counts[c, i] * counts[c, j] / (counts[c, i] + counts[c, j]))
        if not weights:
            return sums.new_zeros((0, sums.shape[-1])), sums.new_zeros(0)
        return torch.stack(differences), torch.stack(weights)

    def _stability(self) -> float:
        pooled, sums = self._counts.sum(1), self._sums.sum(1)  # over classes: (2, a), (2, a, d)
        means = sums / pooled.clamp(min=1)[..., None]
        cosines = [
            float(torch.cosine_similarity(means[0, i] - means[0, j], means[1, i] - means[1, j], dim=0))
            for i, j in combinations(range(pooled.shape[1]), 2)
            if pooled[:, [i, j]].min() > 0
        ]
        return min(cosines, default=0.0)

    def _table(self) -> dict[str, dict[str, int]]:
        rows: Sequence[Sequence[float]] = self._counts.sum(0).tolist()
        return {
            name: dict(zip(self._value_names, map(int, row), strict=True))
            for name, row in zip(self._class_names, rows, strict=True)
        }


def _direction(rows: Tensor) -> Tensor:
    """Unit mean (d,) of unit rows (m, d): the zero-shot classifier's weight for a value with several prompts."""
    return normalize(normalize(rows.double(), dim=1).mean(0), dim=0)


def group_means(values: dict[str, Tensor], classes: dict[str, Tensor] | None, reference: Reference) -> GroupMeans:
    """The means of all images of `reference`."""
    means = GroupMeans(values, classes, reference)
    for batch in reference.batches():
        means.update(batch)
    return means
