"""Rankings toward target shares: a query moved so that each group has a given share among the first results.

The scores of a group of images are taken for normal with the group's mean and variance under the query. Of a group with
share pi among all images, the share s of the first `top` (a fraction of all images) asks for the score at which
s top / pi of the group lie above, so the groups' means have to be

    m_a = const - sigma_a Phi^-1(1 - s_a top / pi_a).

Eq. 7.4 of Chuang et al. (2023) asks that D_p^T z = 0 for every difference D_p of two means. With the target
t_p = m_a - m_b instead,

    z* = argmin |z - z0|^2 + sum_p w_p (D_p^T z - t_p)^2 = P z0 + sum_p t_p w_p P D_p
    P  = (I + sum_p w_p D_p D_p^T)^-1,

the same matrix and a shift. sigma_a depends on the moved query, so targets and spreads are solved in turn. If each
group is to have its own share of all images, and all spread alike, the targets are 0: that is plain equalising
(`vldebias.methods.equalise`). Nothing here reads a label: groups are the zero-shot values of unlabelled images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import isclose, isfinite, prod
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.special import ndtr, ndtri

from vldebias.edit import Edit, Provenance
from vldebias.errors import InvalidInputError
from vldebias.methods.closed_form import pair_scatters
from vldebias.methods.method import LAM_OF_MODELS, Method, Need, register_method
from vldebias.methods.problem import Problem
from vldebias.methods.reference import Reference
from vldebias.projection import CalibratedProjection, PairScatter

OneShares = Mapping[str, float] | None  # of one attribute: value -> share; None for uniform
AllShares = OneShares | Sequence[OneShares]

OWN = "own"
_ROUNDS = 8  # of solving targets and spreads in turn
_HALVINGS = 60
_FEWEST = 10  # images of a group, for a variance
_COLUMNS = 128  # of a symmetric product that are multiplied at once


class GroupMoments:
    """Collect count, mean and covariance of image features for each zero-shot group, in one pass over batches.

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
        self.seen, self.counts = torch.zeros(2, groups, dtype=torch.float64)
        self._about, self._sums = torch.zeros(2, groups, dim, dtype=torch.float64)
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
        """Return the shares (g,) of the groups among all images, sure or not."""
        return self.seen / self.seen.sum()

    @property
    def means(self) -> Tensor:
        """Return the means (g, d) of the groups."""
        return self._about + self._sums / self.counts[:, None]

    @property
    def covariances(self) -> Tensor:
        """Return the covariances (g, d, d) of the groups."""
        means, above = self.means - self._about, self._squares.triu()
        squares = above + above.triu(1).mT
        return squares / self.counts[:, None, None] - means[:, :, None] * means[:, None, :]


