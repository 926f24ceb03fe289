"""Equalise against unlabelled images: group means of images take the place of prompt pairs in eq. 7.4.

Unlabelled images are split by their zero-shot attribute value, within pseudo-classes where there are any, so that a
class that goes along with the attribute is not removed with it. The means of two parts are a pair: a text that is
equally close to both ranks both parts alike on average. The closed form is that of prompt pairs,

    z* = (I + lam sum_c w_c D_c D_c^T)^-1 z0,    w_c = p_c / sum p,    p_c = n_ci n_cj / (n_ci + n_cj),

alone or as one more term beside the prompt pairs; p_c is the precision of a difference of means d_c. Few images of a
class leave d_c noisy, and noise removes what should stay. So each is moved towards the mean of all, as far as the data
ask for it (the method of moments of DerSimonian and Laird, 1986, in d dimensions; s2 is the variance inside a part):

    m = sum w_c d_c        tau2 = max(0, (sum p_c |d_c - m|^2 - (k - 1) s2) / (sum p_c - sum p_c^2 / sum p_c))
    D_c = m + tau2 / (tau2 + s2 / p_c) (d_c - m)

Where the k classes differ by no more than noise, tau2 = 0 and one pair is left: the difference at equal classes.

That mean is noisy as well where images are few: of twenty, most of it is. What noise adds is taken off, but not from
what the texts of the values say already, t = text_i - text_j. Over the pairs of values, each with p = sum_c p_c, in the
manner of James and Stein,

    beta = sum p <m, t> / sum p |t|^2      m -> beta t + kept (m - beta t)
    kept = max(0, 1 - s2 / mean p |m - beta t|^2)

so that without images the difference of the texts would be left, and with many m is. One beta and one share for all
pairs: differences of several values stay differences. Searching photographs, 20 images had made a ranking worse than
prompt pairs alone do; shrunk they make it better (docs/explanation/the-default.md).

Means are kept as running sums: the images may come in batches.

Wrong pseudo-labels: where errors do not depend on the image beyond its value, the expected difference is
(1 - e_i - e_j) D: shorter, in the same direction, which costs a factor (1 - e_i - e_j)^2 of lam and nothing else.
`GroupMeans.report` says what the model's own probabilities predict for it; a model may be sure and wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, combinations
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, ReferenceWarning, warn
from vldebias.methods.diagnostics import spread_along
from vldebias.methods.method import Problem
from vldebias.methods.reference import Reference, cosines
from vldebias.projection import PairScatter
from vldebias.prompts import PromptSet

_UNSTABLE = 0.8  # cosine between the mean differences of two halves of the reference images
_UNSURE = 0.1  # expected share of wrong pseudo-labels of a value
_FOREIGN = 3.0  # deviations from images of another space, see `spread_along`
_SAMPLE = 1000  # rows that are enough to tell
_ADDED = 1024  # rows that are added up in their own type: a sum of float32 loses digits as it grows


class UnusableReferenceError(InvalidInputError):
    """Images that show one value of the attribute alone, too few of a second one, or nothing that texts tell apart."""


@dataclass(frozen=True)
class MeansReport:
    """What a split of unlabelled images rests on.

    counts: class -> value -> rows; "" for no classes. left_out: rows below the confidence. used: rows in classes
    whose means are compared. own: share of the deviation of a class from the mean difference that is kept, mean over
    pairs of means; 0 where the classes differ by no more than noise. kept: share of what the mean difference says
    beyond the texts that is kept; what is missing to 1 is taken for noise.
    expected_error: value -> share of its rows that the model's probabilities give to other values; it is as good
    as the model's calibration. shrinkage: (1 - e_i - e_j), smallest over pairs of values: by its square the weight
    lam is reduced. stability: cosine between the mean differences of even and odd rows, smallest over pairs; what
    is missing to 1 is sampling noise.
    """

    counts: dict[str, dict[str, int]]
    left_out: int
    used: int
    own: float
    expected_error: dict[str, float]
    shrinkage: float
    stability: float
    kept: float

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
        self.sample = self._values[:0]
        self._seen = 0
        self._left_out = 0

    def update(self, features: Tensor) -> None:
        """Add image features (b, d), of which the directions count: in float64, or in float32, summed up in float64."""
        value, probability = self._settings.read(features, self._values)
        cls = torch.zeros_like(value) if self._classes is None else cosines(features, self._classes).argmax(1)
        half = (torch.arange(len(features)) + self._seen) % 2
        sure = probability >= self._settings.confidence
        if (missing := _SAMPLE - len(self.sample)) > 0:
            self.sample = torch.cat([self.sample, normalize(features[:missing].double(), dim=1)])
        self._seen += len(features)
        self._left_out += int((~sure).sum())
        cell = ((half * len(self._class_names) + cls) * len(self._value_names) + value)[sure]
        self._counts.view(-1).index_add_(0, cell, torch.ones(len(cell), dtype=torch.float64))
        unit = normalize(features if sure.all() else features[sure], dim=1)
        for rows, cells in zip(unit.split(_ADDED), cell.split(_ADDED), strict=True):
            sums = torch.zeros(self._counts.numel(), rows.shape[1], dtype=rows.dtype).index_add_(0, cells, rows)
            self._sums += sums.view_as(self._sums)
        self._doubt.index_add_(0, value[sure], 1 - probability[sure])

    def scatter(self) -> PairScatter:
        """The pairs of means as one term of the closed form; its weights sum to the number of pairs.

        Raises:
            InvalidInputError: no class has two values with enough rows.
        """
        counts, sums = self._compared()
        differences = self._differences(counts.sum(0), sums.sum(0))
        if not differences:
            seen = dict(zip(self._value_names, map(int, self._counts.sum((0, 1))), strict=True))
            raise UnusableReferenceError(
                f"reference: expected at least {self._settings.min_rows} images of two attribute values, got {seen} "
                f"and {self._left_out} below the confidence; give more images, or lower min_rows or confidence"
            )
        rows = torch.cat([one.shrunk for one in differences])
        precision = torch.cat([one.precision for one in differences])
        return PairScatter(rows * (precision * len(rows) / precision.sum()).sqrt()[:, None], len(rows))

    def report(self) -> MeansReport:
        """Counts, expected errors and stability of the split so far."""
        counts, sums = self._compared()
        errors = (self._doubt / self._counts.sum((0, 1)).clamp(min=1)).tolist()
        differences = self._differences(counts.sum(0), sums.sum(0))
        own = [one.own for one in differences]
        return MeansReport(
            counts=self._table(),
            left_out=self._left_out,
            used=int(counts.sum()),
            own=float(torch.cat(own).mean()) if own else 0.0,
            expected_error=dict(zip(self._value_names, errors, strict=True)),
            shrinkage=min(1 - a - b for a, b in combinations(errors, 2)),
            stability=self._stability(),
            kept=differences[0].kept if differences else 0.0,
        )

    def _compared(self) -> tuple[Tensor, Tensor]:
        """Counts (2, c', a) and sums (2, c', a, d) of the classes with a pair of their own, else of all together."""
        paired = (self._counts.sum(0) >= self._settings.min_rows).sum(1) >= 2
        if paired.any():
            return self._counts[:, paired], self._sums[:, paired]
        return self._counts.sum(1, keepdim=True), self._sums.sum(1, keepdim=True)

    def _differences(self, counts: Tensor, sums: Tensor) -> list[_Differences]:
        """One entry for every pair of values that some class has."""
        means, n, parts = sums / counts.clamp(min=1)[..., None], float(counts.sum()), int((counts > 0).sum())
        explained = float((sums.square().sum(-1) / counts.clamp(min=1)).sum())
        noise = max(0.0, n - explained) / max(1.0, n - parts)  # variance of unit rows around the means of their parts
        differences = []
        for i, j in combinations(range(counts.shape[1]), 2):
            both = (counts[:, [i, j]] >= self._settings.min_rows).all(1)
            if both.any():
                precision = counts[both, i] * counts[both, j] / (counts[both, i] + counts[both, j])
                texts = self._values[i] - self._values[j]
                differences.append(_Differences(means[both, i] - means[both, j], precision, noise, texts))
        return _settled(differences)

    def _stability(self) -> float:
        """Cosine of the mean differences of the two halves, over the classes where both halves have both values."""
        all_counts, sums = self._compared()
        means = sums / all_counts.clamp(min=1)[..., None]
        cosines = []
        for i, j in combinations(range(len(self._value_names)), 2):
            counts = all_counts[..., [i, j]]
            both = (counts > 0).all(0).all(1)
            if both.any():
                precision = (counts.prod(2) / counts.sum(2).clamp(min=1))[:, both]
                halves = ((means[:, both, i] - means[:, both, j]) * precision[..., None]).sum(1)
                cosines.append(float(torch.cosine_similarity(halves[0], halves[1], dim=0)))
        return min(cosines, default=0.0)

    def _table(self) -> dict[str, dict[str, int]]:
        rows: Sequence[Sequence[float]] = self._counts.sum(0).tolist()
        return {
            name: dict(zip(self._value_names, map(int, row), strict=True))
            for name, row in zip(self._class_names, rows, strict=True)
        }


@dataclass(frozen=True, eq=False)
class _Differences:
    """Differences of means (k, d) of two values over k classes, precisions (k,), noise: variance inside a part.

    texts: (d,), what the means are expected to differ by from texts alone. kept: share of the rest that is kept.
    """

    raw: Tensor
    precision: Tensor
    noise: float
    texts: Tensor
    kept: float = 1.0

    @property
    def mean(self) -> Tensor:
        """Mean over classes (d,), weighted by precision."""
        return self.precision @ self.raw / self.precision.sum()

    @property
    def own(self) -> Tensor:
        """Share (k,) of a class's deviation from the mean that is kept: tau2 / (tau2 + s2 / p)."""
        total = self.precision.sum()
        excess = self.precision @ (self.raw - self.mean).square().sum(1) - (len(self.raw) - 1) * self.noise
        spread = total - self.precision.square().sum() / total
        tau2 = float(excess / spread) if len(self.raw) > 1 and excess > 0 else 0.0
        return tau2 * self.precision / (tau2 * self.precision + self.noise) if tau2 else 0 * self.precision

    @property
    def shrunk(self) -> Tensor:
        """Differences (k, d) moved towards their mean as far as they are noise, and that towards what texts say."""
        settled = self.texts + self.kept * (self.mean - self.texts)
        return settled + self.own[:, None] * (self.raw - self.mean)


