"""Choose a method and its lam without labels; choose no edit if no method is predicted to help.

Every candidate is fitted on one part of the evidence, and its effect predicted on the other:

    texts   five folds of the prompt groups; prompts of held-out concepts that state a value take the place of
            images. If a set has held-out groups, these are the test part, and there are no folds.
    images  the two halves of the reference images with their zero-shot values; each is once the test part.

The predicted quantity is the gap of the neutral texts (`PredictedGap`), as a share of the gap without an edit, so 1
means no change. The changes of both kinds are averaged, each weighted by its precision 1 / (s^2 + ERR^2), where s is
the bootstrap deviation of the gap without an edit, and ERR the error that remains with any number of rows. A candidate
can be chosen if the 95 % interval of its change, centred at the value, lies below 0; the smallest gap wins. A choice
that depends on images must be better by more than the 68 % interval of the difference (`_Evidence._choose`). Images
that cannot be split, or are not in this model's space, are left out with a warning. All candidates satisfy the bound on
the neutral texts. Resamples have fixed seeds: the choice is deterministic.

The prediction detects methods that increase bias, because the gap is relative to the spread of a text's scores. If a
projection removes most of a query, mostly chance directions remain. If these are closer to one value, the gap grows
although the prompts of a pair have become more similar.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Choice, Edit
from vldebias.errors import AutoDeclinedWarning, InvalidInputError, ReferenceWarning, warn
from vldebias.methods.bounded import Bound, losses
from vldebias.methods.closed_form import ClosedForm, Parts, class_texts
from vldebias.methods.equalise import UnusableReferenceError, foreign
from vldebias.methods.method import Method, Need, get_method, register_method
from vldebias.methods.problem import Problem
from vldebias.metrics.bootstrap import recentred_interval, resampled_counts
from vldebias.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet

BOUND = Bound(0.05, over="mean")
CANDIDATES = ("cali", "orth-cali", "difference", "equalise", "difference+equalise", "cali+equalise")
LAMS = (10.0, 100.0, 1000.0, 10_000.0)
FOLDS = 5
FEWEST = 5  # concepts, or groups of prompts: with fewer, resamples say nothing about a new one
RESAMPLES = 500
ERR = {"texts": 0.3, "images": 0.2}  # shares of the gap, measured over worlds and photographs
LEVEL = 0.68  # of the interval by which what images add has to be better: one deviation, a chance of five in six
_LEAST = 1e-3  # square of a gap, in deviations of the scores: what is less is none, and no share of it is reported
_MOST_ROWS = 20_000  # images that a gap is predicted on: more change it in the third decimal
_BLOCK = 1 << 22  # weights of rows at once: bounds the memory
_TINY = torch.finfo(torch.float64).tiny

Weights = Mapping[str, float]  # kind of evidence -> what it counts


class Auto(Method):
    """Choose the best of `CANDIDATES` for a problem, or none; the edit's provenance records the reasons."""

    name, title, source, color = "auto", "chosen without labels", "this package", "#bab0ac"
    needs, delegates = frozenset({Need.VALUES}), True

    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the chosen candidate to all prompts and images; return the identity if no method is predicted to help.

        Warns:
            AutoDeclinedWarning: no method is predicted to help.
            ReferenceWarning: the reference images cannot be split, and are left out.
        """
        problem = replace(problem, bound=problem.bound or BOUND)
        lacks = {Need.LABELS} | (set() if all(s.spurious for s in problem.attributes) else {Need.SPURIOUS})
        methods = [one for one in map(get_method, CANDIDATES) if not one.needs & lacks]
        from_texts = [one for one in methods if Need.IMAGES not in one.needs]
        if problem.reference is None:
            methods = from_texts
        try:
            evidence = _Evidence(problem, role, methods)
        except UnusableReferenceError as error:
            reason = str(error).removeprefix("reference: ").partition("; ")[0]
            warn(f"{problem.label}: auto: the reference is left out: {reason}", ReferenceWarning)
            problem, methods = replace(problem, reference=None), from_texts
            evidence = _Evidence(problem, role, methods)
        best, choice = evidence.decide(methods, LAMS)
        if best is None:
            remedy = "Give reference images, or a set with more concepts, and measure; or choose a method yourself."
            warn(f"{problem.label}: auto: none. {choice.reason} {remedy}", AutoDeclinedWarning)
            best = CalibratedProjection.identity(problem.host.dim(role), "auto: none")
        return best.stamped(choice=choice)


def expected_from_texts(problem: Problem, role: str, method: ClosedForm) -> Choice | None:
    """Predict from texts alone whether a method helps; return a choice, or None if the texts do not suffice.

    Texts suffice if there are neutral texts and every set has at least `FEWEST` groups that state two values.
    """
    problem = replace(problem, reference=None)
    try:
        problem.neutral_prompts()
    except InvalidInputError:
        return None
    evidence = _Evidence(problem, role, [method])
    return evidence.decide([method], [problem.lam])[1] if evidence.folds else None


@dataclass(frozen=True, eq=False)
class PredictedGap:
    """Predict the gap of a text between two values of an attribute, from rows (n, d) of images or texts.

    The gap of a text q between the values a and b is

        |<q, D_ab>| / std(<q, row>),  D_ab = sum_c w_c (mean_ca - mean_cb) / sum_c w_c,  w_c = n_ca n_cb / (n_ca + n_cb)

    within the classes c (one class for all rows is allowed), and the largest over the pairs of values counts. With
    scores that are normal in each group the share of a group among the first results depends on this number alone. D is
    linear in the rows, so the same b resamples of D serve every text and every method.

    Attributes:
        differences: (1 + b, p, d) of means over p pairs of values, of the sample and b resamples.
        centred: (n, d) rows minus their mean.
    """

    differences: Tensor
    centred: Tensor

    @classmethod
    def of(
        cls,
        rows: Tensor,
        values: Tensor,
        classes: Tensor | None = None,
        *,
        resamples: int = 500,
        seed: int = 0,
        whole: bool = False,
    ) -> PredictedGap:
        """Return the `PredictedGap` of rows (n, d) of length 1 with codes (n,) of their value and of their class.

        whole: resample classes with all their rows, instead of single rows. For prompts, single rows would break a
        pair in six resamples of ten and make intervals a third too wide.

        Raises:
            UnusableReferenceError: no rows, or no class has rows of two values.
        """
        label = torch.zeros_like(values) if classes is None else classes.unique(return_inverse=True)[1]
        a, c = (int(codes.max()) + 1 if len(rows) else 0 for codes in (values, label))
        cell = label * a + values
        counts = torch.bincount(cell, minlength=c * a).view(c, a)
        if not ((counts > 0).sum(1) > 1).any():
            raise UnusableReferenceError(f"expected rows of two attribute values in a class, got {counts.tolist()}")
        wide = rows.double()
        weights = _draws(c, resamples, seed, max(c - 1, 1))[:, label] if whole else _draws(len(rows), resamples, seed)
        parts = [_differences(wide, cell, c, a, w) for w in weights.split(max(1, _BLOCK // len(rows)))]
        return cls(torch.cat(parts), wide - wide.mean(0))

    def of_texts(self, texts: Tensor) -> Tensor:
        """Return the gap (1 + b, q) of every text (q, d): first of the sample, then of its resamples."""
        return self._of_pairs(texts).abs().amax(1)

    def squares(self, texts: Tensor) -> Tensor:
        """Return the squared gap (1 + b, q) of texts (q, d), averaged over the pairs of values, corrected for noise.

        That is E[x^2] - var x, with the variance of the resamples; it may be negative.
        """
        each = self._of_pairs(texts)
        return (each.square() - each[1:].var(0)).mean(1)

    def _of_pairs(self, texts: Tensor) -> Tensor:
        """Differences (1 + b, p, q) of the scores of every pair of values, in deviations of the scores."""
        unit = normalize(texts.double(), dim=1)
        return self.differences @ unit.T / (self.centred @ unit.T).std(0).clamp(min=_TINY)


def _draws(n: int, resamples: int, seed: int, size: int | None = None) -> Tensor:
    """How often each of n rows occurs: the sample itself, then its resamples, (1 + resamples, n) float64."""
    drawn = resampled_counts(np.ones(n, dtype=np.int64), resamples, seed, size)
    return torch.from_numpy(np.concatenate([np.ones((1, n)), *drawn]))


def _differences(rows: Tensor, cell: Tensor, classes: int, values: int, weights: Tensor) -> Tensor:
    """D_ab (b, p, d) of rows (n, d) that occur weights (b, n) times; 0 where no class has both."""
    shape = (len(weights), classes, values)
    counts = torch.zeros(len(weights), classes * values, dtype=torch.float64).index_add_(1, cell, weights).view(shape)
    differences = []
    for a, b in combinations(range(values), 2):
        n_a, n_b = counts[..., a], counts[..., b]
        precision = n_a * n_b / (n_a + n_b).clamp(min=1)
        share = precision / precision.sum(1, keepdim=True).clamp(min=0.5)  # a class with both has at least 1/2
        each = torch.zeros(shape, dtype=torch.float64)
        each[..., a], each[..., b] = share / n_a.clamp(min=1), -share / n_b.clamp(min=1)
        differences.append((each.view(len(weights), -1)[:, cell] * weights) @ rows)
    return torch.stack(differences, 1)


class _Fold(NamedTuple):
    """A problem on one part of the evidence, its terms, and the rows of the other part, one gap per attribute."""

    problem: Problem
    parts: Parts
    gaps: tuple[PredictedGap, ...]


class _Judged(NamedTuple):
    """A candidate on everything, what is told of it (`Choice.candidates`), and its predicted gaps (1 + b,) by kind."""

    projection: CalibratedProjection
    told: dict[str, Any]
    uses_images: bool
    after: dict[str, Tensor]


class _Evidence:
    """What candidates are judged by: the text folds, where every set has enough groups, and two halves of the images.

    Raises:
        UnusableReferenceError: images that cannot be split, or of another space.
    """

    def __init__(self, problem: Problem, role: str, methods: Sequence[Method]) -> None:
        self.problem, self.role, self.folds = problem, role, dict[str, list[_Fold]]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReferenceWarning)  # a half is less settled than the whole, which is said
            for kind, one, gaps in chain(_text_folds(problem, role), _image_folds(problem, role)):
                self.folds.setdefault(kind, []).append(_Fold(one, _parts(one, role, methods), gaps))
        if not self.folds:
            return
        self._neutral = problem.embed(problem.neutral_prompts(), role)
        self._resampled = _draws(len(self._neutral), RESAMPLES, seed=0)
        self._before: dict[str, Tensor] = {}
        self._without = self._gaps(None, 0.0)
        precision = {kind: 1 / (float(gaps[1:].var()) + ERR[kind] ** 2) for kind, gaps in self._without.items()}
        self._weights = {kind: p / sum(precision.values()) for kind, p in precision.items()}

    def decide(self, methods: Sequence[Method], lams: Sequence[Any]) -> tuple[CalibratedProjection | None, Choice]:
        """Return the best of the methods at the best of the lams, None where none is expected to help; and why."""
        problem, bound, won = self.problem, self.problem.bound, None
        judged: dict[object, _Judged] = {}
        reason = f"Fewer than {FEWEST} groups of prompts state two values, and no images can be used: no evidence."
        if self.folds:
            parts = _parts(problem, self.role, methods)
            for method in methods:
                for lam in lams if method.has_lam else lams[:1]:  # the bound makes one of several lam
                    projection = _solve(replace(problem, lam=lam), self.role, method, parts)
                    weights = projection.lam if isinstance(projection.lam, tuple) else [projection.lam]
                    key = (projection.method, *(f"{x:.6g}" for x in weights))
                    if key not in judged:
                        judged[key] = self._judged(method, projection)
            won = self._choose(list(judged.values()))
            reason = "No method is expected to help beyond its interval, so nothing is changed."
        else:
            problem.neutral_prompts()  # missing ones are refused in any case
        if won is not None:
            gap, loss = won.told["gap"], won.told["loss"]
            reason = f"Predicted gap {gap:.0%} of what it is without, at a mean loss of cosine of {loss:.3f}."
        choice = Choice(
            prompts=problem.label,
            method="none" if won is None else won.projection.method,
            lam=0.0 if won is None else won.projection.lam,
            reason=reason,
            candidates=tuple(one.told for one in judged.values()),
            evidence={
                kind: {
                    "neutral texts": len(self._neutral),
                    "folds": len(own),
                    "rows": sum(len(gap.centred) for fold in own for gap in fold.gaps),
                }
                for kind, own in self.folds.items()
            },
            settings=({} if bound is None else {"max_loss": bound.loss, "over": bound.over})
            | {"resamples": RESAMPLES, "level": 0.95},
        )
        return None if won is None else won.projection, choice

    def _judged(self, method: Method, projection: CalibratedProjection) -> _Judged:
        """Judge a candidate that was fitted on everything as `projection`."""
        after = self._gaps(method, projection.lam)
        change = self._change(after, self._without, self._weights)
        told = {
            "method": projection.method,
            "lam": list(projection.lam) if isinstance(projection.lam, tuple) else projection.lam,
            "gap": _gap(after, self._weights),
            "gaps": {kind: float(values[0]) for kind, values in after.items()},
            "change": list(change),
            "loss": float(losses(projection, self._neutral).mean()),
            "refused": "" if change[2] < 0 else "not beyond its interval",
        }
        return _Judged(projection, told, method.uses_images, after)

    def _choose(self, judged: Sequence[_Judged]) -> _Judged | None:
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

    def _best(self, judged: Sequence[_Judged], weights: Weights) -> _Judged | None:
        eligible = [one for one in judged if self._change(one.after, self._without, weights)[2] < 0]
        return min(eligible, key=lambda one: _gap(one.after, weights), default=None)

    @staticmethod
    def _change(
        after: Mapping[str, Tensor], before: Mapping[str, Tensor], weights: Weights, level: float = 0.95
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
        for kind, folds in self.folds.items():
            means = []
            for problem, parts, gaps in folds:
                texts = self._neutral
                if method is not None:
                    texts = _solve(replace(problem, lam=lam), self.role, method, parts)(texts)
                each = torch.stack([gap.squares(texts) if kind == "images" else gap.of_texts(texts) for gap in gaps])
                means.append((each * self._resampled).sum(2) / self._resampled.sum(1))
            after = torch.stack(means)
            before = self._before.setdefault(kind, after)[..., :1]  # it is first called without a method
            if kind == "images":
                shares[kind] = (after.mean(0).clamp(min=0) / before.mean(0).clamp(min=_LEAST)).sqrt().mean(0)
            else:
                shares[kind] = (after / before.clamp(min=_TINY)).mean((0, 1))
        return shares


def _gap(after: Mapping[str, Tensor], weights: Weights) -> float:
    """The sample's gap, weighted over the kinds of evidence."""
    return sum(w * float(after[kind][0]) for kind, w in weights.items())


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


