"""Does a robust loss pay on wrong pairs? Five losses and three simple rivals, each with its own tuned settings.

    python -m eval.experiments.does_it_pay             # every cell, writes eval/results/does_it_pay.json
    python -m eval.experiments.does_it_pay --work DIR  # where trainings are kept, for a second start
    python -m eval.experiments.does_it_pay --seeds 2 --steps 20 --out /tmp/try  # a quick look

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from eval.experiments.cells import Cell, arguments_of, run_cells, summed_up, write_result
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
STEPS = 100
NOISES, SHARES, TUNED_AT, TUNING_SEED = ("mixture", "class", "crop"), (0.2, 0.4, 0.6), 0.4, 100
KEPT = (0.8, 0.6)
LOOKS, EARLY = 5, 2  # validations in a run; the one whose model scores the pairs
BASE, STOPPED, FILTERED, SHIPPED = "InfoNCE", "InfoNCE, stopped early", "InfoNCE, filtered", "not trained"
HARD = {"tau_plus": 1 / 48}  # the true share of false negatives, see false_negatives.py
ARMS: dict[str, dict[str, Any]] = {
    BASE: {"loss": "info_nce"},
    "RINCE": {"loss": "rince", "q": 0.5, "q_start": 0.01, "lam": 1 / BATCH},
    "DCL": {"loss": "debiased", **HARD},
    "HCL": {"loss": "hard_negative", **HARD, "beta": 0.5},
    "NUCLR": {"loss": "nuclr", "popularity_lr": 0.05},
    "InfoNCE, learned t": {"loss": "info_nce", "learn_temperature": True},
}
METRIC = "zero_shot_accuracy"


@dataclass(frozen=True)
class Start:
    """What learns, at which rates it may, and how much of the grid it is given."""

    rates: tuple[float, ...]
    temperatures: tuple[float, ...]
    steps: float = 1.0  # of --steps
    arms: tuple[str, ...] = tuple(ARMS)
    noises: tuple[str, ...] = NOISES
    shares: tuple[float, ...] = SHARES
    clean: bool = True  # also without noise
    most_seeds: int = 5


STARTS = {
    "heads": Start((1e-3, 3e-3, 1e-2), (0.05, 0.1, 0.2, 0.5)),
    "all": Start((1e-4, 1e-3), (0.05, 0.2), 0.2, (BASE, "RINCE", "InfoNCE, learned t"), ("mixture",), (0.4,), False, 3),
    "scratch": Start((1e-3, 3e-3), (0.1, 0.2, 0.5)),
}


@lru_cache(maxsize=2)
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
    loss = LossSettings(**ARMS[cell["arm"]], temperature=cell["temperature"])
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
    if cell["tuning"]:
        return figures
    figures |= worth(cell, found) | {"wrong": float(wrong.mean())}
    if cell["arm"] == BASE:
        figures |= _named(STOPPED, rival(cell, found, watch.best))
        figures |= _named(FILTERED, filtered(cell, found, watch.early, images, texts, wrong))
    return figures


def rival(cell: Cell, found: Any, weights: dict[str, Tensor]) -> dict[str, float]:
    found.model.load_state_dict(weights)
    return worth(cell, found)


def filtered(
    cell: Cell, found: Any, early: dict[str, Tensor], images: Tensor, texts: Sequence[str], wrong: np.ndarray
) -> dict[str, float]:
    """InfoNCE once more, on the pairs whose early scores are highest."""
    found.model.load_state_dict(early)
    codes = torch.tensor([TEXTS.index(text) for text in texts])
    scores = softmax_scores(_features(found, images), text_features(found, TEXTS, 64), codes, t=cell["temperature"])
    order, best = scores.argsort(descending=True), (-1.0, 0.0, found)
    for share in KEPT:
        kept = order[: round(share * len(order))].sort().values
        again, watch = train(cell, images[kept], [texts[row] for row in kept.tolist()])
        best = max(best, (watch.seen[-1], share, again), key=lambda one: one[0])
    area = {"auroc": auroc(scores.numpy(), wrong, resamples=2).value} if wrong.any() else {}
    return worth(cell, best[2]) | {"kept": best[1], **area}


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


def _named(arm: str, figures: Mapping[str, float]) -> dict[str, float]:
    return {f"{arm}: {name}": value for name, value in figures.items()}


def plan(args: Any, best: Mapping[tuple[str, str, str], tuple[float, float]]) -> Iterator[dict[str, Any]]:
    """The cells that are reported."""
    for name, start in STARTS.items():
        for seed in range(min(args.seeds, start.most_seeds)):
            conditions = [("mixture", 0.0)] if start.clean else []
            conditions += [(noise, share) for noise in start.noises for share in start.shares]
            if name != "scratch":
                yield cell(args, name, SHIPPED, "mixture", 0.0, seed, 0.0, 0.0)
            for noise, share in conditions:
                for arm in start.arms:
                    yield cell(args, name, arm, noise, share, seed, *best[name, arm, noise])


def cell(
    args: Any, start: str, arm: str, noise: str, share: float, seed: int, temperature: float, lr: float
) -> dict[str, Any]:
    return {
        **{"start": start, "arm": arm, "noise": noise, "share": share, "seed": seed, "temperature": temperature},
        **{"lr": lr, "steps": round(args.steps * STARTS[start].steps), "tuning": seed == TUNING_SEED},
    }


def tuned(args: Any) -> tuple[dict[tuple[str, str, str], tuple[float, float]], list[dict[str, Any]]]:
    """(start, arm, noise) -> temperature and learning rate of the best validation, and the cells that say so."""
    cells = [
        cell(args, name, arm, noise, TUNED_AT, TUNING_SEED, temperature, lr)
        for name, start in STARTS.items()
        for noise in start.noises
        for arm in start.arms
        for temperature in start.temperatures
        for lr in start.rates
    ]
    done = run_cells(work, cells, args.work, processes=args.processes, title="tuning")
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for one in done:
        key = one["start"], one["arm"], one["noise"]
        if key not in best or one["figures"]["validation"] > best[key]["figures"]["validation"]:
            best[key] = one
    return {key: (one["temperature"], one["lr"]) for key, one in best.items()}, done


def apart(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rivals that InfoNCE's cells hold as arms of their own, and clean data as the share 0 of every noise."""
    arms = []
    for one in cells:
        for arm in (STOPPED, FILTERED) if one["arm"] == BASE else ():
            own = {name.removeprefix(f"{arm}: "): v for name, v in one["figures"].items() if name.startswith(arm)}
            arms.append({**one, "arm": arm, "figures": own})
        arms.append({**one, "figures": {name: v for name, v in one["figures"].items() if ": " not in name}})
    for one in arms:
        one["figures"] = {name: one["figures"][name] for name in (METRIC, "linear evaluation")}
    spread = []
    for one in arms:
        start = STARTS[one["start"]]
        clean = (0.0,) if start.clean else ()
        shares = (*clean, *start.shares) if one["arm"] == SHIPPED else clean
        spread += (
            [{**one, "noise": noise, "share": share} for noise in start.noises for share in shares]
            if one["share"] == 0
            else [one]
        )
    return spread


