"""An AutoencoderKL that looks at patches of pixels: the largest, dearest level of its convolutions is a reshuffle."""

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import (
    AutoencoderKL,
    ModelMixin,  # noqa: F401 - `from_pretrained` of a pipeline looks for it beside the class that it is to load
)
from diffusers.configuration_utils import FrozenDict, register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput
from diffusers.models.modeling_outputs import AutoencoderKLOutput


class PatchAutoencoder(AutoencoderKL):
    """Pictures (n, 3, size, size) in [-1, 1] to latents (n, latent_channels, size / 2^k, size / 2^k) and back.

    The first of the k + 1 levels halves the picture without any weights: 2 x 2 pixels become channels. On a CPU, wide
    convolutions over a small picture learn faster than narrow ones over a large one. What a pipeline reads from the
    configuration (channels, number of levels) is that of the whole.

    Args:
        block_out_channels: of each level; the first must be 12, the channels of 2 x 2 pixels.
        latent_channels: of the latents.
        norm_num_groups: of the group norms.
        sample_size: side of the pictures.
        scaling_factor: gives the latents unit variance.
    """

    @register_to_config
    def __init__(
        self,
        block_out_channels: tuple[int, ...] = (12, 32, 48, 64),
        latent_channels: int = 8,
        norm_num_groups: int = 8,
        sample_size: int = 64,
        scaling_factor: float = 1.0,
    ) -> None:
        own, inner = dict(self.config), block_out_channels[1:]
        super().__init__(
            in_channels=block_out_channels[0],
            out_channels=block_out_channels[0],
            down_block_types=("DownEncoderBlock2D",) * len(inner),
            up_block_types=("UpDecoderBlock2D",) * len(inner),
            block_out_channels=inner,
            layers_per_block=1,
            latent_channels=latent_channels,
            norm_num_groups=norm_num_groups,
            sample_size=sample_size // 2,
            scaling_factor=scaling_factor,
        )
        # The inner network has registered its own settings: what is saved are those of the whole.
        self._internal_dict = FrozenDict(own)

    def encode(self, x: torch.Tensor, return_dict: bool = True) -> AutoencoderKLOutput | tuple[Any, ...]:
        """The distribution of the latents of pictures, as in AutoencoderKL."""
        return super().encode(F.pixel_unshuffle(x, 2), return_dict)

    def decode(
        self, z: torch.Tensor, return_dict: bool = True, generator: torch.Generator | None = None
    ) -> DecoderOutput | tuple[torch.Tensor]:
        """Pictures of latents, as in AutoencoderKL."""
        pixels = F.pixel_shuffle(super().decode(z, return_dict=False)[0], 2)
        return DecoderOutput(sample=pixels) if return_dict else (pixels,)
