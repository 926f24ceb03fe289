"""Choose a method and its lam without labels; choose no edit if no method is predicted to help.

Every candidate is fitted on one part of the evidence, and its effect predicted on the other:

    texts   five folds of the prompt groups, or the set's held-out groups; prompts that state a value replace images.
    images  the two halves of the reference images with their zero-shot values; each is once the test part.

The predicted quantity is the gap of the neutral texts (`PredictedGap`), as a share of the gap without an edit, so 1
means no change. The changes of both kinds are averaged, each weighted by its precision 1 / (s^2 + ERR^2), where s is
the bootstrap deviation of the gap without an edit, and ERR the error that remains with any number of rows. A candidate
can be chosen if the 95 % interval of its change, centred at the value, lies below 0; the smallest gap wins. A choice
that depends on images must be better by more than the 68 % interval of the difference. All candidates satisfy the bound
on the neutral texts. Resamples have fixed seeds: the choice is deterministic.

The prediction detects methods that increase bias, because the gap is relative to the spread of a text's scores. If a
projection removes most of a query, mostly chance directions remain. If these are closer to one value, the gap grows
although the prompts of a pair have become more similar.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Choice, Edit
from vldebias.errors import AutoDeclinedWarning, InvalidInputError, ReferenceWarning, warn
from vldebias.methods.bounded import bounded, losses
from vldebias.methods.closed_form import ClosedForm, Parts, class_texts
from vldebias.methods.equalise import UnusableReferenceError, foreign
from vldebias.methods.method import Method, Need, Problem, get_method, register_method
from vldebias.methods.reference import stating, zero_shot
from vldebias.metrics.bootstrap import recentred_interval, resampled_counts
from vldebias.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet

MAX_LOSS = 0.05  # of the mean of the neutral texts, where no other bound is given
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
        lacks = {Need.LABELS} | (set() if all(s.spurious for s in problem.attributes) else {Need.SPURIOUS})
        methods = [one for one in map(get_method, CANDIDATES) if not one.needs & lacks]
        from_texts = [one for one in methods if not one.uses_images]
        try:
            best, choice = _decide(problem, role, from_texts if problem.reference is None else methods)
        except UnusableReferenceError as error:
            reason = str(error).removeprefix("reference: ").partition("; ")[0]
            warn(f"{problem.label}: method 'auto' does not use the reference images: {reason}", ReferenceWarning)
            best, choice = _decide(replace(problem, reference=None), role, from_texts)
        if choice.method == "none":
            remedy = "Pass reference= or a prompt set with more concepts, or name a method and measure what it does."
            warn(f"{problem.label}: method 'auto' attaches no edit. {choice.reason} {remedy}", AutoDeclinedWarning)
            best = CalibratedProjection.identity(problem.host.dim(role), "auto: none")
        return best.stamped(choice=choice)


def expected_from_texts(problem: Problem, role: str, method: Method) -> Choice | None:
    """Predict from texts alone whether a method helps; return a choice, or None if the texts do not suffice.

    Texts suffice if there are neutral texts and every set has at least `FEWEST` groups that state two values.
    """
    try:
        problem.neutral_prompts()
    except InvalidInputError:
        return None
    choice = _decide(replace(problem, reference=None), role, [method], [problem.lam], most=problem.max_loss)[1]
    return choice if choice.evidence else None


class PredictedGap:
    """Predict the gap of a text between two values of an attribute, from rows (n, d) of images or texts.

    The gap of a text q between the values a and b is

        |<q, D_ab>| / std(<q, row>),  D_ab = sum_c w_c (mean_ca - mean_cb) / sum_c w_c,  w_c = n_ca n_cb / (n_ca + n_cb)

    within the classes c (one class for all rows is allowed), and the largest over the pairs of values counts. With
    scores that are normal in each group the share of a group among the first results depends on this number alone. D is
    linear in the rows, so the same b resamples of D serve every text and every method.

    Args:
        rows: (n, d) of length 1. values, classes: (n,) codes of their value and of their class.
        whole: resample classes with all their rows, instead of single rows. For prompts, single rows would break a
            pair in six resamples of ten and make intervals a third too wide.

    Attributes:
        differences: (1 + b, p, d) of means over p pairs of values, of the sample and b resamples.
        centred: (n, d) rows minus their mean.

    Raises:
        UnusableReferenceError: no rows, or no class has rows of two values.
    """

    def __init__(
        self, rows: Tensor, values: Tensor, classes: Tensor | None = None, *, seed: int = 0, whole: bool = False
    ) -> None:
        label = torch.zeros_like(values) if classes is None else classes.unique(return_inverse=True)[1]
        a, c = (int(codes.max()) + 1 if len(rows) else 0 for codes in (values, label))
        cell, i, j = label * a + values, *torch.combinations(torch.arange(a)).T
        seen = cell.bincount(minlength=c * a).view(c, a)
        if not ((seen > 0).sum(1) > 1).any():
            raise UnusableReferenceError(f"expected images of two attribute values, got the counts {seen.tolist()}")
        rows, one = rows.double(), torch.eye(a, dtype=torch.float64)
        drawn = _draws(c, seed, max(c - 1, 1))[:, label] if whole else _draws(len(rows), seed)
        differences = []
        for some in drawn.split(max(1, _BLOCK // (len(rows) * len(i)))):
            counts = torch.zeros(len(some), c * a, dtype=torch.float64).index_add_(1, cell, some).view(-1, c, a)
            n_i, n_j = counts[..., i], counts[..., j]  # (b, c, p)
            precision = n_i * n_j / (n_i + n_j).clamp(min=1)
            share = precision / precision.sum(1, keepdim=True).clamp(min=0.5)  # a class with both has at least 1/2
            of_i, of_j = (share / own.clamp(min=1) for own in (n_i, n_j))
            weights = of_i[..., None] * one[i] - of_j[..., None] * one[j]  # (b, c, p, a)
            differences.append(weights.transpose(1, 2).flatten(2)[:, :, cell] * some[:, None] @ rows)
        self.differences, self.centred = torch.cat(differences), rows - rows.mean(0)

    def of_texts(self, texts: Tensor, *, squared: bool = False) -> Tensor:
        """Return the gap (1 + b, q) of every text (q, d): first of the sample, then of its resamples.

        squared: instead the square, averaged over the pairs of values and corrected for noise: E[x^2] - var x, with the
        variance of the resamples; it may be negative.
        """
        unit = normalize(texts.double(), dim=1)
        each = self.differences @ unit.T / (self.centred @ unit.T).std(0).clamp(min=_TINY)
        return (each.square() - each[1:].var(0)).mean(1) if squared else each.abs().amax(1)


def _draws(n: int, seed: int = 0, size: int | None = None) -> Tensor:
    """Return how often each of n rows occurs in the sample itself, then in its resamples: (1 + RESAMPLES, n)."""
    drawn = resampled_counts(np.ones(n, dtype=np.int64), RESAMPLES, seed, size)
    return torch.from_numpy(np.concatenate([np.ones((1, n)), *drawn]))


Fold = tuple[str, Problem, list[PredictedGap]]  # kind, what is fitted on, and what is predicted by attribute


class _Evidence:
    """Predict gaps from the text folds, if every set has enough groups, and from two halves of the images.

    kinds: of the evidence. weights: (kinds,). without: (kinds, 1 + b) gaps without an edit.

    Raises:
        UnusableReferenceError: images that cannot be split, or of another space.
    """

    def __init__(self, problem: Problem, role: str, methods: Sequence[ClosedForm], most: float | None) -> None:
        self.role, self.methods, self.most = role, methods, most
        self.neutral = problem.host.embed(problem.neutral_prompts(), role)
        self.folds, self._drawn = list[tuple[Fold, Parts]](), _draws(len(self.neutral))
        self._before = dict[str, Tensor]()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ReferenceWarning)  # half of the images are less certain than all of them
            for fold in chain(_text_folds(problem, role), _image_folds(problem, role)):
                self.folds.append((fold, self.parts(fold[1])))
        self.kinds = tuple(dict.fromkeys(kind for (kind, *_), _ in self.folds))
        if self.kinds:
            self.without = self.gaps()
            errors = torch.tensor([ERR[kind] for kind in self.kinds], dtype=torch.float64)
            precision = 1 / (self.without[:, 1:].var(1) + errors**2)
            self.weights = precision / precision.sum()

    def parts(self, problem: Problem) -> Parts:
        """Return the rows of all terms of the methods; they do not depend on lam, so they are computed once."""
        terms = dict.fromkeys(term for method in self.methods for term in method.terms)
        return {term: term.rows(problem, self.role) for term in terms}

    def solve(self, problem: Problem, method: ClosedForm, lam: Any, parts: Parts) -> CalibratedProjection:
        """Fit one candidate within the bound; the identity if it finds nothing to remove."""
        try:
            edit = method.fit(replace(problem, lam=lam), self.role, parts)
        except NothingToRemoveError:  # the model embeds the texts of all values alike
            return CalibratedProjection.identity(problem.host.dim(self.role), method.name)
        return edit if self.most is None else bounded(edit, self.neutral, self.most, mean=problem.max_loss is None)

    def gaps(self, method: ClosedForm | None = None, lam: Any = None) -> Tensor:
        """Return the mean gap (kinds, 1 + b) of the neutral texts and attributes, as a share of that without an edit.

        The share is of every text fold by itself; of all images together, whose halves may show no gap, and as a square
        without its noise (`PredictedGap.of_texts`). Neutral texts are resampled with the rows.
        """
        found: dict[str, list[Tensor]] = {kind: [] for kind in self.kinds}
        for (kind, problem, gaps), parts in self.folds:
            texts = self.neutral if method is None else self.solve(problem, method, lam, parts)(self.neutral)
            each = torch.stack([gap.of_texts(texts, squared=kind == "images") for gap in gaps])
            found[kind].append((each * self._drawn).sum(2) / self._drawn.sum(1))
        shares = []
        for kind, after in ((kind, torch.stack(own)) for kind, own in found.items()):
            before = self._before.setdefault(kind, after[..., :1])  # the first call is without a method
            if kind == "images":
                shares.append((after.mean(0).clamp(min=0) / before.mean(0).clamp(min=_LEAST)).sqrt().mean(0))
            else:
                shares.append((after / before.clamp(min=_TINY)).mean((0, 1)))
        return torch.stack(shares)

    def change(self, after: Tensor, before: Tensor, level: float = 0.95, weights: Tensor | None = None) -> list[float]:
        """Return the weighted mean over the kinds of one gap minus another, with its centred interval."""
        change = (self.weights if weights is None else weights) @ (after - before)
        return [float(change[0]), *recentred_interval(float(change[0]), change[1:].numpy(), level=level)]

    def chosen(self, gaps: Sequence[Tensor], on_images: Sequence[bool]) -> int:
        """Return the index of the smallest gap (kinds, 1 + b) whose interval excludes no change, or 0 for no edit.

        It has to be better, beyond the interval of the difference, than

        - the best that uses no image: images that are split by one guess judge what was fitted to that very split;
        - what texts alone choose: nobody can see whether a reference is like what will be searched.
        """

        def best(among: Sequence[int], weights: Tensor) -> int:
            eligible = [i for i in among if self.change(gaps[i], gaps[0], weights=weights)[2] < 0]
            return min(eligible, key=lambda i: float(weights @ gaps[i][:, 0]), default=0)

        no_images = [i for i in range(1, len(gaps)) if not on_images[i]]
        chosen, safe = best(range(1, len(gaps)), self.weights), [best(no_images, self.weights)]
        if self.kinds == ("texts", "images"):
            safe.append(best(no_images, torch.tensor([1.0, 0.0], dtype=torch.float64)))
        for kept in safe:
            if self.change(gaps[chosen], gaps[kept], LEVEL)[2] >= 0:
                chosen = kept
        return chosen


def _decide(
    problem: Problem, role: str, methods: Sequence[Any], lams: Sequence[Any] = LAMS, *, most: float | None = MAX_LOSS
) -> tuple[CalibratedProjection, Choice]:
    """Judge every closed form at every lam; return the chosen projection, and what was chosen and why.

    most: the bound on the mean loss of the neutral texts; that of the problem, on every text, goes before it.
    """
    most = problem.max_loss or most
    evidence = _Evidence(problem, role, methods, most)
    edits, told = [CalibratedProjection.identity(problem.host.dim(role))], list[dict[str, Any]]()
    reason = f"Fewer than {FEWEST} groups of prompts state two values, and there are no usable reference images."
    chosen = 0
    if evidence.kinds:
        parts, gaps, on_images = evidence.parts(problem), [evidence.without], [False]
        for method, lam in ((one, lam) for one in methods for lam in (lams if one.has_lam else lams[:1])):
            edit = evidence.solve(problem, method, lam, parts)
            if any(edit.method == one.method and np.allclose(edit.lam, one.lam, 1e-6, 0) for one in edits):
                continue  # the bound lowers several lam to one
            edits.append(edit)
            gaps.append(evidence.gaps(method, edit.lam))
            on_images.append(method.uses_images)
            after, change = gaps[-1][:, 0], evidence.change(gaps[-1], evidence.without)
            told.append(
                {
                    "method": edit.method,
                    "lam": list(edit.lam) if isinstance(edit.lam, tuple) else edit.lam,
                    "gap": float(evidence.weights @ after),
                    "gaps": dict(zip(evidence.kinds, after.tolist(), strict=True)),
                    "change": change,
                    "loss": float(losses(edit, evidence.neutral).mean()),
                    "refused": "" if change[2] < 0 else "interval includes no change",
                }
            )
        chosen = evidence.chosen(gaps, on_images)
        reason = "No method is predicted to reduce the gap by more than its 95 % interval."
    if chosen:
        gap, loss = told[chosen - 1]["gap"], told[chosen - 1]["loss"]
        reason = f"The predicted gap is {gap:.0%} of that without an edit, at a mean loss of cosine of {loss:.3f}."
    found = {kind: {"neutral texts": len(evidence.neutral), "folds": 0, "rows": 0} for kind in evidence.kinds}
    for (kind, _, own), _ in evidence.folds:
        found[kind]["folds"] += 1
        found[kind]["rows"] += sum(len(gap.centred) for gap in own)
    best, settings = edits[chosen], {"max_loss": most, "resamples": RESAMPLES, "level": 0.95}
    return best, Choice(problem.label, best.method, best.lam, reason, tuple(told), found, settings)


def _text_folds(problem: Problem, role: str) -> Iterator[Fold]:
    """Yield folds of the groups in which prompts state two values; all other groups are fitted on in every fold.

    A fold whose sets have no prompt of some value is left out.
    """
    sets = problem.attributes

    def telling(prompts: PromptSet) -> list[int]:
        values = Counter(group for group, _ in {(group, value) for _, value, group in stating(prompts)})
        return sorted(group for group, number in values.items() if number > 1)

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
    for seed, (learn, predict) in enumerate(folds):
        gaps = []
        for prompts in predict:  # a group is a class, so prompts are compared about one concept
            texts, values, concepts = zip(*stating(prompts), strict=True)
            codes = torch.tensor(values), torch.tensor(concepts)
            gaps.append(PredictedGap(problem.host.embed(texts, role), *codes, seed=seed, whole=True))
        yield "texts", replace(problem, sets=learn), gaps


def _image_folds(problem: Problem, role: str) -> Iterator[Fold]:
    """Yield the two halves of the reference images, of which each is fitted on and the other predicted."""
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
        learn, predict = rows[k::2], rows[1 - k :: 2]
        predict, gaps = predict[:: -(-len(predict) // _MOST_ROWS)], []
        for prompts in problem.attributes:
            value, _ = zero_shot(predict, problem.zero_shot(prompts, role))
            texts = class_texts(problem, prompts, role) if reference.within_classes else None
            label = None if texts is None else (predict @ texts.T).argmax(1)
            gaps.append(PredictedGap(predict, value, label, seed=k))
        yield "images", replace(problem, reference=replace(reference, features=learn)), gaps


register_method(Auto())
