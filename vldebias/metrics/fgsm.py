"""Robust accuracy under the fast gradient sign method: every pixel moves by epsilon, the way that hurts most.

Source: Goodfellow, Shlens and Szegedy, "Explaining and Harnessing Adversarial Examples" (2015), section 4; the budget
of 8/255 is that of section 5.3 of SSA-CLR (`vldebias.training` has the method). One step is a weak attack, so what it
leaves standing bounds the worst case from above and is no proof of robustness.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vldebias.errors import InvalidInputError

__all__ = ["EPSILON", "fgsm", "robust_correct"]

EPSILON = 8 / 255

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
        margins = _margins(_logits(classifier, pixels, labels), labels)
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
    found = []
    for some, of in zip(images.split(batch_size), labels.split(batch_size), strict=True):
        attacked = fgsm(classifier, some, of, epsilon=epsilon)
        with _asked(classifier), torch.no_grad():
            found.append(_logits(classifier, attacked, of).argmax(1) == of)
    return torch.cat(found)


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    """log sum_{j != y} e^{z_j} - z_y, (n,): negative where the class is more likely than all others together."""
    true = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels[:, None], True)
    others = logits.masked_fill(true, -torch.inf).logsumexp(1)
    return others - logits.gather(1, labels[:, None]).squeeze(1)


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
