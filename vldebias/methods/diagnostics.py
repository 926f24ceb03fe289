"""Measure what an edit does to texts, without images: pair distance, spurious cosines and class signal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.errors import ClassSignalWarning, InvalidInputError, WideEditWarning, warn
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

if TYPE_CHECKING:
    from vldebias.hosts import Host

WIDE = 1 / 4 * 1 / 10  # share of a space whose loss changes other prompts: a quarter of it shrunk by a tenth


def spread_along(images: Tensor, texts: Tensor) -> tuple[float, float]:
    """Return the variance ratio of images (n, d): along the directions in which texts (m, d) differ, to the average.

    For images of the same model it is well above 1. For noise, or images of another model, it is 1 on average. With S
    the covariance of the images and M the mean projector on the k principal directions of the texts that hold 99 % of
    their variance, scaled to traces d and 1, its variance over rotations R is (Schur's lemma on symmetric matrices)

        var tr(M R S R^T) = 2 (1 / k - 1 / d) (tr S^2 - d) / ((d - 1) (d + 2)).

    Returns:
        The ratio, and how many standard deviations it is above 1; (0, 0) for fewer than two different images or texts.
    """
    rows, about = (x.double() - x.double().mean(0) for x in (images, texts))
    dim, total = rows.shape[1], float(rows.square().sum())
    _, singular, directions = torch.linalg.svd(about, full_matrices=False)
    held = singular.square().cumsum(0) / singular.square().sum()
    if total <= 1e-12 * len(rows) or not bool(singular[:1].sum() > 1e-9):
        return 0.0, 0.0
    k = int((held < 0.99).sum()) + 1
    spread = float((rows @ directions[:k].T).square().sum()) / k * dim / total
    gram = rows @ rows.T if len(rows) < dim else rows.T @ rows
    concentration = float(gram.square().sum()) * dim**2 / total**2 - dim
    variance = 2 * (1 / k - 1 / dim) * concentration / ((dim - 1) * (dim + 2))
    return spread, (spread - 1) / max(variance, 1e-12) ** 0.5


def pair_distance(pairs: Tensor) -> float:
    """Return the mean L2 distance |z_i - z_j| of pairs (n, 2, d); Table 7.6."""
    return float((pairs[:, 0] - pairs[:, 1]).norm(dim=-1).mean())


def _spread(classes: Tensor, spurious: Tensor) -> float:
    """Return the mean over classes (k, d) of max - min of their cosines with spurious texts (m, d); Table 7.1."""
    least, most = (normalize(classes, dim=-1) @ normalize(spurious, dim=-1).T).aminmax(dim=1)
    return float((most - least).mean())


def _kept(classes: Tensor, edit: Edit) -> tuple[float | None, float]:
    """Return the share of the distance between classes (k, d) that is left, None if it was 0, and their mean cosine."""
    i, j = torch.combinations(torch.arange(len(classes))).T
    differences = classes[i] - classes[j]
    before = differences.norm(dim=-1).sum()
    left = None if before == 0 else float(edit(differences).norm(dim=-1).sum() / before)
    return left, float(torch.cosine_similarity(classes, edit(classes), dim=-1).mean())


@dataclass(frozen=True)
class Diagnostics:
    """Hold what an edit does to the texts of a prompt set; None where the set has no such texts.

    pair_distance, held_out_distance: (before, after), mean L2 distance of the prompts of a pair (Table 7.6).
    spurious_spread: (before, after), mean range of a class's cosines with the spurious texts (Table 7.1).
    signal_kept: share of the distance between the classes. class_cosine: mean cosine of a class prompt with itself.
    """

    pair_distance: tuple[float, float]
    held_out_distance: tuple[float, float] | None = None
    spurious_spread: tuple[float, float] | None = None
    signal_kept: float | None = None
    class_cosine: float | None = None

    @classmethod
    def of(cls, host: Host, role: str, edit: Edit, prompts: PromptSet) -> Diagnostics:
        """Measure what an edit does to the texts of a prompt set, as the host embeds them.

        Raises:
            InvalidInputError: the edit rewrites prompts, so it cannot be applied to embeddings.
        """
        if hasattr(edit, "wordings"):
            raise InvalidInputError(f"{edit!r} rewrites prompts, so it cannot be inspected by their embeddings alone")

        distances = []
        for pairs in filter(None, (prompts.pairs, prompts.held_out_pairs)):
            rows = host.embed(list(chain.from_iterable(pairs)), role).unflatten(0, (len(pairs), 2))
            distances.append((pair_distance(rows), pair_distance(edit(rows))))
        held_out, spread = distances[1] if len(distances) > 1 else None, None
        if not prompts.classes:
            return cls(distances[0], held_out)
        classes = host.embed(prompts.classes, role)
        if prompts.spurious:
            spurious = host.embed(prompts.spurious, role)
            spread = _spread(classes, spurious), _spread(edit(classes), spurious)
        return cls(distances[0], held_out, spread, *_kept(classes, edit))


def warn_of_what_is_lost(edit: CalibratedProjection, sets: Sequence[PromptSet], role: str, host: Host) -> None:
    """Warn if an edit removes over half of the distance between classes, or too much of a pipeline's text states."""
    for prompts in (s for s in sets if len(s.classes) > 1):
        kept, cosine = _kept(host.embed(prompts.classes, role), edit)
        if kept is not None and kept < 0.5:
            instead = "method='cali', " if edit.spurious_rank else ""
            warn(
                f"{prompts.name}: {edit.method} keeps {kept:.0%} of the distance between the classes and a cosine of "
                f"{cosine:.2f} between a class prompt and its projection; compare accuracy before and after, or use "
                f"{instead}a smaller lam or strength",
                ClassSignalWarning,
            )
    most, attributes = WIDE * edit.dim, sum(len(prompts.parts) or 1 for prompts in sets)
    # An attribute is about two directions at least, however narrow the space.
    if host.generative and edit.removed > max(most, 2 * attributes + 0.5):
        warn(
            f"{edit.method} removes {edit.removed:.1f} of {edit.dim} directions, more than {most:.1f}: "
            "other prompts, such as 'A photo of a good person.', may generate something else. Generate some to check, "
            "or lower lam, fit fewer pairs, or use method='difference'",
            WideEditWarning,
        )
