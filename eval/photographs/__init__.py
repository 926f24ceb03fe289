"""Load the photographs, texts and counts on which the promises of the package are measured.

They are not part of the project, because their licences allow research only. They are read from the
folder in $VLDEBIAS_REAL, or from ../shared/real next to the checkout:

    photos/   features of photographs by a small image-text model with two trained heads, with
              group labels; vectors of all packaged prompts and of queries of other kinds
    sd35/     images of Stable Diffusion 3.5, counted by people (MIT)
    celeba1000_vitb32_openai.npz   CLIP embeddings of CelebA (`eval.experiments.embeddings`)

Results may hold figures. They must not hold features, texts or file names of `photos/`.
"""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping, Sequence
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
    """Return the path of the real data; it may not exist."""
    default = Path(__file__).resolve().parents[2].parent / "shared" / "real"
    return Path(os.environ.get("VLDEBIAS_REAL", default))


def is_present(part: str = "photos") -> bool:
    """Return whether a part of the real data exists; if not, print a note on stderr."""
    place = folder() / part
    if place.exists():
        return True
    print(
        f"SKIPPED: {place} is missing; set VLDEBIAS_REAL to the folder that holds it",
        file=sys.stderr,
    )
    return False


def unit(rows: NDArray[Any]) -> Floats:
    """Return rows (..., d) scaled to length 1."""
    wide = np.asarray(rows, np.float64)
    scaled = wide / np.linalg.norm(wide, axis=-1, keepdims=True)
    return scaled.astype(np.float32)


@dataclass(frozen=True, eq=False)
class Photographs:
    """Features (n, d) of photographs, and labels: column -> a value for each, "" if unknown."""

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
    """A small image-text model: two frozen public towers with a trained linear head each.

    scale: the learned factor of the cosines before a softmax (1 / temperature).
    """

    image_head: Floats  # (1280, 256)
    text_head: Floats  # (384, 256)
    image_mean: Floats  # (1280,)
    scale: float

    def images(self, before: NDArray[Any]) -> Floats:
        """Return embeddings (n, 256) of pooled image features (n, 1280)."""
        return unit((np.asarray(before, np.float32) - self.image_mean) @ self.image_head)

    def texts(self, before: NDArray[Any]) -> Floats:
        """Return embeddings (n, 256) of sentence vectors (n, 384)."""
        return unit(np.asarray(before, np.float32) @ self.text_head)


