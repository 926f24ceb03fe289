"""Compute the calibrated projection in closed form, using low-rank factors.

Source: Chuang et al., "Debiasing Vision-Language Models via Biased Prompts" (2023); chapter 7 of
the thesis. With the m spurious prompts as columns of A, and rows X = sqrt(lam/|S|) (z_i - z_j) for
the prompt pairs S,

    P0 = I - A (A^T A)^+ A^T
    P* = P0 (I + X^T X)^-1  (Lemma 7.1)

The SVD of A gives P0 = I - Q Q^T. With C C^T = I + X X^T (Cholesky) and W = X^T C^-T, Woodbury's
identity turns the inverse into I - W W^T. Hence P* = I - L R^T, with

    L = [Q, (I - Q Q^T) W]      R = [Q, W]

and no d x d matrix is formed unless L and R would be at least as large. Rows are embeddings, so
P* z is `z - (z @ R) @ L.T`.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.projection.edit import Edit, rounded
from vldebias.projection.provenance import Provenance

Array = Tensor | np.ndarray
ArrayT = TypeVar("ArrayT", Tensor, np.ndarray)
Weights = float | Sequence[float]
_EPS = torch.finfo(torch.float64).eps
_SINGLE = 4 * torch.finfo(torch.float32).eps  # relative rounding error of float32 embeddings
_ROUNDED = 1e-8  # maximum rounding error of the 1 on the diagonal of I + X X^T
_ASYMMETRY = 1e-12  # tolerance for the squared relative asymmetry caused by rounding
_REMOVED = 1e-13  # a direction counts as removed if a smaller share of it remains
# Entries per block of rows for a Gram matrix: 16 MB, which the allocator keeps for the next block.
_BLOCK = 1 << 21


class NothingToRemoveError(InvalidInputError):
    """Raised if there is nothing to remove, because prompts are missing or embedded identically."""


def scatter_of(groups: Sequence[Tensor]) -> Tensor:
    """Return the scatter of groups (n_g, d) in which any two rows form a pair.

    A scatter consists of rows X (n, d) with X^T X = 1/|S| sum_S (z_i - z_j)(z_i - z_j)^T.
    In a group of n rows,

        sum_{i<j} (z_i - z_j)(z_i - z_j)^T = n sum_i (z_i - mean)(z_i - mean)^T,

    and the n - 1 orthonormal Helmert contrasts have the same sum of outer products as the centred
    rows: (sum of the first k rows - k times the next) / sqrt(k(k+1)). The cost is thus linear in n
    instead of quadratic.

    Raises:
        InvalidInputError: If there is no group, or a group has only one row.
    """
    if not groups or min(map(len, groups)) < 2:
        raise InvalidInputError(
            f"groups: expected two or more rows in each, got {[len(group) for group in groups]}"
        )
    # Groups of one size are computed together, because a set may contain thousands of groups.
    groups_of_size: dict[int, list[Tensor]] = {}
    for group in groups:
        groups_of_size.setdefault(len(group), []).append(group)
    pairs = sum(math.comb(len(group), 2) for group in groups)
    rows = []
    for size, alike in groups_of_size.items():
        stacked = torch.stack(alike)
        contrasts = torch.empty_like(stacked[:, 1:])
        total = torch.zeros_like(stacked[:, 0])
        for k in range(1, size):
            total += stacked[:, k - 1]
            contrast = torch.sub(total, stacked[:, k], alpha=k, out=contrasts[:, k - 1])
            contrast *= math.sqrt(size / (k * (k + 1) * pairs))
        rows.append(contrasts.flatten(0, 1))
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def span_of(rows: Tensor) -> Tensor:
    """Return an orthonormal basis (d, rank) of the span of rows (m, d), which may be collinear.

    Models return rows in single precision, so singular values at that rounding level are noise,
    with directions that differ between machines.
    """
    _, sigma, vh = torch.linalg.svd(rows, full_matrices=False)
    keep = sigma > max(max(rows.shape) * _EPS, _SINGLE) * sigma[:1]
    return vh[keep].T.contiguous()


@dataclass(eq=False, repr=False, init=False)
class CalibratedProjection(Edit):
    """Fit P* = I - left @ right.T in closed form and apply it to embeddings.

    The interface follows scikit-learn: `CalibratedProjection(lam=1000.0).fit(pairs,
    spurious).transform(z)`. Calling the object is equivalent to `transform` with a strength. The
    shape (..., d), dtype and device of the argument are preserved.

    Properties: A^T P* z = 0 and P* (I + lam M) = P0. With lam = 0, P* = P0. Without A, P* is
    symmetric with eigenvalues in (0, 1]. P* P* differs from P*, so applying it twice is a different
    method.

    See also docs/explanation/projection.md.

    Attributes:
        left: the factor L (d, rank), float64. With rank 0, the projection is the identity.
        right: the factor R (d, rank), float64.
        spurious_rank: the dimension of the span that P0 removes.
        provenance: how and on which model the projection was fitted; checked when it is attached.

    >>> import torch
    >>> pairs = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])  # a pair (1, 2, d)
    >>> projection = CalibratedProjection(lam=1.0).fit(pairs)
    >>> projection.transform(torch.tensor([1.0, 1.0]))
    tensor([0.5000, 1.0000])
    >>> projection.matrix()
    tensor([[0.5000, 0.0000],
            [0.0000, 1.0000]], dtype=torch.float64)
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
        left: Tensor | None = None,
        right: Tensor | None = None,
        provenance: Provenance | None = None,
        spurious_rank: int = 0,
    ) -> None:
        """Create an unfitted projection, or a projection with given factors.

        Args:
            lam: the weight of the pairs, or one weight per attribute. A weight of 0 gives the
                orthogonal projection.
            left: the factor (d, rank) float64, or None before fitting.
            right: the factor (d, rank) float64, or None before fitting.
            provenance: how the factors were fitted, or None before fitting.
            spurious_rank: the dimension of the span that P0 removes.
        """
        self._requested_lam = lam
        self._cast: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}
        if left is not None and right is not None and provenance is not None:
            self.left = left
            self.right = right
            self.provenance = provenance
            self.spurious_rank = spurious_rank
            self.__post_init__()

    @classmethod
    def identity(cls, dim: int, method: str = "none") -> CalibratedProjection:
        """Return the identity projection.

        Args:
            dim: the width of the embeddings.
            method: the method name for the provenance.
        """
        empty = torch.zeros(dim, 0, dtype=torch.float64)
        return cls(0.0, empty, empty, Provenance(method))

    def fit(self, pairs: Array | Sequence[Array] | None, spurious: Array | None = None) -> Self:
        """Solve eq. 7.3 (with `spurious`) or eq. 7.4 (without), in float64.

        The solution is computed on the device of the embeddings, or on the CPU if that device has
        no float64. The factors are stored on the CPU.

        Args:
            pairs: (n, 2, d) embeddings of prompts that should mean the same, L2-normalised, as in
                the paper. A list of such arrays solves several attributes jointly. If None, only
                the orthogonal projection is computed.
            spurious: (m, d) embeddings of the prompts to project out, the union over attributes.

        Returns:
            The projection itself, fitted.

        Raises:
            InvalidInputError: If shapes are wrong, values are NaN, `lam` is negative, or there is
                nothing to remove.
        """
        if pairs is None:
            pairs_of_attributes: Sequence[Array] = []
        elif isinstance(pairs, (list, tuple)):
            pairs_of_attributes = pairs
        else:
            pairs_of_attributes = [pairs]  # type: ignore[list-item]
        scatters = [_checked(values, "pairs", "(n, 2, d)") for values in pairs_of_attributes]
        spurious_rows = None
        if spurious is not None:
            spurious_rows = _checked(spurious, "spurious", "(m, d)")
        solution = self.solve(scatters, spurious_rows, self._requested_lam)
        self.__dict__ = vars(solution)  # also discards the cache from an earlier fit
        return self

    def transform(self, z: ArrayT) -> ArrayT:
        """Return the projected embeddings (..., d).

        Raises:
            InvalidInputError: If the embeddings have the wrong width or type, or are not finite.
        """
        projected = self(z)
        finite = torch.isfinite(torch.as_tensor(projected))
        if not finite.all():
            raise InvalidInputError(
                "z: expected finite embeddings, got NaN or infinite values in"
                f" {int((~finite).any(-1).sum())} of {finite[..., 0].numel()} rows; remove these"
            )
        return projected

    def get_params(self, deep: bool = True) -> dict[str, object]:
        """Return the constructor parameters."""
        return {"lam": self._requested_lam}

    @classmethod
    # A projection that is fitted in inference mode must also work with gradients later.
    @torch.inference_mode(False)
    def solve(
        cls, scatters: Sequence[Tensor], spurious: Tensor | None = None, lam: Weights = 1000.0
    ) -> CalibratedProjection:
        """Return the joint solution, with P0 from `spurious` and one term lam_k M_k per scatter.

        Args:
            scatters: for each attribute, rows X (n, d) with X^T X = M (`scatter_of`), or the pairs
                (n, 2, d) that M is computed from.
            spurious: (m, d) rows to project out. If None, nothing is projected out.
            lam: the weight of the scatters, or one weight per scatter.

        Raises:
            InvalidInputError: If the arguments are invalid, as for `fit`.
        """
        lams = _checked_weights(lam, scatters)
        scatters, spurious = _on_one_device(scatters, spurious)
        gram = _weighted_gram(scatters, lams)
        # A Gram matrix is finite only if all its rows are.
        checked = [_differences(values) for values in scatters] if gram is None else [gram]
        _check_embeddings(checked if spurious is None else [*checked, spurious])
        rows = None if gram is not None else _weighted_rows(checked, _row_weights(scatters, lams))
        if rows is not None and not _is_finite(rows):
            raise InvalidInputError(
                f"pairs and lam: got {reprlib.repr(lam)} and embeddings up to"
                f" {max(float(values.abs().max()) for values in checked):.0e}, whose product is"
                " not finite; expected a lower lam, or embeddings of norm 1"
            )
        basis = None  # Q with P0 = I - Q Q^T
        if spurious is not None and spurious.any():
            basis = span_of(spurious)
        has_pairs = gram is not None or rows is not None
        if not has_pairs and basis is None:
            raise NothingToRemoveError(
                "fit: nothing to remove; expected spurious prompts (m, d), or prompt pairs (n, 2,"
                " d) whose embeddings differ and lam above 0"
            )
        if gram is not None:
            left, right = _dense_factors(basis, gram)
        else:
            left, right = _factors(basis, rows)
        name = "cali" if basis is None else "orth-cali" if has_pairs else "orth"
        # Equal weights are recorded as one number, and an empty list of weights as 0.
        recorded = lams if len(set(lams)) > 1 else max(lams, default=0.0)
        spurious_rank = 0 if basis is None else basis.shape[1]
        return cls(lam, left.cpu(), right.cpu(), Provenance(name, recorded), spurious_rank)

    @property
    def rank(self) -> int:
        """Return the number of columns in each factor.

        This number is at most m + |S|, and at least the rank of P* - I.
        """
        return self.left.shape[1]

    def effect_in_words(self) -> str:
        if self.rank:
            return super().effect_in_words()
        return "It removes no direction, so it changes nothing and reduces no bias."

    @property
    def removed(self) -> float:
        """Return the number of directions removed, counting shrunk directions fractionally.

        This is the trace of I - P*.
        """
        return float((self.left * self.right).sum())

    def matrix(self) -> Tensor:
        """Return P* as a dense (d, d) float64 matrix that can be multiplied with a column z."""
        return torch.eye(self.dim, dtype=torch.float64) - self.left @ self.right.T

    def __call__(self, z: ArrayT, strength: float = 1.0) -> ArrayT:
        """Return z + strength (P* z - z) with the shape, dtype and device of `z`.

        Half precision is computed in float32 and rounded once. An embedding beyond its range is
        scaled down.

        Args:
            z: the embeddings (..., d).
            strength: the fraction of the change to apply, in [0, 1]. If 0, `z` itself is returned.
        """
        if "left" not in vars(self):
            raise InvalidInputError(
                "this projection is not fitted; call .fit(pairs, spurious) first"
            )
        if isinstance(z, np.ndarray):
            if strength == 0:
                return z
            return self(_tensor(z, "z"), strength).numpy()
        self.check_input(z, strength)
        # Return the tensor itself, so that strength 0 is bit-identical to no attachment.
        if strength == 0 or not self.left.numel():
            return z
        # In float16, the first product would be rounded before the second.
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        # Cache the factors for this device and dtype for later calls.
        key = (wide.device, wide.dtype)
        if key not in self._cast:
            with torch.inference_mode(False):  # later calls may need gradients with respect to z
                self._cast[key] = (self.left.to(*key), self.right.to(*key))
        left_factor, right_factor = self._cast[key]
        # Autocast would round the products to half precision. The meta device has no autocast.
        guard: AbstractContextManager[object] = nullcontext()
        if torch.amp.is_autocast_available(z.device.type):
            guard = torch.autocast(z.device.type, enabled=False)
        with guard:
            changed = torch.sub(wide, (wide @ right_factor) @ left_factor.T, alpha=strength)
        return changed if changed.dtype == z.dtype else rounded(changed, z)

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
        """Return (I + t S)^-1 for a projection (I + S)^-1, that is, with every lam multiplied by t.

        An eigenvalue c = s / (1 + s) of I - P* becomes t s / (1 + t s) = t c / (1 - c + t c).

        Raises:
            InvalidInputError: If the projection is not of this form (see `is_resolvent`).
        """
        if not self.is_resolvent:
            raise InvalidInputError(
                "at_multiple: expected a symmetric projection that removes no direction"
                f" completely, got {self!r}; lower its strength instead"
            )
        c, directions = self._shrunk
        eigenvalues = t * c / ((1 - c).clamp(min=_EPS) + t * c)
        root = directions * eigenvalues.sqrt()
        lam: float | tuple[float, ...]
        if isinstance(self.lam, tuple):
            lam = tuple(t * weight for weight in self.lam)
        else:
            lam = t * self.lam
        return CalibratedProjection(lam, root, root, replace(self.provenance, lam=lam))

    @cached_property
    def is_resolvent(self) -> bool:
        """Return whether P* = (I + S)^-1 for some symmetric S with eigenvalues >= 0.

        This is determined from the factors: I - P* = L R^T must be symmetric, with eigenvalues in
        [0, 1).
        """
        # Compute |L R^T|^2, and the inner product of L R^T with its transpose, from (rank, rank)
        # products. The two are equal only if L R^T is symmetric.
        squared_norm = ((self.left.T @ self.left) * (self.right.T @ self.right)).sum()
        cross = self.left.T @ self.right
        if squared_norm - (cross * cross.T).sum() > _ASYMMETRY * squared_norm:
            return False
        eigenvalues = torch.linalg.eigvals(cross).real
        return bool((eigenvalues > -_ROUNDED).all() and (eigenvalues < 1 - _REMOVED).all())

    @cached_property
    def _shrunk(self) -> tuple[Tensor, Tensor]:
        """Return the positive eigenvalues (r,) of I - P*, and the eigenvectors (d, r)."""
        # Without P0, L = R, so R^T L (r, r) is symmetric and has the positive eigenvalues of L R^T.
        c, vectors = torch.linalg.eigh(self.right.T @ self.left)
        return c.clamp(min=0), normalize(self.left @ vectors, dim=0)


