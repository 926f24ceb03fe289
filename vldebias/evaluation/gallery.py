"""Skew of the retrieved images: on the gallery as it is, on resampled galleries, and under random rankings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
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
from vldebias.metrics.rankings import Items, random_rankings, reach, resampled_places
from vldebias.metrics.skew import log_ratios, ndkls

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


class SkewOptions(Strict):
    """The conventions of a skew, in which papers differ.

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
                raise ValueError(f"{name}: expected one or more different ones, got {given}")
        return self


@dataclass(frozen=True, eq=False)
class Gallery:
    """The images whose group is known, and what counts as skew among them.

    labels: one per image, all known. Groups without an image are left out: nothing could retrieve them.

    Raises:
        InvalidInputError: fewer than two groups, or fewer images than k.
    """

    labels: Labels
    options: SkewOptions

    def __post_init__(self) -> None:
        if not self.labels.known.all():
            raise InvalidInputError(f"gallery: {int((~self.labels.known).sum())} images have no known group")
        if len(self.names) < 2:
            raise InvalidInputError(f"skew needs images of two groups, got {self.labels.counts}")
        if max(self.options.k) > len(self.labels):
            raise InvalidInputError(
                f"k: expected at most the {len(self.labels)} images whose group is known, got {max(self.options.k)}; "
                "choose a smaller k"
            )

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The groups that have an image."""
        return tuple(name for name, n in self.labels.counts.items() if n)

    @cached_property
    def codes(self) -> NDArray[np.unsignedinteger]:
        """(n,) positions in `names`, in the smallest type that holds them: small ones sort in linear time."""
        held = np.bincount(self.labels.codes, minlength=len(self.labels.names)) > 0
        return (np.cumsum(held) - 1).astype(np.min_scalar_type(len(self.names)))[self.labels.codes]

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """(g,) images of each group."""
        return np.bincount(self.codes, minlength=len(self.names))

    def prior(self) -> Floats:
        """p (g,)."""
        g = len(self.names)
        return np.full(g, 1 / g) if self.options.prior == "uniform" else self.sizes / self.sizes.sum()

    @cached_property
    def _own(self) -> dict[str, Callable[..., Floats]]:
        """The user's metrics of rankings."""
        return {one.name: of for one, of in computed("rankings")}

    def rank(self, texts: Mapping[str, Tensor], images: Mapping[str, UnitRows]) -> dict[str, Rows]:
        """Method -> the first rows (q, m) for its texts (q, d) among its images (n, d): as many as the resamples read.

        Images that several methods share are read once for all their texts. Equal images tie on every machine, whatever
        the order of summation.
        """
        own, sharing = self.options, defaultdict(list)
        ranked: dict[str, Rows] = {}
        for method, rows in images.items():
            sharing[id(rows)].append(method)
        for methods in sharing.values():
            rows, rows_of_texts = images[methods[0]], [texts[method] for method in methods]
            deepest = reach(max(own.k), len(rows))
            order = rows.top(torch.cat(rows_of_texts), deepest, ties=own.ties, seed=own.seed)
            ranked |= zip(methods, np.split(order, np.cumsum([len(some) for some in rows_of_texts])[:-1]), strict=True)
        return ranked

    def measure(
        self, groups: NDArray[np.integer], prior: Floats, relevant: NDArray[np.bool_] | None = None
    ) -> dict[str, Floats]:
        """Metric -> value (r,) of r rankings, of whose first rows the groups (r, m) are given.

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
            values |= {f"{name}@{k}": of(groups[:, :k], prior) for name, of in self._own.items()}
        return values

    def values(self, ranked: Rows, relevant: NDArray[np.bool_] | None = None) -> dict[str, Floats]:
        """Metric -> value (q,) of each query, from its ranking (q, m); relevant: (q, n), by row of the gallery."""
        top = ranked[:, : max(self.options.k)]
        hits = None if relevant is None else np.take_along_axis(relevant, top, axis=1)
        return self.measure(self.codes[top], self.prior(), hits)

    def resampled(
        self, ranked: Mapping[str, Rows], relevant: NDArray[np.bool_] | None = None
    ) -> dict[str, dict[str, Floats]]:
        """Method -> metric -> values (q, resamples) on galleries of n images drawn with replacement.

        All methods and queries see the same resamples, which makes their differences paired. The data set's prior is
        that of the resample. Of a large gallery no more is drawn than how often each row of the rankings is there.
        """
        n, own = len(self.codes), self.options
        read = np.unique(np.concatenate([orders.ravel() for orders in ranked.values()]))
        read = np.arange(n) if 2 * len(read) > n else read  # else nothing is drawn of the others but their number
        codes, hits = self.codes[read], None if relevant is None else relevant[:, read]
        places = {method: np.searchsorted(read, orders) for method, orders in ranked.items()}
        others, rng = self.sizes - np.bincount(codes, minlength=len(self.names)), np.random.default_rng((own.seed, 1))
        blocks: dict[str, dict[str, list[Floats]]] = {method: {} for method in ranked}
        for weights in resampled_weights(n, own.resamples, own.seed, among=len(read)):
            prior = self.prior()
            if own.prior == "dataset":
                held = np.stack([weights[:, codes == a].sum(axis=1) for a in range(len(self.names))], axis=1)
                rest = rng.multinomial(n - held.sum(axis=1), others / others.sum()) if others.any() else 0
                prior = (held + rest) / n
            weights = np.asfortranarray(weights.astype(np.min_scalar_type(weights.max())))
            for method, orders in places.items():
                values: dict[str, list[Floats]] = {}
                for query, order in enumerate(orders):
                    top = resampled_places(order, weights, max(own.k))
                    relevant_hits = None if hits is None else hits[query, order][top]
                    for metric, one in self.measure(codes[order][top], prior, relevant_hits).items():
                        values.setdefault(metric, []).append(one)
                for metric, several in values.items():
                    blocks[method].setdefault(metric, []).append(np.stack(several))
        return {
            method: {metric: np.concatenate(parts, axis=1) for metric, parts in values.items()}
            for method, values in blocks.items()
        }

    def random(self) -> dict[str, Floats]:
        """Metric -> values (resamples,) of rankings that are random permutations of the gallery: nothing is retrieved.

        Their mean is the expectation that a fair ranking of this gallery has. MaxSkew of a random ranking is above 0:
        the first k of a balanced gallery are not exactly balanced.
        """
        blocks: dict[str, list[Floats]] = {}
        for rows in random_rankings(len(self.codes), max(self.options.k), self.options.resamples, self.options.seed):
            for metric, values in self.measure(self.codes[rows], self.prior()).items():
                blocks.setdefault(metric, []).append(values)
        return {metric: np.concatenate(parts) for metric, parts in blocks.items()}


def scores(texts: Tensor, images: Items, block: int = 1 << 13) -> Floats:
    """Inner products (q, n) of texts (q, d) and images (n, d) in float64, without a float64 copy of the images.

    They are rounded far below their meaning, so that equal images tie on every machine whatever the order of summation.
    """
    rows = [texts.double() @ some.double().T for some in images.split(block)]
    return torch.cat(rows, dim=1).numpy().round(12)
