"""Test the hook on `encode_prompt`: edited and unchanged outputs, and merging into weights."""

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import (
    AlreadyAttachedError,
    UnsupportedHostError,
    VldebiasWarning,
)

STATED = "a photo of a female doctor"
PLAIN = "a photo of a doctor"


def _flux_reads(pipe, **call):
    """Return (sequence, pooled) as read by the transformer in each call, alternating between
    conditional and negative."""
    seen = []
    hook = pipe.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(
            (kwargs["encoder_hidden_states"], kwargs["pooled_projections"])
        ),
        with_kwargs=True,
    )
    try:
        tiny.draw(pipe, **tiny.T5_LENGTH | {"num_inference_steps": 1} | call)
    finally:
        hook.remove()
    return seen


@pytest.mark.parametrize("negative_prompt", ["a blurry photo", PLAIN], ids=["other", "equal"])
@pytest.mark.parametrize("batch", [False, True], ids=["text", "list"])
def test_true_guidance_encodes_its_negative_prompt_separately(negative_prompt, batch):
    pipe = tiny.flux()
    prompt, negative_prompt = ([PLAIN], [negative_prompt]) if batch else (PLAIN, negative_prompt)
    call = {"prompt": prompt, "negative_prompt": negative_prompt, "true_cfg_scale": 2.0}
    bare = _flux_reads(pipe, **call)
    with debias(pipe, tiny.gender()) as attachment:
        plain = _flux_reads(pipe, **call)
        projected = [attachment.projections[role] for role in ("sequence", "pooled")]
    with debias(pipe, tiny.gender(), negative=True):
        with_negative = _flux_reads(pipe, **call)
    assert tiny.equal_tensors(plain[0], [p(x) for p, x in zip(projected, bare[0], strict=True)])
    assert tiny.equal_tensors(plain[1], bare[1])
    assert tiny.equal_tensors(with_negative[0], plain[0])
    assert tiny.equal_tensors(
        with_negative[1], [p(x) for p, x in zip(projected, bare[1], strict=True)]
    )


def test_true_guidance_accepts_passed_embeddings():
    pipe = tiny.flux()
    sequence, pooled, _ = tiny.encode(pipe, "a nurse", **tiny.T5_LENGTH)
    call = {
        "prompt": None,
        "prompt_embeds": sequence,
        "pooled_prompt_embeds": pooled,
        "true_cfg_scale": 2.0,
    }
    debias(pipe, tiny.gender())
    with pytest.warns(VldebiasWarning, match="apply"):
        positive, negative = _flux_reads(pipe, **call, negative_prompt="a blurry photo")
    assert tiny.equal_tensors(positive, (sequence, pooled))
    with debias(tiny.flux(), tiny.gender()).disabled():
        assert tiny.equal_tensors(
            negative, tiny.encode(tiny.flux(), "a blurry photo", **tiny.T5_LENGTH)[:2]
        )


@pytest.mark.parametrize("make", [tiny.sdxl, tiny.sd3, tiny.flux])
def test_any_of_several_prompts_may_state_the_attribute(make):
    pipe = make()
    plain = tiny.encode(pipe, PLAIN)
    stated = tiny.encode(pipe, PLAIN, prompt_2=STATED)
    debias(pipe, tiny.gender())
    assert tiny.equal_tensors(tiny.encode(pipe, PLAIN, prompt_2=STATED), stated)
    assert not torch.equal(tiny.encode(pipe, PLAIN, prompt_2=PLAIN)[0], plain[0])


def test_passed_embeddings_stay_unchanged_and_can_be_projected_manually():
    pipe = tiny.sd()
    embeddings = tiny.encode(pipe)[0]
    bare = tiny.draw(pipe, None, prompt_embeds=embeddings)
    attachment = debias(pipe, tiny.gender())
    with pytest.warns(VldebiasWarning, match=r"attachment\.apply\('sequence', prompt_embeds\)"):
        assert torch.equal(tiny.draw(pipe, None, prompt_embeds=embeddings), bare)
    by_hand = attachment.apply("sequence", embeddings)
    assert torch.equal(tiny.draw(pipe, None, prompt_embeds=by_hand), tiny.draw(pipe))


def everything(pipe, **call):
    """Attach in the way that merged weights act: on both guidance branches and on stated prompts.

    P is not symmetric, so that W P differs from W P^T.
    """
    return debias(
        pipe, tiny.gender(), method="orth-cali", lam=1e6, negative=True, keep_stated=False, **call
    )


def is_close_to(edited, expected, bare):
    """Compare up to rounding, relative to the change made by the projection."""
    return (edited - expected).norm() < 1e-2 * (expected - bare).norm()


def weights(pipe):
    copies = []
    for component in pipe.components.values():
        if isinstance(component, torch.nn.Module):
            copies += [parameter.detach().clone() for parameter in component.parameters()]
    return copies


def test_a_merged_checkpoint_is_self_contained_and_not_merged_again(tmp_path):
    make, call = tiny.FAMILIES["StableDiffusionXL"]
    pipe = tiny.with_own_components(make())
    everything(pipe).merge()
    expected = tiny.draw(pipe, **call)
    pipe.save_pretrained(tmp_path)
    loaded = type(pipe).from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    assert tiny.equal_tensors(weights(loaded), weights(pipe))
    assert is_close_to(tiny.draw(loaded, **call), expected, tiny.draw(make(), **call))
    with pytest.raises(
        AlreadyAttachedError,
        match=r"a merged projection: tiny-gender \(orth-cali\) at strength 1\. Load",
    ):
        debias(loaded, tiny.gender())
    loaded.unet = make().unet
    debias(loaded, tiny.gender()).remove()


