"""Tiny diffusers pipelines from configs: a few channels, real tokenizers, nothing from the network."""

import copy
import inspect

import torch
from diffusers_parts import (
    aura_transformer,
    chroma_transformer,
    clip,
    clip_tokenizer,
    clip_with_projection,
    dc_vae,
    flux_transformer,
    flux_vae,
    gemma,
    gemma_tokenizer,
    pixart_transformer,
    sana_transformer,
    sd3_transformer,
    t5,
    t5_tokenizer,
    umt5,
    unet,
    unet_xl,
    vae,
)
from torch import nn

from vldebias.prompts import PromptSet


def own(pipe):
    """The pipeline with modules of its own, for tests that change weights."""
    for name, component in pipe.components.items():
        if isinstance(component, nn.Module):
            setattr(pipe, name, twin(component))
    return pipe


def twin(model, cls=None):
    """A copy through the constructor: transformers registers what a model can record when it is made."""
    if not hasattr(model, "get_input_embeddings"):
        return copy.deepcopy(model)
    made = (cls or type(model))(copy.deepcopy(model.config))
    made.load_state_dict(model.state_dict())
    return made.eval()


# ---- pipelines: a new one at every call, around the same modules -----------------------------------------------


def _silent(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _ddim():
    from diffusers import DDIMScheduler

    return DDIMScheduler(beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False, steps_offset=1)


def _flow():
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler()


def sd(cls=None, **extra):
    from diffusers import StableDiffusionPipeline

    parts = {"text_encoder": clip(), "tokenizer": clip_tokenizer(), "unet": unet(), "vae": vae(), "scheduler": _ddim()}
    plain = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
    return _silent((cls or StableDiffusionPipeline)(**parts | plain | extra))


def sdxl(cls=None, **extra):
    from diffusers import StableDiffusionXLPipeline

    parts = {
        "text_encoder": clip(),
        "text_encoder_2": clip_with_projection(),
        "tokenizer": clip_tokenizer(),
        "tokenizer_2": clip_tokenizer(),
        "unet": unet_xl(),
        "vae": vae(),
        "scheduler": _ddim(),
        "add_watermarker": False,
    }
    return _silent((cls or StableDiffusionXLPipeline)(**parts | extra))


def sd3(cls=None, **extra):
    from diffusers import StableDiffusion3Pipeline

    parts = {
        "text_encoder": clip_with_projection(),
        "text_encoder_2": clip_with_projection(),
        "text_encoder_3": t5(),
        "tokenizer": clip_tokenizer(),
        "tokenizer_2": clip_tokenizer(),
        "tokenizer_3": t5_tokenizer(),
        "transformer": sd3_transformer(),
        "vae": vae(),
        "scheduler": _flow(),
    }
    return _silent((cls or StableDiffusion3Pipeline)(**parts | extra))


def flux(cls=None, **extra):
    from diffusers import FluxPipeline

    parts = {
        "text_encoder": clip(),
        "text_encoder_2": t5(),
        "tokenizer": clip_tokenizer(),
        "tokenizer_2": t5_tokenizer(),
        "transformer": flux_transformer(),
        "vae": flux_vae(),
        "scheduler": _flow(),
    }
    return _silent((cls or FluxPipeline)(**parts | extra))


def chroma(cls=None, **extra):
    from diffusers import ChromaPipeline

    parts = {"text_encoder": t5(), "tokenizer": t5_tokenizer(), "transformer": chroma_transformer(), "vae": flux_vae()}
    return _silent((cls or ChromaPipeline)(**parts | {"scheduler": _flow()} | extra))


def pixart(cls=None, **extra):
    from diffusers import PixArtAlphaPipeline

    parts = {"text_encoder": t5(), "tokenizer": t5_tokenizer(), "transformer": pixart_transformer(), "vae": vae()}
    return _silent((cls or PixArtAlphaPipeline)(**parts | {"scheduler": _ddim()} | extra))


def sana(cls=None, **extra):
    from diffusers import SanaPipeline

    parts = {
        "text_encoder": gemma(),
        "tokenizer": gemma_tokenizer(),
        "transformer": sana_transformer(),
        "vae": dc_vae(),
    }
    return _silent((cls or SanaPipeline)(**parts | {"scheduler": _flow()} | extra))


def aura(cls=None, **extra):
    from diffusers import AuraFlowPipeline

    parts = {"text_encoder": umt5(), "tokenizer": t5_tokenizer(), "transformer": aura_transformer(), "vae": vae()}
    return _silent((cls or AuraFlowPipeline)(**parts | {"scheduler": _flow()} | extra))


# ---- calls ---------------------------------------------------------------------------------------------------

T5_LENGTH = {"max_sequence_length": 40}
NO_BINNING = {"use_resolution_binning": False, "clean_caption": False, "max_sequence_length": 40}

FAMILIES = {
    "StableDiffusion": (sd, {}),
    "StableDiffusionXL": (sdxl, {}),
    "StableDiffusion3": (sd3, T5_LENGTH),
    "Flux": (flux, T5_LENGTH),
    "Chroma": (chroma, T5_LENGTH),
    "PixArt": (pixart, NO_BINNING),
    "Sana": (sana, NO_BINNING | {"height": 32, "width": 32}),
    "AuraFlow": (aura, T5_LENGTH),
}


def draw(pipe, prompt="a photo of a doctor", **call):
    """Latents of two steps from one seed."""
    noise = torch.Generator().manual_seed(0)
    defaults = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "latent", "generator": noise}
    return pipe(prompt, **defaults | call).images


def encode(pipe, prompt="a photo of a doctor", **call):
    """What encode_prompt returns, whatever it requires."""
    takes = inspect.signature(pipe.encode_prompt).parameters
    wanted = {"prompt_2": None, "prompt_3": None, "device": "cpu", "num_images_per_prompt": 1}
    wanted |= {"do_classifier_free_guidance": False, "clean_caption": False}
    with torch.no_grad():
        return pipe.encode_prompt(prompt, **{k: v for k, v in wanted.items() if k in takes} | call)


def same(one, other):
    """Equal tuples of tensors and None."""
    return len(one) == len(other) and all(
        a is b if a is None or b is None else torch.equal(a, b) for a, b in zip(one, other, strict=True)
    )


def gender():
    """A small prompt set."""
    groups = tuple((f"a photo of a male {job}", f"a photo of a female {job}") for job in ("doctor", "nurse", "pilot"))
    spurious = ("a photo of a man", "a photo of a woman")
    return PromptSet(
        name="gender-tiny", groups=groups, spurious=spurious, stated_words=("male", "female", "man", "woman")
    )
