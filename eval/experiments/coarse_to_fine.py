"""What the spread loss is for: labels of two coarse classes, and the 48 species in them that no label tells apart.

python -m eval.experiments.run coarse_to_fine

A small network is trained on frozen image features of the embedded CLIP, two augmented views of each bird, whose
classes (landbird, waterbird) alone are told, in the places where they mostly live. A supervised contrastive loss draws
a class to one point, and with it its species and its few birds in other places; InfoNCE knows no classes; the spread
loss is between. Read on other birds, of places that do not depend on the class, by ridge classifiers fitted on the
training birds: species from species' labels (coarse to fine), classes from classes' labels in their worst group, and
how collapsed the classes are (`vldebias.diagnostics.geometry`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from eval.experiments.cells import Cell
from eval.experiments.experiment import Experiment
from vldebias.data import Labels
from vldebias.diagnostics import geometry
from vldebias.diagnostics.folds import Folds, fold_numbers
from vldebias.hosts.towers import towers
from vldebias.losses import info_nce, spread
from vldebias.miniature import birds, load_clip
from vldebias.miniature.birds import Birds
from vldebias.training.augmentation import Augmentation

LEARNED, HELD_OUT, BATCH, LR, WIDTH, DIM = 1500, 1500, 256, 1e-3, 256, 64
T = 0.2
PENALTY = 1e-2  # of the ridge classifiers, relative to a column's variance
START = "frozen features"


def work(cell: Cell) -> dict[str, float]:
    """Figures after one training, and of the features that it began with ("frozen features: ...")."""
    seed = cell["seed"]
    views, learned, held_out = features(seed)
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(views.shape[2], WIDTH), nn.ReLU(), nn.Linear(WIDTH, DIM))
    optimiser = torch.optim.AdamW(net.parameters(), lr=LR, weight_decay=1e-2)
    for _ in range(cell["steps"]):
        rows = torch.randperm(LEARNED)[:BATCH]
        first, second = (normalize(net(view[rows]), dim=1) for view in views)
        alpha = cell["settings"]["alpha"]
        loss = (
            info_nce(first, second, temperature=T)
            if alpha is None
            else spread(first, second, learned[1]["label"][rows], alpha=alpha, temperature=T)
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        after = [(normalize(net(rows), dim=1), columns) for rows, columns in (learned, held_out)]
    began = figures(learned, held_out)
    return figures(*after) | {f"{START}: {name}": value for name, value in began.items()}


def figures(learned: tuple[Tensor, dict[str, Tensor]], held_out: tuple[Tensor, dict[str, Tensor]]) -> dict[str, float]:
    """Of features (n, d) with columns label, group and species, and of those of other birds."""
    species = _read(learned, held_out[0], "species") == held_out[1]["species"]
    right = (_read(learned, held_out[0], "label") == held_out[1]["label"]).double()
    groups = held_out[1]["group"]
    shape = geometry(held_out[0], Labels(held_out[1]["label"].numpy(), birds.CLASSES))
    return {
        "species": float(species.double().mean()),
        "class": float(right.mean()),
        "worst group": min(float(right[groups == group].mean()) for group in groups.unique()),
        "within classes": shape.within_variance,
        "effective rank": shape.effective_rank,
    }


def _read(learned: tuple[Tensor, dict[str, Tensor]], rows: Tensor, column: str) -> Tensor:
    """Classes (n,) of rows by a ridge classifier of the training birds."""
    codes = learned[1][column].numpy()
    unit = normalize(learned[0], dim=1)
    weight, bias = Folds.of(unit, fold_numbers(codes, 2, 0)).head(codes, int(codes.max()) + 1, PENALTY)
    return (normalize(rows, dim=1) @ weight.T + bias).argmax(1)


@lru_cache
def features(seed: int) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor]], tuple[Tensor, dict[str, Tensor]]]:
    """Two augmented views (2, n, d) of the birds that a seed learns from, these as they are, and the held-out ones."""
    learned = birds.sample(LEARNED, seed=3000 + seed)
    model, preprocess, tokenizer = load_clip()
    sides = towers(model, tokenizer, preprocess)
    augment = Augmentation(sides.size, sides.mean, sides.std, crop=(0.5, 1.0), flip=0.5, jitter=0.4)
    generator = torch.Generator().manual_seed(seed)
    shown = [_picture(image) for image in learned.images]
    views = [_embedded(sides, torch.stack([augment(image, generator) for image in shown])) for _ in range(2)]
    own = _embedded(sides, learned.images * 2 - 1), _columns(learned)
    return torch.stack(views), own, _held_out()


@lru_cache
def _held_out() -> tuple[Tensor, dict[str, Tensor]]:
    model, preprocess, tokenizer = load_clip()
    world = birds.sample(HELD_OUT, seed=3999, balanced=True)
    return _embedded(towers(model, tokenizer, preprocess), world.images * 2 - 1), _columns(world)


def _picture(image: Tensor) -> Any:
    from PIL import Image

    return Image.fromarray((image.permute(1, 2, 0).numpy() * 255).round().astype(np.uint8))


@torch.no_grad()
def _embedded(sides: Any, pixels: Tensor) -> Tensor:
    sides.model.eval()
    return torch.cat([normalize(sides.image(part), dim=1) for part in pixels.split(256)])


def _columns(world: Birds) -> dict[str, Tensor]:
    return {"label": world.label, "group": world.group, "species": world.species}


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """What all trainings have in common, for the protocol."""
    return {
        "model": f"miniature, frozen; {WIDTH}-{DIM} network with one hidden layer on its image features",
        "images": f"{LEARNED} birds per seed in their own places, two augmented views each; {HELD_OUT} balanced others",
        "loop": {"optimizer": "AdamW", "lr": LR, "batch_size": BATCH, "steps": steps, "temperature": T},
        "intervals": "Student's t over seeds, which draw the birds, the views, the first weights and the order",
    }
