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

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import Lazily, need, warn
from vldebias.evaluation.plan import GeneratedImages
from vldebias.evaluation.result import NONE, TaskResult
from vldebias.evaluation.session import Texts
from vldebias.hosts.images import ImageEncoder, image_encoder
from vldebias.loading import Loaded

if TYPE_CHECKING:
    import pandas as pd
else:
    pd = Lazily("pandas")

BATCH = 64
ENOUGH = 2048  # images for an FID that is read by itself
Features = Mapping[str, tuple[list[str], Tensor]]


def scored(made: GeneratedImages, scorer: Loaded, name: str, *, clip: bool, fid: bool, **boot: Any) -> list[TaskResult]:
    """Return the CLIPScore and FID of generated images; scorer: an image-text model with its preprocessing."""
    encoder, texts = (
        image_encoder(scorer.host, scorer.preprocess, name=scorer.name),
        Texts(scorer.host, scorer.tokenizer),
    )
    features = features_of(made, encoder)
    results = [clip_score(made, features, encoder, texts, task=f"{name}: CLIPScore", **boot)] if clip else []
    return results + ([distance(made, features, encoder, task=f"{name}: FID")] if fid else [])


def features_of(made: GeneratedImages, encoder: ImageEncoder) -> Features:
    """Return variant -> prompts (n,) and features (n, d) of the images of prompts that state no value.

    They are in the same order of prompts and seeds under every variant, the first of which is "none".
    """
    table = pd.DataFrame(made.images).assign(image=made.images)
    plain = table[table.stated.isna()].sort_values(["prompt", "seed"], kind="stable")
    found = {}
    for variant, own in plain.groupby("variant", sort=False):
        images = [own.image.iloc[start : start + BATCH] for start in range(0, len(own), BATCH)]
        batches = [encoder.encode([made.read(image) for image in batch]).double() for batch in images]
        found[str(variant)] = own.prompt.tolist(), torch.cat(batches)
    return found


def clip_score(
    made: GeneratedImages, features: Features, encoder: ImageEncoder, texts: Texts, *, task: str, **boot: Any
) -> TaskResult:
    """Return `clip_score` of every variant, 100 max(cos(image, prompt), 0) (Hessel et al., section 3).

    torchmetrics cuts the mean off at zero and not each image. A projection attached to the model is ignored.

    encoder, texts: the image and the text side of the same model. boot: resamples, seed.
    """
    prompts, index, sizes = np.unique(features[NONE][0], return_inverse=True, return_counts=True)
    rows, values = normalize(texts.embed(prompts.tolist()).double(), dim=1)[index], {}
    for variant, (_, own) in features.items():
        scores = 100 * (normalize(own, dim=1) * rows).sum(1).clamp(min=0).numpy()
        # Means of prompts are the units, or the images where there is one prompt.
        values[variant] = scores if len(sizes) == 1 else np.bincount(index, weights=scores) / sizes
    n = {"prompts": len(sizes), "images": len(index)}
    result = made.result(
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


def distance(made: GeneratedImages, features: Features, encoder: ImageEncoder, *, task: str) -> TaskResult:
    """Return `fid` of the images of every variant to those of "none", on image-encoder features; no interval."""
    count, dim = features[NONE][1].shape
    metric = need("torchmetrics.image.fid").FrechetInceptionDistance(_Given(dim), reset_real_features=False)
    if count < (enough := max(ENOUGH, dim + 1)):
        warn(
            f"FID of {count} images: fewer than {enough} bias it upwards; compare variants with the same number of "
            "images, and do not compare with figures of others"
        )
    values = {}
    for variant, (_, own) in features.items():  # "none" first, which the metric keeps
        metric.reset()
        for batch in own.split(BATCH):
            metric.update(batch, real=variant == NONE)
        if variant != NONE:
            values[variant] = float(metric.compute())
    n = {"images": count, "reference images": count}
    result = made.result(
        task=task,
        title="FID of generated images",
        description="Frechet distance between the features of generated images and of a reference, as Gaussians. Few "
        "images bias it upwards, every variant alike.",
        n=n,
        settings={
            "features": encoder.name,
            "dimensions": dim,
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
