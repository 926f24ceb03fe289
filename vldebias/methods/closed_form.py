"""Closed forms: sums of terms, each of them rows that a text should not tell apart, or rows that it should lose.

The paper's methods (Chuang et al., 2023, chapter 7 of the thesis) are P0 of the spurious prompts ("orth"), the
calibration by prompt pairs without it ("cali", Lemma 7.2) and both ("orth-cali", Lemma 7.1). The difference of value
means takes the place of the spurious prompts in "difference", and the means of unlabelled images that of the prompt
pairs in "equalise". "+" sums terms: `METHODS["cali"] + METHODS["equalise"]`. With the prompt pairs S, and differences D
of image means with the weights w of `vldebias.methods.equalise`,

    P* = P0 (I + lam/|S| sum_S (z_i - z_j)(z_i - z_j)^T + lam P0 (sum_D w D D^T) P0)^-1

P0 comes last, as in Lemma 7.1, so A^T P* z = 0 in every sum, and without images this is the paper's form to the letter.
Differences of image means are taken inside what P0 leaves: D^T P0 is then what is equalised, and it is what a projected
text sees of D. Were D taken whole, P0 would tilt the level text again, and no lam would bring the means together.

Law (tested): in every sum, sqrt(lam w) |D^T P* z| <= |z| / 2, as in "equalise" alone, so the gap of the means goes to
zero as lam grows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.hosts import Host
from vldebias.methods.equalise import MeansReport, group_means, image_scatter
from vldebias.methods.method import LAM_OF_MODELS, Method, Need, Problem, register_method
from vldebias.projection import CalibratedProjection, NothingToRemoveError, PairScatter
from vldebias.prompts import PromptSet


@dataclass(frozen=True)
class Term:
    """One part of a closed form.

    removes: (problem, role) -> rows (m, d) whose span P0 removes. scatters: (problem, role) -> one scatter per
    attribute, weighted by lam. A term has one of the two.
    """

    need: Need
    removes: Callable[[Problem, str], Tensor] | None = None
    scatters: Callable[[Problem, str], list[PairScatter]] | None = None

    def rows(self, problem: Problem, role: str) -> Tensor | list[PairScatter]:
        """What `ClosedForm.fit` puts together; it does not depend on lam."""
        part = self.removes or self.scatters
        assert part is not None
        return part(problem, role)


Parts = Mapping[Term, "Tensor | list[PairScatter]"]


@dataclass(frozen=True, repr=False)
class ClosedForm(Method):
    """P0 of what is removed, times the inverse of I plus the weighted scatters (eq. 7.3 and 7.4; see the module)."""

    name: str
    title: str
    source: str
    color: str
    terms: tuple[Term, ...] = ()

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """Those of its terms."""
        return frozenset(term.need for term in self.terms)

    @property
    def has_lam(self) -> bool:  # type: ignore[override]
        """Whether it has a term with a weight."""
        return any(term.scatters is not None for term in self.terms)

    @property
    def pipelines(self) -> bool:  # type: ignore[override]
        """Not where images are compared with texts: a pipeline has no space of both."""
        return Need.IMAGES not in self.needs

    def fit(self, problem: Problem, role: str, parts: Parts | None = None) -> CalibratedProjection:
        """Solve for one role. parts: the rows of its terms, where they are known.

        Raises:
            InvalidInputError: nothing to remove.
        """
        parts = parts or {term: term.rows(problem, role) for term in self.terms}
        removed = [part for term in self.terms if isinstance(part := parts[term], Tensor)]
        span = torch.cat(removed) if removed else None
        p0 = None if span is None or not span.any() else CalibratedProjection.solve([], span)
        scatters: list[PairScatter] = []
        lams: list[float] = []
        for term in self.terms:
            part = parts[term]
            if isinstance(part, Tensor):
                continue
            images = term.need is Need.IMAGES
            own = problem.reference.lam if images and problem.reference is not None else None
            weight = problem.weight if own is None else own
            scatters += part if p0 is None or not images else [replace(s, rows=p0(s.rows)) for s in part]
            lams += list(weight) if isinstance(weight, tuple) else [weight] * len(part)
        if not removed and not any(lams) and scatters:
            dim = scatters[0].rows.shape[1]
            return CalibratedProjection.identity(dim, self.name)  # (I + 0 M)^-1 = I
        solved = CalibratedProjection.solve(scatters, span, lams if lams else 0.0)
        return solved.stamped(method=self.name, uses_images=Need.IMAGES in self.needs)

    def __add__(self, other: ClosedForm) -> ClosedForm:
        """The sum of the terms of both."""
        names = f"{self.name}+{other.name}"
        terms = tuple(dict.fromkeys((*self.terms, *other.terms)))
        sources = "; ".join(dict.fromkeys((self.source, other.source)))
        return ClosedForm(names, f"{self.title} and {other.title}", sources, other.color, terms)


def pair_scatter(problem: Problem, prompt_set: PromptSet, role: str) -> PairScatter:
    """Scatter of the prompt pairs of one attribute."""
    problem.embed(chain.from_iterable(prompt_set.groups), role)  # in full batches, not one group at a time
    return PairScatter.from_groups([problem.embed(group, role) for group in prompt_set.groups])


def value_differences(problem: Problem, role: str) -> Tensor:
    """(a, d) for each attribute: spherical means of the texts of a values, minus their mean: what tells them apart."""
    rows = []
    for prompt_set in problem.attributes:
        values = [problem.embed(prompts, role).mean(0) for prompts in prompt_set.by_value().values()]
        units = normalize(torch.stack(values), dim=1)
        rows.append(units - units.mean(0))
    return torch.cat(rows)


def pair_scatters(problem: Problem, role: str) -> list[PairScatter]:
    """That of each attribute."""
    return [pair_scatter(problem, s, role) for s in problem.attributes]


def class_texts(problem: Problem, prompt_set: PromptSet, role: str) -> Tensor | None:
    """Texts (k, d) that tell pseudo-classes apart, calibrated by the prompt pairs; None for fewer than two classes.

    A biased class text reads the attribute: groups inside such classes would be chosen by what is to be equalised.
    """
    if len(prompt_set.classes) < 2:
        return None
    texts = problem.embed(prompt_set.classes, role)
    try:
        return CalibratedProjection.solve([pair_scatter(problem, prompt_set, role)], None, LAM_OF_MODELS)(texts)
    except NothingToRemoveError:  # prompts of a pair are one to the model, which then reads no attribute in a class
        return texts


def reference_splits(problem: Problem) -> dict[str, MeansReport]:
    """Name of each attribute's prompt set -> how its values split the reference images; empty without any."""
    if problem.reference is None:
        return {}
    role = problem.host.roles[0]
    means = {s.name: group_means(problem, s, role, class_texts(problem, s, role)) for s in problem.attributes}
    return {name: one.report() for name, one in means.items()}


