"""Create a small world of features with a strong spurious direction, to test group robustness."""

from typing import Any

import numpy as np
import torch

from vldebias.data import Embeddings, Labels
from vldebias.hosts import TextTable
from vldebias.measure.rows import TaskResult
from vldebias.prompts import PromptSet
from vldebias.study.tasks.groups import GroupsTask

DIM = 16
NAMES = ("landbird", "waterbird")
PLACES = ("land", "water")
PROMPTS = PromptSet(
    name="birds",
    variants=tuple(tuple(f"a {bird} on {place}" for place in PLACES) for bird in NAMES),
    spurious=("a land background", "a water background", "a sky"),
    classes=tuple(f"a {bird}" for bird in NAMES),
    class_names=NAMES,
    attributes={"land": ("land",), "water": ("water",)},
    stated_words=("land", "water"),
)
AXES = torch.linalg.qr(torch.randn(DIM, DIM, generator=torch.Generator().manual_seed(5)))[0]
BIRD = AXES[0]
PLACE = AXES[1]
REST = AXES[2]
SKY = AXES[3]


def texts(**changes: torch.Tensor) -> TextTable:
    """Return text embeddings. Class prompts lean towards a place; spurious prompts and pairs reveal
    that direction."""
    rows = {"a sky": SKY, **changes}
    for sign, bird, place in ((-1, *("landbird", "land")), (1, *("waterbird", "water"))):
        rows[f"a {bird}"] = REST + 0.5 * sign * BIRD + 0.8 * sign * PLACE
        rows[f"a {place} background"] = SKY + sign * PLACE
        rows[f"a photo of a {place}"] = REST + 0.3 * SKY + sign * PLACE
        for place_sign, where in ((-1, "land"), (1, "water")):
            rows[f"a {bird} on {where}"] = REST + 0.5 * sign * BIRD + place_sign * PLACE
    return TextTable(rows, "a made-up model")


def birds(n: int = 400, seed: int = 0, correlation: float = 0.5, noise: float = 0.6) -> Embeddings:
    """Return n images whose features show the bird weakly and the place strongly."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 2, n)
    place = np.where(rng.random(n) < correlation, label, 1 - label)
    signs = torch.from_numpy(np.stack([label, place], 1) * 2.0 - 1).float()
    clean = REST + signs[:, :1] * 0.5 * BIRD + signs[:, 1:] * 0.7 * PLACE
    features = clean + noise / DIM**0.5 * torch.from_numpy(rng.standard_normal((n, DIM))).float()
    labels = {"label": Labels(label, NAMES), "place": Labels(place, PLACES)}
    origin = {"data": "made up", "split": "test"}
    return Embeddings(features.numpy(), tuple(f"{i}.png" for i in range(n)), labels, about=origin)


def measure(images: Embeddings, **settings: Any) -> list[TaskResult]:
    """Return the blocks from `GroupsTask` on images.

    given: Fields of the task and inputs to its `measure`, including splits.
    """
    inputs = {
        name: settings.pop(name)
        for name in ("train", "val", "reference", "edits", "progress")
        if name in settings
    }
    fields = {
        "name": "birds",
        "title": "Birds",
        "data": {"name": "given"},
        "attribute": PROMPTS,
        "resamples": 200,
    }
    fields |= {name: {"name": "given"} for name in ("train", "val") if name in inputs}
    fields |= {"label": "label", "spurious": "place"}
    task = GroupsTask.build(fields | settings)
    task.check_sources(task.splits())
    return task.measure(images, texts(), **inputs)
