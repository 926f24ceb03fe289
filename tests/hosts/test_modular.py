"""Modular pipelines: attached, paused, removed; every class attached or refused by name."""

import diffusers_tiny as tiny
import pytest
import torch
from diffusers_tiny import MODULAR, PLAIN, STATED

from vldebias.api import debias
from vldebias.errors import AlreadyAttachedError, UnsupportedHostError
from vldebias.hosts import resolve

pytestmark = pytest.mark.filterwarnings("ignore:.*trust_remote_code.*")
QUICK = ("Flux", "ErnieImage", "LTX", "QwenImage", "Krea2", "StableDiffusion3")
REFUSED = {"Anima", "Cosmos3Distilled", "Cosmos3Omni", "Ideogram4", "MiniMaxH3", "MiniMaxMusic3", "QwenImageEdit",
           "QwenImageEditPlus"}  # fmt: skip


def draw(pipe, prompts=(PLAIN, STATED), **call):
    """Latents (2, ...) of two steps, guided, from one seed."""
    small = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "latent"}
    noise = torch.Generator().manual_seed(0)
    negative = ["old smiling person"] * len(prompts)
    return pipe(prompt=list(prompts), negative_prompt=negative, generator=noise, output="latents", **small | call)


def changed(one, other):
    """For each row: is it another one?"""
    return [not torch.equal(a, b) for a, b in zip(tiny.rows(one), tiny.rows(other), strict=True)]


def same(one, other):
    return one.keys() == other.keys() and not any(any(changed(one[key], other[key])) for key in one)


def test_the_images_of_a_prompt_change_and_come_back():
    pipe = tiny.modular("StableDiffusionXL")
    bare, names = draw(pipe), list(pipe._blocks.sub_blocks)
    before = dict(vars(pipe))
    attachment = debias(pipe, tiny.gender(), lam=1e6, method="cali")
    attached = draw(pipe)
    assert changed(attached, bare) == [True, False], "the second prompt states its gender"
    attachment.strength = 0.0
    assert torch.equal(draw(pipe), bare)
    attachment.strength = 1.0
    with attachment.disabled():
        assert torch.equal(draw(pipe), bare)
    assert torch.equal(draw(pipe), attached)
    with pytest.raises(AlreadyAttachedError, match="already carries"):
        debias(pipe, tiny.gender(), method="cali")
    copied = tiny.modular("StableDiffusionXL", pipe.blocks)
    assert torch.equal(draw(copied), bare), "a copy of the blocks is of another pipeline"
    attachment.remove()
    assert torch.equal(draw(pipe), bare)
    assert list(pipe._blocks.sub_blocks) == names
    assert vars(pipe) == before
    debias(pipe, tiny.gender(), lam=1e6, negative=True, method="cali")
    assert changed(draw(pipe), bare) == [True, True]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODULAR])
def test_what_every_class_reads_changes_and_comes_back(name):
    """Behind the block that encodes text; of a video with sound also behind what connects the text to both."""
    pipe = tiny.modular(name)
    bare = tiny.modular_states(pipe)
    attachment = debias(pipe, tiny.gender(), lam=1e6, method="cali")
    attached = tiny.modular_states(pipe)
    edited = [part.name for part in attachment.host.parts]
    for key in bare:
        expected = [True, False] if key in edited else [False, False]
        if key.startswith("connector"):
            expected = [True, False]
        assert key.startswith("negative") or changed(attached[key], bare[key]) == expected, key
    with attachment.disabled():
        assert same(tiny.modular_states(pipe), bare)
    attachment.remove()
    assert same(tiny.modular_states(pipe), bare)


@pytest.mark.parametrize("name", ["StableDiffusionXL", "StableDiffusion3", "Flux"])
def test_it_reads_what_the_classic_pipeline_reads(name):
    classic = resolve(tiny.FAMILIES[name][0]())
    block = resolve(tiny.modular(name))
    assert block.roles == classic.roles
    for role in block.roles:
        torch.testing.assert_close(block.embed([PLAIN, STATED], role), classic.embed([PLAIN, STATED], role))


def test_every_class_is_attached_or_refused():
    known = set(tiny.modular_classes())
    assert known - set(MODULAR) == REFUSED & known
    assert len(MODULAR) >= 32
    for name in sorted(REFUSED & known):
        with pytest.raises(UnsupportedHostError, match=name):
            resolve(tiny.modular_classes()[name]())


def test_a_pipeline_of_one_block_is_attached():
    from diffusers.modular_pipelines.stable_diffusion_xl.encoders import StableDiffusionXLTextEncoderStep

    pipe = tiny.modular("StableDiffusionXL", StableDiffusionXLTextEncoderStep())
    bare = pipe(prompt=PLAIN, output="prompt_embeds")
    with debias(pipe, tiny.gender(), method="cali"):
        assert not torch.equal(pipe(prompt=PLAIN, output="prompt_embeds"), bare)
    assert torch.equal(pipe(prompt=PLAIN, output="prompt_embeds"), bare)


def test_tokens_of_an_image_stay(monkeypatch):
    """What `image_pad_mask` says, up to the last of them."""
    pipe = tiny.modular("QwenImage21")
    kind = type(resolve(pipe).block)
    run = kind.__call__

    def with_image(block, components, state):
        components, state = run(block, components, state)
        mask = torch.zeros_like(state.get("prompt_embeds")[..., 0])
        mask[:, 1:3] = 1
        state.set("image_pad_mask", mask)
        return components, state

    monkeypatch.setattr(kind, "__call__", with_image)
    bare = tiny.modular_states(pipe)["prompt_embeds"][0]
    with debias(pipe, tiny.gender(), method="cali", lam=1e6):
        attached = tiny.modular_states(pipe)["prompt_embeds"][0]
    stay, padding = (attached == bare).all(-1), ~bare.any(-1)
    assert stay[:3].all()
    assert torch.equal(stay[3:], padding[3:])
    assert not padding[3]
