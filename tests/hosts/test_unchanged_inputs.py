"""Test that a pipeline's text encoders receive identical inputs if no prompt is rewritten."""

from contextlib import contextmanager

import diffusers_tiny as tiny
import pytest
import torch
from diffusers_tiny import CASES, modular
from torch import nn

from vldebias.api import debias

SET = "professions-gender"
OPEN = "A photo of a nurse."
STATED = "a photo of a female doctor"
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*trust_remote_code.*", "ignore:.*LoraLoaderMixin.*:FutureWarning"
)


@contextmanager
def encoder_inputs(pipe):
    """Record the tensors that a pipeline's text encoders receive, in order."""
    seen = []
    hooks = []

    def note(module, args, kwargs):
        values = [*args, *(kwargs[name] for name in sorted(kwargs))]
        seen.extend(value.clone() for value in values if isinstance(value, torch.Tensor))

    for name, part in pipe.components.items():
        if "text_encoder" in name and isinstance(part, nn.Module):
            hooks.append(part.register_forward_pre_hook(note, with_kwargs=True))
    yield seen
    for hook in hooks:
        hook.remove()


def family(name):
    make, call = tiny.FAMILIES[name]
    return make(), lambda pipe, prompt, n: tiny.draw(pipe, prompt, num_images_per_prompt=n, **call)


def video():
    drawing = CASES["Wan"]
    pipe = drawing.make(is_complete=True)

    def draw(pipe, prompt, n):
        prompts = [prompt] if isinstance(prompt, str) else prompt
        return drawing.draw(pipe, prompts, num_videos_per_prompt=n)

    return pipe, draw


def blocks():
    small = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "latent"}

    def draw(pipe, prompt, n):
        noise = torch.Generator().manual_seed(0)
        call = small | {"generator": noise, "output": "latents", "num_images_per_prompt": n}
        return pipe(prompt=prompt, **call)

    return modular("StableDiffusionXL"), draw


PIPELINES = {
    "SD": lambda: family("StableDiffusion"),
    "SDXL": lambda: family("StableDiffusionXL"),
    "FLUX": lambda: family("Flux"),
    "masked, PixArt": lambda: family("PixArt"),
    "modular SDXL": blocks,
    "video, Wan": video,
}


# The number of images per prompt is read from a pipeline and from blocks.
@pytest.mark.parametrize(
    ("name", "images"),
    [(name, 2) for name in PIPELINES] + [("SD", 1), ("SD", 4), ("modular SDXL", 4)],
)
def test_unchanged_prompts_reach_the_encoders_bit_identically(name, images):
    pipe, draw = PIPELINES[name]()
    with encoder_inputs(pipe) as bare:
        draw(pipe, OPEN, images)
    with encoder_inputs(pipe) as bare_stated:
        draw(pipe, [STATED], images)
    attachment = debias(pipe, SET, method="balanced-prompts", strength=0)
    with encoder_inputs(pipe) as without_strength:
        draw(pipe, OPEN, images)
    assert attachment.sampled == [None] * images
    attachment.strength = 1
    with encoder_inputs(pipe) as left_unchanged:
        draw(pipe, [STATED], images)
    with encoder_inputs(pipe) as written:
        draw(pipe, OPEN, images)
    for before, after in ((bare, without_strength), (bare_stated, left_unchanged)):
        assert len(before) == len(after) > 0
        assert all(map(torch.equal, before, after))
    is_same = len(bare) == len(written) and all(
        tensor.shape == expected.shape and torch.equal(tensor, expected)
        for tensor, expected in zip(bare, written, strict=True)
    )
    assert not is_same, "a rewritten prompt differs"