SPURIOUS_TERM = Term(
    Need.SPURIOUS,
    removes=lambda problem, role: problem.embed(dict.fromkeys(p for s in problem.attributes for p in s.spurious), role),
)
DIFFERENCE_TERM = Term(Need.VALUES, removes=value_differences)
LAM_OF_DEFAULT = 100.0
SPARES_OF_DEFAULT = 100
PAIRS_TERM = Term(Need.PAIRS, scatters=pair_scatters)
IMAGES_TERM = Term(
    Need.IMAGES,
    scatters=lambda problem, role: [
        image_scatter(problem, s, role, class_texts(problem, s, role)) for s in problem.attributes
    ],
)

_PAPER = "Chuang et al., 2023"


class _Nothing(Method):
    """The host as it is: the base of every comparison."""

    name, title, source, color = "none", "none", "", "0.6"

    def fit(self, problem: Problem, role: str) -> Edit:
        return CalibratedProjection.identity(problem.host.dim(role))


register_method(_Nothing())
ORTH = ClosedForm("orth", "orthogonal projection", f"{_PAPER}, section 7.3.1", "#4c78a8", (SPURIOUS_TERM,))
ORTH_CALI = ClosedForm(
    "orth-cali", "calibrated orthogonal projection", f"{_PAPER}, Lemma 7.1", "#f58518", (SPURIOUS_TERM, PAIRS_TERM)
)
CALI = ClosedForm("cali", "calibration", f"{_PAPER}, Lemma 7.2", "#54a24b", (PAIRS_TERM,))
DIFFERENCE = ClosedForm("difference", "difference of the values", "this package", "#b279a2", (DIFFERENCE_TERM,))
EQUALISE = ClosedForm("equalise", "equalised image means", "this package", "#e45756", (IMAGES_TERM,))
for _method in (ORTH, ORTH_CALI, CALI, DIFFERENCE, EQUALISE):
    register_method(_method)
