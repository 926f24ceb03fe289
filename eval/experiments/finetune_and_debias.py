"""Both parts of the project together: fine-tune the biased miniature CLIP on noisy captions, then debias its texts.

python -m eval.experiments.run finetune_and_debias

The shipped miniature CLIP goes on learning from birds with captions of which a share is drawn from all captions, by
InfoNCE or by RINCE at one temperature: from captions that name the species, which half of the captions that it was made
from did not, or from more of the world's own, which tie birds to places. Then a projection is fitted for each model, in
closed form. Measured on balanced held-out birds: worst group and average of the class (landbird, waterbird), which is
what the projection is about, and the species and captions, which are what fine-tuning is about.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from eval.experiments.cells import Cell
from eval.experiments.embeddings import image_features
from eval.experiments.experiment import Experiment
from eval.experiments.small_clip import TEXTS, captions, pixels
from eval.experiments.tensor_batches import TensorBatches
from vldebias.data import Embeddings, Labels
from vldebias.evaluation.groups import GroupsTask
from vldebias.evaluation.task import Data
from vldebias.evaluation.texts import Texts
from vldebias.hosts.towers import Towers, towers
from vldebias.miniature import birds, load_clip
from vldebias.miniature.birds import Birds
from vldebias.training.loop import fit
from vldebias.training.monitor import TensorMonitor
from vldebias.training.objective import Trainee, build_objective
from vldebias.training.pairs import mixture_noise
from vldebias.training.settings import LoopSettings, LossSettings

IMAGES, HELD_OUT, HELD_OUT_SEED, BATCH = 4000, 2000, 78, 128
ETA = 0.4
LOOP = LoopSettings(steps=100, batch_size=BATCH, lr=2e-4, warmup=0.1, weight_decay=0.05)
LAM = 1000.0
METHODS = ("none", "orth", "orth-cali", "cali")
SCORES = ("recall@1 image->text", "recall@1 text->image", "positive_score")


def description(experiment: Experiment, steps: int) -> dict[str, Any]:
    """Data, noise and loop, for the protocol."""
    return {
        "images": f"{IMAGES} renders of the birds world per seed",
        "noise": f"mixture, eta = {ETA}",
        "loop": LOOP.model_copy(update={"steps": steps}).model_dump(exclude_none=True),
        "held out": f"{HELD_OUT} balanced renders, the same for all seeds",
        "projection": {"prompts": "waterbirds", "lam": LAM},
    }


@lru_cache(maxsize=1)
def held_out() -> Birds:
    return birds.sample(HELD_OUT, seed=HELD_OUT_SEED, balanced=True)


def work(cell: Cell) -> dict[str, float]:
    """One fine-tuning (none for the model as shipped) and what both parts are worth afterwards."""
    model, preprocess, tokenizer = load_clip()
    found = towers(model, tokenizer, preprocess)
    if cell["settings"]:
        fine_tune(found, cell)
    return scores(found) | groups(found)


def fine_tune(found: Towers, cell: Cell) -> None:
    """Learns from noisy captions, all parameters."""
    seed = cell["seed"]
    world = birds.sample(IMAGES, seed=3000 + seed)
    clean = world.captions if cell["captions"] == "own" else captions(world)
    texts = mixture_noise(IMAGES, ETA, seed, clean).applied(clean)
    batches = TensorBatches(pixels(world), texts, tokenize=found.tokenize, batch_size=BATCH, seed=seed)
    loss = LossSettings(**cell["settings"])
    objective = build_objective(loss, temperature=cell["settings"]["temperature"], items=batches.items)
    found.model.requires_grad_(True)
    found.model.logit_scale.requires_grad_(False)
    fit(Trainee(found, objective), batches, LOOP.model_copy(update={"seed": seed, "steps": cell["steps"]}))


def scores(found: Towers) -> dict[str, float]:
    """Species, zero-shot, and retrieval of the world's own captions, without noise."""
    world = held_out()
    monitor = TensorMonitor(pixels(world), captions=world.captions, labels=world.species, class_texts=TEXTS)
    told = monitor(found)
    return {"species_accuracy": told["zero_shot_accuracy"]} | {name: told[name] for name in SCORES}


def groups(found: Towers) -> dict[str, float]:
    """Worst group and average of the class under every method: "worst_group, cali"."""
    world = held_out()
    labels = {
        "label": Labels(world.label.numpy(), birds.CLASSES),
        "place": Labels(world.background.numpy(), birds.BACKGROUNDS),
    }
    features = image_features(found.model, world.images, found.preprocess).numpy()
    test = Embeddings(features, tuple(map(str, range(len(world)))), labels)
    texts = Texts(found.model, found.tokenizer)
    task = GroupsTask(
        name="birds",
        title="Birds",
        data=Data(name="birds"),
        prompts="waterbirds",
        label="label",
        spurious="place",
        methods=METHODS,
        lam=LAM,
        resamples=2,
    )
    (part, *_) = task.measure(test, texts)
    wanted = ("worst_group", "average")
    return {f"{f.metric}, {f.method}": f.value for f in part.rows if f.metric in wanted and not f.subset}
