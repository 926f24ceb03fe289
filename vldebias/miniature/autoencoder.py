"""Define an AutoencoderKL on patches of pixels, which replace its most expensive level of
convolutions."""

from typing import Any

import torch
import torch.nn.functional as F
from diffusers import (
    AutoencoderKL,
    ModelMixin,  # noqa: F401 - `from_pretrained` of a pipeline looks for it beside the class that it loads
)
from diffusers.configuration_utils import FrozenDict, register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput
from diffusers.models.modeling_outputs import AutoencoderKLOutput


class PatchAutoencoder(AutoencoderKL):
    """Map pictures (n, 3, size, size) in [-1, 1] to latents (n, latent_channels, size / 2^k, size /
    2^k) and back.

    The first of the k + 1 levels halves the picture without any weights: 2 x 2 pixels become
    channels. On a CPU, wide convolutions over a small picture learn faster than narrow ones over a
    large one. The configuration that a pipeline reads (channels, number of levels) describes the
    whole. block_out_channels: of each level; the first must be 12, the channels of 2 x 2 pixels.
    The other arguments are those of AutoencoderKL.
    """

    @register_to_config
    def __init__(
        self,
        block_out_channels: tuple[int, ...],
        latent_channels: int,
        norm_num_groups: int,
        sample_size: int,
        scaling_factor: float = 1.0,
    ) -> None:
        whole_config = dict(self.config)
        inner = block_out_channels[1:]
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
        # The inner network has registered its own settings: those of the whole are saved.
        self._internal_dict = FrozenDict(whole_config)

    def encode(
        self, x: torch.Tensor, return_dict: bool = True
    ) -> AutoencoderKLOutput | tuple[Any, ...]:
        """Return the distribution of the latents of pictures, as AutoencoderKL does."""
        return super().encode(F.pixel_unshuffle(x, 2), return_dict)

    def decode(
        self, z: torch.Tensor, return_dict: bool = True, generator: torch.Generator | None = None
    ) -> DecoderOutput | tuple[torch.Tensor]:
        """Return the pictures of latents, as AutoencoderKL does."""
        pixels = F.pixel_shuffle(super().decode(z).sample, 2)
        return DecoderOutput(sample=pixels) if return_dict else (pixels,)
