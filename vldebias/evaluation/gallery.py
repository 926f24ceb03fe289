"""Measure skew of rankings of a gallery, on the gallery as it is, on resampled ones, and of random rankings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from vldebias.data import Labels, UnitRows
from vldebias.errors import InvalidInputError
from vldebias.evaluation.task import Count, Number, Strict
from vldebias.metrics.bootstrap import resampled_weights
from vldebias.metrics.metric import computed
from vldebias.metrics.rankings import log_ratios, ndkls, random_rankings, reach, resampled_places

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]
Mask = NDArray[np.bool_]


class SkewOptions(Strict):
    """Hold the conventions of a skew, in which papers differ.

    k: how many of the first results are looked at, one or more values.
    prior: share that a group should have: "uniform" (1 / number of groups that the gallery has; the paper's) or
        "dataset" (its share of the gallery).
    floor: shares below it count as `floor`. None: MaxSkew needs none, and MinSkew, which is -inf where a group is
        missing from the first k, takes 1 / (2 k), half an image.
    ties: "stable" (equal scores keep the order of the rows) or "random" (one seeded order for all queries).
    resamples, seed: of the bootstrap over images and of the random rankings; the seed also decides random ties.
    """

    k: Annotated[list[Count], BeforeValidator(lambda k: list(k) if np.ndim(k) else [k])]
    prior: Literal["uniform", "dataset"] = "uniform"
    floor: Annotated[float, Field(gt=0, le=1), Number] | None = None
    ties: Literal["stable", "random"] = "stable"
    resamples: Count = 2000
    seed: Annotated[int, Field(ge=0), Number] = 0

    @model_validator(mode="after")
    def _different(self) -> Self:
        for name in ("k", "queries"):
            given = getattr(self, name, None)
            if isinstance(given, list) and (not given or len(set(given)) < len(given)):
                raise ValueError(f"{name}: expected one or more different values, got {given}")
        return self


class Gallery:
    """Hold the images whose group is known and the conventions of their skew; labels: one per image, all known.

    Groups without an image are left out: nothing could retrieve them.

    Attributes:
        names: groups that have an image. sizes: (g,) how many images each has. prior: p (g,).
        codes: (n,) positions in `names`, in the smallest integer type, since small types sort in linear time.

    Raises:
        InvalidInputError: fewer than two groups, or fewer images than k.
    """

    def __init__(self, labels: Labels, options: SkewOptions) -> None:
        self.options = options
        self.names = tuple(name for name, n in labels.counts.items() if n)
        if len(self.names) < 2:
            raise InvalidInputError(f"gallery: expected images of two or more groups, got {labels.counts}")
        if max(options.k) > len(labels):
            raise InvalidInputError(
                f"k: expected at most the {len(labels)} images whose group is known, got {max(options.k)}; "
                "choose a smaller k"
            )
        _, codes, self.sizes = np.unique(labels.codes, return_inverse=True, return_counts=True)
        self.codes = codes.astype(np.min_scalar_type(len(self.names)))
        shares = self.sizes if options.prior == "dataset" else np.ones(len(self.names))
        self.prior: Floats = shares / shares.sum()

    def rank(self, texts: Mapping[str, Tensor], images: Mapping[str, UnitRows]) -> dict[str, Rows]:
        """Return method -> first rows (q, m) for its texts (q, d) among its images (n, d).

        As many as the resamples read; images that several methods share are read once for all their texts.
        """
        own, found = self.options, dict[str, Rows]()
        for rows in dict.fromkeys(images.values()):
            methods = [method for method, of in images.items() if of is rows]
            asked = torch.cat([texts[method] for method in methods])
            order = rows.top(asked, reach(max(own.k), len(rows)), ties=own.ties, seed=own.seed)
            found |= zip(methods, np.split(order, len(methods)), strict=True)
        return {method: found[method] for method in images}

    def measure(self, groups: NDArray[np.integer], prior: Floats, relevant: Mask | None = None) -> dict[str, Floats]:
        """Return metric -> value (r,) of r rankings, given the groups (r, m) of their first rows.

        relevant: (r, m) whether each of the rows is, for precision@k.
        """
        values = {}
        for k in self.options.k:
            ratios = log_ratios(groups, k, prior, floor=self.options.floor or 0.0)
            with np.errstate(divide="ignore"):
                least = np.log((self.options.floor or 1 / (2 * k)) / prior)
            values[f"max_skew@{k}"] = np.nanmax(ratios, axis=1)
            values[f"min_skew@{k}"] = np.nanmin(np.maximum(ratios, least), axis=1)
            values[f"ndkl@{k}"] = ndkls(groups, k, prior)
            if relevant is not None:
                values[f"precision@{k}"] = relevant[:, :k].mean(axis=1)
            values |= {f"{own.name}@{k}": of(groups[:, :k], prior) for own, of in computed("rankings")}
        return values

    def values(self, ranked: Rows, relevant: Mask | None = None) -> dict[str, Floats]:
        """Return metric -> value (q,) of each query, from its ranking (q, m); relevant: (q, n), by row."""
        hits = None if relevant is None else np.take_along_axis(relevant, ranked, axis=1)
        return self.measure(self.codes[ranked], self.prior, hits)

    def resampled(self, ranked: Mapping[str, Rows], relevant: Mask | None = None) -> dict[str, dict[str, Floats]]:
        """Return method -> metric -> values (q, resamples) on galleries of n images sampled with replacement.

        All methods and queries see the same resamples, which makes their differences paired. The data set's prior is
        that of the resample. In a large gallery only counts of ranked rows, and of all others together, are sampled.
        """
        n, own = len(self.codes), self.options
        read = np.unique(np.concatenate([orders.ravel() for orders in ranked.values()]))
        read = np.arange(n) if 2 * len(read) > n else read  # else nothing is drawn of the others but their number
        codes, hits = self.codes[read], None if relevant is None else relevant[:, read]
        places = {method: np.searchsorted(read, orders) for method, orders in ranked.items()}
        others, rng = self.sizes - np.bincount(codes, minlength=len(self.names)), np.random.default_rng((own.seed, 1))
        blocks: dict[str, list[list[dict[str, Floats]]]] = {method: [] for method in ranked}
        for weights in resampled_weights(n, own.resamples, own.seed, len(read)):
            prior = self.prior
            if own.prior == "dataset":
                held = np.stack([weights[:, codes == a].sum(axis=1) for a in range(len(self.names))], axis=1)
                rest = rng.multinomial(n - held.sum(axis=1), others / others.sum()) if others.any() else 0
                prior = (held + rest) / n
            weights = np.asfortranarray(weights.astype(np.min_scalar_type(weights.max())))
            for method, orders in places.items():
                each = []
                for query, order in enumerate(orders):
                    top = resampled_places(order, weights, max(own.k))
                    of_query = None if hits is None else hits[query, order][top]
                    each.append(self.measure(codes[order][top], prior, of_query))
                blocks[method].append(each)
        return {
            method: {
                metric: np.block([[one[metric] for one in each] for each in zip(*parts, strict=True)])
                for metric in parts[0][0]
            }
            for method, parts in blocks.items()
        }

    def random(self) -> dict[str, Floats]:
        """Return metric -> values (resamples,) of rankings that are random permutations of the gallery.

        Their mean is the expectation that a fair ranking of this gallery has. MaxSkew of a random ranking is above 0:
        the first k of a balanced gallery are not exactly balanced.
        """
        own = self.options
        blocks = random_rankings(len(self.codes), max(own.k), own.resamples, own.seed)
        parts = [self.measure(self.codes[rows], self.prior) for rows in blocks]
        return {metric: np.concatenate([part[metric] for part in parts]) for metric in parts[0]}
