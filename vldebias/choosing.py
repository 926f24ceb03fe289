"""Choose method and lam without labels, and do nothing where nothing is expected to help.

Every candidate is fitted on one part of the evidence and predicted on the other:

    texts   five folds of the prompt groups; prompts that state a value, of concepts that were not fitted on, stand
            for images. Where a set has held-out groups, these are predicted, and nothing is folded.
    images  the two halves of the reference images with their zero-shot values, each fitted once, predicted once.

What is predicted is the gap of the neutral texts (`vldebias.gaps`), as a share of what it is without a projection, so
1 means no change. A candidate may be chosen where the 95 % interval of its change lies below 0, that of the images
where there are any: texts cannot see what images do. The smallest mean over the kinds of evidence wins. All candidates
keep the bound on the neutral texts, a mean loss of cosine of at most 0.05 unless `max_loss` says otherwise.

Why this sees a method that makes things worse: the gap is relative to the spread of a text's scores. A projection that
takes away most of what a query says leaves it with little but chance directions, and if these lean to one value the
ratio rises although the prompts of a pair came closer.

Resamples draw rows and neutral texts together, with fixed seeds: the choice is deterministic. Its interval is that of
a candidate by itself, not of the best of many.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.bounded import Bound, losses, neutral_prompts
from vldebias.choice import Candidate, Choice
from vldebias.diagnostics import signal_kept
from vldebias.errors import AutoDeclinedWarning, ReferenceWarning
from vldebias.gaps import Pool, draws
from vldebias.projection import CalibratedProjection, PairScatter
from vldebias.stated import StatedWords
from vldebias.values import value_prompts

if TYPE_CHECKING:
    from vldebias.equalise import Reference
    from vldebias.fitting import Fit
    from vldebias.prompts import PromptSet

__all__ = ["BOUND", "LAMS", "choose"]

BOUND = Bound(0.05, over="mean")
LAMS = (10.0, 100.0, 1000.0, 10_000.0)
FOLDS = 5
FEWEST = 5  # concepts, or groups of prompts: with fewer, resamples say nothing about a new one
RESAMPLES = 500
MOST_ROWS = 20_000  # images that a gap is predicted on: more change it in the third decimal
_WITHOUT_LAM = ("orth", "difference")

Terms = tuple[list[PairScatter], list[PairScatter]]


def choose(fit: Fit, role: str) -> Choice:
    """The best candidate for `role` of a fit whose method or lam is "auto", or none, with what it rests on.

    Raises:
        PromptSetError: a set does not say which words name which value of its attribute.
        InvalidInputError: no neutral texts, or too few reference images for two halves.
    """
    bound = fit.bound or BOUND
    neutral = fit.embed(neutral_prompts(fit.sets, bound.neutral), role)
    whole = replace(fit, bound=bound)
    folds = list(_folds(whole, role))
    settings = {"max_loss": bound.loss, "over": bound.over, "resamples": RESAMPLES, "level": 0.95}
    evidence = _counts(folds, neutral)
    if not folds:
        reason = f"Fewer than {FEWEST} groups of prompts and no reference images: nothing to predict from."
        return _none(fit, reason, (), evidence, settings, neutral.shape[1])
    options = _Options(whole, role, neutral, folds)
    fitted = options.distinct()
    candidates = tuple(options.judge(method, images, p) for method, images, p in fitted)
    best = min((i for i, c in enumerate(candidates) if not c.refused), key=lambda i: candidates[i].gap, default=None)
    if best is None:
        reason = "No method is expected to help beyond its interval, so nothing is changed."
        return _none(fit, reason, candidates, evidence, settings, neutral.shape[1])
    won = candidates[best]
    reason = f"Predicted gap {won.gap:.0%} of what it is without, at a mean loss of cosine of {won.loss:.3f}."
    return Choice(fit.label, won.method, won.lam, reason, candidates, evidence, settings, fitted[best][2])


def _none(
    fit: Fit,
    reason: str,
    candidates: tuple[Candidate, ...],
    evidence: dict[str, dict[str, int]],
    settings: dict[str, object],
    dim: int,
) -> Choice:
    """The identity, with a warning that says so."""
    nothing = torch.zeros(dim, 0, dtype=torch.float64)
    remedy = "Give reference images, or a set with more concepts, and measure; or choose a method yourself."
    warnings.warn(f"{fit.label}: auto: none. {reason} {remedy}", AutoDeclinedWarning, stacklevel=5)
    identity = CalibratedProjection(nothing, nothing, 0.0, "auto: none")
    return Choice(fit.label, "none", 0.0, reason, candidates, evidence, settings, identity)


@dataclass(frozen=True, eq=False)
class _Fold:
    """A fit on one part of the evidence, its terms, and the rows of the other part, one pool per attribute."""

    kind: str
    fit: Fit
    terms: Terms
    pools: tuple[Pool, ...]


class _Options:
    """All candidates of one role and their predictions."""

    def __init__(self, fit: Fit, role: str, neutral: Tensor, folds: Sequence[_Fold]) -> None:
        self._fit, self._role, self._neutral, self._folds = fit, role, neutral, folds
        self._terms = fit.terms(role)
        self._weights = draws(len(neutral), RESAMPLES, seed=0)
        self._kinds = tuple(dict.fromkeys(fold.kind for fold in folds))
        self._before = [[self._means(pool, neutral) for pool in fold.pools] for fold in folds]

    def distinct(self) -> list[tuple[str, bool, CalibratedProjection]]:
        """(method, with images, projection fitted on everything); the bound makes one of several lam."""
        found: dict[tuple[str, object], tuple[str, bool, CalibratedProjection]] = {}
        for method, images, lam in self._grid():
            projection = _solve(self._fit, self._role, self._terms, method, images, lam)
            found.setdefault((projection.method, _rounded(projection.lam)), (method, images, projection))
        return list(found.values())

    def judge(self, method: str, images: bool, projection: CalibratedProjection) -> Candidate:
        """What is predicted for a candidate."""
        after = self._relative(method, images, projection.lam)
        without = self._relative("none", False, 0.0)
        judged = "images" if "images" in after else "texts"
        change = after[judged] - without[judged]
        low, high = torch.quantile(change[1:], torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
        gaps = {kind: float(values[0]) for kind, values in after.items()}
        kept = [
            signal_kept(self._fit.embed(s.classes, self._role), projection)
            for s in self._fit.sets
            if len(s.classes) > 1
        ]
        return Candidate(
            method=projection.method,
            lam=projection.lam,
            gaps=gaps,
            gap=sum(gaps.values()) / len(gaps),
            change=(float(change[0]), low, high),
            loss=float(losses(projection, self._neutral).mean()),
            signal_kept=min((k for k in kept if k is not None), default=None),
            refused="" if high < 0 else "not beyond its interval",
        )

    def _grid(self) -> Iterator[tuple[str, bool, float | tuple[float, ...]]]:
        fit = self._fit
        given = fit.reference is not None
        kinds: list[tuple[str, bool]] = [(fit.method, given)]
        if fit.method == "auto":
            with_p0 = [("orth-cali", False)] if all(s.spurious for s in fit.attributes) else []
            with_images = [("equalise", True), ("cali", True)] if given else []
            kinds = [("cali", False), *with_p0, ("difference", False), *with_images]
        for method, images in kinds:
            lams = LAMS if fit.lam == "auto" else (fit.lam,)
            for lam in lams[:1] if method in _WITHOUT_LAM and not images else lams:
                yield method, images, lam  # type: ignore[misc]  # fit.lam is a number here

    def _relative(self, method: str, images: bool, lam: float | tuple[float, ...]) -> dict[str, Tensor]:
        """Kind of evidence -> predicted gap (1 + b,) as a share of the sample's without a projection."""
        found: dict[str, list[Tensor]] = {kind: [] for kind in self._kinds}
        for fold, before in zip(self._folds, self._before, strict=True):
            if method == "none":
                after = before
            else:
                texts = _solve(fold.fit, self._role, fold.terms, method, images, lam)(self._neutral)
                after = [self._means(pool, texts) for pool in fold.pools]
            tiny = torch.finfo(torch.float64).tiny
            found[fold.kind] += [a / b[0].clamp(min=tiny) for a, b in zip(after, before, strict=True)]
        return {kind: torch.stack(values).mean(0) for kind, values in found.items()}

    def _means(self, pool: Pool, texts: Tensor) -> Tensor:
        """Mean gap (1 + b,) over the neutral texts, which are resampled along with the rows."""
        return (pool.gaps(texts) * self._weights).sum(1) / self._weights.sum(1)


