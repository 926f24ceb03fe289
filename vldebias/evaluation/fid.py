"""FID: how far the features of drawn images are from those of other images, both taken as Gaussians.

Source: Heusel et al., "GANs Trained by a Two Time-Scale Update Rule" (2017); on features of a CLIP it is the CLIP-FID
of Kynkäänniemi et al., "The Role of ImageNet Classes in Fréchet Inception Distance" (2023). It is biased upwards with
few images, by another amount for every number of images, extractor and way of resizing: compare figures of one run. A
debiased pipeline should move away from images that have the bias, so a larger distance to such images is not by itself
a loss of quality.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from vldebias.errors import InvalidInputError, need, warn
from vldebias.evaluation.drawing import SharedImages, encoded
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.task import Count, Strict
from vldebias.evaluation.variants import NONE
from vldebias.hosts.fingerprint import weights_fingerprint

if TYPE_CHECKING:
    from PIL.Image import Image

    from vldebias.hosts.images import ImageEncoder

Floats = NDArray[np.float64]
ENOUGH = 2048  # images for an FID that is read by itself
UNPROJECTED = "the images of the unprojected pipeline"
INCEPTION = "weights-inception-2015-12-05-6726825d.pth of github.com/toshas/torch-fidelity"
ABOUT_FID = (
    "Frechet distance between the features of drawn images and of a reference, as Gaussians. The interval is a "
    "delete-a-block jackknife over prompts with their images, the reference held fixed; it does not contain the upward "
    "bias of few images, which variants drawn alike share."
)


class Fid(Strict):
    """Metric `fid` of drawn images.

    features: "clip" (the model of CLIPScore) or "inception" (needs torch-fidelity, and downloads its weights).
    blocks: of prompts (of images, where there is one prompt) that are left out in turn for the interval.
    """

    features: Literal["clip", "inception"] = "clip"
    blocks: Annotated[int, Field(ge=2)] = 20
    batch_size: Count = 64

    def measure(
        self,
        images: SharedImages,
        extractor: ImageEncoder | InceptionFeatures,
        *,
        task: str,
        reference: Iterable[Image] | None = None,
        reference_name: str = UNPROJECTED,
    ) -> TaskResult:
        """The distance of every variant, with its paired change to "none".

        Args:
            images: of one or more variants; those whose prompt and seed every variant has are compared.
            extractor: an `ImageEncoder` for CLIP-FID, or `InceptionFeatures`.
            task: name of the block.
            reference: other images, RGB, read once and not kept. None: the images of "none" are the reference; the
                figure then says how far a variant moved away from them, and there is none for "none".
            reference_name: what they are, for the report.

        Raises:
            InvalidInputError: no image that every variant has, fewer than two prompts or images to leave out, an image
                that cannot be read, no "none" where it is the reference or nothing beside it.
        """
        index = _blocks([prompt for prompt, _ in images.common], self.blocks)
        measured = [variant for variant in images.variants if reference is not None or variant != NONE]
        if reference is None and (NONE not in images.variants or not measured):
            raise InvalidInputError(
                "FID: without reference= the images of 'none' are compared with those of other variants, got "
                f"{list(images.variants)}; draw both, or give images to compare with"
            )
        read: dict[str, Any] = {"encode": extractor.encode, "batch_size": self.batch_size}
        features = images.features(NONE, **read) if reference is None else encoded(reference, **read)
        target = FrechetReference(features, extractor.dim)
        n = {"images": len(images.common), "reference images": target.moments.n, "blocks": int(index.max()) + 1}
        fewest, enough = min(n["images"], n["reference images"]), max(ENOUGH, extractor.dim + 1)
        if fewest < enough:
            dim = extractor.dim
            singular = f", and with {dim} dimensions their covariance is singular" if fewest <= dim else ""
            warn(
                f"FID of {n['images']} images to {n['reference images']}: fewer than {enough} bias it upwards"
                f"{singular}; compare variants with the same number of images, and do not compare with figures of "
                "others"
            )
        result = images.result(
            task=task,
            title="FID of drawn images",
            description=ABOUT_FID,
            n=n,
            settings={
                "features": extractor.name,
                "dimensions": extractor.dim,
                "feature weights": extractor.fingerprint,
                "preprocessing": extractor.preprocessing,
                "reference": reference_name,
                "left out in turn": "prompts" if len(images.prompts) > 1 else "images of the one prompt",
                "value": "torchmetrics FrechetInceptionDistance, in float64",
                "blocks": n["blocks"],
                "batch size": self.batch_size,
            },
        )
        values, left_out = {}, {}
        for variant in measured:
            rows = torch.cat(list(images.features(variant, **read)))
            values[variant], left_out[variant] = target.distance(rows), target.left_out(rows.double(), index)
        result.add_draws("fid", values, left_out, n=n, interval=jackknife)
        return result


def _blocks(prompts: Sequence[str], blocks: int) -> NDArray[np.int64]:
    """Block of each image: whole prompts are dealt out in turn, or images where there is one prompt."""
    _, unit = np.unique(prompts, return_inverse=True) if prompts else ([], np.zeros(0, dtype=np.int64))
    if len(unit) and unit.max() == 0:
        unit = np.arange(len(prompts))
    if len(unit) < 4 or np.bincount(unit % blocks).max() > len(unit) - 2:
        raise InvalidInputError(
            f"FID: {len(prompts)} images were drawn under every variant; expected at least 4, so that some are left "
            "when a block is left out"
        )
    return (unit % blocks).astype(np.int64)


@dataclass(frozen=True, eq=False)
class Moments:
    """Number of rows, their sum (d,) and the sum of their outer products (d, d), in float64: what a Gaussian needs."""

    n: int
    total: Tensor
    outer: Tensor

    @classmethod
    def of(cls, features: Tensor) -> Moments:
        """Of rows (n, d)."""
        rows = features.double()
        return cls(len(rows), rows.sum(0), rows.T @ rows)

    def __add__(self, other: Moments) -> Moments:
        return Moments(self.n + other.n, self.total + other.total, self.outer + other.outer)

    def __sub__(self, other: Moments) -> Moments:
        return Moments(self.n - other.n, self.total - other.total, self.outer - other.outer)

    @property
    def mean(self) -> Tensor:
        """(d,)."""
        return self.total / self.n

    @property
    def covariance(self) -> Tensor:
        """(d, d), unbiased."""
        return (self.outer - self.n * torch.outer(self.mean, self.mean)) / (self.n - 1)


class FrechetReference:
    """|m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)) of sets of features to one reference, both taken as Gaussians.

    Args:
        batches: features (b, d) of the reference; read once, only sums are kept.
        dim: d.

    Raises:
        InvalidInputError: fewer than two rows, rows of another width, or not finite.
    """

    def __init__(self, batches: Iterable[Tensor], dim: int) -> None:
        FrechetInceptionDistance = need("torchmetrics.image.fid").FrechetInceptionDistance

        self._metric = FrechetInceptionDistance(feature=_Given(dim), reset_real_features=False)
        self._dim = dim
        self.moments = Moments(0, torch.zeros(dim, dtype=torch.float64), torch.zeros(dim, dim, dtype=torch.float64))
        for batch in batches:
            self._metric.update(self._checked(batch), real=True)
            self.moments = self.moments + Moments.of(batch)
        if self.moments.n < 2:
            raise InvalidInputError(f"FID: expected two or more images in the reference, got {self.moments.n}")
        values, vectors = torch.linalg.eigh(self.moments.covariance)
        self._root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T

    def distance(self, features: Tensor) -> float:
        """Of rows (n, d), n >= 2, by torchmetrics.

        Raises:
            InvalidInputError: fewer than two rows, rows of another width, or not finite.
        """
        if len(features) < 2:
            raise InvalidInputError(f"FID: expected two or more images, got {len(features)}")
        self._metric.reset()
        self._metric.update(self._checked(features), real=False)
        return float(self._metric.compute())

    def left_out(self, features: Tensor, blocks: NDArray[np.int64]) -> Floats:
        """Distance (g,) of the rows without each of the blocks 0 .. g - 1 in turn.

        The same quantity as `distance`, from moments that a block is taken off: with the root of the reference
        known, each costs the eigenvalues of one symmetric matrix.
        """
        whole, mask = Moments.of(features), torch.from_numpy(blocks)
        return np.array([self._of(whole - Moments.of(features[mask == block])) for block in range(blocks.max() + 1)])

    def _of(self, one: Moments) -> float:
        shift, covariance = (one.mean - self.moments.mean).square().sum(), one.covariance
        common = torch.linalg.eigvalsh(self._root @ covariance @ self._root).clamp(min=0).sqrt().sum()
        return float(shift + covariance.trace() + self.moments.covariance.trace() - 2 * common)

    def _checked(self, batch: Tensor) -> Tensor:
        if batch.ndim != 2 or batch.shape[1] != self._dim or not torch.isfinite(batch).all():
            raise InvalidInputError(f"features: expected finite (n, {self._dim}), got {tuple(batch.shape)}")
        return batch.double()


class _Given(nn.Module):
    """Features that were computed before, where torchmetrics expects a network."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.num_features = dim

    def forward(self, features: Tensor) -> Tensor:
        return features


