"""Choose method and lam without labels, and do nothing where nothing is expected to help.

Every candidate is fitted on one part of the evidence and predicted on the other:

    texts   five folds of the prompt groups; prompts that state a value, of concepts that were not fitted on, stand
            for images. Where a set has held-out groups, these are predicted, and nothing is folded.
    images  the two halves of the reference images with their zero-shot values, each fitted once, predicted once.

What is predicted is the gap of the neutral texts (`PredictedGap`), as a share of what it is without an edit, so 1 means
no change. Of texts, the concept is what is drawn, with all its prompts. Of images, what chance alone adds is taken off
(`PredictedGap.squares`): the absolute difference of few images' means is above 0 where nothing is left. Where there are
images, the changes of both kinds are averaged, each weighted by its precision,

    w = 1 / (s^2 + ERR^2),

where s is the bootstrap deviation of the gap without an edit, and ERR what would be left with any number of rows: how
far either kind is from what true labels show, between the worlds of eval/results/auto.json where images are read well
(.1 from images, .4 from texts) and where they are not (.6 and .3). So a handful of images hardly moves what the texts
say, and no number of them silences the texts. A candidate may be chosen where the 95 % interval of its change, centred
at the value, lies below 0; the smallest gap wins.

What was found with the help of images has to be better beyond the 68 % interval of the difference (`_Judge.choose`):
the means of images are shrunk towards what texts say already (`vldebias.methods.equalise`), so that few of them hardly
move a text beyond that, and the 95 % interval kept what texts alone choose where 50 images had found better.
Images that cannot be split (one value alone, one picture many times, too few), or
that are not of this model's space (`vldebias.methods.diagnostics.spread_along`), are left out with a warning. All
candidates keep the bound on the neutral texts, a mean loss of cosine of at most 0.05 unless `max_loss` says otherwise.

Why this sees a method that makes things worse: the gap is relative to the spread of a text's scores. A projection that
takes away most of what a query says leaves it with little but chance directions, and if these lean to one value the
ratio rises although the prompts of a pair came closer.

Resamples draw rows and neutral texts together, with fixed seeds: the choice is deterministic.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Candidate, Choice, Edit
from vldebias.errors import AutoDeclinedWarning, ReferenceWarning, warn
from vldebias.methods.bound import Bound
from vldebias.methods.bounded import Bounded, bounded, losses
from vldebias.methods.closed_form import ClosedForm, Parts, class_texts
from vldebias.methods.diagnostics import signal_kept
from vldebias.methods.equalise import UnusableReferenceError, foreign
from vldebias.methods.method import Method, Need, Problem, get_method, register_method
from vldebias.metrics.bootstrap import recentred_interval, resampled_counts
from vldebias.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet

BOUND = Bound(0.05, over="mean")
LAMS = (10.0, 100.0, 1000.0, 10_000.0)
CANDIDATES = ("cali", "orth-cali", "difference", "equalise", "difference+equalise", "cali+equalise")
FOLDS = 5
FEWEST = 5  # concepts, or groups of prompts: with fewer, resamples say nothing about a new one
RESAMPLES = 500
ERR = {"texts": 0.3, "images": 0.2}  # shares of the gap; "errors" of eval/results/auto.json by world
LEVEL = 0.68  # of the interval by which what images add has to be better: one deviation, a chance of five in six
_LEAST = 1e-3  # square of a gap, in deviations of the scores: what is less is none, and no share of it is told
_BLOCK = 1 << 22  # weights of rows at once: bounds the memory
MOST_ROWS = 20_000  # images that a gap is predicted on: more change it in the third decimal

Lam = float | tuple[float, ...]


class Auto(Method):
    """The best of several methods for a problem, or none; the edit's provenance has the choice and what it rests on.

    Args:
        candidates: names of methods, or methods; those whose needs the problem does not meet are left out.
        lams: what to try where the problem has no lam of its own.
    """

    name, title, source, color = "auto", "chosen without labels", "this package", "#bab0ac"
    needs, has_lam, own_lam, delegates = frozenset({Need.VALUES}), True, True, True

    def __init__(self, candidates: Sequence[str | Method] = CANDIDATES, lams: Sequence[float] = LAMS) -> None:
        self.candidates, self.lams = tuple(candidates), tuple(lams)

    def fit(self, problem: Problem, role: str) -> Edit:
        """The chosen candidate, fitted on everything; the identity where nothing is expected to help.

        Raises:
            PromptSetError: a set does not say which words name which value of its attribute.
            InvalidInputError: no neutral texts, or features of another width than the texts. Where the prompt sets and
                images that are given tell nothing, it declines instead.

        Warns:
            AutoDeclinedWarning: nothing is expected to help.
            ReferenceWarning: the reference images cannot be split, and are left out.
        """
        bound = problem.bound or BOUND
        problem = replace(problem, bound=bound)
        neutral = problem.embed(problem.neutral_prompts(), role)
        try:
            methods, folds = self._posed(problem, role)
        except UnusableReferenceError as error:
            reason = str(error).removeprefix("reference: ").partition("; ")[0]
            warn(f"{problem.label}: auto: the reference is left out: {reason}", ReferenceWarning)
            problem = replace(problem, reference=None)
            methods, folds = self._posed(problem, role)
        settings = {"max_loss": bound.loss, "over": bound.over, "resamples": RESAMPLES, "level": 0.95}
        evidence: dict[str, dict[str, int]] = {}
        for fold in folds:
            about = evidence.setdefault(fold.kind, {"neutral texts": len(neutral), "folds": 0, "rows": 0})
            about["folds"] += 1
            about["rows"] += sum(len(gap.centred) for gap in fold.gaps)
        judged: list[_Judged] = []
        best: _Judged | None = None
        reason = f"Fewer than {FEWEST} groups of prompts state two values, and no images can be used: no evidence."
        if folds:
            reason = "No method is expected to help beyond its interval, so nothing is changed."
            judge = _Judge(problem, role, neutral, folds)
            judged = [judge(method, projection) for method, projection in self._distinct(problem, role, methods)]
            best = judge.choose(judged)
        candidates = [one.candidate for one in judged]
        if best is None:
            remedy = "Give reference images, or a set with more concepts, and measure; or choose a method yourself."
            warn(f"{problem.label}: auto: none. {reason} {remedy}", AutoDeclinedWarning)
            choice = Choice(problem.label, "none", 0.0, reason, tuple(candidates), evidence, settings)
            return CalibratedProjection.identity(neutral.shape[1], "auto: none").stamped(choice=choice)
        won = best.candidate
        reason = f"Predicted gap {won.gap:.0%} of what it is without, at a mean loss of cosine of {won.loss:.3f}."
        choice = Choice(problem.label, won.method, won.lam, reason, tuple(candidates), evidence, settings)
        return best.projection.stamped(choice=choice)

    def _posed(self, problem: Problem, role: str) -> tuple[list[Method], list[_Fold]]:
        """The candidates that the problem allows, and its folds."""
        methods = [m for m in map(get_method, self.candidates) if _suits(m, problem)]
        return methods, list(_folds(problem, role, methods))

    def _distinct(
        self, problem: Problem, role: str, methods: Sequence[Method]
    ) -> list[tuple[Method, CalibratedProjection]]:
        """Each method at each lam, fitted on everything; the bound makes one of several lam."""
        parts = _parts(problem, role, methods)
        lams: Sequence[Lam] = self.lams if problem.lam is None else (problem.lam,)
        distinct: dict[object, tuple[Method, CalibratedProjection]] = {}
        for method in methods:
            for lam in lams if method.has_lam else lams[:1]:
                projection = _solve(replace(problem, lam=lam), role, method, parts)
                weights = projection.lam if isinstance(projection.lam, tuple) else [projection.lam]
                distinct.setdefault((projection.method, *(f"{x:.6g}" for x in weights)), (method, projection))
        return list(distinct.values())


def _suits(method: Method, problem: Problem) -> bool:
    """Whether the problem has what the method needs."""
    lacks = {
        Need.IMAGES: problem.reference is None,
        Need.SPURIOUS: not all(s.spurious for s in problem.attributes),
        Need.LABELS: True,
        Need.TRAINING: True,
    }
    return method.models and not any(lacks.get(need, False) for need in method.needs)


def _parts(problem: Problem, role: str, methods: Sequence[Method]) -> Parts:
    """The rows of all terms of closed forms: they do not depend on lam, so they are had once."""
    terms = dict.fromkeys(term for method in methods if isinstance(method, ClosedForm) for term in method.terms)
    return {term: term.rows(problem, role) for term in terms}


def _solve(problem: Problem, role: str, method: Method, parts: Parts) -> CalibratedProjection:
    """One candidate at the problem's lam, within its bound; the identity where it finds nothing to remove."""
    assert problem.bound is not None
    neutral = problem.embed(problem.neutral_prompts(), role)
    try:
        if not isinstance(method, ClosedForm):
            edit = Bounded(method, problem.bound).fit(problem, role)
            assert isinstance(edit, CalibratedProjection)  # Bounded refuses anything else
            return edit
        return bounded(method.fit(problem, role, parts), neutral, problem.bound)
    except NothingToRemoveError:  # texts that the model does not tell apart
        return CalibratedProjection.identity(neutral.shape[1], method.name)