def test_half_precision_weights_are_rounded_once():
    pipe = tiny.with_own_components(tiny.sd()).to(torch.bfloat16)
    attention = next(m for m in pipe.unet.modules() if getattr(m, "is_cross_attention", False))
    wide = attention.to_v.weight.detach().double()
    attachment = everything(pipe)
    attachment.merge()
    expected = wide @ attachment.projections["sequence"].matrix()
    assert torch.equal(attention.to_v.weight, expected.to(torch.bfloat16))
    assert not torch.equal(attention.to_v.weight, wide.to(torch.bfloat16))


@pytest.mark.parametrize("name", ["StableDiffusionXL", "Flux"])
def test_merging_with_guidance_warns(name):
    """The unconditional branch is edited too. There is no warning if the attachment also edits it
    or edits nothing."""
    make, _ = tiny.FAMILIES[name]
    attachment = debias(tiny.with_own_components(make()), tiny.gender(), keep_stated=False)
    with pytest.warns(VldebiasWarning, match="cannot distinguish the two branches of guidance"):
        attachment.merge()
    everything(tiny.with_own_components(make())).merge()
    debias(tiny.with_own_components(make()), tiny.gender(), strength=0).merge()


def test_only_the_layers_that_read_the_prompt_change():
    pipe = tiny.with_own_components(tiny.sdxl())
    before = {name: p.detach().clone() for name, p in pipe.unet.named_parameters()}
    everything(pipe).merge()
    changed = {name for name, p in pipe.unet.named_parameters() if not torch.equal(p, before[name])}
    expected = {
        name for name in before if name.endswith(("attn2.to_k.weight", "attn2.to_v.weight"))
    }
    assert changed == expected | {"add_embedding.linear_1.weight"}
    old, new = (
        x["add_embedding.linear_1.weight"] for x in (before, dict(pipe.unet.named_parameters()))
    )
    assert torch.equal(new[:, 32:], old[:, 32:])  # the columns for sizes and crops


def test_controlnets_are_merged_too():
    from diffusers import StableDiffusionControlNetPipeline

    def draw(pipe):
        return tiny.draw(pipe, image=torch.ones(1, 3, 16, 16))

    def make():
        return tiny.with_own_components(
            tiny.sd(StableDiffusionControlNetPipeline, controlnet=tiny.MODELS["controlnet"]())
        )

    pipe = make()
    reference = make()
    unet_alone = make()
    bare = draw(reference)
    everything(reference)
    everything(pipe).merge()
    assert is_close_to(draw(pipe), draw(reference), bare)
    unet_alone.unet = pipe.unet
    assert not is_close_to(draw(unet_alone), draw(reference), bare)


def refuses(pipe, attachment, match, is_unchanged=True):
    before = weights(pipe) if is_unchanged else []
    with pytest.raises(UnsupportedHostError, match=match):
        attachment.merge()
    assert not is_unchanged or tiny.equal_tensors(weights(pipe), before)
    assert attachment.state == "attached"


def test_adapters_are_rejected_until_they_are_fused():
    from peft import LoraConfig

    pipe = tiny.with_own_components(tiny.sd())
    pipe.unet.add_adapter(
        LoraConfig(r=2, target_modules=["to_k"], init_lora_weights=False), adapter_name="style"
    )
    bare = tiny.draw(pipe)
    attachment = everything(pipe)
    expected = tiny.draw(pipe)
    refuses(pipe, attachment, r"attn2.to_k is a peft.*pipe.fuse_lora\(\)")
    pipe.fuse_lora(components=["unet"])
    pipe.unload_lora_weights()
    attachment.merge()
    assert is_close_to(tiny.draw(pipe), expected, bare)


def test_missing_and_unsuitable_weights_are_rejected():
    pipe = tiny.with_own_components(tiny.pixart())
    attachment = everything(pipe)
    layer = pipe.transformer.caption_projection
    layer.linear_1 = layer.linear_1.to("meta")
    refuses(pipe, attachment, "caption_projection.linear_1", is_unchanged=False)
    layer.linear_1 = torch.nn.Linear(96, 32)
    refuses(pipe, attachment, "96 values")
    layer.linear_1.weight = torch.nn.Parameter(torch.zeros(32, 80, dtype=torch.int8), False)
    refuses(pipe, attachment, "float weights")
    pipe.transformer.caption_projection = None
    refuses(pipe, attachment, "not all were found")


def test_unets_with_an_extra_layer_before_the_prompt_or_fused_keys_are_rejected():
    pipe = tiny.with_own_components(tiny.sd())
    bare = tiny.draw(pipe)
    attachment = everything(pipe)
    expected = tiny.draw(pipe)
    # Unlike Kolors, this cannot be merged.
    pipe.unet.register_to_config(encoder_hid_dim_type="text_proj")
    refuses(pipe, attachment, "expected a layer that consumes only this tensor")
    pipe.unet.register_to_config(encoder_hid_dim_type=None)
    pipe.unet.fuse_qkv_projections()
    refuses(pipe, attachment, r"keys and values of unet\..*attn2 are fused")
    pipe.unet.unfuse_qkv_projections()
    attachment.merge()
    assert is_close_to(tiny.draw(pipe), expected, bare)
