"""Does what a projection gained survive fine-tuning, and what helps it to? The heads of the shipped CLIP, on birds.

python -m eval.experiments.run keep_projection

The two projections of the model learn by InfoNCE from the world's own captions, of which two fifths are another's, for
two epochs, as the tutorial's command has it. Read on balanced held-out birds, where class and place are independent:
without a projection, under the one that was fitted for the model as it shipped ("before"), and under one that is fitted
for the trained model ("after"). The arms train with it in the text path ("during"), with balanced groups, with Group
DRO, with the prompt pairs kept where they were; groups are class and place, by labels or by texts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from eval.experiments.cells import Cell, packed
from eval.experiments.experiment import Experiment
from eval.experiments.frozen_heads import FrozenHeads
from eval.experiments.small_clip import TEXTS, pixels
from eval.experiments.tensor_batches import TensorBatches
from vldebias.diagnostics import hidden_groups
from vldebias.miniature import birds
from vldebias.prompts import load_prompts
from vldebias.training.debiasing import TextDebias
from vldebias.training.loop import fit
from vldebias.training.monitor import TensorMonitor
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.pairs import mixture_noise
from vldebias.training.scores import image_features, text_features
from vldebias.training.settings import LoopSettings, LossSettings

IMAGES, HELD_OUT, HELD_OUT_SEED, BATCH, ETA, SET = 4000, 2000, 79, 256, 0.4, "waterbirds"
EPOCHS = 2
READ = {"zero-shot": "zero_shot_accuracy", "worst group": "zero_shot_worst_group"}


@lru_cache(maxsize=1)
def heads() -> FrozenHeads:
    return FrozenHeads()


@lru_cache(maxsize=6)
def learned(seed: int) -> tuple[Tensor, tuple[str, ...], Tensor, Tensor]:
    """Images before the projection, captions of which a share is another's, classes, places."""
    world = birds.sample(IMAGES, seed=3000 + seed)
    texts = mixture_noise(IMAGES, ETA, seed, world.captions).applied(world.captions)
    return heads().frozen_images(pixels(world)), texts, world.label, world.background


@lru_cache(maxsize=1)
def held_out() -> tuple[TensorMonitor, TensorMonitor]:
    """Of class and place, and of the species, which no prompt of the set names."""
    world = birds.sample(HELD_OUT, seed=HELD_OUT_SEED, balanced=True)
    images, classes = heads().frozen_images(pixels(world)), load_prompts(SET).classes
    kept: dict[str, Any] = {"groups": world.background, "queries": classes}
    return (
        TensorMonitor(images, labels=world.label, class_texts=classes, **kept),
        TensorMonitor(images, labels=world.species, class_texts=TEXTS),
    )


def _start() -> FrozenHeads:
    """The heads as they shipped; the table of texts stays."""
    found = heads()
    shipped = FrozenHeads()
    with torch.no_grad():
        found.model.visual.proj.copy_(shipped.model.visual.proj)
        found.model.text_projection.copy_(shipped.model.text_projection)
    return found


def by_texts(found: FrozenHeads, images: Tensor, labels: Tensor) -> Tensor:
    """The value of the set whose texts an image is nearest to, by the model as it shipped."""
    values = load_prompts(SET).by_value()
    texts = torch.stack([text_features(found, own, 64).mean(0) for own in values.values()])
    features = torch.cat([image_features(found, part) for part in images.split(500)])
    return torch.from_numpy(hidden_groups(features, labels.numpy(), "texts", texts=texts).parts().codes)


def work(cell: Cell) -> dict[str, Any]:
    """One training (none of the model as shipped) and what it is worth, under three projections."""
    settings, seed = dict(cell["settings"]), cell["seed"]
    images, texts, labels, places = learned(seed)
    found = _start()
    before = TextDebias(found, SET, every=1).fitted()
    if settings:
        groups = settings.pop("groups", None)
        if groups is not None:
            places = by_texts(found, images, labels) if groups == "texts" else places
            groups = labels * 2 + places
        how = {"keep_pairs": settings.pop("keep_pairs", 0.0), "during": settings.pop("during", False)}
        balance = settings.pop("balance", False)
        batches = TensorBatches(
            images, texts, tokenize=found.tokenize, groups=groups, balance=balance, batch_size=BATCH, seed=seed
        )
        loss = LossSettings(loss="info_nce", temperature=found.temperature, **settings)
        objective = build_objective(loss, temperature=found.temperature, items=IMAGES, groups=4)
        every = batches.per_epoch if how["during"] else 0
        debias = TextDebias(found, SET, every=every, keep=how["keep_pairs"], seed=seed) if any(how.values()) else None
        loop = LoopSettings(steps=EPOCHS * batches.per_epoch, batch_size=BATCH, lr=cell["lr"], seed=seed)
        fit(Trainee(found, objective, debias=debias), batches, loop)
    return read(found, before)


def read(found: FrozenHeads, before: Tensor) -> dict[str, Any]:
    """Zero-shot, worst group and skew, plain and under both projections; species under none."""
    classes, species = held_out()
    after = TextDebias(found, SET, every=1).fitted()
    figures: dict[str, Any] = {}
    for name, matrix in {"none": None, "before": before, "after": after}.items():
        edit: Any = None if matrix is None else (lambda z, p=matrix: z @ p.T.to(z.dtype))
        told = classes(found, edit)
        figures |= {f"{shown}, {name}": told[score] for shown, score in READ.items()}
        figures[f"skew, {name}"] = next(value for score, value in told.items() if score.startswith("max_skew"))
        rows = classes.rows(found, edit)["zero_shot_accuracy"].numpy()
        figures |= packed(f"zero-shot, {name}", rows)
    figures["species"] = species(found)["zero_shot_accuracy"]
    return figures


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Data and loop, for the protocol."""
    return {
        "model": "the shipped miniature CLIP, its two projections, over features of its frozen towers, at its own "
        "temperature",
        "images": f"{IMAGES} renders of the birds world per seed, captions as the world writes them, a share {ETA} "
        "drawn from all",
        "loop": f"{EPOCHS} epochs in batches of {BATCH}",
        "held out": f"{HELD_OUT} balanced renders, the same for all seeds",
        "projection": f"the default method, fitted for {SET}",
    }
