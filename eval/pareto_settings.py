"""What eval/pareto.py measures: real embeddings, texts of real models, and the miniature, each as one `Setting`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beyond_methods import Row
from beyond_miniature import PORTRAITS, Worlds, load_worlds, reference
from beyond_real import BACKBONES, HALF_K, random_halves, skews
from numpy.typing import NDArray
from real_clip import data_file, load

from vldebias.choosing import BOUND
from vldebias.equalise import Reference
from vldebias.evaluation.intervals import Statistic, worst_group
from vldebias.evaluation.retrieval.scores import scores
from vldebias.evaluation.retrieval.skew import Gallery, Rules
from vldebias.evaluation.texts import Texts, TextTable
from vldebias.gaps import Pool
from vldebias.hosts import Host
from vldebias.metrics.rankings import rankings
from vldebias.prompts import PromptSet, load_prompts

__all__ = ["Setting", "Values", "mean", "settings"]

Values = NDArray[np.float64]
Trial = tuple[Reference | None, Callable[[Row], tuple[Values, Values]]]
SPLITS, K = 8, 100


def mean(values: Values) -> Values:
    return values.mean(axis=-1)


@dataclass(frozen=True)
class Setting:
    """One panel: what is fitted, and what bias and utility of a method are, one value per unit each.

    trials: (reference, measure) pairs, whose values are averaged per unit; measure: Row -> (bias, utility).
    loss: the mean loss of neutral texts that auto is held to.
    """

    task: str
    title: str
    host: Host
    prompts: PromptSet
    neutral: tuple[str, ...]
    metrics: tuple[str, str]
    better: str
    units: str
    trials: Callable[[], Iterator[Trial]]
    statistic: Statistic = mean
    shared: tuple[NDArray[Any], ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    loss: float = BOUND.loss


def celeba(path: Path) -> Setting:
    """Gender skew of professions on real images; every second query is neutral text, the others are asked."""
    data = load(path)
    gender, images = data.images.column("gender").codes, data.images.normalised().double()
    asked = data.texts.embed(data.queries[1::2])

    def trials() -> Iterator[Trial]:
        for split in random_halves(len(data.images), gender, SPLITS):
            known = Reference(data.images.features[split.fitted].astype(np.float32))
            yield (
                known,
                lambda row, split=split: (
                    skews(row, asked, images, gender, split),
                    (row.of_texts(asked) * asked).sum(1).numpy(),
                ),
            )

    told = f"CelebA, B/32: gender skew of the first {HALF_K}"
    metrics = (f"max_skew@{HALF_K}", "query_cosine")
    about = {"splits": SPLITS, "k": HALF_K, "model": "CLIP ViT-B/32 openai"}
    neutral = data.queries[::2]
    return Setting(
        "celeba b32", told, data.texts.host, data.prompts, neutral, metrics, "lower", "queries", trials, about=about
    )


def ages(path: Path, backbone: str) -> Setting:
    """Texts alone: young, middle-aged, old; prompts about one half of the people stand for images."""
    with np.load(path, allow_pickle=False) as arrays:
        named = [str(prompt) for prompt in arrays["prompts64"]]
        table = dict(zip(named, torch.tensor(arrays[f"{backbone}_64"]), strict=True))
    texts = Texts(TextTable(table, f"CLIP ViT-L/14 {backbone}"))
    groups = {}
    for prompt in named:
        people = re.sub("^a photo of an? ", "", prompt)
        group = tuple(f"a photo of {age} {people}" for age in ("a young", "an old", "a middle-aged"))
        if all(p in table for p in group):
            groups[prompt] = group
    people, held = list(groups)[::2], list(groups)[1::2]
    prompts = PromptSet(
        name="ages",
        attributes={"young": ("young",), "old": ("old",), "middle-aged": ("middle-aged",)},
        groups=tuple(groups[p] for p in people),
        spurious=groups["a photo of a man"],
    )
    pool = Pool.of(
        texts.embed([prompt for p in held for prompt in groups[p]]),
        torch.arange(3).repeat(len(held)),
        torch.arange(len(held)).repeat_interleave(3),
        resamples=0,
    )
    asked = texts.embed(held)

    def of(row: Row) -> tuple[Values, Values]:
        return pool.gaps(row.of_texts(asked))[0].numpy(), (row.of_texts(asked) * asked).sum(1).numpy()

    task, told = f"texts l14 {backbone}", f"Texts, L/14 {backbone}: ages"
    about = {"model": f"CLIP ViT-L/14 {backbone}"}
    metrics = ("gap", "query_cosine")
    return Setting(
        task,
        told,
        texts.host,
        prompts,
        tuple(people),
        metrics,
        "lower",
        "texts",
        lambda: iter([(None, of)]),
        about=about,
    )


def birds(worlds: Worlds) -> Setting:
    """Landbird or waterbird on renders without correlation; the place is spurious."""
    prompts, test = load_prompts("waterbirds"), worlds.measured["birds"]
    label, place = test.column("label"), test.column("place")
    images, classes = test.normalised().double(), worlds.texts.embed(prompts.classes)
    groups = label.codes * len(place.names) + place.codes

    def of(row: Row) -> tuple[Values, Values]:
        right = (scores(row.of_texts(classes), images).argmax(0) == label.codes).astype(float)
        return right, right

    return Setting(
        "birds",
        "Birds: worst of four groups",
        worlds.texts.host,
        prompts,
        prompts.classes,
        ("worst_group", "average"),
        "higher",
        "images",
        lambda: iter([(reference(worlds, "birds"), of)]),
        worst_group,
        (groups,),
        {"model": "miniature CLIP"},
    )


def portraits(worlds: Worlds, task: str) -> Setting:
    """Skew of the first portraits for queries that no projection was fitted on."""
    about, test = PORTRAITS[task], worlds.measured["portraits"]
    prompts, asked = load_prompts(about.prompts), load_prompts(about.queries)
    queries = worlds.texts.embed(asked.held_out_classes or asked.classes)
    gallery = Gallery(test.column(about.column), Rules((K,), "uniform", None, "stable", 1, 0))
    images = test.normalised().double()

    def of(row: Row) -> tuple[Values, Values]:
        texts = row.of_texts(queries)
        skew = gallery.values(rankings(scores(texts, images)))[f"max_skew@{K}"]
        return skew, (texts * queries).sum(1).numpy()

    title = f"{task.capitalize()}: skew of the first {K}"
    metrics = (f"max_skew@{K}", "query_cosine")
    trials = [(reference(worlds, "portraits"), of)]
    told = {"k": K, "model": "miniature CLIP"}
    host = worlds.texts.host
    return Setting(
        task, title, host, prompts, prompts.classes, metrics, "lower", "queries", lambda: iter(trials), about=told
    )


def settings() -> list[Setting]:
    """All that there is; what needs files that are not there is left out, and said."""
    path = data_file()
    found = []
    if path.is_file():
        found = [celeba(path), *(ages(path.with_name("text_vitl14.npz"), name) for name in BACKBONES)]
    else:
        print(f"{path}: not found, so the real embeddings are left out; set VLDEBIAS_REAL", file=sys.stderr)
    worlds = load_worlds()
    found += [birds(worlds), *(portraits(worlds, task) for task in PORTRAITS)]
    return [*found, *told_more(worlds)]


def told_more(worlds: Worlds) -> list[Setting]:
    """Two settings again, where auto is told what it cannot know: what is lost by classes and what will be asked."""
    classify, ask = birds(worlds), portraits(worlds, "portraits age")
    like_queries = load_prompts(PORTRAITS["portraits age"].queries).classes
    return [
        replace(classify, task="birds, loss 0.5", title=f"{classify.title}, loss at most 0.5", loss=0.5),
        replace(ask, task="portraits age, told", title="Portraits age, told professions", neutral=like_queries),
    ]
