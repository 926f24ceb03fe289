"""Define balanced prompts, and the presets `default` and `paper`: a method and its lam by host and
inputs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from vldebias.errors import AutoDeclinedWarning, InvalidInputError, warn
from vldebias.methods.bounded import largest
from vldebias.methods.closed_form import CALI
from vldebias.methods.equalise import UnusableReferenceError, foreign
from vldebias.methods.gates import (
    change_on_images,
    change_on_texts,
    fit_within_bound,
    is_for_ranking,
    refuse_unclear_values,
    refuse_unstable_means,
    showing_values,
)
from vldebias.methods.method import (
    METHODS,
    Method,
    Need,
    Problem,
    register_method,
)
from vldebias.methods.predicted_gap import Change
from vldebias.projection.edit import Choice, Edit
from vldebias.projection.projection import CalibratedProjection
from vldebias.prompts import PromptSet, can_balance

if TYPE_CHECKING:
    from vldebias.wording import Balancer

# The default with reference images, under a name by which suites compare it with "default".
WITH_IMAGES = "default+equalise"
NOTHING = "default: none"  # the method of an edit that the default did not attach
SPARES = 100  # the default of pipelines removes at most one direction in so many of the space


@dataclass(kw_only=True, eq=False, repr=False)
class Balanced(Method):
    """State a sampled value of the attribute in the prompt of each image of a pipeline.

    Args:
        shares: value -> share of the images; None: even shares. seed: of the sampling; None: each
            attachment draws one, `attachment.seed`. With a seed a call with `generator=` shows the
            same persons in every process.
        find: prompt -> character offset at which the words are written, or None to leave it alone;
            by default the subject is found by grammar (`vldebias.balance_prompts`).
        groups, decide: what happens to several persons, and a function that says which values the
            facts of a prompt allow, see `vldebias.balance_prompts`.
    """

    name = "balanced-prompts"
    title = "values stated in the prompts"
    source = "prompt augmentation; this package"
    color = "#31708f"
    needs = frozenset({Need.VALUES})
    models = False
    one_person = False

    shares: Mapping[str, float] | None = None
    seed: int | None = None
    find: Callable[[str], int | None] | None = None
    groups: str = "mixed"
    decide: Callable[..., Any] | None = None

    def fit(self, problem: Problem, role: str) -> NoReturn:
        """Raise an error, because balanced prompts have no edit to fit."""
        raise InvalidInputError(
            f"method {self.name!r}: balanced prompts are not an edit of embeddings: there is"
            " nothing to fit, inspect, save or merge. Use method='cali' for an edit, or"
            " vldebias.balance_prompts for the prompts"
        )


def make_balancer(
    method: Any, sets: Sequence[PromptSet], shares: Mapping[str, float] | None
) -> Balancer:
    """Return a balancer of prompt sets with the settings of a method that samples values.

    Args:
        method: `Balanced` or `CrossAttention`.
        sets: the prompt sets.
        shares: value -> share of the images; None: the method's.
    """
    from vldebias.wording import Balancer  # the grammars of eleven languages

    return Balancer(
        # The values of a single set are strings, not tuples.
        sets[0] if len(sets) == 1 else sets,
        method.shares if shares is None else shares,
        method.seed,
        method.find,
        decide=method.decide,
        groups=method.groups,
        one_person=method.one_person,
    )


@dataclass(frozen=True, repr=False)
class Preset(Method):
    """Select a method and its lam by the host and the inputs; with reference images, their means
    are added."""

    name: str
    title: str
    source: str
    color: str
    needs: frozenset[Need] = frozenset()
    pipelines: bool = True
    delegates = True

    def selected(self, problem: Problem) -> tuple[Method, float | None]:
        """Return the method for a problem and its lam, or None for the method's default.

        What the default is follows from a rule on committed tables
        (docs/explanation/the-default.md, `python -m eval.experiments.default_choice`; a test holds
        the two together).
        """
        lam = None  # the paper's, see `Problem.weight`
        if problem.host.generative:
            # A prompt that the fit does not know is changed by whatever the prompt pairs differ
            # in, chance included, so `fit` lowers the lam of the default (`SPARES`).
            name = "cali"
        elif self.name == "paper":
            name = "orth-cali"
        elif self.needs and is_for_ranking(problem):
            # The means of the images become equal. At 100 part of their difference would be left,
            # and it may be larger than before.
            name, lam = "difference", 10_000.0
        elif self.needs or not all(part.names_values for part in problem.attributes):
            # On real embeddings 100 does what the paper's 1000 does, and keeps more of what a text
            # says.
            name, lam = "cali", 100.0
        else:
            name = "difference"
        method = METHODS[name]
        if self.needs:
            method = method.with_images()
        return method, lam

    def with_images(self) -> Preset:
        """Return the preset for problems with reference images."""
        return replace(self, needs=frozenset({Need.IMAGES}))

    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the selected method; for the default of models, only if a test predicts help.

        Searches are tested on reference images, and get no edit without them.

        Warns:
            AutoDeclinedWarning: no improvement is predicted, so nothing is changed.
        """
        method, lam = self.selected(problem)
        method.check(problem)
        problem = replace(problem, lam=lam)
        if self.name == "paper":
            return method.fit(problem, role)
        if problem.host.generative:
            return _fit_to_pipeline(problem, role)
        if is_for_ranking(problem):
            if self.needs:
                return _fit_tested_on_images(problem, role, method)
            return _declined(problem, role, _why_not_by_texts(problem, method))
        if self.needs:
            return method.fit(problem, role)
        return _fit_tested_on_texts(problem, role, method)


