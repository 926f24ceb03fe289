"""Compute the calibrated projection in closed form, in low rank throughout.

Source: Chuang et al., "Debiasing Vision-Language Models via Biased Prompts" (2023); chapter 7 of
the thesis. With the m spurious prompts as columns of A and the rows X of the prompt pairs S,
sqrt(lam/|S|) (z_i - z_j),

    P0 = I - A (A^T A)^+ A^T
    P* = P0 (I + X^T X)^-1  (Lemma 7.1)

The SVD of A gives P0 = I - Q Q^T. With C C^T = I + X X^T (Cholesky) and W = X^T C^-T, Woodbury's
identity turns the inverse into I - W W^T. Hence P* = I - L R^T with

    L = [Q, (I - Q Q^T) W]      R = [Q, W]

and no d x d matrix is ever formed. Rows are embeddings, so P* z is `z - (z @ R) @ L.T`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.projection.edit import Edit, Provenance

Array = Tensor | np.ndarray
Weights = float | Sequence[float]
_EPS = torch.finfo(torch.float64).eps
_SINGLE = 4 * torch.finfo(torch.float32).eps  # relative rounding of embeddings in float32
_ROUNDED = 1e-8  # how much of the 1 in I + X X^T may be lost to rounding
_ASYMMETRY = 1e-12  # squared and relative: rounding of the norms that are compared
_REMOVED = 1e-13  # a direction of which less remains counts as removed


class NothingToRemoveError(InvalidInputError):
    """Report that prompts are missing or have equal embeddings, so the projection would be the
    identity."""


def scatter_of(groups: Sequence[Tensor]) -> Tensor:
    """Return the scatter, as rows X (n, d), of groups (n_g, d) float64 in which any two rows form
    a pair.

    A scatter is rows X (n, d) float64 with X^T X = 1/|S| sum_S (z_i - z_j)(z_i - z_j)^T. In a group
    of n rows

        sum_{i<j} (z_i - z_j)(z_i - z_j)^T = n sum_i (z_i - mean)(z_i - mean)^T,

    and the centred rows are n - 1 orthonormal contrasts (Helmert's): (mean of the first k rows -
    the next) sqrt(k/(k+1)). So this is linear instead of quadratic in n.

    Raises:
        InvalidInputError: no group, or a group of one row.
    """
    if not groups or min(map(len, groups)) < 2:
        raise InvalidInputError(
            f"groups: expected two or more rows in each, got {[len(group) for group in groups]}"
        )
    rows = []
    for group in groups:
        k = torch.arange(1, len(group), dtype=group.dtype)[:, None]
        # (n - 1, d): the mean of the first k rows minus the next, k = 1 .. n - 1.
        contrasts = (group.cumsum(0)[:-1] / k - group[1:]) * (k / (k + 1)).sqrt()
        rows.append(math.sqrt(len(group)) * contrasts)
    pairs = sum(math.comb(len(group), 2) for group in groups)
    return torch.cat(rows) / math.sqrt(pairs)


def span_of(rows: Tensor) -> Tensor:
    """Return an orthonormal basis (d, rank) of the span of rows (m, d), repeated and collinear ones
    included.

    Models give rows of single precision, so a singular value at its rounding is noise: its
    direction is another one on each machine.
    """
    _, sigma, vh = torch.linalg.svd(rows, full_matrices=False)
    keep = sigma > max(max(rows.shape) * _EPS, _SINGLE) * sigma[:1]
    return vh[keep].T.contiguous()


@dataclass(eq=False, repr=False, init=False)
class CalibratedProjection(Edit):
    """Fit P* = I - left @ right.T in closed form and apply it to embeddings as two thin products.

    It follows scikit-learn: `CalibratedProjection(lam=1000.0).fit(pairs, spurious).transform(z)`;
    calling it is `transform` with a strength. Shape (..., d), dtype and device of the argument are
    kept.

    Laws (tested): A^T P* z = 0; P* (I + lam M) = P0; lam = 0 gives P0; without A, P* is symmetric
    with eigenvalues in (0, 1]. P* P* is not P*: applying it twice is another method.

    Attributes:
        left, right: (d, rank) float64; rank 0 is the identity.
        spurious_rank: width of the span that P0 removes.
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
    spurious_rank: int

    def __init__(
        self,
        lam: Weights = 1000.0,
        left: Any = None,
        right: Any = None,
        provenance: Any = None,
        spurious_rank: int = 0,
    ) -> None:
        """Set the weight of the pairs: one value, or one per attribute. 0 gives the orthogonal
        projection.

        With the other arguments it is the projection that has these factors, without a fit.
        """
        self._requested_lam = lam
        self._cast: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        if provenance is not None:
            self.left = left
            self.right = right
            self.provenance = provenance
            self.spurious_rank = spurious_rank
            self.__post_init__()

    @classmethod
    def identity(cls, dim: int, method: str = "none") -> CalibratedProjection:
        """Return the projection that changes nothing."""
        nothing = torch.zeros(dim, 0, dtype=torch.float64)
        return cls(0.0, nothing, nothing, Provenance(method))

    def fit(self, pairs: Array | Sequence[Array] | None, spurious: Array | None = None) -> Self:
        """Solve eq. 7.3 (with `spurious`) or eq. 7.4 (without) in closed form, in float64 on the
        CPU; return self.

        pairs: (n, 2, d) embeddings of prompts that should mean the same, L2-normalised as in the
        paper; a list of such arrays solves several attributes jointly; None leaves only the
        orthogonal projection.
        spurious: (m, d) embeddings of the prompts to project out, the union over attributes.

        Raises:
            InvalidInputError: wrong shapes, NaN, negative `lam`, or nothing to remove.
        """
        if pairs is None:
            pairs_of_attributes: Sequence[Array] = []
        elif isinstance(pairs, (list, tuple)):
            pairs_of_attributes = pairs
        else:
            pairs_of_attributes = [pairs]  # type: ignore[list-item]
        scatters = []
        for values in pairs_of_attributes:
            rows = _float64(values, "pairs", "(n, 2, d)")
            scatters.append((rows[:, 0] - rows[:, 1]) / math.sqrt(len(rows)))
        spurious_rows = None
        if spurious is not None:
            spurious_rows = _float64(spurious, "spurious", "(m, d)")
        solution = self.solve(scatters, spurious_rows, self._requested_lam)
        self.__dict__ = vars(solution)  # nothing of an earlier fit remains
        return self

    def transform(self, z: object) -> Any:
        """Return the projected embeddings (..., d)."""
        return self(z)

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the parameters of the constructor."""
        return {"lam": self._requested_lam}

    @classmethod
    # A projection that was fitted inside inference mode must serve calls with gradients.
    @torch.inference_mode(False)
    def solve(
        cls, scatters: Sequence[Tensor], spurious: Tensor | None = None, lam: Weights = 1000.0
    ) -> CalibratedProjection:
        """Return the joint solution over attributes: P0 of all `spurious`, one term lam_k M_k per
        scatter.

        scatters: rows X (n, d) with X^T X = M, see `scatter_of`. spurious: (m, d). All are float64.

        Raises:
            InvalidInputError: see `fit`.
        """
        lams = _checked_weights(lam, scatters, spurious)
        weighted_rows = []
        for rows, weight in zip(scatters, lams, strict=True):
            # A weight of 0, or pairs that the model embeds alike, add nothing to the inverse.
            if weight > 0 and rows.any():
                weighted_rows.append(rows * math.sqrt(weight))
        root = None  # W with (I + X^T X)^-1 = I - W W^T
        if weighted_rows:
            root = _root(torch.cat(weighted_rows))
        basis = None  # Q with P0 = I - Q Q^T
        if spurious is not None and spurious.any():
            basis = span_of(spurious)
        # P* = I - L R^T, under the name that the paper's methods have.
        if basis is not None and root is not None:
            name = "orth-cali"
            # P0 (I - W W^T) = I - Q Q^T - (I - Q Q^T) W W^T
            left_factor = torch.cat([basis, root - basis @ (basis.T @ root)], 1)
            right_factor = torch.cat([basis, root], 1)
        elif root is not None:
            name = "cali"
            left_factor = right_factor = root
        elif basis is not None:
            name = "orth"
            left_factor = right_factor = basis
        else:
            raise NothingToRemoveError(
                "fit: nothing to remove; expected spurious prompts (m, d), or prompt pairs (n, 2,"
                " d) whose embeddings differ and lam above 0"
            )
        if left_factor.shape[1] >= len(left_factor):
            # As many columns as the width: the dense matrix is no larger than the factors.
            left_factor = left_factor @ right_factor.T
            right_factor = torch.eye(len(left_factor), dtype=left_factor.dtype)
        # A file holds one weight where all are the same, and 0 without any.
        recorded = lams if len(set(lams)) > 1 else max(lams, default=0.0)
        spurious_rank = 0 if basis is None else basis.shape[1]
        return cls(lam, left_factor, right_factor, Provenance(name, recorded), spurious_rank)

    @property
    def rank(self) -> int:
        """Return the number of columns of the factors: at most m + |S|, at least the rank of P* -
        I."""
        return self.left.shape[1]

    @property
    def removed(self) -> float:
        """Return the number of directions that it removes, the trace of I - P*; shrunk directions
        count in part."""
        return float((self.left * self.right).sum())

    def matrix(self) -> Tensor:
        """Return P* as a dense (d, d) float64 matrix; `matrix() @ z` is the projected column z."""
        return torch.eye(self.dim, dtype=torch.float64) - self.left @ self.right.T

    def __call__(self, z: Any, strength: float = 1.0) -> Any:
        """Return z + strength (P* z - z) for embeddings (..., d), in the shape, dtype and device of
        `z`.

        strength: in [0, 1]; 0 returns `z` itself. Half precision is computed in float32 and rounded
        once.
        """
        if "left" not in vars(self):
            raise InvalidInputError(
                "this projection is not fitted; call .fit(pairs, spurious) first"
            )
        if isinstance(z, np.ndarray):
            if strength == 0:
                return z
            return self(torch.from_numpy(z.copy()), strength).numpy()
        self.check_input(z, strength)
        # The tensor itself: no attachment and strength 0 give the same bits.
        if strength == 0 or not self.left.numel():
            return z
        # Two products in float16 would be rounded in between.
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        # Both factors on this device and in this dtype are kept for later calls.
        key = (wide.device, wide.dtype)
        if key not in self._cast:
            with torch.inference_mode(False):  # a later call may need gradients of z
                self._cast[key] = (self.left.to(*key), self.right.to(*key))
        left_factor, right_factor = self._cast[key]
        # Autocast would round the products to half precision. A device without it (meta) needs no
        # guard.
        guard: AbstractContextManager[Any] = nullcontext()
        if torch.amp.is_autocast_available(z.device.type):
            guard = torch.autocast(z.device.type, enabled=False)
        with guard:
            return torch.sub(wide, (wide @ right_factor) @ left_factor.T, alpha=strength).to(
                z.dtype
            )

    def __repr__(self) -> str:
        if "left" not in vars(self):
            return f"CalibratedProjection(lam={self._requested_lam}), not fitted"
        if not self.rank:
            choice = self.provenance.choice
            if choice is None:
                return f"no edit ({self.method})"
            return f"no edit ({self.method}: {choice.reason})"
        return (
            f"CalibratedProjection({self.method}, lam={self.lam}, rank={self.rank}, {self.where()})"
        )

    def at_multiple(self, t: float) -> CalibratedProjection:
        """Return (I + t S)^-1 for a projection (I + S)^-1 without P0: the same method with every
        lam times t.

        An eigenvalue c = s / (1 + s) of I - P* becomes t s / (1 + t s) = t c / (1 - c + t c).

        Raises:
            InvalidInputError: the projection is not of this form, see `is_resolvent`.
        """
        if not self.is_resolvent:
            raise InvalidInputError(
                f"at_multiple: expected a symmetric projection that removes no direction"
                f" completely, got {self!r}; lower its strength instead"
            )
        c, directions = self._shrunk
        eigenvalues = t * c / ((1 - c).clamp(min=_EPS) + t * c)
        root = directions * eigenvalues.sqrt()
        if isinstance(self.lam, tuple):
            lam: Any = tuple(t * weight for weight in self.lam)
        else:
            lam = t * self.lam
        return CalibratedProjection(lam, root, root, replace(self.provenance, lam=lam))

    @cached_property
    def is_resolvent(self) -> bool:
        """Return whether P* = (I + S)^-1 for a symmetric S with eigenvalues >= 0.

        The factors decide: I - P* = L R^T must be symmetric, with eigenvalues in [0, 1).
        """
        # Frobenius norms from (rank, rank) products: |L R^T|^2, and the inner product of L R^T
        # with its transpose. The two are equal only if L R^T is symmetric.
        squared_norm = ((self.left.T @ self.left) * (self.right.T @ self.right)).sum()
        cross = self.left.T @ self.right
        if squared_norm - (cross * cross.T).sum() > _ASYMMETRY * squared_norm:
            return False
        eigenvalues = torch.linalg.eigvals(cross).real
        return bool((eigenvalues > -_ROUNDED).all() and (eigenvalues < 1 - _REMOVED).all())

    @cached_property
    def _shrunk(self) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues (r,) of I - P* above 0, and their eigenvectors as columns (d,
        r)."""
        # L = R without P0, so R^T L (r, r) is symmetric and has the eigenvalues of L R^T above 0.
        c, vectors = torch.linalg.eigh(self.right.T @ self.left)
        return c.clamp(min=0), normalize(self.left @ vectors, dim=0)


