"""FID: how far the features of drawn images are from those of other images, both taken as Gaussians.

Source: Heusel et al., "GANs Trained by a Two Time-Scale Update Rule" (2017); on features of a CLIP it is the CLIP-FID
of Kynkäänniemi et al., "The Role of ImageNet Classes in Fréchet Inception Distance" (2023). It is biased upwards with
few images, by another amount for every number of images, extractor and way of resizing: compare figures of one run.
A debiased pipeline should move away from images that have the bias, so a larger distance to such images is not by
itself a loss of quality.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.evaluation.drawing.protocol import drawn_details, drawn_protocol
from vldebias.evaluation.drawing.record import DrawnRecord, by_variant
from vldebias.evaluation.part import Part
from vldebias.evaluation.result import Figure
from vldebias.evaluation.result import Protocol as RunProtocol
from vldebias.evaluation.scores.encoding import encoded, read_image
from vldebias.evaluation.scores.gaussians import FrechetReference, jackknife

__all__ = ["ENOUGH", "UNPROJECTED", "Extractor", "evaluate_fid"]

ENOUGH = 2048
UNPROJECTED = "the images of the unprojected pipeline"
TOLD = (
    "Frechet distance between the features of drawn images and of a reference, as Gaussians. The interval is a "
    "delete-a-block jackknife over prompts with their images, the reference held fixed; it does not contain the upward "
    "bias of few images, which variants drawn alike share."
)


class Extractor(Protocol):
    """What gives features: an `ImageEncoder` of an image-text model, or `InceptionFeatures`."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def preprocessing(self) -> str: ...  # noqa: D102

    @property
    def fingerprint(self) -> dict[str, Any] | None: ...  # noqa: D102

    @property
    def dim(self) -> int: ...  # noqa: D102

    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        """Features (b, d) of RGB images."""


def evaluate_fid(
    records: Iterable[DrawnRecord],
    folder: str | Path,
    extractor: Extractor,
    *,
    task: str,
    reference: Iterable[Image.Image] | None = None,
    reference_name: str = UNPROJECTED,
    subset: str = "",
    drawn: RunProtocol | None = None,
    blocks: int = 20,
    batch_size: int = 64,
    on_step: Callable[[int], None] | None = None,
) -> list[Part]:
    """Metric `fid` of every variant, with its paired change to "none".

    Args:
        records: images of one or more variants; those whose prompt and seed every variant has are compared.
        folder: where the paths of the records start.
        extractor: an `ImageEncoder` for CLIP-FID, or `InceptionFeatures`.
        reference: other images, RGB, read once and not kept. None: the images of "none" are the reference; the figure
            then says how far a variant moved away from them, and there is none for "none".
        reference_name: what they are, for the report.
        subset: what the figures are about, such as "unseen professions".
        drawn: protocol of the run that drew the images, for its prompts, methods and seeds.
        blocks: of prompts (of images, where there is one prompt) that are left out in turn for the interval.
        on_step: told how many images were read, batch by batch.

    Raises:
        InvalidInputError: no image that every variant has, fewer than two prompts or images to leave out, an image
            that cannot be read, no "none" where it is the reference or nothing beside it.
    """
    variants = by_variant(records)
    common = sorted(set.intersection(*(set(images) for images in variants.values())))
    index = _blocks([prompt for prompt, _ in common], blocks)

    def features(variant: str) -> Iterable[Tensor]:
        files = (read_image(Path(folder) / variants[variant][key].path) for key in common)
        return encoded(files, extractor.encode, batch_size, on_step)

    measured = [variant for variant in variants if reference is not None or variant != "none"]
    _check_reference(reference, list(variants))
    seen = features("none") if reference is None else encoded(reference, extractor.encode, batch_size, on_step)
    target = FrechetReference(seen, extractor.dim)
    n = {"images": len(common), "reference images": target.moments.n, "blocks": int(index.max()) + 1}
    _warn_of_few(n, extractor.dim)
    values, left_out = {}, {}
    for variant in measured:
        rows = torch.cat(list(features(variant)))
        values[variant], left_out[variant] = target.distance(rows), target.left_out(rows.double(), index)
    shared = {"task": task, "subset": subset, "n": n}
    found = _figures(values, left_out, shared, drawn_details(drawn, measured))
    settings = _settings(extractor, reference_name, common) | {"blocks": n["blocks"], "batch size": batch_size}
    protocol = drawn_protocol(
        drawn,
        task=task,
        title="FID of drawn images",
        told=TOLD,
        prompts=list(dict.fromkeys(prompt for prompt, _ in common)),
        variants=variants,
        seeds=(seed for _, seed in common),
        n=n,
        settings=settings,
    )
    return [Part(found, protocol)]


def _check_reference(reference: Iterable[Image.Image] | None, variants: list[str]) -> None:
    if reference is None and ("none" not in variants or len(variants) == 1):
        raise InvalidInputError(
            f"FID: without reference= the images of 'none' are compared with those of other variants, got {variants}; "
            "draw both, or give images to compare with"
        )


def _blocks(prompts: Sequence[str], blocks: int) -> NDArray[np.int64]:
    """Block of each image: whole prompts are dealt out in turn, or images where there is one prompt."""
    if blocks < 2:
        raise InvalidInputError(f"blocks: expected at least 2 to leave out in turn, got {blocks}")
    _, unit = np.unique(prompts, return_inverse=True) if prompts else ([], np.zeros(0, dtype=np.int64))
    if len(unit) and unit.max() == 0:
        unit = np.arange(len(prompts))
    if len(unit) < 4 or np.bincount(unit % blocks).max() > len(unit) - 2:
        raise InvalidInputError(
            f"FID: {len(prompts)} images were drawn under every variant; expected at least 4, so that some are left "
            "when a block is left out"
        )
    return (unit % blocks).astype(np.int64)


def _figures(
    values: Mapping[str, float],
    left_out: Mapping[str, NDArray[np.float64]],
    shared: Mapping[str, Any],
    details: Mapping[str, Mapping[str, Any]],
) -> list[Figure]:
    found = []
    for variant, value in values.items():
        low, high = jackknife(value, left_out[variant])
        change = None
        if variant != "none" and "none" in values:
            moved = value - values["none"]
            change = (moved, *jackknife(moved, left_out[variant] - left_out["none"]))
        found.append(
            Figure(
                metric="fid",
                method=variant,
                value=value,
                interval=(max(low, 0.0), high),
                change=change,
                better="lower",
                **shared,
                **details[variant],
            )
        )
    return found


def _settings(extractor: Extractor, reference_name: str, common: Sequence[tuple[str, int]]) -> dict[str, Any]:
    return {
        "features": extractor.name,
        "dimensions": extractor.dim,
        "feature weights": extractor.fingerprint,
        "preprocessing": extractor.preprocessing,
        "reference": reference_name,
        "left out in turn": "prompts" if len({prompt for prompt, _ in common}) > 1 else "images of the one prompt",
        "value": "torchmetrics FrechetInceptionDistance, in float64",
    }


def _warn_of_few(n: Mapping[str, int], dim: int) -> None:
    fewest, wanted = min(n["images"], n["reference images"]), max(ENOUGH, dim + 1)
    if fewest >= wanted:
        return
    singular = f", and with {dim} dimensions their covariance is singular" if fewest <= dim else ""
    warnings.warn(
        f"FID of {n['images']} images to {n['reference images']}: fewer than {wanted} bias it upwards{singular}; "
        "compare variants with the same number of images, and do not compare with figures of others",
        VldebiasWarning,
        stacklevel=3,
    )
