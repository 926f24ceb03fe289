"""Test cross-attention with each diffusers cache. Either the edit takes effect, values are even,
and pictures without it equal those of the cached pipeline bit for bit, or the cache is rejected."""

from collections.abc import Callable, Iterator
from typing import Any

import diffusers
import diffusers_tiny as tiny
import pytest
import torch
from diffusers import hooks
from test_cross_attention_classes import called
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.errors import UnsupportedHostError, VldebiasWarning
from vldebias.methods import CrossAttention
from vldebias.prompts import make_prompt_set

SET = make_prompt_set("gender", {"male": ["male"], "female": ["female"]}, ["doctor", "nurse"])
OPEN = "A photo of a doctor."
STEPS = 4
ALWAYS = (-1, 2000)  # timesteps


def broadcast(pipe: Any) -> Any:
    return hooks.PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=ALWAYS,
        cross_attention_block_skip_range=2,
        cross_attention_timestep_skip_range=ALWAYS,
        current_timestep_callback=lambda: pipe.current_timestep,
    )


def faster(pipe: Any) -> Any:
    return hooks.FasterCacheConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=ALWAYS,
        unconditional_batch_skip_range=2,
        unconditional_batch_timestep_skip_range=ALWAYS,
        current_timestep_callback=lambda: pipe.current_timestep,
        attention_weight_callback=lambda _: 0.5,
    )


CACHES: dict[str, Callable[[Any], Any]] = {
    "FirstBlockCache": lambda _: hooks.FirstBlockCacheConfig(threshold=100.0),
    "MagCache": lambda _: hooks.MagCacheConfig(
        mag_ratios=[1.0] * STEPS, num_inference_steps=STEPS, threshold=10.0, retention_ratio=0.25
    ),
    "PyramidAttentionBroadcast": broadcast,
    "SeaCache": lambda _: hooks.SeaCacheConfig(threshold=100.0),
    "TaylorSeer": lambda _: hooks.TaylorSeerCacheConfig(
        cache_interval=2,
        disable_cache_before_step=1,
        cache_identifiers=[r"blocks\.\d+\.attn1"],
    ),
    "TextKVCache": lambda _: hooks.TextKVCacheConfig(),
}
SKIPPING = ("FirstBlockCache", "MagCache", "PyramidAttentionBroadcast", "SeaCache", "TaylorSeer")
"""Caches that change this pipeline's pictures. Only NucleusMoE supports TextKVCache."""

Draw = Callable[..., Tensor]


@pytest.fixture
def wan() -> Iterator[tuple[Any, Draw, dict[str, Any]]]:
    """Return a tiny video pipeline with two blocks, a function that generates, and its options."""
    case = tiny.CASES["Wan"]
    pipe = tiny.with_own_components(case.make(is_complete=True))
    config = dict(pipe.transformer.config) | {"num_layers": 2}
    torch.manual_seed(0)
    pipe.transformer = type(pipe.transformer).from_config(config).eval()
    with called(case, pipe) as options:
        options["negative_prompt"] = ""

        def draw(images: int = 2, **more: Any) -> Tensor:
            noise = [torch.Generator().manual_seed(number) for number in range(images)]
            prompt = {} if "prompt_embeds" in more else {"prompt": [OPEN] * images}
            call = options | prompt | more
            call |= {"num_inference_steps": STEPS, "output_type": "latent", "generator": noise}
            frames: Tensor = pipe(**call)[0]
            return frames

        yield pipe, draw, options


def enable(name: str, pipe: Any) -> None:
    try:
        config = CACHES[name](pipe)
    except AttributeError:
        pytest.skip(f"diffusers {diffusers.__version__} has no {name}")
    pipe.transformer.enable_cache(config)


def draw_with_cache(name: str, pipe: Any, draw: Draw, **call: Any) -> Tensor:
    """Enable a cache and generate without an edit; skip if this version of diffusers cannot do
    so."""
    enable(name, pipe)
    try:
        return draw(**call)
    except ValueError as error:
        if "No context is set" not in str(error):
            raise
        version = diffusers.__version__
        pytest.skip(f"{type(pipe).__name__} of diffusers {version} cannot draw with {name}")


def fit(pipe: Any, options: dict[str, Any]) -> Any:
    method = CrossAttention(concepts=2, steps=STEPS, seed=0, options=options)
    return fit_projections(pipe, SET, method=method).only


@pytest.mark.parametrize("name", CACHES)
def test_the_edit_takes_effect_with_a_cache_and_strength_zero_is_bit_identical(
    name: str, wan: tuple[Any, Draw, dict[str, Any]]
) -> None:
    pipe, draw, options = wan
    uncached = draw()
    bare = draw_with_cache(name, pipe, draw)
    assert torch.equal(bare, uncached) != (name in SKIPPING)
    attachment = debias(pipe, fit(pipe, options))
    with attachment.giving(["female", "male"]):
        attached = draw()
    assert tiny.changed(attached, bare) == [True, True]
    draw(4)
    assert sorted(attachment.sampled) == ["female", "female", "male", "male"]
    with attachment.disabled():
        assert torch.equal(draw(), bare)
    attachment.strength = 0
    assert torch.equal(draw(), bare)
    attachment.remove()
    assert torch.equal(draw(), bare)


@pytest.mark.parametrize("name", ["FirstBlockCache", "MagCache"])
def test_a_fit_is_the_same_with_and_without_a_cache(
    name: str, wan: tuple[Any, Draw, dict[str, Any]]
) -> None:
    pipe, _, options = wan
    without = fit(pipe, options)
    enable(name, pipe)
    within = fit(pipe, options)
    assert pipe.transformer.is_cache_enabled
    assert torch.equal(within.effects, without.effects)
    assert torch.equal(within.times, without.times)


def test_faster_cache_is_rejected_by_name(wan: tuple[Any, Draw, dict[str, Any]]) -> None:
    pipe, draw, options = wan
    edit = fit(pipe, options)
    attachment = debias(pipe, edit)
    pipe.transformer.enable_cache(faster(pipe))
    with pytest.raises(UnsupportedHostError, match="FasterCache is enabled"):
        draw()
    attachment.remove()
    with pytest.raises(UnsupportedHostError, match=r"disable_cache\(\)"):
        debias(pipe, edit)


def test_embeddings_stay_unchanged_while_a_cache_is_enabled(
    wan: tuple[Any, Draw, dict[str, Any]],
) -> None:
    pipe, draw, options = wan
    edit = fit(pipe, options)
    edit.auroc["stated"] = dict.fromkeys(edit.auroc["stated"], 1.0)
    length = options["max_sequence_length"]
    embeddings, _ = pipe.encode_prompt([OPEN] * 2, max_sequence_length=length)
    bare = draw_with_cache("FirstBlockCache", pipe, draw, prompt_embeds=embeddings)
    with (
        debias(pipe, edit),
        pytest.warns(VldebiasWarning, match="does not work while a cache is enabled"),
    ):
        assert torch.equal(draw(prompt_embeds=embeddings), bare)
