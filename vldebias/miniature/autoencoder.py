"""Define an autoencoder that works on pixel patches, to avoid the most expensive convolutions."""

import torch
import torch.nn.functional as F
from diffusers import (
    AutoencoderKL,
    ModelMixin,  # noqa: F401 - `from_pretrained` of a pipeline looks it up in this module
)
from diffusers.configuration_utils import FrozenDict, register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput


class PatchAutoencoder(AutoencoderKL):
    """An autoencoder whose first level rearranges 2 x 2 pixels into channels, without weights.

    With k + 1 levels, it maps images (n, 3, size, size) in [-1, 1] to latents
    (n, latent_channels, size / 2^k, size / 2^k). On a CPU, wide convolutions over a small image
    train faster than narrow ones over a large image. The configuration that pipelines read includes
    the first level.

    Args:
        block_out_channels: number of channels at each level. The first must be 12, the number of
            values in 2 x 2 pixels.
        latent_channels: number of channels of the latents.
        norm_num_groups: number of groups in group normalisation.
        sample_size: height and width of the images in pixels.
        scaling_factor: factor that scales latents to unit variance for the denoiser.
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
        config = dict(self.config)
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
        # AutoencoderKL registered the inner network's settings, so restore those of this class.
        self._internal_dict = FrozenDict(config)

    def encode(
        self, x: torch.Tensor, return_dict: bool = True
    ) -> AutoencoderKLOutput | tuple[DiagonalGaussianDistribution]:
        """Return the latent distribution for images.

        Args:
            x: images (n, 3, size, size) in [-1, 1].
            return_dict: whether to return an `AutoencoderKLOutput` instead of a tuple.
        """
        return super().encode(F.pixel_unshuffle(x, 2), return_dict)

    def decode(
        self, z: torch.Tensor, return_dict: bool = True, generator: torch.Generator | None = None
    ) -> DecoderOutput | tuple[torch.Tensor]:
        """Decode latents to images.

        Args:
            z: latents, with the shape that `encode` returns.
            return_dict: whether to return a `DecoderOutput` instead of a tuple.
            generator: ignored, because decoding is deterministic.
        """
        pixels = F.pixel_shuffle(super().decode(z).sample, 2)
        return DecoderOutput(sample=pixels) if return_dict else (pixels,)
