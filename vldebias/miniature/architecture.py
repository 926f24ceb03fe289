"""The sizes of the miniature models, and builders that make them with fresh weights."""

from typing import TYPE_CHECKING, Any

from vldebias.miniature.tokenizer import CONTEXT_LENGTH

if TYPE_CHECKING:
    import open_clip
    from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
    from transformers import CLIPConfig

__all__ = ["build_clip", "build_scheduler", "build_unet", "build_vae", "transformers_config"]

EMBED_DIM = 128
VISION: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 4,
    "width": 96,
    "layers": 3,
    "head_width": 32,
    "mlp_ratio": 4.0,
}
TEXT: dict[str, Any] = {"context_length": CONTEXT_LENGTH, "width": 128, "heads": 4, "layers": 3, "mlp_ratio": 4.0}
# Pixels in [0, 1] are mapped to [-1, 1].
IMAGE_MEAN = (0.5, 0.5, 0.5)
IMAGE_STD = (0.5, 0.5, 0.5)


def build_clip(vocab_size: int) -> "open_clip.CLIP":
    """An open_clip CLIP (GELU, causal text tower pooled at the largest id, which is the end token)."""
    import open_clip

    return open_clip.CLIP(
        embed_dim=EMBED_DIM,
        vision_cfg=open_clip.CLIPVisionCfg(**VISION),
        text_cfg=open_clip.CLIPTextCfg(vocab_size=vocab_size, **TEXT),
    )


def transformers_config(vocab_size: int) -> "CLIPConfig":
    """The configuration of the same model in transformers."""
    from transformers import CLIPConfig, CLIPTextConfig, CLIPVisionConfig

    common = {"hidden_act": "gelu", "layer_norm_eps": 1e-5, "projection_dim": EMBED_DIM}
    text = CLIPTextConfig(
        vocab_size=vocab_size,
        hidden_size=TEXT["width"],
        intermediate_size=int(TEXT["width"] * TEXT["mlp_ratio"]),
        num_hidden_layers=TEXT["layers"],
        num_attention_heads=TEXT["heads"],
        max_position_embeddings=CONTEXT_LENGTH,
        pad_token_id=0,
        bos_token_id=vocab_size - 2,
        eos_token_id=vocab_size - 1,
        **common,
    )
    vision = CLIPVisionConfig(
        hidden_size=VISION["width"],
        intermediate_size=int(VISION["width"] * VISION["mlp_ratio"]),
        num_hidden_layers=VISION["layers"],
        num_attention_heads=VISION["width"] // VISION["head_width"],
        image_size=VISION["image_size"],
        patch_size=VISION["patch_size"],
        **common,
    )
    return CLIPConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=EMBED_DIM)


def build_vae() -> "AutoencoderKL":
    """32 x 32 pictures to 8 x 8 x 4 latents and back."""
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownEncoderBlock2D",) * 3,
        up_block_types=("UpDecoderBlock2D",) * 3,
        block_out_channels=(16, 32, 64),
        layers_per_block=1,
        latent_channels=4,
        norm_num_groups=8,
        sample_size=32,
    )


def build_unet() -> "UNet2DConditionModel":
    """The noise predictor: two resolutions, text read by cross-attention in all blocks."""
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(64, 96),
        layers_per_block=1,
        cross_attention_dim=TEXT["width"],
        attention_head_dim=4,
        norm_num_groups=16,
    )


def build_scheduler() -> "DDIMScheduler":
    """The noise schedule of Stable Diffusion."""
    from diffusers import DDIMScheduler

    return DDIMScheduler(
        num_train_timesteps=1000,
        beta_schedule="scaled_linear",
        beta_start=0.00085,
        beta_end=0.012,
        clip_sample=False,
        set_alpha_to_one=False,
        steps_offset=1,
    )
