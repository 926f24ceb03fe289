"""A query before and after: the first pictures, the share of each group and MaxSkew as k grows, with intervals.

The pictures are those of an embedding file of the user, or portraits of the miniature world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings, decode
from vldebias.errors import InvalidInputError
from vldebias.evaluation.gallery import Gallery, SkewOptions, scores
from vldebias.evaluation.texts import Texts, TextTable
from vldebias.metrics.bootstrap import wilson_interval
from vldebias.metrics.rankings import rankings

from .drawing import AFTER, BEFORE
from .engine import MINIATURE, Engine
from .settings import Mitigation, check_text

SHOWN, TOP, DEEPEST, RESAMPLES, SEED = 12, 20, 100, 300, 0
STEPS = (1, 2, 3, 5, 8, 12, 16, 20, 30, 40, 50, 75, 100)
PORTRAITS, PORTRAITS_SEED = 2000, 9100
GROUPS = ("gender", "tone", "age")
MANY = 12  # groups that a chart can show

Floats = NDArray[np.float64]

# ---- the gallery -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PictureGallery:
    """n pictures by their embeddings.

    features: (n, d) float32, L2-normalised. read: the picture of a row, None where there is none to show.
    groups: columns of labels that skew can be measured over.
    """

    name: str
    embeddings: Embeddings
    features: Tensor
    texts: Texts
    read: Callable[[int], Image.Image | None]
    groups: tuple[str, ...]


def gallery_of(engine: Engine) -> PictureGallery:
    """The pictures that the page was started with, to retrieve from; loaded once.

    Raises:
        InvalidInputError: a file that cannot be read, has no labels, or no text side.
    """
    path = engine.embeddings
    return engine.once("gallery", lambda: _miniature(engine) if path is None else _file(engine, path))


def group_columns(engine: Engine) -> tuple[str, ...]:
    """The columns that skew can be measured over, known before any model is loaded.

    Raises:
        InvalidInputError: a file that cannot be read, or has no such column.
    """
    return GROUPS if engine.embeddings is None else _columns(engine.embeddings, _loaded(engine.embeddings)[0])


def _loaded(path: Path) -> tuple[Embeddings, dict[str, Tensor] | None]:
    from vldebias.data import load_embeddings

    return load_embeddings(path)


def _columns(path: Path, embeddings: Embeddings) -> tuple[str, ...]:
    groups = tuple(name for name, labels in embeddings.labels.items() if 2 <= _present(labels.codes) <= MANY)
    if not groups:
        raise InvalidInputError(
            f"{path}: expected a column label.<name> of 2 to {MANY} groups to measure skew over, got "
            f"{list(embeddings.labels)}"
        )
    return groups


def _miniature(engine: Engine) -> PictureGallery:
    """Balanced portraits, embedded by the miniature CLIP whatever model the page was started with."""
    from vldebias.hosts.images import image_encoder
    from vldebias.miniature import load_clip
    from vldebias.miniature.data import open_world

    model, preprocess, tokenizer = load_clip()
    data = open_world("portraits", n=PORTRAITS, seed=PORTRAITS_SEED, balanced=True)
    encoder = image_encoder(model, preprocess, name="miniature")
    blocks = [encoder.encode([data.read(i) for i in range(s, s + 200)]) for s in range(0, PORTRAITS, 200)]
    features = torch.cat(blocks)
    embeddings = Embeddings(features.numpy(), data.ids, data.labels, data.captions)
    name = f"{PORTRAITS:,} portraits of the miniature world"
    return PictureGallery(name, embeddings, normalize(features, dim=1), Texts(model, tokenizer), data.read, GROUPS)


def _file(engine: Engine, path: Path) -> PictureGallery:
    embeddings, rows = _loaded(path)
    groups = _columns(path, embeddings)
    if engine.model_name != MINIATURE:
        texts = engine.texts()
    elif rows is not None:
        texts = Texts(TextTable(rows))
    else:
        raise InvalidInputError(f"{path}: it has no text embeddings, so start with the --model that made its features")
    wide = texts.host.dim(texts.host.roles[0])
    if wide != embeddings.dim:
        raise InvalidInputError(f"{path}: features are {embeddings.dim} wide, the text side {wide}: not the same model")
    name = f"{len(embeddings):,} pictures of {path.name}"
    return PictureGallery(name, embeddings, embeddings.normalised(), texts, _reader(engine.images, embeddings), groups)


def _present(codes: np.ndarray) -> int:
    return len(np.unique(codes[codes >= 0]))


def _reader(folder: Path | None, embeddings: Embeddings) -> Callable[[int], Image.Image | None]:
    """Reads "<folder>/<id>"; an id that leads out of the folder, or to no picture, shows none."""
    root = None if folder is None else folder.resolve()

    def read(row: int) -> Image.Image | None:
        if root is None:
            return None
        path = (root / embeddings.ids[row]).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            return None
        try:
            return decode(path)
        except OSError:
            return None

    return read


# ---- a query ---------------------------------------------------------------------------------------------------


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
    gallery = gallery_of(engine)
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
    skews = Gallery(labels[kept], SkewOptions(k=list(ks), resamples=RESAMPLES, seed=SEED))
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
        name: (float(share), *wilson_interval(round(float(share) * k), k))
        for name, share in zip(names, shares, strict=True)
    }
