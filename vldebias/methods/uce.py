"""Unified concept editing for debiasing, by its authors' formula (Gandikota et al., WACV 2024), and at all places.

The keys and values of cross-attention are to answer a concept c with what they answer c* = c + sum_i alpha_i a_i now,
a_i the texts of the values, or a concept to be erased with what they answer a guide:

    W = (sum_c W0 c* c^T + sum_p W0 p p^T + lam W0) (sum_c c c^T + sum_p p p^T + lam I)^-1

with concepts p to be preserved. W = W0 T for one T, the same for all layers, so that it is an edit of the states that
they read, and merging it gives these weights. Attached, it leaves the negative prompt as it is, which merged weights
cannot.

"uce" takes one state for each c, a and p, that of the last token of its text, as the authors' code does
(`attention_mask.sum() - 2`). "uce-all" takes every place from there on, the end of the text and the padding with it,
place by place: a prompt says its concept in all of them. That is another edit, much larger and in other directions, and
figures of it are none of theirs.

The paper finds alpha by drawing: as long as the values of a concept's images are unevenly shared, alpha moves by what
is missing (`UCE.update`). `UCE.read` does so in rounds, as a judge reads the images (`vldebias.evaluation.readings`). A
concept that is not listed changes by what it has in common with those that are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from vldebias.edit import Provenance
from vldebias.errors import InvalidInputError
from vldebias.methods.method import Method, Need, Problem, Show, register_method
from vldebias.projection import CalibratedProjection

ROUNDS, TOLERANCE = 5, 0.05  # of reading; of a share, below which a concept is done


class UCE(Method):
    """Unified concept editing of one state of each concept, as its authors do.

    Args:
        scales: concept, a prompt -> alpha of each value, in the order of the prompt set's values. None: they are still
            to be found (`read`), and it cannot be fitted.
        preserve: prompts to be left as they are. erase: concept -> the guide that it is to be answered as.
        edit, keep, lam: weights of the concepts, of those to preserve, and of the old weights; the authors' values.

    Raises:
        InvalidInputError: no concepts, or weights that are not positive.
    """

    name, title, source = "uce", "unified concept editing", "Gandikota et al., 2024"
    color = "#843c39"
    needs, models = frozenset({Need.VALUES, Need.JUDGED}), False
    places: int | None = 1

    def __init__(
        self,
        scales: Mapping[str, Sequence[float]] | None = None,
        preserve: Sequence[str] = (),
        *,
        erase: Mapping[str, str] | None = None,
        edit: float = 1.0,
        keep: float = 1.0,
        lam: float = 0.5,
    ) -> None:
        self.scales = {concept: tuple(map(float, alpha)) for concept, alpha in (scales or {}).items()}
        self.erase = dict(erase or {})
        self.preserve, self.edit, self.keep, self.lam = tuple(preserve), edit, keep, lam
        if (scales is not None and not scales and not erase) or edit <= 0 or keep < 0 or lam <= 0:
            raise InvalidInputError(
                f"{self.name}: expected concepts with their scales, and positive weights, got {len(self.scales)} "
                f"concepts, edit={edit}, keep={keep}, lam={lam}"
            )
        if scales is not None or erase:
            self.needs = self.needs - {Need.JUDGED}

    def at(self, scales: Mapping[str, Sequence[float]]) -> UCE:
        """The same with other concepts and scales."""
        return type(self)(scales, self.preserve, erase=self.erase, edit=self.edit, keep=self.keep, lam=self.lam)

    def update(self, shares: Mapping[str, Sequence[float]], tolerance: float = TOLERANCE) -> UCE:
        """The next step: alpha moves by what is missing to even shares, of concepts where that is beyond a tolerance.

        shares: concept -> share of each value among its images, drawn with the present edit; a concept without shares
            stays where it is.
        """
        scales = dict(self.scales)
        for concept, alpha in self.scales.items():
            missing = [1 / len(alpha) - share for share in shares.get(concept, ())]
            if missing and max(map(abs, missing)) >= tolerance:
                scales[concept] = tuple(a + m for a, m in zip(alpha, missing, strict=True))
        return self.at(scales)

    def check(self, problem: Problem) -> None:
        """Refuse several attributes, scales of another number of values; and none."""
        if len(problem.attributes) != 1:
            raise InvalidInputError(f"{self.name}: expected one attribute, got {len(problem.attributes)}")
        super().check(problem)
        values = len(problem.attributes[0].attributes)
        wrong = [concept for concept, alpha in self.scales.items() if len(alpha) != values]
        if wrong:
            raise InvalidInputError(f"{self.name}: expected {values} scales for each concept, not so for {wrong[:3]}")

    def settings(self) -> dict[str, Any]:
        """All that it was given."""
        weights = {"edit": self.edit, "keep": self.keep, "lam": self.lam}
        return {"scales": self.scales, "preserve": list(self.preserve), "erase": self.erase, **weights}

    def read(self, problem: Problem, show: Show, *, rounds: int = ROUNDS, tolerance: float = TOLERANCE) -> UCE:
        """Rounds of `update`, each read with the scales of the one before; fewer where no concept moves any more.

        They begin with the scales that there are, or with zero for the class prompts. Kept are the scales of the round
        whose shares came closest to even.

        Raises:
            InvalidInputError: as `check`; or a round whose images tell no value.
        """
        attribute = problem.attributes[0]
        method = self.at(self.scales or dict.fromkeys(attribute.classes, (0.0,) * len(attribute.attributes)))
        method.check(problem)
        closest, best = math.inf, method
        for _ in range(rounds):
            shares = show(method, list(method.scales))
            if not shares:
                raise InvalidInputError(
                    f"{self.name}: the judge tells the value of no image of {len(method.scales)} prompts; "
                    "look at what is drawn"
                )
            apart = sum(abs(s - 1 / len(own)) for own in shares.values() for s in own) / len(shares)
            if apart < closest:
                closest, best = apart, method
            before, method = method, method.update(shares, tolerance)
            if method.scales == before.scales:
                break
        return best

    def fit(self, problem: Problem, role: str) -> CalibratedProjection:
        """The closed form."""
        words = [value[0] for value in problem.attributes[0].attributes.values()]
        values = self._states(problem, [f"a {word} person" for word in words], role)
        states, moves = [], []
        for concept, alpha in zip(self._states(problem, list(self.scales), role), self.scales.values(), strict=True):
            places = min(map(len, (concept, *values)))
            states.append(concept[:places])
            moves.append(sum((a * value[:places] for a, value in zip(alpha, values, strict=True)), 0 * states[-1]))
        erased, guides = (self._states(problem, list(texts), role) for texts in (self.erase, self.erase.values()))
        for concept, guide in zip(erased, guides, strict=True):
            places = min(len(concept), len(guide))
            states.append(concept[:places])
            moves.append(guide[:places] - concept[:places])
        concepts = torch.cat(states)
        gram = self.edit * concepts.T @ concepts
        if self.preserve:
            kept = torch.cat(self._states(problem, self.preserve, role))
            gram += self.keep * kept.T @ kept
        gram.diagonal().add_(self.lam)
        right = self.edit * torch.linalg.solve(gram, concepts.T @ torch.cat(moves))
        return CalibratedProjection(-torch.eye(len(gram)).to(right), right, Provenance(self.name, self.lam))

    def _states(self, problem: Problem, prompts: Sequence[str], role: str) -> list[Tensor]:
        """States (places, d) of each prompt, the first that of its last token before the end."""
        if not prompts:
            return []
        tokens, ends = problem.host.sequences(list(prompts), role)
        starts = [max(end - 1, 0) for end in ends.tolist()]
        return [
            own[start : None if self.places is None else start + self.places]
            for own, start in zip(tokens, starts, strict=True)
        ]


class UCEAll(UCE):
    """The same formula over the states of every place from the last token on; figures of it are not theirs."""

    name, title, source = "uce-all", "unified concept editing, all places", "after Gandikota et al., 2024"
    color, listed = "#ad494a", False
    places = None


for _method in (UCE(), UCEAll()):
    register_method(_method)
