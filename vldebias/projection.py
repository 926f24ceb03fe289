"""Compute the calibrated projection in closed form, in low rank throughout.

Source: Chuang et al., "Debiasing Vision-Language Models via Biased Prompts" (2023); chapter 7 of the thesis.
With the m spurious prompts as columns of A and the prompt pairs S,

    P0 = I - A (A^T A)^+ A^T
    P* = P0 (I + lam/|S| sum_S (z_i - z_j)(z_i - z_j)^T)^-1                                   (Lemma 7.1)

The thin SVD of the weighted pair differences, U Sigma V^T, turns the inverse into I - V diag(c) V^T with
c = sigma^2 / (1 + sigma^2); the SVD of A gives P0 = I - Q Q^T. Hence P* = I - L R^T with

    L = [Q, (I - Q Q^T) V diag(c)]      R = [Q, V]

and no d x d matrix is ever formed. Rows are embeddings, so P* z is `z - (z @ R) @ L.T`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from vldebias.edit import Edit, Provenance
from vldebias.errors import InvalidInputError

Array = Tensor | np.ndarray
_EPS = torch.finfo(torch.float64).eps
_ROUNDED = 1e-8  # how much of the 1 in I + lam M may be lost to rounding


class NothingToRemoveError(InvalidInputError):
    """Report that prompts are missing or have equal embeddings, so the projection would be the identity."""


def _float64(values: Any, name: str, shape: str) -> Tensor:
    """Return `values` as a float64 tensor on the CPU, not empty, with as many axes as `shape` names."""
    # A copy of an ndarray, since torch cannot view read-only arrays or negative strides.
    tensor = torch.from_numpy(values.copy()) if isinstance(values, np.ndarray) else values
    fits = isinstance(tensor, Tensor) and tensor.numel() and tensor.ndim == shape.count(",") + 1
    if not fits or (tensor.ndim == 3 and tensor.shape[1] != 2):
        came = tuple(tensor.shape) if isinstance(tensor, Tensor) else type(values).__name__
        raise InvalidInputError(f"{name}: expected a non-empty tensor or ndarray {shape}, got {came}")
    return tensor.detach().to("cpu", torch.float64)


def scatter_of(groups: Sequence[Tensor]) -> Tensor:
    """Return the scatter, as rows X (n, d), of groups (n_g, d) float64 in which every two rows are a pair.

    A scatter is rows X (n, d) float64 with X^T X = 1/|S| sum_S (z_i - z_j)(z_i - z_j)^T. In a group of n rows

        sum_{i<j} (z_i - z_j)(z_i - z_j)^T = n sum_i (z_i - mean)(z_i - mean)^T,

    and the centred rows are n - 1 orthonormal contrasts (Helmert's): (mean of the first k rows - the next)
    sqrt(k/(k+1)). So this is linear instead of quadratic in n.

    Raises:
        InvalidInputError: no group, or a group of one row.
    """
    if not groups or min(map(len, groups)) < 2:
        raise InvalidInputError(f"groups: expected two or more rows in each, got {[len(one) for one in groups]}")
    rows = []
    for group in groups:
        k = torch.arange(1, len(group), dtype=group.dtype)[:, None]
        contrasts = (group.cumsum(0)[:-1] / k - group[1:]) * (k / (k + 1)).sqrt()
        rows.append(math.sqrt(len(group)) * contrasts)
    return torch.cat(rows) / math.sqrt(sum(math.comb(len(group), 2) for group in groups))


@torch.inference_mode(False)  # a projection fitted inside inference mode must serve calls with gradients
def span_of(rows: Tensor) -> Tensor:
    """Return an orthonormal basis (d, rank) of the span of rows (m, d), repeated and collinear ones included."""
    _, sigma, vh = torch.linalg.svd(rows, full_matrices=False)
    keep = sigma > max(rows.shape) * _EPS * sigma[:1]
    return vh[keep].T.contiguous()


@dataclass(eq=False, repr=False, init=False)
class CalibratedProjection(Edit):
    """Fit P* = I - left @ right.T in closed form and apply it to embeddings as two thin products.

    It follows scikit-learn: `CalibratedProjection(lam=1000.0).fit(pairs, spurious).transform(z)`; calling it is
    `transform` with a strength. Shape (..., d), dtype and device of the argument are kept.

    Laws (tested): A^T P* z = 0; P* (I + lam M) = P0; lam = 0 gives P0; without A, P* is symmetric with
    eigenvalues in (0, 1]. P* P* is not P*: applying it twice is another method.

    Attributes:
        left, right: (d, rank) float64; rank 0 is the identity.
        spurious_rank: width of the span that P0 removes; without P0, P* is symmetric.
        provenance: how it was fitted and on which model, compared when it is attached.

    >>> pairs = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    >>> CalibratedProjection(lam=1.0).fit(pairs)(torch.tensor([1.0, 1.0]))
    tensor([0.5000, 1.0000])
    """

    kind = "projection"
    axes: ClassVar = {"left": "d rank", "right": "d rank"}
    dtype = torch.float64

    left: Tensor
    right: Tensor
    provenance: Provenance
    spurious_rank: int = 0

    def __init__(
        self,
        lam: float | Sequence[float] = 1000.0,
        left: Tensor | None = None,
        right: Tensor | None = None,
        provenance: Provenance | None = None,
        spurious_rank: int = 0,
    ) -> None:
        """Set the weight of the pairs: one value, or one per attribute. 0 gives the orthogonal projection.

        With the other arguments it is the projection that has these factors, without a fit.
        """
        self._given = lam
        self._cast: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        if left is not None and right is not None and provenance is not None:
            self.left, self.right, self.provenance, self.spurious_rank = left, right, provenance, spurious_rank
            self.__post_init__()

    @classmethod
    def identity(cls, dim: int, method: str = "none") -> CalibratedProjection:
        """Return the projection that changes nothing."""
        nothing = torch.zeros(dim, 0, dtype=torch.float64)
        return cls(left=nothing, right=nothing, provenance=Provenance(method))

    def fit(self, pairs: Array | Sequence[Array] | None, spurious: Array | None = None) -> Self:
        """Solve eq. 7.3 (with `spurious`) or eq. 7.4 (without) in closed form, in float64 on the CPU; return self.

        pairs: (n, 2, d) embeddings of prompts that should mean the same, L2-normalised as in the paper; a list of such
        arrays solves several attributes jointly; None leaves only the orthogonal projection.
        spurious: (m, d) embeddings of the prompts to project out, the union over attributes.

        Raises:
            InvalidInputError: wrong shapes, NaN, negative `lam`, or nothing to remove.
        """
        several = pairs if isinstance(pairs, (list, tuple)) else [] if pairs is None else [pairs]
        read = [_float64(one, "pairs", "(n, 2, d)") for one in several]
        scatters = [(one[:, 0] - one[:, 1]) / math.sqrt(len(one)) for one in read]
        removed = None if spurious is None else _float64(spurious, "spurious", "(m, d)")
        self.__dict__ = vars(self.solve(scatters, removed, self._given)) | {"_given": self._given}
        return self

    def transform(self, z: Any) -> Any:
        """Return the projected embeddings (..., d)."""
        return self(z)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor."""
        return {"lam": self._given}

    @classmethod
    def solve(
        cls, scatters: Sequence[Tensor], spurious: Tensor | None = None, lam: float | Sequence[float] = 1000.0
    ) -> CalibratedProjection:
        """Return the joint solution over attributes: P0 of all `spurious`, one term lam_k M_k per scatter.

        scatters: rows X (n, d) with X^T X = M, see `scatter_of`. spurious: (m, d). All are float64.

        Raises:
            InvalidInputError: as of `fit`.
        """
        lams = lam if isinstance(lam, (list, tuple)) else [lam] * max(1, len(scatters))
        if not all(isinstance(x, (int, float, np.number)) and 0 <= x < math.inf for x in lams):
            raise InvalidInputError(f"lam: expected a finite number >= 0, or a list of them, got {lam!r}")
        if scatters and len(lams) != len(scatters):
            raise InvalidInputError(f"lam: expected one value or one per attribute ({len(scatters)}), got {len(lams)}")
        lams = tuple(map(float, lams)) if scatters else (0.0,)
        given = [*scatters] if spurious is None else [*scatters, spurious]
        if len(widths := sorted({rows.shape[1] for rows in given})) > 1:
            raise InvalidInputError(
                f"pairs and spurious: expected one width d, got {widths}; embed both with one model"
            )
        if bad := sum(int((~rows.isfinite()).sum()) for rows in given):
            raise InvalidInputError(f"pairs and spurious: {bad} values are NaN or infinite; check the embeddings")
        weighted = zip(scatters, lams, strict=False)
        active = [rows * math.sqrt(x) for rows, x in weighted if x > 0 and rows.any()]
        basis = span_of(spurious) if spurious is not None and spurious.any() else None
        if basis is None and not active:
            said = "all pair differences and spurious embeddings are zero; check that the prompts of a pair differ"
            if not any(lams):
                said = "expected spurious prompts (m, d), or prompt pairs (n, 2, d) and lam above 0"
            raise NothingToRemoveError(f"fit: nothing to remove: {said}")
        left, right = _factors(basis, torch.cat(active or [given[0][:0]]))
        method = "orth" if not active else "cali" if basis is None else "orth-cali"
        lam = lams[0] if len(set(lams)) == 1 else lams
        return cls(lam, left, right, Provenance(method, lam), 0 if basis is None else basis.shape[1])

    @property
    def rank(self) -> int:
        """Return the number of columns of the factors: at most m + |S|, at least the rank of P* - I."""
        return self.left.shape[1]

    @property
    def removed(self) -> float:
        """Return the number of directions that it removes, the trace of I - P*; shrunk directions count in part."""
        return float((self.left * self.right).sum())

    def matrix(self) -> Tensor:
        """Return P* as a dense (d, d) float64 matrix; `matrix() @ z` is the projected column z."""
        return torch.eye(self.dim, dtype=torch.float64) - self.left @ self.right.T

    def __call__(self, z: Any, strength: float = 1.0) -> Any:
        """Return z + strength (P* z - z) for embeddings (..., d), in the shape, dtype and device of `z`.

        strength: in [0, 1]; 0 returns `z` itself. Half precision is computed in float32 and rounded once.
        """
        if "left" not in vars(self):
            raise InvalidInputError("this projection is not fitted; call .fit(pairs, spurious) first")
        if isinstance(z, np.ndarray):
            return z if strength == 0 else self(torch.from_numpy(z.copy()), strength).numpy()
        self.check_input(z, strength)
        if strength == 0 or not self.left.shape[1]:
            return z
        wide = z if z.dtype in (torch.float32, torch.float64) else z.float()
        key = (wide.device, wide.dtype)
        if key not in self._cast:
            with torch.inference_mode(False):  # kept for later calls, which may need gradients of z
                self._cast[key] = (self.left.to(*key), self.right.to(*key))
        left, right = self._cast[key]
        # Autocast would round the two products to half precision; devices that have none (meta) need no guard.
        available = torch.amp.is_autocast_available(z.device.type)
        with torch.autocast(z.device.type, enabled=False) if available else nullcontext():
            return torch.sub(wide, (wide @ right) @ left.T, alpha=strength).to(z.dtype)

    def __repr__(self) -> str:
        if "left" not in vars(self):
            return f"CalibratedProjection(lam={self._given}), not fitted"
        if not self.rank:
            choice = self.provenance.choice
            return f"no edit ({self.method}{f': {choice.reason}' if choice else ''})"
        return f"CalibratedProjection({self.method}, lam={self.lam}, rank={self.rank}, {self.where()})"

    def folded(self) -> CalibratedProjection:
        """Return the projection itself, which can be merged into weights as it is."""
        return self

    def at_multiple(self, t: float) -> CalibratedProjection:
        """Return (I + t S)^-1 for a projection (I + S)^-1 without P0: the same method with every lam times t."""
        c, back = self._shrunk
        scaled = t * c / ((1 - c).clamp(min=_EPS) + t * c)
        root = (back * scaled.sqrt()).contiguous()
        lam = tuple(t * x for x in self.lam) if isinstance(self.lam, tuple) else t * self.lam
        return CalibratedProjection(lam, root, root, replace(self.provenance, lam=lam))

    @cached_property
    def _shrunk(self) -> tuple[Tensor, Tensor]:
        """Return how much each direction is shrunk, c = lam s^2 / (1 + lam s^2) (r,), and the directions (d, r)."""
        symmetric = self.left is self.right
        c, vectors = torch.linalg.eigh(self.left.T @ self.left if symmetric else self.left @ self.right.T)
        c = c.clamp(min=0)
        # Of W W^T the eigenvectors are in the space of pairs; W^T brings them back to that of embeddings.
        return c, self.left @ vectors / c.sqrt().clamp(min=_EPS) if symmetric else vectors


@torch.inference_mode(False)
def _factors(basis: Tensor | None, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return left, right of I - P* from the spurious basis Q (d, m) and the weighted difference rows X (n, d).

    In the space of pairs, (I + X^T X)^-1 = I - W^T W with W = C^-1 X and C C^T = I + X X^T (Cholesky; Woodbury's
    identity). From n >= d on, I + X^T X itself is the smaller matrix.
    """
    n, dim = rows.shape
    if float(rows.square().sum()) * _EPS > _ROUNDED:  # beside so much the 1 of I is rounded away; c has it in full
        _, sigma, vh = torch.linalg.svd(rows, full_matrices=False)
        keep = sigma > max(rows.shape) * _EPS * sigma[0]
        roots = sigma[keep] / torch.hypot(sigma[keep], torch.ones(()).to(sigma))
        left = right = (vh[keep].T * roots).contiguous()
    elif n < dim:
        gram = rows @ rows.T
        gram.diagonal().add_(1.0)
        w = torch.linalg.solve_triangular(torch.linalg.cholesky(gram), rows, upper=False).T
        left = right = w.contiguous()
    else:
        right = torch.eye(dim, dtype=rows.dtype)
        left = right - torch.cholesky_inverse(torch.linalg.cholesky(rows.T @ rows + right))
    if basis is None:
        return left, right
    rest = left - basis @ (basis.T @ left)
    if left.shape[1] + basis.shape[1] < dim:
        return torch.cat([basis, rest], 1), torch.cat([basis, right], 1)
    return basis @ basis.T + rest @ right.T, torch.eye(dim, dtype=rows.dtype)
