"""Logistic regression solved to convergence: a convex problem has one answer, whatever the solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from vldebias.errors import need, warn

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


@torch.inference_mode(False)
@torch.enable_grad()
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
        counts: (n,) how many times each row is there, or its weight; None is once.
        start: where to begin; another start gives the same answer, later or sooner.
        tolerance: largest entry of the gradient of the mean loss, penalty included, at which the solver stops.

    Returns:
        Coefficients on the scaled features.

    Warns:
        VldebiasWarning: the gradient is still large after `max_iterations`.
    """
    optimize = need("scipy.optimize")

    scaling = scaling or Scaling.none(features)
    rows, dim = (1 if n_classes == 2 else n_classes), features.shape[1]
    size, split = rows * dim, penalty == "l1"
    y = torch.from_numpy(labels)
    weights = torch.ones(len(y)) if counts is None else torch.from_numpy(np.asarray(counts))
    total = float(weights.sum(dtype=torch.float64))
    strength = 1 / (c * total)

    def unpacked(flat: Tensor) -> Coefficients:
        """W and b of one vector, which has W and b, or U, V and b under "l1"."""
        weight = flat[:size] - flat[size : 2 * size] if split else flat[:size]
        return Coefficients(weight.reshape(rows, dim), flat[-rows:])

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Mean loss plus penalty and the gradient, a chunk of rows at a time."""
        leaf = torch.from_numpy(flat.copy()).requires_grad_()
        norm = leaf[:-rows].sum() if split else leaf[:-rows].square().sum() / 2
        value = strength * norm
        value.backward()
        whole = value.detach()
        for start_row in range(0, len(y), _CHUNK):
            chunk = slice(start_row, start_row + _CHUNK)
            x = _double(features[chunk].detach())
            raw = unpacked(leaf).unscaled(scaling)
            logits = x @ raw.weight.T.to(x.device) + raw.bias.to(x.device)
            if n_classes == 2:
                logits = torch.cat([torch.zeros_like(logits), logits], 1)
            losses = F.cross_entropy(logits, y[chunk].to(x.device), reduction="none")
            loss = (losses * weights[chunk].to(losses)).sum() / total
            loss.backward()
            whole = whole + loss.detach().cpu()
        assert leaf.grad is not None
        return float(whole), leaf.grad.numpy()

    begin = np.zeros(size + rows) if start is None else np.r_[start.weight.numpy().ravel(), start.bias.numpy()]
    bounds = None
    if split:
        begin = np.concatenate([np.maximum(begin[:size], 0), np.maximum(-begin[:size], 0), begin[size:]])
        bounds = optimize.Bounds(np.r_[np.zeros(2 * size), np.full(rows, -np.inf)], np.full(2 * size + rows, np.inf))
    limits = {"maxiter": max_iterations, "maxfun": 2 * max_iterations, "maxcor": 20, "gtol": tolerance, "ftol": 0.0}
    solved = optimize.minimize(objective, begin, jac=True, method="L-BFGS-B", bounds=bounds, options=limits)
    held = (solved.x == 0) & (solved.jac > 0) & (np.arange(len(begin)) < (2 * size if split else 0))
    left = float(np.abs(solved.jac[~held]).max())  # a bound holds what its gradient pushes out of it
    if left > _WORRYING * tolerance:
        warn(
            f"logistic regression (c = {c:g}): a gradient of {left:.1e} is left after {solved.nit} iterations; "
            "the coefficients are not final. Choose a smaller c or a larger tolerance"
        )
    return unpacked(torch.from_numpy(solved.x))


def _double(x: Tensor) -> Tensor:
    """float64, on the CPU where the device has none; a copy where autograd could not keep the tensor."""
    x = (x.cpu() if x.device.type == "mps" else x).double()
    return x.clone() if x.is_inference() else x
