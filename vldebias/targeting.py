"""fit_shares(): queries whose first results have target shares, from a prompt set and unlabelled images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.equalise import Reference
from vldebias.errors import InvalidInputError
from vldebias.fitting import Fit, Prompts
from vldebias.hosts import resolve
from vldebias.projection import PairScatter
from vldebias.ranking import GroupMoments, TargetShares
from vldebias.shares import AllShares, Shares
from vldebias.values import value_prompts

__all__ = ["fit_shares"]

OWN = "own"
METHODS = ("equalise", "cali")


def fit_shares(
    model: Any,
    prompts: Prompts,
    shares: AllShares | str | None = None,
    *,
    reference_images: Any,
    top: float,
    method: str = "equalise",
    lam: float = 1000.0,
    population: Mapping[str, float] | None = None,
    tokenizer: Any = None,
) -> TargetShares:
    """Move queries of retrieval so that each group has a given share among the first results.

    Args:
        model: an open_clip or transformers image-text model.
        prompts: a prompt set with words for each value of its attribute, or several: groups are then the combinations
            of their values, "female/Black".
        shares: value -> share, a list of one such mapping per set, or combination -> share; None: uniform; "own": as
            among all images.
        reference_images: unlabelled image features (n, d) of this model, or a `vldebias.Reference` with settings
            around them, of which `confidence` and `logit_scale` count; images like those that will be ranked.
        top: the first results as a fraction of all images, k / n.
        method: "equalise" (images alone) or "cali" (prompt pairs as well: less spread between queries, but the part
            of a query that the prompt pairs remove cannot serve the targets, and shares far from uniform are missed).
        lam: weight of the differences between the groups, and of the prompt pairs.
        population: value or combination -> its share among the images that will be ranked, where it is known and
            different from that among the reference images.
        tokenizer: where it cannot be found from the model.

    Returns:
        A TargetShares: call it on text embeddings (q, d) of queries. `.expected(queries)` predicts the shares.

    Raises:
        InvalidInputError, PromptSetError, UnsupportedHostError.

    >>> move = fit_shares(model, "gender", {"male": 0.3, "female": 0.7}, reference_images=x, top=0.05)  # doctest: +SKIP
    """
    if method not in METHODS:
        raise InvalidInputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
    target = resolve(model, tokenizer=tokenizer)
    reference = Reference.of(reference_images)
    fit = Fit.of(target, prompts, "cali", lam, reference)
    sets, role = fit.attributes, target.roles[0]
    values = [value_prompts(s) for s in sets]
    wanted = Shares.of([list(v) for v in values], None if shares == OWN else _given(shares))
    own = None if population is None else Shares.of([list(v) for v in values], population)
    rows = [torch.stack([_direction(fit.embed(p, role)) for p in v.values()]) for v in values]
    moments = GroupMoments(rows, wanted.names, reference)
    for batch in reference.batches():
        moments.update(batch)
    pairs = [PairScatter.from_groups([fit.embed(g, role) for g in s.groups]) for s in sets] if method == "cali" else []
    return TargetShares.fit(
        moments,
        None if shares == OWN else wanted.shares,
        top=top,
        lam=lam,
        texts=pairs,
        population=None if own is None else own.shares,
    )


def _given(shares: AllShares | str | None) -> AllShares | None:
    if isinstance(shares, str):
        raise InvalidInputError(f"shares: expected shares, None for uniform or {OWN!r}, got {shares!r}")
    return shares


def _direction(rows: Tensor) -> Tensor:
    """Unit mean (d,) of unit rows (m, d): the zero-shot classifier's weight for a value with several prompts."""
    return normalize(rows.mean(0), dim=0)