def _fit_to_pipeline(problem: Problem, role: str) -> Edit:
    """Fit `cali`, since balanced prompts are not an edit, with its lam lowered until at most one
    direction in `SPARES` is removed."""
    if why_not_balanced(problem) is None:
        log_once(
            "'cali' is fitted: the default here is balanced prompts, which are not an edit of"
            " embeddings. debias(pipe, prompts) attaches them"
        )
    edit = CALI.fit(problem, role)
    # In a narrow space it may still remove one direction for each attribute.
    allowed = max(edit.dim / SPARES, len(problem.attributes))
    if edit.removed <= allowed:
        return edit
    return edit.at_multiple(largest(lambda share: edit.at_multiple(share).removed <= allowed))


def why_not_balanced(problem: Problem) -> str | None:
    """Return why the default of a pipeline is not balanced prompts; None where it is."""
    if problem.host.edits_images:  # and keeps their persons
        return "the pipeline edits given images"
    if not problem.host.rewrites:
        return "this host does not rewrite prompts"
    if not all(map(can_balance, problem.attributes)):
        return "the set has no words for values of persons"
    if problem.max_loss is not None:
        return "max_loss bounds an edit of embeddings"
    return None


def _fit_tested_on_images(problem: Problem, role: str, method: Method) -> Edit:
    """Equalise the means of the reference images that show a value, if that helps on images that it
    was not fitted to.

    The means are those of all such images, and not within classes: what a search ranks is all
    images, and zero-shot guesses of the classes are biased themselves.
    """
    assert problem.reference is not None
    problem = replace(problem, reference=replace(problem.reference, within_classes=False))
    try:
        refuse_unclear_values(problem, role)
        problem = showing_values(problem, role)
        refuse_unstable_means(problem, role)
        change = change_on_images(problem, role, method)
    except UnusableReferenceError as error:
        return _declined(problem, role, _why_unaligned(problem, role) or str(error))
    # An edit is attached only if the whole interval is below 0. Its figures are kept in the choice
    # and not printed: they hold for the values that the texts read, and less for true values.
    if change.high < 0:
        edit = method.fit(problem, role)
        reason = (
            "The values that the texts read in the reference score more alike, on images that the"
            " edit was not fitted to."
        )
        return edit.with_provenance(choice=_choice(problem, edit, reason, change))
    return _declined(
        problem,
        role,
        "The values that the texts read in the reference do not clearly score more alike, on images"
        " that the edit was not fitted to. Pass more reference images, or name a method"
        " (method='difference') and measure it on labelled images.",
        change,
    )


