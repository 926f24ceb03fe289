"""Load the photographs, text and counts for measuring the package's claims.

They are not part of the project, because their licences permit only research. They are loaded from
the folder in $VLDEBIAS_REAL, or from ../shared/real next to the checkout:

    photos/   features of photographs from a small image-text model with two trained heads, with
              group labels, and vectors for all packaged prompts and for various kinds of queries
    sd35/     human counts of images from Stable Diffusion 3.5 (MIT)
    celeba1000_vitb32_openai.npz   CLIP embeddings of CelebA (`eval.experiments.embeddings`)

Results may contain numbers, but not features, text or file names from `photos/`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.intp]
Strings = NDArray[np.str_]

OLD = 50  # minimum age in years for a face to count as old
YOUNG = 35  # maximum age in years for a face to count as young
GALLERIES = {"flickr": "flickr_dev", "men and women": "mw_dev", "faces": "utk_dev"}


def folder() -> Path:
    """Return the path of the real data, which may not exist."""
    default = Path(__file__).resolve().parents[2].parent / "shared" / "real"
    return Path(os.environ.get("VLDEBIAS_REAL", default))


def is_present(part: str = "photos") -> bool:
    """Return whether a part of the real data exists, and print a note on stderr if not."""
    place = folder() / part
    if place.exists():
        return True
    print(
        f"SKIPPED: {place} is missing; set VLDEBIAS_REAL to the folder that holds it",
        file=sys.stderr,
    )
    return False


def unit(rows: NDArray[Any]) -> Floats:
    """Scale rows (..., d) to length 1."""
    wide = np.asarray(rows, np.float64)
    scaled = wide / np.linalg.norm(wide, axis=-1, keepdims=True)
    return scaled.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Photographs:
    """Features (n, d) of photographs, and labels by column, which are "" if unknown."""

    name: str
    features: Floats
    labels: Mapping[str, Strings]

    def take(self, rows: Rows) -> Photographs:
        """Return some of the photographs."""
        labels = {column: values[rows] for column, values in self.labels.items()}
        return Photographs(self.name, self.features[rows], labels)

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, eq=False)
class SmallModel:
    """A small image-text model that consists of two frozen public towers with trained linear heads.

    `scale` is the learned factor for cosines before a softmax (1 / temperature).
    """

    image_head: Floats  # (1280, 256)
    text_head: Floats  # (384, 256)
    image_mean: Floats  # (1280,)
    scale: float

    def images(self, before: NDArray[Any]) -> Floats:
        """Return embeddings (n, 256) for pooled image features (n, 1280)."""
        return unit((np.asarray(before, np.float32) - self.image_mean) @ self.image_head)

    def texts(self, before: NDArray[Any]) -> Floats:
        """Return embeddings (n, 256) for sentence vectors (n, 384)."""
        return unit(np.asarray(before, np.float32) @ self.text_head)


def _arrays(name: str) -> dict[str, NDArray[Any]]:
    """Return the arrays in a file in `photos/`."""
    with np.load(folder() / "photos" / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@cache
def small_model() -> SmallModel:
    """Return the model that embedded the photographs and the text."""
    heads = _arrays("heads")
    return SmallModel(
        image_head=heads["image"].astype(np.float32),
        text_head=heads["text"].astype(np.float32),
        image_mean=heads["mean"].astype(np.float32),
        scale=float(heads["scale"]),
    )


@cache
def texts() -> dict[str, Floats]:
    """Return the embeddings (256,) of every packaged prompt and of all kinds of queries."""
    table = dict[str, Floats]()
    for name in ("texts", "kinds"):
        arrays = _arrays(name)
        rows = small_model().texts(arrays["before"])
        table.update(zip(map(str, arrays["texts"]), rows, strict=True))
    return table


@cache
def queries() -> dict[str, tuple[str, ...]]:
    """Return the queries by kind, such as adjectives, looks, professions and activities."""
    kinds: dict[str, list[str]] = {}
    from vldebias import load_prompts

    listed = list(map(str, _arrays("texts")["texts"]))
    prompt_set = load_prompts("professions-gender")
    professions = (*prompt_set.classes, *prompt_set.held_out_classes)
    kinds["professions"] = [text for text in professions if text in listed]
    bare = {f"A photo of {text}." for text in listed if text.startswith("a person ")}
    kinds["activities"] = [text for text in listed if text in bare]
    arrays = _arrays("kinds")
    for kind, text in zip(arrays["kind"], arrays["texts"], strict=True):
        kinds.setdefault(str(kind), []).append(str(text))
    return {kind: tuple(members) for kind, members in kinds.items()}


@cache
def galleries() -> dict[str, Photographs]:
    """Return photographs by name, with labels for gender and, for faces, also age and race."""
    return {name: photographs(file, name) for name, file in GALLERIES.items()}


def photographs(file: str, name: str = "") -> Photographs:
    """Return the photographs in a file in `photos/` with their labels."""
    arrays = _arrays(file)
    labels = {"gender": arrays["gender"].astype(str)}
    if "age" in arrays:
        years = arrays["age"].astype(int)
        age = np.where(years >= OLD, "old", np.where(years <= YOUNG, "young", ""))
        labels["age"] = age.astype(str)
    if "race" in arrays:
        race = arrays["race"].astype(str)
        labels["race"] = np.where(race == "Others", "", race).astype(str)
    return Photographs(name or file, unit(arrays["after"]), labels)


def split(photos: Photographs, column: str, draw: int) -> tuple[Photographs, Photographs]:
    """Return an even gallery, and reference photographs that are not in it.

    The reference is a third of all photographs, sampled by `draw`. From the others, the gallery
    contains equally many for each value.
    """
    rng = np.random.default_rng([draw, len(photos)])
    order = rng.permutation(len(photos))
    cut = len(order) // 3
    reference, rest = order[:cut], order[cut:]
    labels = photos.labels[column][rest]
    members = [rest[labels == value] for value in np.unique(labels) if value]
    size = min(map(len, members))
    gallery = np.concatenate([rng.permutation(rows)[:size] for rows in members])
    return photos.take(np.sort(gallery)), photos.take(np.sort(reference))


def pairs_before_heads(part: str) -> tuple[Floats, Floats]:
    """Return the centred features (n, 1280) and first captions' vectors (n, 384).

    They are the inputs for training heads on Flickr8k, and `part` is "train" or "dev".
    """
    arrays = _arrays(f"flickr_{part}")
    images = arrays["before"].astype(np.float32) - small_model().image_mean
    return images, unit(_arrays(f"captions_{part}")["before"][:, 0])


def held_out_captions() -> tuple[Floats, Floats]:
    """Return centred features (n, 1280) and both captions' vectors (n, 2, 384).

    They are those of the Flickr8k photographs that were held out from training the heads.
    """
    images, _ = pairs_before_heads("dev")
    return images, unit(_arrays("captions_dev")["before"])


def catalogue_titles() -> tuple[Floats, Strings, Floats]:
    """Return centred features (n, 1280), titles and their vectors (n, 384) of a new domain.

    They are the photographs of the US Farm Security Administration.
    """
    arrays = _arrays("fsa")
    images = arrays["before"].astype(np.float32) - small_model().image_mean
    return images, arrays["titles"].astype(str), unit(arrays["captions_before"])


def text_vectors() -> dict[str, Floats]:
    """Return the MiniLM vectors (384,) of every packaged prompt and all queries."""
    table = dict[str, Floats]()
    for name in ("texts", "kinds"):
        arrays = _arrays(name)
        table.update(zip(map(str, arrays["texts"]), unit(arrays["before"]), strict=True))
    return table


@cache
def caption_index() -> tuple[dict[str, Floats], Photographs]:
    """Return the vectors (384,) of every packaged prompt and all queries, and a text index.

    The index contains the MiniLM vector of one caption per Flickr8k photograph, with the gender
    that all captions of the photograph mention.
    """
    documents = unit(_arrays("captions_dev")["before"][:, 0])
    return text_vectors(), Photographs("captions", documents, photographs("flickr_dev").labels)
