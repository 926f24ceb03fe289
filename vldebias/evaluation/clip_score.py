"""CLIPScore (Hessel et al., 2021): does a drawn image still show what its prompt says?

The score looks at images through a CLIP, with the prejudices of that CLIP: one that takes every nurse for a woman gives
a man in a nurse's uniform less. A lower score after debiasing may therefore be the judge's bias and not a worse image,
above all where the judge is the text tower of the pipeline. Measure with another backbone than the one that was
debiased, and read the score beside `recognised` and the labels of people.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from vldebias.errors import InvalidInputError
from vldebias.evaluation.drawing import SharedImages
from vldebias.evaluation.result import TaskResult
from vldebias.evaluation.task import Count, Strict
from vldebias.evaluation.texts import Texts

if TYPE_CHECKING:
    from vldebias.hosts.images import ImageEncoder

SCALES = {"percent": 100.0, "hessel": 2.5}
ABOUT_CLIP_SCORE = (
    "CLIPScore of every drawn image with the prompt that it was drawn from, max(w cos, 0); the text is not projected. "
    "Mean over prompts, resampled over prompts with their images. The model that scores has biases of its own."
)


def clip_score(image_features: Tensor, text_features: Tensor, *, scale: str = "percent") -> Tensor:
    """max(w cos(image, text), 0) of each row (n,), section 3 of Hessel et al., "CLIPScore" (2021).

    Args:
        image_features, text_features: (n, d), in any scale; row i of one belongs to row i of the other.
        scale: "percent": w = 100, as torchmetrics has it. "hessel": w = 2.5, the paper's, which calls it CLIP-S.
            torchmetrics cuts the mean off at zero, the paper and this function every image.

    Raises:
        InvalidInputError: shapes that are not equal (n, d), features that are zero or not finite, another scale.
    """
    if scale not in SCALES:
        raise InvalidInputError(f"scale: expected one of {', '.join(SCALES)}, got {scale!r}")
    shapes = tuple(image_features.shape), tuple(text_features.shape)
    if image_features.ndim != 2 or shapes[0] != shapes[1]:
        raise InvalidInputError(f"clip_score: expected features (n, d) of images and of texts, got {shapes}")
    rows = [normalize(features.double(), dim=1) for features in (image_features, text_features)]
    if not all(bool(torch.isfinite(r).all() and (r.norm(dim=1) > 0.5).all()) for r in rows):
        raise InvalidInputError("clip_score: features that are zero or not finite have no cosine")
    return SCALES[scale] * (rows[0] * rows[1]).sum(1).clamp(min=0)


class ClipScore(Strict):
    """Metric `clip_score` of drawn images against their prompts: the utility beside a discrepancy.

    model, pretrained: what scores; by default --model, else the model of the judge. scale: see `clip_score`.
    prefix: put before every prompt; the paper takes "A photo depicts " for captions, prompts mostly have their own.
    """

    model: str | None = None
    pretrained: str | None = None
    scale: Literal["percent", "hessel"] = "percent"
    prefix: str = ""
    batch_size: Count = 64

    def measure(
        self,
        images: SharedImages,
        encoder: ImageEncoder,
        texts: Texts,
        *,
        task: str,
        resamples: int = 2000,
        seed: int = 0,
    ) -> TaskResult:
        """The score of every variant, with its paired change to "none".

        Args:
            images: of one or more variants; those whose prompt and seed every variant has are compared.
            encoder, texts: the image and the text side of the same model. A projection attached to it does not count.
            task: name of the block.

        Raises:
            InvalidInputError: no image that every variant has, or one that cannot be read.
        """
        if not images.common:
            raise InvalidInputError(
                f"clip score: no prompt and seed was drawn under every variant {list(images.variants)}"
            )
        rows = texts.embed([self.prefix + prompt for prompt in images.prompts])
        text = dict(zip(images.prompts, rows, strict=True))
        prompt_rows = torch.stack([text[prompt] for prompt, _ in images.common])
        _, index, sizes = np.unique([prompt for prompt, _ in images.common], return_inverse=True, return_counts=True)
        values = {}
        for variant in images.variants:
            features = torch.cat(list(images.features(variant, encoder.encode, self.batch_size)))
            scores = clip_score(features, prompt_rows, scale=self.scale).numpy()
            # Means of prompts are the units, or the images where there is one prompt.
            values[variant] = scores if len(sizes) == 1 else np.bincount(index, weights=scores) / sizes
        fingerprint = texts.host.fingerprint()
        n = {"prompts": len(images.prompts), "images": len(images.common)}
        result = images.result(
            task=task,
            title="CLIPScore of drawn images",
            description=ABOUT_CLIP_SCORE,
            n=n,
            settings={
                "scale": f"{self.scale}: {SCALES[self.scale]:g} max(cos, 0)",
                "prefix": self.prefix,
                "scored by": encoder.name,
                "image tower": encoder.fingerprint,
                "text tower": fingerprint and fingerprint.to_dict(),
                "preprocessing": encoder.preprocessing,
                "images left out (not drawn under every variant)": sum(
                    len(variant) - len(images.common) for variant in images.variants.values()
                ),
                "resampled": "prompts with their images" if len(images.prompts) > 1 else "images of the one prompt",
                "resamples": resamples,
                "seed": seed,
            },
        )
        result.add_resampled("clip_score", values, n=n, resamples=resamples, seed=seed)
        return result