Found = Iterator[tuple[str, Problem, tuple[PredictedGap, ...]]]


def _text_folds(problem: Problem, role: str) -> Found:
    """Folds of the groups in which prompts state two values, each by itself; others are fitted on in every fold.

    A fold whose sets have no prompt of some value is left out.
    """
    sets = problem.attributes

    def telling(prompts: PromptSet) -> list[int]:
        stated = [{v for text in group if len(v := prompts.values_in(text)) == 1} for group in prompts.groups]
        return [i for i, values in enumerate(stated) if len(values) > 1]

    def only(prompts: PromptSet, kept: Sequence[int]) -> PromptSet:
        return replace(prompts, groups=tuple(prompts.groups[i] for i in kept))

    unseen = [replace(s, groups=s.held_out_groups, held_out_groups=()) for s in sets if s.held_out_groups]
    held_out, own = [telling(s) for s in unseen], [telling(s) for s in sets]
    folds = []
    if len(unseen) == len(sets) and all(len(groups) >= FEWEST for groups in held_out):
        folds = [(sets, tuple(map(only, unseen, held_out)))]
    elif all(len(groups) >= FEWEST for groups in own):
        number = min(FOLDS, *(len(groups) // 2 for groups in own))  # one concept alone has no variance
        for k in range(number):
            out = [(s, groups[k::number]) for s, groups in zip(sets, own, strict=True)]
            learn = tuple(only(s, [i for i in range(len(s.groups)) if i not in kept]) for s, kept in out)
            if all(s.names_values for s in learn):
                folds.append((learn, tuple(only(s, kept) for s, kept in out)))
    for k, (learn, predict) in enumerate(folds):
        yield "texts", replace(problem, sets=learn), tuple(_text_gap(problem, s, role, k) for s in predict)


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


def _image_folds(problem: Problem, role: str) -> Found:
    """The two halves of the reference images, of which each is fitted on and the other predicted."""
    reference = problem.reference
    if reference is None:
        return
    rows = torch.cat([torch.zeros(0, problem.host.dim(role), dtype=torch.float64), *reference.batches()])
    if (different := len(rows.unique(dim=0))) < 2 * FEWEST:
        raise UnusableReferenceError(f"reference: expected at least {2 * FEWEST} different images, got {different}")
    if doubt := next(filter(None, (foreign(rows, problem, s, role) for s in problem.attributes)), ""):
        raise UnusableReferenceError(f"reference: {doubt}")
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]  # files may alternate
    for k in (0, 1):
        one = replace(problem, reference=replace(reference, features=rows[k::2]))
        yield "images", one, tuple(_image_gap(problem, s, role, rows[1 - k :: 2], k) for s in problem.attributes)


def _image_gap(problem: Problem, prompts: PromptSet, role: str, rows: Tensor, seed: int) -> PredictedGap:
    """Images with their zero-shot value, within pseudo-classes where the reference is compared within them."""
    reference = problem.reference
    assert reference is not None
    rows = rows[:: -(-len(rows) // _MOST_ROWS)]
    value, probability = reference.read(rows, problem.zero_shot(prompts, role))
    sure = probability >= reference.confidence
    classes = class_texts(problem, prompts, role) if reference.within_classes else None
    label = None if classes is None else (rows @ classes.T).argmax(1)[sure]
    return PredictedGap.of(rows[sure], value[sure], label, resamples=RESAMPLES, seed=seed)


register_method(Auto())