def _settled(differences: list[_Differences]) -> list[_Differences]:
    """With the texts at the length that fits all pairs best, and the share of what goes beyond them that is kept."""
    if not differences:
        return []
    means, texts = (torch.stack([getattr(one, name) for one in differences]) for name in ("mean", "texts"))
    p = torch.stack([one.precision.sum() for one in differences])
    length = float(p @ texts.square().sum(1))
    beta = float(p @ (means * texts).sum(1)) / length if length > 0 else 0.0
    beyond = float(p @ (means - beta * texts).square().sum(1)) / len(differences)
    kept = max(0.0, 1 - differences[0].noise / beyond) if beyond > 0 else 0.0
    return [replace(one, texts=beta * one.texts, kept=kept) for one in differences]


def _direction(rows: Tensor) -> Tensor:
    """Unit mean (d,) of unit rows (m, d): the zero-shot classifier's weight for a value with several prompts."""
    return normalize(normalize(rows.double(), dim=1).mean(0), dim=0)


def group_means(problem: Problem, prompt_set: PromptSet, role: str, classes: Tensor | None) -> GroupMeans:
    """The means of the reference images of a problem, split by the zero-shot values of one of its attributes.

    classes: (k, d) texts that tell pseudo-classes apart; None: no classes.
    """
    reference = problem.reference
    assert reference is not None
    values = {value: problem.embed(prompts, role) for value, prompts in prompt_set.by_value().items()}
    within = classes is not None and reference.within_classes
    named = dict(zip(prompt_set.classes, classes, strict=True)) if within and classes is not None else None
    means = GroupMeans(values, named, reference)
    for block in reference.blocks():
        means.update(block)
    return means