def _rounded(lam: float | tuple[float, ...]) -> object:
    return tuple(f"{x:.6g}" for x in lam) if isinstance(lam, tuple) else f"{lam:.6g}"


def _solve(
    fit: Fit, role: str, terms: Terms, method: str, images: bool, lam: float | tuple[float, ...]
) -> CalibratedProjection:
    """One candidate from the terms of its fit."""
    with_pairs = terms[0] if method in ("cali", "orth-cali") else []
    one = replace(fit, method=method, lam=lam, reference=fit.reference if images else None)
    return one.solution(role, (with_pairs, terms[1] if images else []))


def _folds(fit: Fit, role: str) -> Iterator[_Fold]:
    """The text folds, where every set has enough groups, and the two halves of the images."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ReferenceWarning)  # a half is less settled than the whole, which is told
        for k, (learn, predict) in enumerate(_text_folds(fit.attributes)):
            one = replace(fit, sets=learn)
            pools = tuple(_text_pool(fit, s, role, k) for s in predict)
            yield _Fold("texts", one, one.terms(role), pools)
        if fit.reference is not None:
            rows = torch.cat(list(fit.reference.batches()))
            rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]  # files may alternate
            for k in (0, 1):
                one = replace(fit, reference=replace(fit.reference, features=rows[k::2]))
                other = rows[1 - k :: 2]
                pools = tuple(_image_pool(fit, fit.reference, s, role, other, k) for s in fit.attributes)
                yield _Fold("images", one, one.terms(role), pools)


def _text_folds(
    sets: Sequence[PromptSet],
) -> Iterator[tuple[tuple[PromptSet, ...], tuple[PromptSet, ...]]]:
    """(sets to fit on, sets whose groups are predicted)."""
    if all(len(s.held_out_groups) >= FEWEST for s in sets):
        yield tuple(sets), tuple(replace(s, groups=s.held_out_groups, held_out_groups=()) for s in sets)
    elif all(len(s.groups) >= FEWEST for s in sets):
        for k in range(FOLDS):
            learn = tuple(replace(s, groups=_without(s.groups, k)) for s in sets)
            yield learn, tuple(replace(s, groups=s.groups[k::FOLDS]) for s in sets)


def _without(groups: tuple[tuple[str, ...], ...], k: int) -> tuple[tuple[str, ...], ...]:
    return tuple(group for i, group in enumerate(groups) if i % FOLDS != k)


def _text_pool(fit: Fit, prompts: PromptSet, role: str, seed: int) -> Pool:
    """Prompts of the groups that name one value; a group is a class, so prompts are compared about one concept."""
    words = [StatedWords(words) for words in prompts.attributes.values()]
    value_prompts(prompts)  # raises where the set does not say which words name which value
    found = []
    for concept, group in enumerate(prompts.groups):
        for prompt in group:
            named = [value for value, matcher in enumerate(words) if matcher.match(prompt)]
            found += [(prompt, named[0], concept)] if len(named) == 1 else []
    rows = fit.embed([prompt for prompt, *_ in found], role)
    codes = torch.tensor([code for _, *code in found])
    return Pool.of(rows, codes[:, 0], codes[:, 1], resamples=RESAMPLES, seed=seed)


def _image_pool(fit: Fit, reference: Reference, prompts: PromptSet, role: str, rows: Tensor, seed: int) -> Pool:
    """Images with their zero-shot value, within pseudo-classes where the reference is compared within them."""
    rows = rows[:: -(-len(rows) // MOST_ROWS)]
    texts = [normalize(fit.embed(p, role).mean(0), dim=0) for p in value_prompts(prompts).values()]
    probability, value = (reference.logit_scale * rows @ torch.stack(texts).T).softmax(1).max(1)
    sure = probability >= reference.confidence
    within = reference.within_classes and len(prompts.classes) > 1
    label = (rows @ fit.class_texts(prompts, role).T).argmax(1)[sure] if within else None
    return Pool.of(rows[sure], value[sure], label, resamples=RESAMPLES, seed=seed)


def _counts(folds: Sequence[_Fold], neutral: Tensor) -> dict[str, dict[str, int]]:
    """What each kind of evidence rests on."""
    found: dict[str, dict[str, int]] = {}
    for fold in folds:
        about = found.setdefault(fold.kind, {"neutral texts": len(neutral), "folds": 0, "rows": 0})
        about["folds"] += 1
        about["rows"] += sum(len(pool.centred) for pool in fold.pools)
    return found
