"""Provide searches for experiments, each with an attribute, a prompt set, queries and a gallery.

The reference is unlabelled and does not share images with the gallery.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from eval.experiments import embeddings
from vldebias.data import Embeddings
from vldebias.hosts import Host
from vldebias.prompts import PromptSet, load_prompts, make_prompt_set

CELLS = Path(__file__).with_name("search_cells.yaml")
REFERENCE = 200  # maximum number of reference images


@dataclass(frozen=True)
class Cell:
    """A search with queries, a gallery, a prompt set and a reference.

    `prior` is "uniform" for even galleries and "dataset" otherwise.
    """

    family: str
    name: str
    column: str
    prompt_set: PromptSet
    queries: tuple[str, ...]
    gallery: Embeddings
    reference: Embeddings
    texts: Host
    prior: str = "uniform"


def miniature(draw: int) -> Iterator[Cell]:
    """Yield cells with the miniature's portraits."""
    content = yaml.safe_load(CELLS.read_text())
    texts, portraits = embeddings.miniature()
    images = portraits("portraits", n=1500, seed=9002, balanced=True)
    # The reference is not balanced, but has the natural proportions.
    reference = portraits("portraits", n=REFERENCE, seed=9013 + draw, balanced=False)
    own = {name: _own_set(name, definition) for name, definition in content["sets"].items()}
    for family in content["cells"]:
        for name in family["sets"]:
            prompt_set = own.get(name) or load_prompts(name)
            for queries, gallery in family["searches"]:
                rng = np.random.default_rng([draw, len(name), len(queries), len(gallery)])
                rows = _rows(images, family["column"], content["galleries"][gallery], rng)
                yield Cell(
                    family=f"miniature, {family['column']}",
                    name=f"{name}; {queries}; {gallery}",
                    column=family["column"],
                    prompt_set=prompt_set,
                    queries=tuple(load_prompts(content["queries"][queries]).classes),
                    gallery=images[rows],
                    reference=reference,
                    texts=texts,
                    prior="uniform" if gallery == "even" else "dataset",
                )


def _own_set(name: str, definition: Mapping[str, Any]) -> PromptSet:
    """Return a set from the file, with the ten concepts in a different set as classes."""
    prompt_set = make_prompt_set(
        name, definition["attribute"], definition["concepts"], definition["templates"]
    )
    classes = tuple(load_prompts(definition["classes"]).classes) if definition["classes"] else ()
    return replace(prompt_set, spurious=(), classes=classes, class_names=classes)


def _rows(
    images: Embeddings, column: str, shares: Sequence[float], rng: np.random.Generator
) -> NDArray[np.intp]:
    """Sample rows with given shares of a column's values, of which the last is for all others."""
    codes = images.column(column).codes
    values = [value for value in np.unique(codes) if value >= 0]
    weights = [shares[min(place, len(shares) - 1)] for place in range(len(values))]
    members = [rng.permutation(np.flatnonzero(codes == value)) for value in values]
    unit = min(len(rows) / weight for rows, weight in zip(members, weights, strict=True))
    parts = [rows[: int(unit * weight)] for rows, weight in zip(members, weights, strict=True)]
    return np.sort(np.concatenate(parts))