def _checked(values: object, name: str, shape: str) -> Tensor:
    """Return a non-empty tensor with as many axes as named in `shape`."""
    if isinstance(values, np.ndarray):
        values = _tensor(values, name)
    if not isinstance(values, Tensor):
        received: object = type(values).__name__
    else:
        received = tuple(values.shape)
        fits = values.numel() > 0 and values.ndim == shape.count(",") + 1
        is_pair = values.ndim != 3 or values.shape[1] == 2
        if values.is_complex():
            received = f"{received} of {values.dtype}"
        elif values.layout is not torch.strided:
            received = f"a sparse one {received}; pass {name}.to_dense()"
        elif fits and is_pair:
            return values.detach()
    remedy = ""
    if isinstance(values, Tensor) and name == "pairs" and values.ndim == 2:
        remedy = "; for rows that alternate, pass rows.unflatten(0, (-1, 2))"
    if isinstance(values, list | tuple) and values and isinstance(values[0], str):
        remedy = " of texts; embed them first, for example with problem.host.embed(texts, role)"
    raise InvalidInputError(
        f"{name}: expected a non-empty tensor or ndarray {shape}, got {received}{remedy}"
    )


def _tensor(array: NDArray[Any], name: str) -> Tensor:
    """Return a tensor that shares the array's memory if torch supports its layout.

    Raises:
        InvalidInputError: If torch has no dtype for the array's elements, such as objects.
    """
    try:
        # Copy read-only arrays and arrays with negative strides, which torch cannot view.
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{name}: got an array {array.shape} of {array.dtype}; expected numbers; convert them"
            " with .astype(np.float32)"
        ) from None


