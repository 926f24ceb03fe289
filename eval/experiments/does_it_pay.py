"""Does a robust loss pay on wrong pairs? Five losses and three simple rivals, each with its own tuned settings.

python -m eval.experiments.run does_it_pay

Noise: mixture (a caption drawn from all), class (the species taken for the next one with half the share) and crop (a
fifth of the image's sides is left); Tables A.1 and A.2 of the thesis. A model learns from scratch, or the shipped one
goes on: its two projections alone ("heads", the rest frozen) or all its weights ("all").

Every arm has the temperature and the learning rate that did best for it on validation renders, at a share of .4 of each
noise and a seed that is not reported; reported are other renders and seeds. The rivals cost no new loss: InfoNCE at the
best of five validations ("stopped early"), InfoNCE begun anew without the pairs that its own early scores say fit least
(the share to keep, .8 or .6, by validation; "filtered"), InfoNCE with learned temperature.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eval.experiments.cells import Cell
from eval.experiments.experiment import Experiment
from eval.experiments.small_clip import ARCHITECTURE, HELD_OUT, HELD_OUT_SEED, TEXTS, build, pixels
from eval.experiments.tensor_batches import TensorBatches
from vldebias.evaluation.baselines.logistic import Scaling, logistic_regression
from vldebias.hosts.towers import towers
from vldebias.metrics import auroc
from vldebias.miniature import Preprocess, birds, load_clip
from vldebias.miniature.birds import Birds
from vldebias.training.augmentation import CropNoise
from vldebias.training.loop import fit
from vldebias.training.monitor import TensorMonitor
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.pairs import class_noise, mixture_noise
from vldebias.training.sampling import torch_generator
from vldebias.training.scores import image_features, softmax_scores, text_features
from vldebias.training.settings import LoopSettings, LossSettings

IMAGES, VALIDATION, VALIDATION_SEED, BATCH = 2000, 1000, 79, 128
KEPT = (0.8, 0.6)
LOOKS, EARLY = 5, 2  # validations in a run; the one whose model scores the pairs
BASE, STOPPED, FILTERED, SHIPPED = "InfoNCE", "InfoNCE, stopped early", "InfoNCE, filtered", "not trained"
METRIC = "zero_shot_accuracy"


@lru_cache(maxsize=6)
def world(seed: int) -> Birds:
    return birds.sample(IMAGES, seed=6000 + seed, balanced=True)


def learned_from(noise: str, share: float, seed: int) -> tuple[Tensor, list[str], np.ndarray]:
    """Pixels, captions, and which pairs are wrong."""
    clean = world(seed)
    images, species = pixels(clean), clean.species.numpy()
    wrong = np.zeros(IMAGES, bool)
    if noise == "mixture":
        drawn = mixture_noise(IMAGES, share, seed, [TEXTS[k] for k in species])
        species, wrong = species[drawn.source], drawn.wrong
    elif noise == "class":
        flipped = class_noise(species, share, len(TEXTS), seed)
        species, wrong = flipped, flipped != species
    elif noise == "crop":
        cropped = CropNoise(share)(images, torch_generator("crops", seed))
        images, wrong = cropped, (cropped != images).flatten(1).any(1).numpy()
    return images, [TEXTS[k] for k in species], wrong


class Heads(nn.Module):
    """The projections of the shipped model over features of its frozen towers, which are computed once.

    It stands where towers do: an image is its feature (w, 1, 1), a text the number of its row.
    """

    def __init__(self) -> None:
        super().__init__()
        whole, *_ = load_clip()
        self.project_image, self.project_text = (_linear(w) for w in (whole.visual.proj, whole.text_projection))
        self.frozen_texts = _frozen(None)

    @property
    def model(self) -> nn.Module:
        return self

    def image(self, features: Tensor) -> Tensor:
        out: Tensor = self.project_image(features.flatten(1))
        return out

    def text(self, tokens: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.project_text(self.frozen_texts[tokens["text"][:, 0]])
        return out

    @staticmethod
    def tokenize(captions: Sequence[str]) -> dict[str, Tensor]:
        return {"text": torch.tensor([[TEXTS.index(caption)] for caption in captions])}


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(*weight.shape, bias=False)
    layer.weight.data.copy_(weight.detach().T)
    return layer


@torch.no_grad()
def _frozen(images: Tensor | None) -> Tensor:
    """What the shipped towers give before their projections: of images (n, w, 1, 1), or of the texts (48, w)."""
    model, _, tokenizer = load_clip()
    model.eval()
    if images is None:
        model.text_projection = None
        return model.encode_text(tokenizer(list(TEXTS)))  # type: ignore[no-any-return]
    model.visual.proj = None
    return torch.cat([model.encode_image(part) for part in images.split(200)])[:, :, None, None]


def learner(start: str, seed: int) -> Any:
    """Towers as they start."""
    if start == "heads":
        return Heads()
    torch.manual_seed(seed)
    if start == "scratch":
        return towers(*build(), Preprocess())
    model, preprocess, tokenizer = load_clip()
    made = towers(model, tokenizer, preprocess)
    made.model.requires_grad_(True)
    made.model.logit_scale.requires_grad_(False)
    return made


@lru_cache(maxsize=4)
def seen(start: str, what: tuple[str, float, int]) -> Tensor:
    """Images as the learner reads them."""
    images = learned_from(*what)[0]
    return _frozen(images) if start == "heads" else images


@lru_cache(maxsize=4)
def monitor(start: str, n: int, seed: int) -> TensorMonitor:
    """Clean renders to validate or to report."""
    clean = birds.sample(n, seed=seed, balanced=True)
    images = _frozen(pixels(clean)) if start == "heads" else pixels(clean)
    return TensorMonitor(images, labels=clean.species, class_texts=TEXTS)


class Watch:
    """Validates as the run goes, and keeps the best model and the early one."""

    def __init__(self, start: str) -> None:
        self.validation = monitor(start, VALIDATION, VALIDATION_SEED)
        self.seen: list[float] = []
        self.best: dict[str, Tensor] = {}
        self.early: dict[str, Tensor] = {}

    def __call__(self, found: Any) -> dict[str, float]:
        value = self.validation(found)[METRIC]
        weights = copy.deepcopy(found.model.state_dict())
        if not self.seen or value > max(self.seen):
            self.best = weights
        self.seen.append(value)
        if len(self.seen) == EARLY:
            self.early = weights
        return {"validation": value}


def train(cell: Cell, images: Tensor, texts: Sequence[str]) -> tuple[Any, Watch]:
    """One training of a cell's arm on these pairs."""
    steps = cell["steps"]
    found = learner(cell["start"], cell["seed"])
    watch = Watch(cell["start"])
    batches = TensorBatches(images, texts, tokenize=found.tokenize, batch_size=BATCH, seed=cell["seed"])
    loss = LossSettings(**cell["settings"], temperature=cell["temperature"])
    trainee = Trainee(found, build_objective(loss, temperature=cell["temperature"], items=len(images)))
    loop = LoopSettings(
        steps=steps,
        batch_size=BATCH,
        lr=cell["lr"],
        warmup=0.1,
        weight_decay=0.05,
        seed=cell["seed"],
        eval_every=max(1, steps // LOOKS),
    )
    fit(trainee, batches, loop, monitor=watch)
    return found, watch


def work(cell: Cell) -> dict[str, float]:
    """One arm: what it is worth at the end; of InfoNCE also stopped early and filtered; without an arm untrained."""
    if cell["arm"] == SHIPPED:
        return worth(cell, learner(cell["start"], cell["seed"]))
    what = (cell["noise"], cell["share"], cell["seed"])
    images, (_, texts, wrong) = seen(cell["start"], what), learned_from(*what)
    found, watch = train(cell, images, texts)
    figures = {"validation": watch.seen[-1]}
    if cell.get("tuning"):
        return figures
    figures |= worth(cell, found) | {"wrong": float(wrong.mean())}
    if cell["arm"] == BASE:
        found.model.load_state_dict(watch.best)
        figures |= named(STOPPED, worth(cell, found))
        again, kept, scores = filtered(cell, found, watch, images, texts, KEPT)
        area = {"auroc": auroc(scores.numpy(), wrong, resamples=2).value} if wrong.any() else {}
        figures |= named(FILTERED, worth(cell, again) | {"kept": kept, **area})
    return figures


def filtered(
    cell: Cell, found: Any, watch: Watch, images: Tensor, texts: Sequence[str], shares: Sequence[float]
) -> tuple[Any, float, Tensor]:
    """InfoNCE once more, on the pairs whose early scores are highest: the share that validates best, and the scores."""
    found.model.load_state_dict(watch.early)
    codes = torch.tensor([TEXTS.index(text) for text in texts])
    scores = softmax_scores(_features(found, images), text_features(found, TEXTS, 64), codes, t=cell["temperature"])
    order, best = scores.argsort(descending=True), (-1.0, 0.0, found)
    for share in shares:
        kept = order[: round(share * len(order))].sort().values
        again, validated = train(cell, images[kept], [texts[row] for row in kept.tolist()])
        best = max(best, (validated.seen[-1], share, again), key=lambda one: one[0])
    return best[2], best[1], scores


def worth(cell: Cell, found: Any) -> dict[str, float]:
    """Zero-shot on held-out renders, and linear evaluation: a logistic regression on clean labels of the same seed."""
    test = monitor(cell["start"], HELD_OUT, HELD_OUT_SEED)
    assert test.images is not None
    assert test.labels is not None
    clean = seen(cell["start"], ("none", 0.0, cell["seed"]))
    learn, asked = _features(found, clean), _features(found, test.images)
    scaling = Scaling.standard(learn)
    labels = world(cell["seed"]).species.numpy()
    fitted = logistic_regression(learn, labels, len(TEXTS), c=1.0, scaling=scaling, tolerance=1e-4)
    weight, bias = fitted.unscaled(scaling).head()
    guessed = (asked.double() @ weight.T + bias).argmax(1)
    return {METRIC: test(found)[METRIC], "linear evaluation": float((guessed == test.labels).double().mean())}


def _features(found: Any, images: Tensor) -> Tensor:
    return torch.cat([image_features(found, part) for part in images.split(500)])


def named(arm: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of another arm than the cell's."""
    return {f"{arm}: {name}": value for name, value in figures.items()}


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Data, models and rivals, for the protocol."""
    return {
        "scratch": {"model": "open_clip CLIP of random weights", "architecture": ARCHITECTURE},
        "heads": "the shipped miniature CLIP, its two projections alone, over the features of its frozen towers",
        "all": "the shipped miniature CLIP, all weights but the temperature",
        "images": f"{IMAGES} renders of the miniature birds world per seed, places independent of the species; batches "
        f"of {BATCH}",
        "reported on": f"{HELD_OUT} clean renders, the same for all seeds",
        "tuned on": f"{VALIDATION} other clean renders",
        "rivals": {
            STOPPED: f"the best of {LOOKS} validations",
            FILTERED: f"without the pairs of the lowest scores of validation {EARLY} of {LOOKS}, a softmax over the "
            f"captions and one over the images; share kept, of {KEPT}, by validation; the run begins anew",
        },
        "linear evaluation": "logistic regression on the image features of the training renders and their true labels",
    }
