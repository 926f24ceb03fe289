"""A query before and after: the first pictures, the share of each group and MaxSkew as k grows, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vldebias.errors import InvalidInputError
from vldebias.evaluation.retrieval.scores import scores
from vldebias.evaluation.retrieval.skew import Gallery, Rules
from vldebias.metrics.rankings import rankings

from .compare_draw import AFTER, BEFORE
from .compare_engine import Engine
from .compare_settings import Mitigation, check_text
from .compare_shares import wilson

__all__ = ["Hit", "Retrieval", "retrieve"]

SHOWN, TOP, DEEPEST, RESAMPLES, SEED = 12, 20, 100, 300, 0
STEPS = (1, 2, 3, 5, 8, 12, 16, 20, 30, 40, 50, 75, 100)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Hit:
    """A picture that was found. picture: None where the gallery has only its embedding."""

    id: str
    group: str
    score: float
    picture: Image.Image | None


@dataclass(frozen=True, eq=False)
class Retrieval:
    """What a query finds, by side.

    ks: (m,) numbers of results. shares: side -> (m, groups) among the first k. max_skew: side -> (m,); skew_band:
    side -> (low (m,), high (m,)), 95 % over resampled galleries. random: (m,) MaxSkew expected of a random ranking.
    top: the k of the headline, at most 20; top_shares: side -> group -> (share, low, high) there, Wilson 95 %.
    """

    query: str
    gallery: str
    column: str
    groups: tuple[str, ...]
    n: int
    unknown: int
    ks: tuple[int, ...]
    hits: Mapping[str, tuple[Hit, ...]]
    shares: Mapping[str, Floats]
    max_skew: Mapping[str, Floats]
    skew_band: Mapping[str, tuple[Floats, Floats]]
    random: Floats
    top: int
    top_shares: Mapping[str, Mapping[str, tuple[float, float, float]]]
    query_cosine: float
    stated: tuple[str, ...]
    notes: tuple[str, ...]


def retrieve(engine: Engine, query: object, column: object, mitigation: Mitigation) -> Retrieval:
    """Rank the gallery for `query` without and with the projection, and measure skew over the groups of `column`.

    MaxSkew has a uniform prior; images whose group is unknown are left out and counted.

    Raises:
        InvalidInputError: an empty query, one that a file has no embedding of, or a column that is not there.
    """
    text = check_text(query, "query")
    gallery = engine.gallery()
    if column not in gallery.groups:
        raise InvalidInputError(f"groups: expected one of {', '.join(gallery.groups)}, got {column!r}")
    with engine.lock:
        fitted = engine.fit_on(gallery.texts.host, "gallery", mitigation)
        projection = next(iter(fitted.projections.values()))
        rows = gallery.texts.under([text], projection, strength=mitigation.strength, keep_stated=mitigation.keep_stated)
        plain = gallery.texts.embed([text])
    labels = gallery.embeddings.column(str(column))
    kept = np.flatnonzero(labels.known)
    ks = tuple(k for k in STEPS if k <= min(DEEPEST, len(kept)))
    top = max(k for k in ks if k <= TOP)
    skews = Gallery(labels[kept], Rules(ks, resamples=RESAMPLES, seed=SEED))
    found = {side: scores(row, gallery.features[kept])[0] for side, row in ((BEFORE, plain), (AFTER, rows))}
    orders = {side: rankings(one[None]) for side, one in found.items()}
    values = {side: skews.values(order) for side, order in orders.items()}
    resampled = skews.resampled(orders)
    shares = {side: _shares(skews, order[0], ks) for side, order in orders.items()}

    def hits(side: str) -> tuple[Hit, ...]:
        first = orders[side][0, :SHOWN]
        named = [(int(kept[i]), skews.names[skews.codes[i]], float(found[side][i])) for i in first]
        return tuple(Hit(gallery.embeddings.ids[r], group, s, gallery.read(r)) for r, group, s in named)

    return Retrieval(
        query=text,
        gallery=gallery.name,
        column=str(column),
        groups=skews.names,
        n=len(kept),
        unknown=len(labels) - len(kept),
        ks=ks,
        hits={side: hits(side) for side in orders},
        shares=shares,
        max_skew={side: np.array([values[side][f"max_skew@{k}"][0] for k in ks]) for side in orders},
        skew_band={side: _band(resampled[side], ks) for side in orders},
        random=np.array([skews_of.mean() for skews_of in _random(skews, ks)]),
        top=top,
        top_shares={side: _intervals(skews.names, one[ks.index(top)], top) for side, one in shares.items()},
        query_cosine=float((plain * rows).sum()),
        stated=mitigation.stated(text),
        notes=fitted.notes,
    )


def _shares(skews: Gallery, order: NDArray[np.intp], ks: tuple[int, ...]) -> Floats:
    """(m, groups) shares among the first k."""
    shown = skews.codes[order[: ks[-1]]][:, None] == np.arange(len(skews.names))
    return shown.cumsum(axis=0)[np.array(ks) - 1] / np.array(ks)[:, None]


def _band(resampled: Mapping[str, Floats], ks: tuple[int, ...]) -> tuple[Floats, Floats]:
    low, high = np.quantile([resampled[f"max_skew@{k}"][0] for k in ks], [0.025, 0.975], axis=1)
    return low, high


def _random(skews: Gallery, ks: tuple[int, ...]) -> list[Floats]:
    found = skews.random()
    return [found[f"max_skew@{k}"] for k in ks]


def _intervals(names: tuple[str, ...], shares: Floats, k: int) -> dict[str, tuple[float, float, float]]:
    return {
        name: (float(share), *wilson(round(float(share) * k), k)) for name, share in zip(names, shares, strict=True)
    }
