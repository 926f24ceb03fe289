"""Where the first step of a drawing goes: shares that are known, symmetry, and a pipeline that never notices."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline
from diffusers_tiny import flux, sd, sd3, sdxl
from torch import Tensor

from vldebias.api import debias
from vldebias.errors import UnsupportedHostError
from vldebias.hosts import Attachment, TextTable, first_step, resolve
from vldebias.hosts import diffusers as hosts_diffusers
from vldebias.hosts.first_step import NOISES, twin_of
from vldebias.methods import WeightedValues
from vldebias.miniature import load_pipeline

pytestmark = pytest.mark.usefixtures("two_noises")

MEN, WOMEN = "A photo of a male nurse.", "A photo of a female nurse."


@pytest.fixture(scope="module")
def pipe() -> Any:
    made = load_pipeline()
    made.set_progress_bar_config(disable=True)
    return made


def states(pipe: Any, prompt: str) -> Tensor:
    return pipe.encode_prompt([prompt], "cpu", 1, False)[0]


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_of_an_ideal_denoiser_it_is_the_share_that_is_drawn(monkeypatch: Any, share: float) -> None:
    """Two pictures and nothing else are drawn; the first in a share of the images, at the mean of both prompts."""
    pipe = load_pipeline()
    first, second = states(pipe, MEN), states(pipe, WOMEN)
    made = torch.Generator().manual_seed(0)
    pictures = torch.randn(2, pipe.unet.config.in_channels, 8, 8, generator=made)

    def ideal(sample: Tensor, time: Any, encoder_hidden_states: Tensor, return_dict: bool = True, **_: Any) -> Any:
        place = ((encoder_hidden_states - second) * (first - second)).sum((1, 2)) / (first - second).square().sum()
        chance = place.clamp(0, 1) ** (torch.tensor(share).log() / torch.tensor(0.5).log())  # 0, share and 1
        chance = chance.view(-1, 1, 1, 1)
        mean = chance * pictures[0] + (1 - chance) * pictures[1]
        alpha = pipe.scheduler.alphas_cumprod[int(time)]
        noise = (sample - alpha.sqrt() * mean) / (1 - alpha).sqrt()
        return (noise,)

    monkeypatch.setattr(pipe.unet, "forward", ideal)
    assert float(resolve(pipe).first_step_similarity([(MEN, WOMEN)])) == pytest.approx(share, abs=1e-3)


def test_every_noise_counts_as_a_share_of_its_own() -> None:
    """A noise that goes beyond one of the prompts is no more than wholly theirs, and makes up for no other."""
    first, second = torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0], [0.0]])
    between = torch.tensor([[3.0], [0.0]])
    states = {("a", "a"): first, ("b", "b"): second, ("a", "b"): between}
    assert first_step.first_step_similarity([("a", "b")], lambda one, other: states[one, other]).tolist() == [0.5]


def test_the_order_of_a_pair_turns_it_round(pipe: Any) -> None:
    others = ("A photo of a male judge.", "A photo of a female judge.")
    found = resolve(pipe).first_step_similarity([(MEN, WOMEN), (WOMEN, MEN), others, (MEN, WOMEN)])
    assert 0 < float(found[0]) < 1
    torch.testing.assert_close(found[0], 1 - found[1])
    assert found[3] == found[0] != found[2]


@pytest.mark.slow
@pytest.mark.parametrize("make", [sd, sdxl, sd3, flux])
def test_of_every_kind_of_pipeline_that_draws_from_prompts(make: Any) -> None:
    host = resolve(make())
    found = host.first_step_similarity([(MEN, WOMEN), (WOMEN, MEN)])
    assert bool(((found >= 0) & (found <= 1)).all())
    torch.testing.assert_close(found[0], 1 - found[1], rtol=0, atol=1e-4)


def test_all_text_states_of_a_call_share_what_is_begun(monkeypatch: Any) -> None:
    """Two roles, three beginnings; and three more in the next call, since weights may have changed."""
    pipe, count = sdxl(), []
    began = first_step.begin
    monkeypatch.setattr(hosts_diffusers, "begin", lambda *given: count.append(given) or began(*given))
    readings = {f"A photo of a {name}.": {0.4: 0.2 + 0.1 * i, 0.6: 0.4 + 0.1 * i} for i, name in enumerate("abc")}
    with debias(pipe, "professions-gender", method=WeightedValues(readings)):
        assert len(count) == 3 * len(readings)
        for call in (1, 2):
            pipe("A photo of a nurse.", num_inference_steps=1, output_type="latent", height=16, width=16)
            assert len(count) == 3 * len(readings) + 3 * call


def test_a_call_in_another_thread_has_beginnings_of_its_own(monkeypatch: Any) -> None:
    """It comes between the two text states of a call, and leaves what that has begun alone."""
    pipe, count = sdxl(), []
    began, took = first_step.begin, Attachment.apply
    monkeypatch.setattr(hosts_diffusers, "begin", lambda *given: count.append(given) or began(*given))
    readings = {f"A photo of a {name}.": {0.4: 0.2 + 0.1 * i, 0.6: 0.4 + 0.1 * i} for i, name in enumerate("abc")}
    how: dict[str, Any] = {"num_inference_steps": 1, "output_type": "latent", "height": 16, "width": 16}
    main = threading.get_ident()

    def interrupted(self: Attachment, role: str, *given: Any) -> Tensor:
        if role == "pooled" and threading.get_ident() == main:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(pipe, "A photo of a chef.", **how).result()
        return took(self, role, *given)

    monkeypatch.setattr(Attachment, "apply", interrupted)
    with debias(pipe, "professions-gender", method=WeightedValues(readings)):
        count.clear()
        pipe("A photo of a nurse.", **how)
    assert len(count) == 3 + 3


def test_guidance_and_what_is_attached_have_no_part_in_it(pipe: Any, monkeypatch: Any) -> None:
    expected = resolve(pipe).first_step_similarity([(MEN, WOMEN)])
    attachment = debias(pipe, "professions-gender", method=WeightedValues(weight=0.9), keep_stated=False)
    torch.testing.assert_close(attachment._host.first_step_similarity([(MEN, WOMEN)]), expected)
    attachment.remove()
    call = type(pipe).__call__.__wrapped__
    assert 7.5 in call.__defaults__  # the guidance that it has unless told otherwise
    monkeypatch.setattr(call, "__defaults__", tuple(1.5 if d == 7.5 else d for d in call.__defaults__))
    torch.testing.assert_close(resolve(pipe).first_step_similarity([(MEN, WOMEN)]), expected, rtol=0, atol=1e-3)


def test_the_pipeline_does_not_notice(pipe: Any) -> None:
    """Not even in the middle of a call: its images are those of the states that were put in by hand."""
    how: dict[str, Any] = {"num_inference_steps": 3, "output_type": "pt"}
    kept, schedule = dict(vars(pipe)), pipe.scheduler
    pipe.scheduler.set_timesteps(7)
    times = pipe.scheduler.timesteps.clone()
    resolve(pipe).first_step_similarity([(MEN, WOMEN)])
    assert {k: v for k, v in vars(pipe).items() if k != "_internal_dict"} == {
        k: v for k, v in kept.items() if k != "_internal_dict"
    }
    assert pipe.scheduler is schedule
    assert torch.equal(pipe.scheduler.timesteps, times)
    readings = {
        f"A photo of a {name}.": {0.4: 0.2 + i, 0.6: 0.4 + i} for name, i in zip("abc", (0, 0.1, 0.2), strict=True)
    }
    with debias(pipe, "professions-gender", method=WeightedValues(readings)) as attachment:
        edit = attachment.projections["sequence"]
        assert edit.line[1] != 0  # type: ignore[attr-defined]
        drawn = pipe("A photo of a nurse.", generator=torch.Generator().manual_seed(3), **how).images
    weight = float(edit.line[0] + edit.line[1] * resolve(pipe).first_step_similarity([(MEN, WOMEN)]))  # type: ignore[attr-defined]
    weight = min(max(weight, 0.0), 1.0)
    mean = weight * states(pipe, MEN) + (1 - weight) * states(pipe, WOMEN)
    plain = pipe(prompt_embeds=mean, generator=torch.Generator().manual_seed(3), **how).images
    torch.testing.assert_close(drawn, plain, rtol=0, atol=1e-3)


def test_a_twin_has_what_somebody_else_put_on(pipe: Any) -> None:
    before = type(pipe).encode_prompt.__get__(pipe)
    pipe.encode_prompt = before
    try:
        with debias(pipe, "professions-gender", method="difference"):
            assert twin_of(pipe).encode_prompt is before
    finally:
        del pipe.encode_prompt
    assert NOISES > 1


def test_what_it_refuses(pipe: Any) -> None:
    with pytest.raises(UnsupportedHostError, match=r"expected a text-to-image pipeline .* but its call takes image"):
        resolve(sd(StableDiffusionImg2ImgPipeline)).first_step_similarity([(MEN, WOMEN)])
    with pytest.raises(UnsupportedHostError, match="draws no images, so there is no first step"):
        TextTable({"nothing": [1.0]}).first_step_similarity([(MEN, WOMEN)])

    class Old(type(pipe)):  # type: ignore[misc]
        def __call__(self, prompt: Any, generator: Any, num_inference_steps: int, output_type: str) -> None: ...

    old = Old(**pipe.components, requires_safety_checker=False)
    with pytest.raises(UnsupportedHostError, match="but its call lacks callback_on_step_end"):
        resolve(old).first_step_similarity([(MEN, WOMEN)])
