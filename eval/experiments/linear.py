r"""Evaluate frozen features with a logistic regression, including the worst group and intervals.

    python -m eval.experiments.linear --data birds --group place
    python -m eval.experiments.linear --data cifar-10-batches-bin --model ViT-B-32 \
        --pretrained openai
    python -m eval.experiments.linear --data waterbirds --root data --label label --group place \
        --model RN50 --pretrained openai
    python -m eval.experiments.linear --data cifar10 --root data --features backbone
    python -m eval.experiments.linear --train train.npz --test test.npz --label y --group place

This is the protocol in chapters 3 to 5 of the thesis: the encoder is frozen, and a linear layer is
trained on the training split and scored on the test split. The layer is scikit-learn's
LogisticRegression on rows with norm 1. Unless --c is passed, its C is selected from `PENALTIES` on
a fifth of the training rows. The data can be a miniature world (birds, portraits), a named data set
(see `vldebias eval data`; cifar10, cifar100 and stl10 must be binary versions), or a folder with
one subfolder per class in train/ and test/. By default, features are in the joint space. With
--features backbone, they are the input of the image tower's head, as in SimCLR and its successors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from vldebias.data import Embeddings, Labels, cross, open_data
from vldebias.data.binary import binary_name, open_binary
from vldebias.data.cache import embed_images
from vldebias.data.dataset import ImageData, file_images
from vldebias.data.embeddings import open_embeddings
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.hosts import resolve
from vldebias.hosts.clip.images import ImageEncoder, Pixels, image_encoder
from vldebias.hosts.loading import load_host
from vldebias.measure.resampling import wilson_interval
from vldebias.miniature import open_world
from vldebias.miniature.words import WORLDS
from vldebias.report.result import NONE, Result, TaskProvenance, TaskResult

PENALTIES = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
RESAMPLES = 2000
WORLD_SPLITS = {"train": "reference", "test": "test"}  # packaged images for training and testing
WORLD_LABELS = {"birds": "label", "portraits": "gender"}
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Unit features (n, d), classes (n,) and optional groups (n,)."""

    features: Floats
    classes: Codes
    class_names: tuple[str, ...]
    groups: Labels | None = None


def open_images(data: str, split: str, root: Path | None) -> ImageData:
    """Open one split of the data that the arguments select."""
    path = Path(data)
    if data in WORLDS:
        return open_world(data, split=WORLD_SPLITS[split])
    binary = binary_name(path)
    if binary is not None:
        return open_binary(binary, path, split)
    if path.is_dir():
        return open_folder(path, split)
    images = open_data(data, root, split)
    if not isinstance(images, ImageData):
        raise InvalidInputError(f"{data}: expected images with random access, got a stream")
    return images


def open_folder(folder: Path, split: str) -> ImageData:
    """Open folder/SPLIT with one subfolder of images per class, like torchvision's ImageFolder."""
    files = sorted(path for path in (folder / split).glob("*/*") if path.is_file())
    if not files:
        raise InvalidInputError(
            f"{folder / split}: expected one subfolder with images per class, found no images"
        )
    ids = [path.relative_to(folder / split).as_posix() for path in files]
    labels = {"label": Labels.from_values(np.array([path.parent.name for path in files]))}
    return file_images(folder.name, split, folder / split, ids, labels)


def split_of(images: Embeddings, label: str, group: str | None) -> Split:
    """Return the features, classes and groups of embedded images, except for unknown classes."""
    classes = images.column(label)
    known = classes.known
    groups = None
    if group is not None:
        groups = cross(classes, images.column(group))
        known = known & groups.known
        groups = groups[np.flatnonzero(known)]
    features = images.unit[:].double().numpy()[known]
    return Split(features, classes.codes[known], classes.names, groups)


