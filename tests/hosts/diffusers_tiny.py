"""Tiny diffusers pipelines from configs: a few channels, real tokenizers, nothing from the network."""

import copy
import inspect
from importlib import import_module

import torch
from diffusers_parts import TABLE, builder
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


def _pipeline(name):
    def make(cls=None, **extra):
        config = TABLE["pipelines"][name]
        parts = {key: builder(entry, key == "scheduler")() for key, entry in config.items() if key != "class"}
        pipe = (cls or getattr(import_module("diffusers"), config["class"]))(**parts | extra)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    return make


sd, sdxl, sd3, flux, chroma, pixart, sana, aura = map(_pipeline, TABLE["pipelines"])

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


@torch.no_grad()
def encode(pipe, prompt="a photo of a doctor", images=1, **call):
    """What encode_prompt returns, whatever it requires; arguments that it has not are left out."""
    count = 1 if isinstance(prompt, str) else len(prompt)
    given = {"prompt": prompt, "device": "cpu", "do_classifier_free_guidance": False, "clean_caption": False}
    given |= {"batch_size": count, "guidance_scale": 1.0, "dtype": torch.float32, "image": None}
    given |= {"prompt_2": None, "prompt_3": None, "prompt_4": None}
    given |= {"num_images_per_prompt": images, "num_videos_per_prompt": images}
    takes = inspect.signature(pipe.encode_prompt).parameters
    return pipe.encode_prompt(**{key: value for key, value in (given | call).items() if key in takes})


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
