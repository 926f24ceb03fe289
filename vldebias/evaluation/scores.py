"""Measure the quality that images lose: CLIPScore against their prompts, and FID against the images of "none".

CLIPScore (Hessel et al., 2021) looks at images through a CLIP, with the prejudices of that CLIP: one that associates
nurses with women scores a man in a nurse's uniform lower. A lower score after debiasing may therefore be the scorer's
bias and not a worse image. Measure with another backbone than the one that was debiased, and read the score beside
`recognised` and the labels of people.

FID (Heusel et al., "GANs Trained by a Two Time-Scale Update Rule", 2017) is the distance of two sets of features, both
taken as Gaussians, here of a CLIP (Kynkäänniemi et al., 2023). Few images bias it upwards: compare figures of one run.
A debiased pipeline should move away from images that have the bias, so a larger distance is not by itself a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, need, warn
from vldebias.evaluation.drawing import Drawn, DrawnSet
from vldebias.evaluation.result import NONE, TaskResult
from vldebias.evaluation.session import Texts

if TYPE_CHECKING:
    from PIL.Image import Image

    from vldebias.hosts.images import ImageEncoder

BATCH = 64
ENOUGH = 2048  # images for an FID that is read by itself


def plain(drawn: DrawnSet) -> dict[str, list[Drawn]]:
    """Return variant -> its images of prompts that state no value, in the same order of prompts and seeds."""
    images: dict[str, list[Drawn]] = {}
    for image in sorted(drawn, key=lambda one: (one.prompt, one.seed)):
        if image.stated is None:
            images.setdefault(image.variant, []).append(image)
    return {name: images[name] for name in drawn.plan.variants if name in images}


def _batches(drawn: DrawnSet, images: Sequence[Drawn]) -> Iterator[list[Image]]:
    for start in range(0, len(images), BATCH):
        try:
            yield [drawn.read(image) for image in images[start : start + BATCH]]
        except OSError as error:
            raise InvalidInputError(f"{error}: cannot be read as an image; draw it again") from error


def clip_score(drawn: DrawnSet, encoder: ImageEncoder, texts: Texts, *, task: str, **boot: Any) -> TaskResult:
    """Return `clip_score` of every variant, 100 max(cos(image, prompt), 0) (Hessel et al., section 3).

    torchmetrics cuts the mean off at zero and not each image. A projection attached to the model is ignored.

    encoder, texts: the image and the text side of the same model. boot: resamples, seed.
    """
    images, values = plain(drawn), {}
    prompts, index, sizes = np.unique([i.prompt for i in images[NONE]], return_inverse=True, return_counts=True)
    rows = normalize(texts.embed(prompts.tolist()).double(), dim=1)[index]
    for variant, own in images.items():
        features = torch.cat([encoder.encode(batch) for batch in _batches(drawn, own)])
        scores = 100 * (normalize(features.double(), dim=1) * rows).sum(1).clamp(min=0).numpy()
        # Means of prompts are the units, or the images where there is one prompt.
        values[variant] = scores if len(sizes) == 1 else np.bincount(index, weights=scores) / sizes
    n = {"prompts": len(sizes), "images": len(index)}
    result = drawn.result(
        task=task,
        title="CLIPScore of generated images",
        description="CLIPScore of every image with the prompt that it was generated from, max(w cos, 0); the text is "
        "not projected. Mean over prompts, resampled over prompts with their images. The model that scores has biases "
        "of its own.",
        n=n,
        settings={
            "scale": "percent: 100 max(cos, 0)",
            "scored by": encoder.name,
            "image tower": encoder.fingerprint,
            "text tower": texts.fingerprint,
            "preprocessing": encoder.preprocessing,
            **boot,
        },
    )
    result.add_resampled("clip_score", values, n=n, **boot)
    return result


def fid(drawn: DrawnSet, encoder: ImageEncoder, *, task: str) -> TaskResult:
    """Return `fid` of the images of every variant to those of "none", on image-encoder features; no interval."""
    images = plain(drawn)
    metric = need("torchmetrics.image.fid").FrechetInceptionDistance(_Given(encoder.dim), reset_real_features=False)
    n, enough = {"images": len(images[NONE]), "reference images": len(images[NONE])}, max(ENOUGH, encoder.dim + 1)
    if n["images"] < enough:
        warn(
            f"FID of {n['images']} images: fewer than {enough} bias it upwards; compare variants with the same "
            "number of images, and do not compare with figures of others"
        )
    values = {}
    for variant, own in images.items():  # "none" first, which the metric keeps
        metric.reset()
        for batch in _batches(drawn, own):
            metric.update(encoder.encode(batch).double(), real=variant == NONE)
        if variant != NONE:
            values[variant] = float(metric.compute())
    result = drawn.result(
        task=task,
        title="FID of generated images",
        description="Frechet distance between the features of generated images and of a reference, as Gaussians. Few "
        "images bias it upwards, every variant alike.",
        n=n,
        settings={
            "features": encoder.name,
            "dimensions": encoder.dim,
            "feature weights": encoder.fingerprint,
            "reference": "the images of the pipeline without a method",
            "value": "torchmetrics FrechetInceptionDistance, in float64",
        },
    )
    result.add_draws("fid", values, n=n)
    return result


class _Given(nn.Module):
    """Features that were computed before, where torchmetrics expects a network."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_features = dim

    def forward(self, features: Tensor) -> Tensor:
        return features
