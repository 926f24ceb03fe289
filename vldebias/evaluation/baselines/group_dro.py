"""Group DRO: a linear head whose worst group loss is least, solved as a game between head and group weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from vldebias.evaluation.baselines.logistic import Coefficients, Scaling
from vldebias.evaluation.baselines.probes import LinearHead, Probe
from vldebias.evaluation.baselines.problem import Allowed, OnStep, RobustnessProblem, promoted

_CHUNK = 16384


@dataclass(frozen=True, kw_only=True)
class GroupDRO(Probe):
    """min over heads of max over groups of the mean loss, with an L2 penalty (Sagawa et al. 2020, equation 4).

    Theirs moves weights of groups and of a network by stochastic steps in turn (algorithm 1). A linear head has a
    convex loss, so here each round solves it to its optimum and only the weights of the groups climb, by exponentiated
    gradient; the head of the round with the least worst loss is kept. Strong penalties matter, as they say: a head that
    fits every training row has no worst group.
    Groups: those given; by default class x zero-shot prediction, as for DFR.

    Attributes:
        step: of the exponentiated gradient. rounds: of it, for each c.
    """

    name: str = "group-dro"
    title: str = "Group DRO"
    source: str = "Sagawa et al. 2020"
    standardise: bool = True
    c: float = 0.01
    candidates: tuple[float, ...] = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
    tolerance: float = 1e-5
    step: float = 1.0
    rounds: int = 25

    allowed: ClassVar[Allowed] = {"step": "(0, inf)", "rounds": "[1, inf)"}

    def _fit(self, problem: RobustnessProblem, seed: int, on_step: OnStep) -> LinearHead:
        scaling = self._scaling(problem)
        values = sorted(set(self.candidates)) if problem.val is not None and self.candidates else [self.c]
        candidates = []
        for c in values:
            fitted, losses = self._game(problem, scaling, c)
            head = LinearHead(*fitted.unscaled(scaling).head())
            score = problem.score(head)
            candidates.append((score or (0.0, 0.0), c, head, losses, score))
            on_step(f"c = {c:g}")
        _, c, head, losses, score = max(candidates, key=lambda one: one[0])
        facts = {"c": c, "worst training loss": float(losses.max()), **problem.describe(score)}
        return LinearHead(head.weight, head.bias, facts)

    def _game(self, problem: RobustnessProblem, scaling: Scaling, c: float) -> tuple[Coefficients, NDArray[np.float64]]:
        """The coefficients with the least worst group loss over the rounds, and the losses of all groups under them."""
        groups = problem.groups
        sizes = np.bincount(groups)
        share = np.full(len(sizes), 1 / len(sizes))
        best: tuple[Coefficients, NDArray[np.float64]] | None = None
        start = None
        for number in range(self.rounds):
            weights = (share / sizes * len(groups))[groups]
            start = self._solve(problem, scaling, weights, c, start)
            losses = self._losses(problem, start.unscaled(scaling), groups) / sizes
            if best is None or losses.max() < best[1].max():
                best = start, losses
            share = share * np.exp(self.step / np.sqrt(number + 1) * (losses - losses.max()))
            share = np.maximum(share / share.sum(), 1e-6)
        assert best is not None
        return best

    @staticmethod
    def _losses(problem: RobustnessProblem, raw: Coefficients, groups: NDArray[np.int64]) -> NDArray[np.float64]:
        """Summed cross-entropy of every group."""
        head, labels = LinearHead(*raw.head()), torch.from_numpy(problem.train.labels)
        chunks = zip(problem.train.features.split(_CHUNK), labels.split(_CHUNK), strict=True)
        with torch.no_grad():
            each = [F.cross_entropy(head(promoted(x)).cpu().double(), y, reduction="none") for x, y in chunks]
        return np.asarray(np.bincount(groups, weights=torch.cat(each).numpy()), dtype=np.float64)
