"""How pipelines are called in practice, by family: offload, compiled, batches, long prompts, images, adapters."""

import warnings

import diffusers_parts as parts
import diffusers_tiny as tiny
import pytest
import torch
from accelerate import cpu_offload
from diffusers_drawing import DRAWINGS, PLAIN, STATED, VARIANTS
from torch import nn

from vldebias.api import debias, fit_projections

DRAWN = ("QwenImage", "ZImage", "Wan")
TINY = ("StableDiffusion", "StableDiffusionXL", "StableDiffusion3", "Flux", "Sana")
QUICK = ("StableDiffusion", "Flux")
EVERY = pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in (*TINY, *DRAWN)]
)
LONG = " ".join([PLAIN, "in a garden with many trees"] * 12)


def made(name):
    """A pipeline with modules of its own, and what draws prompts with it."""
    if name in DRAWN:
        drawing = DRAWINGS[name]
        return tiny.own(drawing.make(name)), lambda pipe, prompts: drawing.draw(pipe, prompts)
    make, call = tiny.FAMILIES[name]
    return tiny.own(make()), lambda pipe, prompts: tiny.draw(pipe, list(prompts), num_images_per_prompt=2, **call)


def changed(one, other):
    return [not torch.equal(a, b) for a, b in zip(one, other, strict=True)]


@EVERY
def test_batches_and_long_prompts(name):
    """Two images each; the stated prompt keeps its images, the long one is changed however much of it is cut."""
    pipe, draw = made(name)
    prompts = [STATED, PLAIN, LONG]
    bare = draw(pipe, prompts)
    with debias(pipe, tiny.gender(), lam=1e6) as attachment:
        assert changed(draw(pipe, prompts), bare) == [False, False, True, True, True, True]
        attachment.strength = 0
        assert torch.equal(draw(pipe, prompts), bare)
    assert torch.equal(draw(pipe, prompts), bare)


@EVERY
@pytest.mark.parametrize("kind", ["model", "sequential"])
def test_offloaded(name, kind):
    pipe, draw = made(name)
    bare = draw(pipe, [PLAIN])
    with debias(pipe, tiny.gender(), lam=1e6) as attachment:
        attached = draw(pipe, [PLAIN])
        if kind == "model":
            pipe.enable_model_cpu_offload(device="cpu")
        else:
            for model in [one for one in pipe.components.values() if isinstance(one, nn.Module)]:
                cpu_offload(model, torch.device("cpu"))  # what enable_sequential_cpu_offload does on an accelerator
        assert torch.equal(draw(pipe, [PLAIN]), attached)
        attachment.strength = 0
        assert torch.equal(draw(pipe, [PLAIN]), bare)
        attachment.strength = 1
    assert torch.equal(draw(pipe, [PLAIN]), bare)


@pytest.mark.slow  # to compile
@EVERY
def test_a_compiled_denoiser(name):
    pipe, draw = made(name)
    bare = draw(pipe, [PLAIN])
    edits = fit_projections(pipe, tiny.gender(), lam=1e6)
    with debias(pipe, edits):
        attached = draw(pipe, [PLAIN])
    part = "unet" if getattr(pipe, "unet", None) is not None else "transformer"
    setattr(pipe, part, torch.compile(getattr(pipe, part), backend="eager"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch.compile, of the code that it traces
            with debias(pipe, edits):
                torch.testing.assert_close(draw(pipe, [PLAIN]), attached)
            torch.testing.assert_close(draw(pipe, [PLAIN]), bare)
    finally:
        torch.compiler.reset()


MASKED = [
    ("sd", "StableDiffusionInpaintPipeline", {}),
    ("sdxl", "StableDiffusionXLInpaintPipeline", {}),
    ("flux", "FluxInpaintPipeline", tiny.T5_LENGTH),
]


@pytest.mark.parametrize(
    ("make", "cls", "call"),
    [case if case[0] == "sd" else pytest.param(*case, marks=pytest.mark.slow) for case in MASKED],
)
def test_inpainting(make, cls, call):
    import diffusers

    pipe = getattr(tiny, make)(getattr(diffusers, cls))
    image = VARIANTS["QwenImageInpaintPipeline"][1]["image"]
    given = {"image": image, "mask_image": VARIANTS["QwenImageInpaintPipeline"][1]["mask_image"], "strength": 1.0}
    comes_back(pipe, lambda: tiny.draw(pipe, height=32, width=32, **given, **call))


def test_a_controlnet():
    from diffusers import StableDiffusionControlNetPipeline

    pipe = tiny.sd(StableDiffusionControlNetPipeline, controlnet=parts.MODELS["controlnet"]())
    comes_back(pipe, lambda: tiny.draw(pipe, image=torch.rand(1, 3, 16, 16, generator=torch.manual_seed(1))))
    comes_back(
        pipe,
        lambda: tiny.draw(pipe, image=torch.zeros(1, 3, 16, 16), num_inference_steps=4),
        steps=(0, 0.5),
    )


def test_an_ip_adapter():
    """The embeddings of its image reach cross-attention beside those of the prompt, and stay as they are."""
    pipe = tiny.own(tiny.sd())
    state = {"image_proj": {}, "ip_adapter": {}}
    torch.manual_seed(3)
    width, embedding, tokens = pipe.unet.config.cross_attention_dim, 32, 4
    state["image_proj"] = {
        "proj.weight": torch.randn(tokens * width, embedding), "proj.bias": torch.zeros(tokens * width),
        "norm.weight": torch.ones(width), "norm.bias": torch.zeros(width),
    }  # fmt: skip
    key = 1
    for name, processor in pipe.unet.attn_processors.items():
        if name.endswith("attn1.processor"):
            continue
        hidden = pipe.unet.get_submodule(name.removesuffix(".processor")).to_q.in_features
        for which in ("to_k_ip", "to_v_ip"):
            state["ip_adapter"][f"{key}.{which}.weight"] = torch.randn(hidden, width) / width**0.5
        key += 2
        assert processor is not None
    without = tiny.draw(pipe)
    pipe.unet._load_ip_adapter_weights([state])
    shown = [torch.randn(2, 1, embedding, generator=torch.manual_seed(2))]
    assert not torch.equal(tiny.draw(pipe, ip_adapter_image_embeds=shown), without)
    comes_back(pipe, lambda: tiny.draw(pipe, ip_adapter_image_embeds=shown))


def comes_back(pipe, draw, **how):
    """Attached, paused, at strength 0, removed."""
    bare = draw()
    with debias(pipe, tiny.gender(), lam=1e6, **how) as attachment:
        attached = draw()
        assert not torch.equal(attached, bare)
        with attachment.disabled():
            assert torch.equal(draw(), bare)
        attachment.strength = 0
        assert torch.equal(draw(), bare)
        attachment.strength = 1
        assert torch.equal(draw(), attached)
    assert torch.equal(draw(), bare)
