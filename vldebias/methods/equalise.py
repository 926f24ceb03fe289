"""Equalise text with unlabelled images, using their group means instead of prompt pairs in eq. 7.4.

Unlabelled images are split by their zero-shot attribute value, within pseudo-classes if there are
any, so that a class that correlates with the attribute is not removed along with it. Text that is
equally close to the means of two groups gives both the same average score. With d_c the difference
between two means in class c, s2 the variance within a group and p_c = n_ci n_cj / (n_ci + n_cj) the
precision of d_c, the closed form is the one for prompt pairs,

    z* = (I + lam sum_c w_c D_c D_c^T)^-1 z0,    w_c = p_c / sum p.

With few images of a class, d_c is noisy, and the noise would remove useful directions. Each d_c is
therefore shrunk towards the mean over classes, using the method of moments of DerSimonian and Laird
(1986) in d dimensions:

    m = sum w_c d_c
        tau2 = max(0, (sum p_c |d_c - m|^2 - (k - 1) s2) / (sum p_c - sum p_c^2 / sum p_c))
    D_c = m + tau2 / (tau2 + s2 / p_c) (d_c - m)

and m is shrunk towards the difference between the value embeddings, t = text_i - text_j, similarly
to James and Stein, with p = sum_c p_c, and one beta and one share for all pairs of values:

    beta = sum p <m, t> / sum p |t|^2
    kept = max(0, 1 - s2 / mean p |m - beta t|^2)      m -> beta t + kept (m - beta t)

Suppose that pseudo-labels are wrong at rates e_i and e_j, which depend only on the value of an
image. The expected difference is then (1 - e_i - e_j) D. It is shorter and has the same direction,
which is equivalent to multiplying lam by (1 - e_i - e_j)^2.
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

_FEWEST = 2  # minimum number of images per class and value; smaller groups are ignored
# Minimum expected cosine between the mean differences in two halves of the reference images.
_UNSTABLE = 0.8
_FOREIGN = 3.0  # minimum of `spread_along`, in standard deviations above 1, for aligned images
_SAMPLE = 1000  # number of rows used to compute the `spread_along` ratio
_TINY = torch.finfo(torch.float64).tiny


class UnusableReferenceError(InvalidInputError):
    """Raised if reference images show only one attribute value or come from a different model."""


class ImageSplit:
    """Split reference images by zero-shot value and pseudo-class, and compare the means.

    Args:
        texts: (a, d) unit text embeddings of the values.
        classes: (k, d) text embeddings of the pseudo-classes, or None.
        reference: the image features.

    Attributes:
        counts: (k, a) images by class and value.
        sample: (n, d), the first images.
        scatter: rows X (pairs, d) with X^T X = sum_c w_c D_c D_c^T; the weights sum to 1.
        stability: expected cosine between the mean differences m that two halves of the images
            would give. This is the minimum over pairs of attribute values.

    Raises:
        UnusableReferenceError: If no class has two values with enough rows.
    """

    def __init__(self, texts: Tensor, classes: Tensor | None, reference: Reference) -> None:
        if classes is None:
            classes = texts[:1]  # one class that contains all images
        values, width = texts.shape
        # (k, a, 1 + d): the number of images per class and value, then their sum.
        cells = torch.zeros(len(classes), values, 1 + width, dtype=torch.float64)
        self.sample = texts[:0]
        for rows in reference.batches():
            value = zero_shot(rows, texts)
            pseudo_class = (rows @ classes.T).argmax(1)
            # Prepend a 1 to each row, so that the sum of the rows also contains their number.
            counted_rows = pad(rows, (1, 0), value=1.0)
            cells.index_put_((pseudo_class, value), counted_rows, accumulate=True)
            # A sample of rows shows whether text and images are from the same model.
            self.sample = torch.cat([self.sample, rows[: _SAMPLE - len(self.sample)]])
        self.counts = cells[..., 0]
        has_pair = (self.counts >= _FEWEST).sum(1) >= 2
        # A class with only one value has no difference and would only contribute noise.
        if has_pair.any():
            cells = cells[has_pair]
        else:
            cells = cells.sum(0, keepdim=True)  # pool the classes if none has two values
        means = _PairedMeans(cells, self.counts)
        self.stability = means.stability
        self.scatter = means.scatter(texts)


class _PairedMeans:
    """Compare the means of each pair of values (p pairs, k classes), in the module's notation.

    Args:
        cells: (k, a, 1 + d), the counts and then the sums for the compared classes.
        counts_of_classes: (k, a) image counts for all classes, for the error message.

    Attributes:
        first: (p,) first value of each pair that occurs in a class.
        second: (p,) second value of each pair.
        precision: (p, k), p_c for each pair and class.
        differences: (p, k, d), d_c for each pair and class.
        noise: s2, the variance of unit rows around the means of their cells.

    Raises:
        UnusableReferenceError: If no class has two values with enough rows.
    """

    def __init__(self, cells: Tensor, counts_of_classes: Tensor) -> None:
        counts = cells[..., 0]
        sums = cells[..., 1:]
        first, second = torch.combinations(torch.arange(counts.shape[1])).T
        n_first = counts.T[first]  # (p, k)
        n_second = counts.T[second]
        # (p, k), true for classes in which both values have enough images.
        enough = torch.minimum(n_first, n_second) >= _FEWEST
        precision = enough * n_first * n_second / (n_first + n_second).clamp(min=_TINY)
        known = precision.any(1)
        if not known.any():
            counts_of_values = counts_of_classes.sum(0).int().tolist()
            raise UnusableReferenceError(
                f"reference: expected at least {_FEWEST} images of two attribute values, got"
                f" {counts_of_values}; pass more images"
            )
        self.first = first[known]
        self.second = second[known]
        self.precision = precision[known]
        means = (sums / counts.clamp(min=_TINY)[..., None]).transpose(0, 1)  # (a, k, d)
        self.differences = (means[first] - means[second])[known]
        # The noise is the sum of squares of the unit rows, minus the part that the means explain.
        images = counts.sum()
        occupied = (counts > 0).sum()
        explained = (sums.square().sum(-1) / counts.clamp(min=1)).sum()
        self.noise = (images - explained).clamp(min=0) / (images - occupied)

    @property
    def total_precision(self) -> Tensor:
        """Return each pair's total precision p over its classes, (p,)."""
        return self.precision.sum(1)

    @property
    def mean(self) -> Tensor:
        """Return each pair's mean difference m over its classes, (p, d)."""
        # Weighted differences, (p, k, d).
        weighted = self.precision[..., None] * self.differences
        return weighted.sum(1) / self.total_precision[:, None]

    @property
    def stability(self) -> float:
        """Return the expected cosine between the m of two image halves, minimised over pairs."""
        length = self.mean.square().sum(1)
        # |m|^2 is the signal plus noise of s2 / p, which is twice as large in each half.
        noise = self.noise / self.total_precision
        return float(((length - noise) / (length + noise).clamp(min=_TINY)).min())

    def settled_mean(self, texts: Tensor) -> Tensor:
        """Return m (p, d) shrunk towards the differences between value embeddings (a, d)."""
        p = self.total_precision
        mean = self.mean
        text_differences = texts[self.first] - texts[self.second]
        # beta is the least-squares multiple of the text differences.
        along = p @ (mean * text_differences).sum(1)
        beta = along / (p @ text_differences.square().sum(1)).clamp(min=_TINY)
        expected = beta * text_differences
        # This is the mean of p |m - beta t|^2, which is s2 on average if there is only noise.
        beyond = p @ (mean - expected).square().sum(1) / len(p)
        kept = (1 - self.noise / beyond.clamp(min=_TINY)).clamp(min=0)
        return expected + kept * (mean - expected)

    def scatter(self, texts: Tensor) -> Tensor:
        """Return rows X (pairs, d) with X^T X = sum_c w_c D_c D_c^T; the weights sum to 1."""
        p = self.total_precision
        deviations = self.differences - self.mean[:, None]
        classes = (self.precision > 0).sum(1)
        # sum p_c |d_c - m|^2 is (k - 1) s2 on average if classes do not differ (Cochran's Q).
        excess = (self.precision * deviations.square().sum(2)).sum(1) - (classes - 1) * self.noise
        varies = (classes > 1) & (excess > 0)
        tau2 = torch.where(varies, excess / (p - self.precision.square().sum(1) / p), 0.0)[:, None]
        signal = tau2 * self.precision
        kept = torch.where(tau2 > 0, signal / (signal + self.noise), 0.0)[..., None]
        shrunk = self.settled_mean(texts)[:, None] + kept * deviations
        # Take square roots, because X^T X squares the weights.
        weights = (self.precision / p.sum()).sqrt()
        return (shrunk * weights[..., None])[self.precision > 0]