def _arrays(name: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of one file of `photos/`."""
    with np.load(folder() / "photos" / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


@cache
def small_model() -> SmallModel:
    """Return the model whose towers embedded the photographs and the texts."""
    heads = _arrays("heads")
    return SmallModel(
        image_head=heads["image"].astype(np.float32),
        text_head=heads["text"].astype(np.float32),
        image_mean=heads["mean"].astype(np.float32),
        scale=float(heads["scale"]),
    )


@cache
def texts() -> dict[str, Floats]:
    """Return text -> embedding (256,): every packaged prompt, and queries of all kinds."""
    table = dict[str, Floats]()
    for name in ("texts", "kinds"):
        arrays = _arrays(name)
        rows = small_model().texts(arrays["before"])
        table.update(zip(map(str, arrays["texts"]), rows, strict=True))
    return table


@cache
def queries() -> dict[str, tuple[str, ...]]:
    """Return kind -> queries: adjectives, looks, leaning activities, no person, neutral and so on,
    and "professions" and "activities" from the larger table."""
    kinds: dict[str, list[str]] = {}
    listed = list(map(str, _arrays("texts")["texts"]))
    kinds["professions"] = list(_professions(listed))
    bare = {f"A photo of {text}." for text in listed if text.startswith("a person ")}
    kinds["activities"] = [text for text in listed if text in bare]
    arrays = _arrays("kinds")
    for kind, text in zip(arrays["kind"], arrays["texts"], strict=True):
        kinds.setdefault(str(kind), []).append(str(text))
    return {kind: tuple(members) for kind, members in kinds.items()}


def _professions(listed: Sequence[str]) -> tuple[str, ...]:
    """Return the class prompts of the packaged set of professions, including held-out ones."""
    from vldebias import load_prompts

    prompts = load_prompts("professions-gender")
    professions = (*prompts.classes, *prompts.held_out_classes)
    return tuple(text for text in professions if text in listed)


@cache
def galleries() -> dict[str, Photographs]:
    """Return name -> photographs with labels for gender; faces also have age and race."""
    return {name: photographs(file, name) for name, file in GALLERIES.items()}


def photographs(file: str, name: str = "") -> Photographs:
    """Return the photographs in a file of `photos/` with their labels."""
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


def split(
    photos: Photographs, column: str, draw: int, values: Sequence[str] = ()
) -> tuple[Photographs, Photographs]:
    """Return an even gallery, and reference photographs that are not in it.

    A third of all photographs, sampled by `draw`, are the reference. From the others, the gallery
    contains as many of each value as of the rarest. values: those to keep; all by default.
    """
    rng = np.random.default_rng([draw, len(photos)])
    order = rng.permutation(len(photos))
    cut = len(order) // 3
    reference, rest = order[:cut], order[cut:]
    labels = photos.labels[column][rest]
    present = [value for value in np.unique(labels) if value]
    kept = [value for value in present if not values or value in values]
    members = [rest[labels == value] for value in kept]
    size = min(map(len, members))
    gallery = np.concatenate([rng.permutation(rows)[:size] for rows in members])
    return photos.take(np.sort(gallery)), photos.take(np.sort(reference))


@dataclass(frozen=True, eq=False)
class Captioned:
    """Photographs (n, d) with the embeddings (n, m, d) of m captions each."""

    photos: Photographs
    captions: Floats


@cache
def captioned(part: str = "dev") -> Captioned:
    """Return the Flickr8k photographs of a part, "dev" or "train", with their captions."""
    captions = small_model().texts(_arrays(f"captions_{part}")["before"])
    return Captioned(photographs(f"flickr_{part}", f"flickr, {part}"), captions)


def pairs_before_heads(part: str) -> tuple[Floats, Strings, Floats]:
    """Return Flickr8k photographs as inputs of heads: features (n, 1280) minus the mean of the
    training photographs, gender, and the vectors (n, 384) of the first captions.

    part: "train" or "dev".
    """
    arrays = _arrays(f"flickr_{part}")
    images = arrays["before"].astype(np.float32) - small_model().image_mean
    captions = unit(_arrays(f"captions_{part}")["before"][:, 0])
    return images, arrays["gender"].astype(str), captions


def text_vectors() -> dict[str, Floats]:
    """Return text -> vector (384,) of MiniLM for every packaged prompt and all queries."""
    table = dict[str, Floats]()
    for name in ("texts", "kinds"):
        arrays = _arrays(name)
        table.update(zip(map(str, arrays["texts"]), unit(arrays["before"]), strict=True))
    return table


def generated_counts() -> list[dict[str, str]]:
    """Return a row for each prompt of Stable Diffusion 3.5 with the human counts of its ten images;
    cells may be empty."""
    place = folder() / "sd35"
    with (place / "prompts.csv").open(encoding="utf-8-sig", newline="") as file:
        prompts = list(csv.DictReader(file))
    with (place / "labels.csv").open(encoding="utf-8-sig", newline="") as file:
        labels = list(csv.DictReader(file))
    return [{**prompt, **label} for prompt, label in zip(prompts, labels, strict=True)]


@cache
def caption_index() -> tuple[dict[str, Floats], Photographs]:
    """Return a real text index, and text -> vector (384,) of the same model for every packaged
    prompt and all queries.

    The index has the MiniLM vectors of one caption of each Flickr8k photograph, with the gender
    that all captions of the photograph name.
    """
    documents = unit(_arrays("captions_dev")["before"][:, 0])
    return text_vectors(), Photographs("captions", documents, photographs("flickr_dev").labels)