def _checked_weights(lam: Weights, scatters: Sequence[Tensor]) -> tuple[float, ...]:
    """Return the weight of each scatter.

    Raises:
        InvalidInputError: If a weight is negative, infinite or not a number, or if the number of
            weights is wrong.
    """
    values: object = lam.tolist() if isinstance(lam, (Tensor, np.ndarray)) else lam
    listed = list(values) if isinstance(values, (list, tuple)) else [values] * len(scatters)
    lams = []
    for weight in listed:
        number = math.nan
        if isinstance(weight, Real) and not isinstance(weight, bool):
            # An integer such as 10**400 is too large for a float.
            with suppress(OverflowError):
                number = float(weight)
        if not 0 <= number < math.inf:
            # Shorten the value, because a huge integer has thousands of digits.
            raise InvalidInputError(f"lam: expected finite numbers >= 0, got {reprlib.repr(lam)}")
        lams.append(number)
    if len(lams) != len(scatters):
        raise InvalidInputError(
            f"lam: expected one value or one per attribute ({len(scatters)}), got {lam!r}"
        )
    return tuple(lams)


def _on_one_device(
    scatters: Sequence[Tensor], spurious: Tensor | None
) -> tuple[list[Tensor], Tensor | None]:
    """Move scatters, and the spurious rows as float64, to the device on which to solve."""
    first = scatters[0] if scatters else spurious
    device = first.device if first is not None else torch.device("cpu")
    if device.type == "mps":  # it has no float64
        device = torch.device("cpu")
    moved = [values.to(device) for values in scatters]
    return moved, None if spurious is None else spurious.to(device, torch.float64)


