"""Logistic regression solved to convergence: a convex problem has one answer, whatever the solver."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import VldebiasWarning

__all__ = ["Coefficients", "Penalty", "Scaling", "logistic_regression"]

Penalty = Literal["l1", "l2"]
_CHUNK = 16384  # rows per product
_WORRYING = 10  # times the tolerance


@dataclass(frozen=True, eq=False)
class Scaling:
    """Features x as (x - shift) / scale, which the solver folds into the coefficients and never carries out."""

    shift: Tensor
    scale: Tensor

    @classmethod
    def none(cls, features: Tensor) -> Scaling:
        """The features as they are."""
        d = features.shape[1]
        return cls(torch.zeros(d, dtype=torch.float64), torch.ones(d, dtype=torch.float64))

    @classmethod
    def standard(cls, features: Tensor) -> Scaling:
        """Mean 0 and variance 1 in every column; a constant column keeps its scale."""
        chunks = features.split(_CHUNK)
        mean = sum((_double(x).sum(0) for x in chunks), _double(features[:0]).sum(0)) / len(features)
        squares = sum(((_double(x) - mean).square().sum(0) for x in chunks), torch.zeros_like(mean))
        scale = (squares / len(features)).sqrt().cpu()
        return cls(mean.cpu(), torch.where(scale > 1e-8, scale, torch.ones_like(scale)))


@dataclass(frozen=True, eq=False)
class Coefficients:
    """weight (r, d) and bias (r,) float64 on scaled features; two classes have one row, k > 2 classes have k."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def zero(cls, n_classes: int, dim: int) -> Coefficients:
        """Where the solver starts by default."""
        rows = 1 if n_classes == 2 else n_classes
        return cls(torch.zeros(rows, dim, dtype=torch.float64), torch.zeros(rows, dtype=torch.float64))

    def unscaled(self, scaling: Scaling) -> Coefficients:
        """The same classifier on features that are not scaled."""
        weight = self.weight / scaling.scale
        return Coefficients(weight, self.bias - weight @ scaling.shift)

    def head(self) -> tuple[Tensor, Tensor]:
        """Weight (k, d) and bias (k,) of as many logits as classes; of two classes the logits sum to 0."""
        if len(self.weight) > 1:
            return self.weight, self.bias
        halves = torch.tensor([-0.5, 0.5], dtype=torch.float64)
        return halves[:, None] * self.weight, halves * self.bias


def logistic_regression(
    features: Tensor,
    labels: NDArray[np.int64],
    n_classes: int,
    *,
    c: float,
    penalty: Penalty = "l2",
    scaling: Scaling | None = None,
    counts: NDArray[Any] | None = None,
    start: Coefficients | None = None,
    tolerance: float = 1e-6,
    max_iterations: int = 5000,
) -> Coefficients:
    """argmin R(W) + c sum_i counts_i CE(W x_i + b, y_i), the objective of scikit-learn's LogisticRegression.

    R is |W|_2^2 / 2 or |W|_1; the bias is not penalised. Two classes have one weight vector, the difference of the
    logits, k > 2 have a softmax. L-BFGS-B in float64; under "l1", W = U - V with U, V >= 0, which is smooth.

    Args:
        features: (n, d) of any floating dtype; read in chunks, copied never.
        labels: (n,) classes 0 .. n_classes - 1.
        c: > 0, the smaller the stronger the penalty.
        scaling: the features are penalised as scaled by it.
        counts: (n,) how many times each row is there; None is once.
        start: where to begin; another start gives the same answer, later or sooner.
        tolerance: largest entry of the gradient of the mean loss, penalty included, at which the solver stops.

    Returns:
        Coefficients on the scaled features.

    Warns:
        VldebiasWarning: the gradient is still large after `max_iterations`.
    """
    from scipy.optimize import minimize

    start = start or Coefficients.zero(n_classes, features.shape[1])
    loss = _MeanLoss(features, labels, n_classes, scaling or Scaling.none(features), counts)
    objective = _Objective(loss, penalty, 1 / (c * loss.total), tuple(start.weight.shape))
    limits = {"maxiter": max_iterations, "maxfun": 2 * max_iterations, "maxcor": 20, "gtol": tolerance, "ftol": 0.0}
    found = minimize(
        objective, objective.pack(start), jac=True, method="L-BFGS-B", bounds=objective.bounds(), options=limits
    )
    left = objective.projected(found.x, found.jac)
    if left > _WORRYING * tolerance:
        warnings.warn(
            f"logistic regression (c = {c:g}): a gradient of {left:.1e} is left after {found.nit} iterations; "
            "the coefficients are not final. Choose a smaller c or a larger tolerance",
            VldebiasWarning,
            stacklevel=2,
        )
    return objective.unpack(found.x)


