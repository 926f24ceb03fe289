"""Search and classify images with the image-text model, before and after debiasing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

import vldebias
from vldebias.data import ImageData, load_embeddings
from vldebias.errors import InvalidInputError
from vldebias.hosts import Host, resolve
from vldebias.hosts.clip.images import image_encoder
from vldebias.measure.resampling import bootstrap_interval, wilson_interval
from vldebias.metrics import max_skew
from vldebias.miniature.photographs import CREDIT
from vldebias.prompts import StatedWords
from vldebias.utils.phrases import in_words
from vldebias.utils.pictures import decode
from vldebias.wording.stated import StatedValues

from .answers import METHODS, SEARCH_METHODS, Answer, Found
from .engine import PHOTOGRAPHS, Engine
from .request import check_choice, check_text

TOP = 20  # images per row, which are all counted
# Of the 17 pairs of photographs whose features are at least this similar, 15 show the same scene,
# as we judged by eye; the next three pairs do not.
SAME_SCENE = 0.87
SOURCE = (
    "Photographs from 1939 to 1944: {credit}. The gallery is balanced: {counts}, as labelled by two"
    " vision-language models that looked at the images. Methods are fitted with {reference:,}"
    " other photographs as a reference. The ranking is by a toy model, so it is rough."
)
UNKNOWN = "unknown"
BATCH = 8  # larger batches are no faster, and their memory is not released
IMAGES = 600  # images per world; more would delay the first visitor
BIRDS = ("This is a picture of a landbird.", "This is a picture of a waterbird.")


@dataclass(frozen=True, eq=False)
class Gallery:
    """Store images as L2-normalised features (n, d), with labels.

    Attributes:
        host: embeds text in the same space.
        reference: features of separate images, for methods that use a reference.
        titles: titles of the images, or an empty tuple.
        source: description of the images and their origin.
        same_scene: cosine of the features from which two images are near-duplicates; None if it
            was not measured.
    """

    features: Tensor
    labels: dict[str, NDArray[np.str_]]
    host: Host
    data: ImageData | None = None
    paths: tuple[str, ...] = ()
    reference: Tensor | None = None
    titles: tuple[str, ...] = ()
    source: str = ""
    same_scene: float | None = None

    def image(self, engine: Engine, row: int) -> Image.Image | None:
        """Return an image, or None if it is not available."""
        if self.data is not None:
            return self.data.read(row)
        path = None if engine.images is None else engine.images / self.paths[row]
        # An id in a user's file, such as "../../etc/passwd", must not escape the folder.
        if path is None or not path.resolve().is_relative_to(engine.images.resolve()):  # type: ignore[union-attr]
            return None
        try:
            return decode(path)
        except OSError:
            return None


def open_gallery(engine: Engine, name: str) -> Gallery:
    """Return the images to search. `name` is one of `engine.galleries`.

    Raises:
        InvalidInputError: If a file cannot be read, or has no labels.
    """

    def load() -> Gallery:
        if name == PHOTOGRAPHS:
            return _photographs()
        if engine.embeddings is None:
            return _world(engine, "portraits")
        read, _ = load_embeddings(engine.embeddings)
        if not read.labels:
            raise InvalidInputError(
                f"{engine.embeddings}: the file has no labels, so shares cannot be counted"
            )
        features = normalize(torch.as_tensor(np.asarray(read.features), dtype=torch.float32), dim=1)
        return Gallery(features, _texts(read.labels), _host(engine), paths=tuple(read.ids))

    return engine.once(f"gallery {name}", load)


def _photographs() -> Gallery:
    from vldebias.miniature import load_photographs

    photographs = load_photographs()
    gallery, reference = photographs.gallery, photographs.reference
    counts = in_words(gallery.column("gender").counts)
    return Gallery(
        torch.from_numpy(gallery.features),
        _texts(gallery.labels),
        resolve(photographs.encoder),
        photographs.images,
        reference=torch.from_numpy(reference.features),
        titles=gallery.captions,
        source=SOURCE.format(credit=CREDIT, counts=counts, reference=len(reference)),
        same_scene=SAME_SCENE,
    )


def _host(engine: Engine) -> Host:
    """Return the image-text model as a host."""
    loaded = engine.clip()
    return engine.once("host", lambda: resolve(loaded.host, tokenizer=loaded.tokenizer))


def _world(engine: Engine, name: str) -> Gallery:
    from vldebias.miniature import open_world

    data = open_world(name, n=IMAGES)
    loaded = engine.clip()
    encoder = image_encoder(loaded.host, loaded.preprocess)
    blocks = [
        encoder.encode([data.read(i) for i in range(start, min(start + BATCH, len(data)))])
        for start in range(0, len(data), BATCH)
    ]
    features = normalize(torch.cat(blocks).float(), dim=1)
    return Gallery(features, _texts(data.labels), _host(engine), data)


def _texts(labels: object) -> dict[str, NDArray[np.str_]]:
    return {
        name: np.array([*column.names, UNKNOWN])[column.codes]  # -1 means unknown
        for name, column in labels.items()  # type: ignore[attr-defined]
    }


def _embed(
    engine: Engine,
    gallery: Gallery,
    texts: Sequence[str],
    prompts: str,
    method: str | None,
    strength: float = 1.0,
) -> Tensor:
    """Return the model's normalised text features (n, d) with a method attached."""
    host = gallery.host
    with engine.lock:
        edit = None
        if method is not None:
            edits = engine.edits(host, prompts, method, gallery.reference)
            edit = next(iter(edits.values()), None)
        return normalize(
            host.under(list(texts), host.roles[0], edit, strength=strength).float(), dim=1
        )


