"""Define two small text-to-image pipelines with different text encoders and denoisers.

- `clip` has a CLIP text encoder and a UNet, in a StableDiffusionPipeline.
- `pixart` has a T5 encoder and a transformer, in a PixArtAlphaPipeline.

Both use v-prediction with a cosine schedule, and the principal components of pixel patches as a
fixed linear autoencoder.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import (
    DDIMScheduler,
    DiffusionPipeline,
    PixArtAlphaPipeline,
    PixArtTransformer2DModel,
    StableDiffusionPipeline,
    UNet2DConditionModel,
)
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from safetensors.torch import load_model
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    CLIPTextConfig,
    CLIPTextModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from eval.small_models.world import HAIR_WORDS, JOBS, PLACES, SEXES, SIZE, TEMPLATES, THINGS

KINDS = ("clip", "pixart")
MAX_TOKENS = 16
PATCH = 8  # pixels
COMPONENTS = 48  # per patch
STEPS = 10
GUIDANCE = 3.0
SCHEDULER = {
    "beta_schedule": "squaredcos_cap_v2",
    "prediction_type": "v_prediction",
    "timestep_spacing": "trailing",
    "clip_sample": False,
    "set_alpha_to_one": False,
    "steps_offset": 1,
}
CALL_OPTIONS = {
    "clip": {},
    "pixart": {
        "use_resolution_binning": False,
        "clean_caption": False,
        "max_sequence_length": MAX_TOKENS,
    },
}
"""Further arguments for calls of each pipeline."""
_EXTRA_WORDS = "a an and woman man person people picture two old young with ."


class PatchComponents(ModelMixin, ConfigMixin):
    """Encode square pixel patches by their first principal components, scaled to unit variance.

    Args:
        patch: The width of a patch in pixels.
        latent_channels: The number of components.
        block_out_channels: A sequence for which 2 ** (length - 1) is the downsampling factor, which
            pipelines compute.
    """

    @register_to_config
    def __init__(
        self,
        patch: int,
        latent_channels: int,
        block_out_channels: tuple[int, ...],
        scaling_factor: float = 1.0,
        force_upcast: bool = False,
    ) -> None:
        super().__init__()
        width = 3 * patch**2
        self.basis = nn.Parameter(torch.zeros(width, latent_channels), requires_grad=False)
        self.mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.scale = nn.Parameter(torch.ones(latent_channels), requires_grad=False)

    def fit(self, pictures: Tensor) -> None:
        """Compute the components of images (n, 3, height, width)."""
        patches = F.pixel_unshuffle(pictures, self.config.patch).movedim(1, -1).flatten(0, -2)
        self.mean.copy_(patches.mean(0))
        covariance = torch.cov(patches.double().T)
        variances, directions = torch.linalg.eigh(covariance)
        kept = self.config.latent_channels
        self.basis.copy_(directions[:, -kept:].flip(1))
        self.scale.copy_(variances[-kept:].flip(0).sqrt())

    def encode(self, pictures: Tensor) -> Tensor:
        """Return the latents (n, channels, height / patch, width / patch) of images."""
        patches = F.pixel_unshuffle(pictures, self.config.patch).movedim(1, -1)
        return ((patches - self.mean) @ self.basis / self.scale).movedim(-1, 1)

    def decode(
        self, latents: Tensor, return_dict: bool = True, generator: Any = None
    ) -> tuple[Tensor]:
        """Decode latents to images in a tuple, like AutoencoderKL with return_dict=False."""
        patches = (latents.movedim(1, -1) * self.scale) @ self.basis.T + self.mean
        return (F.pixel_shuffle(patches.movedim(-1, 1), self.config.patch).clamp(-1, 1),)


@dataclass
class Parts:
    """The components of a pipeline before and during training."""

    tokenizer: PreTrainedTokenizerFast
    text_encoder: CLIPTextModel | T5EncoderModel
    denoiser: UNet2DConditionModel | PixArtTransformer2DModel
    scheduler: DDIMScheduler
    autoencoder: PatchComponents

    @property
    def modules(self) -> nn.ModuleDict:
        """Return the modules whose weights to save."""
        return nn.ModuleDict(
            {
                "text_encoder": self.text_encoder,
                "denoiser": self.denoiser,
                "autoencoder": self.autoencoder,
            }
        )

    def tokens(self, texts: list[str]) -> Tensor:
        """Return the token ids of texts, padded to the same length."""
        encoded = self.tokenizer(
            texts,
            padding="max_length",
            max_length=MAX_TOKENS,
            truncation=True,
            return_tensors="pt",
        )
        ids: Tensor = encoded.input_ids
        return ids

    def predict(self, noisy: Tensor, times: Tensor, ids: Tensor) -> Tensor:
        """Return the denoiser's prediction for noisy latents and tokenized captions."""
        if isinstance(self.denoiser, UNet2DConditionModel):
            return self.denoiser(noisy, times, self.text_encoder(ids)[0]).sample
        # PixArtAlphaPipeline masks the padding.
        mask = (ids != self.tokenizer.pad_token_id).long()
        return self.denoiser(
            noisy,
            encoder_hidden_states=self.text_encoder(ids, attention_mask=mask)[0],
            encoder_attention_mask=mask,
            timestep=times,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
        ).sample


