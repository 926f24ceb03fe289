"""Train small CLIP models with partly wrong captions, for three experiments.

Models are trained on renders of birds, whose captions name the species ("a photo of a robin."). The
48 captions are also the classes for zero-shot accuracy and the queries for retrieval. Either a
model is trained from scratch, or only the two projections of the packaged model are trained
("heads"). There are three kinds of noise (tables A.1 and A.2 in the thesis): mixture (a random
caption), class (the next species, with half the probability) and crop (the image is cropped to a
fifth of its width and height).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from eval.experiments.run import Cell, scored
from eval.experiments.tensor_batches import TensorBatches
from eval.miniature import birds
from eval.miniature.birds import Birds
from vldebias.hosts.clip.towers import Towers
from vldebias.metrics import auroc
from vldebias.miniature import Preprocess, load_clip, weights_dir
from vldebias.miniature.tokenizer import CONTEXT_LENGTH, open_clip_tokenizer
from vldebias.miniature.words import SIZE
from vldebias.report.result import Result
from vldebias.training.loop import fit
from vldebias.training.monitor import Monitor, image_features, text_features
from vldebias.training.objective import Objective, Trainee
from vldebias.training.pairs import Pairs
from vldebias.training.sampling import numpy_generator, torch_generator
from vldebias.training.settings import LoopSettings, LossSettings
from vldebias.utils.pictures import subplots, write_png

TEXTS = tuple(f"a photo of a {species}." for species in birds.SPECIES)
IMAGES, BATCH = 4000, 256  # for training from scratch
FEWER, FEWER_BATCH = 2000, 128  # if many losses are compared
HELD_OUT, HELD_OUT_SEED, VALIDATION, VALIDATION_SEED = 2000, 77, 1000, 79
T = 0.2  # temperature if an experiment does not set one
LOOKS, EARLY = 5, 2  # validations per run, and the number of the one whose model scores the pairs
METRIC = "zero_shot_accuracy"
PATCH = 0.2  # share of each side that crop noise keeps
ARCHITECTURE: dict[str, Any] = {
    "embed_dim": 64,
    "vision_cfg": {
        "image_size": SIZE,
        "patch_size": 16,
        "width": 64,
        "layers": 2,
        "head_width": 32,
        "mlp_ratio": 2.0,
    },
    "text_cfg": {
        "context_length": CONTEXT_LENGTH,
        "width": 64,
        "heads": 2,
        "layers": 1,
        "mlp_ratio": 2.0,
    },
}


# ---- data
# -------------------------------------------------------------------------------------------------


def pixels(world: Birds) -> Tensor:
    """Return the inputs of the image tower, (n, 3, 64, 64)."""
    return world.images * 2 - 1


def captions(species: NDArray[np.int64] | Tensor) -> list[str]:
    """Return one caption per image that names the species."""
    return [TEXTS[code] for code in species.tolist()]


def class_noise(
    labels: NDArray[np.int64], eta: float, others: NDArray[np.int64], seed: int
) -> NDArray[np.int64]:
    """Return labels (n,), each replaced by another class with probability eta / 2.

    Args:
        labels: The true classes (n,).
        eta: The noise rate.
        others: The class (C,) that replaces each class. In section 5.3.1 of the thesis, it is a
            similar one, such as dog for cat.
        seed: The seed.
    """
    flipped = numpy_generator("class noise", seed).random(len(labels)) < eta / 2
    return np.where(flipped, others[labels], labels)


def next_classes(classes: int) -> NDArray[np.int64]:
    """Return the next class (C,) for each class, and the first for the last."""
    return (np.arange(classes) + 1) % classes


def crop_noise(images: Tensor, eta: float, generator: torch.Generator) -> Tensor:
    """Crop images (b, 3, h, w) to a fifth of their sides with probability eta, and resize them.

    The thesis (section 5.3.1) says "1/5 of their original size". This is interpreted as the width
    and height, because a crop with a fifth of the area still shows most objects.
    """
    b, _, h, w = images.shape
    draws = torch.rand(b, 3, generator=generator)
    chosen = torch.nonzero(draws[:, 0] < eta).squeeze(1)
    if not len(chosen):
        return images
    height, width = round(h * PATCH), round(w * PATCH)
    first = (draws[chosen, 1:] * torch.tensor([h - height + 1, w - width + 1])).long()
    y = first[:, :1].clamp(max=h - height) + torch.arange(height)
    x = first[:, 1:].clamp(max=w - width) + torch.arange(width)
    patches = images[chosen[:, None, None], :, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)
    return images.index_copy(
        0, chosen, F.interpolate(patches, (h, w), mode="bilinear", align_corners=False)
    )


@lru_cache(maxsize=6)
def fewer(seed: int) -> Birds:
    return birds.sample(FEWER, seed=6000 + seed, balanced=True)


def learned_from(noise: str, share: float, seed: int) -> tuple[Tensor, list[str]]:
    """Return images and captions, a share of which are wrong."""
    images, species = pixels(fewer(seed)), fewer(seed).species.numpy()
    if noise == "mixture":
        species = species[Pairs.noise(len(species), share, seed)]
    elif noise == "class":
        species = class_noise(species, share, next_classes(len(TEXTS)), seed)
    else:
        images = crop_noise(images, share, torch_generator("crops", seed))
    return images, captions(species)


# ---- models and trainings
# ------------------------------------------------------------------------------------------


def fresh() -> Towers:
    """Return randomly initialised towers, using torch's global generator."""
    import open_clip

    tokenizer = open_clip_tokenizer(weights_dir())
    model = open_clip.CLIP(
        embed_dim=ARCHITECTURE["embed_dim"],
        vision_cfg=open_clip.CLIPVisionCfg(**ARCHITECTURE["vision_cfg"]),
        text_cfg=open_clip.CLIPTextCfg(vocab_size=tokenizer.vocab_size, **ARCHITECTURE["text_cfg"]),
    )
    return Towers(model, tokenizer, Preprocess())