class _MeanLoss:
    """Mean cross-entropy over rows and its gradient in the coefficients, a chunk of rows at a time."""

    def __init__(
        self, features: Tensor, labels: NDArray[np.int64], n_classes: int, scaling: Scaling, counts: Any
    ) -> None:
        self.features, self.scaling, self.n_classes = features, scaling, n_classes
        self.labels = torch.from_numpy(labels)
        self.counts = None if counts is None else torch.from_numpy(np.asarray(counts, np.float64))
        self.total = float(len(labels) if self.counts is None else self.counts.sum())

    def __call__(self, at: Coefficients) -> tuple[float, Coefficients]:
        raw = at.unscaled(self.scaling)
        loss, weight, bias = 0.0, torch.zeros_like(raw.weight), torch.zeros_like(raw.bias)
        for begin in range(0, len(self.features), _CHUNK):
            part = self._chunk(slice(begin, begin + _CHUNK), raw)
            loss, weight, bias = loss + part[0], weight + part[1], bias + part[2]
        weight = (weight - bias[:, None] * self.scaling.shift) / self.scaling.scale  # chain rule of `unscaled`
        return loss / self.total, Coefficients(weight / self.total, bias / self.total)

    def _chunk(self, rows: slice, raw: Coefficients) -> tuple[float, Tensor, Tensor]:
        x = _double(self.features[rows])
        y = self.labels[rows].to(x.device)
        logits = x @ raw.weight.T.to(x.device) + raw.bias.to(x.device)
        if self.n_classes == 2:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        log_p = torch.log_softmax(logits, 1)
        losses = -log_p.gather(1, y[:, None]).squeeze(1)
        residual = log_p.exp()
        residual[torch.arange(len(y), device=x.device), y] -= 1
        if self.counts is not None:
            count = self.counts[rows].to(x.device)
            losses, residual = losses * count, residual * count[:, None]
        residual = residual[:, 1:] if self.n_classes == 2 else residual
        return float(losses.sum()), (residual.T @ x).cpu(), residual.sum(0).cpu()


@dataclass(frozen=True)
class _Objective:
    """Mean loss plus penalty, as a function of one flat vector: W and b, or U, V and b under "l1"."""

    loss: _MeanLoss
    penalty: Penalty
    weight: float  # of the penalty
    shape: tuple[int, ...]  # (r, d)

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    def pack(self, at: Coefficients) -> NDArray[np.float64]:
        w = at.weight.numpy().reshape(-1)
        parts = [w] if self.penalty == "l2" else [np.maximum(w, 0), np.maximum(-w, 0)]
        return np.concatenate([*parts, at.bias.numpy()])

    def unpack(self, flat: NDArray[np.float64]) -> Coefficients:
        w = flat[: self.size] if self.penalty == "l2" else flat[: self.size] - flat[self.size : 2 * self.size]
        weight = torch.from_numpy(w.reshape(self.shape).copy())
        return Coefficients(weight, torch.from_numpy(flat[-self.shape[0] :].copy()))

    def bounds(self) -> Any:
        from scipy.optimize import Bounds

        if self.penalty == "l2":
            return None
        low = np.concatenate([np.zeros(2 * self.size), np.full(self.shape[0], -np.inf)])
        return Bounds(low, np.full_like(low, np.inf))

    def __call__(self, flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, gradient = self.loss(self.unpack(flat))
        g = gradient.weight.numpy().reshape(-1)
        w = flat[: -self.shape[0]]
        if self.penalty == "l2":
            value += self.weight * float(w @ w) / 2
            parts = [g + self.weight * w]
        else:
            value += self.weight * float(w.sum())
            parts = [g + self.weight, self.weight - g]
        return value, np.concatenate([*parts, gradient.bias.numpy()])

    def projected(self, flat: NDArray[np.float64], gradient: NDArray[np.float64]) -> float:
        """Largest entry of the gradient that does not point out of the bounds."""
        if self.penalty == "l2":
            return float(np.abs(gradient).max())
        held = (flat == 0) & (gradient > 0)
        held[-self.shape[0] :] = False
        return float(np.abs(np.where(held, 0.0, gradient)).max())


def _double(x: Tensor) -> Tensor:
    """float64, on the CPU where the device has none."""
    return (x.cpu() if x.device.type == "mps" else x).double()
