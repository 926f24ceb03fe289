"""Store a loaded model or pipeline with what belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from diffusers import DiffusionPipeline
    from open_clip import CLIP
    from PIL import Image
    from transformers import BaseImageProcessor, PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Loaded:
    """Store a loaded model or pipeline, with its name, tokenizer and preprocessing.

    Attributes:
        host: the model or pipeline.
        name: the name under which it was loaded.
        tokenizer: the model's tokenizer, or None for pipelines.
        preprocess: the model's image preprocessing, or None for pipelines.
    """

    host: CLIP | PreTrainedModel | DiffusionPipeline
    name: str
    tokenizer: PreTrainedTokenizerBase | None = None
    preprocess: BaseImageProcessor | Callable[[Image.Image], torch.Tensor] | None = None
