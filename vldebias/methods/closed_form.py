"""Fit closed-form projections as sums of terms.

A term provides differences to shrink, or directions to project out. "+" adds terms:
`METHODS["cali"] + METHODS["equalise"]`. With P0 projecting out the spurious prompts or the
differences of value means, prompt pairs S, and differences D of image means with weights w (see
`vldebias.methods.equalise`),

    P* = P0 (I + lam/|S| sum_S (z_i - z_j)(z_i - z_j)^T + lam P0 (sum_D w D D^T) P0)^-1

P0 is applied last, as in Lemma 7.1, so A^T P* z = 0 in every sum, and without images this is
exactly the paper's form. Differences of image means are projected by P0 first, because projected
text depends on D only through P0 D. With D itself, applying P0 would undo the equalisation, and no
lam would bring the group means together.

In every sum, sqrt(lam w) |D^T P* z| <= |z| / 2, as in "equalise" alone, so the gap between the
group means goes to zero as lam grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from vldebias.methods.declared import DECLARED, Declaration, Need
from vldebias.methods.equalise import image_scatter
from vldebias.methods.method import LAM_OF_MODELS, EditMethod, Problem, register_method
from vldebias.projection.projection import CalibratedProjection, NothingToRemoveError, scatter_of
from vldebias.prompts import PromptSet


@dataclass(frozen=True)
class Term:
    """One term of a fit: rows whose span P0 projects out, or a scatter matrix weighted by lam.

    Attributes:
        need: the input that the term requires.
        span: a function of (problem, role) that returns rows (m, d) whose span P0 removes, or None
            for a term with scatters.
        scatters: a function of (problem, role) that returns one scatter (n, d) per attribute,
            weighted by lam, or None for a term with a span. Neither result may depend on lam.
    """

    need: Need
    span: Callable[[Problem, str], Tensor] | None = None
    scatters: Callable[[Problem, str], list[Tensor]] | None = None


@dataclass(frozen=True, repr=False)
class ClosedForm(EditMethod):
    """Fit P0 times the inverse of I plus the weighted scatters (eq. 7.3 and 7.4).

    `fit` computes the scatter rows from prompt embeddings and solves for the matrix. P0 projects
    out the rows of terms with a span.
    """

    declaration: Declaration
    terms: tuple[Term, ...] = ()

    def fit(self, problem: Problem, role: str) -> CalibratedProjection:
        removed = [term.span(problem, role) for term in self.terms if term.span is not None]
        span = torch.cat(removed) if removed else None
        scatters: list[Tensor] = []
        lams: list[float] = []
        for term in self.terms:
            if term.scatters is None:
                continue
            scatters_of_attributes = term.scatters(problem, role)
            if term.need is Need.IMAGES and span is not None and span.any():
                # P0 is applied last, so image means are compared after projection with P0.
                project = CalibratedProjection.solve([], span)
                scatters_of_attributes = [project(rows) for rows in scatters_of_attributes]
            scatters += scatters_of_attributes
            if isinstance(problem.weight, tuple):
                lams += problem.weight
            else:
                lams += [problem.weight] * len(scatters_of_attributes)
        if span is None and not any(lams):  # (I + 0 M)^-1 = I
            return CalibratedProjection.identity(problem.host.dim(role), self.name)
        solved = CalibratedProjection.solve(scatters, span, lams or 0.0)
        return solved.with_provenance(method=self.name, uses_images=Need.IMAGES in self.needs)

    def with_images(self) -> ClosedForm:
        """Return the method with image means as an additional term."""
        if not self.terms or self.uses_images:
            return self
        return self + EQUALISE

    def __add__(self, method: ClosedForm) -> ClosedForm:
        """Return a method with the terms of both methods."""
        # Keep one copy of each common term, in the order of the first method.
        terms = tuple(dict.fromkeys((*self.terms, *method.terms)))
        return ClosedForm(self.declaration + method.declaration, terms)


def value_differences(problem: Problem, role: str) -> Tensor:
    """Return each value's mean text embedding minus the mean over values, for all attributes.

    Args:
        problem: what the method is fitted on.
        role: the role of the text embeddings.

    Returns:
        Stacked rows (a, d), one for each of the a values of all attributes.
    """
    # One matrix (a, d) per attribute, because the number of values may differ.
    units = [problem.zero_shot(prompt_set, role) for prompt_set in problem.attributes]
    return torch.cat([rows - rows.mean(0) for rows in units])


def class_texts(problem: Problem, prompt_set: PromptSet, role: str) -> Tensor | None:
    """Return embeddings of class text that define pseudo-classes, calibrated by the prompt pairs.

    Without calibration, class text is biased, so pseudo-classes would depend on the attribute to be
    equalised.

    Args:
        problem: the problem with reference images.
        prompt_set: the prompt set of the attribute.
        role: the role of the text embeddings.

    Returns:
        The embeddings (k, d), or None if there are no classes to compare within.
    """
    # For a search, means over all images are compared; see `Reference.within_classes`.
    if len(prompt_set.classes) < 2 or not problem.images.within_classes:
        return None
    texts = problem.host.embed(prompt_set.classes, role)
    try:
        return CALI.fit(replace(problem, sets=(prompt_set,), lam=LAM_OF_MODELS), role)(texts)
    except NothingToRemoveError:
        # The model embeds both prompts of every pair identically, so no calibration is needed.
        return texts


def spurious_rows(problem: Problem, role: str) -> Tensor:
    """Return embeddings (m, d) of the distinct spurious prompts for all attributes.

    Args:
        problem: what the method is fitted on.
        role: the role of the text embeddings.
    """
    texts: dict[str, None] = {}
    for prompt_set in problem.attributes:
        texts |= dict.fromkeys(prompt_set.spurious)
    return problem.host.embed(list(texts), role)


def pair_scatters(problem: Problem, role: str) -> list[Tensor]:
    """Return each attribute's scatter of prompt pairs (n, d).

    Args:
        problem: what the method is fitted on.
        role: the role of the text embeddings.
    """
    scatters = []
    for prompt_set in problem.attributes:
        rows = problem.host.embed(list(chain.from_iterable(prompt_set.variants)), role)
        sizes = [len(group) for group in prompt_set.variants]
        scatters.append(scatter_of(rows.split(sizes)))
    return scatters


def image_scatters(problem: Problem, role: str) -> list[Tensor]:
    """Return each attribute's scatter of differences between image means (pairs, d).

    Args:
        problem: the problem with reference images.
        role: the role of the text embeddings.
    """
    scatters = []
    for prompt_set in problem.attributes:
        classes = class_texts(problem, prompt_set, role)
        scatters.append(image_scatter(problem, prompt_set, role, classes))
    return scatters


SPURIOUS = Term(Need.SPURIOUS, span=spurious_rows)
MEANS = Term(Need.VALUES, span=value_differences)
PAIRS = Term(Need.PAIRS, scatters=pair_scatters)
IMAGES = Term(Need.IMAGES, scatters=image_scatters)
NONE = ClosedForm(DECLARED["none"])
ORTH = ClosedForm(DECLARED["orth"], (SPURIOUS,))
BOTH = ClosedForm(DECLARED["orth-cali"], (SPURIOUS, PAIRS))
CALI = ClosedForm(DECLARED["cali"], (PAIRS,))
DIFFERENCE = ClosedForm(DECLARED["difference"], (MEANS,))
EQUALISE = ClosedForm(DECLARED["equalise"], (IMAGES,))
WITH_IMAGES = (
    ClosedForm(DECLARED["cali+equalise"], (PAIRS, IMAGES)),
    ClosedForm(DECLARED["difference+equalise"], (MEANS, IMAGES)),
)
for _method in (NONE, ORTH, BOTH, CALI, DIFFERENCE, EQUALISE, *WITH_IMAGES):
    register_method(_method)
