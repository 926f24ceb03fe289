"""Choose method and lam without labels, and do nothing where nothing is expected to help.

Every candidate is fitted on one part of the evidence and predicted on the other:

    texts   five folds of the prompt groups; prompts that state a value, of concepts that were not fitted on, stand
            for images. Where a set has held-out groups, these are predicted, and nothing is folded.
    images  the two halves of the reference images with their zero-shot values, each fitted once, predicted once.

What is predicted is the gap of the neutral texts (`PredictedGap`), as a share of what it is without an edit, so 1 means
no change. The changes of both kinds are averaged, each weighted by its precision 1 / (s^2 + ERR^2), where s is the
bootstrap deviation of the gap without an edit, and ERR what would be left with any number of rows. A candidate may be
chosen where the 95 % interval of its change, centred at the value, lies below 0; the smallest gap wins. What was found
with the help of images has to be better beyond the 68 % interval of the difference (`_Judge.choose`). Images that
cannot be split, or are not of this model's space, are left out with a warning. All candidates keep the bound on the
neutral texts. Resamples have fixed seeds: the choice is deterministic.

Why this sees a method that makes things worse: the gap is relative to the spread of a text's scores. A projection that
takes away most of what a query says leaves it with little but chance directions, and if these lean to one value the
ratio rises although the prompts of a pair came closer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vldebias.edit import Candidate, Choice, Edit
from vldebias.errors import AutoDeclinedWarning, InvalidInputError, ReferenceWarning, warn
from vldebias.methods.bounded import Bound, losses
from vldebias.methods.closed_form import ClosedForm, Parts, class_texts
from vldebias.methods.diagnostics import signal_kept
from vldebias.methods.equalise import UnusableReferenceError, foreign
from vldebias.methods.gaps import PredictedGap, draws
from vldebias.methods.method import Method, Need, get_method, register_method
from vldebias.methods.problem import Problem
from vldebias.metrics.bootstrap import recentred_interval
from vldebias.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet

BOUND = Bound(0.05, over="mean")
LAMS = (10.0, 100.0, 1000.0, 10_000.0)
CANDIDATES = ("cali", "orth-cali", "difference", "equalise", "difference+equalise", "cali+equalise")
FOLDS = 5
FEWEST = 5  # concepts, or groups of prompts: with fewer, resamples say nothing about a new one
RESAMPLES = 500
ERR = {"texts": 0.3, "images": 0.2}  # shares of the gap, measured over worlds and photographs
LEVEL = 0.68  # of the interval by which what images add has to be better: one deviation, a chance of five in six
_LEAST = 1e-3  # square of a gap, in deviations of the scores: what is less is none, and no share of it is reported
MOST_ROWS = 20_000  # images that a gap is predicted on: more change it in the third decimal

Fitted = tuple[Method, CalibratedProjection]


class Auto(Method):
    """Choose the best of several methods for a problem, or none; the edit's provenance has the choice and its reasons.

    Args:
        candidates: names of methods, or methods; those whose needs the problem does not meet are left out.
        lams: weights to try.
    """

    name, title, source, color = "auto", "chosen without labels", "this package", "#bab0ac"
    needs, delegates = frozenset({Need.VALUES}), True

    def __init__(self, candidates: Sequence[str | Method] = CANDIDATES, lams: Sequence[float] = LAMS) -> None:
        self.candidates, self.lams = tuple(candidates), tuple(lams)

    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the chosen candidate on everything; return the identity where nothing is expected to help.

        Warns:
            AutoDeclinedWarning: nothing is expected to help.
            ReferenceWarning: the reference images cannot be split, and are left out.
        """
        problem = replace(problem, bound=problem.bound or BOUND)
        lacks = {Need.LABELS} | (set() if all(s.spurious for s in problem.attributes) else {Need.SPURIOUS})
        methods = [one for one in map(get_method, self.candidates) if one.models and not one.needs & lacks]
        from_texts = [one for one in methods if Need.IMAGES not in one.needs]
        if problem.reference is None:
            methods = from_texts
        try:
            folds = _folds(problem, role, methods)
        except UnusableReferenceError as error:
            reason = str(error).removeprefix("reference: ").partition("; ")[0]
            warn(f"{problem.label}: auto: the reference is left out: {reason}", ReferenceWarning)
            problem, methods = replace(problem, reference=None), from_texts
            folds = _folds(problem, role, methods)
        parts, fitted = _parts(problem, role, methods), dict[object, Fitted]()
        for method in methods:
            for lam in self.lams if method.has_lam else self.lams[:1]:  # the bound makes one of several lam
                projection = _solve(replace(problem, lam=lam), role, method, parts)
                weights = projection.lam if isinstance(projection.lam, tuple) else [projection.lam]
                fitted.setdefault((projection.method, *(f"{x:.6g}" for x in weights)), (method, projection))
        best, choice = _chosen(problem, role, list(fitted.values()), folds)
        if best is None:
            remedy = "Give reference images, or a set with more concepts, and measure; or choose a method yourself."
            warn(f"{problem.label}: auto: none. {choice.reason} {remedy}", AutoDeclinedWarning)
            best = CalibratedProjection.identity(problem.host.dim(role), "auto: none")
        return best.stamped(choice=choice)


