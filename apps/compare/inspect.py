"""What a projection does to texts alone: distances of pairs, the spectrum it acts on, what class prompts keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.edit import Edit
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host
from vldebias.methods.diagnostics import signal_kept
from vldebias.metrics import bootstrap_interval
from vldebias.metrics.bootstrap import Interval
from vldebias.projection import PairScatter
from vldebias.prompts import PromptSet

from .engine import Engine
from .settings import Mitigation

MOST_PAIRS = 1000  # pairs of a part that are looked at, evenly spread
RESAMPLES = 1000

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Distances:
    """|P z_i - P z_j| of the pairs of one part: (n,) each, and the means with their intervals over pairs."""

    before: Floats
    after: Floats
    mean_before: Interval
    mean_after: Interval


@dataclass(frozen=True, eq=False)
class Inspection:
    """What the projection of one role does.

    distances: "seen" and "unseen" -> Distances. sigma: (r,) singular values of the pair differences, weighted as the
    fit weights them (1 / sqrt |S| of each attribute). left: (r,) of each of these directions, the share that is left
    after the projection. kept: (c,) cosine of each class prompt with its projection. signal: share of the distance
    between classes that is left; None below strength 1.
    """

    side: str
    role: str
    roles: tuple[str, ...]
    projection: Edit
    lam: tuple[float, ...]
    strength: float
    distances: Mapping[str, Distances]
    sigma: Floats
    left: Floats
    kept: Floats
    signal: float | None
    notes: tuple[str, ...]


def inspect(engine: Engine, side: str, mitigation: Mitigation, role: str | None = None) -> Inspection:
    """The projection of `mitigation` on the "pipeline" or the "model", as its own prompts see it.

    Every prompt is projected, those that state their attribute too: the pairs are such prompts.

    Raises:
        InvalidInputError: another side, or a role that it does not have.
    """
    with engine.lock:
        host = engine.host(side)
        fitted = engine.fit(side, mitigation)
        if role is not None and role not in host.roles:
            raise InvalidInputError(f"role: expected one of {', '.join(host.roles)}, got {role!r}")
        role = role or host.roles[0]
        projection = fitted.projections[role]
        if projection.sampled:
            raise InvalidInputError(
                f"method {projection.method!r} draws a value for each image, which texts alone do not show; "
                "look at pictures on the tab Generate"
            )
        sets = mitigation.sets
        parts = {
            "seen": _pairs(host, role, chain.from_iterable(one.groups for one in sets)),
            "unseen": _pairs(host, role, chain.from_iterable(one.held_out_groups for one in sets)),
        }
        sigma, directions = _spectrum(host, role, sets)
        classes = host.embed(list(dict.fromkeys(c for one in sets for c in one.classes)), role)

    def project(z: Tensor) -> Tensor:
        return projection(z, mitigation.strength)

    projected = project(classes)
    return Inspection(
        side=side,
        role=role,
        roles=tuple(host.roles),
        projection=projection,
        lam=fitted.lam,
        strength=mitigation.strength,
        distances={name: _distances(pairs, project(pairs)) for name, pairs in parts.items() if pairs is not None},
        sigma=sigma.numpy(),
        left=project(directions).norm(dim=1).numpy(),
        kept=(normalize(classes, dim=-1) * normalize(projected, dim=-1)).sum(-1).numpy(),
        signal=signal_kept(classes, projection) if mitigation.strength == 1 else None,
        notes=fitted.notes,
    )


def _pairs(host: Host, role: str, groups: chain[Sequence[str]]) -> Tensor | None:
    """(n, 2, d) embeddings of the pairs; None where there are none."""
    named = [pair for group in groups for pair in combinations(group, 2)]
    if not named:
        return None
    chosen = [named[i] for i in np.linspace(0, len(named) - 1, min(len(named), MOST_PAIRS)).astype(int)]
    return host.embed(list(chain.from_iterable(chosen)), role).unflatten(0, (len(chosen), 2))


def _distances(pairs: Tensor, projected: Tensor) -> Distances:
    before, after = ((p[:, 0] - p[:, 1]).norm(dim=-1).numpy() for p in (pairs, projected))
    means = [bootstrap_interval(values, resamples=RESAMPLES) for values in (before, after)]
    return Distances(before, after, *means)


def _spectrum(host: Host, role: str, sets: Sequence[PromptSet]) -> tuple[Tensor, Tensor]:
    """Singular values (r,) of the pair differences and their directions (r, d), the largest first."""
    rows = []
    for one in sets:
        scatter = PairScatter.from_groups([host.embed(group, role) for group in one.groups])
        rows.append(scatter.rows / scatter.count**0.5)
    _, sigma, directions = torch.linalg.svd(torch.cat(rows), full_matrices=False)
    return sigma, directions