class Heads(nn.Module):
    """Two heads on precomputed features of frozen towers, which act as towers.

    Images are passed as features (w, 1, 1), and texts as row numbers.

    Args:
        image_head: The head for images.
        text_head: The head for texts.
        vectors: The features (m, w) of the distinct texts.
        row_of_text: The row of each text in the features.
    """

    def __init__(
        self,
        image_head: nn.Module,
        text_head: nn.Module,
        vectors: Tensor,
        row_of_text: Mapping[str, int],
    ) -> None:
        super().__init__()
        self.image_head, self.text_head = image_head, text_head
        self.vectors, self.row_of_text = vectors, row_of_text

    @property
    def model(self) -> nn.Module:
        return self

    def image(self, features: Tensor) -> Tensor:
        out: Tensor = self.image_head(features.flatten(1))
        return out

    def text(self, tokens: Mapping[str, Tensor]) -> Tensor:
        out: Tensor = self.text_head(self.vectors[tokens["text"][:, 0]])
        return out

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        return {"text": torch.tensor([[self.row_of_text[text]] for text in texts])}


def packaged_heads() -> Heads:
    """Return the projections of the packaged model, with its features of the captions."""
    whole, *_ = load_clip()
    rows = {text: row for row, text in enumerate(TEXTS)}
    heads = (linear(weight) for weight in (whole.visual.proj, whole.text_projection))
    return Heads(*heads, frozen(None), rows)


def linear(weight: Tensor) -> nn.Linear:
    """Return the layer that multiplies rows by a weight (in, out)."""
    layer = nn.Linear(*weight.shape, bias=False)
    layer.weight.data.copy_(weight.detach().T)
    return layer


@torch.no_grad()
def frozen(images: Tensor | None) -> Tensor:
    """Return the packaged towers' outputs before the projection, for images or the captions.

    The shapes are (n, w, 1, 1) for images and (48, w) for captions.
    """
    model, _, tokenizer = load_clip()
    model.eval()
    if images is None:
        model.text_projection = None
        return model.encode_text(tokenizer(list(TEXTS)))  # type: ignore[no-any-return]
    model.visual.proj = None
    return torch.cat([model.encode_image(part) for part in images.split(200)])[:, :, None, None]


