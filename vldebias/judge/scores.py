"""Judge generated images, store the answers, and measure quality: CLIPScore against the prompts,
FID against "none".

CLIPScore (Hessel et al., 2021) has the biases of its CLIP: one that associates nurses with women
scores a man in a nurse's uniform lower. Measure with another backbone than the one that was
debiased, and read the score beside `recognised` and the labels of people. FID (Heusel et al., 2017)
takes the features of a CLIP (Kynkäänniemi et al., 2023). A debiased pipeline should move away from
images that have the bias: a larger distance is not by itself a loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, need, warn
from vldebias.files import digest, write_atomically
from vldebias.hosts import Host
from vldebias.hosts.clip.images import ImageEncoder
from vldebias.judge.judges import NO_VALUE, SURE, Judge, Probabilities, decide, predict
from vldebias.judge.plan import GeneratedImages
from vldebias.measure.result import NONE, TaskResult
from vldebias.progress import SILENT, Progress
from vldebias.schema import file_slug

BATCH = 64
ENOUGH = 2048  # images for an FID that is read by itself
ABOUT = {
    "CLIPScore": (
        "CLIPScore of every image with the prompt that it was generated from, max(w cos, 0); the"
        " text is not projected. Mean over prompts, resampled over prompts with their images. The"
        " model that scores has biases of its own."
    ),
    "FID": (
        "Frechet distance between the features of generated images and of a reference, as"
        " Gaussians. Few images bias it upwards, every variant alike."
    ),
}


def judge_images(
    judge: Judge, images: GeneratedImages, progress: Progress = SILENT
) -> Probabilities:
    """Return attribute -> probabilities (n, values) for n images, in their order.

    Answers are stored in the folder, by path and hash of an image: a new or changed image is
    judged, others are read.

    Raises:
        InvalidInputError: images are missing, or the judge answers in a wrong shape.
    """
    if missing := [image.path for image in images if not images.path(image).is_file()]:
        came = f"{len(missing)} of {len(images)} images are missing, such as {missing[0]}"
        raise InvalidInputError(
            f"{images.folder}: {came}; generate again, which goes on where it stopped"
        )
    name = f"{file_slug(judge.name)}-{file_slug(judge.fingerprint)[:16]}.jsonl"
    path, keys = images.folder / "judgements" / name, _keys(images)
    if not path.exists():
        names = {attribute: list(values) for attribute, values in judge.names.items()}
        write_atomically(path, json.dumps({"name": judge.name, "names": names}))
    known = _stored(path)
    todo = [(image, key) for image, key in zip(images, keys, strict=True) if key not in known]
    bars = progress.bar("judging", len(todo), reused=len(keys) - len(todo))
    with path.open("a", encoding="utf-8") as file, bars as advance:
        for start in range(0, len(todo), BATCH):
            batch = todo[start : start + BATCH]
            said = predict(judge, [images.read(image) for image, _ in batch])
            for i, (_, key) in enumerate(batch):
                known[key] = {
                    attribute: np.round(rows[i], 6).tolist() for attribute, rows in said.items()
                }
                file.write(
                    "\n" + json.dumps({key: known[key]})
                )  # the line before may be torn by a kill
            file.flush()
            advance(len(batch))
    return {
        attribute: np.array([known[key][attribute] for key in keys]) for attribute in judge.names
    }


def last_judgements(
    images: GeneratedImages, attribute: str, values: Sequence[str]
) -> tuple[str, list[str], np.ndarray] | None:
    """Return what the newest judge in a folder said that knows these values of an attribute; None
    if there is none.

    That is its name; its answer for every image, one of `values` or NO_VALUE; and its probability
    (n,), 0 for images that changed since or were never judged.
    """
    files = images.folder.glob("judgements/*.jsonl")
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        known = _stored(path)
        if set(values) <= set(names := known["names"].get(attribute, ())):
            never = {attribute: [0.0] * len(names)}
            chances = np.array([known.get(key, never)[attribute] for key in _keys(images)])
            codes = decide(chances, names, SURE).codes
            seen = [
                names[code] if code >= 0 and names[code] in values else NO_VALUE for code in codes
            ]
            return known["name"], seen, chances.max(axis=1)
    return None


def _keys(images: GeneratedImages) -> list[str]:
    """Return path and hash of every image file; the hash of a missing one is "-"."""
    files = [(image.path, images.path(image)) for image in images]
    return [f"{path} {digest(file)[:24] if file.is_file() else '-'}" for path, file in files]


def _stored(path: Path) -> dict[str, Any]:
    """Return "name" and "names" of the judge, and its answers by key; a line that was cut off is
    left out."""
    known = dict[str, Any]()
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            known |= json.loads(line)
    return known


def scored(
    made: GeneratedImages,
    encoder: ImageEncoder,
    texts: Host,
    name: str,
    *,
    clip: bool,
    fid: bool,
    **boot: Any,
) -> list[TaskResult]:
    """Return the blocks of CLIPScore and FID, as far as asked for, of the images of prompts that
    state no value.

    encoder, texts: the image and the text side of the same model. boot: resamples, seed.
    """

    def block(what: str, n: Mapping[str, int], settings: Mapping[str, Any]) -> TaskResult:
        about = {
            "task": f"{name}: {what}",
            "title": f"{what} of generated images",
            "description": ABOUT[what],
        }
        results.append(made.result(**about, n=n, settings=settings))
        return results[-1]

    plain = sorted(
        (one for one in made if one.stated is None), key=lambda one: (one.prompt, one.seed)
    )
    features, results = dict[str, Tensor](), list[TaskResult]()
    for variant in made.plan.variants:  # "none" first, which FID compares with
        own = [one for one in plain if one.variant == variant]
        batches = (
            [made.read(one) for one in own[i : i + BATCH]] for i in range(0, len(own), BATCH)
        )
        if own:
            features[variant] = torch.cat([encoder.encode(batch).double() for batch in batches])
    if clip:
        prompts = [one.prompt for one in plain if one.variant == NONE]
        names, index, sizes = np.unique(prompts, return_inverse=True, return_counts=True)
        wanted, values = normalize(texts.embed(names.tolist()).double(), dim=1)[index], {}
        for variant, of in features.items():
            # Hessel et al., section 3: cut off at zero for each image; torchmetrics cuts the mean
            # off.
            each = 100 * (normalize(of, dim=1) * wanted).sum(1).clamp(min=0).numpy()
            # Means of prompts are the units, or the images where there is one prompt.
            values[variant] = each if len(sizes) == 1 else np.bincount(index, weights=each) / sizes
        n = {"prompts": len(sizes), "images": len(index)}
        how: dict[str, Any] = {
            "scale": "percent: 100 max(cos, 0)",
            "scored by": encoder.name,
            **boot,
        }
        how |= {"preprocessing": encoder.preprocessing, "image tower": encoder.fingerprint}
        block("CLIPScore", n, how | {"text tower": texts.weights}).add_resampled(
            "clip_score", values, n=n, **boot
        )
    if fid:
        count, dim = features[NONE].shape
        if count < (enough := max(ENOUGH, dim + 1)):
            warn(
                f"FID of {count} images: fewer than {enough} bias it upwards; compare figures of as"
                " many images"
            )
        network: Any = nn.Identity()  # features are there, where torchmetrics expects a network
        network.num_features = dim
        metric = need("torchmetrics.image.fid").FrechetInceptionDistance(
            network, reset_real_features=False
        )
        metric.update(features.pop(NONE), real=True)
        distances = {}
        for variant, of in features.items():
            metric.reset()
            metric.update(of, real=False)
            distances[variant] = float(metric.compute())
        n = {"images": count, "reference images": count}
        how = {"features": encoder.name, "dimensions": dim, "feature weights": encoder.fingerprint}
        how |= {
            "reference": "the images of the pipeline without a method",
            "value": "torchmetrics, in float64",
        }
        block("FID", n, how).add_draws("fid", distances, n=n)
    return results
