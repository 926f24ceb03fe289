"""At most a given loss of cosine for given neutral texts: a projection softened until the bound holds.

Equation 7.4 of the thesis, min_z |z - z0|^2 + lam z^T M z, is the Lagrangian of a problem with a bound. Write the loss
of a text as 1 - cos(z, z0). Among all z with <z, z0> = 1 and a loss of at most e, the least z^T M z is had at

    z = a (I + lam M)^-1 z0

for some a, where lam is one over the multiplier of the bound (Cauchy-Schwarz: |z| <= 1 / (1 - e) is the bound). One
matrix serves all texts, so lam is the largest at which the bound holds for every text, or for their mean.

The loss never falls as lam grows. With m = 1 / (1 + lam s) on the eigenvectors of M and the mean E over the squared
coordinates of z0, cos = E[m] / sqrt(E[m^2]) and

    lam d/dlam log cos = E[m^2] / E[m] - E[m^3] / E[m^2] <= 0          (Cauchy-Schwarz: E[m^2]^2 <= E[m] E[m^3])

so bisection finds that lam. Where P0 is part of the projection no such law holds (P0 alone may lose more than the
bound), and its strength is lowered instead: along z0 + t (P z0 - z0) the angle to z0 never falls as t grows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.methods.bound import Bound
from vldebias.methods.method import Around, Method, Problem, get_method
from vldebias.projection import CalibratedProjection

_STEPS = 60  # halvings: the multiplier to the precision of a double


def losses(projection: CalibratedProjection, neutral: Tensor, strength: float = 1.0) -> Tensor:
    """1 - cosine (n,) of each neutral embedding (n, d) with its projection."""
    before, after = normalize(neutral.double(), dim=1), normalize(projection(neutral.double(), strength), dim=1)
    return 1 - (before * after).sum(1)


def bounded(projection: CalibratedProjection, neutral: Tensor, bound: Bound) -> CalibratedProjection:
    """`projection` where it keeps the bound on `neutral` (n, d); else with a smaller lam, or a smaller strength.

    Without P0 ("cali", "equalise", and both) the result is the same method at a smaller lam. With P0 it is
    I - t (I - P), 0 < t < 1, and its method says "bounded".

    Raises:
        InvalidInputError: `neutral` is not (n, d) with n > 0, or a row is zero.
    """
    if neutral.ndim != 2 or not len(neutral) or neutral.shape[1] != projection.dim:
        raise InvalidInputError(f"neutral: expected embeddings (n, {projection.dim}), got {tuple(neutral.shape)}")
    rows = neutral.detach().to("cpu", torch.float64)
    if not bool((rows.norm(dim=1) > 0).all()):
        raise InvalidInputError("neutral: a zero row has no cosine; check the embeddings")
    if bound.value(losses(projection, rows)) <= bound.loss:
        return projection
    weaker = projection.at_strength if projection.spurious_rank else projection.at_multiple
    kept = weaker(_largest(lambda t: bound.value(losses(weaker(t), rows)) <= bound.loss))
    return kept.stamped(method=f"{kept.method}, bounded") if projection.spurious_rank else kept


class Bounded(Around):
    """A method within a bound: softened until no neutral text loses more than it says.

    Raises:
        InvalidInputError: when it is fitted, if the method gives no projection of embeddings, which has no strength.
    """

    def __init__(self, method: str | Method, bound: Bound | float) -> None:
        self.method, self.bound = get_method(method), Bound.of(bound)
        super().__init__(self.method)
        self.name, self.delegates = f"{self.name}, bounded", True
        self.title = f"{self.title}, at most {self.bound.loss:g} of cosine lost"

    def fit(self, problem: Problem, role: str) -> Edit:
        """The method's edit, weakened where it has to be."""
        within = replace(problem, bound=self.bound)
        edit = self.method.fit(within, role)
        if not isinstance(edit, CalibratedProjection):
            raise InvalidInputError(
                f"max_loss: method {self.method.name!r} gives {edit!r}, which is no projection whose lam could be "
                "lowered; leave max_loss out and lower strength= instead"
            )
        named = edit if self.method.delegates else edit.stamped(method=self.method.name)
        kept = bounded(named, within.embed(within.neutral_prompts(), role), self.bound)
        return kept.stamped(max_loss=self.bound.loss)


def _largest(holds: Callable[[float], bool]) -> float:
    """The largest t in (0, 1) for which a condition holds that holds near 0 and, once lost, is lost for good."""
    low, high = 0.1, 1.0
    while not holds(low):
        low, high = low / 10, low
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
