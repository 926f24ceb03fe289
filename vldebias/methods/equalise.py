"""Equalise texts against unlabelled images: group means of images replace the prompt pairs in eq.
7.4.

Unlabelled images are split by their zero-shot attribute value, within pseudo-classes if there are
any, so that a class that correlates with the attribute is not removed with it. A text that is
equally close to the means of two groups gives both the same score on average. With d_c the
difference of two means in class c, s2 the variance inside a group and p_c = n_ci n_cj / (n_ci +
n_cj) the precision of d_c, the closed form is that of prompt pairs,

    z* = (I + lam sum_c w_c D_c D_c^T)^-1 z0,    w_c = p_c / sum p.

With few images of a class d_c is noisy, and noise would remove useful directions. So each d_c is
shrunk towards the mean of all, by the method of moments of DerSimonian and Laird (1986) in d
dimensions:

    m = sum w_c d_c
        tau2 = max(0, (sum p_c |d_c - m|^2 - (k - 1) s2) / (sum p_c - sum p_c^2 / sum p_c))
    D_c = m + tau2 / (tau2 + s2 / p_c) (d_c - m)

and m is shrunk towards the difference of the value texts, t = text_i - text_j, in the manner of
James and Stein, with p = sum_c p_c, one beta and one share for all pairs of values:

    beta = sum p <m, t> / sum p |t|^2
    kept = max(0, 1 - s2 / mean p |m - beta t|^2)      m -> beta t + kept (m - beta t)

Wrong pseudo-labels: where errors do not depend on the image beyond its value, the expected
difference is (1 - e_i - e_j) D: shorter, in the same direction, which is the same as a lam smaller
by (1 - e_i - e_j)^2.
"""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from vldebias.errors import InvalidInputError, ReferenceWarning, warn
from vldebias.methods.diagnostics import spread_along
from vldebias.methods.method import Problem
from vldebias.methods.reference import Reference, zero_shot
from vldebias.prompts import PromptSet

_FEWEST = 2  # images of a class and value whose mean is used
_UNSTABLE = (
    0.8  # expected cosine between the mean differences of two halves of the reference images
)
_FOREIGN = 3.0  # deviations from images of another space, see `spread_along`
_SAMPLE = 1000  # rows that are enough to tell
_TINY = torch.finfo(torch.float64).tiny


class UnusableReferenceError(InvalidInputError):
    """Report reference images that show one attribute value only, or that another model
    embedded."""


class ImageSplit:
    """Split the unit image features of a reference by zero-shot value and pseudo-class, and compare
    the means.

    Attributes:
        counts: (k, a) images by class and value. sample: (n, d), the first of them.
        scatter: rows X (pairs, d) with X^T X = sum_c w_c D_c D_c^T, weights with sum 1.
        stability: expected cosine between the m of two halves of the images, the least over pairs
            of values.

    Raises:
        UnusableReferenceError: no class has two values with enough rows.
    """

    def __init__(self, texts: Tensor, classes: Tensor | None, reference: Reference) -> None:
        (a, d), self.sample = texts.shape, texts[:0]
        classes = texts[:1] if classes is None else classes
        found = torch.zeros(len(classes), a, 1 + d, dtype=torch.float64)
        for rows in reference.batches():
            value = zero_shot(rows, texts)
            found.index_put_(
                ((rows @ classes.T).argmax(1), value), pad(rows, (1, 0), value=1.0), accumulate=True
            )
            self.sample = torch.cat([self.sample, rows[: _SAMPLE - len(self.sample)]])
        self.counts = found[..., 0]
        paired = (self.counts >= _FEWEST).sum(1) >= 2
        found = (
            found[paired] if paired.any() else found.sum(0, keepdim=True)
        )  # all classes are pooled
        counts = found[..., 0]
        sums = found[..., 1:]
        i, j = torch.combinations(torch.arange(a)).T
        n_i = counts.T[i]
        n_j = counts.T[j]
        own = (
            (torch.minimum(n_i, n_j) >= _FEWEST) * n_i * n_j / (n_i + n_j).clamp(min=_TINY)
        )  # (p, k)
        if not (known := own.any(1)).any():
            seen = self.counts.sum(0).int().tolist()
            raise UnusableReferenceError(
                f"reference: expected at least {_FEWEST} images of two attribute values, got"
                f" {seen}; pass more"
            )
        means = (sums / counts.clamp(min=_TINY)[..., None]).transpose(0, 1)
        raw = (means[i] - means[j])[known]
        own = own[known]
        texts = (texts[i] - texts[j])[known]
        n = counts.sum()
        parts = (counts > 0).sum()
        explained = (sums.square().sum(-1) / counts.clamp(min=1)).sum()
        noise = (n - explained).clamp(min=0) / (
            n - parts
        )  # of unit rows around the means of their parts
        p = own.sum(1)
        mean = (own[..., None] * raw).sum(1) / p[:, None]
        length = mean.square().sum(1)
        self.stability = float(((length - noise / p) / (length + noise / p).clamp(min=_TINY)).min())
        texts = (p @ (mean * texts).sum(1) / (p @ texts.square().sum(1)).clamp(min=_TINY)) * texts
        beyond = p @ (mean - texts).square().sum(1) / len(p)
        settled = texts + (1 - noise / beyond.clamp(min=_TINY)).clamp(min=0) * (mean - texts)
        apart = raw - mean[:, None]
        several = (own > 0).sum(1)
        excess = (own * apart.square().sum(2)).sum(1) - (several - 1) * noise
        tau2 = torch.where(
            (several > 1) & (excess > 0), excess / (p - own.square().sum(1) / p), 0.0
        )[:, None]
        share = torch.where(tau2 > 0, tau2 * own / (tau2 * own + noise), 0.0)[..., None]
        self.scatter = ((settled[:, None] + share * apart) * (own / p.sum()).sqrt()[..., None])[
            own > 0
        ]


def foreign(images: Tensor, problem: Problem, prompt_set: PromptSet, role: str) -> str:
    """Return a warning if images (n, d) seem to be embedded by another model than the texts, else
    ""."""
    prompts = dict.fromkeys(chain(*prompt_set.groups, prompt_set.classes))
    spread, deviations = spread_along(images, problem.host.embed([*prompts], role))
    if not spread or deviations >= _FOREIGN:
        return ""
    return (
        f"image and text features look unaligned (variance ratio {spread:.2g}); are both of the"
        " same model? Embed both with one, or pass more images"
    )


def image_scatter(
    problem: Problem, prompt_set: PromptSet, role: str, classes: Tensor | None
) -> Tensor:
    """Return the scatter of the differences of image means of one attribute (`ImageSplit`).

    Warns:
        ReferenceWarning: the images are unaligned with the texts, or too few.
    """
    within = None if classes is None else normalize(classes, dim=1)
    split = ImageSplit(problem.zero_shot(prompt_set, role), within, problem.reference)
    doubt = foreign(split.sample, problem, prompt_set, role)
    if not doubt and split.stability < _UNSTABLE:
        doubt = (
            "two halves of the reference images would give different directions (cosine"
            f" {split.stability:.2f}); they are too few, or do not differ in this attribute. Pass"
            " more images"
        )
    if doubt:
        warn(f"{prompt_set.name}: {doubt}", ReferenceWarning)
    return split.scatter