def expected_from_texts(problem: Problem, role: str, method: ClosedForm) -> Choice | None:
    """Predict from texts alone whether one method helps: a choice of it or of "none"; None where texts cannot tell.

    Texts tell where every set has at least `FEWEST` groups that state two values, and neutral texts.
    """
    problem = replace(problem, reference=None)
    try:
        problem.neutral_prompts()
    except InvalidInputError:
        return None
    folds = _folds(problem, role, [method])
    if not folds:
        return None
    projection = _solve(problem, role, method, _parts(problem, role, [method]))
    return _chosen(problem, role, [(method, projection)], folds)[1]


class _Fold(NamedTuple):
    """A problem on one part of the evidence, its terms, and the rows of the other part, one gap per attribute."""

    problem: Problem
    parts: Parts
    gaps: tuple[PredictedGap, ...]


Folds = Mapping[str, Sequence[_Fold]]  # kind of evidence -> its folds


class _Judged(NamedTuple):
    """A candidate, whether it uses images, what it is fitted on everything, and its predicted gaps (1 + b,) by kind."""

    candidate: Candidate
    uses_images: bool
    projection: CalibratedProjection
    after: dict[str, Tensor]


def _chosen(
    problem: Problem, role: str, fitted: Sequence[Fitted], folds: Folds
) -> tuple[CalibratedProjection | None, Choice]:
    """The best of the candidates, None where none is expected to help, and why."""
    neutral, bound = problem.embed(problem.neutral_prompts(), role), problem.bound
    settings: dict[str, Any] = {} if bound is None else {"max_loss": bound.loss, "over": bound.over}
    settings |= {"resamples": RESAMPLES, "level": 0.95}
    if not folds:
        reason = f"Fewer than {FEWEST} groups of prompts state two values, and no images can be used: no evidence."
        return None, Choice(problem.label, "none", 0.0, reason, (), {}, settings)
    evidence = {
        kind: {
            "neutral texts": len(neutral),
            "folds": len(own),
            "rows": sum(len(gap.centred) for fold in own for gap in fold.gaps),
        }
        for kind, own in folds.items()
    }
    judge = _Judge(problem, role, neutral, folds)
    judged = [judge(method, projection) for method, projection in fitted]
    candidates, best = tuple(one.candidate for one in judged), judge.choose(judged)
    if best is None:
        reason = "No method is expected to help beyond its interval, so nothing is changed."
        return None, Choice(problem.label, "none", 0.0, reason, candidates, evidence, settings)
    won = best.candidate
    reason = f"Predicted gap {won.gap:.0%} of what it is without, at a mean loss of cosine of {won.loss:.3f}."
    return best.projection, Choice(problem.label, won.method, won.lam, reason, candidates, evidence, settings)


def _parts(problem: Problem, role: str, methods: Sequence[Method]) -> Parts:
    """The rows of all terms of closed forms: they do not depend on lam, so they are made once."""
    terms = dict.fromkeys(term for method in methods if isinstance(method, ClosedForm) for term in method.terms)
    return {term: term.rows(problem, role) for term in terms}


def _solve(problem: Problem, role: str, method: Method, parts: Parts) -> CalibratedProjection:
    """Fit one candidate at the problem's lam, within its bound; the identity where it finds nothing to remove."""
    try:
        edit = method.fit(problem, role, parts) if isinstance(method, ClosedForm) else method.fit(problem, role)
        edit = problem.bounded(edit if method.delegates else edit.stamped(method=method.name), role)
    except NothingToRemoveError:  # texts that the model does not tell apart
        return CalibratedProjection.identity(problem.host.dim(role), method.name)
    assert isinstance(edit, CalibratedProjection)  # the bound refuses anything else
    return edit


