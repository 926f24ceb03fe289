"""Denoisers, autoencoders and schedulers for the text sides of `diffusers_text`: whole pipelines that draw."""

import inspect
import sys
import warnings
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest import mock

import diffusers_parts as parts
import torch
from diffusers_text import CASES, Stub
from torch import nn

PLAIN, STATED, NEGATIVE = "a photo of a doctor", "a photo of a female nurse", "old smiling person"


def model(name, **config):
    """Builds a model of diffusers from its config, once; name: of its class, or "folder:class" of a pipeline's own."""

    def make():
        folder, _, cls = name.rpartition(":")
        made = getattr(import_module(f"diffusers{folder and '.pipelines.'}{folder}"), cls)(**config)
        for parameter in made.parameters():  # some layers start at zero, and would hide the prompt
            if not parameter.any():
                nn.init.normal_(parameter, std=0.1)
        return made

    return parts.seeded(make)


def scheduler(name, **config):
    """Builds a scheduler, each time anew: it has a state."""

    def make():
        import diffusers

        return getattr(diffusers, name)(**config)

    return make


FLOW = scheduler("FlowMatchEulerDiscreteScheduler")
DDIM = scheduler("DDIMScheduler")
DDPM = scheduler("DDPMScheduler")


@dataclass
class Drawing:
    """What a family needs beside its text side, and how it is called.

    components: beside the text encoders. call: arguments in the place of the usual ones; None leaves one out.
    one_by_one: it takes a single prompt. small: functions of its module that would make an image too large to draw.
    """

    components: dict[str, Any]
    call: dict[str, Any] = field(default_factory=dict)
    one_by_one: bool = False
    small: dict[str, Any] = field(default_factory=dict)

    def make(self, name, pipeline=None):
        """A new pipeline around shared modules; pipeline: another class of the family."""
        import diffusers

        case = CASES[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # diffusers warns of its own imports
            cls = getattr(diffusers, pipeline or case.pipeline)
            takes = inspect.signature(cls.__init__).parameters
            empty = {n: None for n, p in takes.items() if p.default is p.empty and n != "self"}
            made = {n: make() if callable(make) else make for n, make in {"scheduler": FLOW, **self.components}.items()}
            pipe = cls(**empty | case.components() | made)
        for key, value in case.settings.items():
            setattr(pipe, key, value)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def draw(self, pipe, prompts=(PLAIN, STATED), negative=NEGATIVE, **more):
        """Latents of two images of each prompt: (4, ...), guided, from one seed; more: arguments of the call."""
        if self.one_by_one and len(prompts) > 1:
            return torch.cat([self.draw(pipe, [prompt], negative, **more) for prompt in prompts])
        usual = {"num_inference_steps": 2, "height": 32, "width": 32, "num_frames": 5, "frames": 5}
        usual |= {"guidance_scale": 3.0, "true_cfg_scale": 3.0, "output_type": "latent", "return_dict": False}
        usual |= {"num_images_per_prompt": 2, "num_videos_per_prompt": 2, "max_sequence_length": 40}
        usual |= {"use_resolution_binning": False, "clean_caption": False, "generator": torch.manual_seed(0)}
        usual |= {"negative_prompt": [negative] * len(prompts)}
        takes = inspect.signature(type(pipe).__call__).parameters
        call = {name: value for name, value in usual.items() if name in takes} | self.call | more
        with torch.no_grad(), mock.patch.dict(vars(sys.modules[type(pipe).__module__]), self.small):
            drawn = pipe(prompt=list(prompts), **{n: v for n, v in call.items() if v is not None})[0]
        return torch.stack(list(drawn)) if isinstance(drawn, list) else drawn


class Safe(Stub):
    """In the place of a model that refuses prompts and videos."""

    def check_text_safety(self, prompt):
        return True

    def check_video_safety(self, video):
        return video


# ---- autoencoders, of which only the sizes count ---------------------------------------------------------------

_QWEN_VAE = model(
    "AutoencoderKLQwenImage",
    base_dim=24,
    z_dim=4,
    dim_mult=[1, 2, 4],
    num_res_blocks=1,
    temperal_downsample=[False, True],
    latents_mean=[0.0] * 4,
    latents_std=[1.0] * 4,
)
_VAE_8 = model(
    "AutoencoderKL",
    down_block_types=["DownEncoderBlock2D"] * 4,
    up_block_types=["UpDecoderBlock2D"] * 4,
    block_out_channels=[4, 4, 4, 8],
    norm_num_groups=2,
)
_WAN_VAE = model(
    "AutoencoderKLWan",
    base_dim=3,
    z_dim=16,
    dim_mult=[1, 1, 1, 1],
    num_res_blocks=1,
    temperal_downsample=[False, True, True],
)
_FLUX2_VAE = model(
    "AutoencoderKLFlux2",
    sample_size=32,
    down_block_types=("DownEncoderBlock2D",),
    up_block_types=("UpDecoderBlock2D",),
    block_out_channels=(4,),
    layers_per_block=1,
    latent_channels=1,
    norm_num_groups=1,
    use_quant_conv=False,
    use_post_quant_conv=False,
)
_HUNYUAN_VAE = model(
    "AutoencoderKLHunyuanVideo",
    latent_channels=4,
    down_block_types=["HunyuanVideoDownBlock3D"] * 4,
    up_block_types=["HunyuanVideoUpBlock3D"] * 4,
    block_out_channels=(8, 8, 8, 8),
    layers_per_block=1,
    norm_num_groups=4,
)


# ---- denoisers -------------------------------------------------------------------------------------------------

_FLUX2 = {
    "patch_size": 1,
    "in_channels": 4,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 48,
    "axes_dims_rope": [4, 4, 4, 4],
}
_ZIMAGE = {
    "in_channels": 4,
    "dim": 32,
    "n_layers": 1,
    "n_refiner_layers": 1,
    "n_heads": 2,
    "n_kv_heads": 2,
    "cap_feat_dim": 16,
    "axes_dims": [8, 4, 4],
    "axes_lens": [1024, 32, 32],
}
_QWEN = model(
    "QwenImageTransformer2DModel",
    in_channels=16,
    out_channels=4,
    num_layers=1,
    attention_head_dim=16,
    num_attention_heads=3,
    joint_attention_dim=16,
    axes_dims_rope=(8, 4, 4),
)
_HUNYUAN_IMAGE = {
    "num_attention_heads": 4,
    "attention_head_dim": 8,
    "num_layers": 1,
    "num_single_layers": 1,
    "num_refiner_layers": 1,
    "text_embed_dim": 16,
}
_KANDINSKY5 = {
    "in_text_dim": 16,
    "in_text_dim2": 32,
    "time_dim": 16,
    "model_dim": 16,
    "ff_dim": 32,
    "num_text_blocks": 1,
    "num_visual_blocks": 1,
    "axes_dims": (1, 1, 2),
}
_LTX2 = {
    "transformer": model(
        "LTX2VideoTransformer3DModel",
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        audio_in_channels=4,
        audio_out_channels=4,
        audio_num_attention_heads=2,
        audio_attention_head_dim=4,
        audio_cross_attention_dim=8,
        num_layers=1,
        caption_channels=16,
        rope_double_precision=False,
        rope_type="split",
    ),
    "connectors": model(
        "ltx2:LTX2TextConnectors",
        caption_channels=16,
        text_proj_in_factor=3,
        video_connector_num_attention_heads=2,
        video_connector_attention_head_dim=8,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=None,
        audio_connector_num_attention_heads=2,
        audio_connector_attention_head_dim=8,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=None,
        connector_rope_base_seq_len=32,
        rope_double_precision=False,
        rope_type="split",
    ),
    "vae": model(
        "AutoencoderKLLTX2Video",
        latent_channels=4,
        block_out_channels=(8,),
        decoder_block_out_channels=(8,),
        layers_per_block=(1,),
        decoder_layers_per_block=(1, 1),
        spatio_temporal_scaling=(True,),
        decoder_spatio_temporal_scaling=(True,),
        decoder_inject_noise=(False, False),
        downsample_type=("spatial",),
        upsample_residual=(False,),
        upsample_factor=(1,),
        timestep_conditioning=False,
        patch_size=1,
    ),
    "audio_vae": model(
        "AutoencoderKLLTX2Audio",
        base_channels=4,
        ch_mult=(1,),
        num_res_blocks=1,
        resolution=32,
        latent_channels=2,
        mel_bins=8,
    ),
    "vocoder": model(
        "ltx2:LTX2Vocoder",
        in_channels=16,
        hidden_channels=32,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
        output_sampling_rate=16000,
    ),
}
_XL = {"addition_embed_type": "text_time", "addition_time_embed_dim": 8}


def _image(color=(90, 120, 30)):
    from PIL import Image

    return Image.new("RGB", (32, 32), color)


DRAWINGS = {
    "QwenImage": Drawing({"transformer": _QWEN, "vae": _QWEN_VAE}, {"guidance_scale": None}),
    "QwenImageEdit": Drawing(
        {"transformer": _QWEN, "vae": _QWEN_VAE},
        {"guidance_scale": None, "image": _image()},
        one_by_one=True,
        small={"calculate_dimensions": lambda area, ratio: (32, 32, None)},
    ),
    "QwenImageEditPlus": Drawing(
        {"transformer": _QWEN, "vae": _QWEN_VAE},
        {"guidance_scale": None, "image": [_image()]},
        one_by_one=True,
        small={"calculate_dimensions": lambda area, ratio: (32, 32)},
    ),
    "Flux2": Drawing(
        {"transformer": model("Flux2Transformer2DModel", **_FLUX2), "vae": _FLUX2_VAE}, {"max_sequence_length": 64}
    ),
    "Flux2Klein": Drawing(
        {"transformer": model("Flux2Transformer2DModel", **_FLUX2, guidance_embeds=False), "vae": _FLUX2_VAE},
        {"max_sequence_length": 64},
    ),
    "ZImage": Drawing({"transformer": model("ZImageTransformer2DModel", **_ZIMAGE), "vae": parts.vae}),
    "ZImageOmni": Drawing(
        {"transformer": model("ZImageTransformer2DModel", **_ZIMAGE, siglip_feat_dim=8), "vae": parts.vae}
    ),
    "HunyuanImage": Drawing(
        {
            "transformer": model(
                "HunyuanImageTransformer2DModel",
                **_HUNYUAN_IMAGE,
                in_channels=4,
                out_channels=4,
                text_embed_2_dim=80,
                rope_axes_dim=(4, 4),
            ),
            "vae": model(
                "AutoencoderKLHunyuanImage",
                in_channels=3,
                out_channels=3,
                latent_channels=4,
                block_out_channels=(32, 32, 32, 32),
                layers_per_block=1,
                spatial_compression_ratio=8,
                sample_size=32,
            ),
            "guider": scheduler("AdaptiveProjectedMixGuidance", adaptive_projected_guidance_start_step=1),
        }
    ),
    "HunyuanImageRefiner": Drawing(
        {
            "transformer": model(
                "HunyuanImageTransformer2DModel",
                **_HUNYUAN_IMAGE,
                in_channels=8,
                out_channels=4,
                patch_size=(1, 1, 1),
                rope_axes_dim=(2, 2, 4),
                guidance_embeds=True,
            ),
            "vae": model(
                "AutoencoderKLHunyuanImageRefiner",
                latent_channels=2,
                block_out_channels=(8, 8),
                layers_per_block=1,
                spatial_compression_ratio=2,
                temporal_compression_ratio=1,
            ),
            "guider": scheduler("AdaptiveProjectedMixGuidance", adaptive_projected_guidance_start_step=1),
        },
        {"image": _image(), "guidance_scale": None, "distilled_guidance_scale": 3.0},
    ),
    "HunyuanDiT": Drawing(
        {
            "transformer": model(
                "HunyuanDiT2DModel",
                sample_size=16,
                num_layers=2,
                patch_size=2,
                attention_head_dim=8,
                num_attention_heads=3,
                in_channels=4,
                cross_attention_dim=16,
                cross_attention_dim_t5=80,
                pooled_projection_dim=16,
                hidden_size=24,
                activation_fn="gelu-approximate",
            ),
            "vae": _VAE_8,
            "scheduler": DDIM,
        }
    ),
    "Lumina": Drawing(
        {
            "transformer": model(
                "LuminaNextDiT2DModel",
                sample_size=16,
                patch_size=2,
                in_channels=4,
                hidden_size=16,
                num_layers=2,
                num_attention_heads=2,
                num_kv_heads=2,
                multiple_of=16,
                cross_attention_dim=16,
            ),
            "vae": parts.vae,
        },
        {"height": 256, "width": 256},
    ),
    "Lumina2": Drawing(
        {
            "transformer": model(
                "Lumina2Transformer2DModel",
                sample_size=16,
                patch_size=2,
                in_channels=4,
                hidden_size=8,
                num_layers=1,
                num_refiner_layers=1,
                num_attention_heads=1,
                num_kv_heads=1,
                multiple_of=16,
                axes_dim_rope=[4, 2, 2],
                axes_lens=[300, 64, 64],
                cap_feat_dim=16,
            ),
            "vae": parts.vae,
        },
        {"max_sequence_length": 128},
    ),
    "PRX": Drawing(
        {
            "transformer": model(
                "PRXTransformer2DModel",
                patch_size=1,
                in_channels=4,
                context_in_dim=80,
                hidden_size=8,
                mlp_ratio=2.0,
                num_heads=2,
                depth=1,
                axes_dim=[2, 2],
            ),
            "vae": parts.vae,
        },
        {"num_images_per_prompt": 1},
        one_by_one=True,  # it repeats its timestep for two rows, not for more
    ),
    "CogView3Plus": Drawing(
        {
            "transformer": model(
                "CogView3PlusTransformer2DModel",
                patch_size=2,
                in_channels=4,
                num_layers=1,
                attention_head_dim=4,
                num_attention_heads=2,
                out_channels=4,
                text_embed_dim=80,
                time_embed_dim=8,
                condition_dim=2,
                pos_embed_max_size=16,
                sample_size=16,
            ),
            "vae": parts.vae,
            "scheduler": scheduler("CogVideoXDDIMScheduler"),
        }
    ),
    "CogView4": Drawing(
        {
            "transformer": model(
                "CogView4Transformer2DModel",
                patch_size=2,
                in_channels=4,
                num_layers=1,
                attention_head_dim=4,
                num_attention_heads=4,
                out_channels=4,
                text_embed_dim=16,
                time_embed_dim=8,
                condition_dim=4,
            ),
            "vae": parts.vae,
            "scheduler": scheduler(
                "FlowMatchEulerDiscreteScheduler", base_shift=0.25, max_shift=0.75, use_dynamic_shifting=True
            ),
        }
    ),
    "Kolors": Drawing(
        {
            "unet": parts.seeded(
                lambda: parts.make_unet(
                    **_XL,
                    cross_attention_dim=32,
                    projection_class_embeddings_input_dim=16 + 6 * 8,
                    encoder_hid_dim=16,
                    encoder_hid_dim_type="text_proj",
                )
            ),
            "vae": parts.vae,
            "scheduler": DDIM,
        }
    ),
    "HiDream": Drawing(
        {
            "transformer": model(
                "HiDreamImageTransformer2DModel",
                patch_size=2,
                in_channels=4,
                out_channels=4,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=8,
                num_attention_heads=4,
                caption_channels=[80, 16],
                text_emb_dim=64,
                num_routed_experts=4,
                num_activated_experts=2,
                axes_dims_rope=(4, 2, 2),
                max_resolution=(32, 32),
                llama_layers=(0, 1),
            ),
            "vae": parts.vae,
        }
    ),
    "Bria": Drawing(
        {
            "transformer": model(
                "BriaTransformer2DModel",
                patch_size=1,
                in_channels=16,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=8,
                num_attention_heads=2,
                joint_attention_dim=80,
                pooled_projection_dim=None,
                axes_dims_rope=[0, 4, 4],
            ),
            "vae": parts.vae,
        }
    ),
    "BriaFibo": Drawing(
        {
            "transformer": model(
                "BriaFiboTransformer2DModel",
                patch_size=1,
                in_channels=16,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=8,
                num_attention_heads=2,
                joint_attention_dim=32,
                text_encoder_dim=16,
                pooled_projection_dim=None,
                axes_dims_rope=[0, 4, 4],
            ),
            "vae": model(
                "AutoencoderKLWan",
                base_dim=4,
                decoder_base_dim=4,
                dim_mult=[1, 1, 1, 1],
                num_res_blocks=1,
                in_channels=12,
                out_channels=12,
                patch_size=2,
                scale_factor_spatial=16,
                scale_factor_temporal=4,
                temperal_downsample=[False, True, True],
                z_dim=16,
            ),
        },
        {"height": 64, "width": 64},
    ),
    "OvisImage": Drawing(
        {
            "transformer": model(
                "OvisImageTransformer2DModel",
                patch_size=1,
                in_channels=4,
                out_channels=4,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=16,
                axes_dims_rope=(4, 4, 8),
            ),
            "vae": parts.flux_vae,
        },
        {"max_sequence_length": 64},
    ),
    "Kandinsky5Image": Drawing(
        {
            "transformer": model("Kandinsky5Transformer3DModel", **_KANDINSKY5, in_visual_dim=4, out_visual_dim=4),
            "vae": parts.vae,
        },
    ),
    "Kandinsky3": Drawing(
        {
            "unet": model(
                "Kandinsky3UNet",
                in_channels=4,
                time_embedding_dim=4,
                groups=2,
                attention_head_dim=4,
                layers_per_block=3,
                block_out_channels=(32, 64),
                cross_attention_dim=4,
                encoder_hid_dim=80,
            ),
            "movq": model(
                "VQModel",
                block_out_channels=[32, 64],
                down_block_types=["DownEncoderBlock2D", "AttnDownEncoderBlock2D"],
                up_block_types=["AttnUpDecoderBlock2D", "UpDecoderBlock2D"],
                latent_channels=4,
                norm_num_groups=8,
                norm_type="spatial",
                num_vq_embeddings=12,
                vq_embed_dim=4,
            ),
            "scheduler": DDPM,
        }
    ),
    "DeepFloydIF": Drawing(
        {
            "unet": model(
                "UNet2DConditionModel",
                sample_size=16,
                layers_per_block=1,
                block_out_channels=[8, 16],
                norm_num_groups=4,
                down_block_types=["ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"],
                mid_block_type="UNetMidBlock2DSimpleCrossAttn",
                up_block_types=["SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"],
                in_channels=3,
                out_channels=6,
                cross_attention_dim=32,
                encoder_hid_dim=80,
                attention_head_dim=4,
                addition_embed_type="text",
                addition_embed_type_num_heads=2,
                cross_attention_norm="group_norm",
                resnet_time_scale_shift="scale_shift",
                act_fn="gelu",
            ),
            "scheduler": scheduler("DDPMScheduler", variance_type="learned_range"),
        },
        {"output_type": "pt"},
    ),
    "Wan": Drawing(
        {
            "transformer": model(
                "WanTransformer3DModel",
                num_attention_heads=2,
                attention_head_dim=12,
                in_channels=16,
                out_channels=16,
                text_dim=80,
                freq_dim=32,
                ffn_dim=32,
                num_layers=1,
                rope_max_seq_len=32,
            ),
            "vae": _WAN_VAE,
        }
    ),
    "CogVideoX": Drawing(
        {
            "transformer": model(
                "CogVideoXTransformer3DModel",
                num_attention_heads=4,
                attention_head_dim=8,
                in_channels=4,
                out_channels=4,
                time_embed_dim=2,
                text_embed_dim=80,
                num_layers=1,
                sample_width=4,
                sample_height=4,
                sample_frames=5,
                max_text_seq_length=40,
            ),
            "vae": model(
                "AutoencoderKLCogVideoX",
                down_block_types=["CogVideoXDownBlock3D"] * 4,
                up_block_types=["CogVideoXUpBlock3D"] * 4,
                block_out_channels=(8, 8, 8, 8),
                latent_channels=4,
                layers_per_block=1,
                norm_num_groups=2,
            ),
            "scheduler": DDIM,
        },
        {"num_videos_per_prompt": 1},
    ),
    "Latte": Drawing(
        {
            "transformer": model(
                "LatteTransformer3DModel",
                sample_size=8,
                patch_size=2,
                attention_head_dim=8,
                num_attention_heads=3,
                caption_channels=80,
                in_channels=4,
                cross_attention_dim=24,
                out_channels=8,
                activation_fn="gelu-approximate",
                num_embeds_ada_norm=1000,
                norm_type="ada_norm_single",
                norm_elementwise_affine=False,
                norm_eps=1e-6,
            ),
            "vae": parts.vae,
            "scheduler": DDIM,
        },
        {"height": 16, "width": 16, "video_length": 1, "mask_feature": True},
    ),
    "MotifVideo": Drawing(
        {
            "transformer": model(
                "MotifVideoTransformer3DModel",
                in_channels=33,
                out_channels=16,
                num_attention_heads=2,
                attention_head_dim=12,
                num_layers=1,
                num_single_layers=1,
                patch_size=1,
                text_embed_dim=80,
                rope_axes_dim=(4, 4, 4),
            ),
            "vae": _WAN_VAE,
            "guider": scheduler("ClassifierFreeGuidance", guidance_scale=3.0),
        }
    ),
    "Krea2": Drawing(
        {
            "transformer": model(
                "Krea2Transformer2DModel",
                in_channels=16,
                num_layers=1,
                attention_head_dim=8,
                num_attention_heads=4,
                num_key_value_heads=2,
                intermediate_size=32,
                timestep_embed_dim=8,
                text_hidden_dim=16,
                num_text_layers=3,
                text_num_attention_heads=2,
                text_num_key_value_heads=1,
                text_intermediate_size=16,
                num_layerwise_text_blocks=1,
                num_refiner_text_blocks=1,
                axes_dims_rope=(4, 2, 2),
            ),
            "vae": _QWEN_VAE,
            "scheduler": scheduler("FlowMatchEulerDiscreteScheduler", use_dynamic_shifting=True),
        }
    ),
    "Cosmos": Drawing(
        {
            "transformer": model(
                "CosmosTransformer3DModel",
                in_channels=4,
                out_channels=4,
                num_attention_heads=2,
                attention_head_dim=16,
                num_layers=1,
                mlp_ratio=2,
                text_embed_dim=80,
                adaln_lora_dim=4,
                max_size=(4, 32, 32),
                rope_scale=(2.0, 1.0, 1.0),
            ),
            "vae": model(
                "AutoencoderKLCosmos",
                latent_channels=4,
                encoder_block_out_channels=(8, 8, 8, 8),
                decode_block_out_channels=(8, 8, 8, 8),
                attention_resolutions=(8,),
                resolution=64,
                num_layers=2,
                spatial_compression_ratio=4,
                temporal_compression_ratio=4,
            ),
            "safety_checker": Safe,
            "scheduler": scheduler("EDMEulerScheduler", sigma_data=0.5, final_sigmas_type="sigma_min"),
        },
        {"num_frames": 9},
    ),
    "LTX": Drawing(
        {
            "transformer": model(
                "LTXVideoTransformer3DModel",
                in_channels=8,
                out_channels=8,
                num_attention_heads=4,
                attention_head_dim=8,
                cross_attention_dim=32,
                num_layers=1,
                caption_channels=80,
            ),
            "vae": model(
                "AutoencoderKLLTXVideo",
                latent_channels=8,
                block_out_channels=(8, 8, 8, 8),
                decoder_block_out_channels=(8, 8, 8, 8),
                layers_per_block=(1, 1, 1, 1, 1),
                decoder_layers_per_block=(1, 1, 1, 1, 1),
                spatio_temporal_scaling=(True, True, False, False),
                decoder_spatio_temporal_scaling=(True, True, False, False),
                decoder_inject_noise=(False,) * 5,
                upsample_residual=(False,) * 4,
                upsample_factor=(1,) * 4,
                patch_size=1,
            ),
        },
        {"num_frames": 9},
    ),
    "LTX2": Drawing(_LTX2, {"num_frames": 9, "max_sequence_length": 64}),
    "LTX2DFR": Drawing(_LTX2, {"num_frames": 9, "max_sequence_length": 64, "generate_slots": False}),
    "Mochi": Drawing(
        {
            "transformer": model(
                "MochiTransformer3DModel",
                num_attention_heads=2,
                attention_head_dim=8,
                num_layers=2,
                pooled_projection_dim=16,
                in_channels=12,
                text_embed_dim=80,
                time_embed_dim=4,
                max_sequence_length=16,
            ),
            "vae": model(
                "AutoencoderKLMochi",
                encoder_block_out_channels=(32, 32, 32, 32),
                decoder_block_out_channels=(32, 32, 32, 32),
                layers_per_block=(1, 1, 1, 1, 1),
            ),
        },
        {"num_frames": 7},
    ),
    "Allegro": Drawing(
        {
            "transformer": model(
                "AllegroTransformer3DModel",
                num_attention_heads=2,
                attention_head_dim=12,
                in_channels=4,
                out_channels=4,
                num_layers=1,
                cross_attention_dim=24,
                sample_width=8,
                sample_height=8,
                sample_frames=8,
                caption_channels=80,
            ),
            "vae": model(
                "AutoencoderKLAllegro",
                down_block_types=["AllegroDownBlock3D"] * 4,
                up_block_types=["AllegroUpBlock3D"] * 4,
                block_out_channels=(8, 8, 8, 8),
                latent_channels=4,
                layers_per_block=1,
                norm_num_groups=2,
            ),
            "scheduler": DDIM,
        },
        {"num_frames": 8},
    ),
    "HunyuanVideo": Drawing(
        {
            "transformer": model(
                "HunyuanVideoTransformer3DModel",
                in_channels=4,
                out_channels=4,
                num_attention_heads=2,
                attention_head_dim=10,
                num_layers=1,
                num_single_layers=1,
                num_refiner_layers=1,
                patch_size=1,
                guidance_embeds=True,
                text_embed_dim=16,
                pooled_projection_dim=32,
                rope_axes_dim=(2, 4, 4),
            ),
            "vae": _HUNYUAN_VAE,
        }
    ),
    "HunyuanVideo15": Drawing(
        {
            "transformer": model(
                "HunyuanVideo15Transformer3DModel",
                in_channels=9,
                out_channels=4,
                num_attention_heads=2,
                attention_head_dim=8,
                num_layers=1,
                num_refiner_layers=1,
                mlp_ratio=2.0,
                patch_size=1,
                text_embed_dim=16,
                text_embed_2_dim=80,
                image_embed_dim=12,
                rope_axes_dim=(2, 2, 4),
                target_size=16,
                task_type="t2v",
            ),
            "vae": model(
                "AutoencoderKLHunyuanVideo15",
                latent_channels=4,
                block_out_channels=(16, 16),
                layers_per_block=1,
                spatial_compression_ratio=4,
                temporal_compression_ratio=2,
                downsample_match_channel=False,
                upsample_match_channel=False,
            ),
            "guider": scheduler("ClassifierFreeGuidance", guidance_scale=3.0),
        },
        {"num_videos_per_prompt": 1},
    ),
    "Kandinsky5Video": Drawing(
        {
            "transformer": model("Kandinsky5Transformer3DModel", **_KANDINSKY5, in_visual_dim=4, out_visual_dim=4),
            "vae": _HUNYUAN_VAE,
        },
        {"num_videos_per_prompt": 1},
    ),
    "EasyAnimate": Drawing(
        {
            "transformer": model(
                "EasyAnimateTransformer3DModel",
                num_attention_heads=2,
                attention_head_dim=16,
                in_channels=4,
                out_channels=4,
                time_embed_dim=2,
                text_embed_dim=16,
                num_layers=1,
                sample_width=4,
                sample_height=4,
                patch_size=2,
            ),
            "vae": model(
                "AutoencoderKLMagvit",
                down_block_types=["SpatialDownBlock3D"] + ["SpatialTemporalDownBlock3D"] * 3,
                up_block_types=["SpatialUpBlock3D"] + ["SpatialTemporalUpBlock3D"] * 3,
                block_out_channels=(8, 8, 8, 8),
                latent_channels=4,
                layers_per_block=1,
                norm_num_groups=2,
                spatial_group_norm=False,
            ),
        }
    ),
    "SanaVideo": Drawing(
        {
            "transformer": model(
                "SanaVideoTransformer3DModel",
                in_channels=16,
                out_channels=16,
                num_attention_heads=2,
                attention_head_dim=12,
                num_layers=1,
                num_cross_attention_heads=2,
                cross_attention_head_dim=12,
                cross_attention_dim=24,
                caption_channels=16,
                sample_size=8,
                rope_max_seq_len=32,
            ),
            "vae": _WAN_VAE,
        }
    ),
}

_EDIT = {"image": _image(), "strength": 1.0}
_MASKED = _EDIT | {"mask_image": _image("white")}
_FRAMES = {"video": [_image()] * 5}

VARIANTS = {
    "QwenImageImg2ImgPipeline": ("QwenImage", _EDIT),
    "QwenImageInpaintPipeline": ("QwenImage", _MASKED),
    "QwenImageEditInpaintPipeline": ("QwenImageEdit", _MASKED),
    "ZImageImg2ImgPipeline": ("ZImage", _EDIT),
    "Flux2KleinInpaintPipeline": ("Flux2Klein", _MASKED),
    "KolorsImg2ImgPipeline": ("Kolors", _EDIT),
    "KolorsPAGPipeline": ("Kolors", {}),
    "Kandinsky3Img2ImgPipeline": ("Kandinsky3", _EDIT | {"num_images_per_prompt": 1}),
    "LTXImageToVideoPipeline": ("LTX", {"image": _image()}),
    "LTX2ImageToVideoPipeline": ("LTX2", {"image": _image(), "image_crf": 0}),
    "WanVideoToVideoPipeline": ("Wan", _FRAMES),
    "CogVideoXVideoToVideoPipeline": ("CogVideoX", _FRAMES),
}
"""Other classes of a family that need no further modules, and what they are called with."""