def _float64(values: object, name: str, shape: str) -> Tensor:
    """Return `values` as a float64 tensor on the CPU, not empty, with as many axes as `shape`
    names."""
    if isinstance(values, np.ndarray):
        # A copy, since torch cannot view read-only arrays or negative strides.
        values = torch.from_numpy(values.copy())
    if not isinstance(values, Tensor):
        received: object = type(values).__name__
    else:
        received = tuple(values.shape)
        fits = values.numel() > 0 and values.ndim == shape.count(",") + 1
        is_pair = values.ndim != 3 or values.shape[1] == 2
        if fits and is_pair:
            return values.detach().to("cpu", torch.float64)
    raise InvalidInputError(
        f"{name}: expected a non-empty tensor or ndarray {shape}, got {received}"
    )


def _checked_weights(
    lam: Weights, scatters: Sequence[Tensor], spurious: Tensor | None
) -> tuple[float, ...]:
    """Return the weight of each scatter.

    Raises:
        InvalidInputError: a weight that is negative, infinite or no number, too many or too few;
            rows that are not finite, or of different widths.
    """
    values: Any = lam.tolist() if isinstance(lam, (Tensor, np.ndarray)) else lam
    lams = list(values) if isinstance(values, (list, tuple)) else [values] * len(scatters)
    are_weights = all(
        isinstance(weight, Real) and type(weight) is not bool and 0 <= float(weight) < math.inf
        for weight in lams
    )
    if not are_weights:
        raise InvalidInputError(f"lam: expected finite numbers >= 0, got {lam!r}")
    if len(lams) != len(scatters):
        raise InvalidInputError(
            f"lam: expected one value or one per attribute ({len(scatters)}), got {lam!r}"
        )
    matrices = [*scatters]
    if spurious is not None:
        matrices.append(spurious)
    widths = {rows.shape[1] for rows in matrices}
    bad = sum(int((~rows.isfinite()).sum()) for rows in matrices)
    if len(widths) > 1 or bad:
        raise InvalidInputError(
            "pairs and spurious: expected finite embeddings of one model; got widths"
            f" {sorted(widths)}, and {bad} values are NaN or infinite"
        )
    return tuple(map(float, lams))


def _root(rows: Tensor) -> Tensor:
    """Return W (d, r) with (I + X^T X)^-1 = I - W W^T for rows X (n, d), r at most min(n, d).

    With C C^T = I + X X^T that is W = X^T C^-T (Woodbury; the module's docstring).
    """
    if float(rows.square().sum()) * _EPS > _ROUNDED:
        # Beside values so large the 1 of I is rounded away; s / sqrt(s^2 + 1) has it in full.
        _, sigma, vh = torch.linalg.svd(rows, full_matrices=False)
        # Singular values at the rounding of the largest are noise, as in a pseudo-inverse.
        keep = sigma > max(rows.shape) * _EPS * sigma[:1]
        sines = sigma[keep] / torch.hypot(sigma[keep], torch.ones(()).to(sigma))
        return vh[keep].T * sines
    if len(rows) > rows.shape[1]:
        rows = torch.linalg.qr(rows, mode="r").R  # the same X^T X
    gram = rows @ rows.T
    gram.diagonal().add_(1.0)
    return torch.linalg.solve_triangular(
        torch.linalg.cholesky(gram), rows, upper=False
    ).T.contiguous()