@dataclass(frozen=True, eq=False)
class _Fold:
    """A problem on one part of the evidence, its terms, and the rows of the other part, one gap per attribute."""

    kind: str
    problem: Problem
    parts: Parts
    gaps: tuple[PredictedGap, ...]


@dataclass(frozen=True, eq=False)
class _Judged:
    """A candidate, whether it uses images, what it is fitted on everything, and its predicted gaps (1 + b,) by kind."""

    candidate: Candidate
    uses_images: bool
    projection: CalibratedProjection
    after: dict[str, Tensor]


class _Judge:
    """Predicts what a candidate does, from the folds, and compares what was predicted."""

    def __init__(self, problem: Problem, role: str, neutral: Tensor, folds: Sequence[_Fold]) -> None:
        self._problem, self._role, self._neutral, self._folds = problem, role, neutral, folds
        self._weights = draws(len(neutral), RESAMPLES, seed=0)
        self._before = [self._means(fold, neutral) for fold in folds]
        self._without = self._relative(self._before)
        noise = {kind: float(gaps[1:].var()) for kind, gaps in self._without.items()}
        precision = {kind: 1 / (s2 + ERR[kind] ** 2) for kind, s2 in noise.items()}
        self.weights = {kind: p / sum(precision.values()) for kind, p in precision.items()}

    def __call__(self, method: Method, projection: CalibratedProjection) -> _Judged:
        """What is predicted for a candidate that was fitted on everything as `projection`."""
        after = self._relative([self._after(fold, method, projection.lam) for fold in self._folds])
        change = self._change(after, self._without, self.weights)
        gaps = {kind: float(values[0]) for kind, values in after.items()}
        classes = [s.classes for s in self._problem.sets if len(s.classes) > 1]
        kept = [signal_kept(self._problem.embed(prompts, self._role), projection) for prompts in classes]
        candidate = Candidate(
            method=projection.method,
            lam=projection.lam,
            gaps=gaps,
            gap=sum(self.weights[kind] * gap for kind, gap in gaps.items()),
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
        best = self._unless_better(self._best(from_texts, self.weights), self._best(judged, self.weights))
        if self.weights.keys() != {"texts", "images"}:
            return best
        return self._unless_better(self._best(from_texts, {"texts": 1.0}), best)

    def _unless_better(self, kept: _Judged | None, other: _Judged | None) -> _Judged | None:
        """`kept` unless the interval of the difference speaks for the other; None stands for no edit."""
        before, after = (self._without if one is None else one.after for one in (kept, other))
        return kept if kept is other or self._change(after, before, self.weights, LEVEL)[2] >= 0 else other

    def _best(self, judged: Sequence[_Judged], weights: Mapping[str, float]) -> _Judged | None:
        eligible = [one for one in judged if self._change(one.after, self._without, weights)[2] < 0]
        return min(eligible, key=lambda one: sum(w * float(one.after[k][0]) for k, w in weights.items()), default=None)

    @staticmethod
    def _change(
        after: Mapping[str, Tensor], before: Mapping[str, Tensor], weights: Mapping[str, float], level: float = 0.95
    ) -> tuple[float, float, float]:
        """Mean over the kinds of evidence of one gap minus another, with its centred interval."""
        change = torch.stack([w * (after[kind] - before[kind]) for kind, w in weights.items()]).sum(0)
        return float(change[0]), *recentred_interval(float(change[0]), change[1:].numpy(), level=level)

    def _after(self, fold: _Fold, method: Method, lam: Lam) -> Tensor:
        """Mean gaps of the neutral texts under the candidate that was fitted on the other part."""
        return self._means(fold, _solve(replace(fold.problem, lam=lam), self._role, method, fold.parts)(self._neutral))

    def _relative(self, after: Sequence[Tensor]) -> dict[str, Tensor]:
        """Kind of evidence -> predicted gap (1 + b,) as a share of the sample's without an edit, mean over attributes.

        Of every fold of texts by itself; of all images together, since half of them may show no gap.
        """
        shares: dict[str, Tensor] = {}
        for kind in dict.fromkeys(fold.kind for fold in self._folds):
            own = [(a, b) for fold, a, b in zip(self._folds, after, self._before, strict=True) if fold.kind == kind]
            changed, before = (torch.stack(each) for each in zip(*own, strict=True))
            if kind == "images":
                least = before[..., :1].mean(0).clamp(min=_LEAST)
                shares[kind] = (changed.mean(0).clamp(min=0) / least).sqrt().mean(0)
            else:
                shares[kind] = (changed / before[..., :1].clamp(min=torch.finfo(torch.float64).tiny)).mean((0, 1))
        return shares

    def _means(self, fold: _Fold, texts: Tensor) -> Tensor:
        """Mean gap, or of images its square, (a, 1 + b) over the neutral texts, which are resampled with the rows."""
        gaps = [gap.squares(texts) if fold.kind == "images" else gap.of_texts(texts) for gap in fold.gaps]
        return (torch.stack(gaps) * self._weights).sum(2) / self._weights.sum(1)


def _folds(problem: Problem, role: str, methods: Sequence[Method]) -> Iterator[_Fold]:
    """The text folds, where every set has enough groups, and the two halves of the images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceWarning)  # a half is less settled than the whole, which is said
        for k, (learn, predict) in enumerate(_text_folds(problem.attributes)):
            one = replace(problem, sets=learn)
            gaps = tuple(text_gap(problem, s, role, k) for s in predict)
            yield _Fold("texts", one, _parts(one, role, methods), gaps)
        reference = problem.reference
        if reference is not None:
            width = problem.host.dim(role)
            rows = torch.cat([torch.zeros(0, width, dtype=torch.float64), *reference.batches()])
            if (different := len(rows.unique(dim=0))) < 2 * FEWEST:
                raise UnusableReferenceError(
                    f"reference: expected at least {2 * FEWEST} different images, got {different}"
                )
            for doubt in (foreign(rows, problem, s, role) for s in problem.attributes):
                if doubt:
                    raise UnusableReferenceError(f"reference: {doubt}")
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]  # files may alternate
            for k in (0, 1):
                one = replace(problem, reference=replace(reference, features=rows[k::2]))
                gaps = tuple(image_gap(problem, s, role, rows[1 - k :: 2], k) for s in problem.attributes)
                yield _Fold("images", one, _parts(one, role, methods), gaps)


def _text_folds(sets: Sequence[PromptSet]) -> Iterator[tuple[tuple[PromptSet, ...], tuple[PromptSet, ...]]]:
    """(sets to fit on, sets whose groups are predicted): of groups in which prompts state two values, each by itself.

    Others are fitted on in every fold. A fold whose sets have no prompt of some value is left out.
    """
    held_out = [_telling(s, s.held_out_groups) for s in sets]
    telling = [_telling(s, s.groups) for s in sets]
    if all(len(groups) >= FEWEST for groups in held_out):
        own = [tuple(s.held_out_groups[i] for i in groups) for s, groups in zip(sets, held_out, strict=True)]
        yield tuple(sets), tuple(replace(s, groups=g, held_out_groups=()) for s, g in zip(sets, own, strict=True))
    elif all(len(groups) >= FEWEST for groups in telling):
        folds = min(FOLDS, *(len(groups) // 2 for groups in telling))  # one concept alone has no variance
        for k in range(folds):
            out = [groups[k::folds] for groups in telling]
            learn = tuple(
                replace(s, groups=tuple(group for i, group in enumerate(s.groups) if i not in own))
                for s, own in zip(sets, out, strict=True)
            )
            if all(s.names_values for s in learn):
                yield (
                    learn,
                    tuple(replace(s, groups=tuple(s.groups[i] for i in own)) for s, own in zip(sets, out, strict=True)),
                )


def _telling(prompts: PromptSet, groups: Sequence[Sequence[str]]) -> list[int]:
    """Which groups have prompts of two values."""
    stated = [{named for prompt in group if len(named := prompts.values_in(prompt)) == 1} for group in groups]
    return [i for i, values in enumerate(stated) if len(values) > 1]


def text_gap(problem: Problem, prompts: PromptSet, role: str, seed: int, resamples: int | None = None) -> PredictedGap:
    """Prompts of the groups that name one value; a group is a class, so prompts are compared about one concept."""
    place = {value: code for code, value in enumerate(prompts.attributes)}
    rows = [
        (prompt, place[named[0]], concept)
        for concept, group in enumerate(prompts.groups)
        for prompt in group
        if len(named := prompts.values_in(prompt)) == 1
    ]
    codes = torch.tensor([code for _, *code in rows])
    embedded = problem.embed([prompt for prompt, *_ in rows], role)
    return PredictedGap.of(
        embedded,
        codes[:, 0],
        codes[:, 1],
        resamples=RESAMPLES if resamples is None else resamples,
        seed=seed,
        whole=True,
    )


def image_gap(
    problem: Problem, prompts: PromptSet, role: str, rows: Tensor, seed: int, resamples: int | None = None
) -> PredictedGap:
    """Images with their zero-shot value, within pseudo-classes where the reference is compared within them."""
    reference = problem.reference
    assert reference is not None
    rows = rows[:: -(-len(rows) // MOST_ROWS)]
    texts = problem.zero_shot(prompts, role)
    value, probability = reference.read(rows, texts)
    sure = probability >= reference.confidence
    classes = class_texts(problem, prompts, role) if reference.within_classes else None
    label = None if classes is None else (rows @ classes.T).argmax(1)[sure]
    return PredictedGap.of(
        rows[sure], value[sure], label, resamples=RESAMPLES if resamples is None else resamples, seed=seed
    )


def draws(n: int, resamples: int, seed: int, size: int | None = None) -> Tensor:
    """How often each of n rows occurs: the sample itself, then its resamples, (1 + resamples, n) float64."""
    drawn = resampled_counts(np.ones(n, dtype=np.int64), resamples, seed, size)
    return torch.from_numpy(np.concatenate([np.ones((1, n)), *drawn]))


@dataclass(frozen=True, eq=False)
class PredictedGap:
    """How differently texts score rows of two attribute values, from no true label, with bootstrap draws.

    The rows (n, d) stand for images. The gap of a text q between the values a and b is

        |<q, D_ab>| / std(<q, row>),  D_ab = sum_c w_c (mean_ca - mean_cb) / sum_c w_c,  w_c = n_ca n_cb / (n_ca + n_cb)

    within the classes c (one class for all rows is allowed), and the largest over the pairs of values counts. With
    scores that are normal in each group the share of a group among the first results depends on this number alone. D is
    linear in the rows, so B draws of D serve every text and every method.

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
        """From rows (n, d) of length 1 with codes (n,) of their value and of their class.

        whole: classes are drawn, each with all its rows; else rows are. A concept's prompts are not drawn one by one:
        where they were, a pair would be torn apart in six resamples of ten, and intervals a third too wide.

        Raises:
            UnusableReferenceError: no rows, or no class has rows of two values.
        """
        if not len(rows):
            raise UnusableReferenceError("expected rows of two attribute values, got none")
        label = torch.zeros_like(values) if classes is None else classes
        _, label = label.unique(return_inverse=True)
        a, c = int(values.max()) + 1, int(label.max()) + 1
        cell = label * a + values
        counts = torch.bincount(cell, minlength=c * a).view(c, a)
        if not ((counts > 0).sum(1) > 1).any():
            raise UnusableReferenceError(f"expected rows of two attribute values in a class, got {counts.tolist()}")
        wide = rows.double()
        block = max(1, _BLOCK // len(rows))
        weights = draws(c, resamples, seed, max(c - 1, 1))[:, label] if whole else draws(len(rows), resamples, seed)
        parts = [_differences(wide, cell, c, a, w) for w in weights.split(block)]
        return cls(torch.cat(parts), wide - wide.mean(0))

    def of_texts(self, texts: Tensor) -> Tensor:
        """The gap (1 + b, q) of every text (q, d): first of the sample, then of its resamples."""
        return self._of_pairs(texts).abs().amax(1)

    def squares(self, texts: Tensor) -> Tensor:
        """The gap's square (1 + b, q) of every text (q, d), mean over the pairs of values, without its noise.

        That is E[x^2] - var x, with the variance of the resamples; it may be negative.
        """
        each = self._of_pairs(texts)
        return (each.square() - each[1:].var(0)).mean(1)

    def _of_pairs(self, texts: Tensor) -> Tensor:
        """Differences (1 + b, p, q) of the scores of every pair of values, in deviations of the scores."""
        unit = normalize(texts.double(), dim=1)
        spread = (self.centred @ unit.T).std(0).clamp(min=torch.finfo(torch.float64).tiny)
        return self.differences @ unit.T / spread


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


register_method(Auto())