def main(arguments: Sequence[str] | None = None) -> None:
    args = arguments_of(__doc__, "does-it-pay", STEPS, arguments)
    best, tuning = tuned(args)
    done = run_cells(work, list(plan(args, best)), args.work, processes=args.processes, title="does it pay")
    protocol = {
        "scratch": {"model": "open_clip CLIP of random weights", "architecture": ARCHITECTURE},
        "shares": {name: start.shares for name, start in STARTS.items()},
        "seeds": {name: start.most_seeds for name, start in STARTS.items()},
        "heads": "the shipped miniature CLIP, its two projections alone, over the features of its frozen towers",
        "all": f"the shipped miniature CLIP, all weights but the temperature; "
        f"{STARTS['all'].noises} of share {STARTS['all'].shares}, the arms {STARTS['all'].arms}",
        "images": f"{IMAGES} renders of the miniature birds world per seed, places independent of the species; batches "
        f"of {BATCH}",
        "steps": {name: round(args.steps * start.steps) for name, start in STARTS.items()},
        "reported on": f"{HELD_OUT} clean renders, the same for all seeds",
        "tuned": {
            "on": f"{VALIDATION} other clean renders, share {TUNED_AT}, seed {TUNING_SEED}",
            "tried": {n: {"temperature": s.temperatures, "lr": s.rates} for n, s in STARTS.items()},
            "chosen": {", ".join(key): {"temperature": t, "lr": lr} for key, (t, lr) in best.items()},
        },
        "arms": ARMS,
        "rivals": {
            STOPPED: f"the best of {LOOKS} validations",
            FILTERED: f"without the pairs of the lowest scores of validation {EARLY} of {LOOKS}, a softmax over the "
            f"captions and one over the images; share kept, of {KEPT}, by validation; the run begins anew",
        },
        "linear evaluation": "logistic regression on the image features of the training renders and their true labels",
        "intervals": "Student's t over seeds; changes are paired by seed, and not corrected for their number",
        "change": f"to {BASE} on the same seed",
    }
    rows = summed_up(apart(done), ("start", "noise", "share", "arm"), against={"arm": BASE})
    write_result(args.out / "does_it_pay.json", protocol, rows, [*tuning, *done])


if __name__ == "__main__":
    main()
