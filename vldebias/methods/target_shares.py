"""Move retrieval queries so that each group has a target share of the top results.

Each image group's scores are assumed to be normal, with the group's mean and variance for the
query. For a group with share pi of all images to have share s of the first k of n images, a
fraction s (k / n) / pi of it must score above the common threshold, so the group means must
be

    m_a = const - sigma_a Phi^-1(1 - s_a (k / n) / pi_a).

Eq. 7.4 of the thesis penalises (D_p^T z)^2, where D_p is the difference within a pair of prompts.
With D_p the difference between two means, and a target t_p = m_a - m_b instead of 0,

    z* = argmin |z - z0|^2 + sum_p w_p (D_p^T z - t_p)^2 = P z0 + sum_p t_p w_p P D_p
    P  = (I + sum_p w_p D_p D_p^T)^-1,

which is the same matrix plus a shift. sigma_a depends on the moved query, so targets and variances
are solved alternately. If each group's target is its share of all images, and all variances are
equal, the targets t_p are 0, which amounts to plain equalising (`vldebias.methods.equalise`).
Labels are not used; groups are the zero-shot values of unlabelled images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from numbers import Real
from typing import ClassVar

import torch
from torch import Tensor
from torch.special import ndtri

from vldebias.errors import InvalidInputError, check_kind
from vldebias.methods.declared import DECLARED
from vldebias.methods.method import EditMethod, Problem, register_method
from vldebias.methods.reference import zero_shot
from vldebias.projection.edit import Rowwise
from vldebias.projection.projection import CalibratedProjection
from vldebias.projection.provenance import Provenance

_ROUNDS = 8  # rounds of alternately solving for targets and variances
_FEWEST = 10  # images per group needed to estimate its variance


@dataclass(frozen=True, eq=False, repr=False)
class TargetShares(Rowwise):
    """Move queries (..., d) so that groups have target shares of the top results in expectation.

    Attributes:
        shares: the target share of the top results for each of the g groups, by name.
        quantiles: (g,) number of standard deviations above its group's mean at which an image
            enters the top results.
        plain: (d, d) P, the solution for zero targets.
        lift: (p, d); row p is w_p P D_p for a pair of groups, along which the target t_p moves an
            embedding of norm 1.
        covariances: (g, d, d) covariances of each group's image features.

    If the target shares equal the shares among all images, and covariances are equal, the result is
    the plain projection. A group with a larger target share gets a larger share of the top results.
    The ranking does not depend on the query's norm.
    """

    kind = "target-shares"
    axes: ClassVar = {"quantiles": "g", "plain": "d d", "lift": "p d", "covariances": "g d d"}
    dtype = torch.float64

    shares: dict[str, float]
    quantiles: Tensor
    plain: Tensor
    lift: Tensor
    covariances: Tensor
    provenance: Provenance

    def _replacement(self, unit: Tensor, image: bool) -> Tensor:
        plain = unit @ self.plain.T
        moved = plain
        # The two groups in each pair, (p,) each.
        i, j = torch.combinations(torch.arange(len(self.shares))).T
        for _ in range(_ROUNDS):
            # (q, g) variance of each group's scores, which changes as the query moves.
            variance = torch.einsum("qd,gde,qe->qg", moved, self.covariances, moved)
            means = -variance.clamp(min=0).sqrt() * self.quantiles
            # Add the targets t_p times the rows w_p P D_p.
            moved = plain + (means[:, i] - means[:, j]) @ self.lift
        return moved


class RankShares(EditMethod):
    """Fit `TargetShares` to the moments of unlabelled images, split by their zero-shot values.

    Args:
        shares: the share for each value or combination of values ("female" or "female/Black"). If
            None, shares are equal.
        fraction: the number of top results as a fraction of all images, k / n.
    """

    declaration = DECLARED["target-shares"]

    def __init__(
        self, shares: Mapping[str, float] | None = None, *, fraction: float = 0.05
    ) -> None:
        self.shares = shares
        self.fraction = fraction

    def fit(self, problem: Problem, role: str) -> TargetShares:
        lam = problem.weight
        is_share = isinstance(self.fraction, Real) and 0 < self.fraction < 1
        if not is_share or isinstance(lam, tuple) or lam <= 0:
            raise InvalidInputError(
                f"got fraction={self.fraction!r} and lam={lam!r}; expected fraction, k / n of the"
                " images, in (0, 1), and a single lam above 0"
            )
        rows_of_group = _groups(problem, role)
        shares_of_groups = self._shares_of(list(rows_of_group))
        groups = list(rows_of_group.values())
        shares = torch.tensor(list(shares_of_groups.values()), dtype=torch.float64)
        count = torch.tensor([len(rows) for rows in groups], dtype=torch.float64)
        share_of_all = count / count.sum()
        self._refuse_unreachable(shares_of_groups, share_of_all)

        # Solve eq. 7.4 for the differences between the means of any two groups, weighted by their
        # precision. `lift` adds the targets.
        i, j = torch.combinations(torch.arange(len(groups))).T
        means = torch.stack([rows.mean(0) for rows in groups])
        precision = count[i] * count[j] / (count[i] + count[j])
        weights = (lam * precision / precision.sum())[:, None]
        differences = means[i] - means[j]
        projection = CalibratedProjection.solve([differences * weights.sqrt()], None, 1.0)
        return TargetShares(
            shares=shares_of_groups,
            # Phi^-1(1 - s_a (k / n) / pi_a), as in the module's docstring.
            quantiles=ndtri(1 - shares * self.fraction / share_of_all),
            plain=projection.matrix(),
            lift=projection(differences) * weights,
            covariances=torch.stack([torch.cov(rows.T, correction=0) for rows in groups]),
            provenance=Provenance(self.name, lam, uses_images=True),
        )

    def _shares_of(self, names: list[str]) -> dict[str, float]:
        """Return each group's target share, which is equal for all groups by default.

        Raises:
            InvalidInputError: If `shares` does not name exactly these groups, or its numbers are
                not positive or do not sum to 1.
        """
        if self.shares is None:
            return dict.fromkeys(names, 1 / len(names))
        check_kind("shares", self.shares, Mapping, f"a mapping from each of {names} to its share")
        shares = dict(self.shares)
        fits = shares.keys() == set(names) and min(shares.values()) > 0
        if not fits or abs(sum(shares.values()) - 1) > 1e-6:
            raise InvalidInputError(
                f"shares: expected positive numbers that sum to 1, one for each of {names}, got"
                f" {shares}"
            )
        return {name: float(shares[name]) for name in names}

    def _refuse_unreachable(self, shares: Mapping[str, float], share_of_all: Tensor) -> None:
        """Reject a target share that exceeds what the group's number of images allows."""
        reachable = (share_of_all / self.fraction).tolist()
        groups = zip(shares.items(), reachable, strict=True)
        # These cannot be reached even if all of the group's images are top results: s top >= pi.
        most_of_group = {name: round(most, 3) for (name, share), most in groups if share >= most}
        if most_of_group:
            raise InvalidInputError(
                f"shares: too few images of {list(most_of_group)}. With"
                f" fraction={self.fraction:.3g}, their shares must be below {most_of_group};"
                " lower these shares, or the fraction"
            )


def _groups(problem: Problem, role: str) -> dict[str, Tensor]:
    """Return the images (n_g, d) of each group, keyed by its combination of zero-shot values.

    Raises:
        InvalidInputError: If a group has too few images.
    """
    rows = torch.cat([*problem.images.batches()])
    group = torch.zeros(1, dtype=torch.long)
    for prompt_set in problem.attributes:
        value = zero_shot(rows, problem.zero_shot(prompt_set, role))
        # Number the combinations of values. The last attribute varies fastest, as in `product`
        # below.
        group = group * len(prompt_set.attributes) + value
    rows_of_group = {}
    for place, values in enumerate(product(*(part.attributes for part in problem.attributes))):
        rows_of_group["/".join(values)] = rows[group == place]
    counts = {name: len(members) for name, members in rows_of_group.items()}
    if min(counts.values()) < _FEWEST:
        raise InvalidInputError(
            f"reference: expected at least {_FEWEST} images of every group, got {counts}; pass"
            " more images"
        )
    return rows_of_group


register_method(RankShares())
