"""Choose a method and its lam without labels; choose no edit if no method is predicted to help.

Every candidate is fitted on one part of the evidence, and its effect predicted on the other:

    texts   five folds of the prompt groups, or the set's held-out groups; prompts that state a
            value replace images.
    images  the two halves of the reference images with their zero-shot values; each is once the
            test part.

The predicted quantity is the gap of the neutral texts (`PredictedGap`), as a share of the gap
without an edit. The changes of both kinds are averaged, each weighted by its precision 1 / (s^2 +
ERR^2), where s is the bootstrap deviation of the gap without an edit, and ERR the error that
remains with any number of rows. All candidates satisfy the bound on the neutral texts. Resamples
have fixed seeds: the choice is deterministic.

It detects methods that increase bias, because the gap is relative to the spread of a text's scores:
if a projection removes most of a query, mostly chance directions remain, and the gap may grow
although prompts of a pair are closer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Choice, Edit
from vldebias.errors import AutoDeclinedWarning, ReferenceWarning, warn
from vldebias.measure.resampling import recentred_interval, resampled_counts
from vldebias.methods.bounded import bounded, losses
from vldebias.methods.closed_form import ClosedForm, Term, class_texts
from vldebias.methods.equalise import UnusableReferenceError, foreign
from vldebias.methods.method import Method, Need, Problem, get_method, register_method
from vldebias.methods.reference import stating, zero_shot
from vldebias.projection import CalibratedProjection, NothingToRemoveError
from vldebias.prompts import PromptSet

MAX_LOSS = 0.05  # of the mean of the neutral texts, where no other bound is given
CANDIDATES = ("cali", "orth-cali", "difference", "equalise", "difference+equalise", "cali+equalise")
LAMS = (10.0, 100.0, 1000.0, 10_000.0)
FOLDS = 5
FEWEST = 5  # concepts, or groups of prompts: with fewer, resamples say nothing about a new one
RESAMPLES = 500
ERR = {"texts": 0.3, "images": 0.2}  # shares of the gap, measured over worlds and photographs
# of the interval by which what images add has to be better: one deviation, a chance of five in six
LEVEL = 0.68
# square of a gap, in deviations of the scores: what is less is none, and no share of it is reported
_LEAST = 1e-3
_MOST_ROWS = 20_000  # images that a gap is predicted on: more change it in the third decimal
_BLOCK = 1 << 22  # weights of rows at once: bounds the memory
_TINY = torch.finfo(torch.float64).tiny


class Auto(Method):
    """Choose the best of `CANDIDATES` for a problem, or none; the edit's provenance records the
    reasons."""

    name, title, source, color = "auto", "chosen without labels", "this package", "#bab0ac"
    needs, delegates = frozenset({Need.VALUES}), True

    def fit(self, problem: Problem, role: str) -> Edit:
        """Fit the chosen candidate to all prompts and images; return the identity if no method is
        predicted to help.

        Warns:
            AutoDeclinedWarning: no method is predicted to help.
            ReferenceWarning: the reference images cannot be split, and are left out.
        """
        lacks = {Need.IMAGES} if problem.reference is None else set()
        lacks |= set() if all(s.spurious for s in problem.attributes) else {Need.SPURIOUS}
        try:
            best, choice = decide(
                problem, role, [one for one in map(get_method, CANDIDATES) if not one.needs & lacks]
            )
        except UnusableReferenceError as error:
            warn(
                f"{problem.label}: method 'auto' does not use the reference images ({error})",
                ReferenceWarning,
            )
            return self.fit(replace(problem, reference=None), role)
        if choice.method == "none":
            remedy = (
                "Pass reference= or a prompt set with more concepts, or name a method and measure"
                " what it does."
            )
            warn(
                f"{problem.label}: method 'auto' attaches no edit. {choice.reason} {remedy}",
                AutoDeclinedWarning,
            )
            best = best.stamped(method="auto: none")
        return best.stamped(choice=choice)


class PredictedGap:
    """Predict the gap of a text between two values of an attribute, from rows (n, d) of images or
    texts.

    The gap of a text q between the values a and b is

        |<q, D_ab>| / std(<q, row>)
        D_ab = sum_c w_c (mean_ca - mean_cb) / sum_c w_c
        w_c = n_ca n_cb / (n_ca + n_cb)

    within the classes c (one class for all rows is allowed), and the largest over the pairs of
    values counts. With scores that are normal in each group the share of a group among the first
    results depends on this number alone. D is linear in the rows, so the same b resamples of D
    serve every text and every method.

    Args:
        rows: (n, d) of length 1. values, classes: (n,) codes of their value and of their class.
        whole: resample classes with all their rows, instead of single rows. For prompts, single
            rows would break a pair in six resamples of ten and make intervals a third too wide.

    Raises:
        UnusableReferenceError: no rows, or no class has rows of two values.
    """

    def __init__(
        self,
        rows: Tensor,
        values: Tensor,
        classes: Tensor | None = None,
        *,
        seed: int = 0,
        whole: bool = False,
    ) -> None:
        label = (
            torch.zeros_like(values) if classes is None else classes.unique(return_inverse=True)[1]
        )
        a, c = (int(codes.max()) + 1 if len(rows) else 0 for codes in (values, label))
        cell, (i, j) = label * a + values, torch.combinations(torch.arange(a)).T
        seen = cell.bincount(minlength=c * a).view(c, a)
        if not ((seen > 0).sum(1) > 1).any():
            raise UnusableReferenceError(
                f"expected images of two attribute values, got the counts {seen.tolist()}"
            )
        rows, one = rows.double(), torch.eye(a, dtype=torch.float64)
        drawn = _draws(c, seed, max(c - 1, 1))[:, label] if whole else _draws(len(rows), seed)
        differences = []
        for some in drawn.split(max(1, _BLOCK // (len(rows) * len(i)))):
            counts = (
                torch.zeros(len(some), c * a, dtype=torch.float64)
                .index_add_(1, cell, some)
                .view(-1, c, a)
            )
            n_i, n_j = counts[..., i], counts[..., j]  # (b, c, p)
            precision = n_i * n_j / (n_i + n_j).clamp(min=_TINY)
            share = precision / precision.sum(1, keepdim=True).clamp(
                min=0.5
            )  # a class with both has at least 1/2
            weights = (
                share[..., None] * (one[i] - one[j]) / counts[:, :, None].clamp(min=1)
            )  # (b, c, p, a)
            differences.append(
                weights.transpose(1, 2).flatten(2)[:, :, cell] * some[:, None] @ rows
            )
        self.differences, self.centred = (
            torch.cat(differences),
            rows - rows.mean(0),
        )  # (1 + b, p, d), (n, d)

    def of_texts(self, texts: Tensor, *, squared: bool = False) -> Tensor:
        """Return the gap (1 + b, q) of every text (q, d): first of the sample, then of its
        resamples.

        squared: instead the square, averaged over the pairs of values and corrected for noise:
        E[x^2] - var x, with the variance of the resamples; it may be negative.
        """
        unit = normalize(texts.double(), dim=1)
        each = self.differences @ unit.T / (self.centred @ unit.T).std(0).clamp(min=_TINY)
        return (each.square() - each[1:].var(0)).mean(1) if squared else each.abs().amax(1)


def _draws(n: int, seed: int = 0, size: int | None = None) -> Tensor:
    """Return how often each of n rows occurs in the sample itself, then in its resamples: (1 +
    RESAMPLES, n)."""
    drawn = resampled_counts(np.ones(n, dtype=np.int64), RESAMPLES, seed, size)
    return torch.from_numpy(np.concatenate([np.ones((1, n)), *drawn]))


Fold = tuple[Problem, list[PredictedGap]]  # what is fitted on, and what is predicted by attribute


def decide(
    problem: Problem,
    role: str,
    methods: Sequence[Any],
    lams: Sequence[Any] = LAMS,
    most: float | None = MAX_LOSS,
) -> tuple[CalibratedProjection, Choice]:
    """Judge every closed form at every lam; return the chosen projection, or the identity, and what
    was chosen and why.

    most: the bound on the mean loss of the neutral texts; that of the problem, on every text, goes
    before it.

    Raises:
        UnusableReferenceError: images that cannot be split, or of another space.
    """
    most, neutral = problem.max_loss or most, problem.host.embed(problem.neutral, role)

    def parts(
        of: Problem,
    ) -> Mapping[Term, Any]:  # they do not depend on lam, so they are computed once
        return {
            term: term.rows(of, role)
            for term in dict.fromkeys(term for one in methods for term in one.terms)
        }

    def solved(
        of: Problem, known: Mapping[Term, Any], method: ClosedForm, lam: Any
    ) -> CalibratedProjection:
        try:
            edit = method.fit(replace(of, lam=lam), role, known)
        except NothingToRemoveError:  # the model embeds the texts of all values alike
            return CalibratedProjection.identity(problem.host.dim(role), method.name)
        return edit if most is None else bounded(edit, neutral, most, mean=problem.max_loss is None)

    def predicted(*candidate: Any) -> Tensor:
        """Return the gap of the neutral texts, as a share (kinds, 1 + b) of that without an edit.

        Each text fold has a share of its own. Both halves of the images have one, since a half may
        show no gap, and it is of squares without their noise (`PredictedGap.of_texts`). Neutral
        texts are resampled with the rows.
        """
        shares = []
        for kind, own in folds.items():
            found = []
            for (learn, gaps), known in own:
                texts = solved(learn, known, *candidate)(neutral) if candidate else neutral
                each = torch.stack([gap.of_texts(texts, squared=kind == "images") for gap in gaps])
                found.append((each * drawn).sum(2) / drawn.sum(1))
            after = torch.stack(found)  # (folds, attributes, 1 + b)
            base = before.setdefault(kind, after[..., :1])  # the first call is without an edit
            if kind == "images":
                shares.append(
                    (after.mean(0).clamp(min=0) / base.mean(0).clamp(min=_LEAST)).sqrt().mean(0)
                )
            else:
                shares.append((after / base.clamp(min=_TINY)).mean((0, 1)))
        return torch.stack(shares)

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ReferenceWarning
        )  # half of the images are less certain than all of them
        both = {"texts": _text_folds(problem, role), "images": image_folds(problem, role)}
        found = {kind: [(fold, parts(fold[0])) for fold in own] for kind, own in both.items()}
    folds = {kind: own for kind, own in found.items() if own and problem.neutral}
    edits, told, chosen = (
        [CalibratedProjection.identity(problem.host.dim(role))],
        list[dict[str, Any]](),
        0,
    )
    reason = (
        f"There are no class prompts, or fewer than {FEWEST} groups state two values and no images"
        " can be used."
    )
    if folds:
        drawn, before, whole = _draws(len(neutral)), dict[str, Tensor](), parts(problem)
        gaps, on_images = [predicted()], list[bool]()
        errors = torch.tensor([ERR[kind] for kind in folds], dtype=torch.float64)
        precision = 1 / (gaps[0][:, 1:].var(1) + errors**2)
        weights = precision / precision.sum()
        for method, lam in (
            (one, lam) for one in methods for lam in (lams if one.has_lam else lams[:1])
        ):
            edit = solved(problem, whole, method, lam)
            if any(edit.method == one.method and np.allclose(edit.lam, one.lam) for one in edits):
                continue  # the bound lowers several lam to one
            edits.append(edit)
            gaps.append(predicted(method, edit.lam))
            on_images.append(method.uses_images)
            after, change = gaps[-1][:, 0], change_with_interval(weights @ (gaps[-1] - gaps[0]))
            told.append(
                {
                    "method": edit.method,
                    "lam": list(edit.lam) if isinstance(edit.lam, tuple) else edit.lam,
                    "gap": float(weights @ after),
                    "gaps": dict(zip(folds, after.tolist(), strict=True)),
                    "change": change,
                    "loss": float(losses(edit, neutral).mean()),
                    "refused": "" if change[2] < 0 else "interval includes no change",
                }
            )
        chosen = choose(gaps, on_images, weights)
        reason = "No method is predicted to reduce the gap by more than its 95 % interval."
    if chosen:
        gap, loss = told[chosen - 1]["gap"], told[chosen - 1]["loss"]
        reason = (
            f"The predicted gap is {gap:.0%} of that without an edit, at a mean loss of cosine of"
            f" {loss:.3f}."
        )
    evidence = {}
    for kind, own in folds.items():
        rows = sum(len(gap.centred) for (_, gaps), _ in own for gap in gaps)
        evidence[kind] = {"neutral texts": len(neutral), "folds": len(own), "rows": rows}
    best, bound = edits[chosen], {"max_loss": most, "resamples": RESAMPLES, "level": 0.95}
    fitted: dict[str, Any] = {
        "prompts": problem.label,
        "method": best.method,
        "lam": best.lam,
        "reason": reason,
    }
    return best, Choice(**fitted, candidates=told, evidence=evidence, settings=bound)


def change_with_interval(change: Tensor, level: float = 0.95) -> list[float]:
    """Return a change and its centred interval, from its value and resamples (1 + b,)."""
    return [
        float(change[0]),
        *recentred_interval(float(change[0]), change[1:].numpy(), level=level),
    ]


def choose(gaps: Sequence[Tensor], on_images: Sequence[bool], weights: Tensor) -> int:
    """Return the index of the smallest gap (kinds, 1 + b) whose 95 % interval excludes no change,
    or 0 for no edit.

    It has to be better, beyond the 68 % interval of the difference, than the best that uses no
    image (images that are split by one guess judge what was fitted to that split), and than what
    texts alone choose among these (nobody can see whether a reference is like what will be
    searched).
    """

    def best(among: Sequence[int], judge: Tensor) -> int:
        eligible = [i for i in among if change_with_interval(judge @ (gaps[i] - gaps[0]))[2] < 0]
        return min(eligible, key=lambda i: float(judge @ gaps[i][:, 0]), default=0)

    chosen = best(range(len(gaps)), weights)
    for judge in (
        weights,
        torch.eye(len(weights), dtype=torch.float64)[0],
    ):  # texts come first, where there are any
        kept = best(
            [i for i, uses in enumerate(on_images, 1) if not uses], judge
        )  # gaps[0] is without an edit
        if change_with_interval(weights @ (gaps[chosen] - gaps[kept]), LEVEL)[2] >= 0:
            chosen = kept
    return chosen


def _text_folds(problem: Problem, role: str) -> Iterator[Fold]:
    """Yield folds of the groups in which prompts state two values; all other groups are fitted on
    in every fold.

    A fold whose sets have no prompt of some value is left out.
    """

    def telling(prompts: PromptSet) -> list[int]:
        _, values, groups = stating(prompts)
        return [k for k in groups.unique().tolist() if len(values[groups == k].unique()) > 1]

    def only(prompts: PromptSet, kept: Sequence[int]) -> PromptSet:
        return replace(prompts, groups=tuple(prompts.groups[i] for i in kept))

    sets = problem.attributes
    unseen = [
        replace(s, groups=s.held_out_groups or s.groups[:1], held_out_groups=()) for s in sets
    ]
    held_out, own = ([*map(telling, some)] for some in (unseen, sets))
    folds = []
    if min(map(len, held_out)) >= FEWEST:
        folds = [(sets, tuple(map(only, unseen, held_out)))]
    elif min(map(len, own)) >= FEWEST:
        number = min(
            FOLDS, *(len(groups) // 2 for groups in own)
        )  # one concept alone has no variance
        for k in range(number):
            out = [(s, groups[k::number]) for s, groups in zip(sets, own, strict=True)]
            learn = tuple(
                only(s, [i for i in range(len(s.groups)) if i not in kept]) for s, kept in out
            )
            if all(s.names_values for s in learn):
                folds.append((learn, tuple(only(s, kept) for s, kept in out)))
    for seed, (learn, predict) in enumerate(folds):
        gaps = []
        for prompts in predict:  # a group is a class, so prompts are compared about one concept
            texts, *codes = stating(prompts)
            gaps.append(
                PredictedGap(problem.host.embed(texts, role), *codes, seed=seed, whole=True)
            )
        yield replace(problem, sets=learn), gaps


def image_folds(problem: Problem, role: str) -> Iterator[Fold]:
    """Yield the two halves of the reference images, of which each is fitted on and the other
    predicted."""
    reference = problem.reference
    if reference is None:
        return
    rows = torch.cat([*reference.batches()])
    if (different := len(rows.unique(dim=0))) < 2 * FEWEST:
        raise UnusableReferenceError(
            f"reference: expected at least {2 * FEWEST} different images, got {different}"
        )
    if doubt := next(
        filter(None, (foreign(rows, problem, s, role) for s in problem.attributes)), ""
    ):
        raise UnusableReferenceError(f"reference: {doubt}")
    rows = rows[
        torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    ]  # files may alternate
    for k in (0, 1):
        learn, predict = rows[k::2], rows[1 - k :: 2]
        predict, gaps = predict[:: -(-len(predict) // _MOST_ROWS)], []
        for prompts in problem.attributes:
            value = zero_shot(predict, problem.zero_shot(prompts, role))
            texts = class_texts(problem, prompts, role)
            label = None if texts is None else (predict @ texts.T).argmax(1)
            gaps.append(PredictedGap(predict, value, label, seed=k))
        yield replace(problem, reference=replace(reference, features=learn)), gaps


register_method(Auto())