def search(
    engine: Engine,
    query: object,
    column: object,
    method: object = None,
    strength: float = 1.0,
    gallery_name: object = None,
) -> tuple[Answer, Gallery]:
    """Search with a query as written, with re-ranked results and, optionally, with an edited query.

    `method` edits the query; None edits nothing. `gallery_name` is one of `engine.galleries`, by
    default the first. The gallery is returned too.

    Raises:
        InvalidInputError: If there is no query, or the method, a column or the gallery is unknown.
    """
    text = check_text(query, "query")
    place = check_choice(gallery_name or engine.galleries[0], engine.galleries, "images")
    name = check_choice(column, columns(engine, place), "groups")
    chosen = None if method is None else check_choice(method, SEARCH_METHODS, "method")
    gallery = open_gallery(engine, place)
    stated = stated_words(text, name)
    scores = _scores(engine, gallery, text, name)
    ranked = _ranked(gallery, name, scores)
    before = reranked = _found(gallery, name, ranked)
    if not stated:
        # Use the model's predicted groups, not the labels used for counting.
        with engine.lock:
            positions = vldebias.rerank(
                scores[ranked],
                len(before.rows),
                features=gallery.features[ranked],
                attribute=prompts_of(name),
                model=gallery.host,
            )
        first = ranked[positions]
        rest = ranked[~np.isin(ranked, first)]
        reranked = _found(gallery, name, np.concatenate([first, rest]))
    edited = None
    if chosen is not None:
        method_of_query = None if stated else chosen
        scores_of_edit = _scores(engine, gallery, text, name, method_of_query, strength)
        edited = _found(gallery, name, _ranked(gallery, name, scores_of_edit))
    better = gallery.labels[name] != UNKNOWN
    better &= scores >= scores[before.rows[-1]]
    left_out = int(better.sum()) - len(before.rows)
    return Answer(text, name, before, reranked, edited, stated, gallery.source, left_out), gallery


def stated_words(query: str, column: str) -> tuple[str, ...]:
    """Return the words of a query that state a value, or the entire query ("two nuns").

    Such queries keep their results, as in `queries.search`.
    """
    words, stated = _reader(prompts_of(column))
    if not stated.find(query):
        return ()
    return tuple(dict.fromkeys(words.find(query))) or (query,)


@cache
def _reader(prompts: str) -> tuple[StatedWords, StatedValues]:
    prompt_set = vldebias.load_prompts(prompts)
    words = prompt_set.stated_words
    return StatedWords(words), StatedValues(words, [prompt_set])


def _scores(
    engine: Engine,
    gallery: Gallery,
    query: str,
    column: str,
    method: str | None = None,
    strength: float = 1.0,
) -> NDArray[np.float32]:
    """Return how well each image matches a query, optionally edited by a method."""
    direction = _embed(engine, gallery, [query], prompts_of(column), method, strength)[0]
    scores: NDArray[np.float32] = (gallery.features @ direction).numpy()
    return scores