class _Judge:
    """Predicts what a candidate does, from the folds, and compares what was predicted."""

    def __init__(self, problem: Problem, role: str, neutral: Tensor, folds: Folds) -> None:
        self._problem, self._role, self._neutral, self._folds = problem, role, neutral, folds
        self._resampled = draws(len(neutral), RESAMPLES, seed=0)
        self._before: dict[str, Tensor] = {}
        self._without = self._gaps(None, 0.0)
        precision = {kind: 1 / (float(gaps[1:].var()) + ERR[kind] ** 2) for kind, gaps in self._without.items()}
        self._weights = {kind: p / sum(precision.values()) for kind, p in precision.items()}

    def __call__(self, method: Method, projection: CalibratedProjection) -> _Judged:
        """Judge a candidate that was fitted on everything as `projection`."""
        after = self._gaps(method, projection.lam)
        change = self._change(after, self._without, self._weights)
        classes = [s.classes for s in self._problem.sets if len(s.classes) > 1]
        kept = [signal_kept(self._problem.embed(prompts, self._role), projection) for prompts in classes]
        candidate = Candidate(
            method=projection.method,
            lam=projection.lam,
            gaps={kind: float(values[0]) for kind, values in after.items()},
            gap=_gap(after, self._weights),
            change=change,
            loss=float(losses(projection, self._neutral).mean()),
            signal_kept=min((k for k in kept if k is not None), default=None),
            refused="" if change[2] < 0 else "not beyond its interval",
        )
        return _Judged(candidate, method.uses_images, projection, after)

    def choose(self, judged: Sequence[_Judged]) -> _Judged | None:
        """The smallest gap of those beyond their interval, as far as it is better beyond its interval than

        - the best that uses no image: images that are split by one guess judge what was fitted to that very split;
        - what texts alone choose: nobody can see whether a reference is like what will be searched.
        """
        from_texts = [one for one in judged if not one.uses_images]
        best = self._unless_better(self._best(from_texts, self._weights), self._best(judged, self._weights))
        if self._weights.keys() != {"texts", "images"}:
            return best
        return self._unless_better(self._best(from_texts, {"texts": 1.0}), best)

    def _unless_better(self, kept: _Judged | None, other: _Judged | None) -> _Judged | None:
        """`kept` unless the interval of the difference speaks for the other; None stands for no edit."""
        before, after = (self._without if one is None else one.after for one in (kept, other))
        return kept if kept is other or self._change(after, before, self._weights, LEVEL)[2] >= 0 else other

    def _best(self, judged: Sequence[_Judged], weights: Mapping[str, float]) -> _Judged | None:
        eligible = [one for one in judged if self._change(one.after, self._without, weights)[2] < 0]
        return min(eligible, key=lambda one: _gap(one.after, weights), default=None)

    @staticmethod
    def _change(
        after: Mapping[str, Tensor], before: Mapping[str, Tensor], weights: Mapping[str, float], level: float = 0.95
    ) -> tuple[float, float, float]:
        """Mean over the kinds of evidence of one gap minus another, with its centred interval."""
        change = torch.stack([w * (after[kind] - before[kind]) for kind, w in weights.items()]).sum(0)
        return float(change[0]), *recentred_interval(float(change[0]), change[1:].numpy(), level=level)

    def _gaps(self, method: Method | None, lam: float | tuple[float, ...]) -> dict[str, Tensor]:
        """Kind of evidence -> predicted gap (1 + b,) as a share of the sample's without an edit, mean over attributes.

        Of every fold of texts by itself; of all images together, since half of them may show no gap. Of images it is
        the square without its noise (`PredictedGap.squares`). Neutral texts are resampled with the rows.
        """
        shares: dict[str, Tensor] = {}
        for kind, folds in self._folds.items():
            means = []
            for problem, parts, gaps in folds:
                texts = self._neutral
                if method is not None:
                    texts = _solve(replace(problem, lam=lam), self._role, method, parts)(texts)
                each = torch.stack([gap.squares(texts) if kind == "images" else gap.of_texts(texts) for gap in gaps])
                means.append((each * self._resampled).sum(2) / self._resampled.sum(1))
            after = torch.stack(means)
            before = self._before.setdefault(kind, after)[..., :1]  # it is first called without a method
            if kind == "images":
                shares[kind] = (after.mean(0).clamp(min=0) / before.mean(0).clamp(min=_LEAST)).sqrt().mean(0)
            else:
                shares[kind] = (after / before.clamp(min=torch.finfo(torch.float64).tiny)).mean((0, 1))
        return shares


def _gap(after: Mapping[str, Tensor], weights: Mapping[str, float]) -> float:
    """The sample's gap, weighted over the kinds of evidence."""
    return sum(w * float(after[kind][0]) for kind, w in weights.items())


