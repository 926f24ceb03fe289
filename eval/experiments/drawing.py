"""Portraits drawn by the miniature pipeline and read by its judge, the same noise under every method."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from eval.experiments.embeddings import image_features
from vldebias.data import UNKNOWN
from vldebias.hosts.fingerprint import weights_fingerprint
from vldebias.miniature import load_clip, load_judge, load_pipeline
from vldebias.miniature.portraits import PROFESSIONS
from vldebias.progress import Progress

STEPS, GUIDANCE, SURE = 20, 3.0, 0.8  # of the judge: below it an attribute is unknown


@dataclass(frozen=True, eq=False)
class Portraits:
    """What the judge and CLIP say of the images of some prompts, each array (prompts, images).

    given: the value that each was given by its seed, None where none was.
    """

    gender: NDArray[np.int64]
    tone: NDArray[np.int64]
    profession: NDArray[np.int64]
    clip: NDArray[np.float64]
    given: NDArray[np.object_]


@dataclass(frozen=True)
class Easel:
    """The pipeline, its judge and a CLIP. batch: images at once, on which the rounding of a product depends."""

    batch: int = 40

    @cached_property
    def pipe(self) -> Any:
        """The pipeline."""
        pipe = load_pipeline()
        pipe.unet.to(memory_format=torch.channels_last)  # convolutions run faster so on a CPU
        return pipe

    @property
    def fingerprint(self) -> dict[str, Any]:
        """Of the pipeline's weights."""
        return weights_fingerprint(self.pipe.unet).to_dict()

    def __call__(
        self, prompts: Sequence[str], seeds: NDArray[np.int64], noises: NDArray[np.int64], method: Any
    ) -> Portraits:
        """An image per prompt, seed and noise, both (prompts, images); method: a context that gives its attachment."""
        columns = ([p for p in prompts for _ in seeds[0]], seeds.ravel().tolist(), noises.ravel().tolist())
        rows = list(zip(*columns, strict=True))
        pixels, given = [], []
        batches = [rows[start : start + self.batch] for start in range(0, len(rows), self.batch)]
        with Progress.on() as progress, _entered(method) as attachment:
            for batch in progress.track(batches, f"{len(rows)} images"):
                texts, drawn, started = zip(*batch, strict=True)
                sampled = attachment is not None and any(edit.sampled for edit in attachment.projections.values())
                given += attachment.values(texts, drawn) if sampled else [None] * len(batch)
                if sampled:
                    attachment.seeds = drawn
                done = self.pipe(
                    list(texts),
                    generator=[torch.Generator().manual_seed(seed) for seed in started],
                    num_inference_steps=STEPS,
                    guidance_scale=GUIDANCE,
                    output_type="pt",
                )
                pixels.append(done.images.float().clamp(0, 1))
        return self._read(torch.cat(pixels), prompts, np.array(given, dtype=object).reshape(seeds.shape))

    def _read(self, pixels: Tensor, prompts: Sequence[str], given: NDArray[np.object_]) -> Portraits:
        seen = load_judge().predict(pixels)
        model, preprocess, tokenizer = load_clip()
        with torch.no_grad():
            texts = model.encode_text(tokenizer(list(prompts)), normalize=True).repeat_interleave(given.shape[1], 0)
        clip = 100 * (image_features(model, pixels, preprocess) * texts).sum(1).clamp(min=0)  # CLIPScore in per cent
        arrays = {}
        for name in ("gender", "tone"):
            sure = seen[f"{name}_probabilities"].amax(1) >= SURE
            arrays[name] = torch.where(sure, seen[name], UNKNOWN).numpy().reshape(given.shape)
        profession = seen["profession"].numpy().reshape(given.shape)
        return Portraits(**arrays, profession=profession, clip=clip.reshape(given.shape).numpy(), given=given)


def _entered(method: Any) -> AbstractContextManager[Any]:
    return method() if callable(method) else method


def noise(prompt: str, seed: int) -> int:
    """Seed of an image's generator: the same under every method, another for every prompt, as in `vldebias eval`."""
    return int.from_bytes(hashlib.sha256(f"{seed}\0{prompt}".encode()).digest()[:6], "big")


def codes_of(names: Sequence[str]) -> NDArray[np.int64]:
    """(p, 1) codes of the professions that the judge is to see."""
    return np.array([PROFESSIONS.index(name.lower()) for name in names])[:, None]
