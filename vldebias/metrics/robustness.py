"""How well a representation holds: under an attack of the pixels, under augmentations, and within a class.

Robust accuracy under the fast gradient sign method: every pixel moves by epsilon, the way that hurts most. Source:
Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples" (2015), section 4; the budget of 8/255
is that of section 5.3 of SSA-CLR (`vldebias.training` has the method). One step is a weak attack, so what it leaves
standing bounds the worst case from above and is no proof of robustness.

Distribution shift gap: how far augmentations of an image are from the class that they should stand for. Source:
SSA-CLR, Theorem 4 and section 6.2. Contrastive learning wants positive pairs of one class and gets two augmentations of
one image; the gap is the price of it in the bound on the supervised loss.

k-variance: how far apart two random halves of one class are, by optimal transport. Source: Solomon et al.,
"k-variance: a clustered notion of variance" (2022); unnormalised with p = 1 as in chapter 8 of Chuang's thesis
(definition 8.1 and Lemma 8.5).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, need
from vldebias.metrics.arrays import Values, codes, rows, vector

EPSILON = 8 / 255

_MOST = 100  # rows of a subset by default: costs grow with the square in memory and with the cube in time

Classifier = Callable[[Tensor], Tensor]


def fgsm(classifier: Classifier, images: Tensor, labels: Tensor, *, epsilon: float = EPSILON) -> Tensor:
    """clip(x + epsilon sign(grad_x CE(classifier(x), y)), 0, 1), images (n, c, h, w) in the dtype they came in.

    With m = log sum_{j != y} e^{z_j} - z_y the cross-entropy is log(1 + e^m), which grows with m: both gradients have
    one sign. The one of m is taken, because that of the cross-entropy underflows to 0 where the classifier is sure,
    and an attack of sign 0 would pass for robustness.

    Args:
        classifier: differentiable, from images in [0, 1] to logits (n, k), row by row. Preprocessing belongs in it. A
            module is asked in eval mode; its modes, parameters and their gradients stay as they are.
        images: (n, c, h, w) floating point in [0, 1].
        labels: (n,) integers, the true classes.
        epsilon: >= 0, in units of the pixels' range [0, 1].

    Raises:
        InvalidInputError: images that are not floating point in [0, 1], labels or logits that do not fit, fewer than
            two classes, a negative epsilon, or a classifier that passes no gradient to its input.
    """
    _check(images, labels, epsilon)
    with _asked(classifier), torch.inference_mode(False), torch.enable_grad():
        pixels, labels = images.detach().clone().requires_grad_(), labels.clone()  # copies: not of inference mode
        logits = _logits(classifier, pixels, labels)
        true = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels[:, None], True)
        margins = logits.masked_fill(true, -torch.inf).logsumexp(1) - logits.gather(1, labels[:, None]).squeeze(1)
        gradient = torch.autograd.grad(margins.sum(), pixels, allow_unused=True)[0] if margins.requires_grad else None
    if gradient is None:
        raise InvalidInputError("classifier: no gradient reaches the images; expected differentiable logits of them")
    return (pixels.detach() + epsilon * gradient.sign()).clamp(0, 1)


def robust_correct(
    classifier: Classifier, images: Tensor, labels: Tensor, *, epsilon: float = EPSILON, batch_size: int = 256
) -> Tensor:
    """Which images (n,) are still classified right after `fgsm`; their mean is the robust accuracy.

    At epsilon = 0 it is the accuracy. `batch_size` images at a time; see `fgsm` for the other arguments and Raises.
    """
    if batch_size < 1:
        raise InvalidInputError(f"batch_size: expected at least 1, got {batch_size}")
    _check(images, labels, epsilon)
    correct = []
    for some, of in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        attacked = fgsm(classifier, some, of, epsilon=epsilon)
        with _asked(classifier), torch.no_grad():
            correct.append(_logits(classifier, attacked, of).argmax(1) == of)
    return torch.cat(correct)


def _logits(classifier: Classifier, images: Tensor, labels: Tensor) -> Tensor:
    logits = classifier(images)
    if logits.ndim != 2 or len(logits) != len(images) or logits.shape[1] < 2:
        raise InvalidInputError(
            f"classifier: expected logits ({len(images)}, k) with k >= 2, got {tuple(logits.shape)}"
        )
    if int(labels.max()) >= logits.shape[1]:
        raise InvalidInputError(f"labels: the classifier has {logits.shape[1]} classes, got {int(labels.max())}")
    return logits


@contextmanager
def _asked(classifier: Classifier) -> Iterator[None]:
    """Inside, a module is in eval mode: dropout would move the gradient and batch statistics would mix the images."""
    modules = list(classifier.modules()) if isinstance(classifier, nn.Module) else []
    modes = [module.training for module in modules]
    try:
        for module in modules:
            module.training = False
        yield
    finally:
        for module, training in zip(modules, modes, strict=True):
            module.training = training


def _check(images: Tensor, labels: Tensor, epsilon: float) -> None:
    if not images.is_floating_point() or images.ndim != 4 or len(images) == 0:
        raise InvalidInputError(
            f"images: expected floating point (n, c, h, w) in [0, 1], got {tuple(images.shape)} of {images.dtype}"
        )
    low, high = float(images.min()), float(images.max())
    if not 0 <= low <= high <= 1:
        raise InvalidInputError(
            f"images: expected pixels in [0, 1], got {low:g} .. {high:g}; let the classifier normalise them"
        )
    if labels.shape != images.shape[:1] or labels.dtype != torch.int64 or int(labels.min()) < 0:
        raise InvalidInputError(
            f"labels: expected ({len(images)},) int64 >= 0, got {tuple(labels.shape)} of {labels.dtype}"
        )
    if not epsilon >= 0:
        raise InvalidInputError(f"epsilon: expected a number >= 0, got {epsilon}")


def shift_distances(
    views: Values, labels: Values, *, images: Values | None = None, norm: float = 2.0, exponent: float = 1.0
) -> np.ndarray:
    """|| mu_c - mean_t f(t(x)) ||_norm ^ exponent of every image x of class c, (n,) float64.

    Their mean is the gap, sum_c pi_c E_{x ~ p_c} || E_{x+ ~ p_c} f(x+) - E_t f(t(x)) || with pi_c the shares of the
    classes in `labels`; resample them for an interval.

    The paper prints the norm in three ways: to the power 1/2 (Theorem 4, `exponent=0.5`), with the index 1/2 (section
    6.2, `norm=0.5`), and plain where it proves the bound (Theorem 9): the default, the Euclidean norm to the power 1.

    The noise of the mean over t views adds to the distance: of the squared Euclidean one, the trace of the views'
    covariance divided by t. So compare augmentations at one t.

    Args:
        views: (n, t, d) features of t random augmentations of each image.
        labels: (n,) classes.
        images: (n, d) features of the images themselves, whose class means are mu_c = E f(x+). None takes the views'
            own means. An image is part of its class mean, which brings the distance down by the order of 1 / (images
            of the class).
        norm: index p > 0 of (sum_i |v_i|^p)^(1/p), `inf` for the maximum; no norm for p < 1, but still defined.
        exponent: > 0, of the norm.

    Raises:
        InvalidInputError: shapes that do not fit, NaN or infinite features, norm or exponent not positive.
    """
    seen, label = rows(views, "views").astype(np.float64), vector(labels, "labels")
    if seen.ndim != 3 or 0 in seen.shape or not np.isfinite(seen).all():
        raise InvalidInputError(f"views: expected finite features (n, t, d), got shape {seen.shape}")
    means = seen.mean(axis=1)
    whole = means if images is None else rows(images, "images").astype(np.float64)
    if len(label) != len(seen) or whole.shape != means.shape:
        raise InvalidInputError(
            f"expected labels ({len(seen)},) and images {means.shape} for views {seen.shape}, "
            f"got {label.shape} and {whole.shape}"
        )
    if not np.isfinite(whole).all():
        raise InvalidInputError("images: expected finite features")
    if not (norm > 0 and 0 < exponent < np.inf):
        raise InvalidInputError(f"norm and exponent: expected numbers > 0, got {norm} and {exponent}")
    names, index = codes(label, None)
    sums = np.zeros((len(names), whole.shape[1]))
    np.add.at(sums, index, whole)
    class_means = (sums / np.bincount(index)[:, None])[index]
    return np.linalg.norm(class_means - means, ord=norm, axis=1) ** exponent


def k_variance(
    features: Values, *, k: int | None = None, draws: int | None = None, p: float = 1.0, seed: int = 0
) -> float:
    """Mean over draws of W_p^p between two random subsets of k rows of `features` (n, d); all subsets are disjoint.

    Small where the features of the class are concentrated. With uniform weights and equal sizes W_p^p is the cheapest
    one-to-one matching, where a pair costs its Euclidean distance to the power p, divided by k; cubic in k. k = 1 pairs
    rows at random: with p = 2 that is twice the trace of the covariance, in the mean.

    Args:
        features: (n, d) features of one class, in any unit; with p = 1 the result has the same unit.
        k: size of each subset, at most n // 2; default: that, which is the thesis's choice, and at most 100.
        draws: how many pairs of subsets, at most n // (2 k), which is the default; the thesis uses 1. Lemma 8.5 bounds
            the error of a mean over independent pairs, which subsets that share rows are not.
        p: > 0; the thesis uses 1.

    Raises:
        InvalidInputError: not (n, d) with finite values and n >= 2, k outside 1 .. n // 2, draws outside
            1 .. n // (2 k), or p not positive.
    """
    points = rows(features, "features")
    if points.ndim != 2 or len(points) < 2 or not np.isfinite(points).all():
        raise InvalidInputError(f"features: expected finite (n, d) with n >= 2, got shape {points.shape}")
    half = len(points) // 2
    size = min(half, _MOST) if k is None else k
    if not 1 <= size <= half:
        raise InvalidInputError(f"k: two disjoint subsets of {len(points)} rows have 1 .. {half} rows, got {k}")
    most = len(points) // (2 * size)
    blocks = most if draws is None else draws
    if not 1 <= blocks <= most:
        raise InvalidInputError(
            f"draws: {len(points)} rows have 1 .. {most} disjoint pairs of subsets of {size} rows, got {draws}; "
            "take fewer, or a smaller k"
        )
    if not 0 < p < np.inf:
        raise InvalidInputError(f"p: expected a number > 0, got {p}")
    order = np.random.default_rng(seed).permutation(len(points))[: 2 * size * blocks]
    pairs = (points[block].astype(np.float64) for block in order.reshape(blocks, 2, size))
    return float(np.mean([_transport(one, other, p) for one, other in pairs]))


def _transport(one: np.ndarray, other: np.ndarray, p: float) -> float:
    """W_p^p between two sets of k points: the mean cost of the best matching.

    Products of the points choose the matching, since all differences would take (k, k, d) steps that no library blocks;
    what it costs is then taken from the k differences that were chosen, free of the rounding of products.
    """
    linear_sum_assignment = need("scipy.optimize").linear_sum_assignment

    x, y = one - one[0], other - one[0]  # near the origin, where products lose least
    squares = (x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T
    match = linear_sum_assignment(np.maximum(squares, 0) ** (p / 2))[1]
    return float((np.linalg.norm(one - other[match], axis=1) ** p).mean())
