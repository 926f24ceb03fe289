"""Unified concept editing for debiasing: Gandikota et al., "Unified Concept Editing in Diffusion Models" (WACV 2024).

The keys and values of cross-attention are to answer a concept c with what they answer c* = c + sum_i alpha_i a_i now,
a_i the texts of the values:

    W = (sum_c W0 c* c^T + sum_p W0 p p^T + lam W0) (sum_c c c^T + sum_p p p^T + lam I)^-1

with concepts p to be preserved. W = W0 T for one T, the same for all layers, so that it is an edit of the states that
they read, I - L R^T with L = -[sum_i alpha_i a_i] and R = (...)^-1 C, and merging it gives the paper's weights.
Attached, it leaves the negative prompt as it is, which merged weights cannot.

The paper finds alpha by drawing: as long as the values of a concept's images are unevenly shared, alpha moves by what
is missing (`UCE.update`). That needs a judge of images; a concept that is not listed changes by what it has in common
with those that are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vldebias.edit import Provenance
from vldebias.errors import InvalidInputError
from vldebias.methods.method import Method, Need, Problem
from vldebias.projection import CalibratedProjection

__all__ = ["UCE"]


class UCE(Method):
    """Unified concept editing.

    Args:
        scales: concept, a prompt -> alpha of each value, in the order of the prompt set's values.
        preserve: prompts to be left as they are.
        edit, keep, lam: weights of the concepts, of those to preserve, and of the old weights; the authors' values.
    """

    name, title, source = "uce", "unified concept editing", "Gandikota et al., 2024"
    color = "#843c39"
    needs, models = frozenset({Need.VALUES}), False

    def __init__(
        self,
        scales: Mapping[str, Sequence[float]],
        preserve: Sequence[str] = (),
        *,
        edit: float = 1.0,
        keep: float = 1.0,
        lam: float = 0.5,
    ) -> None:
        if not scales or edit <= 0 or keep < 0 or lam <= 0:
            raise InvalidInputError(
                f"uce: expected concepts with their scales, and positive weights, got {len(scales)} concepts, "
                f"edit={edit}, keep={keep}, lam={lam}"
            )
        self.scales = {concept: tuple(map(float, alpha)) for concept, alpha in scales.items()}
        self.preserve, self.edit, self.keep, self.lam = tuple(preserve), edit, keep, lam

    def update(self, shares: Mapping[str, Sequence[float]], tolerance: float = 0.05) -> UCE:
        """The next step: alpha moves by what is missing to even shares, of concepts where that is beyond a tolerance.

        shares: concept -> share of each value among its images, drawn with the present edit.
        """
        scales = {}
        for concept, alpha in self.scales.items():
            missing = [1 / len(alpha) - share for share in shares[concept]]
            done = max(map(abs, missing)) < tolerance
            scales[concept] = alpha if done else tuple(a + m for a, m in zip(alpha, missing, strict=True))
        return UCE(scales, self.preserve, edit=self.edit, keep=self.keep, lam=self.lam)

    def fit(self, problem: Problem, role: str) -> CalibratedProjection:
        """The closed form, on the last token of each prompt before its end, as the authors' code.

        Raises:
            InvalidInputError: several attributes, or scales of another number of values.
        """
        if len(problem.attributes) != 1:
            raise InvalidInputError(f"uce: expected one attribute, got {len(problem.attributes)}")
        words = [value[0] for value in problem.attributes[0].attributes.values()]
        wrong = [concept for concept, alpha in self.scales.items() if len(alpha) != len(words)]
        if wrong:
            raise InvalidInputError(f"uce: expected {len(words)} scales for each concept, not so for {wrong[:3]}")
        concepts = _last_tokens(problem, list(self.scales), role)
        values = _last_tokens(problem, [f"a {word} person" for word in words], role)
        moves = torch.tensor(list(self.scales.values()), dtype=torch.float64) @ values
        gram = self.edit * concepts.T @ concepts
        if self.preserve:
            kept = _last_tokens(problem, self.preserve, role)
            gram += self.keep * kept.T @ kept
        gram.diagonal().add_(self.lam)
        right = self.edit * torch.linalg.solve(gram, concepts.T)
        return CalibratedProjection(-moves.T.contiguous(), right.contiguous(), Provenance(self.name, self.lam))


def _last_tokens(problem: Problem, prompts: Sequence[str], role: str) -> Tensor:
    """(n, d) states of the last token of each prompt."""
    tokens, ends = problem.host.sequences(prompts, role)
    return tokens[torch.arange(len(tokens)), (ends - 1).clamp(min=0)]