for _method, _color in ((CALI, "#72b7b2"), (DIFFERENCE, "#ff9da6")):
    register_method(replace(_method + EQUALISE, color=_color))


@dataclass(frozen=True, repr=False)
class PerHost(Method):
    """One name for several methods: `model` for image-text models, `pipeline` for text-to-image pipelines.

    `weighted` takes the place of `model` where the problem has a lam, since a lam asks for a form with a weight, and
    where a prompt set does not say which prompts name which value (`PromptSet.names_values`). None: `model` always.

    Where the problem has no lam, `lam` is that of models (None: the paper's), and the lam of pipelines is lowered from
    the paper's until the edit removes at most one direction in `spares` of the space (`CalibratedProjection.removed`),
    or one for each attribute where that is more.
    """

    name: str
    title: str
    source: str
    color: str
    _: KW_ONLY
    model: ClosedForm
    pipeline: ClosedForm
    weighted: ClosedForm | None = None
    lam: float | None = None
    spares: int | None = None

    delegates = True

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """What all of them need."""
        forms = (self.model, self.pipeline, self.weighted or self.model)
        return frozenset.intersection(*(form.needs for form in forms))

    @property
    def has_lam(self) -> bool:  # type: ignore[override]
        """Whether one of them has a weight."""
        return self.model.has_lam or self.pipeline.has_lam

    @property
    def own_lam(self) -> bool:  # type: ignore[override]
        """Whether `lam` is its own and not the paper's."""
        return self.lam is not None

    def for_host(self, host: Host) -> ClosedForm:
        """The one for this kind of host where a lam is asked for."""
        return self.pipeline if host.generative else self.weighted or self.model

    def for_problem(self, problem: Problem) -> ClosedForm:
        """The one that is fitted."""
        named = problem.lam is None and all(s.names_values for s in problem.attributes)
        return self.model if named and not problem.host.generative else self.for_host(problem.host)

    def check(self, problem: Problem) -> None:
        """That of the method for the problem."""
        self.for_problem(problem).check(problem)

    def fit(self, problem: Problem, role: str) -> Edit:
        """The edit of the method for the problem, under that method's name."""
        pipeline, free, form = problem.host.generative, problem.lam is None, self.for_problem(problem)
        if free and not pipeline:
            problem = replace(problem, lam=self.lam)
        edit = form.fit(problem, role)
        if free and pipeline and self.spares is not None:
            return edit.removing_at_most(max(edit.dim / self.spares, len(problem.attributes)))
        return edit


PAPER = PerHost(
    "paper",
    "the paper's settings",
    f"{_PAPER}, Table 7.3 and section 7.5",
    "#d37295",
    model=ORTH_CALI,
    pipeline=CALI,
    lam=LAM_OF_MODELS,
)
# What is attached where no method is named: what a stated rule chooses from the committed tables, for each kind of host
# (docs/explanation/the-default.md, `python -m eval.experiments.default_choice`; a test holds the two together).
# Models: the difference of the values; calibration where there is a lam to use or no word for the values, at lam = 100,
# which does on real embeddings what the paper's 1000 does and keeps more of what a text says. With unlabelled images
# the rule chooses calibration and equalised image means at that lam (`with_images`).
# Pipelines: a prompt that the fit does not know is changed by whatever the prompt pairs differ in, chance included. The
# paper's lam = 500 removes 6 % of a space of 128, and such prompts are then drawn as something else; a hundredth keeps
# them (docs/generation/forms.md). Of a wide space a hundredth is more: 80 pairs fill a twelfth of 1024.
DEFAULT = PerHost(
    "default",
    "the best label-free closed form",
    "this package",
    "#79706e",
    model=DIFFERENCE,
    pipeline=CALI,
    weighted=CALI,
    lam=LAM_OF_DEFAULT,
    spares=SPARES_OF_DEFAULT,
)
for _preset in (PAPER, DEFAULT):
    register_method(_preset)


def with_images(method: Method) -> Method:
    """What a method is where unlabelled images are given: a closed form has their means as one more term."""
    if isinstance(method, PerHost):
        return replace(method, model=_equalised(method.weighted or method.model), weighted=None)
    return _equalised(method) if isinstance(method, ClosedForm) else method


def _equalised(method: ClosedForm) -> ClosedForm:
    return method if Need.IMAGES in method.needs else method + EQUALISE