def jackknife(value: float, left_out: Floats) -> tuple[float, float]:
    """95 % interval of `value` from its g values without one of g blocks of about equal size.

    value -+ t_{g-1} se with se^2 = (g - 1) / g sum (v_i - mean)^2 (Efron and Tibshirani, 1993, chapter 11).
    """
    t = need("scipy.stats").t

    g = len(left_out)
    error = np.sqrt((g - 1) / g * ((left_out - left_out.mean()) ** 2).sum())
    by = float(t.ppf(0.975, g - 1) * error)
    return value - by, value + by


class InceptionFeatures:
    """RGB images to the 2048 pooled features of Inception v3, as torchmetrics computes them.

    Args:
        weights: a file with the weights; by default torch-fidelity downloads them once.
        device: where to compute.

    Raises:
        MissingPackageError: torch-fidelity is not installed.
        InvalidInputError: the weights cannot be had.
    """

    name = "Inception v3 of torch-fidelity"
    preprocessing = "uint8, bilinear with antialiasing to 299 x 299 whatever the shape, (x - 128) / 128"
    dim = 2048

    def __init__(self, weights: str | Path | None = None, *, device: str = "cpu") -> None:
        FrechetInceptionDistance = need("torchmetrics.image.fid").FrechetInceptionDistance

        if weights is not None and not Path(weights).is_file():
            raise InvalidInputError(f"{weights}: no such file; expected {INCEPTION}")
        path = None if weights is None else str(weights)
        need("torch_fidelity")  # torchmetrics builds its Inception
        try:
            metric = FrechetInceptionDistance(feature=self.dim, feature_extractor_weights_path=path)
        except (OSError, RuntimeError) as error:
            raise InvalidInputError(
                f"the weights of Inception cannot be had: {str(error).strip().splitlines()[0]}. Offline, pass a file "
                f"with weights= ({INCEPTION}), or use the features of a CLIP"
            ) from error
        self._device = device
        self._network = metric.inception.to(device)

    @cached_property
    def fingerprint(self) -> dict[str, Any] | None:
        """Of the weights."""
        mark = weights_fingerprint(self._network)
        return None if mark is None else mark.to_dict()

    @torch.inference_mode()
    def encode(self, images: Sequence[Image]) -> Tensor:
        """Features (b, 2048); images of one size go through the network together."""
        features = []
        for _, same in groupby(images, key=lambda image: image.size):
            pixels = torch.from_numpy(np.stack([np.asarray(image.convert("RGB")) for image in same]))
            features.append(self._network(pixels.permute(0, 3, 1, 2).to(self._device)).float().cpu())
        return torch.cat(features)