def foreign(images: Tensor, problem: Problem, prompt_set: PromptSet, role: str) -> str:
    """Why images (n, d) are not of the space of the texts, as a sentence; "" where nothing says so."""
    prompts = dict.fromkeys((*chain.from_iterable(prompt_set.groups), *prompt_set.classes))
    spread, deviations = spread_along(images, problem.embed(prompts, role))
    if not spread or deviations >= _FOREIGN:
        return ""
    return (
        f"along what the texts differ in, the images vary {spread:.2g} times as much as along any direction, as noise "
        "does, and as images of another model do; embed both with one model, or give more images"
    )


def image_scatter(problem: Problem, prompt_set: PromptSet, role: str, classes: Tensor | None) -> PairScatter:
    """The pairs of image means of one attribute as a term of the closed form.

    Warns:
        ReferenceWarning: the split of the images rests on too little.
    """
    means = group_means(problem, prompt_set, role, classes)
    scatter, report = means.scatter(), means.report()
    unsure = max(report.expected_error.values())
    doubt = foreign(means.sample, problem, prompt_set, role)
    if not doubt and report.stability < _UNSTABLE:
        doubt = (
            f"two halves of the reference images give different directions (cosine {report.stability:.2f}); the images "
            "are too few, or do not differ in this attribute"
        )
    if not doubt and unsure > _UNSURE:
        doubt = (
            f"the model doubts {unsure:.0%} of its own labels of the reference images, so their groups may differ in "
            "something else"
        )
    if doubt:
        warn(f"{prompt_set.name}: {doubt}: measure before you rely on it", ReferenceWarning)
    return scatter