def learner(start: str, seed: int) -> Any:
    """Return the initial model for training "heads" or from "scratch"."""
    torch.manual_seed(seed)
    return packaged_heads() if start == "heads" else fresh()


def train(
    trained: Any,
    images: Tensor,
    texts: Sequence[str],
    objective: Objective,
    watch: Any = None,
    labels: Tensor | None = None,
    **loop: Any,
) -> Any:
    """Train a model on images with captions and return it.

    `labels` are classes (n,) for losses that use them.
    """
    settings = LoopSettings(warmup=0.1, weight_decay=0.05, **loop)
    sampling = {"batch_size": settings.batch_size, "seed": settings.seed}
    batches = TensorBatches(images, texts, tokenize=trained.tokenize, labels=labels, **sampling)
    fit(Trainee(trained, objective), batches, settings, monitor=watch)
    return trained


def objective_of(loss: Mapping[str, Any], items: int) -> Objective:
    """Return the objective with some fields of `LossSettings` for a number of pairs."""
    return Objective(LossSettings(**loss), temperature=loss["temperature"], items=items)


def from_scratch(cell: Cell, world: Birds, texts: Sequence[str]) -> Any:
    """Train a model from scratch with the loss of a cell and return it."""
    loop = {"steps": cell["steps"], "batch_size": BATCH, "lr": 1e-3, "seed": cell["seed"]}
    objective = objective_of(loss_of(cell), len(texts))
    return train(learner("scratch", cell["seed"]), pixels(world), texts, objective, **loop)


def loss_of(cell: Cell) -> dict[str, Any]:
    """Return the fields of `LossSettings` from the arm and the cell."""
    own = {
        name: cell[name] for name in LossSettings.model_fields if name in cell and name != "loss"
    }
    return {"temperature": T, **cell["settings"], **own}


# ---- wrong_pairs
# -------------------------------------------------------------------------------------------------


def noisy(seed: int, eta: float) -> tuple[Birds, NDArray[np.int64]]:
    """Return renders, and the species in their captions, a share eta of which are random."""
    world = birds.sample(IMAGES, seed=1000 + seed)
    return world, world.species.numpy()[Pairs.noise(IMAGES, eta, seed)]


