"""The seam on `encode_prompt`: what is projected, what is left alone, and that nothing else notices."""

import functools
import inspect

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import AlreadyAttachedError, VldebiasError
from vldebias.hosts.diffusers import diffusers_host

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
    for part in diffusers_host(pipe)._parts:
        assert not torch.equal(plain[part.index], bare[part.index])
        assert torch.equal(plain[part.negative], bare[part.negative])
        assert torch.equal(asked[part.index], plain[part.index])
        assert not torch.equal(asked[part.negative], bare[part.negative])


def test_negative_projects_the_empty_prompt_and_keeps_a_stated_one():
    pipe = tiny.sd()
    empty, stated = both(pipe)[1], both(pipe, negative_prompt="a man")[1]
    attachment = debias(pipe, tiny.gender(), negative=True)
    assert torch.equal(both(pipe)[1], attachment.projections["sequence"](empty))
    assert torch.equal(both(pipe, negative_prompt="a man")[1], stated)


def test_without_guidance_there_is_no_negative_branch():
    pipe = tiny.sd()
    debias(pipe, tiny.gender(), negative=True)
    assert tiny.encode(pipe)[1] is None
    bare = tiny.draw(tiny.sd(), guidance_scale=1.0)
    assert not torch.equal(tiny.draw(pipe, guidance_scale=1.0), bare)


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
    positive, negative = _flux_reads(pipe, **call, negative_prompt="a blurry photo")
    assert tiny.same(positive, (sequence, pooled))
    with debias(tiny.flux(), tiny.gender()).disabled():
        assert tiny.same(negative, tiny.encode(tiny.flux(), "a blurry photo", **tiny.T5_LENGTH)[:2])


def test_encoding_inside_a_callback_is_not_taken_for_the_negative_prompt():
    pipe = tiny.flux()
    bare = tiny.encode(pipe, **tiny.T5_LENGTH)[0]
    attachment = debias(pipe, tiny.gender())
    found = []

    def callback(pipe, step, timestep, tensors):
        found.append(tiny.encode(pipe, **tiny.T5_LENGTH)[0])
        return tensors

    call = {"callback_on_step_end": callback, "negative_prompt": "blurry", "true_cfg_scale": 2.0}
    tiny.draw(pipe, **tiny.T5_LENGTH, **call)
    expected = attachment.projections["sequence"](bare)
    assert all(torch.equal(x, expected) for x in found)
    assert torch.equal(tiny.encode(pipe, **tiny.T5_LENGTH)[0], expected)


def test_callers_of_ones_own_are_not_taken_for_the_pipeline():
    pipe = tiny.flux()
    sequence, _, _ = tiny.encode(pipe, **tiny.T5_LENGTH)
    attachment = debias(pipe, tiny.gender())

    class Studio:
        def __call__(self):
            prompt_embeds = sequence
            with torch.no_grad():
                return prompt_embeds, pipe.encode_prompt(PLAIN, **tiny.T5_LENGTH)[0]

    assert torch.equal(Studio()()[1], attachment.projections["sequence"](sequence))


# ---- batches, several prompts, stated prompts ------------------------------------------------------------------


def test_a_stated_prompt_is_unchanged_beside_a_neighbour_that_is_not():
    pipe = tiny.sd()
    bare = tiny.encode(pipe, [STATED, PLAIN], num_images_per_prompt=2)[0]
    attachment = debias(pipe, tiny.gender())
    attached = tiny.encode(pipe, [STATED, PLAIN], num_images_per_prompt=2)[0]
    assert torch.equal(attached[:2], bare[:2])
    assert torch.equal(attached[2:], attachment.projections["sequence"](bare)[2:])


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
    assert torch.equal(tiny.draw(pipe, None, prompt_embeds=given), bare)
    by_hand = attachment.apply("sequence", given)
    assert torch.equal(tiny.draw(pipe, None, prompt_embeds=by_hand), tiny.draw(pipe))


