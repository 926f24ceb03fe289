"""Rankings toward target shares: a query moved so that each group has a given share among the first results.

The scores of a group of images are taken for normal with the group's mean and variance under the query. Of a group with
share pi among all images, the share s of the first `top` (a fraction of all images) asks for the score at which
s top / pi of the group lie above, so the groups' means have to be

    m_a = const - sigma_a Phi^-1(1 - s_a top / pi_a).

The differences m_a - m_b are the targets of the closed form (`vldebias.methods.target`). sigma_a depends on the moved
query, so both are solved in turn. If each group is to have its own share of all images, and all spread alike, the
targets are 0: that is plain equalising (`vldebias.methods.equalise`).

Nothing here reads a label: groups are the zero-shot values of unlabelled reference images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, overload

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.special import ndtr, ndtri

from vldebias.edit import Edit, Provenance, Rows
from vldebias.errors import InvalidInputError
from vldebias.methods.closed_form import pair_scatters
from vldebias.methods.method import LAM_OF_MODELS, Method, Need, Problem, register_method
from vldebias.methods.reference import Reference
from vldebias.methods.shares import AllShares, Shares
from vldebias.methods.target import TargetProjection
from vldebias.projection import PairScatter

if TYPE_CHECKING:
    import numpy as np

OWN = "own"

_ROUNDS = 8  # of solving targets and spreads in turn
_HALVINGS = 60
_FEWEST = 10  # images of a group, for a variance
_COLUMNS = 128  # of a symmetric product that are multiplied at once


class GroupMoments:
    """Count, mean and covariance of image features for each zero-shot group, in one pass over batches.

    Args:
        classifiers: for each attribute a unit row (a, d) per value; groups are the combinations of values.
        names: of the groups, the values of the last attribute changing first.
        reference: how to split; of its settings confidence and logit_scale.
    """

    def __init__(self, classifiers: Sequence[Tensor], names: Sequence[str], reference: Reference) -> None:
        self.names = tuple(names)
        self._classifiers = [rows.double() for rows in classifiers]
        self._settings = reference
        groups, dim = len(self.names), self._classifiers[0].shape[1]
        self.seen = torch.zeros(groups, dtype=torch.float64)
        self.counts = torch.zeros(groups, dtype=torch.float64)
        self._about = torch.zeros(groups, dim, dtype=torch.float64)
        self._sums = torch.zeros(groups, dim, dtype=torch.float64)
        self._squares = torch.zeros(groups, dim, dim, dtype=torch.float64)

    def update(self, features: Tensor) -> None:
        """Add image features (b, d), of which the directions count: in float64, or in float32, summed up in float64."""
        group = torch.zeros(len(features), dtype=torch.long)
        sure = torch.ones(len(features), dtype=torch.bool)
        for rows in self._classifiers:
            value, probability = self._settings.read(features, rows)
            group = group * len(rows) + value
            sure &= probability >= self._settings.confidence
        self.seen += group.bincount(minlength=len(self.names))
        for g in group[sure].unique().tolist():
            own = normalize(features[sure & (group == g)], dim=1)
            if self.counts[g] == 0:  # sums about a mean lose fewer digits than sums about 0
                self._about[g] = own.mean(0)
            self.counts[g] += len(own)
            own -= self._about[g].to(own.dtype)
            self._sums[g] += own.sum(0, dtype=torch.float64)
            for i in range(0, own.shape[1], _COLUMNS):  # what is above the diagonal; below it is the same
                self._squares[g, i : i + _COLUMNS, i:] += own[:, i : i + _COLUMNS].T @ own[:, i:]

    @property
    def shares(self) -> Tensor:
        """(g,) shares of the groups among all images, sure or not."""
        return self.seen / self.seen.sum()

    @property
    def means(self) -> Tensor:
        """(g, d)."""
        return self._about + self._sums / self.counts[:, None]

    @property
    def covariances(self) -> Tensor:
        """(g, d, d)."""
        means, above = self.means - self._about, self._squares.triu()
        squares = above + above.triu(1).mT
        return squares / self.counts[:, None, None] - means[:, :, None] * means[:, None, :]

    def check(self) -> None:
        """Refuse groups with too few images for a mean and a variance."""
        counts = dict(zip(self.names, map(int, self.counts), strict=True))
        if min(counts.values()) < _FEWEST:
            left_out = int(self.seen.sum() - self.counts.sum())
            raise InvalidInputError(
                f"reference: expected at least {_FEWEST} images of every group, got {counts} and {left_out} below the "
                "confidence; give more images, or a lower confidence"
            )


@dataclass(frozen=True, eq=False, repr=False)
class TargetShares(Edit):
    """Queries (..., d) -> queries whose first results have the shares `shares` in expectation.

    Attributes:
        names: of the groups.
        shares: (g,) target shares among the first results.
        population: (g,) shares of the groups among all images that are ranked.
        top: the first results as a fraction of all images: k / n.
        target: the closed form; its differences are those of `pairs` of groups.
        means, covariances: (g, d), (g, d, d) of the image features of each group.

    Laws (tested): shares = population and equal covariances give the plain projection; a larger share of a group gives
    it a larger share in expectation; the ranking does not depend on the length of a query.
    """

    kind = "target-shares"
    axes: ClassVar = {"shares": "g", "population": "g", "means": "g d", "covariances": "g d d"}
    parts: ClassVar = {"target": TargetProjection}

    names: tuple[str, ...]
    shares: Tensor
    population: Tensor
    top: float
    target: TargetProjection
    means: Tensor
    covariances: Tensor
    provenance: Provenance

    @classmethod
    def fit(
        cls,
        moments: GroupMoments,
        shares: Sequence[float] | None,
        *,
        top: float,
        lam: float = 1000.0,
        texts: Sequence[PairScatter] = (),
        population: Sequence[float] | None = None,
    ) -> TargetShares:
        """Solve for reference images with these moments.

        Args:
            moments, shares, top: as of the class; shares None: the groups' own.
            lam: weight of the differences of group means, and of each of `texts`, prompt pairs equalised with them.
            population: (g,) shares among the images to be ranked; None: as among the reference images.

        Raises:
            InvalidInputError: values out of range, a group with too few images, shares that `population` cannot give.
        """
        moments.check()
        if not 0 < top < 1:
            raise InvalidInputError(f"top: expected a fraction k / n of the images, in (0, 1), got {top}")
        own = moments.shares if population is None else torch.tensor(population, dtype=torch.float64)
        targets = own if shares is None else torch.tensor(shares, dtype=torch.float64)
        _check_reachable(moments.names, targets, own, top)
        i, j = _pairs(len(targets))
        precision = moments.counts[i] * moments.counts[j] / (moments.counts[i] + moments.counts[j])
        differences = moments.means[i] - moments.means[j]
        target = TargetProjection.solve(differences, lam * precision / precision.sum(), texts, lam)
        origin = Provenance("target-shares", lam, uses_images=True)
        return cls(moments.names, targets, own, top, target, moments.means, moments.covariances, origin)

    @overload
    def __call__(self, z: Tensor, strength: float = 1.0, rows: Rows | None = None) -> Tensor: ...
    @overload
    def __call__(self, z: np.ndarray, strength: float = 1.0, rows: Rows | None = None) -> np.ndarray: ...
    def __call__(self, z: Tensor | np.ndarray, strength: float = 1.0, rows: Rows | None = None) -> Tensor | np.ndarray:
        """The moved queries (..., d), not normalised, in the shape, dtype and device of `queries`."""
        if not isinstance(z, Tensor):
            return self(torch.tensor(z), strength).numpy()
        self._check_width(z)
        units = _unit(z).reshape(-1, self.dim)
        shift = self.target.shift(self.offsets(units)).reshape(z.shape)
        return self.target.apply(z, shift, strength)

    def offsets(self, queries: Tensor) -> Tensor:
        """(q, p) targets m_a - m_b for unit queries (q, d), for every pair of groups."""
        i, j = _pairs(len(self.names))
        plain = self.target.plain(queries)
        moved, targets = plain, queries.new_zeros(len(queries), len(i))
        quantiles = ndtri(1 - self.shares * self.top / self.population)
        for _ in range(_ROUNDS):
            means = -self._spread(moved) * quantiles
            targets = means[:, i] - means[:, j]
            moved = plain + self.target.shift(targets)
        return targets

    def expected(self, queries: Tensor, strength: float = 1.0) -> Tensor:
        """(q, g) shares of the groups among the first results of queries (q, d), moved, under the normal model.

        It says how far `lam` and the model itself let the targets be met; strength = 0 is for the queries as they are.
        """
        self._check_width(queries)
        moved = self(_unit(queries), strength)
        means, spread = moved @ self.means.T, self._spread(moved)
        low, high = (means - 9 * spread).amin(1), (means + 9 * spread).amax(1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            above = self._above(middle, means, spread).sum(1) > self.top
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        first = self._above(low, means, spread)
        return first / first.sum(1, keepdim=True)

    def _above(self, score: Tensor, means: Tensor, spread: Tensor) -> Tensor:
        """(q, g) images of each group above score (q,), as a fraction of all images."""
        return self.population * ndtr((means - score[:, None]) / spread)

    def _spread(self, queries: Tensor) -> Tensor:
        """(q, g) standard deviations of the scores of each group."""
        return torch.einsum("qd,gde,qe->qg", queries, self.covariances, queries).clamp(min=0).sqrt()

    def _check_width(self, queries: Tensor) -> None:
        if queries.ndim == 0 or queries.shape[-1] != self.dim or not queries.is_floating_point():
            raise InvalidInputError(
                f"expected float embeddings of queries (..., {self.dim}), got {queries.dtype} {tuple(queries.shape)}"
            )


def _unit(queries: Tensor) -> Tensor:
    return normalize(queries.detach().cpu().double(), dim=-1)


def _pairs(groups: int) -> tuple[list[int], list[int]]:
    """First and second group of every pair."""
    first, second = zip(*combinations(range(groups), 2), strict=True)
    return list(first), list(second)


def _check_reachable(names: Sequence[str], targets: Tensor, own: Tensor, top: float) -> None:
    for shares in (targets, own):
        if shares.shape != (len(names),) or not (shares > 0).all() or abs(float(shares.sum()) - 1) > 1e-6:
            raise InvalidInputError(
                f"shares, population: expected a positive share for each of {list(names)}, with sum 1, got "
                f"{targets.tolist()} and {own.tolist()}"
            )
    largest = own / top
    short = [name for name, w, most in zip(names, targets, largest, strict=True) if w >= most]
    if short:
        most = {name: round(float(x), 3) for name, x in zip(names, largest, strict=True) if name in short}
        raise InvalidInputError(
            f"shares: too few images of {short} for such a share of the first {top:.3g} of all: with every one of them "
            f"it would be {most}; ask for less, or for a smaller top"
        )


class RankShares(Method):
    """Queries of retrieval moved so that each group has a given share among the first results.

    Args:
        shares: as of `Shares.of`; None: uniform; "own": as among all images.
        top: the first results as a fraction of all images, k / n.
        pairs: equalise the prompt pairs as well: less spread between queries, but shares far from uniform are missed.
        population: value or combination -> its share among the images that will be ranked, where it is known and
            different from that among the reference images.

    Raises:
        InvalidInputError: `shares` is a text other than "own".
    """

    name, title, source, color = "target-shares", "target shares of a ranking", "this package", "#d67195"
    needs, has_lam, pipelines = frozenset({Need.IMAGES, Need.VALUES}), True, False

    def __init__(
        self,
        shares: AllShares | str | None = None,
        *,
        top: float = 0.05,
        pairs: bool = False,
        population: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(shares, str) and shares != OWN:
            raise InvalidInputError(f"shares: expected shares, None for uniform or {OWN!r}, got {shares!r}")
        self.shares, self.top, self.pairs, self.population = shares, top, pairs, population

    def fit(self, problem: Problem, role: str) -> TargetShares:
        """Solve with the moments of the reference images, split by their zero-shot values.

        Raises:
            InvalidInputError: a group with too few images, or shares that these images cannot give.
        """
        reference = problem.reference
        assert reference is not None  # `check` has refused that
        attributes = problem.attributes
        lam = problem.weight if isinstance(problem.weight, float) else LAM_OF_MODELS
        names = [list(s.attributes) for s in attributes]
        shares = None if isinstance(self.shares, str) else self.shares
        targets = Shares.of(names, shares)
        own = None if self.population is None else Shares.of(names, self.population)
        rows = [problem.zero_shot(s, role) for s in attributes]
        moments = GroupMoments(rows, targets.names, reference)
        for block in reference.blocks():
            moments.update(block)
        return TargetShares.fit(
            moments,
            None if self.shares == OWN else targets.shares,
            top=self.top,
            lam=lam,
            texts=pair_scatters(problem, role) if self.pairs else [],
            population=None if own is None else own.shares,
        )


register_method(RankShares())