def scores(cell: Cell) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the cosine between each image and its caption (n,), and which captions are wrong."""
    world, named = noisy(cell["seed"], cell["eta"])
    trained = from_scratch(cell, world, captions(named))
    texts = text_features(trained, TEXTS, 64)[torch.from_numpy(named)]
    return (image_features(trained, pixels(world)) * texts).sum(
        dim=1
    ).numpy(), named != world.species.numpy()


def wrong_pairs(cell: Cell) -> dict[str, float]:
    """Measure how well the scores after training separate wrong pairs from correct ones."""
    found, wrong = scores(cell)
    return {
        "auroc": auroc(found, wrong, resamples=2).value,
        "score of right pairs": float(found[~wrong].mean()),
        "score of wrong pairs": float(found[wrong].mean()),
    }


def draw_scores(result: Result, path: Path, eta: float = 0.6) -> None:
    """Plot the score densities of correct and wrong pairs for each loss and one seed."""
    (provenance,) = result.provenance
    figure, axes = subplots(1, len(provenance.methods), (1 + 3.6 * len(provenance.methods), 3.1))
    for axis, (loss, settings) in zip(axes, provenance.methods.items(), strict=True):
        cell = {"seed": 0, "eta": eta, "settings": settings, "steps": provenance.settings["steps"]}
        found, wrong = scores(cell)
        edges = np.histogram_bin_edges(found, bins=40)
        for name, rows in (("right", ~wrong), ("wrong", wrong)):
            axis.hist(found[rows], bins=edges, density=True, alpha=0.6, label=name)
        axis.set(
            title=f"{loss}, eta {eta:g}: AUROC {auroc(found, wrong, resamples=2).value:.3f}",
            xlabel="cosine",
        )
    axes[0].legend()
    write_png(
        figure,
        path.with_name("wrong_pairs_scores.png"),
        {"kind": "scores of pairs", "eta": eta},
        small=True,
    )


# ---- which_loss
# -------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def monitor(start: str, n: int, seed: int) -> Monitor:
    """Return a monitor on clean renders, for validation or for reporting."""
    clean = birds.sample(n, seed=seed, balanced=True)
    images = frozen(pixels(clean)) if start == "heads" else pixels(clean)
    return Monitor(images, labels=clean.species, class_texts=TEXTS)


class Watch:
    """Validate a model during training, and store an early copy."""

    def __init__(self, start: str) -> None:
        self.validation = monitor(start, VALIDATION, VALIDATION_SEED)
        self.seen: list[float] = []
        self.early: dict[str, Tensor] = {}

    def __call__(self, trained: Any) -> dict[str, float]:
        self.seen.append(self.validation(trained)[METRIC])
        if len(self.seen) == EARLY:
            self.early = copy.deepcopy(trained.model.state_dict())
        return {"validation": self.seen[-1]}


def which_loss(cell: Cell) -> dict[str, Any]:
    """Score one arm on held-out renders.

    For InfoNCE, also score a second training run that excludes the pairs with the lowest early
    scores ("filtered").
    """
    start, seed, arm = cell["start"], cell["seed"], cell["arm"]
    if arm == "not trained":
        return worth(start, learner(start, seed))
    images, texts = learned_from(cell["noise"], cell["share"], seed)
    if start == "heads":
        images = frozen(images)
    trained, watch = watched(cell, images, texts)
    if cell.get("tuning"):
        return {"validation": watch.seen[-1]}
    figures = worth(start, trained)
    if arm == "InfoNCE":
        trained.model.load_state_dict(watch.early)
        again = filtered(cell, trained, images, texts)
        figures |= {
            f"InfoNCE, filtered: {name}": value for name, value in worth(start, again).items()
        }
    return figures


def watched(cell: Cell, images: Tensor, texts: Sequence[str]) -> tuple[Any, Watch]:
    """Train one arm with the settings of a cell, and return the model and its validation scores."""
    watch, steps = Watch(cell["start"]), cell["steps"]
    loop = {"steps": steps, "batch_size": FEWER_BATCH, "lr": cell["lr"], "seed": cell["seed"]}
    loss = {**cell["settings"], "temperature": cell["temperature"]}
    trained = learner(cell["start"], cell["seed"])
    labels = torch.tensor([TEXTS.index(text) for text in texts])
    loop["eval_every"] = max(1, steps // LOOKS)
    objective = objective_of(loss, len(texts))
    return train(trained, images, texts, objective, watch, labels, **loop), watch


def filtered(cell: Cell, early: Any, images: Tensor, texts: Sequence[str]) -> Any:
    """Train a model on the pairs with the highest early scores.

    The share of pairs to use is selected by validation.
    """
    codes = torch.tensor([TEXTS.index(text) for text in texts])
    features = torch.cat([image_features(early, part) for part in images.split(500)])
    order = softmax_scores(
        features, text_features(early, TEXTS, 64), codes, cell["temperature"]
    ).argsort(descending=True)
    runs = []
    for share in cell["kept"]:
        kept = order[: round(share * len(order))].sort().values
        again, validated = watched(cell, images[kept], [texts[row] for row in kept.tolist()])
        runs.append((validated.seen[-1], again))
    return max(runs, key=lambda run: run[0])[1]


def softmax_scores(images: Tensor, texts: Tensor, codes: Tensor, t: float) -> Tensor:
    """Return the mean log probability (n,) that images and captions select each other.

        (log softmax_j(<x_i, v_j> / t) + log softmax_i(<x_i, v_j> / t)) / 2  at j = codes[i]

    `images` (n, d) and `texts` (m, d) are unit vectors for images and distinct captions, and
    `codes` (n,) contains the caption index of each image.
    """
    logits = images @ texts.T / t
    own_logits = logits.gather(1, codes[:, None])[:, 0]
    return own_logits - (logits.logsumexp(1) + logits.logsumexp(0)[codes]) / 2


def worth(start: str, trained: Any) -> dict[str, Any]:
    """Return the zero-shot accuracy on held-out renders, with the score of each render."""
    rows = monitor(start, HELD_OUT, HELD_OUT_SEED).rows(trained)[METRIC].numpy()
    return scored(METRIC, rows)
