"""What projections of a pipeline are fitted on, and the layers that `clip_skip` reads."""

import inspect

import diffusers_parts as parts
import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias, fit_projection, fit_projections
from vldebias.errors import InvalidInputError
from vldebias.hosts.diffusers import diffusers_host

PLAIN = "a photo of a doctor"


# ---- what it is fitted on ------------------------------------------------------------------------------------


def test_embeddings_are_the_states_at_the_end_of_text():
    pipe = tiny.sd()
    ids = pipe.tokenizer([PLAIN], return_tensors="pt").input_ids
    assert ids[0, -1] == pipe.tokenizer.eos_token_id
    with torch.no_grad():
        state = pipe.text_encoder(ids).last_hidden_state[0, -1].double()
    found = diffusers_host(pipe).embed([PLAIN], "sequence")
    assert found.dtype == torch.float64
    assert torch.allclose(found[0], state / state.norm(), atol=1e-6)


def test_nothing_after_the_first_end_of_text_counts():
    """CLIP reads from left to right, and a text that holds an end of its own ends there, whatever follows it."""
    host = diffusers_host(tiny.sd())
    ended = host.embed([f"{PLAIN} {host._pipe.tokenizer.eos_token} in a park"], "sequence")
    assert torch.allclose(ended, host.embed([PLAIN], "sequence"), atol=1e-6)


def test_embeddings_of_masked_families_are_the_last_attended_token():
    """Gemma puts nothing at the end of a text; the instruction before the prompt is part of what it reads."""
    pipe = tiny.sana()
    text = "\n".join(inspect.signature(type(pipe).__call__).parameters["complex_human_instruction"].default) + PLAIN
    with torch.no_grad():
        state = pipe.text_encoder(**pipe.tokenizer([text], return_tensors="pt")).last_hidden_state[0, -1].double()
    assert torch.allclose(diffusers_host(pipe).embed([PLAIN], "sequence")[0], state / state.norm(), atol=1e-5)


def test_t5_embeddings_are_the_end_of_text_before_the_padding():
    pipe = tiny.flux()
    length = inspect.signature(type(pipe).__call__).parameters["max_sequence_length"].default
    tokens = pipe.tokenizer_2([PLAIN], padding="max_length", max_length=length, return_tensors="pt").input_ids
    with torch.no_grad():
        states = pipe.text_encoder_2(tokens).last_hidden_state[0].double()
    state = states[tokens[0].tolist().index(pipe.tokenizer_2.eos_token_id)]
    assert torch.allclose(diffusers_host(pipe).embed([PLAIN], "sequence")[0], state / state.norm(), atol=1e-6)


def test_padding_is_as_long_as_in_a_call():
    from diffusers import FluxPipeline

    class Short(FluxPipeline):
        def __call__(self, prompt, max_sequence_length=24):
            return self.encode_prompt(prompt, max_sequence_length=max_sequence_length)

    pipe = tiny.flux(Short)
    with torch.no_grad():
        states = pipe([PLAIN])[0][0].double()
    tokens = pipe.tokenizer_2([PLAIN]).input_ids[0]
    state = states[tokens.index(pipe.tokenizer_2.eos_token_id)]
    found = diffusers_host(pipe).embed([PLAIN], "sequence")[0]
    assert torch.allclose(found, state / state.norm(), atol=1e-6)
    assert not torch.allclose(found, diffusers_host(tiny.flux()).embed([PLAIN], "sequence")[0], atol=1e-5)


def test_batches_and_repeats_do_not_matter():
    host = diffusers_host(tiny.sd())
    prompts = [f"photo {i}" for i in range(33)] + ["photo 3"]
    together = host.embed(prompts, "sequence")
    assert torch.equal(together[33], together[3])
    for place in (0, 3, 31, 32):
        alone = diffusers_host(tiny.sd()).embed([prompts[place]], "sequence")
        assert torch.allclose(together[place], alone[0], atol=1e-6)


def test_unknown_roles_are_refused():
    with pytest.raises(InvalidInputError, match=r"expected a role of \['sequence', 'pooled'\], got 'joint'"):
        diffusers_host(tiny.sdxl()).embed([PLAIN], "joint")
    with pytest.raises(InvalidInputError, match="got 'pooled@clip_skip=2'"):
        diffusers_host(tiny.sdxl()).embed([PLAIN], "pooled@clip_skip=2")
    with pytest.raises(InvalidInputError, match="got 'sequence@clip_skip=0'"):
        diffusers_host(tiny.sdxl()).embed([PLAIN], "sequence@clip_skip=0")