def _ranked(gallery: Gallery, column: str, scores: NDArray[np.float32]) -> NDArray[np.intp]:
    """Return the rows of the labelled images, best first, and only the best of near-duplicates.

    Raises:
        InvalidInputError: If no image has a label in the column.
    """
    labelled = np.flatnonzero(gallery.labels[column] != UNKNOWN)
    if not len(labelled):
        raise InvalidInputError(f"groups: no image has a label in the column {column!r}")
    # Ties keep the order of the images, as in `vldebias.metrics`.
    ranked = labelled[np.argsort(-scores[labelled], kind="stable")]
    if gallery.same_scene is None:
        return ranked
    is_same = (gallery.features @ gallery.features.T).numpy() >= gallery.same_scene
    distinct: list[int] = []
    for row in ranked:
        if not is_same[row, distinct].any():
            distinct.append(row)
    return np.array(distinct)


def _found(gallery: Gallery, column: str, ranked: NDArray[np.intp]) -> Found:
    """Return the first results of a ranking with their counts."""
    values, codes = np.unique(gallery.labels[column][ranked], return_inverse=True)
    top = min(TOP, len(ranked))
    groups = values[codes[:top]]
    return Found(
        rows=tuple(map(int, ranked[:top])),
        groups=tuple(map(str, groups)),
        counts={str(value): int((groups == value).sum()) for value in values},
        skew=float(max_skew(-np.arange(len(ranked)), codes, k=top)),
    )


def columns(engine: Engine, gallery_name: str) -> tuple[str, ...]:
    """Return the label columns that a search can count, starting with those with a prompt set."""
    if gallery_name == PHOTOGRAPHS:
        return ("gender",)
    if engine.embeddings is None:
        return ("gender", "age")
    names = tuple(open_gallery(engine, gallery_name).labels)
    return tuple(sorted(names, key=lambda name: (name not in ("gender", "race", "age"), name)))


def prompts_of(column: str) -> str:
    """Return the prompt set with a column's name, or "gender" if there is none."""
    return column if column in vldebias.list_prompts() else "gender"


@dataclass(frozen=True)
class Group:
    """Store one group's accuracy before and after, with 95% Wilson intervals.

    Attributes:
        is_worse: whether the interval of the paired change excludes zero.
    """

    name: str
    n: int
    before: tuple[float, float, float]
    after: tuple[float, float, float]
    is_worse: bool


def classify(engine: Engine, method: object) -> tuple[list[Group], list[int], list[int], Gallery]:
    """Classify birds before and after a method is attached.

    Returns:
        The accuracy of the four groups, worst first; the rows that only the method classifies
        correctly; the rows that only the method misclassifies; and the gallery.

    Raises:
        InvalidInputError: If a method is unknown.
    """
    chosen = check_choice(method, METHODS, "method")
    gallery = engine.once("birds", lambda: _world(engine, "birds"))
    label = gallery.labels["label"]
    place = gallery.labels["place"]
    right_before = _right(engine, gallery, None)
    right_after = _right(engine, gallery, chosen)
    groups = []
    for bird in np.unique(label):
        for ground in np.unique(place):
            rows = (label == bird) & (place == ground)
            before = _accuracy(right_before[rows])
            after = _accuracy(right_after[rows])
            change = right_after[rows].astype(int) - right_before[rows]
            is_worse = bootstrap_interval(change).high < 0
            groups.append(Group(f"{bird} on {ground}", int(rows.sum()), before, after, is_worse))
    put_right = np.flatnonzero(~right_before & right_after).tolist()
    put_wrong = np.flatnonzero(right_before & ~right_after).tolist()
    worst_first = sorted(groups, key=lambda group: group.before[0])
    return worst_first, put_right, put_wrong, gallery


def _right(engine: Engine, gallery: Gallery, method: str | None) -> NDArray[np.bool_]:
    """Return a mask of the birds that are classified correctly, with or without a method."""
    texts = _embed(engine, gallery, BIRDS, "waterbirds", method)
    answers = (gallery.features @ texts.T).argmax(dim=1).numpy()
    return np.array(["landbird", "waterbird"])[answers] == gallery.labels["label"]


def _accuracy(right: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Return the share of correct answers with its interval."""
    n = len(right)
    count = int(right.sum())
    return (count / n, *wilson_interval(count, n))
