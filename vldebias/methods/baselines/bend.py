"""Implement BendVLM: debias each query separately, by its nearest texts and labelled images."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

from vldebias.edit import Edit, Provenance
from vldebias.methods.labelled import labelled
from vldebias.methods.method import Method, Need, Problem, register_method

_NEAR = 100  # images of each value that are relevant to a query, as the authors take for gender


@dataclass(frozen=True, eq=False, repr=False)
class Bend(Edit):
    """Debias each text separately, in two steps.

    Step 1: project out the span of the spurious texts and of the differences between the nearest concept's texts of
    two values. Step 2: take the closest unit vector that is equally close to the means of the nearest images of all
    values, by projecting out the differences D of these means. Both results are normalised; the length of the text
    is kept.

    Attributes:
        spurious: (m, d); m may be 0. concepts: (c, d) means of groups, among which the nearest is found.
        differences: (c, p, d) of the texts of each group, zeros where it has fewer.
        images: (n, d) unit rows, codes (n,) of their values. near: number of nearest images used of each value.
    """

    kind = "bend"
    axes: ClassVar = {"spurious": "m d", "concepts": "c d", "differences": "c p d", "images": "n d", "codes": "n"}

    spurious: Tensor
    concepts: Tensor
    differences: Tensor
    images: Tensor
    codes: Tensor
    near: int
    provenance: Provenance = field(default_factory=lambda: Provenance("bend-vlm"))

    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor:
        """Return texts (b, ..., d), each debiased separately."""
        self.check_strength(strength)
        if strength == 0:
            return z
        flat = z.reshape(-1, z.shape[-1])
        bent = torch.stack([self._bent(row) for row in flat.detach().cpu().double()]).to(z.device)
        moved = flat.norm(dim=1, keepdim=True) * bent.to(flat.dtype)
        return torch.lerp(flat, moved, strength).reshape(z.shape)

    def _bent(self, row: Tensor) -> Tensor:
        unit = normalize(row, dim=0)
        nearest = int((self.concepts @ unit).argmax())
        query = normalize(without(unit, torch.cat([self.spurious, self.differences[nearest]])), dim=0)
        scores, means = self.images @ query, []
        for code in self.codes.unique():
            own = torch.nonzero(self.codes == code).flatten()
            best = own[scores[own].argsort(descending=True, stable=True)[: self.near]]
            means.append(self.images[best].mean(0))
        return normalize(without(query, torch.stack(means[1:]) - means[0]), dim=0)


def without(row: Tensor, directions: Tensor) -> Tensor:
    """Return a row (d,) without its projection on the span of directions (m, d)."""
    u, s, _ = torch.linalg.svd(directions.T, full_matrices=False)
    basis = u[:, s > s.sum() * 1e-8]
    return row - basis @ (basis.T @ row)


class BendVLM(Method):
    """Debias each query when it is used; see `Bend`. The edit holds the features of the labelled images.

    The authors augment a query with each value by a language model. Here the nearest group of the prompt set replaces
    the augmentations; the two agree if the set contains the query's concept.
    """

    name, title, source = "bend-vlm", "BendVLM", "Gerych et al., 2024, steps 1 and 2"
    color, pipelines = "#666666", False
    needs = frozenset({Need.LABELS, Need.VALUES, Need.PAIRS})

    def fit(self, problem: Problem, role: str) -> Edit:
        """Store the texts by concept and the images by value; several attributes are crossed into one."""
        images = labelled(problem, role)
        known = (images.codes >= 0).all(1)
        spurious = [text for prompts in problem.attributes for text in prompts.spurious]
        groups = [problem.embed(group, role) for prompts in problem.attributes for group in prompts.groups]
        return Bend(
            spurious=problem.embed(spurious, role) if spurious else groups[0][:0],
            concepts=normalize(torch.stack([rows.mean(0) for rows in groups]), dim=1),
            differences=pad_sequence([rows[1:] - rows[0] for rows in groups], batch_first=True),
            images=images.rows[known],
            codes=images.codes[known].unique(dim=0, return_inverse=True)[1],
            near=_NEAR,
        )


register_method(BendVLM())
