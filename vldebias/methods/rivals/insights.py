"""Methods that move images by what texts say of the attribute: RoboShot and PRISM."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, combinations

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, relu

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.methods.closed_form import ORTH
from vldebias.methods.method import Method, Need, Problem, register_method
from vldebias.methods.rivals.edits import Affine, TwoTowers

_MARGIN = 0.5  # of the authors' code, as are the rate, the number of samples and of samples in a step
_RATE, _SAMPLES, _STEP = 0.1, 500, 3


def roboshot(harmful: Tensor, helpful: Tensor | None = None) -> Tensor:
    """(d, d) matrix (I + T T^T)(I - Q Q^T) of insights, as rows (m, d).

    Q and T are orthonormal bases of the harmful and of the helpful insights. Adila et al. (2024, Algorithm 1) take the
    vectors one by one and normalise in between, which changes lengths alone, since each basis is orthonormal.
    """
    matrix = torch.eye(harmful.shape[1], dtype=torch.float64)
    for rows, sign in ((harmful, -1.0), (helpful, 1.0)):
        if rows is not None and len(rows):
            u, s, _ = torch.linalg.svd(rows.double().T, full_matrices=False)
            basis = u[:, s > s[0] * 1e-8]
            matrix = matrix + sign * basis @ (basis.T @ matrix)
    return matrix


class RoboShot(Method):
    """Harmful insights are removed from images and helpful ones are added along; see `roboshot`.

    The authors ask a language model for the insights. Here they are in the prompt set: the harmful ones are the
    differences of its spurious prompts of two values (of its groups, where it has none), the helpful ones the
    differences of two class prompts.
    """

    name, title, source = "roboshot", "RoboShot", "Adila et al., 2024, Algorithm 1"
    color, needs, pipelines, side = "#66a61e", frozenset({Need.VALUES}), False, "image"

    def fit(self, problem: Problem, role: str) -> Edit:
        """The linear map of images."""
        harmful, helpful = [], []
        for prompts in problem.attributes:
            values = [problem.embed(texts, role) for texts in prompts.by_value().values()]
            harmful += [a[: len(b)] - b[: len(a)] for a, b in combinations(values, 2)]
        for prompts in problem.sets:
            if len(prompts.classes) > 1:
                classes = problem.embed(prompts.classes, role)
                helpful.append(classes[1:] - classes[:-1])
        matrix = roboshot(torch.cat(harmful), torch.cat(helpful) if helpful else None)
        return TwoTowers(images=Affine.of_matrix(matrix))


class PRISM(Method):
    """A linear map of both towers, trained on texts: alike for two values of the attribute, apart for two classes.

    The loss is 1 - cos(a, b) for two texts of one concept with two values, plus max(0, cos(c, d) - 1/2) for two
    classes (the class prompts; without any, two texts of one value about two concepts), as in the authors' code, with
    their Adam, rate, number of samples and start at P0. They write scenes by a language model; here the texts are the
    groups of the prompt set.
    """

    name, title, source = "prism", "PRISM", "Molahasani et al., 2025"
    color, pipelines, side, listed = "#a6761d", False, "both", False
    needs = frozenset({Need.PAIRS, Need.VALUES, Need.TRAINING})

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def fit(self, problem: Problem, role: str) -> Edit:
        """The trained map of both towers; seconds on a CPU."""
        pairs, apart = _alike(problem, role), _apart(problem, role)
        spurious = any(prompts.spurious for prompts in problem.attributes)
        width = pairs.shape[-1]
        start = ORTH.fit(problem, role).matrix() if spurious else torch.eye(width, dtype=torch.float64)
        generator = torch.Generator().manual_seed(self.seed)
        with torch.inference_mode(False), torch.enable_grad():
            weight = start.float().clone().requires_grad_()
            optimizer = torch.optim.Adam([weight], lr=_RATE)
            for _ in range(-(-_SAMPLES // _STEP)):
                (a, b), (c, d) = (
                    (rows[torch.randint(len(rows), (_STEP,), generator=generator)].float() @ weight.T).unbind(1)
                    for rows in (pairs, apart)
                )
                loss = contrast(a, b, c, d)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        trained = Affine.of_matrix(weight.detach())
        return TwoTowers(trained, trained)


def contrast(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Mean over rows (n, d) of 1 - cos(a, b), what should be alike, plus that of max(0, cos(c, d) - 1/2)."""
    return (1 - cosine_similarity(a, b, dim=-1)).mean() + relu(cosine_similarity(c, d, dim=-1) - _MARGIN).mean()


def _alike(problem: Problem, role: str) -> Tensor:
    """(n, 2, d): texts of one group that name different values."""
    pairs = [
        pair
        for prompts in problem.attributes
        for group in prompts.groups
        for pair in combinations(group, 2)
        if prompts.values_in(pair[0]) != prompts.values_in(pair[1])
    ]
    return _embedded(problem, role, pairs, "two texts of a group that name different values of the attribute")


def _apart(problem: Problem, role: str) -> Tensor:
    """(n, 2, d): texts of two classes that name no value, or of two groups that name the same one."""
    pairs = [pair for prompts in problem.sets for pair in combinations(prompts.classes, 2)]
    for prompts in problem.attributes if not pairs else ():
        for one, other in zip(prompts.groups, prompts.groups[1:], strict=False):
            pairs += [(a, b) for a in one for b in other if prompts.values_in(a) == prompts.values_in(b)]
    return _embedded(problem, role, pairs, "two class prompts, or groups about two concepts")


def _embedded(problem: Problem, role: str, pairs: Sequence[tuple[str, str]], expected: str) -> Tensor:
    if not pairs:
        raise InvalidInputError(f"{problem.label}: expected {expected}, got none")
    return problem.embed(chain.from_iterable(pairs), role).unflatten(0, (len(pairs), 2))


for _method in (RoboShot(), PRISM()):
    register_method(_method)