def test_given_negative_and_pooled_embeddings_are_left_alone():
    pipe = tiny.sdxl()
    names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
    given = dict(zip(names, both(pipe, negative_prompt="a blurry photo"), strict=True))
    debias(pipe, tiny.gender(), negative=True)
    assert tiny.same(both(pipe, None, **given), tuple(given.values()))
    negative_only = {k: v for k, v in given.items() if k.startswith("negative")}
    mixed = both(pipe, PLAIN, **negative_only)
    assert torch.equal(mixed[1], given["negative_prompt_embeds"])
    assert not torch.equal(mixed[0], given["prompt_embeds"])


# ---- the seam itself -------------------------------------------------------------------------------------------


def test_signature_and_name_survive_and_positions_work():
    pipe = tiny.sd()
    signature = inspect.signature(pipe.encode_prompt)
    debias(pipe, tiny.gender())
    assert inspect.signature(pipe.encode_prompt) == signature
    assert pipe.encode_prompt.__name__ == "encode_prompt"
    with torch.no_grad():
        by_position = pipe.encode_prompt(PLAIN, "cpu", 1, True, "a blurry photo")
    assert tiny.same(by_position, both(pipe, negative_prompt="a blurry photo"))


@pytest.mark.filterwarnings("ignore:.*_encode_prompt.*is deprecated:FutureWarning")
def test_the_deprecated_method_goes_through_the_same_seam():
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender())
    with torch.no_grad():
        negative, positive = pipe._encode_prompt(PLAIN, "cpu", 1, True)
    assert torch.equal(positive, tiny.encode(pipe)[0][0])
    attachment.remove()
    assert torch.equal(negative, both(pipe)[1][0])


def test_a_pipeline_and_its_text_encoder_exclude_each_other():
    pipe = tiny.own(tiny.sdxl())
    encoder = {"tokenizer": pipe.tokenizer_2, "keep_stated": False}
    with (
        debias(pipe.text_encoder_2, tiny.gender(), **encoder),
        pytest.raises(AlreadyAttachedError, match=r"Pipeline already carries Attachment\(CLIPTextModelWithProjection"),
    ):
        debias(pipe, tiny.gender())
    debias(pipe, tiny.gender())
    with pytest.raises(AlreadyAttachedError, match=r"WithProjection already carries Attachment\(Stable"):
        debias(pipe.text_encoder_2, tiny.gender(), **encoder)


def test_a_pipeline_that_gives_no_mask_is_read_at_the_end_token():
    """Where all prompts are as long, some give None in the place of a mask of ones."""
    pipe = tiny.pixart()
    expected = diffusers_host(pipe).embed([PLAIN], "sequence")
    encode = pipe.encode_prompt

    @functools.wraps(encode)
    def without_masks(*args, **kwargs):
        states, _, negative, _ = encode(*args, **kwargs)
        return states, None, negative, None

    pipe.encode_prompt = without_masks
    assert torch.equal(diffusers_host(pipe).embed([PLAIN], "sequence"), expected)


def test_fitting_reads_encoders_in_eval_mode():
    pipe = tiny.own(tiny.sd())
    pipe.text_encoder.config.attention_dropout = 0.9
    expected = diffusers_host(pipe).embed([PLAIN], "sequence")
    pipe.text_encoder.train()
    assert torch.equal(diffusers_host(pipe).embed([PLAIN], "sequence"), expected)
    assert pipe.text_encoder.training


def test_taking_off_what_something_else_replaced_is_refused():
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender())
    ours, pipe.encode_prompt = pipe.encode_prompt, lambda *args: None
    with pytest.raises(VldebiasError, match="something else replaced encode_prompt"):
        attachment.remove()
    pipe.encode_prompt = ours
    attachment.remove()
    assert "encode_prompt" not in vars(pipe)


def test_a_compiled_encoder_has_the_fingerprint_of_the_plain_one():
    pipe = tiny.sd()
    pipe.text_encoder = torch.compile(pipe.text_encoder)
    assert diffusers_host(pipe).fingerprint() == diffusers_host(tiny.sd()).fingerprint()
