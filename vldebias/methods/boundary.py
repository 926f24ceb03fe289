"""Move the boundary between a classifier's classes to where reference images divide.

A zero-shot classifier is often wrong because its boundary lies in the wrong place rather than
because its texts point in the wrong direction. With u_a the unit text of class a, an image x goes
to the class with the largest <x, u_a> - o_a, and CLIP's own boundary has all offsets o_a = 0.

    labelled images    With m_ab the mean of <x, u_b> over the labelled images of class a, two
                       classes meet halfway between their means:
                       o_a = mean_b (m_aa - m_ab + m_ba - m_bb) / 2
                       With unlabelled images in addition, the texts may also be turned, see
                       `vldebias.methods.few_labels`. Labelled images that are left out decide.
    unlabelled images  For two classes, two normals of one variance are fitted to the scores
                       <x, u_1 - u_0>. Their midpoint is the boundary, o_1 - o_0 = midpoint,
                       because equal priors protect the worst group rather than the average.

The result becomes an edit of text that maps each class text u_a to another one. For offsets, this
is u_a - o_a v. Images share a large mean, so <x, v> is nearly 1 for every image if v lies along the
mean image. v is orthogonal to the class texts, which therefore keep their norms to first order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data.label_values import CLASS
from vldebias.errors import warn_of_input
from vldebias.hosts.edits import IMAGE
from vldebias.methods.equalise import UnusableReferenceError, foreign
from vldebias.methods.few_labels import (
    class_means,
    codes_of_column,
    left_out,
    left_out_labels,
    offsets,
    taught_texts,
)
from vldebias.methods.method import Problem
from vldebias.methods.reference import zero_shot
from vldebias.projection.edit import Edit
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import PromptSet
from vldebias.utils.arrays import Codes, Floats
from vldebias.utils.phrases import quantity

FEWEST_UNLABELLED = 100  # with fewer distinct images, two parts appear by chance
FEWEST_LABELLED = 20  # as many as were measured in eval/results/simple_rivals.json
APART = 3.5  # at a distance of 2.5 deviations, one class is sometimes cut in two
SMALLEST_PART = 0.03
CLEAR_GAIN = 10.0  # difference in BIC that Kass and Raftery (1995) call "very strong"
# A class that text finds in at most this share of its labelled images is reported.
NOT_FOUND = 0.1
_FEWEST_OF_CLASS = 5  # labelled images of a class, for such a report
_MOST_ROWS = 5_000  # scores used to fit two normals; more would not change the decision
_MOST_LEARNED = 2_000  # images from which texts are learned, which takes at most a second
_STEPS = 300
_LEAST_AGREEMENT = 0.95  # minimum share of images for which the edit equals the offsets
_TINY = 1e-9


class Parts(NamedTuple):
    """Two normals of one variance, fitted to scores.

    Attributes:
        boundary: the midpoint between the two means.
        separation: the distance between the means, in standard deviations.
        smaller: the share of the smaller part.
        gain: the BIC of one normal minus the BIC of two.
        deviation: the common standard deviation.
    """

    boundary: float
    separation: float
    smaller: float
    gain: float
    deviation: float


def two_parts(scores: Floats) -> Parts:
    """Fit two normals of one variance by expectation-maximisation, the best of four starts.

    Args:
        scores: (n,) scores that are not all equal.
    """
    best_likelihood = -np.inf
    for quantiles in ((0.05, 0.95), (0.2, 0.8), (0.5, 0.98), (0.02, 0.5)):
        mean = np.quantile(scores, quantiles)
        deviation = scores.std() / 2
        share = np.full(2, 0.5)
        for _ in range(_STEPS):
            distance = (scores[:, None] - mean) / deviation
            density = share * np.exp(-0.5 * distance**2) / deviation + np.finfo(float).tiny
            total = density.sum(1)
            part = density / total[:, None]
            count = part.sum(0) + _TINY
            mean = (part * scores[:, None]).sum(0) / count
            variance = (part * (scores[:, None] - mean) ** 2).sum() / len(scores)
            deviation = np.sqrt(variance) + _TINY
            share = count / count.sum()
        likelihood = np.log(total).sum()
        if likelihood > best_likelihood:
            best_likelihood = likelihood
            best = mean, deviation, share
    mean, deviation, share = best
    spread = scores.std()
    squares = ((scores - scores.mean()) / spread) ** 2
    likelihood_of_one = -0.5 * squares.sum() - len(scores) * np.log(spread)
    return Parts(
        boundary=float(mean.mean()),
        separation=float(abs(mean[1] - mean[0]) / deviation),
        smaller=float(share.min()),
        # Two normals have two more parameters than one: a mean and a share.
        gain=float(2 * (best_likelihood - likelihood_of_one) - 2 * np.log(len(scores))),
        deviation=float(deviation),
    )


def offsets_of_parts(scores: Floats) -> tuple[Floats, str]:
    """Return the offset of each class (2,) for unlabelled images, and a sentence about the images.

    Args:
        scores: (n, k) cosines with the k class texts.

    Raises:
        UnusableReferenceError: If there are not two classes, the scores do not clearly have two
            parts, or the boundary already lies between them. The message continues a sentence.
    """
    remedy = f"label 20 images or more with their class (labels={{{CLASS!r}: ...}})"
    if scores.shape[1] != 2:
        raise UnusableReferenceError(f"for more than two classes, {remedy}.")
    margins = scores[:, 1] - scores[:, 0]
    different = len(np.unique(margins))
    if different < FEWEST_UNLABELLED:
        raise UnusableReferenceError(
            f"{FEWEST_UNLABELLED} different images are needed, got {different}; or {remedy}."
        )
    parts = two_parts(margins[:: -(-len(margins) // _MOST_ROWS)])
    apart = f"{parts.separation:.1f} standard deviations apart"
    if parts.separation <= APART or parts.gain <= CLEAR_GAIN:
        raise UnusableReferenceError(
            "the images do not clearly fall into the two classes (the best two parts are"
            f" {apart}; more than {APART:g} are needed). To move it, {remedy}."
        )
    if parts.smaller <= SMALLEST_PART:
        raise UnusableReferenceError(
            f"one class has only {parts.smaller:.1%} of the images. To move it, {remedy}."
        )
    if abs(parts.boundary) <= parts.deviation:
        raise UnusableReferenceError("it already lies between the two classes of images.")
    moves = np.array([-parts.boundary, parts.boundary]) / 2
    return moves, f"The images fall into two parts, {apart}."


def class_labels(problem: Problem, prompt_set: PromptSet) -> Codes | None:
    """Return the class (n,) of each reference image, or -1 if it is unlabelled.

    Returns None if no image has a label under the key "class".

    Args:
        problem: the problem with the reference images.
        prompt_set: the set whose class names the labels use.

    Raises:
        InvalidInputError: If a label is not the name of one of the set's classes.
    """
    column_labels = problem.images.labels.get(CLASS)
    if column_labels is None:
        return None
    names = [name.casefold() for name in prompt_set.class_names]
    place = dict(zip(names, range(len(names)), strict=True))
    where = f"reference: labels {CLASS!r} of {prompt_set.name}"
    labels = codes_of_column(
        column_labels, where, prompt_set.class_names, lambda label: place.get(label.casefold())
    )
    return labels if (labels >= 0).any() else None


def texts_of_labels(
    rows: Tensor, texts: Tensor, labels: Codes, names: Sequence[str]
) -> tuple[Tensor, str]:
    """Return texts (k, d) as labelled images move or turn them, and a sentence about the images.

    Args:
        rows: unit rows (n, d) of all images.
        texts: unit class texts (k, d).
        labels: class of each image (n,), or -1 if it is unlabelled.
        names: the k class names.

    Raises:
        UnusableReferenceError: If a class has no image, or the balanced accuracy does not rise when
            images are left out. The message continues a sentence.
    """
    known = labels >= 0
    codes = labels[known]
    counts = np.bincount(codes, minlength=len(names))
    if not counts.all():
        missing = [repr(name) for name, count in zip(names, counts, strict=True) if not count]
        raise UnusableReferenceError(f"no image is labelled {' or '.join(missing)}.")
    sample = rows[:: -(-len(rows) // _MOST_LEARNED)].numpy()
    learn_from = texts.numpy(), sample, rows.numpy()[known], codes
    scores = cosines(rows, texts)[known]
    before, moved, learned = (
        np.bincount(codes, predicted == codes) / counts
        for predicted in (
            scores.argmax(1),
            left_out(scores, codes),
            left_out_labels(*learn_from),
        )
    )
    is_learned = bool(learned.mean() >= moved.mean())
    after = learned if is_learned else moved
    # Compare the numbers that are shown.
    is_better = round(after.mean(), 2) > round(before.mean(), 2)
    sentence = (
        f"with each of {len(codes)} labelled images left out in turn, balanced accuracy changes"
        f" from {before.mean():.2f} to {after.mean():.2f}."
    )
    shares = after if is_better else before
    for name, count, share in zip(names, counts, shares, strict=True):
        if share <= NOT_FOUND and count >= _FEWEST_OF_CLASS:
            sentence += f" The text does not find {name!r} ({share * count:.0f} of {count} images)."
    if not is_better:
        raise UnusableReferenceError(sentence)
    if is_learned:
        targets = torch.from_numpy(taught_texts(*learn_from))
    else:
        targets = with_offsets(rows, texts, offsets(class_means(scores, codes)))
    return targets, f"{sentence[0].upper()}{sentence[1:]}"


def move_boundary(problem: Problem, role: str, edit: Edit) -> tuple[Edit, str]:
    """Move the boundary between the classes to where the reference images divide.

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.
        edit: the edit of text that is applied before.

    Returns:
        The edit with the boundary moved, and sentences that state what was done.

    Raises:
        UnusableReferenceError: If the boundary stays where it is. The message continues a sentence.
        InvalidInputError: If a label of the reference is not the name of a class.
    """
    if len(problem.sets) > 1:
        raise UnusableReferenceError("it is only moved for a single prompt set.")
    (prompt_set,) = problem.sets
    names = prompt_set.class_names
    if role == IMAGE or not isinstance(edit, CalibratedProjection):
        raise UnusableReferenceError("it is moved by editing text, but only images are edited.")
    if len(names) < 2:
        raise UnusableReferenceError(f"{prompt_set.name} has fewer than two classes.")
    rows = torch.cat([*problem.images.batches()])
    classes = problem.host.embed(prompt_set.classes, role)
    texts = normalize(edit(classes), dim=1)
    before = zero_shot(rows, texts).numpy()
    labels = class_labels(problem, prompt_set)
    if labels is None:
        doubt = foreign(rows, problem, prompt_set, role)
        if doubt:
            raise UnusableReferenceError(f"{doubt}.")
        moves, how = offsets_of_parts(cosines(rows, texts))
        targets = with_offsets(rows, texts, moves)
    else:
        targets, how = texts_of_labels(rows, texts, labels, names)
    moved = with_texts(edit, classes, targets)
    changed = (cosines(rows, moved(classes)).argmax(1) != before).mean()
    labelled = 0 if labels is None else int((labels >= 0).sum())
    if 0 < labelled < FEWEST_LABELLED:
        more = quantity(FEWEST_LABELLED - labelled, "more image")
        warn_of_input(
            f"reference: only {labelled} labelled images move the boundary, which was tested with"
            f" {FEWEST_LABELLED}; label {more}",
        )
    return moved, f"Moved the boundary: {changed:.0%} of the images change class. {how}"


def cosines(rows: Tensor, texts: Tensor) -> Floats:
    """Return the cosines (n, k) between images and texts.

    Args:
        rows: embeddings (n, d) of images, of norm 1.
        texts: embeddings (k, d) of texts, of any norm.
    """
    products: Floats = (rows @ normalize(texts, dim=1).T).numpy()
    return products


def with_offsets(rows: Tensor, texts: Tensor, moves: Floats) -> Tensor:
    """Return texts (k, d) whose scores are lower by an offset, see the module docstring.

    Args:
        rows: unit rows (n, d) of images.
        texts: unit class texts (k, d).
        moves: offsets (k,).

    Raises:
        UnusableReferenceError: If no direction lowers the scores of all images alike. The message
            continues a sentence.
    """
    mean = rows.mean(0)
    basis = torch.linalg.qr(texts.T).Q
    along = mean - basis @ (basis.T @ mean)
    along = along / (along @ mean).clamp(min=_TINY)
    # Adding a constant to all offsets changes no class.
    moved = texts - torch.outer(torch.from_numpy(moves - moves.mean()), along)
    expected = (cosines(rows, texts) - moves).argmax(1)
    if (cosines(rows, moved).argmax(1) == expected).mean() < _LEAST_AGREEMENT:
        raise UnusableReferenceError(
            "the images share no direction along which class texts could be moved."
        )
    return moved


def with_texts(
    edit: CalibratedProjection, classes: Tensor, targets: Tensor
) -> CalibratedProjection:
    """Return an edit that maps class texts to other texts.

    Args:
        edit: the projection P = I - L R^T that maps the class texts now.
        classes: class texts U (k, d) before any edit.
        targets: what they become, T (k, d).
    """
    # P' = P + (T - U P^T)^T pinv(U)^T, so that P' u_a = t_a
    return CalibratedProjection(
        edit.lam,
        torch.cat([edit.left, (edit(classes) - targets).T], 1),
        torch.cat([edit.right, torch.linalg.pinv(classes)], 1),
        edit.provenance,
        edit.spurious_rank,
    )
