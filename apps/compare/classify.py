"""A picture and texts: the scores of the classes before and after, and how classes lean to the spurious (Table 7.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import normalize

from vldebias.data import decode
from vldebias.errors import InvalidInputError
from vldebias.evaluation.judges import logit_scale
from vldebias.hosts.images import image_encoder

from .drawing import AFTER, BEFORE
from .settings import Mitigation, check_lines

if TYPE_CHECKING:
    from .engine import Engine

__all__ = [
    "CLASSES",
    "EXAMPLES",
    "KINDS",
    "LARGEST_UPLOAD",
    "SPURIOUS",
    "Classification",
    "classify",
    "example",
    "read_upload",
]

CLASSES = "This is a picture of a landbird.\nThis is a picture of a waterbird."
SPURIOUS = "This is a land background.\nThis is a water background."
KINDS = {"PNG": b"\x89PNG\r\n\x1a\n", "JPEG": b"\xff\xd8\xff", "WebP": b"RIFF"}
LARGEST_UPLOAD = 10 * 2**20
MOST_PIXELS = 25_000_000  # of an upload: 75 MB when decoded, whatever the file weighs
EXAMPLE_SEED = 9200
EXAMPLES = ("a landbird on land", "a landbird on water", "a waterbird on land", "a waterbird on water")


@dataclass(frozen=True, eq=False)
class Classification:
    """Scores by side.

    scores: side -> (classes,) softmax over the classes of cosine x the model's logit scale. cosines: side -> (classes,
    spurious) of a class prompt, projected on the side "mitigated", with a spurious prompt as it is.
    """

    picture: Image.Image
    classes: tuple[str, ...]
    spurious: tuple[str, ...]
    scores: Mapping[str, NDArray[np.float64]]
    cosines: Mapping[str, NDArray[np.float64]]
    stated: tuple[str, ...]
    notes: tuple[str, ...]
    model: str


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
    from vldebias.miniature.data import open_world

    data = open_world("birds", n=64, seed=EXAMPLE_SEED, balanced=True)
    kind, place = name.removeprefix("a ").split(" on ")
    labels = zip(data.labels["label"].codes, data.labels["place"].codes, strict=True)
    wanted = (data.labels["label"].names.index(kind), data.labels["place"].names.index(place))
    return data.read(next(i for i, found in enumerate(labels) if found == wanted))


def classify(
    engine: Engine, picture: Image.Image, classes: object, spurious: object, mitigation: Mitigation
) -> Classification:
    """Class scores of a picture without and with the projection.

    P0 is of the spurious prompts as they are written here, the pairs are those of the attributes of `mitigation`. The
    model is never attached to: its texts are projected afterwards, as an attachment would.

    Raises:
        InvalidInputError: fewer than two classes or no spurious prompt.
    """
    named, leaned = check_lines(classes, "class prompts", 2), check_lines(spurious, "spurious prompts", 1)
    texts, loaded = engine.texts(), engine.clip()
    first, *others = mitigation.sets
    sets = (replace(first, spurious=leaned), *(replace(one, spurious=()) for one in others))
    with engine.lock:
        fitted = engine.fit_on(texts.host, "model", mitigation, sets)
        projection = next(iter(fitted.projections.values()))
        encoder = engine.once("encoder", lambda: image_encoder(loaded.host, loaded.preprocess, name=loaded.name))
        image = normalize(encoder.encode([picture]).double(), dim=-1)
        changed = texts.under(named, projection, strength=mitigation.strength, keep_stated=mitigation.keep_stated)
        sides = {BEFORE: texts.embed(named), AFTER: changed}
        columns = texts.embed(leaned)
    scale = logit_scale(loaded.host)
    return Classification(
        picture=picture,
        classes=named,
        spurious=leaned,
        scores={side: (scale * image @ rows.T).softmax(-1)[0].numpy() for side, rows in sides.items()},
        cosines={side: (rows @ columns.T).numpy() for side, rows in sides.items()},
        stated=tuple(dict.fromkeys(word for one in named for word in mitigation.stated(one))),
        notes=fitted.notes,
        model=loaded.name,
    )
