"""Build the architectures of the miniature models, with random weights."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from vldebias.errors import InvalidInputError, need
from vldebias.miniature.tokenizer import CONTEXT_LENGTH
from vldebias.miniature.words import BIRD_FIELDS, PEOPLE_FIELDS, SIZE, WORLDS

if TYPE_CHECKING:
    import open_clip
    from transformers import CLIPTextConfig

# Settings for both towers. Only the vision tower uses the patch size.
HEAD_WIDTH = 32
LAYERS = 3
MLP_RATIO = 4.0
PATCH_SIZE = 8
IMAGE_MEAN = IMAGE_STD = (0.5, 0.5, 0.5)  # Maps pixels from [0, 1] to [-1, 1].
# Configurations of the diffusers and transformers models.
CONFIGS = json.loads((Path(__file__).parent / "configs.json").read_text())


class Widths(NamedTuple):
    """Widths of a CLIP model's joint space, vision tower and text tower."""

    joint: int
    vision: int
    text: int

    @classmethod
    def from_weights(cls, weights: Mapping[str, torch.Tensor]) -> "Widths":
        """Return the widths of a CLIP model from its open_clip weights."""
        # open_clip stores projections as (tower width, joint width).
        text, joint = weights["text_projection"].shape
        return cls(joint, weights["visual.proj"].shape[0], text)


NARROW = Widths(joint=128, vision=96, text=128)
"""Widths of the CLIP model whose text tower the pipeline uses."""


def build_clip(vocab_size: int, towers: Widths = NARROW) -> "open_clip.CLIP":
    """Build an open_clip model with GELU and a causal text tower that pools at the end token.

    Args:
        vocab_size: number of tokens. The end token must have the largest id.
        towers: widths of the towers.
    """
    both = {"layers": LAYERS, "mlp_ratio": MLP_RATIO}
    vision = {
        "image_size": SIZE,
        "patch_size": PATCH_SIZE,
        "width": towers.vision,
        "head_width": HEAD_WIDTH,
    }
    text = {"vocab_size": vocab_size, "context_length": CONTEXT_LENGTH, "width": towers.text}
    text["heads"] = towers.text // HEAD_WIDTH
    return need("open_clip").CLIP(towers.joint, vision_cfg=vision | both, text_cfg=text | both)


def text_config(
    vocab_size: int, width: int = NARROW.text, joint: int = NARROW.joint
) -> "CLIPTextConfig":
    """Return the transformers configuration for the text tower of `build_clip`.

    Args:
        vocab_size: number of tokens.
        width: width of the tower.
        joint: width of the joint space.
    """
    return need("transformers").CLIPTextConfig(
        vocab_size=vocab_size,
        # The start and end tokens are the last two in the vocabulary (see `tokenizer.vocabulary`).
        bos_token_id=vocab_size - 2,
        eos_token_id=vocab_size - 1,
        hidden_size=width,
        intermediate_size=int(width * MLP_RATIO),
        num_attention_heads=width // HEAD_WIDTH,
        projection_dim=joint,
        **CONFIGS["text"],
    )


class AttributeNetwork(nn.Module):
    """A small convolutional classifier for images from both worlds, with one head per field.

    The packaged weights were trained on images from the worlds and on their reconstructions by the
    autoencoder.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 96, 128)
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
        self.features = nn.Sequential(*layers, nn.Flatten())
        # Each of the four convolutions halves both sides, from 64 to 4 pixels.
        inputs = widths[-1] * (SIZE // 2 ** (len(widths) - 1)) ** 2
        fields = {"world": WORLDS, **PEOPLE_FIELDS, **BIRD_FIELDS}
        self.heads = nn.ModuleDict(
            {name: nn.Linear(inputs, len(values)) for name, values in fields.items()}
        )

    def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return logits (n, classes) for each field, given images (n, 3, 64, 64) in [0, 1]."""
        # Map [0, 1] to [-1, 1], as in training.
        features = self.features(images * 2 - 1)
        return {name: head(features) for name, head in self.heads.items()}

    @torch.no_grad()
    def predict(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """Classify images.

        Args:
            images: images (n, 3, 64, 64) in [0, 1].

        Returns:
            A dictionary with two entries per field: the codes (n,) of the most likely labels under
            the field's name, and the probabilities (n, classes) under `NAME_probabilities`. Codes
            are positions in the lists in `vldebias.miniature.words`.

        Raises:
            InvalidInputError: If the images have the wrong shape.
        """
        if images.ndim != 4 or images.shape[1:] != (3, SIZE, SIZE):
            raise InvalidInputError(
                f"the judge reads images (n, 3, {SIZE}, {SIZE}) in [0, 1], got"
                f" {tuple(images.shape)}"
            )
        weight = next(self.parameters())
        probabilities = {name: z.softmax(dim=1) for name, z in self(images.to(weight)).items()}
        labels = {name: p.argmax(dim=1) for name, p in probabilities.items()}
        return labels | {f"{name}_probabilities": p for name, p in probabilities.items()}
