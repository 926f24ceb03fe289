"""Test values in cross-attention together with ControlNet, input pictures, IP-Adapter, LoRA,
slicing, other processors and perturbed attention. Only the rows of the prompt change, and removal
is bit-identical."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import diffusers
import diffusers_tiny as tiny
import pytest
import torch
from diffusers.models.attention_processor import AttnProcessor
from peft import LoraConfig
from torch import Tensor

from vldebias.api import debias, fit_projections
from vldebias.errors import UnsupportedHostError, VldebiasWarning
from vldebias.methods import CrossAttention
from vldebias.prompts import make_prompt_set

SET = make_prompt_set(
    "gender", {"male": ["male"], "female": ["female"]}, ["doctor", "nurse", "judge"]
)
METHOD = CrossAttention(concepts=2, steps=3, seed=0, options={"height": 16, "width": 16})
PROMPTS = ["A photo of a doctor.", "A photo of a nurse."]
GIVEN = ["female", "male", None, "female"]  # two images per prompt
PICTURE = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(3))
GUIDED = 7.5

pytestmark = pytest.mark.filterwarnings("ignore:.*should be kept in float32.*")


@pytest.fixture(scope="module")
def edit() -> Any:
    return fit_projections(tiny.sd(), SET, method=METHOD).only


class Foreign(AttnProcessor):
    """A custom attention processor."""


def controlled(kind: Any) -> Any:
    return tiny.sd(kind, controlnet=tiny.MODELS["controlnet"]())


def with_lora() -> Any:
    pipe = tiny.with_own_components(tiny.sd())
    config = LoraConfig(r=2, target_modules=["to_k", "to_q"], init_lora_weights=False)
    pipe.unet.add_adapter(config, adapter_name="style")
    return pipe


def sliced() -> Any:
    pipe = tiny.with_own_components(tiny.sd())
    pipe.enable_attention_slicing(1)
    return pipe


def foreign() -> Any:
    pipe = tiny.with_own_components(tiny.sd())
    pipe.unet.set_attn_processor(Foreign())
    return pipe


def perturbed() -> Any:
    kind = diffusers.StableDiffusionPAGPipeline
    return tiny.with_own_components(tiny.sd(kind, pag_applied_layers=["down_blocks.1"]))


def with_ip_adapter() -> Any:
    """Load an IP-Adapter with random weights for picture embeddings, (1, 8)."""
    pipe = tiny.with_own_components(tiny.sd())
    generator = torch.Generator().manual_seed(1)
    width = pipe.unet.config.cross_attention_dim
    weights = {}
    number = 1
    for name in pipe.unet.attn_processors:
        if "attn2" in name:
            queries = pipe.unet.get_submodule(name.removesuffix(".processor")).to_q.in_features
            for part in ("to_k_ip", "to_v_ip"):
                rows = torch.randn(queries, width, generator=generator)
                weights[f"{number}.{part}.weight"] = 0.3 * rows
            number += 2
    projection = {
        "proj.weight": torch.randn(4 * width, 8, generator=generator),
        "proj.bias": torch.zeros(4 * width),
        "norm.weight": torch.ones(width),
        "norm.bias": torch.zeros(width),
    }
    pipe.unet._load_ip_adapter_weights([{"image_proj": projection, "ip_adapter": weights}])
    pipe.set_ip_adapter_scale(0.7)
    return pipe


@dataclass
class Case:
    """Describe how a pipeline is built and called.

    Attributes:
        conditional: The number of branches with the prompt in a guided pass. They follow the branch
            without it.
    """

    make: Callable[[], Any]
    call: dict[str, Any] = field(default_factory=dict)
    conditional: int = 1


CASES = {
    "ControlNet": Case(
        lambda: controlled(diffusers.StableDiffusionControlNetPipeline), {"image": PICTURE}
    ),
    "img2img": Case(
        lambda: tiny.sd(diffusers.StableDiffusionImg2ImgPipeline),
        {"image": PICTURE, "strength": 0.7, "num_inference_steps": 4},
    ),
    "inpaint": Case(
        lambda: tiny.sd(diffusers.StableDiffusionInpaintPipeline),
        {"image": PICTURE, "mask_image": torch.ones(1, 1, 16, 16), "strength": 1.0},
    ),
    "IP-Adapter": Case(with_ip_adapter),
    "LoRA": Case(with_lora),
    "sliced": Case(sliced),
    "another processor": Case(foreign),
    "perturbed attention": Case(perturbed, {"pag_scale": 3.0}, conditional=2),
}
SETTINGS = [(name, GUIDED) for name in CASES]
SETTINGS += [("ControlNet", 0.0), ("ControlNet", 1.0), ("IP-Adapter", 1.0)]


def draw(pipe: Any, case: Case, guidance: float) -> Tensor:
    """Return latents of two images per prompt."""
    noise = [torch.Generator().manual_seed(number) for number in range(4)]
    call = {"num_images_per_prompt": 2, "guidance_scale": guidance, "generator": noise}
    if "IP" in str(pipe.unet.attn_processors):
        embedding = torch.ones(1, 1, 8)
        is_guided = guidance > 1
        call["ip_adapter_image_embeds"] = [embedding.repeat(1 + is_guided, 1, 1)]
    size = {"num_inference_steps": 2, "output_type": "latent"}
    if "strength" not in case.call:
        size |= {"height": 16, "width": 16}
    return pipe(PROMPTS, **size | call | case.call).images


def first_output(pipe: Any, edit: Any, run: Callable[[], Tensor]) -> Tensor:
    """Return the output of the first cross-attention in the first pass, after all other hooks."""
    outputs: list[Tensor] = []
    layer = pipe.unet.get_submodule(edit.layers[0][0].removeprefix("unet."))
    handle = layer.register_forward_hook(lambda *call: outputs.append(call[2].clone()))
    run()
    handle.remove()
    return outputs[0]


@pytest.mark.parametrize(("name", "guidance"), SETTINGS)
def test_the_rows_of_the_prompt_change_until_removal(edit: Any, name: str, guidance: float) -> None:
    case = CASES[name]
    pipe = case.make()
    processors = dict(pipe.unet.attn_processors)

    def drawn() -> Tensor:
        return draw(pipe, case, guidance)

    bare = drawn()
    untouched = first_output(pipe, edit, drawn)
    attachment = debias(pipe, edit)
    with attachment.giving(GIVEN):
        assert tiny.changed(drawn(), bare) == [True, True, False, True]
        seen = first_output(pipe, edit, drawn)
    rows = [value is not None for value in GIVEN]
    expected = rows if guidance <= 1 else [False] * 4 + rows * case.conditional
    assert tiny.changed(seen, untouched) == expected
    drawn()
    assert [attachment.sampled[:2].count(value) for value in ("male", "female")] == [1, 1]
    with attachment.disabled():
        assert torch.equal(drawn(), bare)
    attachment.strength = 0
    assert torch.equal(drawn(), bare)
    attachment.remove()
    assert torch.equal(drawn(), bare)
    assert pipe.unet.attn_processors == processors


def test_the_output_of_an_ip_adapter_is_not_edited() -> None:
    """An output changes by the same amount with and without the adapter, so the adapter's part is
    not edited, even if the edit was fitted with the adapter."""
    plain = tiny.with_own_components(tiny.sd())
    adapted = with_ip_adapter()
    embeds = {"ip_adapter_image_embeds": [torch.ones(2, 1, 8)]}
    edits = []
    for pipe, more in ((plain, {}), (adapted, embeds)):
        options = {"height": 16, "width": 16} | more
        method = CrossAttention(concepts=2, steps=1, options=options)
        edits.append(fit_projections(pipe, SET, method=method).only)
    _, width = edits[0].layers[0]
    fitted = [edit.effects[-1, :, :width] for edit in edits]
    torch.testing.assert_close(fitted[1], fitted[0], atol=1e-5, rtol=1e-4)
    outputs = []
    changes = []
    for pipe in (plain, adapted):
        drawn = partial(draw, pipe, Case(tiny.sd), GUIDED)
        bare = first_output(pipe, edits[0], drawn)
        with debias(pipe, edits[0]) as attachment, attachment.giving(GIVEN):
            attached = first_output(pipe, edits[0], drawn)
        outputs.append(bare)
        changes.append(attached - bare)
    assert not torch.allclose(outputs[1], outputs[0], atol=1e-3)
    assert float(changes[0].abs().max()) > 1e-3
    torch.testing.assert_close(changes[1], changes[0], atol=1e-5, rtol=1e-3)


def test_modular_pipelines_are_rejected_with_a_message() -> None:
    with pytest.raises(UnsupportedHostError, match="a modular pipeline has no encode_prompt"):
        fit_projections(tiny.modular("StableDiffusionXL"), SET, method=METHOD)


def test_a_replaced_denoiser_is_noticed(edit: Any) -> None:
    pipe = tiny.with_own_components(tiny.sd())
    bare = draw(pipe, Case(tiny.sd), GUIDED)
    other = copy.deepcopy(pipe.unet)
    attachment = debias(pipe, edit)
    pipe.unet = other
    with pytest.warns(VldebiasWarning, match=r"pipe\.unet was replaced .*; call attachment\.rem"):
        torch.testing.assert_close(draw(pipe, Case(tiny.sd), GUIDED), bare)
    assert attachment.sampled == []
    draw(pipe, Case(tiny.sd), GUIDED)  # a second warning would be an error
    pipe.unet = copy.deepcopy(other)
    with pytest.warns(VldebiasWarning, match=r"pipe\.unet was replaced 2 times .*; call attach"):
        draw(pipe, Case(tiny.sd), GUIDED)


@pytest.mark.slow
def test_compiling_after_attaching_gives_the_same_output(edit: Any) -> None:
    """A pipeline that was compiled before attaching is rejected."""
    pipe = tiny.with_own_components(tiny.sd())
    case = Case(tiny.sd)
    attachment = debias(pipe, edit)
    with attachment.giving(GIVEN):
        expected = draw(pipe, case, GUIDED)
    plain = pipe.unet
    pipe.unet = torch.compile(plain, backend="eager")
    with attachment.giving(GIVEN):
        torch.testing.assert_close(draw(pipe, case, GUIDED), expected)
    with attachment.disabled():
        bare = draw(pipe, case, GUIDED)
    pipe.unet = plain
    attachment.remove()
    torch.testing.assert_close(bare, draw(pipe, case, GUIDED))
    pipe.unet = torch.compile(plain, backend="eager")
    with pytest.raises(UnsupportedHostError, match="attach first, then compile"):
        debias(pipe, edit)
