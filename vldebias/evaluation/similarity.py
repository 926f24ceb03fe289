"""How much of the picture stays: each image beside the one that "none" drew from the same prompt and the same noise.

LPIPS (Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", 2018) through
torchmetrics, 0 for the same picture; or the cosine of two feature vectors, such as those of DINO. A person who is drawn
with another attribute is another picture: the figure says what a method costs beside what it was to change, and a
method that changes nothing is the best by it. Both need pretrained weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from vldebias.errors import InvalidInputError, need
from vldebias.evaluation.drawing import SharedImages, drawn_details, drawn_provenance
from vldebias.evaluation.plan import Drawn
from vldebias.evaluation.result import Provenance, TaskResult
from vldebias.evaluation.variants import NONE
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.hub import NO_CODE, asked_once, reason
from vldebias.metrics.metric import Metric
from vldebias.pictures import read_png

if TYPE_CHECKING:
    from PIL.Image import Image

BACKBONES = {
    "alex": "alexnet-owt-7be5be79.pth",
    "squeeze": "squeezenet1_1-b8a52dc0.pth",
    "vgg": "vgg16-397923af.pth",
}


class Likeness(Protocol):
    """What compares pictures. metric: its name in a result. network: the weights, for the protocol."""

    name: str
    metric: str | Metric
    network: nn.Module

    def __call__(self, images: Sequence[Image], others: Sequence[Image]) -> Tensor:
        """One number (b,) for each pair of RGB images of one size."""


class Lpips:
    """The distance of torchmetrics, "lpips".

    Args:
        net: backbone of torchvision, "alex", "squeeze" or "vgg". device: where to compute.

    Raises:
        InvalidInputError: the backbone's weights are neither there nor to be had; the message says where to put them.
    """

    metric: str | Metric = "lpips"

    def __init__(self, net: str = "alex", *, device: str = "cpu") -> None:
        LearnedPerceptualImagePatchSimilarity = need("torchmetrics.image.lpip").LearnedPerceptualImagePatchSimilarity

        if net not in BACKBONES:
            raise InvalidInputError(f"net: expected one of {', '.join(BACKBONES)}, got {net!r}")
        try:
            metric = LearnedPerceptualImagePatchSimilarity(net)
        except OSError as error:
            raise InvalidInputError(
                f"LPIPS: the weights of its backbone cannot be had: {str(error).strip()}. Offline, put "
                f"{BACKBONES[net]} of download.pytorch.org/models into {Path(torch.hub.get_dir()) / 'checkpoints'}"
            ) from error
        self.network: nn.Module = metric.net.to(device)
        self.name, self._device = f"LPIPS of torchmetrics, {net}", device

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image], others: Sequence[Image]) -> Tensor:
        """Distances (b,), at least 0."""
        pair = [np.stack([np.asarray(i.convert("RGB")) for i in side]) for side in (images, others)]
        pixels = [torch.from_numpy(side).permute(0, 3, 1, 2).to(self._device) / 127.5 - 1 for side in pair]
        distances: Tensor = self.network(*pixels)
        return distances.flatten().cpu()


class Dino:
    """Cosine of the class tokens of a vision transformer of transformers, "dino".

    Args:
        model: a folder or a name, such as "facebook/dinov2-base". device: where to compute.

    Raises:
        InvalidInputError: it cannot be loaded.
    """

    metric: str | Metric = "dino"

    def __init__(self, model: str | Path, *, device: str = "cpu") -> None:
        transformers = need("transformers")

        try:
            with asked_once(model):
                self._processor = transformers.AutoImageProcessor.from_pretrained(str(model), **NO_CODE)
                # never a pickle, which transformers would take where there is nothing else
                network = transformers.AutoModel.from_pretrained(str(model), use_safetensors=True, **NO_CODE)
            self.network: nn.Module = network.to(device).eval()
        except Exception as error:  # on damaged files the library raises whatever it stumbles over
            raise InvalidInputError(
                f"dino: {reason(error)}; expected a folder with a vision transformer in "
                "safetensors and its image processor, as save_pretrained writes them, or the name of one that can be "
                "downloaded"
            ) from error
        self.name, self._device = str(model), device

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image], others: Sequence[Image]) -> Tensor:
        """Cosines (b,)."""
        pixels = self._processor(images=[i.convert("RGB") for i in (*images, *others)], return_tensors="pt")
        tokens = self.network(pixels["pixel_values"].to(self._device)).last_hidden_state[:, 0]
        return cosine_similarity(*tokens.cpu().chunk(2))


def evaluate_similarity(
    records: Iterable[Drawn],
    folder: str | Path,
    likeness: Likeness,
    *,
    task: str,
    subset: str = "",
    drawn: Provenance | None = None,
    batch_size: int = 32,
    resamples: int = 2000,
    seed: int = 0,
    on_step: Callable[[int], None] | None = None,
) -> TaskResult:
    """The metric of `likeness` for every variant, against the images of "none"; a mean over prompts.

    Args:
        records: images of "none" and other variants; those whose prompt and seed every variant has are compared.
        folder: where the paths of the records start.
        likeness: `Lpips`, `Dino`, or another one.
        subset, drawn, on_step: see `vldebias.evaluation.clip_score.evaluate_clip_score`.

    Raises:
        InvalidInputError: no image that every variant has, or none of "none".
    """
    images = SharedImages(records, folder)
    if NONE not in images.variants or len(images.variants) < 2 or not images.common:
        raise InvalidInputError(
            f"{likeness.name}: expected images of 'none' and of other variants for the same prompts and seeds, got "
            f"{len(images.common)} such images of {list(images.variants)}; draw both"
        )
    _, index, sizes = np.unique([prompt for prompt, _ in images.common], return_inverse=True, return_counts=True)

    def pictures(variant: str, keys: Sequence[tuple[str, int]]) -> list[Image]:
        return [read_png(Path(folder) / images.variants[variant][key].path)[0] for key in keys]

    found: dict[str, list[Tensor]] = {variant: [] for variant in images.variants if variant != NONE}
    keys = iter(images.common)
    while batch := list(islice(keys, batch_size)):
        bare = pictures(NONE, batch)
        for variant, rows in found.items():
            rows.append(likeness(bare, pictures(variant, batch)))
        if on_step is not None:
            on_step(len(batch))
    scores = {variant: torch.cat(rows).double().numpy() for variant, rows in found.items()}
    if len(sizes) > 1:  # means of prompts are the units, or the images where there is one prompt
        scores = {v: np.bincount(index, weights=rows) / sizes for v, rows in scores.items()}
    mark, n = weights_fingerprint(likeness.network), {"prompts": len(images.prompts), "images": len(images.common)}
    provenance = drawn_provenance(
        drawn,
        images.variants,
        images.prompts,
        (seed for _, seed in images.common),
        task=task,
        title="Likeness of drawn images to those of the unprojected pipeline",
        description="Each image beside that of 'none' with the same prompt and noise; resampled over prompts.",
        n=n,
        settings={
            "compared by": likeness.name,
            "weights": mark and mark.to_dict(),
            "batch size": batch_size,
            "resamples": resamples,
            "seed": seed,
        },
    )
    result = TaskResult(provenance, details=drawn_details(drawn, images.variants))
    how: dict[str, Any] = {"resamples": resamples, "seed": seed}
    result.add_resampled(likeness.metric, scores, n=n, subset=subset, **how)
    return result
