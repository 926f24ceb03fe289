"""Merging into plain weights: equal to the attachment with negative=True, and refused where weights cannot hold it."""

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import AlreadyAttachedError, UnsupportedHostError, VldebiasError, VldebiasWarning

MERGEABLE = {
    name: case for name, case in tiny.FAMILIES.items() if name != "StableDiffusion3"
}  # one layer of SD3 reads two of its roles
GUIDED = {"StableDiffusion", "StableDiffusionXL", "Chroma", "PixArt", "Sana", "AuraFlow"}


def everything(pipe, **call):
    """An attachment that does what weights do: both branches of guidance, stated prompts too.

    With a P that is not symmetric, so that W P differs from W P^T.
    """
    return debias(pipe, tiny.gender(), method="orth-cali", lam=1e6, negative=True, keep_stated=False, **call)


def alike(one, other, bare):
    """Equal up to rounding, measured by what the projection changes."""
    return (one - other).norm() < 1e-2 * (other - bare).norm()


def weights(pipe):
    models = (m for m in pipe.components.values() if isinstance(m, torch.nn.Module))
    return [p.detach().clone() for model in models for p in model.parameters()]


@pytest.mark.parametrize("name", MERGEABLE)
def test_merged_draws_what_the_attachment_draws(name):
    make, call = MERGEABLE[name]
    call = call | ({"guidance_scale": 3.0, "negative_prompt": "a woman"} if name in GUIDED else {})
    pipe, reference = tiny.own(make()), make()
    bare = tiny.draw(pipe, "a photo of a man", **call)
    everything(reference)
    expected = tiny.draw(reference, "a photo of a man", **call)
    attachment = everything(pipe)
    attachment.merge()
    merged = tiny.draw(pipe, "a photo of a man", **call)
    assert not torch.equal(expected, bare)
    assert alike(merged, expected, bare)
    assert "encode_prompt" not in vars(pipe)
    assert attachment.state == "merged"
    with pytest.raises(VldebiasError, match=r"part of the weights since merge\(\)"):
        attachment.remove()


def test_a_saved_checkpoint_needs_nothing_else_and_is_not_merged_again(tmp_path):
    make, call = MERGEABLE["StableDiffusionXL"]
    pipe = tiny.own(make())
    everything(pipe).merge()
    expected = tiny.draw(pipe, **call)
    pipe.save_pretrained(tmp_path)
    loaded = type(pipe).from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert tiny.same(weights(loaded), weights(pipe))
    assert alike(tiny.draw(loaded, **call), expected, tiny.draw(make(), **call))
    with pytest.raises(AlreadyAttachedError, match=r"since merge\(\): tiny-gender \(orth-cali\) at strength 1\. Load"):
        debias(loaded, tiny.gender())
    loaded.unet = make().unet
    debias(loaded, tiny.gender()).remove()


def test_half_precision_weights_are_rounded_once():
    pipe = tiny.own(tiny.sd()).to(torch.bfloat16)
    attention = next(m for m in pipe.unet.modules() if getattr(m, "is_cross_attention", False))
    wide = attention.to_v.weight.detach().double()
    attachment = everything(pipe)
    attachment.merge()
    expected = wide @ attachment.projections["sequence"].matrix()
    assert torch.equal(attention.to_v.weight, expected.to(torch.bfloat16))
    assert not torch.equal(attention.to_v.weight, wide.to(torch.bfloat16))


@pytest.mark.parametrize("name", ["StableDiffusionXL", "Flux"])
def test_what_guidance_loses_is_said(name):
    """The unconditional branch is edited too; not where the attachment edits it as well, or nothing."""
    make, _ = MERGEABLE[name]
    attachment = debias(tiny.own(make()), tiny.gender(), keep_stated=False)
    with pytest.warns(VldebiasWarning, match="cannot tell the two branches of guidance apart"):
        attachment.merge()
    everything(tiny.own(make())).merge()
    debias(tiny.own(make()), tiny.gender(), strength=0).merge()


def test_only_the_layers_that_read_the_prompt_change():
    pipe = tiny.own(tiny.sdxl())
    before = {name: p.detach().clone() for name, p in pipe.unet.named_parameters()}
    everything(pipe).merge()
    changed = {name for name, p in pipe.unet.named_parameters() if not torch.equal(p, before[name])}
    expected = {name for name in before if name.endswith(("attn2.to_k.weight", "attn2.to_v.weight"))}
    assert changed == expected | {"add_embedding.linear_1.weight"}
    old, new = (x["add_embedding.linear_1.weight"] for x in (before, dict(pipe.unet.named_parameters())))
    assert torch.equal(new[:, 32:], old[:, 32:])  # the columns of the sizes and crops


def test_controlnets_are_merged_too():
    from diffusers import StableDiffusionControlNetPipeline

    def draw(pipe):
        return tiny.draw(pipe, image=torch.ones(1, 3, 16, 16))

    make = lambda: tiny.own(tiny.sd(StableDiffusionControlNetPipeline, controlnet=tiny.MODELS["controlnet"]()))  # noqa: E731
    pipe, reference, unet_alone = make(), make(), make()
    bare = draw(reference)
    everything(reference)
    everything(pipe).merge()
    assert alike(draw(pipe), draw(reference), bare)
    unet_alone.unet = pipe.unet
    assert not alike(draw(unet_alone), draw(reference), bare)


# ---- refusals ------------------------------------------------------------------------------------------------------


def refuses(pipe, attachment, match, same=True):
    before = weights(pipe) if same else []
    with pytest.raises(UnsupportedHostError, match=match):
        attachment.merge()
    assert not same or tiny.same(weights(pipe), before)
    assert attachment.state == "attached"


def test_adapters_are_refused_until_they_are_fused():
    from peft import LoraConfig

    pipe = tiny.own(tiny.sd())
    pipe.unet.add_adapter(LoraConfig(r=2, target_modules=["to_k"], init_lora_weights=False), adapter_name="style")
    bare = tiny.draw(pipe)
    attachment = everything(pipe)
    expected = tiny.draw(pipe)
    refuses(pipe, attachment, r"attn2.to_k is a peft.*pipe.fuse_lora\(\)")
    pipe.fuse_lora(components=["unet"])
    pipe.unload_lora_weights()
    attachment.merge()
    assert alike(tiny.draw(pipe), expected, bare)


def test_weights_that_are_not_there_or_of_another_kind_are_refused():
    pipe = tiny.own(tiny.pixart())
    attachment = everything(pipe)
    layer = pipe.transformer.caption_projection
    layer.linear_1 = layer.linear_1.to("meta")
    refuses(pipe, attachment, "caption_projection.linear_1", same=False)
    layer.linear_1 = torch.nn.Linear(96, 32)
    refuses(pipe, attachment, "96 values")
    layer.linear_1.weight = torch.nn.Parameter(torch.zeros(32, 80, dtype=torch.int8), False)
    refuses(pipe, attachment, "float weights")
    pipe.transformer.caption_projection = None
    refuses(pipe, attachment, "found none")