# ---- clip_skip and lengths ---------------------------------------------------------------------------------------


def test_clip_skip_is_a_space_of_its_own():
    pipe = tiny.sdxl()
    bare, at_two = tiny.encode(pipe, clip_skip=1), diffusers_host(pipe).embed([PLAIN], "sequence@clip_skip=1")
    attachment = debias(pipe, tiny.gender())
    assert set(attachment.projections) == {"sequence", "pooled"}
    attached = tiny.encode(pipe, clip_skip=1)
    projection = attachment.projections["sequence@clip_skip=1"]
    assert projection.space == "StableDiffusionXL.sequence@clip_skip=1"
    assert torch.equal(attached[0], projection(bare[0]))
    assert torch.equal(attached[2], attachment.projections["pooled"](bare[2]))
    assert not torch.equal(at_two, diffusers_host(pipe).embed([PLAIN], "sequence"))
    assert not torch.equal(projection.matrix(), attachment.projections["sequence"].matrix())


def test_clip_skip_zero_is_the_usual_layer():
    pipe = tiny.sdxl()
    attachment = debias(pipe, tiny.gender())
    assert tiny.same(tiny.encode(pipe, clip_skip=0), tiny.encode(pipe))
    assert set(attachment.projections) == {"sequence", "pooled"}


def test_the_negative_prompt_takes_no_part_in_clip_skip():
    pipe = tiny.sdxl()
    bare = tiny.encode(pipe, PLAIN, do_classifier_free_guidance=True, negative_prompt="a blurry photo", clip_skip=1)
    attachment = debias(pipe, tiny.gender(), negative=True)
    attached = tiny.encode(pipe, PLAIN, do_classifier_free_guidance=True, negative_prompt="a blurry photo", clip_skip=1)
    assert torch.equal(attached[0], attachment.projections["sequence@clip_skip=1"](bare[0]))
    assert torch.equal(attached[1], attachment.projections["sequence"](bare[1]))


def _with_inner_model(encoder):
    """The layout that clip_skip of Stable Diffusion expects; recent transformers have no text_model inside."""
    if hasattr(encoder, "text_model"):
        return encoder
    return tiny.twin(encoder, type("CLIPTextModel", (type(encoder),), {"text_model": property(lambda self: self)}))


def test_clip_skip_of_stable_diffusion():
    pipe = tiny.sd(text_encoder=_with_inner_model(parts.clip()))
    bare, image = tiny.encode(pipe, clip_skip=1), tiny.draw(pipe, clip_skip=1)
    attachment = debias(pipe, tiny.gender())
    assert not torch.equal(tiny.draw(pipe, clip_skip=1), image)
    assert torch.equal(tiny.encode(pipe, clip_skip=1)[0], attachment.projections["sequence@clip_skip=1"](bare[0]))
    attachment.remove()
    assert torch.equal(tiny.draw(pipe, clip_skip=1), image)


def test_fitted_projections_have_to_bring_the_layer_that_is_called():
    pipe = tiny.sdxl()
    projections = fit_projections(pipe, tiny.gender())
    with debias(pipe, projections), pytest.raises(InvalidInputError, match=r"no projection for 'sequence@clip_skip=1'"):
        tiny.encode(pipe, clip_skip=1)
    skipped = fit_projection(pipe, tiny.gender(), role="sequence@clip_skip=1")
    bare = tiny.encode(pipe, clip_skip=1)[0]
    debias(pipe, projections | {"sequence@clip_skip=1": skipped})
    assert torch.equal(tiny.encode(pipe, clip_skip=1)[0], skipped(bare))


def test_other_sequence_lengths_share_the_projection():
    pipe = tiny.flux()
    bare = [tiny.encode(pipe, max_sequence_length=n)[0] for n in (16, 48)]
    projection = debias(pipe, tiny.gender()).projections["sequence"]
    for n, states in zip((16, 48), bare, strict=True):
        assert torch.equal(tiny.encode(pipe, max_sequence_length=n)[0], projection(states))