def fit(train: Split, c: float | None, seed: int) -> tuple[Any, float]:
    """Fit a logistic regression on the training rows, and return it with its C.

    `c` is the inverse strength of the L2 penalty. If None, it is selected by accuracy on a
    stratified fifth of the rows, preferring stronger penalties in ties, and all rows are fitted
    again.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    def regression(penalty: float) -> Any:
        return LogisticRegression(C=penalty, max_iter=5000)

    if c is None:
        rows = np.bincount(train.classes, minlength=len(train.class_names))
        rare = [train.class_names[code] for code in np.flatnonzero(rows == 1)]
        if rare:
            raise InvalidInputError(
                "selecting C requires at least two training images per class, got one for"
                f" {', '.join(rare)}. Pass --c to set C instead"
            )
        fitted, held_out = train_test_split(
            np.arange(len(train.classes)),
            test_size=0.2,
            random_state=seed,
            stratify=train.classes,
        )
        accuracies = []
        for penalty in PENALTIES:
            model = regression(penalty).fit(train.features[fitted], train.classes[fitted])
            accuracies.append(model.score(train.features[held_out], train.classes[held_out]))
        c = PENALTIES[int(np.argmax(accuracies))]
    return regression(c).fit(train.features, train.classes), c


def measure(train: Split, test: Split, provenance: TaskProvenance, c: float | None) -> TaskResult:
    """Return the accuracy, accuracy by group and worst group on the test split.

    The worst group is determined in each resample. If its accuracy is 0 or 1, the Wilson interval
    is used.
    """
    if train.class_names != test.class_names:
        raise InvalidInputError(
            f"expected the same classes in both splits, got {train.class_names} and"
            f" {test.class_names}"
        )
    model, chosen = fit(train, c, seed=0)
    result = TaskResult(provenance)
    provenance.settings["C"] = chosen
    right = (model.predict(test.features) == test.classes).astype(np.float64)
    hits = int(right.sum())
    interval = wilson_interval(hits, len(right))
    result.add("accuracy", NONE, hits / len(right), interval, n={"images": len(right)})
    if test.groups is not None:
        _add_groups(result, right, test.groups)
    return result


def _add_groups(result: TaskResult, right: Floats, groups: Labels) -> None:
    """Add the accuracy in each group that occurs, and in the worst group."""
    codes = np.unique(groups.codes)
    for code in codes:
        members = right[groups.codes == code]
        hits = int(members.sum())
        result.add(
            "accuracy",
            NONE,
            hits / len(members),
            wilson_interval(hits, len(members)),
            n={"images": len(members)},
            subset=groups.names[code],
        )
    rng = np.random.default_rng(0)
    draws = np.full(RESAMPLES, np.inf)
    worst = np.inf
    for code in codes:
        members = right[groups.codes == code]
        worst = min(worst, members.mean())
        draws = np.minimum(
            draws, rng.binomial(len(members), members.mean(), RESAMPLES) / len(members)
        )
    low, high = np.quantile(draws, (0.025, 0.975))
    result.add("worst_group", NONE, worst, (low, high), n={"images": len(right)})


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="a world, a name, a folder or a binary layout")
    parser.add_argument("--root", type=Path, help="folder of the data sets that have a name")
    parser.add_argument("--train", type=Path, help="features of the training split, .npz")
    parser.add_argument("--test", type=Path, help="features of the test split, .npz")
    parser.add_argument("--label", help="column of the classes")
    parser.add_argument("--group", help="column of the groups, crossed with the classes")
    parser.add_argument("--model", default="miniature", help="architecture, id or folder")
    parser.add_argument("--pretrained", help="open_clip tag or checkpoint")
    parser.add_argument(
        "--features",
        choices=("joint", "backbone"),
        default="joint",
        help="of the joint space, or before the head",
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--c", type=float, help="inverse penalty; default: chosen")
    parser.add_argument("--json", type=Path, help="write the result here")
    return parser.parse_args(words)


def before_head(encoder: ImageEncoder, head: nn.Parameter | nn.Module | None) -> ImageEncoder:
    """Return an encoder whose features are the input of the last layer before the joint space.

    Raises:
        InvalidInputError: If the tower has no head, or if its input is inaccessible, as in the
            attention pooling of CLIP's ResNets.
    """
    visual = getattr(encoder.model, "visual", None)
    if isinstance(head, nn.Parameter) and getattr(visual, "proj", None) is head:

        def without_projection(pixels: Pixels) -> Tensor:
            # open_clip's tower skips the projection if it is None.
            visual.proj = None
            try:
                return encoder.forward(pixels)
            finally:
                visual.proj = head

        return replace(encoder, forward=without_projection)
    if not isinstance(head, nn.Linear):
        raise InvalidInputError(
            f"--features backbone: expected a head with one linear layer, but {encoder.name} has a"
            f" {type(head).__name__}. Use --features joint"
        )

    def input_of_head(pixels: Pixels) -> Tensor:
        read: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
        try:
            encoder.forward(pixels)
        finally:
            handle.remove()
        if not read:
            raise InvalidInputError(
                f"--features backbone: {encoder.name} uses the weights of its head without calling"
                " it. Use --features joint"
            )
        return read[0]

    return replace(encoder, forward=input_of_head)


def features_of(options: argparse.Namespace) -> tuple[Callable[[str], Embeddings], str, str]:
    """Return a function from splits to embedded images, and the names of the data and the model."""
    if options.train is not None and options.test is not None:
        files = {"train": options.train, "test": options.test}
        return lambda split: open_embeddings(files[split])[0], str(options.test), "features"
    if options.data is None:
        raise InvalidInputError("expected --data, or both --train and --test")
    loaded = load_host(options.model, options.pretrained, device=options.device)
    encoder = image_encoder(loaded.host, loaded.preprocess)
    if options.features == "backbone":
        encoder = before_head(encoder, getattr(resolve(loaded.host), "image_head", None))

    def embedded(split: str) -> Embeddings:
        return embed_images(open_images(options.data, split, options.root), encoder)

    return embedded, options.data, loaded.name


def main(words: Sequence[str] | None = None) -> int:
    """Run the evaluation and return the exit status."""
    options = arguments(words)
    try:
        embedded, data, model = features_of(options)
        label = options.label or WORLD_LABELS.get(data, "label")
        train = split_of(embedded("train"), label, None)
        test = split_of(embedded("test"), label, options.group)
        provenance = TaskProvenance(
            task="linear",
            description=f"Linear evaluation of {model} on {data}",
            model=model,
            split="test",
            n={"train": len(train.classes), "test": len(test.classes)},
            settings={
                "label": label,
                "group": options.group,
                "features": options.features,
                "resamples": RESAMPLES,
            },
        )
        result = measure(train, test, provenance, options.c)
    except VldebiasError as error:
        print(error, file=sys.stderr)
        return 1
    for row in result.rows:
        low, high = row.interval
        print(f"{row.metric:15} {row.subset:30} {row.value:.3f} [{low:.3f}, {high:.3f}] {row.n}")
    if options.json is not None:
        Result.from_tasks(options.json.stem, [result], seconds=None).write(options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
