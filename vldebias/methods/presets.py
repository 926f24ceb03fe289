"""Define `default` and `paper`, which select a method and lam for a host and inputs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache

from vldebias.errors import AutoDeclinedWarning, ReferenceWarning, warn
from vldebias.hosts import Attachment, DeclinedAttachment
from vldebias.methods.attaching import AttachSettings, attach_edits
from vldebias.methods.balanced import Balanced, why_not_balanced
from vldebias.methods.boundary import move_boundary
from vldebias.methods.bounded import largest
from vldebias.methods.closed_form import BOTH, CALI, DIFFERENCE, ClosedForm
from vldebias.methods.declared import DECLARED, Declaration, Need
from vldebias.methods.equalise import UnusableReferenceError
from vldebias.methods.gates import (
    change_on_texts,
    fit_within_bound,
    is_for_ranking,
)
from vldebias.methods.method import DEFAULTS, EditMethod, Problem, register_method
from vldebias.methods.predicted_gap import Change
from vldebias.projection.edit import Edit, Edits
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Choice
from vldebias.prompts import PromptSet, StatedWords

NOTHING = "default: none"  # method name recorded if the default attaches nothing
BOUNDARY = "boundary"  # added to the method name if the boundary between classes is moved
SPARES = 100  # the default for pipelines removes at most one direction out of this many


@dataclass(frozen=True, repr=False)
class Paper(EditMethod):
    """Use the paper's settings: `cali` for pipelines and `orth-cali` for models.

    With reference images, a term for their means is added.
    """

    declaration: Declaration = DECLARED["paper"]
    delegates = True

    def with_images(self) -> Paper:
        """Return the method for problems with reference images."""
        return replace(self, declaration=replace(self.declaration, needs=frozenset({Need.IMAGES})))

    def fit(self, problem: Problem, role: str) -> Edit:
        method = CALI if problem.host.generative else BOTH
        if self.uses_images:
            method = method.with_images()
        method.check(problem)
        return method.fit(problem, role)


@dataclass(frozen=True, repr=False)
class Default(EditMethod):
    """Select a method and lam based on the host and inputs.

    The default for pipelines is `Balanced`. If `why_not_balanced` returns a reason against it, the
    default is an edit, as for models.

    For searches with a model, nothing is attached, because re-ranking their results leaves less
    skew. For classifications, an edit is only attached if a test on text predicts that it helps,
    and reference images only move the boundary between the classes (`vldebias.methods.boundary`).
    If they do not, a ReferenceWarning is issued. If nothing changes, an AutoDeclinedWarning is
    issued. Several prompt sets are tested one by one, and those that pass are solved jointly.
    """

    declaration: Declaration = DECLARED["default"]
    delegates = True

    def attach(self, problem: Problem, settings: AttachSettings = DEFAULTS) -> Attachment:
        if problem.host.generative and not self.uses_images:
            reason = why_not_balanced(problem)
            if reason is None:
                return Balanced().attach(problem, settings)
            log_once(
                f'{reason}, so its prompts are not balanced. The default here is "cali", which'
                " makes prompts express less of the attribute but hardly changes who appears"
            )
        settings.refuse_sampling("the default for this host")
        edits = self.fit_roles(problem)
        if edits:
            _report_boundary(problem, edits, settings)
            return attach_edits(problem.host, edits, settings)
        (declined,) = edits.declined
        return DeclinedAttachment(problem.host, declined, strength=settings.strength)

    def selected(self, problem: Problem) -> tuple[ClosedForm, float | None]:
        """Return the method selected for a problem, and its lam (None for the method's default).

        The default has the highest mean score (the removed share of the bias less the lost share of
        the order within groups) over CelebA and the miniature, among closed forms that make no task
        worse. The ranking is `difference`, `cali` with lam 100, `orth` and `orth-cali`; `cali` with
        lam 1000 makes a task worse.
        """
        method = DIFFERENCE
        lam = None  # `Problem.weight` replaces None with the paper's value
        if problem.host.generative:
            # Unrelated prompts are affected by every difference within prompt pairs, including
            # random ones, so `fit` lowers lam (`SPARES`).
            method = CALI
        elif not all(part.names_values for part in problem.attributes):
            # On CelebA, 100 removes about as much skew as the paper's 1000 and preserves more of a
            # text's content (eval/results/closed_form.json).
            method, lam = CALI, 100.0
        return method, lam

    def with_images(self) -> Default:
        """Return the default for problems with reference images."""
        return Default(DECLARED["default+reference"])

    def narrowed(self, problem: Problem, role: str) -> tuple[Problem, tuple[Choice, ...]]:
        """Return the problem without the prompt sets for which the default declines to edit.

        If the default declines for every set, the problem is returned unchanged; `fit` then
        declines to edit.

        Args:
            problem: the host, prompt sets and settings.
            role: the host tensor to edit.

        Warns:
            AutoDeclinedWarning: If the default declines for some of the sets.
        """
        if problem.host.generative or len(problem.sets) == 1:
            return problem, ()
        edited: list[PromptSet] = []
        declined: list[Choice] = []
        for prompt_set in problem.sets:
            edit = self._decide(problem.with_sets([prompt_set]), role)
            if edit.method == NOTHING and edit.provenance.choice is not None:
                declined.append(edit.provenance.choice)
            else:
                edited.append(prompt_set)
        if not edited or not declined:
            return problem, ()
        names = ", ".join(prompt_set.name for prompt_set in edited)
        not_edited = ", ".join(choice.attribute for choice in declined)
        reasons = " ".join(f"{choice.attribute}: {choice.reason}" for choice in declined)
        warn(
            f"the default attaches an edit for {names}, but none for {not_edited}. {reasons}",
            AutoDeclinedWarning,
        )
        return problem.with_sets(edited), tuple(declined)

    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the selected method, or return an edit that changes nothing and records the reason.

        Args:
            problem: the host, prompt sets and settings.
            role: the host tensor to edit.

        Warns:
            AutoDeclinedWarning: If the default declines to edit.
        """
        edit = self._decide(problem, role)
        if self.uses_images and not is_for_ranking(problem):
            edit = _with_boundary(problem, role, edit)
        choice = edit.provenance.choice
        if edit.method == NOTHING and choice is not None:
            warn(
                f"{problem.label}: the default attaches no edit. {choice.reason}",
                AutoDeclinedWarning,
            )
        elif choice is not None and self.uses_images and not edit.provenance.uses_images:
            warn(
                f"{problem.label}: the default attaches {edit.method!r}, fitted to text alone."
                f" {choice.reason}",
                ReferenceWarning,
            )
        return edit

    def fit_roles(self, problem: Problem) -> Edits:
        """Return the edit for each role, or none if the default declines."""
        edits = super().fit_roles(problem)
        edit = next(iter(edits.values()))
        edits.declined = edit.provenance.declined
        if edit.method == NOTHING and edit.provenance.choice is not None:
            edits.clear()
            edits.declined = (edit.provenance.choice,)
        elif edit.provenance.choice is None and not (problem.host.generative or self.uses_images):
            # Log this only if the edit is attached or saved, because evaluations measure it.
            log_once(
                f"{edit.provenance.attribute}: attached untested, because too few prompts state two"
                " values; measure it with vldebias.evaluate"
            )
        return edits

    def _decide(self, problem: Problem, role: str) -> Edit:
        """Return the edit for a problem, or one that changes nothing (`_declined`)."""
        method, lam = self.selected(problem)
        method.check(problem)
        problem = replace(problem, lam=lam)
        if problem.host.generative:
            return _fit_to_pipeline(problem, role)
        if not is_for_ranking(problem):
            return _fit_tested_on_texts(problem, role, method)
        return _declined(problem, role, _why_no_search_is_edited(problem))


def _fit_to_pipeline(problem: Problem, role: str) -> Edit:
    """Fit `cali`, lowering lam until at most 1 in `SPARES` directions of the space is removed."""
    if why_not_balanced(problem) is None:
        log_once(
            "'cali' is fitted, because the default for this pipeline is balanced prompts, which"
            " are not an embedding edit. debias(pipe, attribute) attaches them"
        )
    edit = CALI.fit(problem, role)
    # In a narrow space, allow at least one removed direction per attribute.
    allowed = max(edit.dim / SPARES, len(problem.attributes))
    if edit.removed <= allowed:
        return edit
    return edit.at_multiple(largest(lambda share: edit.at_multiple(share).removed <= allowed))


def _why_no_search_is_edited(problem: Problem) -> str:
    """Return why nothing is attached for searches, and how to re-rank their results."""
    name = problem.attributes[0].name
    words = ""
    if not all(prompt_set.names_values for prompt_set in problem.attributes):
        words = " Add words for the values to the prompt set first."
    return (
        "Re-ranking leaves less of the skew of a search than an edit of its query."
        f" Re-rank the results: vldebias.rerank(scores, k, features=features, attribute={name!r},"
        " model=model), or queries.search(index_call, text, k) with queries from"
        f" vldebias.debias_queries.{words} To edit queries, name a method (method='difference') and"
        " measure it."
    )


def unedited_queries(problem: Problem, role: str) -> Edit:
    """Return an edit of queries that changes nothing, and records how to re-rank results.

    Args:
        problem: the problem of the search.
        role: the encoder that the edit is for.
    """
    edit = problem.fit("none", role).with_provenance(method=NOTHING)
    reason = _why_no_search_is_edited(problem)
    return edit.with_provenance(choice=_choice(problem, edit, reason, None))


def _fit_tested_on_texts(problem: Problem, role: str, method: EditMethod) -> Edit:
    """Fit the method for a classification if a test on text predicts an improvement.

    The test needs words for the values and enough groups that state two of them. If the test is not
    possible, the method is attached untested.
    """
    remedy = "Name"
    if problem.reference is None:
        remedy = "Pass reference=, to which the boundary between the classes is fitted, or name"
    problem = replace(problem, reference=None)
    change = None
    if all(prompt_set.names_values for prompt_set in problem.attributes):
        # If the values have no words, no prompt states one, and there is nothing to test on.
        change = change_on_texts(problem, role, method)
    if change is None:
        return method.fit(problem, role)
    if change.high >= 0:
        why = (
            f"Held-out prompts do not clearly come closer together. {remedy} a method"
            f" (method={method.name!r}) and measure it."
        )
        return _declined(problem, role, why, change)
    reason = "Held-out prompts come closer together; no image was tested."
    neutral = problem.host.embed(problem.neutral, role)
    edit = fit_within_bound(problem, role, method, neutral)
    return edit.with_provenance(choice=_choice(problem, edit, reason, change))


def _with_boundary(problem: Problem, role: str, by_text: Edit) -> Edit:
    """Return a classifier's edit with the boundary moved, if the reference images show where."""
    try:
        edit, reason = move_boundary(problem, role, by_text)
    except UnusableReferenceError as error:
        edit = by_text
        reason = f"The boundary between the classes stays where it is: {error}"
    else:
        name = BOUNDARY if by_text.method == NOTHING else f"{by_text.method}+{BOUNDARY}"
        edit = edit.with_provenance(method=name, uses_images=True)
    choice = by_text.provenance.choice
    if choice is None:
        reason += " Too few prompts state two values to test the edit that is fitted to text."
        return edit.with_provenance(choice=_choice(problem, edit, reason, None))
    # Moving the boundary does not remove the attribute.
    no_edit = "No edit of the attribute: " if by_text.method == NOTHING else ""
    reason += f" {no_edit}{choice.reason}"
    change = None if choice.change is None else Change(*choice.change)
    return edit.with_provenance(choice=_choice(problem, edit, reason, change))


def _report_boundary(problem: Problem, edits: Edits, settings: AttachSettings) -> None:
    """Log that a boundary is moved, and warn if `keep_stated` prevents it."""
    edit = next(iter(edits.values()))
    choice = edit.provenance.choice
    if choice is None or not edit.method.endswith(BOUNDARY):
        return
    log_once(f"{choice.attribute}: {choice.reason}")
    stated = StatedWords(problem.stated_words)
    kept = [text for text in problem.sets[0].classes if stated.find(text)]
    if settings.keep_stated and kept:
        warn(
            f"{choice.attribute}: the class prompt {kept[0]!r} states a value and stays unchanged,"
            " so the boundary lies elsewhere than fitted; pass keep_stated=False",
            ReferenceWarning,
        )


def _choice(problem: Problem, edit: Edit, reason: str, change: Change | None) -> Choice:
    """Return a `Choice` that records the default's decision and its reason."""
    return Choice(
        attribute=problem.label,
        method=edit.method,
        lam=edit.lam,
        reason=reason,
        change=change,
    )


def _declined(problem: Problem, role: str, why: str, change: Change | None = None) -> Edit:
    """Return an edit that changes nothing, and record the reason.

    Args:
        problem: what the method was to be fitted on.
        role: the role of the text embeddings.
        why: the reason.
        change: the change of the gap in the test, if there was a test.
    """
    edit = CalibratedProjection.identity(problem.host.dim(role)).with_provenance(method=NOTHING)
    return edit.with_provenance(choice=_choice(problem, edit, why, change))


@cache  # logs each text only once per process
def log_once(text: str) -> None:
    """Log a notice if it has not been logged before."""
    logging.getLogger("vldebias").warning(text)


register_method(Paper())
register_method(Default())
register_method(Default().with_images())
