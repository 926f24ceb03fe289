"""Define the presets `default` and `paper`: a method and its lam by kind of host and available inputs."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from vldebias.edit import Edit
from vldebias.errors import AutoDeclinedWarning, InvalidInputError, warn
from vldebias.methods.auto import FEWEST, expected_from_texts
from vldebias.methods.balanced import NO_EDIT, Balanced
from vldebias.methods.bounded import largest
from vldebias.methods.closed_form import CALI, EQUALISE, ClosedForm
from vldebias.methods.method import LAM_OF_MODELS, LAM_OF_PIPELINES, METHODS, Method, Need, get_method, register_method
from vldebias.methods.problem import Problem
from vldebias.projection import CalibratedProjection
from vldebias.prompts import can_balance

SPARES = 100  # the default of pipelines removes at most one direction in so many of the space
LAM_OF_DEFAULT = 100.0  # does on real embeddings what the paper's 1000 does, and keeps more of what a text says

# What is fitted where no method is named follows from a rule on committed tables (docs/explanation/the-default.md,
# `python -m eval.experiments.default_choice`; a test holds the two together). Pipelines: a prompt that the fit does not
# know is changed by whatever the prompt pairs differ in, chance included, so the paper's lam is lowered (`SPARES`).
PRESETS: dict[tuple[str, str], tuple[str, float | None]] = {
    ("paper", "model"): ("orth-cali", LAM_OF_MODELS),
    ("paper", "pipeline"): ("cali", LAM_OF_PIPELINES),
    ("default", "model"): ("difference", None),
    ("default", "model without words for its values"): ("cali", LAM_OF_DEFAULT),
    ("default", "model with reference images"): ("cali", LAM_OF_DEFAULT),  # and the means of the images
    ("default", "pipeline"): ("balanced-prompts", None),
    ("default", "pipeline that prompts cannot be balanced for"): ("cali", None),
}


@dataclass(frozen=True, repr=False)
class Preset(Method):
    """Select a method and its lam from the table `PRESETS`.

    reference: whether the problem has reference images for it (see `resolved`).
    """

    name: str
    title: str
    source: str
    color: str
    reference: bool = False
    delegates = True

    @property
    def needs(self) -> frozenset[Need]:  # type: ignore[override]
        """Return the inputs that every entry needs."""
        return frozenset({Need.IMAGES}) if self.reference else frozenset()

    def entry(self, problem: Problem) -> tuple[Method, float | None]:
        """Return the method and its lam for a problem."""
        kind = "pipeline" if problem.host.generative else "model"
        if self.name == "default":
            if kind == "pipeline":
                balances = problem.host.rewrites and all(map(can_balance, problem.attributes))
                kind += "" if balances else " that prompts cannot be balanced for"
            elif self.reference:
                kind += " with reference images"
            elif not all(s.names_values for s in problem.attributes):
                kind += " without words for its values"
        name, lam = PRESETS[self.name, kind]
        method = get_method(name)
        return method + EQUALISE if self.reference and isinstance(method, ClosedForm) else method, lam

    def check(self, problem: Problem) -> None:
        """Refuse a problem that the selected method refuses."""
        self.entry(problem)[0].check(problem)

    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the selected method; for the default of models, only if texts predict that it helps.

        Balanced prompts are not an edit, so `cali` is fitted instead, its lam lowered until at most one direction in
        `SPARES` is removed.

        Warns:
            AutoDeclinedWarning: texts predict no improvement, so nothing is changed.
        """
        method, lam = self.entry(problem)
        if method.rewrites:
            _say_once(f"{NO_EDIT}. As no method is named, 'cali' is fitted in their place")
            method = CALI
        problem = replace(problem, lam=lam)
        choice = None
        if self.name == "default" and not problem.host.generative and not self.reference:
            choice = expected_from_texts(problem, role, method) if isinstance(method, ClosedForm) else None
            if choice is None:
                _say_once(
                    f"{problem.label}: the default is untested here: fewer than {FEWEST} groups of prompts state two "
                    "values; measure it"
                )
            elif choice.method == "none":
                choice = replace(choice, reason=f"{method.name!r} is not expected to help these texts")
                warn(
                    f"{problem.label}: the default attaches no edit: {choice.reason}. method={method.name!r} fits it "
                    "all the same; reference= gives images to fit to",
                    AutoDeclinedWarning,
                )
                return CalibratedProjection.identity(problem.host.dim(role), "default: none").stamped(choice=choice)
        edit = method.fit(problem, role)
        if problem.host.generative and lam is None and isinstance(edit, CalibratedProjection):
            free, most = edit, max(edit.dim / SPARES, len(problem.attributes))
            if free.removed > most:
                edit = free.at_multiple(largest(lambda t: free.at_multiple(t).removed <= most))
        return edit if choice is None else edit.stamped(choice=choice)


@cache  # once in a process
def _say_once(what: str) -> None:
    logging.getLogger("vldebias").warning(what)


PAPER = Preset("paper", "the paper's settings", "Chuang et al., 2023, Table 7.3 and section 7.5", "#d37295")
DEFAULT = Preset("default", "the best label-free closed form", "this package", "#79706e")
for _preset in (PAPER, DEFAULT):
    register_method(_preset)


def resolved(method: str | Method | None, *, lam: Any = None, reference: Any = None) -> Method:
    """Return the method for the arguments of `debias` and `evaluate`; None is the default.

    reference: if given, the default and closed forms get the means of the images as an additional term.

    Raises:
        InvalidInputError: no such method; or a lam for a method that takes none.
    """
    chosen = get_method(DEFAULT.name if method is None else method)
    if lam is not None and (method is None or not chosen.has_lam):
        having = ", ".join(name for name, one in METHODS.items() if one.has_lam)
        of = "no method is named" if method is None else f"method {chosen.name!r} has none"
        raise InvalidInputError(f"lam={lam!r}: {of}, and lam belongs to a method; name one that has it: {having}")
    if reference is not None and isinstance(chosen, Preset):
        return replace(chosen, reference=True)
    if reference is not None and isinstance(chosen, ClosedForm) and not chosen.uses_images:
        return chosen + EQUALISE
    return chosen


def rewriter(method: Method, problem: Problem) -> Balanced | None:
    """Return the prompt-rewriting method that `method` is or selects, else None; also None if a bound is set."""
    one = method.entry(problem)[0] if isinstance(method, Preset) else method
    return one if isinstance(one, Balanced) and problem.bound is None else None
