"""Debias embeddings individually: Lian et al. (CVPR 2026) and BendVLM (Gerych et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from vldebias.methods.closed_form import value_differences
from vldebias.methods.declared import DECLARED
from vldebias.methods.labelled_rows import labelled
from vldebias.methods.method import EditMethod, Problem, register_method
from vldebias.projection.edit import Edit, Rowwise
from vldebias.projection.projection import span_of
from vldebias.projection.provenance import Provenance

_TINY = 1e-12  # smaller components of a unit vector count as zero
_NEAR = 100  # number of relevant images per value and query, as chosen by the authors for gender


@dataclass(frozen=True, eq=False, repr=False)
class HalfWay(Rowwise):
    """Rotate embeddings out of a subspace until relative loss and relative bias are equal.

    For a unit vector e, let b = |B^T e| be its bias, and o = sqrt(1 - b^2) the norm of the rest.
    Among unit vectors u in the plane of these two components, bias |B^T u| and loss 1 - <u, e>
    cannot both be minimal; the Chebyshev solution satisfies

        |B^T u| / b = (1 - <u, e>) / (1 - o),

    where each side is relative to its largest value: bias is largest at u = e, and loss is largest
    at e without its component in the subspace. With E = b + (1 - o) / b, the solution is
    |B^T u| = (E - o sqrt(E^2 - b^2)) / (E^2 + o^2).
    The norm is preserved.

    Attributes:
        basis: (d, r) orthonormal, the span of the differences between groups' spherical means, as
            in "difference".
        side: "text", "image" or "both".
    """

    kind = "half-way"
    axes: ClassVar = {"basis": "d r"}

    basis: Tensor
    side: str = "both"
    provenance: Provenance = field(default_factory=lambda: Provenance("lian"))

    def _replacement(self, unit: Tensor, image: bool) -> Tensor:
        biased = (unit @ self.basis) @ self.basis.T
        rest = unit - biased
        b = biased.norm(dim=1, keepdim=True)
        o = rest.norm(dim=1, keepdim=True)
        # This is E in the docstring, with shape (n, 1).
        e = b + (1 - o) / b.clamp(min=_TINY)
        bias = (e - o * (e * e - b * b).clamp(min=0).sqrt()) / (e * e + o * o)  # |B^T u|
        unbiased = (1 - bias * bias).clamp(min=0).sqrt()
        turned = unbiased * rest / o.clamp(min=_TINY) + bias * biased / b.clamp(min=_TINY)
        # A vector with only one of the two components stays unchanged.
        return torch.where((b > _TINY) & (o > _TINY), turned, unit)


class Lian(EditMethod):
    """Fit `HalfWay` to the set's text for each value. In pipelines, only text is edited.

    The authors use a language model to paraphrase each group's text for each class in a
    classification. Here the set's text is used instead, the same for all classes.
    """

    declaration = DECLARED["lian"]

    def fit(self, problem: Problem, role: str) -> Edit:
        basis = span_of(value_differences(problem, role))
        return HalfWay(basis, "text" if problem.host.generative else "both")


@dataclass(frozen=True, eq=False, repr=False)
class Bend(Rowwise):
    """Debias each text embedding individually, in two steps.

    A concept's directions are the spurious text and the differences between the concept's text for
    two values. The first step projects out the directions of the nearest concept. The second step
    takes the closest unit vector that is equally close to the mean of the nearest images for every
    value, by projecting out the differences between these means. Both results are normalised, and
    the norm of the text embedding is preserved.

    Attributes:
        concepts: (c, d) group means.
        directions: (c, p, d) directions of each concept, padded with zeros.
        images: (n, d) unit rows of the labelled images.
        codes: (n,) codes of the images' values.
        near: number of nearest images used for each value.
    """

    kind = "bend"
    axes: ClassVar = {"concepts": "c d", "directions": "c p d", "images": "n d", "codes": "n"}

    concepts: Tensor
    directions: Tensor
    images: Tensor
    codes: Tensor
    near: int
    provenance: Provenance = field(default_factory=lambda: Provenance("bend-vlm"))

    def _replacement(self, unit: Tensor, image: bool) -> Tensor:
        images_of_values = [self.images[self.codes == code] for code in self.codes.unique()]
        queries = []
        for row in unit:
            nearest_concept = (self.concepts @ row).argmax()
            query = normalize(project_out(row, self.directions[nearest_concept]), dim=0)
            means = []
            for images in images_of_values:
                order = (images @ query).argsort(descending=True, stable=True)
                means.append(images[order[: self.near]].mean(0))
            # All dot products with the means are equal if each equals the dot product with the
            # first mean.
            differences = torch.stack(means[1:]) - means[0]
            queries.append(normalize(project_out(query, differences), dim=0))
        return torch.stack(queries)


def project_out(row: Tensor, directions: Tensor) -> Tensor:
    """Return a row minus its projection onto the span of the directions.

    Args:
        row: the vector (d,).
        directions: the vectors (m, d) to project out.
    """
    basis = span_of(directions)
    return row - basis @ (basis.T @ row)


class BendVLM(EditMethod):
    """Debias each query when it is used, with the edit `Bend`.

    The edit stores the labelled images' features. Several attributes are combined into one. The
    authors augment a query with each value using a language model. Here the nearest prompt group
    replaces the augmentations. The two agree if the set contains the query's concept.
    """

    declaration = DECLARED["bend-vlm"]

    def fit(self, problem: Problem, role: str) -> Edit:
        images = labelled(problem, role)
        known = (images.codes >= 0).all(1)
        spurious_texts: list[str] = []
        groups: list[tuple[str, ...]] = []
        for prompt_set in problem.attributes:
            spurious_texts += prompt_set.spurious
            groups += prompt_set.variants
        spurious = problem.host.embed(spurious_texts, role)
        concepts = []
        directions = []
        for group in groups:
            rows = problem.host.embed(group, role)
            concepts.append(rows.mean(0))
            directions.append(torch.cat([spurious, rows[1:] - rows[0]]))
        return Bend(
            concepts=normalize(torch.stack(concepts), dim=1),
            directions=pad_sequence(directions, batch_first=True),
            images=images.rows[known],
            # Treat every combination of values as one value: (n, attributes) rows -> (n,) codes.
            codes=images.codes[known].unique(dim=0, return_inverse=True)[1],
            near=_NEAR,
        )


register_method(BendVLM())
register_method(Lian())
