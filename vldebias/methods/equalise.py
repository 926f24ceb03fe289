"""Equalise texts against unlabelled images: group means of images replace the prompt pairs in eq. 7.4.

Unlabelled images are split by their zero-shot attribute value, within pseudo-classes if there are any, so that a class
that correlates with the attribute is not removed with it. A text that is equally close to the means of two groups gives
both the same score on average. With d_c the difference of two means in class c, s2 the variance inside a group and
p_c = n_ci n_cj / (n_ci + n_cj) the precision of d_c, the closed form is that of prompt pairs,

    z* = (I + lam sum_c w_c D_c D_c^T)^-1 z0,    w_c = p_c / sum p.

With few images of a class d_c is noisy, and noise would remove useful directions. So each d_c is shrunk towards the
mean of all, by the method of moments of DerSimonian and Laird (1986) in d dimensions:

    m = sum w_c d_c        tau2 = max(0, (sum p_c |d_c - m|^2 - (k - 1) s2) / (sum p_c - sum p_c^2 / sum p_c))
    D_c = m + tau2 / (tau2 + s2 / p_c) (d_c - m)

and m is shrunk towards the difference of the value texts, t = text_i - text_j, in the manner of James and Stein,
with p = sum_c p_c, one beta and one share for all pairs of values:

    beta = sum p <m, t> / sum p |t|^2
    kept = max(0, 1 - s2 / mean p |m - beta t|^2)      m -> beta t + kept (m - beta t)

Wrong pseudo-labels: where errors do not depend on the image beyond its value, the expected difference is
(1 - e_i - e_j) D: shorter, in the same direction, which is the same as a lam smaller by (1 - e_i - e_j)^2.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, ReferenceWarning, warn
from vldebias.methods.diagnostics import spread_along
from vldebias.methods.method import Problem
from vldebias.methods.reference import Reference, zero_shot
from vldebias.prompts import PromptSet

_FEWEST = 2  # images of a class and value whose mean is used
_UNSTABLE = 0.8  # cosine between the mean differences of two halves of the reference images
_UNSURE = 0.1  # expected share of wrong pseudo-labels of a value
_FOREIGN = 3.0  # deviations from images of another space, see `spread_along`
_SAMPLE = 1000  # rows that are enough to tell


class UnusableReferenceError(InvalidInputError):
    """Report reference images that show one attribute value only, or that another model embedded."""


class ImageSplit:
    """Sum the unit image features of a reference by zero-shot value and pseudo-class.

    Attributes:
        texts: (a, d), a unit row for each value. sample: the first rows of the images.
        counts, sums: (2, k, a) and (2, k, a, d), even and odd rows apart, by class and value.
        expected_error: (a,) expected share of wrong rows of each value, by the model's own probabilities.
    """

    def __init__(self, texts: Tensor, classes: Tensor | None, reference: Reference) -> None:
        self.texts, self.sample, seen = texts, texts[:0], 0
        shape = (2, 1 if classes is None else len(classes), len(texts))
        self.counts = torch.zeros(shape, dtype=torch.float64)
        self.sums = torch.zeros((*shape, texts.shape[1]), dtype=torch.float64)
        wrong = torch.zeros(shape[2], dtype=torch.float64)
        for rows in reference.batches():
            value, probability = zero_shot(rows, texts)
            label = torch.zeros_like(value) if classes is None else (rows @ classes.T).argmax(1)
            half = (torch.arange(len(rows)) + seen) % 2
            cell = (half * shape[1] + label) * shape[2] + value
            self.counts.view(-1).index_add_(0, cell, torch.ones(len(cell), dtype=torch.float64))
            self.sums.view(-1, rows.shape[1]).index_add_(0, cell, rows)
            wrong.index_add_(0, value, 1 - probability)
            self.sample = torch.cat([self.sample, rows[: max(0, _SAMPLE - seen)]])
            seen += len(rows)
        self.expected_error = wrong / self.counts.sum((0, 1)).clamp(min=1)

    def compared(self) -> tuple[Tensor, Tensor]:
        """Return counts (2, k', a) and sums of the classes that have two values, or of all classes pooled."""
        paired = (self.counts.sum(0) >= _FEWEST).sum(1) >= 2
        if paired.any():
            return self.counts[:, paired], self.sums[:, paired]
        return self.counts.sum(1, keepdim=True), self.sums.sum(1, keepdim=True)

    def scatter(self) -> Tensor:
        """Return rows X (pairs, d) with X^T X = sum_c w_c D_c D_c^T, weights with sum 1.

        Raises:
            UnusableReferenceError: no class has two values with enough rows.
        """
        counts, sums = (halves.sum(0, keepdim=True) for halves in self.compared())
        raw, own = (one[0] for one in _differences(counts, sums, _FEWEST))  # (p, k, d), (p, k)
        if not (known := own.any(1)).any():
            seen = self.counts.sum((0, 1)).int().tolist()
            raise UnusableReferenceError(
                f"reference: expected at least {_FEWEST} images of two attribute values, got {seen}; pass more"
            )
        i, j = torch.combinations(torch.arange(len(self.texts)))[known].T
        raw, own, texts = raw[known], own[known], self.texts[i] - self.texts[j]
        n, parts = float(counts.sum()), int((counts > 0).sum())
        explained = float((sums.square().sum(-1) / counts.clamp(min=1)).sum())
        noise = max(0.0, n - explained) / max(1.0, n - parts)  # variance of unit rows around the means of their parts
        p = own.sum(1)
        mean = (own[..., None] * raw).sum(1) / p[:, None]
        length = float(p @ texts.square().sum(1))
        texts = (float(p @ (mean * texts).sum(1)) / length if length > 0 else 0.0) * texts
        beyond = float(p @ (mean - texts).square().sum(1)) / len(p)
        settled = texts + (max(0.0, 1 - noise / beyond) if beyond > 0 else 0.0) * (mean - texts)
        apart, classes = raw - mean[:, None], (own > 0).sum(1)
        excess = (own * apart.square().sum(2)).sum(1) - (classes - 1) * noise
        tau2 = torch.where((classes > 1) & (excess > 0), excess / (p - own.square().sum(1) / p), 0.0)[:, None]
        share = torch.where(tau2 > 0, tau2 * own / (tau2 * own + noise), 0.0)[..., None]
        return ((settled[:, None] + share * apart) * (own / p.sum()).sqrt()[..., None])[own > 0]

    @property
    def stability(self) -> float:
        """Return the smallest cosine, over pairs of values, between the mean differences of even and of odd rows."""
        raw, precision = _differences(*self.compared(), 1)
        even, odd = (raw * precision[..., None]).sum(2)[:, precision[0].any(1)]
        return min(torch.cosine_similarity(even, odd, dim=1).tolist(), default=0.0)


def _differences(counts: Tensor, sums: Tensor, least: int) -> tuple[Tensor, Tensor]:
    """Return the differences (h, p, k, d) of the means of p pairs of values, and their precisions (h, p, k).

    The precision is 0 where one of the h parts has fewer than `least` rows of either value in the class.
    """
    i, j = torch.combinations(torch.arange(counts.shape[2])).T
    means = (sums / counts.clamp(min=1)[..., None]).transpose(1, 2)
    n_i, n_j = counts.transpose(1, 2)[:, i], counts.transpose(1, 2)[:, j]
    enough = (torch.minimum(n_i, n_j) >= least).all(0)
    return means[:, i] - means[:, j], enough * n_i * n_j / (n_i + n_j).clamp(min=1)


def foreign(images: Tensor, problem: Problem, prompt_set: PromptSet, role: str) -> str:
    """Return a warning if images (n, d) seem to be embedded by another model than the texts, else ""."""
    prompts = dict.fromkeys((*chain.from_iterable(prompt_set.groups), *prompt_set.classes))
    spread, deviations = spread_along(images, problem.host.embed([*prompts], role))
    if not spread or deviations >= _FOREIGN:
        return ""
    return (
        f"image and text features look unaligned (variance ratio {spread:.2g}); are both of the same model? Embed both "
        "with one, or pass more images"
    )


def image_scatter(problem: Problem, prompt_set: PromptSet, role: str, classes: Tensor | None) -> Tensor:
    """Return the scatter of the differences of image means of one attribute (`ImageSplit.scatter`).

    Warns:
        ReferenceWarning: the images are unaligned, unstable between halves, or uncertain in their values.
    """
    reference = problem.reference
    assert reference is not None
    within = None if classes is None or not reference.within_classes else normalize(classes, dim=1)
    split = ImageSplit(problem.zero_shot(prompt_set, role), within, reference)
    scatter, unsure = split.scatter(), float(split.expected_error.max())
    doubt = foreign(split.sample, problem, prompt_set, role)
    if not doubt and split.stability < _UNSTABLE:
        doubt = (
            f"two halves of the reference images give different directions (cosine {split.stability:.2f}); they are "
            "too few, or do not differ in this attribute. Pass more images"
        )
    if not doubt and unsure > _UNSURE:
        doubt = (
            f"about {unsure:.0%} of the zero-shot labels of the reference images are wrong, by the model's own "
            "probabilities, so the edit may change something else. Measure it on labelled images"
        )
    if doubt:
        warn(f"{prompt_set.name}: {doubt}", ReferenceWarning)
    return scatter
