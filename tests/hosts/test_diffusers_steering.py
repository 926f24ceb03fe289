"""Steering tiny pipelines: every role of every family, one seed for each image, and nothing left behind."""

import inspect
from dataclasses import replace

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import steer
from vldebias.hosts.attachment import attachment_of
from vldebias.hosts.diffusers import diffusers_host

PROMPTS = ["a photo of a doctor", "a photo of a nurse", "a photo of a female doctor"]
SHARES = {"male": 0.5, "female": 0.5}
SEEDS = [1, 2, 3]


def gender():
    return replace(tiny.gender(), attributes={"male": ("male", "man"), "female": ("female", "woman")})


def latents(pipe, generators=None, **call):
    """Latents of three images."""
    generators = generators or [torch.Generator().manual_seed(s) for s in SEEDS]
    return tiny.draw(pipe, PROMPTS, generator=generators, **call)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_three_states(family):
    make, call = tiny.FAMILIES[family]
    pipe = make()
    call = {name: value for name, value in call.items() if name in inspect.signature(pipe.encode_prompt).parameters}
    before = dict(vars(pipe))
    bare = tiny.encode(pipe, PROMPTS, **call)
    with steer(pipe, gender(), SHARES) as steering:
        steering.seeds = SEEDS
        steered = tiny.encode(pipe, PROMPTS, **call)
        for part in diffusers_host(make())._parts:
            for row in (0, 1):
                assert not torch.equal(steered[part.index][row], bare[part.index][row])
            assert torch.equal(steered[part.index][2], bare[part.index][2]), "a stated prompt is left alone"
        with steering.disabled():
            assert tiny.same(tiny.encode(pipe, PROMPTS, **call), bare)
    assert tiny.same(tiny.encode(pipe, PROMPTS, **call), bare)
    assert dict(vars(pipe)) == before
    assert attachment_of(pipe) is None


@pytest.mark.parametrize("make", [tiny.sd, tiny.sdxl, tiny.flux])
def test_images_through_the_whole_pipeline(make):
    pipe, call = make(), tiny.T5_LENGTH if make is tiny.flux else {}
    bare = latents(pipe, **call)
    steering = steer(pipe, gender(), SHARES)
    first = latents(pipe, steering.generators(SEEDS), **call)
    assert torch.equal(latents(pipe, steering.generators(SEEDS), **call), first)
    assert torch.equal(first[2], bare[2])
    assert not torch.equal(first[:2], bare[:2])


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_draws_within_a_call(family):
    make, call = tiny.FAMILIES[family]
    pipe = make()
    call = {name: value for name, value in call.items() if name in inspect.signature(pipe.encode_prompt).parameters}
    bare = tiny.encode(pipe, [PROMPTS[0]] * 4, **call)
    with steer(pipe, gender()) as steering:
        steered = tiny.encode(pipe, [PROMPTS[0]] * 4, **call)
        males = [value == "male" for value in steering.drawn]
    assert sum(males) == 2
    for part in diffusers_host(make())._parts:
        moves = (steered[part.index] - bare[part.index]).flatten(1).double()
        alike = torch.cdist(moves, moves) < 1e-4 * moves.norm(dim=1)
        assert torch.equal(alike, torch.tensor([[a == b for a in males] for b in males]))


@pytest.mark.parametrize("generator", ["none", "one", "list"])
def test_any_generator(generator):
    pipe = tiny.sd()
    generators = {"none": None, "one": torch.Generator().manual_seed(0), "list": [torch.Generator() for _ in range(4)]}
    with steer(pipe, gender()) as steering:
        tiny.draw(pipe, PROMPTS[:2], generator=generators[generator], num_images_per_prompt=2)
        assert sorted(steering.drawn[:2]) == sorted(steering.drawn[2:]) == ["female", "male"]


def test_an_image_has_its_value_in_any_batch():
    pipe = tiny.sd()
    steering = steer(pipe, gender(), SHARES)
    together = latents(pipe, steering.generators(SEEDS))
    alone = tiny.draw(pipe, PROMPTS[1], generator=steering.generators([SEEDS[1]]))
    torch.testing.assert_close(alone[0], together[1], rtol=1e-3, atol=1e-3)


def test_several_images_of_a_prompt():
    pipe = tiny.sd()
    steering = steer(pipe, gender(), SHARES)
    found = tiny.draw(pipe, PROMPTS[0], generator=steering.generators([5, 6]), num_images_per_prompt=2)
    listed = tiny.draw(pipe, [PROMPTS[0]] * 2, generator=steering.generators([5, 6]))
    torch.testing.assert_close(found, listed, rtol=1e-3, atol=1e-3)


def test_the_negative_prompt_is_left_alone():
    pipe = tiny.sd()
    call = {"do_classifier_free_guidance": True, "negative_prompt": ["a blurry photo"] * 3}
    bare = tiny.encode(pipe, PROMPTS, **call)[1]
    steering = steer(pipe, gender(), SHARES)
    steering.seeds = SEEDS
    assert torch.equal(tiny.encode(pipe, PROMPTS, **call)[1], bare)


def test_true_guidance_encodes_its_negative_prompt_without_seeds():
    pipe = tiny.flux()
    steering = steer(pipe, gender(), SHARES)
    call = {"negative_prompt": ["a blurry photo"] * 3, "true_cfg_scale": 2.0}
    assert latents(pipe, steering.generators(SEEDS), **tiny.T5_LENGTH, **call).shape[0] == 3


def test_clip_skip_is_a_layer_of_its_own():
    pipe = tiny.sdxl()
    bare = tiny.encode(pipe, PROMPTS, clip_skip=1)[0]
    steering = steer(pipe, gender(), SHARES)
    steering.seeds = SEEDS
    found = tiny.encode(pipe, PROMPTS, clip_skip=1)[0]
    assert set(steering.projections) == {"sequence", "pooled", "sequence@clip_skip=1"}
    assert not torch.equal(found[0], bare[0])
    assert torch.equal(found[2], bare[2])