@dataclass(frozen=True, eq=False, repr=False)
class TargetShares(Edit):
    """Move queries (..., d) so that their first results have the shares `shares` in expectation.

    Attributes:
        names: of the groups.
        shares: (g,) target shares among the first results.
        population: (g,) shares of the groups among all images that are ranked.
        top: the first results as a fraction of all images: k / n.
        plain: P, the projection of targets 0. lift: (p, d) float64, row p is w_p P D_p for each pair of groups, by
            which the target t_p moves an embedding of length 1.
        means, covariances: (g, d), (g, d, d) of the image features of each group.

    Laws (tested): shares = population and equal covariances give the plain projection; a larger share of a group gives
    it a larger share in expectation; the ranking does not depend on the length of a query.
    """

    kind = "target-shares"
    axes: ClassVar = {"shares": "g", "population": "g", "means": "g d", "covariances": "g d d", "lift": "p d"}
    parts: ClassVar = {"plain": CalibratedProjection}

    names: tuple[str, ...]
    shares: Tensor
    population: Tensor
    top: float
    plain: CalibratedProjection
    lift: Tensor
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
            InvalidInputError: values out of range, too few images of a group, shares that `population` cannot give.
        """
        counts, names = moments.counts, moments.names
        if counts.min() < _FEWEST:
            left_out = int(moments.seen.sum() - counts.sum())
            raise InvalidInputError(
                f"reference: expected at least {_FEWEST} images of every group, got "
                f"{dict(zip(names, map(int, counts), strict=True))} and {left_out} below the confidence; give more "
                "images, or a lower confidence"
            )
        if not 0 < top < 1:
            raise InvalidInputError(f"top: expected a fraction k / n of the images, in (0, 1), got {top}")
        own = moments.shares if population is None else torch.tensor(population, dtype=torch.float64)
        wanted = own if shares is None else torch.tensor(shares, dtype=torch.float64)
        _check_reachable(names, wanted, own, top)
        i, j = torch.combinations(torch.arange(len(names))).T
        precision = counts[i] * counts[j] / (counts[i] + counts[j])
        weights, differences = lam * precision / precision.sum(), moments.means[i] - moments.means[j]
        if not (weights > 0).all() or not differences.any(dim=1).all():
            raise InvalidInputError(
                f"expected lam above 0 and groups whose images differ, got lam = {lam} for {list(names)}"
            )
        weighted = PairScatter(differences * weights.sqrt()[:, None], 1)
        plain = CalibratedProjection.solve([weighted, *texts], None, [1.0, *[lam] * len(texts)])
        lift, origin = plain(differences) * weights[:, None], Provenance("target-shares", lam, uses_images=True)
        return cls(names, wanted, own, top, plain, lift, moments.means, moments.covariances, origin)

    def __call__(self, z: Any, strength: float = 1.0) -> Any:
        """Return the moved queries (..., d), as long as they come, in the shape, dtype and device of `z`.

        Half precision is computed in float32 and rounded once.
        """
        if not isinstance(z, Tensor):
            return self(torch.tensor(z), strength).numpy()
        self.check_strength(strength)
        unit = self._unit(z)
        if strength == 0:
            return z
        shift = (self.offsets(unit.reshape(-1, self.dim)) @ self.lift).reshape(z.shape)
        wide = z if z.dtype in (torch.float32, torch.float64) else z.float()
        moved = self.plain(wide) + wide.norm(dim=-1, keepdim=True) * shift.to(wide)
        return torch.lerp(wide, moved, strength).to(z.dtype)

    def offsets(self, queries: Tensor) -> Tensor:
        """Return targets (q, p) m_a - m_b for unit queries (q, d), for every pair of groups."""
        i, j = torch.combinations(torch.arange(len(self.names))).T
        plain = self.plain(queries)
        moved, targets = plain, queries.new_zeros(len(queries), len(i))
        quantiles = ndtri(1 - self.shares * self.top / self.population)
        for _ in range(_ROUNDS):
            means = -self._spread(moved) * quantiles
            targets = means[:, i] - means[:, j]
            moved = plain + targets @ self.lift
        return targets

    def expected(self, queries: Tensor, strength: float = 1.0) -> Tensor:
        """Return the shares (q, g) of the groups among the first results of queries (q, d), moved, by the normal model.

        It says how far `lam` and the model itself let the targets be met; strength = 0 is for the queries as they are.
        """
        moved = self(self._unit(queries), strength)
        means, spread = moved @ self.means.T, self._spread(moved)

        def above(score: Tensor) -> Tensor:
            """Images of each group above a score (q,), as fractions (q, g) of all images."""
            return self.population * ndtr((means - score[:, None]) / spread)

        low, high = (means - 9 * spread).amin(1), (means + 9 * spread).amax(1)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            more = above(middle).sum(1) > self.top
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        return above(low) / above(low).sum(1, keepdim=True)

    def _spread(self, queries: Tensor) -> Tensor:
        """Standard deviations (q, g) of the scores of each group."""
        return torch.einsum("qd,gde,qe->qg", queries, self.covariances, queries).clamp(min=0).sqrt()

    def _unit(self, queries: Tensor) -> Tensor:
        if queries.ndim == 0 or queries.shape[-1] != self.dim or not queries.is_floating_point():
            raise InvalidInputError(
                f"expected float embeddings of queries (..., {self.dim}), got {queries.dtype} {tuple(queries.shape)}"
            )
        return normalize(queries.detach().cpu().double(), dim=-1)


def _check_reachable(names: Sequence[str], targets: Tensor, own: Tensor, top: float) -> None:
    for shares in (targets, own):
        if shares.shape != (len(names),) or not (shares > 0).all() or abs(float(shares.sum()) - 1) > 1e-6:
            raise InvalidInputError(
                f"shares, population: expected a positive share for each of {list(names)}, with sum 1, got "
                f"{targets.tolist()} and {own.tolist()}"
            )
    most = {name: round(float(x), 3) for name, w, x in zip(names, targets, own / top, strict=True) if w >= x}
    if most:
        raise InvalidInputError(
            f"shares: too few images of {list(most)} for such a share of the first {top:.3g} of all: with every one of "
            f"them it would be {most}; ask for less, or for a smaller top"
        )


def group_shares(attributes: Sequence[Sequence[str]], given: AllShares = None) -> dict[str, float]:
    """Return a share for each combination of values, "female" or "female/black", the last attribute changing first.

    Args:
        attributes: values of each attribute: [["male", "female"], ["White", "Black"]].
        given: None (uniform); value or combination -> share; or for each attribute value -> share or None, taken to be
            independent.

    Raises:
        InvalidInputError: a value that is missing or unknown, a negative share, shares that do not sum to 1.
    """
    names = ["/".join(values) for values in product(*attributes)]
    if isinstance(given, Mapping):
        return _checked(names, given)
    if given is None:
        given = [None] * len(attributes)
    if isinstance(given, str) or len(given) != len(attributes):
        raise InvalidInputError(
            f"shares: expected a mapping of {names} to shares, or a list of one mapping for each of the "
            f"{len(attributes)} attributes, got {given!r}"
        )
    each = [_checked(values, one) for values, one in zip(attributes, given, strict=True)]
    joint = (prod(shares[v] for shares, v in zip(each, values, strict=True)) for values in product(*attributes))
    return dict(zip(names, joint, strict=True))


def _checked(names: Sequence[str], given: OneShares) -> dict[str, float]:
    if given is None:
        return dict.fromkeys(names, 1 / len(names))
    if not isinstance(given, Mapping) or set(given) != set(names):
        came: Any = list(given) if isinstance(given, Mapping) else given
        raise InvalidInputError(f"shares: expected one for each of {list(names)}, got {came!r}")
    shares = {name: float(given[name]) for name in names}
    if not all(isfinite(s) and s >= 0 for s in shares.values()) or not isclose(sum(shares.values()), 1, abs_tol=1e-6):
        raise InvalidInputError(
            f"shares: expected numbers from 0 on that sum to 1, got {dict(given)} with sum {sum(shares.values()):g}"
        )
    return shares


class RankShares(Method):
    """Move queries of retrieval so that each group has a given share among the first results.

    Args:
        shares: as of `group_shares`; "own": as among all images.
        top: the first results as a fraction of all images, k / n.
        pairs: equalise the prompt pairs as well: less spread between queries, but shares far from uniform are missed.
        population: value or combination -> its share among the images that will be ranked, where it is known and
            different from that among the reference images.

    """

    name, title, source, color = "target-shares", "target shares of a ranking", "this package", "#d67195"
    needs, has_lam, pipelines = frozenset({Need.IMAGES, Need.VALUES}), True, False

    def __init__(
        self,
        shares: AllShares | str = None,
        *,
        top: float = 0.05,
        pairs: bool = False,
        population: Mapping[str, float] | None = None,
    ) -> None:
        if isinstance(shares, str) and shares != OWN:
            raise InvalidInputError(f"shares: expected shares, None for uniform or {OWN!r}, got {shares!r}")
        self.shares, self.top, self.pairs, self.population = shares, top, pairs, population

    def fit(self, problem: Problem, role: str) -> TargetShares:
        """Solve with the moments of the reference images, split by their zero-shot values."""
        reference = problem.reference
        assert reference is not None  # `check` has refused that
        values = [list(s.attributes) for s in problem.attributes]
        wanted = group_shares(values, None if isinstance(self.shares, str) else self.shares)
        own = None if self.population is None else group_shares(values, self.population)
        moments = GroupMoments([problem.zero_shot(s, role) for s in problem.attributes], list(wanted), reference)
        for block in reference.blocks():
            moments.update(block)
        return TargetShares.fit(
            moments,
            None if self.shares == OWN else list(wanted.values()),
            top=self.top,
            lam=problem.weight if isinstance(problem.weight, float) else LAM_OF_MODELS,
            texts=pair_scatters(problem, role) if self.pairs else [],
            population=None if own is None else list(own.values()),
        )


register_method(RankShares())
