"""What a projection does to texts, without any image: pair distance, cosines with the spurious, class signal kept."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.methods.boundary import Boundary


def pair_distance(pairs: Tensor, projection: Edit | None = None) -> float:
    """Mean L2 distance |P z_i - P z_j| over pairs (n, 2, d); Table 7.6."""
    if pairs.ndim != 3 or pairs.shape[1] != 2 or not len(pairs):
        raise InvalidInputError(f"pairs: expected shape (n, 2, d) with n > 0, got {tuple(pairs.shape)}")
    projected = pairs if projection is None else projection(pairs)
    return float((projected[:, 0] - projected[:, 1]).norm(dim=-1).mean())


def spurious_cosine(classes: Tensor, spurious: Tensor, projection: Edit | None = None) -> Tensor:
    """Cosine (k, m) of each class embedding (k, d), projected, with each spurious embedding (m, d); Table 7.1."""
    rows = classes if projection is None else projection(classes)
    return normalize(rows, dim=-1) @ normalize(spurious, dim=-1).T


def signal_kept(classes: Tensor, projection: Edit) -> float | None:
    """Share of the distance between class embeddings (k, d) that is left: mean |P(z_i - z_j)| / mean |z_i - z_j|.

    None for fewer than two distinct classes, which have no distance to keep.
    """
    first, second = (~classes.new_ones(len(classes), len(classes)).tril().bool()).nonzero(as_tuple=True)
    differences = classes[first] - classes[second]
    before = differences.norm(dim=-1).sum()
    if before == 0:
        return None
    return float(projection(differences).norm(dim=-1).sum() / before)


def class_cosine(classes: Tensor, projection: Edit) -> float:
    """Mean cosine of a class embedding with its own projection: 1 means that nothing was lost."""
    return float((normalize(classes, dim=-1) * normalize(projection(classes), dim=-1)).sum(-1).mean())


def spread_along(images: Tensor, texts: Tensor) -> tuple[float, float]:
    """How much images (n, d) vary along what texts (m, d) differ in: (times an average direction, deviations above 1).

    Images of the texts' own model vary several times as much there as elsewhere. In a space that is turned at random
    against the texts, as that of another model or noise is, the expected value is 1, with a known variance: with S the
    covariance of the images, M the mean of the projectors on the texts' k principal directions that hold 99 % of
    their variance, and both scaled to traces d and 1,

        var tr(M R S R^T) = 2 (1 / k - 1 / d) (tr S^2 - d) / ((d - 1) (d + 2))

    over rotations R (Schur's lemma on the traceless symmetric matrices). Fewer than two different rows of either have
    no spread: (0, 0).
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


@dataclass(frozen=True)
class Diagnostics:
    """Numbers before and after a projection; None where the texts (or the images) for one were not given.

    pair_distance, held_out_distance: (before, after), mean L2. spurious_spread: (before, after), the mean over
    classes of max - min over the spurious texts: 0 where a class is equally close to all. signal_kept, class_cosine:
    at most 1. boundary: between two classes, as unlabelled images see it (`vldebias.inspect(images=)`). readable: of
    each reader the balanced accuracy out of sample with which it reads the value of labelled images, before and after
    the edit of images, and the most that chance gives (`vldebias.diagnostics.readable`).
    """

    pair_distance: tuple[float, float]
    held_out_distance: tuple[float, float] | None
    spurious_spread: tuple[float, float] | None
    signal_kept: float | None
    class_cosine: float | None
    boundary: Boundary | None = None
    readable: dict[str, tuple[float, float, float]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def text_diagnostics(
    projection: Edit,
    *,
    pairs: Tensor,
    held_out: Tensor | None = None,
    classes: Tensor | None = None,
    spurious: Tensor | None = None,
) -> Diagnostics:
    """All diagnostics that the texts allow: pairs (n, 2, d), held_out (n', 2, d), classes (k, d), spurious (m, d)."""
    spread = None
    if classes is not None and spurious is not None:
        spread = (_spread(classes, spurious, None), _spread(classes, spurious, projection))
    return Diagnostics(
        pair_distance=(pair_distance(pairs), pair_distance(pairs, projection)),
        held_out_distance=None if held_out is None else (pair_distance(held_out), pair_distance(held_out, projection)),
        spurious_spread=spread,
        signal_kept=None if classes is None else signal_kept(classes, projection),
        class_cosine=None if classes is None else class_cosine(classes, projection),
    )


def _spread(classes: Tensor, spurious: Tensor, projection: Edit | None) -> float:
    cosines = spurious_cosine(classes, spurious, projection)
    return float((cosines.amax(1) - cosines.amin(1)).mean())
