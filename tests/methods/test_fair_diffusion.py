"""Guidance of the denoiser: by the formula of SEGA, for the values that are drawn, and for nothing else."""

import copy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import sd, sdxl

from vldebias import debias, load_prompts
from vldebias.edit import Rows
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.methods import FairDiffusion, Sega, load_edit
from vldebias.methods.rivals.fair_diffusion import Momentum

SET = load_prompts("professions-gender")
NURSE, STATED = "A photo of a nurse.", "A photo of a female nurse."
HOW = Sega(warmup=1, momentum=0.3, threshold=0.8)


def drawn(pipe: Any, prompt: Any = NURSE, n: int = 1, **call: Any) -> Tensor:
    """Latents of four steps, each image from a seed of its own."""
    texts = [prompt] * n if isinstance(prompt, str) else list(prompt)
    noise = [torch.Generator().manual_seed(i) for i in range(len(texts))]
    call = {"generator": noise, "num_inference_steps": 4, "guidance_scale": 3.0, "output_type": "latent"} | call
    return pipe(texts, height=16, width=16, **call).images


def naive(how: Sega, signs: np.ndarray, steps: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """The formula, number by number: what each step adds, for texts (k, b, c, h, w) and no text (b, c, h, w)."""
    out, velocity = [], np.zeros_like(steps[0][1])
    for step, (texts, plain) in enumerate(steps):
        total = how.momentum * velocity
        for k, b, c in np.ndindex(*texts.shape[:3]):
            term = how.scale * signs[k, b] * (texts[k, b, c] - plain[b, c])
            least = np.quantile(np.abs(term), how.threshold)
            total[b, c] += np.where(np.abs(term) >= least, term, 0)
        velocity = how.beta * velocity + (1 - how.beta) * total
        out.append(total if step >= how.warmup else np.zeros_like(total))
    return out


def test_the_guidance_of_steps_by_a_naive_twin() -> None:
    rng = np.random.default_rng(0)
    signs = np.array([[1, -1], [-1, 1], [-1, -1]])
    steps = [(rng.normal(size=(3, 2, 4, 5, 6)), rng.normal(size=(2, 4, 5, 6))) for _ in range(4)]
    guide = Momentum(HOW, torch.from_numpy(signs))
    found = [guide(i, *map(torch.from_numpy, one)) for i, one in enumerate(steps)]
    for one, expected in zip(found, naive(HOW, signs, steps), strict=True):
        np.testing.assert_allclose(one.numpy(), expected, atol=1e-5)
    assert not found[0].any()  # warm-up
    alone = Momentum(replace(HOW, momentum=0.0, warmup=0), torch.tensor([[1.0, 0.0]]))
    kept = alone(0, torch.from_numpy(steps[0][0][:1]), torch.from_numpy(steps[0][1]))
    assert (kept[0] != 0).float().mean().item() == pytest.approx(0.2, abs=0.04)  # what the quantile leaves
    assert not kept[1].any()


@pytest.mark.filterwarnings("ignore")  # of a pipeline that diffusers has retired
def test_images_are_those_of_the_semantic_guidance_of_diffusers() -> None:
    from diffusers import SemanticStableDiffusionPipeline

    pipe = sd()
    parts = {name: part for name, part in pipe.components.items() if name != "image_encoder"}
    theirs = SemanticStableDiffusionPipeline(**parts, requires_safety_checker=False)
    theirs.set_progress_bar_config(disable=True)
    with debias(pipe, SET, method=FairDiffusion(how=HOW)) as attachment:
        ours = drawn(pipe, n=4)
        values = attachment.drawn
    assert sorted(values) == ["female", "female", "male", "male"]
    for i, value in enumerate(values):
        expected = drawn(
            theirs,
            generator=torch.Generator().manual_seed(i),
            editing_prompt=["male person", "female person"],
            reverse_editing_direction=[value != "male", value != "female"],
            edit_guidance_scale=HOW.scale,
            edit_threshold=HOW.threshold,
            edit_warmup_steps=HOW.warmup,
            edit_momentum_scale=HOW.momentum,
            edit_mom_beta=HOW.beta,
        )
        torch.testing.assert_close(ours[i : i + 1], expected, atol=2e-3, rtol=2e-3)
        assert not torch.allclose(expected, drawn(pipe, n=4)[i : i + 1], atol=2e-2)


def test_what_is_stated_off_or_removed_is_drawn_bit_for_bit_as_without() -> None:
    pipe = sd()
    prompts = [NURSE, STATED]
    bare, alike, hooks = drawn(pipe, prompts), drawn(pipe, [STATED, STATED]), dict(pipe.unet._forward_hooks)
    with debias(pipe, SET, method=FairDiffusion(how=HOW)) as attachment:
        attachment.seeds = [0, 1]
        first = drawn(pipe, prompts)
        assert not torch.equal(first[0], bare[0])
        torch.testing.assert_close(first[1], bare[1], atol=1e-6, rtol=1e-6)
        attachment.seeds = [0, 1]
        assert torch.equal(drawn(pipe, prompts), first)
        twin = copy.deepcopy(pipe)
        attachment.strength = 0.0
        assert torch.equal(drawn(pipe, prompts), bare)
        attachment.strength = 1.0
        with attachment.disabled():
            assert torch.equal(drawn(pipe, prompts), bare)
        assert torch.equal(drawn(pipe, [STATED, STATED]), alike)
        states = pipe.encode_prompt(NURSE, "cpu", 1, False)[0]
    assert torch.equal(states, pipe.encode_prompt(NURSE, "cpu", 1, False)[0])
    assert torch.equal(drawn(pipe, prompts), bare)
    assert dict(pipe.unet._forward_hooks) == hooks
    assert not torch.equal(drawn(twin, prompts)[0], bare[0])  # a copy has an attachment of its own


def test_embeddings_that_are_drawn_from_again_are_guided_from_the_first_step() -> None:
    pipe = sd()
    with debias(pipe, SET, method=FairDiffusion(how=HOW)) as attachment:
        attachment.seeds = [5]
        both = pipe.encode_prompt(NURSE, "cpu", 1, True)
        given = {"prompt": None, "prompt_embeds": both[0], "negative_prompt_embeds": both[1]}
        noise = {"num_inference_steps": 4, "guidance_scale": 3.0, "output_type": "latent", "height": 16, "width": 16}
        first, again = (pipe(**given, **noise, generator=torch.Generator().manual_seed(0)).images for _ in range(2))
        assert torch.equal(first, again)
        attachment.seeds = [5]
        assert torch.equal(first, drawn(pipe))
    assert not torch.equal(first, drawn(pipe))


def test_several_attributes_shares_and_texts_of_ones_own(tmp_path: Path) -> None:
    pipe, tones = sd(), load_prompts("skin-tone")
    method = FairDiffusion([{"female": 1.0, "male": 0.0}, None], concepts={"female": "a woman"}, how=HOW)
    with debias(pipe, [SET, tones], method=method) as attachment:
        first = drawn(pipe, n=4)
        assert {value.partition("/")[0] for value in attachment.drawn} == {"female"}
        (edit,) = attachment.projections.values()
        assert edit.concepts[0] == ("male person", "a woman")
    again = load_edit(edit.save_pretrained(tmp_path))
    assert (again.concepts, again.how, again.shares) == (edit.concepts, edit.how, edit.shares)
    with debias(pipe, again):
        assert torch.equal(drawn(pipe, n=4), first)


def test_what_cannot_be_guided_is_refused_by_name() -> None:
    pipe = sd()
    with pytest.raises(UnsupportedHostError, match=r"XLPipeline: method 'fair-diffusion' guides the UNet"):
        debias(sdxl(), SET, method="fair-diffusion")
    with pytest.raises(InvalidInputError, match=r"concepts: the prompt sets have no value 'old'"):
        debias(pipe, SET, method=FairDiffusion(concepts={"old": "old person"}))
    with pytest.raises(InvalidInputError, match=r"expected threshold, momentum and beta in \[0, 1\)"):
        Sega(threshold=1.5)
    with debias(pipe, SET, method="fair-diffusion") as attachment:
        with pytest.raises(InvalidInputError, match=r"by classifier-free guidance; .* a guidance_scale above 1"):
            drawn(pipe, guidance_scale=1.0)
        with (
            attachment.using(method=["default", "none"]),
            pytest.raises(InvalidInputError, match="whole calls of"),
        ):
            drawn(pipe, n=2)
        (edit,) = attachment.projections.values()
    with pytest.raises(InvalidInputError, match="drawn by prompt and seed"):
        edit(torch.zeros(1, 3, edit.dim), rows=Rows((NURSE,)))
    with debias(pipe, SET, method="fair-diffusion", steps=(0, 0.5)), pytest.raises(InvalidInputError, match="steps="):
        drawn(pipe)
