"""What images lose in quality: CLIPScore against their prompts, and FID against those of "none".

CLIPScore (Hessel et al., 2021) looks at images through a CLIP, with the prejudices of that CLIP: one that takes every
nurse for a woman gives a man in a nurse's uniform less. A lower score after debiasing may therefore be the scorer's
bias and not a worse image. Measure with another backbone than the one that was debiased, and read the score beside
`recognised` and the labels of people.

FID (Heusel et al., "GANs Trained by a Two Time-Scale Update Rule", 2017) is the distance of two sets of features, both
taken as Gaussians; on features of a CLIP it is the CLIP-FID of Kynkäänniemi et al. (2023). Few images bias it upwards,
by another amount for every number of images, extractor and way of resizing: compare figures of one run. A debiased
pipeline should move away from images that have the bias, so a larger distance is not by itself a loss of quality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError, need, warn
from vldebias.evaluation.drawing import Drawn, by_variant, drawn_result
from vldebias.evaluation.result import NONE, TaskProvenance, TaskResult
from vldebias.evaluation.task import Count, Strict, Texts
from vldebias.pictures import read_png

if TYPE_CHECKING:
    from PIL.Image import Image

    from vldebias.hosts.images import ImageEncoder

ENOUGH = 2048  # images for an FID that is read by itself


def clip_score(image_features: Tensor, text_features: Tensor) -> Tensor:
    """Return 100 max(cos(image, text), 0) of each row (n,), section 3 of Hessel et al., "CLIPScore" (2021).

    torchmetrics cuts the mean off at zero, the paper and this function every image.

    Args:
        image_features, text_features: (n, d), in any scale; row i of one belongs to row i of the other.

    Raises:
        InvalidInputError: shapes that are not equal (n, d), features that are zero or not finite.
    """
    shapes = tuple(image_features.shape), tuple(text_features.shape)
    if image_features.ndim != 2 or shapes[0] != shapes[1]:
        raise InvalidInputError(f"clip_score: expected features (n, d) of images and of texts, got {shapes}")
    rows = [normalize(features.double(), dim=1) for features in (image_features, text_features)]
    if not all(bool(torch.isfinite(r).all() and (r.norm(dim=1) > 0.5).all()) for r in rows):
        raise InvalidInputError("clip_score: features that are zero or not finite have no cosine")
    return 100 * (rows[0] * rows[1]).sum(1).clamp(min=0)


class SharedImages:
    """Generated images that every variant has, by prompt and seed, read batch by batch.

    Attributes:
        variants: see `by_variant`. common: prompt and seed of each image; prompts: without repeats.
        folder: where the paths of the records start. origin: provenance of the run that drew them.
    """

    def __init__(self, records: Iterable[Drawn], folder: str | Path, origin: TaskProvenance | None = None) -> None:
        self.variants, self.origin, self.folder = by_variant(records), origin, Path(folder)
        self.common = sorted(set.intersection(*(set(images) for images in self.variants.values())))
        self.prompts = list(dict.fromkeys(prompt for prompt, _ in self.common))
        if not self.common:
            raise InvalidInputError(f"no prompt and seed was drawn under every variant {list(self.variants)}")

    def features(self, variant: str, encode: Callable[[Sequence[Image]], Tensor], size: int) -> Iterator[Tensor]:
        """Yield `encode` of each batch.

        Raises:
            InvalidInputError: an image that cannot be read.
        """
        paths = [self.folder / self.variants[variant][key].path for key in self.common]
        for start in range(0, len(paths), size):
            try:
                images = [read_png(path)[0] for path in paths[start : start + size]]
            except OSError as error:
                raise InvalidInputError(f"{error}: cannot be read as an image; draw it again") from error
            yield encode(images)

    def result(self, **fields: Any) -> TaskResult:
        """An empty block about them; fields as of `drawn_result`."""
        return drawn_result(self.origin, self.variants, self.prompts, (seed for _, seed in self.common), **fields)


class ClipScore(Strict):
    """Metric `clip_score` of generated images against their prompts: the utility beside a discrepancy.

    model, pretrained: what scores; by default --model, else the model of the judge.
    """

    model: str | None = None
    pretrained: str | None = None
    batch_size: Count = 64

    def measure(
        self, images: SharedImages, encoder: ImageEncoder, texts: Texts, *, task: str, resamples: int = 2000,
        seed: int = 0,
    ) -> TaskResult:  # fmt: skip
        """Measure every variant on the images that all have, with its paired change to "none".

        encoder, texts: the image and the text side of the same model. A projection attached to it does not count.
        """
        text = dict(zip(images.prompts, texts.embed(images.prompts), strict=True))
        rows = torch.stack([text[prompt] for prompt, _ in images.common])
        _, index, sizes = np.unique([prompt for prompt, _ in images.common], return_inverse=True, return_counts=True)
        values = {}
        for variant in images.variants:
            scores = clip_score(
                torch.cat(list(images.features(variant, encoder.encode, self.batch_size))), rows
            ).numpy()
            # Means of prompts are the units, or the images where there is one prompt.
            values[variant] = scores if len(sizes) == 1 else np.bincount(index, weights=scores) / sizes
        fingerprint = texts.host.fingerprint()
        n = {"prompts": len(images.prompts), "images": len(images.common)}
        result = images.result(
            task=task,
            title="CLIPScore of generated images",
            description="CLIPScore of every image with the prompt that it was generated from, max(w cos, 0); the text "
            "is not projected. Mean over prompts, resampled over prompts with their images. The model that scores has "
            "biases of its own.",
            n=n,
            settings={
                "scale": "percent: 100 max(cos, 0)",
                "scored by": encoder.name,
                "image tower": encoder.fingerprint,
                "text tower": fingerprint and fingerprint.to_dict(),
                "preprocessing": encoder.preprocessing,
                "resamples": resamples,
                "seed": seed,
            },
        )
        result.add_resampled("clip_score", values, n=n, resamples=resamples, seed=seed)
        return result


class Fid(Strict):
    """Metric `fid` of the images of every variant to those of "none", without an interval.

    features: "clip" (the model of CLIPScore) or "inception" (needs torch-fidelity, which downloads its weights).
    """

    features: Literal["clip", "inception"] = "clip"
    batch_size: Count = 64

    def measure(
        self, images: SharedImages, encoder: ImageEncoder | None = None, *, task: str, device: str = "cpu"
    ) -> TaskResult:
        """Measure every variant on the images that all have.

        encoder: of the features "clip". device: where Inception computes.

        Raises:
            InvalidInputError: fewer than two images that every variant has, no "none" or nothing beside it, no encoder.
        """
        measured = [variant for variant in images.variants if variant != NONE]
        if NONE not in images.variants or not measured or len(images.common) < 2:
            raise InvalidInputError(
                f"FID: expected two or more images of 'none' and of other variants, got {list(images.variants)} and "
                f"{len(images.common)} images that all have; draw more"
            )
        if self.features == "clip" and encoder is None:
            raise InvalidInputError("FID: expected the image side of a model for the features 'clip'")
        metric, encode, dim = _frechet(encoder if self.features == "clip" else None, device)
        n, enough = {"images": len(images.common), "reference images": len(images.common)}, max(ENOUGH, dim + 1)
        if n["images"] < enough:
            warn(
                f"FID of {n['images']} images: fewer than {enough} bias it upwards; compare variants with the same "
                "number of images, and do not compare with figures of others"
            )
        result = images.result(
            task=task,
            title="FID of generated images",
            description="Frechet distance between the features of generated images and of a reference, as Gaussians. "
            "Few images bias it upwards, every variant alike.",
            n=n,
            settings={
                "features": "Inception v3 of torch-fidelity" if encoder is None else encoder.name,
                "dimensions": dim,
                "feature weights": None if encoder is None else encoder.fingerprint,
                "reference": "the images of the pipeline without a method",
                "value": "torchmetrics FrechetInceptionDistance, in float64",
                "batch size": self.batch_size,
            },
        )
        for batch in images.features(NONE, encode, self.batch_size):
            metric.update(batch, real=True)
        values = {}
        for variant in measured:
            metric.reset()
            for batch in images.features(variant, encode, self.batch_size):
                metric.update(batch, real=False)
            values[variant] = float(metric.compute())
        result.add_draws("fid", values, n=n)
        return result


def _frechet(encoder: ImageEncoder | None, device: str) -> tuple[Any, Callable[[Sequence[Image]], Tensor], int]:
    """Return torchmetrics' distance, which keeps its reference, what makes its input of images, and the dimensions."""
    kind = need("torchmetrics.image.fid").FrechetInceptionDistance
    if encoder is not None:
        own = encoder.encode
        return (
            kind(feature=_Given(encoder.dim), reset_real_features=False),
            lambda images: own(images).double(),
            encoder.dim,
        )
    need("torch_fidelity")  # torchmetrics builds its Inception
    try:
        metric = kind(feature=2048, reset_real_features=False).to(device)
    except (OSError, RuntimeError) as error:
        raise InvalidInputError(
            f"the weights of Inception cannot be had: {str(error).strip().splitlines()[0]}. Use the features of a CLIP"
        ) from error

    def stacked(images: Sequence[Image]) -> Tensor:
        pixels = np.stack([np.asarray(image.convert("RGB")) for image in images])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).to(device)

    return metric, stacked, 2048


class _Given(nn.Module):
    """Features that were computed before, where torchmetrics expects a network."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_features = dim

    def forward(self, features: Tensor) -> Tensor:
        return features
