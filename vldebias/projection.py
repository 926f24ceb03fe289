"""The calibrated projection in closed form: low rank from the prompts to the product with an embedding.

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
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from vldebias.edit import Edit, Provenance
from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np

    Array = Tensor | np.ndarray

_EPS = torch.finfo(torch.float64).eps
_ROUNDED = 1e-8  # how much of the 1 in I + lam M may be lost to rounding


class NothingToRemoveError(InvalidInputError):
    """Prompts that do not differ for the model, or none: the projection would be the identity."""


def _as_tensor(values: Any, name: str, shape: str) -> Tensor:
    """A tensor as it is, an ndarray as a copy: torch cannot view read-only arrays or negative strides."""
    try:
        return values if isinstance(values, Tensor) else torch.as_tensor(values.copy())
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        kind = type(values).__name__
        raise InvalidInputError(f"{name}: expected a tensor or ndarray {shape}, got {kind} ({error})") from None


def _as_float64(values: Any, name: str, shape: str) -> Tensor:
    """`values` as a finite float64 tensor on the CPU with as many axes as `shape` names."""
    tensor = _as_tensor(values, name, shape).detach().to("cpu", torch.float64)
    if tensor.ndim != shape.count(",") + 1:
        raise InvalidInputError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
    if bad := int((~torch.isfinite(tensor)).sum()):
        raise InvalidInputError(f"{name}: {bad} of {tensor.numel()} values are NaN or infinite; check the embeddings")
    return tensor


@dataclass(frozen=True, eq=False)
class PairScatter:
    """Rows whose Gram matrix `rows.T @ rows` is sum_S (z_i - z_j)(z_i - z_j)^T over `count` prompt pairs.

    rows: (n, d) float64; count: |S|. One scatter per attribute (gender, race, ...).
    """

    rows: Tensor
    count: int

    @classmethod
    def from_pairs(cls, pairs: Array) -> PairScatter:
        """Return the scatter of pairs (n, 2, d): the rows are the n differences."""
        tensor = _as_float64(pairs, "pairs", "(n, 2, d)")
        if tensor.shape[0] == 0 or tensor.shape[1] != 2 or tensor.shape[2] == 0:
            raise InvalidInputError(f"pairs: expected shape (n, 2, d) with n, d > 0, got {tuple(tensor.shape)}")
        return cls(tensor[:, 0] - tensor[:, 1], len(tensor))

    @classmethod
    def from_groups(cls, groups: Sequence[Array]) -> PairScatter:
        """Scatter of groups (n_g, d) in which every two rows are a pair, linear instead of quadratic in n_g.

        sum_{i<j} (z_i - z_j)(z_i - z_j)^T = n sum_i (z_i - mean)(z_i - mean)^T for a group of n, and the centred rows
        are n - 1 orthonormal contrasts of the group (Helmert's): (mean of the first k rows - the next) sqrt(k/(k+1)).
        """
        tensors = [_as_float64(group, f"groups[{k}]", "(n, d)") for k, group in enumerate(groups)]
        small = [k for k, group in enumerate(tensors) if len(group) < 2]
        widths = sorted({group.shape[1] for group in tensors})
        if small or len(widths) != 1:
            raise InvalidInputError(
                "groups: expected at least one group, each of two or more rows of one width, "
                f"got {len(tensors)} groups of widths {widths}, too small: {small}"
            )
        rows = []
        for group in tensors:
            k = torch.arange(1, len(group), dtype=group.dtype)[:, None]
            contrasts = (group.cumsum(0)[:-1] / k - group[1:]) * (k / (k + 1)).sqrt()
            rows.append(math.sqrt(len(group)) * contrasts)
        return cls(torch.cat(rows), sum(len(g) * (len(g) - 1) // 2 for g in tensors))


@torch.inference_mode(False)  # a projection fitted inside inference mode must serve calls with gradients
def span_of(spurious: Tensor) -> Tensor:
    """Orthonormal basis Q (d, rank) of the rows of `spurious` (m, d), repeated and collinear ones included."""
    _, sigma, vh = torch.linalg.svd(spurious, full_matrices=False)
    keep = sigma > max(spurious.shape) * _EPS * sigma[0]
    return vh[keep].T.contiguous()


def _check_lam(lam: float | Sequence[float], attributes: int) -> tuple[float, ...]:
    several = isinstance(lam, (list, tuple))
    given: Sequence[Any] = lam if several else [lam]  # type: ignore[assignment]
    if any(isinstance(x, (bool, str, bytes)) or not hasattr(x, "__float__") for x in given):
        raise InvalidInputError(f"lam: expected a number or a list of numbers, got {lam!r}")
    lams = tuple(map(float, given))
    if not all(math.isfinite(x) and x >= 0 for x in lams):
        raise InvalidInputError(f"lam: expected finite values >= 0, got {lam!r}")
    if several and len(lams) != attributes:
        raise InvalidInputError(f"lam: expected one value or one per attribute ({attributes}), got {len(lams)}")
    return lams if several else lams * attributes


@dataclass(eq=False, repr=False, init=False)
class CalibratedProjection(Edit):
    """P* = I - left @ right.T, fitted in closed form and applied to embeddings as two thin products.

    It has scikit-learn's shape: `CalibratedProjection(lam=1000.0).fit(pairs, spurious).transform(z)`; calling it is
    `transform` with a strength. Shape (..., d), dtype and device of the argument are kept.

    Laws (tested): A^T P* z = 0; P* (I + lam M) = P0; lam = 0 gives P0; without A, P* is symmetric with
    eigenvalues in (0, 1]. P* P* is not P*: applying it twice is another method.

    Attributes:
        left, right: (d, rank) float64; none of them (rank 0) is the identity.
        spurious_rank: width of the span that P0 removes; without P0, P* is symmetric.
        provenance: where it comes from and where it belongs, compared when it is attached.

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

    def __init__(self, lam: float | Sequence[float] = 1000.0) -> None:
        """Set the weight of the pairs: one value, or one per attribute. 0 gives the orthogonal projection."""
        self._given = lam

    def __getattr__(self, name: str) -> Any:
        if name in ("left", "right", "provenance"):
            raise InvalidInputError("this projection is not fitted; call .fit(pairs, spurious) first")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @classmethod
    def of(cls, left: Tensor, right: Tensor, provenance: Provenance, spurious_rank: int = 0) -> CalibratedProjection:
        """Return the projection with these factors."""
        made = cls(provenance.lam)
        made._set(left, right, provenance, spurious_rank)
        return made

    def _set(self, left: Tensor, right: Tensor, provenance: Provenance, spurious_rank: int) -> None:
        self.left, self.right, self.provenance, self.spurious_rank = left, right, provenance, spurious_rank
        self._cast: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        self.check_tensors()

    @classmethod
    def identity(cls, dim: int, method: str = "none") -> CalibratedProjection:
        """Return the projection that changes nothing."""
        nothing = torch.zeros(dim, 0, dtype=torch.float64)
        return cls.of(nothing, nothing, Provenance(method))

    def fit(self, pairs: Array | Sequence[Array] | None, spurious: Array | None = None) -> Self:
        """Solve eq. 7.3 (with `spurious`) or eq. 7.4 (without) in closed form, in float64 on the CPU; return self.

        Args:
            pairs: (n, 2, d) embeddings of prompts that should mean the same; a list of such arrays solves
                several attributes jointly; None leaves only the orthogonal projection. The formula takes the
                embeddings as they are: L2-normalise first, as the paper does.
            spurious: (m, d) embeddings of the prompts to project out, the union over attributes.

        Raises:
            InvalidInputError: wrong shapes, NaN, negative `lam`, or nothing to remove.
        """
        several: Any = [] if pairs is None else [pairs]
        if isinstance(pairs, (list, tuple)) and getattr(next(iter(pairs), None), "ndim", 0) == 3:
            several = pairs
        solved = self.solve([PairScatter.from_pairs(one) for one in several], spurious, self._given)
        vars(self).update(vars(solved), _given=self._given)
        return self

    def transform(self, z: Any) -> Any:
        """Return the projected embeddings (..., d)."""
        return self(z)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters of the constructor."""
        return {"lam": self._given}

    @classmethod
    def solve(
        cls,
        scatters: Sequence[PairScatter],
        spurious: Array | None = None,
        lam: float | Sequence[float] = 1000.0,
    ) -> CalibratedProjection:
        """Return the joint solution over attributes: P0 of all `spurious`, one term lam_k / |S_k| per scatter."""
        lams = _check_lam(lam, len(scatters)) if scatters else (0.0,)
        blocks = [s.rows * math.sqrt(x / s.count) for s, x in zip(scatters, lams, strict=False) if x > 0]
        q = None if spurious is None else _as_float64(spurious, "spurious", "(m, d)")
        widths = {s.rows.shape[1] for s in scatters} | ({q.shape[1]} if q is not None else set())
        if len(widths) > 1:
            raise InvalidInputError(
                f"pairs and spurious: expected one width d, got {sorted(widths)}; embed all prompts with one model"
            )
        if q is not None and q.numel() == 0:
            raise InvalidInputError(
                f"spurious: expected (m, d) with m, d > 0, got {tuple(q.shape)}; pass None for no spurious prompts"
            )
        active = [b for b in blocks if b.any()]
        basis = span_of(q) if q is not None and q.any() else None
        if basis is None and not active:
            said = "all pair differences and spurious embeddings are zero; check that the prompts of a pair differ"
            if not scatters and q is None:
                said = "expected pairs (n, 2, d) or spurious (m, d), got neither"
            elif scatters and not any(lams):
                said = "lam = 0 uses the spurious prompts alone, but there are none; pass spurious or lam > 0"
            raise NothingToRemoveError(f"fit: nothing to remove: {said}")
        left, right = _factors(basis, torch.cat(active) if active else None)
        method = "orth" if not active else "cali" if basis is None else "orth-cali"
        lam_of = lams[0] if len(set(lams)) == 1 else lams
        return cls.of(left, right, Provenance(method, lam_of), 0 if basis is None else basis.shape[1])

    @property
    def rank(self) -> int:
        """Return the columns of the factors: at most m + |S|, at least the rank of P* - I (repeated pairs count)."""
        return self.left.shape[1]

    def matrix(self) -> Tensor:
        """Return P* as a dense (d, d) float64 matrix; `matrix() @ z` is the projected column z."""
        return torch.eye(self.dim, dtype=torch.float64) - self.left @ self.right.T

    def __call__(self, z: Any, strength: float = 1.0) -> Any:
        """Return z + strength (P* z - z) for embeddings (..., d), in the shape, dtype and device of `z`.

        strength: in [0, 1]; 0 returns `z` itself. Half precision is computed in float32 and rounded once.
        """
        self.check_strength(strength)
        if not isinstance(z, Tensor):
            return z if strength == 0 else self(_as_tensor(z, "embeddings", "(..., d)"), strength).numpy()
        if z.ndim == 0 or z.shape[-1] != self.dim or not z.is_floating_point():
            raise InvalidInputError(
                f"expected float embeddings (..., {self.dim}), got {z.dtype} {tuple(z.shape)}; "
                f"this projection was fitted for {self.where()}"
            )
        if strength == 0 or self.rank == 0:
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

    def stamped(self, **fields: Any) -> CalibratedProjection:
        """Return the same projection with some fields of its provenance replaced."""
        same = copy(self)  # the factors have been checked
        same.provenance = replace(self.provenance, **fields)
        return same

    def __repr__(self) -> str:
        if "left" not in vars(self):
            return f"CalibratedProjection(lam={self._given}), not fitted"
        if not self.rank:
            choice = self.provenance.choice
            return f"no edit ({self.method}{f': {choice.reason}' if choice else ''})"
        return f"CalibratedProjection({self.method}, lam={self.lam}, rank={self.rank}, {self.where()})"

    def folded(self) -> CalibratedProjection:
        """Return itself."""
        return self

    def at_multiple(self, t: float) -> CalibratedProjection:
        """Return (I + t S)^-1 of a projection (I + S)^-1 without P0: all its lam times t.

        Raises:
            InvalidInputError: P0 is part of it, which no lam weakens.
        """
        if self.spurious_rank:
            raise InvalidInputError("a projection with P0 has no multiple of its lam; lower its strength instead")
        c, back = self._shrunk
        scaled = t * c / ((1 - c).clamp(min=_EPS) + t * c)
        root = (back * scaled.sqrt()).contiguous()
        lam = self.lam
        several = tuple(t * x for x in lam) if isinstance(lam, tuple) else t * lam
        return self.of(root, root, replace(self.provenance, lam=several))

    @cached_property
    def _shrunk(self) -> tuple[Tensor, Tensor]:
        """By how much each direction is shrunk, c = lam s^2 / (1 + lam s^2) (r,), and the directions (d, r)."""
        removed = self.left.T @ self.left if self.left is self.right else self.left @ self.right.T
        c, vectors = torch.linalg.eigh(removed)
        c = c.clamp(min=0, max=1)
        # Of W W^T the eigenvectors are in the space of pairs; W^T brings them back to that of embeddings.
        return c, self.left @ vectors / c.sqrt().clamp(min=_EPS) if self.left is self.right else vectors

    @property
    def removed(self) -> float:
        """Count the directions that it removes, shrunk ones by how much: the trace of I - P*."""
        return float((self.left * self.right).sum())

    def removing_at_most(self, directions: float) -> CalibratedProjection:
        """Return itself where it removes no more directions in sum; else the multiple of its lam that removes so many.

        Raises:
            InvalidInputError: as `at_multiple`, where lam is to be lowered.
        """
        if self.removed <= directions:
            return self
        low, high = 0.0, 1.0
        for _ in range(40):  # bisection: what is removed rises with lam
            middle = (low + high) / 2
            low, high = (middle, high) if self.at_multiple(middle).removed <= directions else (low, middle)
        return self.at_multiple(low)

    def at_strength(self, t: float) -> CalibratedProjection:
        """Return I - t (I - P), for t from 0 to 2; above 1 it over-corrects.

        2 is the reflection: what P0 removes changes its sign. Up to there no embedding becomes longer, where P is
        symmetric. A bound that P keeps (`max_loss`) says nothing of what is taken further.

        Raises:
            InvalidInputError: another t.
        """
        if not 0 <= t <= 2:
            raise InvalidInputError(f"at_strength: expected a number from 0 to 2, where it is the reflection, got {t}")
        provenance = replace(self.provenance, max_loss=None) if t > 1 else self.provenance
        return self.of(t * self.left, self.right, provenance, self.spurious_rank)


@torch.inference_mode(False)
def _factors(basis: Tensor | None, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """left, right of I - P* from the spurious basis Q (d, m) and the weighted difference rows X (n, d).

    In the space of pairs, (I + X^T X)^-1 = I - W^T W with W = C^-1 X and C C^T = I + X X^T (Cholesky; Woodbury's
    identity). From n >= d on, I + X^T X itself is the smaller matrix.
    """
    if rows is None:
        assert basis is not None
        span = basis.contiguous()
        return span, span
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
