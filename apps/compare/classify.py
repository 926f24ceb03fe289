"""A picture and texts: the scores of the classes before and after, and how classes lean to the spurious (Table 7.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import ImageData, decode
from vldebias.errors import InvalidInputError
from vldebias.evaluation.judges import logit_scale
from vldebias.hosts.images import image_encoder
from vldebias.methods import Boundary, with_offset

from .drawing import AFTER, BEFORE
from .engine import MINIATURE, Engine
from .retrieve import gallery_of
from .settings import Mitigation, check_lines

CLASSES = "This is a picture of a landbird.\nThis is a picture of a waterbird."
SPURIOUS = "This is a land background.\nThis is a water background."
KINDS = {"PNG": b"\x89PNG\r\n\x1a\n", "JPEG": b"\xff\xd8\xff", "WebP": b"RIFF"}
LARGEST_UPLOAD = 10 * 2**20
MOST_PIXELS = 25_000_000  # of an upload: 75 MB when decoded, whatever the file weighs
MOST_UPLOADS = 32
EXAMPLE_SEED, RENDERS = 9204, 64  # among its pictures is a waterbird on land that the miniature CLIP mistakes
EXAMPLES = ("a landbird on land", "a landbird on water", "a waterbird on land", "a waterbird on water")


@dataclass(frozen=True, eq=False)
class Batch:
    """Unlabelled pictures that say where the boundary between two classes lies: features (n, d), L2-normalised."""

    name: str
    features: Tensor


@dataclass(frozen=True, eq=False)
class Classification:
    """Scores by side.

    scores: side -> (classes,) softmax over the classes of cosine x the model's logit scale; with `boundary` those of
    the side "mitigated" have its offset. cosines: side -> (classes, spurious) of a class prompt, projected on the side
    "mitigated", with a spurious prompt as it is. boundary: as the pictures named by `batch` see it.
    """

    picture: Image.Image
    classes: tuple[str, ...]
    spurious: tuple[str, ...]
    scores: Mapping[str, NDArray[np.float64]]
    cosines: Mapping[str, NDArray[np.float64]]
    stated: tuple[str, ...]
    notes: tuple[str, ...]
    model: str
    boundary: Boundary | None = None
    batch: str = ""


def read_upload(data: object) -> Image.Image:
    """The picture in the bytes that a visitor sent.

    Raises:
        InvalidInputError: no bytes, too many, another kind than PNG, JPEG or WebP, too many pixels, or damaged.
    """
    if not isinstance(data, bytes) or not data:
        raise InvalidInputError("picture: none was sent; choose a PNG, JPEG or WebP file, or an example")
    if len(data) > LARGEST_UPLOAD:
        raise InvalidInputError(
            f"picture: {len(data) / 2**20:.0f} MiB; the most is {LARGEST_UPLOAD // 2**20} MiB, so send a smaller one"
        )
    webp = data[:4] == b"RIFF" and data[8:12] == b"WEBP"
    if not (webp or any(data.startswith(KINDS[kind]) for kind in ("PNG", "JPEG"))):
        raise InvalidInputError(f"picture: expected {', '.join(KINDS)}, got a file that begins with {data[:12]!r}")
    try:
        return decode(data, MOST_PIXELS)
    except OSError as error:
        raise InvalidInputError(f"picture: it cannot be read: {error}; save it anew and send that") from error


@cache
def example(name: str) -> Image.Image:
    """A picture of the miniature world.

    Raises:
        InvalidInputError: a name that is not among EXAMPLES.
    """
    if name not in EXAMPLES:
        raise InvalidInputError(f"example: expected one of {', '.join(EXAMPLES)}, got {name!r}")
    data = _renders()
    kind, place = name.removeprefix("a ").split(" on ")
    labels = zip(data.labels["label"].codes, data.labels["place"].codes, strict=True)
    wanted = (data.labels["label"].names.index(kind), data.labels["place"].names.index(place))
    return data.read(next(i for i, found in enumerate(labels) if found == wanted))


@cache
def _renders() -> ImageData:
    """The pictures that the examples are among."""
    from vldebias.miniature.data import open_world

    return open_world("birds", n=RENDERS, seed=EXAMPLE_SEED, balanced=True)


def batch(engine: Engine, uploads: Sequence[bytes]) -> Batch:
    """The pictures at hand that are most like the one to be classified: they say where the boundary lies.

    Beside an example (no upload) those that it is among; several uploads themselves; beside a single one the gallery,
    where this model embedded it.

    Raises:
        InvalidInputError: too many uploads, one that cannot be read, a single one without such a gallery.
    """
    if len(uploads) > MOST_UPLOADS:
        raise InvalidInputError(f"pictures: {len(uploads)}; the most is {MOST_UPLOADS}, so send fewer")
    with engine.lock:
        if not uploads:
            data = _renders()
            rows = engine.once("renders", lambda: torch.cat([_embed(engine, data.read(i)) for i in range(RENDERS)]))
            return Batch("the miniature birds that the examples are among", rows)
        if len(uploads) > 1:  # one is decoded at a time: they may be large
            return Batch("your pictures", torch.cat([_embed(engine, read_upload(one)) for one in uploads]))
        if (engine.embeddings is None) != (engine.model_name == MINIATURE):
            raise InvalidInputError(
                "offset: one picture alone does not say where the boundary lies; upload several that you want to "
                "classify, the first of them is shown"
            )
        gallery = gallery_of(engine)
        return Batch(f"the gallery, {gallery.name}", gallery.features.double())


def _embed(engine: Engine, picture: Image.Image) -> Tensor:
    """(1, d), L2-normalised."""
    loaded = engine.clip()
    encoder = engine.once("encoder", lambda: image_encoder(loaded.host, loaded.preprocess, name=loaded.name))
    return normalize(encoder.encode([picture]).double(), dim=-1)


def classify(
    engine: Engine,
    picture: Image.Image,
    classes: object,
    spurious: object,
    mitigation: Mitigation,
    seen: Batch | None = None,
) -> Classification:
    """Class scores of a picture without and with the projection; with `seen` the boundary is put back as well.

    P0 is of the spurious prompts as they are written here, the pairs are those of the attributes of `mitigation`. The
    model is never attached to: its texts are projected afterwards, as an attachment would.

    Raises:
        InvalidInputError: fewer than two classes or no spurious prompt; `seen` and more than two classes.
    """
    named, leaned = check_lines(classes, "class prompts", 2), check_lines(spurious, "spurious prompts", 1)
    if seen is not None and len(named) != 2:
        raise InvalidInputError(f"offset: it is for the boundary between two classes, here are {len(named)}; untick it")
    texts, loaded = engine.texts(), engine.clip()
    first, *others = mitigation.sets
    sets = (replace(first, spurious=leaned), *(replace(one, spurious=()) for one in others))
    with engine.lock:
        fitted = engine.fit_on(texts.host, "model", mitigation, sets)
        projection = next(iter(fitted.projections.values()))
        image = _embed(engine, picture)
        changed = texts.under(named, projection, strength=mitigation.strength, keep_stated=mitigation.keep_stated)
        sides = {BEFORE: texts.embed(named), AFTER: changed}
        columns = texts.embed(leaned)
    scores = {side: image @ rows.T for side, rows in sides.items()}
    boundary = None
    if seen is not None:
        before, after = (seen.features @ rows.T for rows in (sides[BEFORE], sides[AFTER]))
        boundary = Boundary.of((named[0], named[1]), before, after)
        scores[AFTER] = with_offset(scores[AFTER], boundary.offset)
    scale = logit_scale(loaded.host)
    return Classification(
        picture=picture,
        classes=named,
        spurious=leaned,
        scores={side: (scale * cosines).softmax(-1)[0].numpy() for side, cosines in scores.items()},
        cosines={side: (rows @ columns.T).numpy() for side, rows in sides.items()},
        stated=tuple(dict.fromkeys(word for one in named for word in mitigation.stated(one))),
        notes=fitted.notes,
        model=loaded.name,
        boundary=boundary,
        batch="" if seen is None else seen.name,
    )
