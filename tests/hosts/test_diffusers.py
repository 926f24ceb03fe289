"""The hook on `encode_prompt`: what is projected, what is left alone, and that nothing else notices."""

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import VldebiasWarning
from vldebias.hosts.diffusers import DiffusersHost

STATED, PLAIN = "a photo of a female doctor", "a photo of a doctor"


def both(pipe, prompt=PLAIN, **call):
    """Conditional and negative embeddings under guidance."""
    return tiny.encode(pipe, prompt, do_classifier_free_guidance=True, **call)


# ---- negative prompt and guidance ----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [tiny.sd, tiny.sdxl, tiny.sd3, tiny.chroma, tiny.pixart, tiny.sana, tiny.aura])
def test_the_negative_prompt_is_untouched_unless_asked_for(make):
    pipe = make()
    bare = both(pipe, negative_prompt="a blurry photo")
    with debias(pipe, tiny.gender()):
        plain = both(pipe, negative_prompt="a blurry photo")
    with debias(pipe, tiny.gender(), negative=True):
        asked = both(pipe, negative_prompt="a blurry photo")
    for part in DiffusersHost(pipe).parts:
        assert not torch.equal(plain[part.place], bare[part.place])
        assert torch.equal(plain[part.twin], bare[part.twin])
        assert torch.equal(asked[part.place], plain[part.place])
        assert not torch.equal(asked[part.twin], bare[part.twin])


def _flux_reads(pipe, **call):
    """(sequence, pooled) that the transformer reads, by call: conditional and negative in turn."""
    seen = []
    hook = pipe.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((kwargs["encoder_hidden_states"], kwargs["pooled_projections"])),
        with_kwargs=True,
    )
    try:
        tiny.draw(pipe, **tiny.T5_LENGTH | {"num_inference_steps": 1} | call)
    finally:
        hook.remove()
    return seen


@pytest.mark.parametrize("negative_prompt", ["a blurry photo", PLAIN], ids=["other", "equal"])
@pytest.mark.parametrize("batch", [False, True], ids=["text", "list"])
def test_true_guidance_encodes_its_negative_prompt_in_a_call_of_its_own(negative_prompt, batch):
    pipe = tiny.flux()
    prompt, negative_prompt = ([PLAIN], [negative_prompt]) if batch else (PLAIN, negative_prompt)
    call = {"prompt": prompt, "negative_prompt": negative_prompt, "true_cfg_scale": 2.0}
    bare = _flux_reads(pipe, **call)
    with debias(pipe, tiny.gender()) as attachment:
        plain = _flux_reads(pipe, **call)
        projected = [attachment.projections[role] for role in ("sequence", "pooled")]
    with debias(pipe, tiny.gender(), negative=True):
        asked = _flux_reads(pipe, **call)
    assert tiny.same(plain[0], [p(x) for p, x in zip(projected, bare[0], strict=True)])
    assert tiny.same(plain[1], bare[1])
    assert tiny.same(asked[0], plain[0])
    assert tiny.same(asked[1], [p(x) for p, x in zip(projected, bare[1], strict=True)])


def test_true_guidance_with_embeddings_of_ones_own():
    pipe = tiny.flux()
    sequence, pooled, _ = tiny.encode(pipe, "a nurse", **tiny.T5_LENGTH)
    call = {"prompt": None, "prompt_embeds": sequence, "pooled_prompt_embeds": pooled, "true_cfg_scale": 2.0}
    debias(pipe, tiny.gender())
    with pytest.warns(VldebiasWarning, match="apply"):
        positive, negative = _flux_reads(pipe, **call, negative_prompt="a blurry photo")
    assert tiny.same(positive, (sequence, pooled))
    with debias(tiny.flux(), tiny.gender()).disabled():
        assert tiny.same(negative, tiny.encode(tiny.flux(), "a blurry photo", **tiny.T5_LENGTH)[:2])


# ---- batches, several prompts, stated prompts ------------------------------------------------------------------


@pytest.mark.parametrize("make", [tiny.sdxl, tiny.sd3, tiny.flux])
def test_any_of_several_prompts_may_state_the_attribute(make):
    pipe = make()
    plain, stated = tiny.encode(pipe, PLAIN), tiny.encode(pipe, PLAIN, prompt_2=STATED)
    debias(pipe, tiny.gender())
    assert tiny.same(tiny.encode(pipe, PLAIN, prompt_2=STATED), stated)
    assert not torch.equal(tiny.encode(pipe, PLAIN, prompt_2=PLAIN)[0], plain[0])


# ---- embeddings of ones own ------------------------------------------------------------------------------------


def test_given_embeddings_are_left_alone_and_can_be_projected_by_hand():
    pipe = tiny.sd()
    given = tiny.encode(pipe)[0]
    bare = tiny.draw(pipe, None, prompt_embeds=given)
    attachment = debias(pipe, tiny.gender())
    with pytest.warns(VldebiasWarning, match="apply"):
        assert torch.equal(tiny.draw(pipe, None, prompt_embeds=given), bare)
    by_hand = attachment.apply("sequence", given)
    assert torch.equal(tiny.draw(pipe, None, prompt_embeds=by_hand), tiny.draw(pipe))
