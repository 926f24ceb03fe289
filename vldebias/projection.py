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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor

from vldebias.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np

    Array = Tensor | np.ndarray

__all__ = ["CalibratedProjection", "PairScatter"]

_EPS = torch.finfo(torch.float64).eps


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
    if not torch.isfinite(tensor).all():
        bad = int((~torch.isfinite(tensor)).sum())
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
        """Scatter of explicit pairs (n, 2, d): the rows are the n differences."""
        tensor = _as_float64(pairs, "pairs", "(n, 2, d)")
        if tensor.shape[0] == 0 or tensor.shape[1] != 2 or tensor.shape[2] == 0:
            raise InvalidInputError(f"pairs: expected shape (n, 2, d) with n, d > 0, got {tuple(tensor.shape)}")
        return cls(tensor[:, 0] - tensor[:, 1], len(tensor))

    @classmethod
    def from_groups(cls, groups: Sequence[Array]) -> PairScatter:
        """Scatter of groups (n_g, d) in which every two rows are a pair, linear instead of quadratic in n_g.

        sum_{i<j} (z_i - z_j)(z_i - z_j)^T = n sum_i (z_i - mean)(z_i - mean)^T for a group of n.
        """
        tensors = [_as_float64(group, f"groups[{k}]", "(n, d)") for k, group in enumerate(groups)]
        small = [k for k, group in enumerate(tensors) if len(group) < 2]
        if not tensors or small:
            raise InvalidInputError(
                "groups: expected at least one group, each of two or more rows, "
                f"got {len(tensors)} groups, too small: {small}"
            )
        if len({group.shape[1] for group in tensors}) > 1:
            raise InvalidInputError(f"groups: expected one width, got {sorted({g.shape[1] for g in tensors})}")
        rows = torch.cat([math.sqrt(len(g)) * (g - g.mean(0)) for g in tensors])
        return cls(rows, sum(len(g) * (len(g) - 1) // 2 for g in tensors))


@torch.inference_mode(False)  # a projection fitted inside inference mode must serve calls with gradients
def _span(spurious: Tensor) -> Tensor:
    """Orthonormal basis Q (d, rank) of the rows of `spurious` (m, d), repeated and collinear ones included."""
    _, sigma, vh = torch.linalg.svd(spurious, full_matrices=False)
    keep = sigma > max(spurious.shape) * _EPS * sigma[0]
    return vh[keep].T


def _calibration(rows: Tensor) -> tuple[Tensor, Tensor]:
    """V (d, r) and c (r,) with (I + rows^T rows)^-1 = I - V diag(c) V^T."""
    _, sigma, vh = torch.linalg.svd(rows, full_matrices=False)
    keep = sigma > max(rows.shape) * _EPS * sigma[0]
    squared = sigma[keep].square()
    return vh[keep].T, squared / (1 + squared)


def _compress(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """The same product `left @ right.T` with as few columns as its numerical rank."""
    q_left, r_left = torch.linalg.qr(left)
    q_right, r_right = torch.linalg.qr(right)
    u, sigma, vh = torch.linalg.svd(r_left @ r_right.T)
    keep = sigma > max(left.shape) * _EPS * sigma.max().clamp(min=1)
    return (q_left @ u * sigma)[:, keep].contiguous(), (q_right @ vh.T)[:, keep].contiguous()


def _check_lam(lam: float | Sequence[float], attributes: int) -> tuple[float, ...]:
    several = isinstance(lam, (list, tuple))
    try:
        lams = tuple(float(x) for x in (lam if several else [lam]))  # type: ignore[union-attr,arg-type]
    except (TypeError, ValueError):
        raise InvalidInputError(f"lam: expected a number or a list of numbers, got {lam!r}") from None
    if not all(math.isfinite(x) and x >= 0 for x in lams):
        raise InvalidInputError(f"lam: expected finite values >= 0, got {lam!r}")
    if several and len(lams) != attributes:
        raise InvalidInputError(f"lam: expected one value or one per attribute ({attributes}), got {len(lams)}")
    return lams if several else lams * attributes


@dataclass(frozen=True, eq=False, repr=False)
class CalibratedProjection:
    """P* = I - left @ right.T, applied to embeddings as two thin products.

    left, right: (d, rank) float64. Calling it keeps the shape (..., d), dtype and device of its argument.
    The remaining fields say where it belongs: `space` (which tensor of which host), `model_id`, `fingerprint`
    of the weights of the text tower and `image_fingerprint` of those of the image tower beside it, hash of the prompts,
    words that mean "the attribute is stated". They are compared when it is attached.

    Laws (tested): A^T P* z = 0; P* (I + lam M) = P0; lam = 0 gives P0; without A, P* is symmetric with
    eigenvalues in (0, 1]. P* P* is not P*: applying it twice is another method.

    >>> pairs = torch.tensor([[[1.0, 0.0], [0.0, 0.0]]])
    >>> CalibratedProjection.fit(pairs, lam=1.0)(torch.tensor([1.0, 1.0]))
    tensor([0.5000, 1.0000])
    """

    left: Tensor
    right: Tensor
    lam: float | tuple[float, ...]
    method: str
    space: str | None = None
    model_id: str | None = None
    fingerprint: dict[str, Any] | None = None
    image_fingerprint: dict[str, Any] | None = None
    prompts: str | None = None
    prompts_hash: str | None = None
    stated_words: tuple[str, ...] = ()
    _cast: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = field(default_factory=dict, init=False)

    @classmethod
    def fit(
        cls,
        pairs: Array | Sequence[Array] | None,
        spurious: Array | None = None,
        lam: float | Sequence[float] = 1000.0,
    ) -> CalibratedProjection:
        """Solve eq. 7.3 (with `spurious`) or eq. 7.4 (without) in closed form; float64 on the CPU.

        Args:
            pairs: (n, 2, d) embeddings of prompts that should mean the same; a list of such arrays solves
                several attributes jointly; None leaves only the orthogonal projection. The formula takes the
                embeddings as they are: L2-normalise first, as the paper does.
            spurious: (m, d) embeddings of the prompts to project out, the union over attributes.
            lam: weight of the pairs, one value or one per attribute. 0 gives the orthogonal projection.

        Raises:
            InvalidInputError: wrong shapes, NaN, negative `lam`, or nothing to remove.
        """
        if pairs is None:
            return cls.solve([], spurious, lam)
        several: Any = (
            pairs if isinstance(pairs, (list, tuple)) and getattr(next(iter(pairs), None), "ndim", 0) == 3 else [pairs]
        )
        return cls.solve([PairScatter.from_pairs(p) for p in several], spurious, lam)

    @classmethod
    def fit_groups(
        cls, groups: Sequence[Array], spurious: Array | None = None, lam: float | Sequence[float] = 1000.0
    ) -> CalibratedProjection:
        """`fit` for groups (n_g, d) whose rows are all paired with each other, linear in n_g."""
        return cls.solve([PairScatter.from_groups(groups)], spurious, lam)

    @classmethod
    def solve(
        cls,
        scatters: Sequence[PairScatter],
        spurious: Array | None = None,
        lam: float | Sequence[float] = 1000.0,
    ) -> CalibratedProjection:
        """Joint solution over attributes: P0 of all `spurious`, one term lam_k / |S_k| per scatter."""
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
        basis = _span(q) if q is not None and q.any() else None
        if basis is None and not active:
            raise InvalidInputError(_nothing_to_remove(scatters, q, lams))
        left, right = _factors(basis, torch.cat(active) if active else None)
        method = "orth" if not active else "cali" if basis is None else "orth-cali"
        return cls(left, right, lams[0] if len(set(lams)) == 1 else lams, method)

    @property
    def dim(self) -> int:
        """Width d of the embeddings it acts on."""
        return self.left.shape[0]

    @property
    def rank(self) -> int:
        """Rank of P* - I, at most m + |S|."""
        return self.left.shape[1]

    def matrix(self) -> Tensor:
        """P* as a dense (d, d) float64 matrix; `matrix() @ z` is the projected column z."""
        return torch.eye(self.dim, dtype=torch.float64) - self.left @ self.right.T

    @overload
    def __call__(self, z: Tensor, strength: float = 1.0) -> Tensor: ...
    @overload
    def __call__(self, z: np.ndarray, strength: float = 1.0) -> np.ndarray: ...
    def __call__(self, z: Array, strength: float = 1.0) -> Array:
        """z + strength (P* z - z) for embeddings (..., d), in the shape, dtype and device of `z`.

        strength: in [0, 1]; 0 returns `z` itself. Half precision is computed in float32 and rounded once.
        """
        if not 0 <= strength <= 1:
            raise InvalidInputError(f"strength: expected a number in [0, 1], got {strength}")
        if not isinstance(z, Tensor):
            return z if strength == 0 else self(_as_tensor(z, "embeddings", "(..., d)"), strength).numpy()
        if z.ndim == 0 or z.shape[-1] != self.dim or not z.is_floating_point():
            raise InvalidInputError(
                f"expected float embeddings (..., {self.dim}), got {z.dtype} {tuple(z.shape)}; "
                f"this projection was fitted for {self._where()}"
            )
        if strength == 0:
            return z
        wide = z if z.dtype in (torch.float32, torch.float64) else z.float()
        left, right = self._factors_for(wide)
        with _full_precision(z.device):
            return torch.sub(wide, (wide @ right) @ left.T, alpha=strength).to(z.dtype)

    def _factors_for(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The factors on the device and in the dtype of `z`, copied once per device and dtype."""
        key = (z.device, z.dtype)
        if key not in self._cast:
            with torch.inference_mode(False):  # kept for later calls, which may need gradients of z
                self._cast[key] = (self.left.to(*key), self.right.to(*key))
        return self._cast[key]

    def _where(self) -> str:
        return f"dim {self.dim}, space {self.space or 'unknown'}, model {self.model_id or 'unknown'}"

    def __repr__(self) -> str:
        return f"CalibratedProjection({self.method}, lam={self.lam}, rank={self.rank}, {self._where()})"

    def save_pretrained(self, directory: str | Path) -> Path:
        """Write safetensors factors, config.json and a model card into `directory`; returns it."""
        from vldebias.hub import save

        return save(self, directory)

    def push_to_hub(self, repo_id: str, *, private: bool | None = None, token: str | None = None) -> str:
        """Upload to the Hugging Face hub; returns the URL of the commit."""
        from vldebias.hub import push

        return push(self, repo_id, private=private, token=token)

    @classmethod
    def from_pretrained(
        cls, directory_or_repo: str | Path, *, revision: str | None = None, token: str | None = None
    ) -> CalibratedProjection:
        """Read what `save_pretrained` or `push_to_hub` wrote, from a folder or a hub repository."""
        from vldebias.hub import load

        return load(directory_or_repo, revision=revision, token=token)


def _full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast would round the two products to half precision; devices that have none (meta) need no guard."""
    available = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if available else nullcontext()


@torch.inference_mode(False)
def _factors(basis: Tensor | None, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """left, right (d, rank) of I - P* from the spurious basis Q and the weighted difference rows."""
    if rows is None:
        assert basis is not None
        return basis.contiguous(), basis.contiguous()
    v, c = _calibration(rows)
    if basis is None:
        return (v * c).contiguous(), v.contiguous()
    rest = v - basis @ (basis.T @ v)
    return _compress(torch.cat([basis, rest * c], 1), torch.cat([basis, v], 1))


def _nothing_to_remove(scatters: Sequence[PairScatter], spurious: Tensor | None, lams: tuple[float, ...]) -> str:
    """Say why P* would be the identity, which is never what was meant."""
    if not scatters and spurious is None:
        return "fit: expected pairs (n, 2, d) or spurious (m, d), got neither"
    if scatters and not any(lams):
        return (
            "fit: lam = 0 uses the spurious prompts alone, but there are none (or all are zero); "
            "pass spurious or lam > 0"
        )
    return (
        "fit: nothing to remove: all pair differences and spurious embeddings are zero; "
        "check that the prompts of a pair differ and that the tokenizer is the model's own"
    )