def _folds(problem: Problem, role: str, methods: Sequence[Method]) -> Folds:
    """The text folds, where every set has enough groups, and the two halves of the images."""
    reference, folds = problem.reference, dict[str, list[_Fold]]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceWarning)  # a half is less settled than the whole, which is said
        for k, (learn, predict) in enumerate(_text_folds(problem.attributes)):
            one, gaps = replace(problem, sets=learn), tuple(_text_gap(problem, s, role, k) for s in predict)
            folds.setdefault("texts", []).append(_Fold(one, _parts(one, role, methods), gaps))
        if reference is None:
            return folds
        rows = torch.cat([torch.zeros(0, problem.host.dim(role), dtype=torch.float64), *reference.batches()])
        if (different := len(rows.unique(dim=0))) < 2 * FEWEST:
            raise UnusableReferenceError(f"reference: expected at least {2 * FEWEST} different images, got {different}")
        if doubt := next(filter(None, (foreign(rows, problem, s, role) for s in problem.attributes)), ""):
            raise UnusableReferenceError(f"reference: {doubt}")
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]  # files may alternate
        for k in (0, 1):
            one = replace(problem, reference=replace(reference, features=rows[k::2]))
            gaps = tuple(_image_gap(problem, s, role, rows[1 - k :: 2], k) for s in problem.attributes)
            folds.setdefault("images", []).append(_Fold(one, _parts(one, role, methods), gaps))
    return folds


def _text_folds(sets: Sequence[PromptSet]) -> Iterator[tuple[tuple[PromptSet, ...], tuple[PromptSet, ...]]]:
    """(sets to fit on, sets whose groups are predicted): of groups in which prompts state two values, each by itself.

    Others are fitted on in every fold. A fold whose sets have no prompt of some value is left out.
    """

    def telling(prompts: PromptSet) -> list[int]:
        stated = [{v for text in group if len(v := prompts.values_in(text)) == 1} for group in prompts.groups]
        return [i for i, values in enumerate(stated) if len(values) > 1]

    def only(prompts: PromptSet, kept: Sequence[int]) -> PromptSet:
        return replace(prompts, groups=tuple(prompts.groups[i] for i in kept))

    unseen = [replace(s, groups=s.held_out_groups, held_out_groups=()) for s in sets if s.held_out_groups]
    held_out, own = [telling(s) for s in unseen], [telling(s) for s in sets]
    if len(unseen) == len(sets) and all(len(groups) >= FEWEST for groups in held_out):
        yield tuple(sets), tuple(map(only, unseen, held_out))
    elif all(len(groups) >= FEWEST for groups in own):
        folds = min(FOLDS, *(len(groups) // 2 for groups in own))  # one concept alone has no variance
        for k in range(folds):
            out = [(s, groups[k::folds]) for s, groups in zip(sets, own, strict=True)]
            learn = tuple(only(s, [i for i in range(len(s.groups)) if i not in kept]) for s, kept in out)
            if all(s.names_values for s in learn):
                yield learn, tuple(only(s, kept) for s, kept in out)


def _text_gap(problem: Problem, prompts: PromptSet, role: str, seed: int) -> PredictedGap:
    """Prompts of the groups that name one value; a group is a class, so prompts are compared about one concept."""
    values = list(prompts.attributes)
    rows = [
        (prompt, values.index(named[0]), concept)
        for concept, group in enumerate(prompts.groups)
        for prompt in group
        if len(named := prompts.values_in(prompt)) == 1
    ]
    texts, value, concept = zip(*rows, strict=True)
    codes = torch.tensor(value), torch.tensor(concept)
    return PredictedGap.of(problem.embed(texts, role), *codes, resamples=RESAMPLES, seed=seed, whole=True)


def _image_gap(problem: Problem, prompts: PromptSet, role: str, rows: Tensor, seed: int) -> PredictedGap:
    """Images with their zero-shot value, within pseudo-classes where the reference is compared within them."""
    reference = problem.reference
    assert reference is not None
    rows = rows[:: -(-len(rows) // MOST_ROWS)]
    value, probability = reference.read(rows, problem.zero_shot(prompts, role))
    sure = probability >= reference.confidence
    classes = class_texts(problem, prompts, role) if reference.within_classes else None
    label = None if classes is None else (rows @ classes.T).argmax(1)[sure]
    return PredictedGap.of(rows[sure], value[sure], label, resamples=RESAMPLES, seed=seed)


register_method(Auto())