def foreign(images: Tensor, problem: Problem, prompt_set: PromptSet, role: str) -> str:
    """Return a warning if images and text seem to come from different models, otherwise "".

    Args:
        images: unit rows (n, d).
        problem: what the method is fitted on.
        prompt_set: the attribute whose text is compared.
        role: the role of the text embeddings.
    """
    prompts = dict.fromkeys(chain(*prompt_set.variants, prompt_set.classes))
    spread, deviations = spread_along(images, problem.host.embed([*prompts], role))
    if not spread or deviations >= _FOREIGN:
        return ""
    return (
        f"image and text features look unaligned (variance ratio {spread:.2g}); are both from the"
        " same model? Embed both with the same model, or pass more images"
    )


def image_scatter(
    problem: Problem, prompt_set: PromptSet, role: str, classes: Tensor | None
) -> Tensor:
    """Return the scatter of differences between image means for one attribute (`ImageSplit`).

    Args:
        problem: the problem with reference images.
        prompt_set: the prompt set of the attribute.
        role: the role of the text embeddings.
        classes: text embeddings (k, d) of the pseudo-classes, or None.

    Warns:
        ReferenceWarning: If the images are not aligned with the text, or too few.
    """
    # Normalise calibrated class embeddings, because different norms would affect argmax.
    if classes is not None:
        classes = normalize(classes, dim=1)
    split = ImageSplit(problem.zero_shot(prompt_set, role), classes, problem.images)
    doubt = foreign(split.sample, problem, prompt_set, role)
    if not doubt and split.stability < _UNSTABLE:
        doubt = (
            "two halves of the reference images would give different directions (cosine"
            f" {split.stability:.2f}); there are too few images, or they do not differ in this"
            " attribute. Pass more images"
        )
    if doubt:
        warn(f"{prompt_set.name}: {doubt}", ReferenceWarning)
    return split.scatter
