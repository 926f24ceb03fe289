"""The miniature world for eval/beyond.py: birds to classify, portraits to retrieve; fitted on other images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from beyond_methods import LOSS, Row, image_methods
from torch import Tensor

from vldebias.data import Embeddings, Labels
from vldebias.equalise import Reference
from vldebias.evaluation.intervals import Measured, figures, worst_group
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Protocol
from vldebias.evaluation.retrieval.scores import scores
from vldebias.evaluation.retrieval.skew import Gallery, Rules
from vldebias.evaluation.texts import Texts
from vldebias.metrics.rankings import rankings
from vldebias.prompts import PromptSet, load_prompts

__all__ = ["PORTRAITS", "Worlds", "birds", "load_worlds", "portraits"]

IMAGES, REFERENCE, K, K_PRECISION = 4000, 2000, 100, 20
SEEDS = {"birds": (9001, 9011), "portraits": (9002, 9013)}  # measured on, fitted on


@dataclass(frozen=True)
class Retrieval:
    """A column to be fair in, the prompt set of the projection, and the set whose queries are asked."""

    column: str
    prompts: str
    queries: str


PORTRAITS = {
    "portraits gender": Retrieval("gender", "professions-gender", "professions-gender"),
    "portraits gender, concepts": Retrieval("gender", "professions-gender", "fairface-gender"),
    "portraits tone": Retrieval("tone", "skin-tone", "skin-tone"),
    "portraits age": Retrieval("age", "fairface-age", "professions-gender"),
}


@dataclass(frozen=True)
class Worlds:
    """The model's texts, and for each world the features that are measured and those that are fitted on."""

    texts: Texts
    measured: Mapping[str, Embeddings]
    reference: Mapping[str, Embeddings]


def load_worlds(images: int = IMAGES, reference: int = REFERENCE) -> Worlds:
    """Rendered and embedded, or read from the cache of the package.

    The images that are measured on have no correlation; those that are fitted on have the world's own.
    """
    from vldebias.data.cache import embed_images
    from vldebias.hosts.images import image_encoder
    from vldebias.miniature import load_clip
    from vldebias.miniature.data import open_world

    model, preprocess, tokenizer = load_clip()
    encoder = image_encoder(model, preprocess)

    def features(world: str, n: int, seed: int, balanced: bool) -> Embeddings:
        return embed_images(open_world(world, n=n, seed=seed, balanced=balanced), encoder)

    return Worlds(
        Texts(model, tokenizer),
        {world: features(world, images, seeds[0], True) for world, seeds in SEEDS.items()},
        {world: features(world, reference, seeds[1], False) for world, seeds in SEEDS.items()},
    )


def birds(worlds: Worlds) -> Part:
    """Landbird or waterbird; the place is spurious. Intervals over images."""
    prompts, test = load_prompts("waterbirds"), worlds.measured["birds"]
    rows = image_methods(worlds.texts.host, prompts, reference(worlds, "birds"))
    label, place = test.column("label"), test.column("place")
    groups = label.codes * len(place.names) + place.codes
    images, classes = test.normalised().double(), worlds.texts.embed(prompts.classes)
    right = {name: _right(row, classes, images, label) for name, row in rows.items()}
    kept = {name: (row.of_texts(classes) * classes).sum(1).numpy() for name, row in rows.items()}
    n = {"images": len(test), "smallest group": int(np.bincount(groups).min())}
    found = [
        *figures(Measured("birds", "worst_group", "higher", n, right, worst_group, (groups,))),
        *figures(Measured("birds", "average", "higher", n, right)),
        *figures(Measured("birds", "query_cosine", "higher", {"classes": len(classes)}, kept)),
    ]
    told = "Zero-shot landbird or waterbird on renders without correlation; the place is spurious"
    return Part(found, _protocol(worlds, "birds", "birds", told, prompts, rows, n))


def _right(row: Row, classes: Tensor, images: Tensor, label: Labels) -> np.ndarray:
    return (scores(row.of_texts(classes), row.of_images(images)).argmax(0) == label.codes).astype(float)


def portraits(worlds: Worlds, task: str) -> Part:
    """Skew of the first portraits for queries that no projection was fitted on. Intervals over queries."""
    setting, test = PORTRAITS[task], worlds.measured["portraits"]
    prompts, asked = load_prompts(setting.prompts), load_prompts(setting.queries)
    rows = image_methods(worlds.texts.host, prompts, reference(worlds, "portraits"), top=K / len(test))
    named = asked.held_out_class_names or asked.class_names
    queries = worlds.texts.embed(asked.held_out_classes or asked.classes)
    gallery = Gallery(test.column(setting.column), Rules((K,), "uniform", None, "stable", 2000, 0))
    images = test.normalised().double()
    skew, precision, cosine = {}, {}, {}
    for name, row in rows.items():
        ranked = rankings(scores(row.of_texts(queries), row.of_images(images)))
        skew[name] = gallery.values(ranked)[f"max_skew@{K}"]
        cosine[name] = (row.of_texts(queries) * queries).sum(1).numpy()
        precision[name] = _precision(ranked, test.column("profession"), named)
    drawn = gallery.random()[f"max_skew@{K}"]
    skew["random"] = np.random.default_rng(0).choice(drawn, len(queries))
    n = {"queries": len(queries), "images": len(test)}
    found = [
        *figures(Measured(task, f"max_skew@{K}", "lower", n, skew)),
        *figures(Measured(task, "query_cosine", "higher", n, cosine)),
    ]
    if next(iter(precision.values())) is not None:
        found += figures(Measured(task, f"precision@{K_PRECISION}", "higher", n, precision))
    told = f"Retrieval of portraits without correlation: skew in {setting.column}, queries that were not fitted on"
    return Part(found, _protocol(worlds, task, "portraits", told, prompts, rows, n))


def _precision(ranked: np.ndarray, profession: Labels, named: tuple[str, ...]) -> np.ndarray | None:
    """Share of the first images (q,) that show the profession asked for; None where queries name none."""
    if not set(named) <= set(profession.names):
        return None
    wanted = np.array([profession.names.index(name) for name in named])
    return (profession.codes[ranked[:, :K_PRECISION]] == wanted[:, None]).mean(axis=1)


def reference(worlds: Worlds, world: str) -> Reference:
    """Images that are not measured on, without their labels."""
    return Reference(torch.from_numpy(worlds.reference[world].features.astype(np.float32)))


def _protocol(
    worlds: Worlds, task: str, world: str, told: str, prompts: PromptSet, rows: Mapping[str, Row], n: dict[str, int]
) -> Protocol:
    measured, fitted = SEEDS[world]
    settings: dict[str, Any] = {
        "k": K,
        "prior": "uniform",
        "fitted on": f"{len(worlds.reference[world])} renders with the world's correlations, seed {fitted}, no labels",
        "loss of bounded": LOSS,
        "keep_stated": False,
        "resamples": 2000,
    }
    return Protocol(
        task=task,
        title=f"Miniature {task}",
        description=f"{told}.",
        model="miniature CLIP",
        fingerprint=worlds.texts.host.fingerprint(),
        prompts=prompts.name,
        prompts_hash=prompts.hash,
        split=f"{world}, {len(worlds.measured[world])} renders, seed {measured}",
        methods={name: row.about() for name, row in rows.items()},
        seeds=[measured],
        n=n,
        settings=settings,
    )
