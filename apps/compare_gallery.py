"""The pictures that are retrieved from: an embedding file of the user, or portraits of the miniature world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.data import Embeddings
from vldebias.data.decoding import decode
from vldebias.errors import InvalidInputError
from vldebias.evaluation.texts import Texts, TextTable

if TYPE_CHECKING:
    from .compare_engine import Engine

__all__ = ["PictureGallery", "group_columns", "open_gallery"]

PORTRAITS, SEED = 2000, 9100
GROUPS = ("gender", "tone", "age")
MANY = 12  # groups that a chart can show


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


def open_gallery(engine: Engine) -> PictureGallery:
    """The gallery that the page was started with.

    Raises:
        InvalidInputError: a file that cannot be read, has no labels, or no text side.
    """
    return _miniature(engine) if engine.embeddings is None else _file(engine, engine.embeddings)


def group_columns(engine: Engine) -> tuple[str, ...]:
    """The columns that skew can be measured over, known before any model is loaded.

    Raises:
        InvalidInputError: a file that cannot be read, or has no such column.
    """
    return GROUPS if engine.embeddings is None else _columns(engine.embeddings, _loaded(engine.embeddings)[0])


def _loaded(path: Path) -> tuple[Embeddings, dict[str, Tensor] | None]:
    from vldebias.data.embedding_files import load_embeddings

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
    data = open_world("portraits", n=PORTRAITS, seed=SEED, balanced=True)
    encoder = image_encoder(model, preprocess, name="miniature")
    blocks = [encoder.encode([data.read(i) for i in range(s, s + 200)]) for s in range(0, PORTRAITS, 200)]
    features = torch.cat(blocks)
    embeddings = Embeddings(features.numpy(), data.ids, data.labels, data.captions)
    name = f"{PORTRAITS:,} portraits of the miniature world"
    return PictureGallery(name, embeddings, normalize(features, dim=1), Texts(model, tokenizer), data.read, GROUPS)


def _file(engine: Engine, path: Path) -> PictureGallery:
    embeddings, rows = _loaded(path)
    groups = _columns(path, embeddings)
    if engine.model_name != "miniature":
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