def _row_weights(scatters: Sequence[Tensor], lams: Sequence[float]) -> list[float]:
    """Return lam/|S| for pairs (n, 2, d), and lam for rows (n, d), which contain 1/|S|."""
    pairs = zip(scatters, lams, strict=True)
    return [lam / len(values) if values.ndim == 3 else lam for values, lam in pairs]


def _differences(values: Tensor) -> Tensor:
    """Return rows (n, d), or the differences of pairs (n, 2, d), in float64."""
    if values.ndim == 2:
        return values.to(torch.float64)
    # Subtracting promotes the second half, so only the first half is copied.
    return values[:, 0].to(torch.float64) - values[:, 1]


def _is_finite(values: Tensor) -> bool:
    # A sum is faster than a test of each value, and finite only if all values are.
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def _check_embeddings(matrices: Sequence[Tensor]) -> None:
    """Raise an error if rows are not finite or differ in width."""
    widths = {rows.shape[1] for rows in matrices}
    bad = sum(int((~rows.isfinite()).sum()) for rows in matrices if not _is_finite(rows))
    if len(widths) > 1 or bad:
        raise InvalidInputError(
            "pairs and spurious: expected finite embeddings of one model; got widths"
            f" {sorted(widths)}, and {bad} values are NaN or infinite"
        )


