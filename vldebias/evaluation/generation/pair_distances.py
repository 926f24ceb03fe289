"""How far apart prompts are that differ in the attribute alone, before and after the projection (Table 7.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vldebias.api import fit_projections
from vldebias.evaluation.drawing.plan import NONE, Variant
from vldebias.evaluation.intervals import Measured, figures
from vldebias.evaluation.result import Figure
from vldebias.hosts import Host, resolve
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

__all__ = ["pair_distances"]


def pair_distances(
    host: Any,
    prompts: PromptSet,
    variants: Mapping[str, Variant],
    *,
    task: str,
    noun: str = "professions",
    resamples: int = 2000,
    seed: int = 0,
) -> list[Figure]:
    """Mean |P z_i - P z_j| over the pairs of `prompts`, "train" and "unseen" (section 7.6.1).

    Every pair is projected, whether a prompt states its attribute or not. Resampled over groups of prompts, one for
    each concept: the pairs of a group share their prompts. A host with several roles has figures for each of them,
    with the subset "unseen, pooled".
    """
    target = resolve(host)
    fitted = {
        name: fit_projections(target, variant.sets, method=variant.method, lam=variant.lam)
        for name, variant in variants.items()
    }
    found = []
    for role in target.roles:
        for part, groups in (("train", prompts.groups), ("unseen", prompts.held_out_groups)):
            if not groups:
                continue
            values, pairs = {NONE: _distances(target, role, groups, None, 1.0)}, _pairs(groups)
            for name, variant in variants.items():
                values[name] = _distances(target, role, groups, fitted[name][role], variant.strength)
            measured = Measured(
                task,
                "pair_distance",
                "lower",
                {noun: len(groups), "pairs": int(pairs.sum())},
                values,
                _mean_of_pairs,
                (pairs,),
                subset=part if len(target.roles) == 1 else f"{part}, {role}",
                details={name: {"lam": v.lam, "strength": v.strength} for name, v in variants.items()},
            )
            found += figures(measured, resamples=resamples, seed=seed)
    return found


def _mean_of_pairs(distances: NDArray[np.float64], pairs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over pairs (b,) from sums over the pairs of each group, and their numbers (b, groups)."""
    return distances.sum(axis=-1) / pairs.sum(axis=-1)


def _pairs(groups: Sequence[Sequence[str]]) -> NDArray[np.float64]:
    return np.array([len(group) * (len(group) - 1) / 2 for group in groups])


def _distances(
    host: Host, role: str, groups: Sequence[Sequence[str]], projection: CalibratedProjection | None, strength: float
) -> NDArray[np.float64]:
    """Sum over the pairs of each group."""
    flat = list(dict.fromkeys(chain.from_iterable(groups)))
    rows = host.embed(flat, role)
    rows = rows if projection is None else projection(rows, strength)
    place = {prompt: i for i, prompt in enumerate(flat)}
    sums = []
    for group in groups:
        first, second = zip(*combinations([place[prompt] for prompt in group], 2), strict=True)
        sums.append(float(torch.linalg.vector_norm(rows[list(first)] - rows[list(second)], dim=-1).sum()))
    return np.array(sums)
