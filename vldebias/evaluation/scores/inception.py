"""The features of the usual FID: Inception v3 with the weights that torch-fidelity downloads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vldebias.errors import InvalidInputError
from vldebias.fingerprint import weights_fingerprint

__all__ = ["InceptionFeatures"]

FILE = "weights-inception-2015-12-05-6726825d.pth of github.com/toshas/torch-fidelity"


class InceptionFeatures:
    """RGB images to the 2048 pooled features of Inception v3, as torchmetrics computes them.

    Args:
        weights: a file with the weights; by default torch-fidelity downloads them once.
        device: where to compute.

    Raises:
        InvalidInputError: torch-fidelity is not installed, or the weights cannot be had.
    """

    name = "Inception v3 of torch-fidelity"
    preprocessing = "uint8, bilinear with antialiasing to 299 x 299 whatever the shape, (x - 128) / 128"
    dim = 2048

    def __init__(self, weights: str | Path | None = None, *, device: str = "cpu") -> None:
        from torchmetrics.image.fid import FrechetInceptionDistance

        if weights is not None and not Path(weights).is_file():
            raise InvalidInputError(f"{weights}: no such file; expected {FILE}")
        path = None if weights is None else str(weights)
        try:
            metric = FrechetInceptionDistance(feature=self.dim, feature_extractor_weights_path=path)
        except ModuleNotFoundError as error:
            raise InvalidInputError(
                "FID on Inception features needs torch-fidelity: pip install 'vldebias[fid]', or use the features of a "
                "CLIP, which need nothing else"
            ) from error
        except (OSError, RuntimeError) as error:
            raise InvalidInputError(
                f"the weights of Inception cannot be had: {str(error).strip().splitlines()[0]}. Offline, pass a file "
                f"with weights= ({FILE}), or use the features of a CLIP"
            ) from error
        self._device = device
        self._network = metric.inception.to(device)

    @cached_property
    def fingerprint(self) -> dict[str, Any] | None:
        """Of the weights."""
        return weights_fingerprint(self._network)

    @torch.inference_mode()
    def encode(self, images: Sequence[Image.Image]) -> Tensor:
        """Features (b, 2048); images of one size go through the network together."""
        found = []
        for _, same in groupby(images, key=lambda image: image.size):
            pixels = torch.from_numpy(np.stack([np.asarray(image.convert("RGB")) for image in same]))
            found.append(self._network(pixels.permute(0, 3, 1, 2).to(self._device)).float().cpu())
        return torch.cat(found)
