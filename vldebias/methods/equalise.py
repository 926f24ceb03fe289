"""Equalise against unlabelled images: group means of images take the place of prompt pairs in eq. 7.4.

Unlabelled images are split by their zero-shot attribute value, within pseudo-classes where there are any, so that a
class that goes along with the attribute is not removed with it. A text that is equally close to the means of two parts
ranks both parts alike on average. With d_c the difference of two means in class c, s2 the variance inside a part and
p_c = n_ci n_cj / (n_ci + n_cj) the precision of d_c, the closed form is that of prompt pairs,

    z* = (I + lam sum_c w_c D_c D_c^T)^-1 z0,    w_c = p_c / sum p.

Few images of a class leave d_c noisy, and noise removes what should stay. So each is moved towards the mean of all, as
far as the data ask for it (the method of moments of DerSimonian and Laird, 1986, in d dimensions):

    m = sum w_c d_c        tau2 = max(0, (sum p_c |d_c - m|^2 - (k - 1) s2) / (sum p_c - sum p_c^2 / sum p_c))
    D_c = m + tau2 / (tau2 + s2 / p_c) (d_c - m)

and m itself towards what the texts of the values say already, t = text_i - text_j, in the manner of James and Stein,
with p = sum_c p_c, one beta and one share for all pairs of values:

    beta = sum p <m, t> / sum p |t|^2
    kept = max(0, 1 - s2 / mean p |m - beta t|^2)      m -> beta t + kept (m - beta t)

Wrong pseudo-labels: where errors do not depend on the image beyond its value, the expected difference is
(1 - e_i - e_j) D: shorter, in the same direction, which costs a factor (1 - e_i - e_j)^2 of lam and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, ReferenceWarning, warn
from vldebias.methods.diagnostics import spread_along
from vldebias.methods.problem import Problem
from vldebias.methods.reference import Reference, cosines
from vldebias.projection import PairScatter
from vldebias.prompts import PromptSet

_FEWEST = 2  # rows of a part whose mean is used
_UNSTABLE = 0.8  # cosine between the mean differences of two halves of the reference images
_UNSURE = 0.1  # expected share of wrong pseudo-labels of a value
_FOREIGN = 3.0  # deviations from images of another space, see `spread_along`
_SAMPLE = 1000  # rows that are enough to tell
_ADDED = 1024  # rows that are added up in their own type: a sum of float32 loses digits as it grows


class UnusableReferenceError(InvalidInputError):
    """Images show one value of the attribute alone, too few of a second one, or nothing that texts tell apart."""


@dataclass(frozen=True)
class MeansReport:
    """Say what a split of unlabelled images rests on.

    counts: class -> value -> rows; "" for no classes. left_out: rows below the confidence. used: rows in classes
    whose means are compared. expected_error: value -> share of its rows that the model's probabilities give to other
    values; it is as good as the model's calibration. stability: cosine between the mean differences of even and odd
    rows, smallest over pairs; what is missing to 1 is sampling noise.
    """

    counts: dict[str, dict[str, int]]
    left_out: int
    used: int
    expected_error: dict[str, float]
    stability: float


class GroupMeans:
    """Keep running means of image features by zero-shot attribute value and pseudo-class.

    Args:
        values: attribute value -> text embeddings (m, d) that describe it; their mean is the classifier's row.
        classes: class -> text embedding (d,), or None.
        reference: settings (its features are not read here).
    """

    def __init__(
        self, values: dict[str, Tensor], classes: dict[str, Tensor] | None = None, reference: Reference | None = None
    ) -> None:
        self._settings = reference or Reference(None)
        self._values = torch.stack([_direction(rows) for rows in values.values()])
        self._classes = torch.stack([_direction(row[None]) for row in classes.values()]) if classes else None
        self._value_names, self._class_names = tuple(values), tuple(classes or ("",))
        shape = (2, len(self._class_names), len(values))  # even and odd rows apart, for the stability
        self._counts = torch.zeros(shape, dtype=torch.float64)
        self._sums = torch.zeros((*shape, self._values.shape[1]), dtype=torch.float64)
        self._doubt = torch.zeros(len(values), dtype=torch.float64)
        self.sample = self._values[:0]
        self._seen = self._left_out = 0

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
        """Return the pairs of means as one term of the closed form; its weights sum to the number of pairs.

        Raises:
            UnusableReferenceError: no class has two values with enough rows.
        """
        counts, sums = (halves.sum(0) for halves in self._compared())
        means, pairs = sums / counts.clamp(min=1)[..., None], []
        for i, j in combinations(range(counts.shape[1]), 2):
            both = (counts[:, [i, j]] >= _FEWEST).all(1)
            if both.any():
                precision = counts[both, i] * counts[both, j] / (counts[both, i] + counts[both, j])
                pairs.append(_Pair(means[both, i] - means[both, j], precision, self._values[i] - self._values[j]))
        if not pairs:
            seen = dict(zip(self._value_names, map(int, self._counts.sum((0, 1))), strict=True))
            raise UnusableReferenceError(
                f"reference: expected at least {_FEWEST} images of two attribute values, got {seen} "
                f"and {self._left_out} below the confidence; give more images, or a lower confidence"
            )
        n, parts = float(counts.sum()), int((counts > 0).sum())
        explained = float((sums.square().sum(-1) / counts.clamp(min=1)).sum())
        noise = max(0.0, n - explained) / max(1.0, n - parts)  # variance of unit rows around the means of their parts
        rows, precision = torch.cat(_shrunk(pairs, noise)), torch.cat([one.precision for one in pairs])
        return PairScatter(rows * (precision * len(rows) / precision.sum()).sqrt()[:, None], len(rows))

    def report(self) -> MeansReport:
        """Report counts, expected errors and stability of the split so far."""
        table = [dict(zip(self._value_names, map(int, row), strict=True)) for row in self._counts.sum(0).tolist()]
        errors = (self._doubt / self._counts.sum((0, 1)).clamp(min=1)).tolist()
        return MeansReport(
            counts=dict(zip(self._class_names, table, strict=True)),
            left_out=self._left_out,
            used=int(self._compared()[0].sum()),
            expected_error=dict(zip(self._value_names, errors, strict=True)),
            stability=self._stability(),
        )

    def _compared(self) -> tuple[Tensor, Tensor]:
        """Counts (2, c', a) and sums (2, c', a, d) of the classes with a pair of their own, else of all together."""
        paired = (self._counts.sum(0) >= _FEWEST).sum(1) >= 2
        if paired.any():
            return self._counts[:, paired], self._sums[:, paired]
        return self._counts.sum(1, keepdim=True), self._sums.sum(1, keepdim=True)

    def _stability(self) -> float:
        """Cosine of the mean differences of the two halves, over the classes where both halves have both values."""
        counts, sums = self._compared()
        means, found = sums / counts.clamp(min=1)[..., None], []
        for i, j in combinations(range(counts.shape[2]), 2):
            own = counts[..., [i, j]]
            both = (own > 0).all(0).all(1)
            if both.any():
                precision = (own.prod(2) / own.sum(2).clamp(min=1))[:, both]
                halves = ((means[:, both, i] - means[:, both, j]) * precision[..., None]).sum(1)
                found.append(float(torch.cosine_similarity(halves[0], halves[1], dim=0)))
        return min(found, default=0.0)


@dataclass(frozen=True, eq=False)
class _Pair:
    """Differences of means (k, d) of two values over k classes, precisions (k,), and that of the texts (d,)."""

    raw: Tensor
    precision: Tensor
    texts: Tensor


def _shrunk(pairs: list[_Pair], noise: float) -> list[Tensor]:
    """The differences (k, d) of each pair: towards their mean, and that towards the texts, as far as they are noise."""
    means = torch.stack([one.precision @ one.raw / one.precision.sum() for one in pairs])
    texts = torch.stack([one.texts for one in pairs])
    p = torch.stack([one.precision.sum() for one in pairs])
    length = float(p @ texts.square().sum(1))
    texts = (float(p @ (means * texts).sum(1)) / length if length > 0 else 0.0) * texts
    beyond = float(p @ (means - texts).square().sum(1)) / len(pairs)
    kept = max(0.0, 1 - noise / beyond) if beyond > 0 else 0.0
    settled = texts + kept * (means - texts)
    return [
        level + _own(one, mean, noise)[:, None] * (one.raw - mean)
        for one, mean, level in zip(pairs, means, settled, strict=True)
    ]


def _own(pair: _Pair, mean: Tensor, noise: float) -> Tensor:
    """Share (k,) of a class's deviation from the mean that is kept: tau2 / (tau2 + s2 / p)."""
    total = pair.precision.sum()
    excess = pair.precision @ (pair.raw - mean).square().sum(1) - (len(pair.raw) - 1) * noise
    spread = total - pair.precision.square().sum() / total
    tau2 = float(excess / spread) if len(pair.raw) > 1 and excess > 0 else 0.0
    return tau2 * pair.precision / (tau2 * pair.precision + noise) if tau2 else 0 * pair.precision


def _direction(rows: Tensor) -> Tensor:
    """Unit mean (d,) of unit rows (m, d): the zero-shot classifier's weight for a value with several prompts."""
    return normalize(normalize(rows.double(), dim=1).mean(0), dim=0)


def group_means(problem: Problem, prompt_set: PromptSet, role: str, classes: Tensor | None) -> GroupMeans:
    """Return the means of the reference images of a problem, split by the zero-shot values of one attribute.

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
    """Say why images (n, d) are not of the space of the texts; "" where nothing says so."""
    prompts = dict.fromkeys((*chain.from_iterable(prompt_set.groups), *prompt_set.classes))
    spread, deviations = spread_along(images, problem.embed(prompts, role))
    if not spread or deviations >= _FOREIGN:
        return ""
    return (
        f"image and text features look unaligned (variance ratio {spread:.2g}, as noise and images of another model "
        "have it); embed both with one model, or give more images"
    )


def image_scatter(problem: Problem, prompt_set: PromptSet, role: str, classes: Tensor | None) -> PairScatter:
    """Return the pairs of image means of one attribute as a term of the closed form.

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