def _why_not_by_texts(problem: Problem, method: Method) -> str:
    """Return why nothing is attached to a search without reference images, and what to do."""
    by_name = f"name a method (method={method.name!r}) and measure it."
    if all(prompts.names_values for prompts in problem.attributes):
        remedy = (
            "Pass reference=, unlabelled vectors of some hundred images or documents that are"
            f" searched, or {by_name}"
        )
    else:
        remedy = f"Add words for the values to the prompt set and pass reference=, or {by_name}"
    return f"Texts alone do not show which searches an edit makes worse. {remedy}"


def _fit_tested_on_texts(problem: Problem, role: str, method: Method) -> Edit:
    """Fit the method to a classification, unless a test on texts fails to predict that it helps.

    The test needs words for the values and enough groups that state two of them. Without it the
    method is attached untested.
    """
    problem = replace(problem, reference=None)
    change = None
    if all(prompts.names_values for prompts in problem.attributes):
        # Without words for the values no prompt states one, and there is nothing to predict from.
        change = change_on_texts(problem, role, method)
    if change is None:
        log_once(
            f"{problem.label}: attached untested, since too few prompts state two values; measure"
            " it with vldebias.evaluate"
        )
        return method.fit(problem, role)
    if change.high >= 0:
        why = (
            "On texts, prompts outside the fit do not clearly come closer together. Pass"
            f" reference=, or name a method (method={method.name!r}) and measure it."
        )
        return _declined(problem, role, why, change)
    reason = "On texts, prompts outside the fit come closer together; no image was tested."
    neutral = problem.host.embed(problem.neutral, role)
    edit = fit_within_bound(problem, role, method, neutral)
    return edit.with_provenance(choice=_choice(problem, edit, reason, change))


def _choice(problem: Problem, edit: Edit, reason: str, change: Change | None) -> Choice:
    """Return the record of the default's decision, with its reason."""
    return Choice(
        prompts=problem.label,
        method=edit.method,
        lam=edit.lam,
        reason=reason,
        change=change,
    )


def _why_unaligned(problem: Problem, role: str) -> str:
    """Return that the reference images seem to be of another model than the texts, else ""."""
    assert problem.reference is not None
    images = torch.cat([*problem.reference.batches()])
    for prompts in problem.attributes:
        doubt = foreign(images, problem, prompts, role)
        if doubt:
            return f"reference: {doubt}."
    return ""


def _declined(problem: Problem, role: str, why: str, change: Change | None = None) -> Edit:
    """Return no edit with the reason, and warn.

    Warns:
        AutoDeclinedWarning: always.
    """
    warn(f"{problem.label}: the default attaches no edit. {why}", AutoDeclinedWarning)
    edit = CalibratedProjection.identity(problem.host.dim(role)).with_provenance(method=NOTHING)
    return edit.with_provenance(choice=_choice(problem, edit, why, change))


@cache  # so that the same text is logged once in a process
def log_once(text: str) -> None:
    """Log a notice the first time."""
    logging.getLogger("vldebias").warning(text)


register_method(Balanced())
register_method(
    Preset(
        "paper", "the paper's settings", "Chuang et al., 2023, Table 7.3 and section 7.5", "#d37295"
    )
)
register_method(
    Preset("default", "what is attached where no method is named", "this package", "#79706e")
)
register_method(
    Preset(
        WITH_IMAGES,
        "what is attached with reference images where no method is named",
        "this package",
        "#499894",
        frozenset({Need.IMAGES}),
        pipelines=False,
    )
)
