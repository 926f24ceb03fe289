"""How far rows are from the border of their class, against how widely classes are spread: chapter 8 of the thesis.

A margin alone says little: a head can be scaled. Gradient-normalised it is about the distance to the border in feature
space, and divided by the k-variance of the classes it tells true labels from random ones (Figure 8-2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vldebias.data import Labels
from vldebias.errors import InvalidInputError
from vldebias.metrics import k_variance

EPSILON = 1e-6  # beside the gradient's length, as in section 8.3.2
_BLOCK = 8192

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Margins:
    """Margins of n rows; which of them are largest says nothing about other heads, medians do.

    Attributes:
        margin: (n,) score of the given class less the best other, eq. 8.1; above 0 where the row is classified right.
        normalised: (n,) margin / (length of its gradient + 1e-6).
        codes: (n,) classes. names: of the classes.
        variance: (k,) Wasserstein-1 k-variance of each class, in units of the features.
        lipschitz: (k,) largest gradient of the margin over the rows of each class, a lower bound of the constant.
        total: sqrt(E |phi - E phi|^2), for the total-variance normalisation.
    """

    margin: Floats
    normalised: Floats
    codes: NDArray[np.int64]
    names: tuple[str, ...]
    variance: Floats
    lipschitz: Floats
    total: float

    @property
    def shares(self) -> Floats:
        """Share of the rows of each class."""
        return np.asarray(np.bincount(self.codes, minlength=len(self.names)) / len(self.codes))

    @property
    def kv(self) -> Floats:
        """kV-Margin, (n,): margin / E_c[Lip_c Var_c], section 8.4."""
        return self.margin / float(self.shares @ (self.lipschitz * self.variance))

    @property
    def kv_gn(self) -> Floats:
        """kV-GN-Margin, (n,): normalised margin / E_c[Var_c]; its Lipschitz constant is 1 as in section 8.4."""
        return self.normalised / float(self.shares @ self.variance)

    @property
    def tv_gn(self) -> Floats:
        """Normalised margin / sqrt(E |phi - E phi|^2), the total-variance baseline."""
        return self.normalised / self.total

    def bound(self, gamma: float, *, normalised: bool = False, delta: float = 0.05) -> tuple[float, float, float]:
        """The terms of Theorem 8.2, or 8.4 where normalised: their sum bounds the error with probability 1 - delta.

        Share of rows with a margin <= gamma; E_c[Lip_c Var_c] / gamma; sqrt(log(1 / delta) / 2n). The middle term uses
        an estimate of the k-variance and of a Lipschitz constant, so this is an estimate of a bound. It is void in
        practice: on every set that was tried the least sum over gamma is above 1, also at an accuracy of .99.
        """
        return self._terms(gamma, normalised, 0.0, np.sqrt(np.log(1 / delta) / (2 * len(self.margin))))

    def empirical_bound(
        self, gamma: float, *, diameter: float, k: int, draws: int, normalised: bool = False, delta: float = 0.05
    ) -> tuple[float, float, float]:
        """The terms of Corollary 8.6: as `bound`, with what estimating the k-variance may be wrong by.

        diameter: of the features, B; k, draws: of the estimate, disjoint subsets. Void as `bound` is, only more so.
        """
        wrong = 2 * diameter * np.sqrt(np.log(2 * len(self.names) / delta) / (draws * k))
        rest = np.sqrt(np.log(2 / delta) / (2 * k * len(self.names)))
        return self._terms(gamma, normalised, float(wrong), rest)

    def _terms(self, gamma: float, normalised: bool, wrong: float, rest: float) -> tuple[float, float, float]:
        if not gamma > 0:
            raise InvalidInputError(f"gamma: expected a number > 0, got {gamma}")
        margin = self.normalised if normalised else self.margin
        slopes = np.ones(len(self.names)) if normalised else self.lipschitz
        spread = float(self.shares @ (slopes * (self.variance + wrong)))
        return float((margin <= gamma).mean()), spread / gamma, float(rest)


def margins(head: Any, features: Any, labels: Any, *, k: int | None = None, seed: int = 0) -> Margins:
    """Margins of features under a classifier, gradients by the features and not by pixels.

    Args:
        head: (weight (k, d), bias (k,)) or nn.Linear, in closed form; or any differentiable module or function from
            features (n, d) to scores (n, k), row by row, by autograd, a module in eval mode.
        features: (n, d) as the head takes them. labels: (n,) integers 0 .. k - 1, or `Labels` whose codes are those.
        k: rows of a subset of the k-variance; see `vldebias.metrics.k_variance`.

    Raises:
        InvalidInputError: shapes that do not fit, unknown labels, a class that the head does not have or of one row.
    """
    rows = torch.as_tensor(features).detach().cpu()
    column = labels if isinstance(labels, Labels) else None
    codes = column.codes if column is not None else np.asarray(torch.as_tensor(labels).cpu()).astype(np.int64)
    if rows.ndim != 2 or codes.shape != (len(rows),) or not len(rows):
        raise InvalidInputError(f"expected features (n, d) and labels (n,), got {tuple(rows.shape)}, {codes.shape}")
    if codes.min() < 0:
        raise InvalidInputError("labels: expected every one to be known; leave the rows of the others out")
    margin, slope, classes = _of(head, rows, torch.from_numpy(codes))
    names = column.names if column is not None else tuple(map(str, range(classes)))
    there = np.bincount(codes, minlength=len(names))
    if there[there > 0].min() < 2:
        raise InvalidInputError("labels: a class of one row has no k-variance; leave it out")
    steepest, variance = np.zeros(len(names)), np.zeros(len(names))
    for code in np.flatnonzero(there):
        mine = codes == code
        steepest[code] = slope[mine].max()
        variance[code] = k_variance(rows[torch.from_numpy(mine)].float(), k=k, seed=seed)
    centred = rows.double() - rows.double().mean(0)
    total = float(centred.square().sum(1).mean().sqrt())
    return Margins(margin, margin / (slope + EPSILON), codes, names, variance, steepest, total)


def _of(head: Any, rows: Tensor, codes: Tensor) -> tuple[Floats, Floats, int]:
    """Margin and length of its gradient, of every row, and the number of classes."""
    if isinstance(head, nn.Linear):
        head = (head.weight, torch.zeros(head.out_features) if head.bias is None else head.bias)
    if isinstance(head, (tuple, list)):
        weight, bias = (torch.as_tensor(one).detach().cpu().double() for one in head)
        if weight.ndim != 2 or weight.shape[1] != rows.shape[1] or bias.shape != weight.shape[:1]:
            raise InvalidInputError(
                f"head: expected weight (k, {rows.shape[1]}) and bias (k,), got {tuple(weight.shape)}, "
                f"{tuple(bias.shape)}"
            )
        distances = torch.cdist(weight, weight)

        def linear(some: Tensor, which: Tensor) -> tuple[Tensor, Tensor, int]:
            margin, rival, classes = _margin(some.double() @ weight.T + bias, which)
            return margin, distances[which, rival], classes

        return _in_blocks(linear, rows, codes)
    if not callable(head):
        raise InvalidInputError(f"head: expected (weight, bias) or a function from features to scores, got {head!r}")

    def by_autograd(some: Tensor, which: Tensor) -> tuple[Tensor, Tensor, int]:
        leaf = some.clone().requires_grad_()
        with torch.enable_grad():
            margin, _, classes = _margin(head(leaf), which)
            if not margin.requires_grad:
                raise InvalidInputError("head: no gradient reaches the features; expected differentiable scores")
            (gradient,) = torch.autograd.grad(margin.sum(), leaf)
        return margin.detach(), gradient.norm(dim=1), classes

    training = head.training if isinstance(head, nn.Module) else False
    modes = [(one, one.training) for one in head.modules()] if training else []
    try:
        if training:
            head.eval()
        return _in_blocks(by_autograd, rows, codes)
    finally:
        for module, mode in modes:
            module.training = mode


def _margin(scores: Tensor, codes: Tensor) -> tuple[Tensor, Tensor, int]:
    if scores.ndim != 2 or len(scores) != len(codes) or scores.shape[1] < 2 or int(codes.max()) >= scores.shape[1]:
        raise InvalidInputError(
            f"head: expected scores ({len(codes)}, k) with a column for each of the classes, got {tuple(scores.shape)} "
            f"for classes up to {int(codes.max())}"
        )
    own = scores.gather(1, codes[:, None])[:, 0]
    best = scores.scatter(1, codes[:, None], -torch.inf).max(1)
    return own - best.values, best.indices, scores.shape[1]


def _in_blocks(
    one: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, int]], rows: Tensor, codes: Tensor
) -> tuple[Floats, Floats, int]:
    parts = [one(a, b) for a, b in zip(rows.split(_BLOCK), codes.split(_BLOCK), strict=True)]
    margin, slope = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    return margin.double().numpy(), slope.double().numpy(), parts[0][2]