def make_tokenizer(kind: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token for each word in the world."""
    texts = [*JOBS, *THINGS, *SEXES, *PLACES, *HAIR_WORDS.values(), _EXTRA_WORDS]
    texts += [template.format("") for template in TEMPLATES]
    words = sorted({word for text in texts for word in text.replace("-", " - ").split()})
    specials = ["<pad>", "<unk>"]
    ends = ["<bos>", "<eos>"]  # last, because CLIP pools at the largest id
    vocabulary = {word: number for number, word in enumerate([*specials, *words, *ends])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    template = "<bos> $A <eos>" if kind == "clip" else "$A <eos>"
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(end, vocabulary[end]) for end in ends]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=MAX_TOKENS,
    )


def make_parts(kind: str) -> Parts:
    """Return the untrained components of a pipeline, one of `KINDS`."""
    tokenizer = make_tokenizer(kind)
    return _clip_parts(tokenizer) if kind == "clip" else _pixart_parts(tokenizer)


def _clip_parts(tokenizer: PreTrainedTokenizerFast) -> Parts:
    """Return a CLIP text encoder with a UNet on 4 x 4 latents."""
    count = len(tokenizer)
    text_encoder = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=count,
            hidden_size=80,
            intermediate_size=200,
            num_hidden_layers=2,
            num_attention_heads=5,
            max_position_embeddings=MAX_TOKENS,
            bos_token_id=count - 2,
            eos_token_id=count - 1,
            pad_token_id=0,
            projection_dim=80,
        )
    )
    denoiser = UNet2DConditionModel(
        sample_size=SIZE // PATCH,
        block_out_channels=(64, 80),
        layers_per_block=1,
        norm_num_groups=8,
        in_channels=COMPONENTS,
        out_channels=COMPONENTS,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=8,
        cross_attention_dim=80,
    )
    return Parts(tokenizer, text_encoder, denoiser, DDIMScheduler(**SCHEDULER), make_autoencoder())


def _pixart_parts(tokenizer: PreTrainedTokenizerFast) -> Parts:
    """Return a T5 encoder with a transformer on 4 x 4 latents."""
    text_encoder = T5EncoderModel(
        T5Config(
            vocab_size=len(tokenizer),
            d_model=64,
            d_kv=16,
            d_ff=128,
            num_layers=2,
            num_heads=4,
            pad_token_id=0,
            eos_token_id=len(tokenizer) - 1,
            decoder_start_token_id=0,
            dropout_rate=0.0,
            feed_forward_proj="gated-gelu",
        )
    )
    denoiser = PixArtTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=24,
        in_channels=COMPONENTS,
        out_channels=COMPONENTS,
        num_layers=4,
        norm_num_groups=8,
        cross_attention_dim=96,
        sample_size=SIZE // PATCH,
        patch_size=1,
        caption_channels=64,
    )
    return Parts(tokenizer, text_encoder, denoiser, DDIMScheduler(**SCHEDULER), make_autoencoder())


def make_autoencoder() -> PatchComponents:
    """Return an autoencoder without components, whose pipelines downsample by `PATCH`."""
    return PatchComponents(PATCH, COMPONENTS, (1, 1, 1, 1))


def load_pipeline(kind: str, folder: Path) -> DiffusionPipeline:
    """Load a pipeline with weights from `eval.small_models.train`."""
    parts = make_parts(kind)
    load_model(parts.modules, folder / f"{kind}.safetensors")
    parts.modules.eval()
    components = {
        "vae": parts.autoencoder,
        "text_encoder": parts.text_encoder,
        "tokenizer": parts.tokenizer,
        "scheduler": parts.scheduler,
    }
    pipe: DiffusionPipeline
    if kind == "pixart":
        pipe = PixArtAlphaPipeline(transformer=parts.denoiser, **components)
    else:
        pipe = StableDiffusionPipeline(
            unet=parts.denoiser,
            safety_checker=None,
            feature_extractor=None,
            requires_safety_checker=False,
            **components,
        )
    pipe.set_progress_bar_config(disable=True)
    return pipe
