"""Linear baselines: ERM linear probe, WiSE-FT between the probe and zero-shot, and DFR on balanced groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.evaluation.baselines.logistic import Coefficients, Penalty, Scaling, logistic_regression
from vldebias.evaluation.baselines.problem import Allowed, Baseline, OnStep, RobustnessProblem, Score, promoted


@dataclass(frozen=True, eq=False)
class LinearHead:
    """Logits weight x + bias of features x: weight (k, d) and bias (k,), float64."""

    weight: Tensor
    bias: Tensor
    chosen: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, features: Tensor) -> Tensor:
        """Logits (m, k) of features (m, d)."""
        x = promoted(features)
        return x @ self.weight.to(x).T + self.bias.to(x)


@dataclass(frozen=True, kw_only=True)
class Probe(Baseline):
    """Settings of a logistic regression on features.

    Attributes:
        penalty: "l1" or "l2"; see `logistic_regression`.
        standardise: penalise features as if they had mean 0 and variance 1 over the training split.
        c: strength of the data against the penalty, used without a validation split.
        candidates: values of c to select from on a validation split; () keeps `c`.
        tolerance: of the solver; see `logistic_regression`.
    """

    penalty: Penalty = "l2"
    standardise: bool = False
    c: float = 30.0
    candidates: tuple[float, ...] = ()
    tolerance: float = 1e-6

    allowed: ClassVar[Allowed] = {
        "penalty": ("l1", "l2"),
        "c": "(0, inf)",
        "candidates": "(0, inf)",
        "tolerance": "(0, 1)",
    }

    def _choose(
        self, problem: RobustnessProblem, on_step: OnStep, scaling: Scaling, counts: NDArray[np.int64] | None
    ) -> tuple[float, Coefficients, dict[str, Any]]:
        """The c that does best on the validation split, its coefficients, and what to say about it."""
        values = sorted(set(self.candidates)) if problem.val is not None and self.candidates else [self.c]
        solutions: list[Coefficients] = []
        scores: list[Score | None] = []
        for c in values:  # from the strongest penalty on: each solution is a good start for the next
            solutions.append(self._solve(problem, scaling, counts, c, solutions[-1] if solutions else None))
            scores.append(problem.score(_head(solutions[-1], scaling)))
            on_step(f"c = {c:g}")
        best = _first_best(scores)
        return values[best], solutions[best], {"c": values[best], **problem.describe(scores[best])}

    def _solve(
        self,
        problem: RobustnessProblem,
        scaling: Scaling,
        counts: NDArray[Any] | None,
        c: float,
        start: Coefficients | None,
    ) -> Coefficients:
        """Logistic regression on the rows that `counts` (n,) leaves, each as often as it says."""
        features, labels = problem.train.features, problem.train.labels
        if counts is not None and not counts.all():
            rows = np.flatnonzero(counts)
            features = features[torch.from_numpy(rows).to(features.device)]
            labels, counts = labels[rows], counts[rows]
        return logistic_regression(
            features,
            labels,
            problem.n_classes,
            c=c,
            penalty=self.penalty,
            scaling=scaling,
            counts=counts,
            start=start,
            tolerance=self.tolerance,
        )

    def _scaling(self, problem: RobustnessProblem) -> Scaling:
        return (Scaling.standard if self.standardise else Scaling.none)(problem.train.features)


def _first_best(scores: Sequence[Score | None]) -> int:
    """Index of the best score, the first of them on a tie; 0 where there is no validation split."""
    return max(range(len(scores)), key=lambda i: scores[i] or (0.0, 0.0))


def _head(fitted: Coefficients, scaling: Scaling, chosen: Mapping[str, Any] | None = None) -> LinearHead:
    return LinearHead(*fitted.unscaled(scaling).head(), chosen or {})


@dataclass(frozen=True, kw_only=True)
class ERMLinear(Probe):
    """Logistic regression on the training features: empirical risk minimisation with a linear classifier.

    The linear probe of Radford et al. (2021): L2 penalty, L-BFGS, strength selected on a validation split. Theirs is
    on features that are not normalised; ours is on normalised ones, with candidates to match, which is our choice.
    Zhang and Ré (2022) fit theirs with SGD, so it depends on learning rate and epochs; ours is the optimum.
    """

    name: str = "erm-linear"
    title: str = "ERM Linear"
    source: str = "Radford et al. 2021; Kumar et al. 2022"
    candidates: tuple[float, ...] = (1.0, 10.0, 30.0, 100.0, 1000.0, 10000.0)

    def _fit(self, problem: RobustnessProblem, seed: int, on_step: OnStep) -> LinearHead:
        scaling = self._scaling(problem)
        _, fitted, chosen = self._choose(problem, on_step, scaling, None)
        return _head(fitted, scaling, chosen)


@dataclass(frozen=True, kw_only=True)
class WiSEFT(ERMLinear):
    """Interpolates weights: (1 - alpha) zero-shot + alpha ERM linear probe (Wortsman et al. 2022).

    For linear classifiers the mean of the weights is the mean of the logits, which is how the thesis words it.
    alpha = 0 is the zero-shot classifier and alpha = 1 the probe. The paper fine-tunes from the zero-shot weights;
    our probe is the optimum of a convex problem and has no memory of where it started, so how the two logits weigh
    against each other rests on `logit_scale` and c. The paper recommends alpha = .5 without tuning. In Table 7.2 the
    row for ViT-L/14 on Waterbirds is that of the probe, alpha = 1, so there alpha was selected, as it is here.

    Attributes:
        alpha: share of the probe, used without a validation split.
        alphas: values of alpha to select from on a validation split, after c; () keeps `alpha`.
        logit_scale: what cosines are multiplied by, 1 / temperature; 100 is what CLIP's training ends at.
    """

    name: str = "wise-ft"
    title: str = "WiSE-FT"
    source: str = "Wortsman et al. 2022"
    alpha: float = 0.5
    alphas: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
    logit_scale: float = 100.0

    allowed: ClassVar[Allowed] = {"alpha": "[0, 1]", "alphas": "[0, 1]", "logit_scale": "(0, inf)"}

    def _fit(self, problem: RobustnessProblem, seed: int, on_step: OnStep) -> LinearHead:
        probe = super()._fit(problem, seed, on_step)
        zero_shot = self.logit_scale * problem.zero_shot.detach().double().cpu()
        values = sorted(set(self.alphas)) if problem.val is not None and self.alphas else [self.alpha]
        heads = [LinearHead((1 - a) * zero_shot + a * probe.weight, a * probe.bias) for a in values]
        scores = [problem.score(head) for head in heads]
        best = _first_best(scores)
        on_step(f"alpha = {values[best]:g}")
        chosen = {"c": probe.chosen["c"], "alpha": values[best], **problem.describe(scores[best])}
        return LinearHead(heads[best].weight, heads[best].bias, chosen)


@dataclass(frozen=True, kw_only=True)
class DFR(Probe):
    """Deep feature reweighting: logistic regression on group-balanced data (Kirichenko et al. 2023).

    As in the authors' code for training data: features standardised over the training split, L1 penalty, c selected
    on one balanced draw, coefficients averaged over ten draws; the candidates span those used there for Waterbirds
    and CelebA. It tunes class weights on request, which balanced groups make needless here.
    Groups: those given; by default class x zero-shot prediction, as in Zhang and Ré (2022) and section 7.4.1 of the
    thesis. "sub" draws from every group as many rows as the smallest one has. "up" takes every row as often as it
    fits into the largest group and draws the remainder without replacement, our choice: drawing with replacement has
    the same mean and varies more.

    Attributes:
        balance: "sub" or "up".
        draws: balanced draws whose coefficients are averaged.
    """

    name: str = "dfr-sub"
    title: str = "DFR (Sub)"
    source: str = "Kirichenko et al. 2023"
    penalty: Penalty = "l1"
    standardise: bool = True
    c: float = 0.1
    candidates: tuple[float, ...] = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
    tolerance: float = 1e-5
    balance: Literal["sub", "up"] = "sub"
    draws: int = 10

    allowed: ClassVar[Allowed] = {"balance": ("sub", "up"), "draws": "[1, inf)"}

    def _fit(self, problem: RobustnessProblem, seed: int, on_step: OnStep) -> LinearHead:
        generator = np.random.default_rng(seed)
        draws = [balanced_counts(problem.groups, self.balance, generator) for _ in range(self.draws)]
        scaling = self._scaling(problem)
        c, fitted, chosen = self._choose(problem, on_step, scaling, draws[0])
        solutions = [fitted]
        for i, counts in enumerate(draws[1:], start=2):
            solutions.append(self._solve(problem, scaling, counts, c, solutions[-1]))
            on_step(f"draw {i} of {self.draws}")
        weight, bias = (torch.stack([getattr(one, name) for one in solutions]).mean(0) for name in ("weight", "bias"))
        head = _head(Coefficients(weight, bias), scaling)
        sizes = np.bincount(problem.groups)
        chosen |= {
            "groups": sizes.tolist(),
            "rows_per_group": int(sizes.min() if self.balance == "sub" else sizes.max()),
        }
        return LinearHead(head.weight, head.bias, chosen | problem.describe(problem.score(head)))


def balanced_counts(
    groups: NDArray[np.int64], balance: Literal["sub", "up"], generator: np.random.Generator
) -> NDArray[np.int64]:
    """(n,) how many times each row is taken so that all groups have the same size: the smallest or the largest.

    groups: (n,) codes 0 .. g - 1, all of which occur.
    """
    sizes = np.bincount(groups)
    target = sizes.min() if balance == "sub" else sizes.max()
    by_group = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])
    counts = (target // sizes)[groups]
    for rows, size in zip(by_group, sizes, strict=True):
        counts[generator.choice(rows, target % size, replace=False)] += 1
    return counts