def _weighted_rows(matrices: Sequence[Tensor], weights: Sequence[float]) -> Tensor | None:
    """Return rows X with X^T X = sum_k weight_k X_k^T X_k, or None if that sum is 0."""
    weighted = []
    for rows, weight in zip(matrices, weights, strict=True):
        # Weights of 0 and pairs with equal embeddings do not affect the inverse.
        if weight > 0 and rows.any():
            weighted.append(rows * math.sqrt(weight))
    return torch.cat(weighted) if weighted else None


def _weighted_gram(scatters: Sequence[Tensor], lams: Sequence[float]) -> Tensor | None:
    """Return sum_k lam_k M_k (d, d), or None if it cannot be used.

    That is so if there are fewer than d rows, whose factors are smaller; if values are not finite
    or widths differ; if the sum is 0; or if rounding would remove I from I + sum_k lam_k M_k.
    """
    widths = {values.shape[-1] for values in scatters}
    # Weights of 0 do not affect the inverse. They are multiplied below, to find NaN.
    count = sum(len(values) for values, lam in zip(scatters, lams, strict=True) if lam > 0)
    if len(widths) != 1 or count < max(widths):
        return None
    (width,) = widths
    gram = torch.zeros(width, width, dtype=torch.float64, device=scatters[0].device)
    for values, weight in zip(scatters, _row_weights(scatters, lams), strict=True):
        # Blocks avoid a copy of all rows. With fewer than 2 d rows, adding their products would
        # take longer than computing them.
        for block in values.split(max(_BLOCK // width, 2 * width)):
            gram.add_(_gram(_differences(block)), alpha=weight)
    trace = float(gram.trace())
    return gram if trace > 0 and not _is_too_large(trace) else None


def _gram(rows: Tensor) -> Tensor:
    """Return X^T X (d, d) for rows X (n, d)."""
    if rows.device.type != "cpu":
        return rows.T @ rows
    # NumPy computes half of a product with its own transpose and mirrors it; torch computes all.
    array = rows.detach().numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # the caller handles infinite sums
        return torch.from_numpy(array.T @ array)


def _dense_factors(basis: Tensor | None, gram: Tensor) -> tuple[Tensor, Tensor]:
    """Return L and R (d, d) with P0 (I + M)^-1 = I - L R^T, where M is overwritten.

    With more rows than dimensions, the d x d matrix is smaller than the rows.

    Args:
        basis: Q (d, k) with P0 = I - Q Q^T. If None, P0 = I.
        gram: M (d, d).
    """
    gram.diagonal().add_(1.0)
    removed = torch.cholesky_inverse(torch.linalg.cholesky(gram)).neg_()
    removed.diagonal().add_(1.0)
    if basis is not None:
        # I - (I - Q Q^T) (I - S) = S + Q (Q^T - Q^T S)
        removed += basis @ (basis.T - basis.T @ removed)
    return removed, torch.eye(len(removed), dtype=removed.dtype)


def _factors(basis: Tensor | None, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return L and R (d, r) with P0 (I + X^T X)^-1 = I - L R^T; see the module docstring.

    Args:
        basis: Q (d, k) with P0 = I - Q Q^T. If None, P0 = I.
        rows: X (n, d), or None for no rows.
    """
    if rows is None:
        assert basis is not None
        left, right = basis, basis
    else:
        root = _root(rows)
        left, right = root, root
        if basis is not None:
            # P0 (I - W W^T) = I - Q Q^T - (I - Q Q^T) W W^T
            left = torch.cat([basis, root - basis @ (basis.T @ root)], 1)
            right = torch.cat([basis, root], 1)
    if left.shape[1] >= len(left):
        # If the rank reaches the width, the dense matrix is no larger than the factors.
        left = left @ right.T
        right = torch.eye(len(left), dtype=left.dtype)
    return left, right


def _is_too_large(trace: float) -> bool:
    """Return whether rounding would remove I from I + M, given the trace of M."""
    # A trace that is NaN or infinite is too large.
    return not trace * _EPS <= _ROUNDED


def _root(rows: Tensor) -> Tensor:
    """Return W (d, r) with (I + X^T X)^-1 = I - W W^T for rows X (n, d), r at most min(n, d).

    With C C^T = I + X X^T, W = X^T C^-T (Woodbury; see the module docstring).
    """
    if _is_too_large(float(rows.square().sum())):
        # Compute s / sqrt(s^2 + 1) from the singular values instead.
        _, sigma, vh = torch.linalg.svd(rows, full_matrices=False)
        # Singular values at the rounding level of the largest are noise, as in a pseudo-inverse.
        keep = sigma > max(rows.shape) * _EPS * sigma[:1]
        sines = sigma[keep] / torch.hypot(sigma[keep], torch.ones(()).to(sigma))
        return vh[keep].T * sines
    gram = _gram(rows.T)
    gram.diagonal().add_(1.0)
    return torch.linalg.solve_triangular(
        torch.linalg.cholesky(gram), rows, upper=False
    ).T.contiguous()
