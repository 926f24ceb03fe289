"""Edits for a part of the denoising steps, and a strength that is set between two of them."""

import copy
import inspect

import diffusers_tiny as tiny
import modular_tiny as modular
import pytest
import torch
from diffusers_drawing import DRAWINGS, PLAIN, STATED

import vldebias
from vldebias.api import debias
from vldebias.errors import InvalidInputError, UnsupportedHostError, VldebiasWarning
from vldebias.hosts import attachment_of

STEPS = 5
QUICK = ("StableDiffusion", "StableDiffusionXL", "Flux")


def seen(pipe, **call):
    """What the denoiser is given of the prompt at each pass: all its tensors but the first, which is the image."""
    denoiser = getattr(pipe, "unet", None) or pipe.transformer
    passes = []

    def tensors(value):
        if isinstance(value, torch.Tensor):
            return [value.clone()]
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return [one for part in inside for one in tensors(part)]

    def keep(module, args, kwargs):
        given = {name: one for name, one in kwargs.items() if name not in ("hidden_states", "sample", "timestep")}
        passes.append(tensors([*args[1:], given]))

    hook = denoiser.register_forward_pre_hook(keep, with_kwargs=True)  # after that of the attachment
    tiny.draw(pipe, num_inference_steps=STEPS, **call)
    hook.remove()
    return passes


def equal(one, other):
    return [all(torch.equal(a, b) for a, b in zip(x, y, strict=True)) for x, y in zip(one, other, strict=True)]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in tiny.FAMILIES])
def test_the_denoiser_reads_the_edit_in_its_steps_alone(name):
    """Bit by bit: inside the window what it reads with an attachment for all steps, outside what it reads without."""
    make, call = tiny.FAMILIES[name]
    pipe = make()
    bare = seen(pipe, **call)
    with debias(pipe, tiny.gender(), lam=1e6) as attachment:
        edits, whole = attachment.projections, seen(pipe, **call)
    edited = [not one for one in equal(whole, bare)]
    assert sum(edited) == STEPS  # a denoiser that is asked twice a step reads the negative prompt, too
    for window, inside in (((0, 0.4), [0, 1]), ((0.4, 1), [2, 3, 4]), ((0.1, 0.9), [1, 2, 3, 4])):
        expected = [index in inside for index in range(STEPS)]
        with debias(pipe, edits, steps=window) as attachment:
            assert f"steps={window}" in repr(attachment).replace(".0", "")
            found = seen(pipe, **call)
            of_prompt = [same for same, one in zip(equal(found, whole), edited, strict=True) if one]
            assert of_prompt == expected, window
            of_prompt = [same for same, one in zip(equal(found, bare), edited, strict=True) if one]
            assert of_prompt == [not one for one in expected], window
            with attachment.disabled():
                assert all(equal(seen(pipe, **call), bare))
        assert all(equal(seen(pipe, **call), bare)), "removed"
    with debias(pipe, edits, steps=(0, 1)):
        assert all(equal(seen(pipe, **call), whole))


def test_a_strength_that_is_set_in_a_callback_counts_from_the_next_step():
    pipe = tiny.sd()
    bare = seen(pipe)
    edits = vldebias.fit_projections(pipe, tiny.gender(), lam=1e6)
    strengths = [1.0, 0.5, 0.0, 0.25, 1.0]
    with debias(pipe, edits, steps=(0, 1)) as attachment:

        def callback(_, step, time, given):
            attachment.strength = (strengths * 2)[step + 1]
            return given

        found = seen(pipe, callback_on_step_end=callback)
        again = seen(pipe, callback_on_step_end=callback)  # begins with 1 again
    assert all(equal(found, again))
    for step, strength in enumerate(strengths):
        with debias(pipe, edits, strength=strength):
            torch.testing.assert_close(found[step], seen(pipe)[step])
    assert equal(found, bare) == [False, False, True, False, False]
    with debias(pipe, edits, strength=0.0, steps=(0, 1)) as attachment:

        def rise(_, step, time, given):
            attachment.strength = 0.5 if step >= 1 else 0.0
            return given

        assert equal(seen(pipe, callback_on_step_end=rise), bare) == [True, True, False, False, False]


def test_without_a_window_a_strength_that_is_set_while_it_draws_is_said_to_count_later():
    pipe = tiny.sd()
    bare = tiny.draw(pipe)
    attachment = debias(pipe, tiny.gender(), lam=1e6)
    edited = tiny.draw(pipe)

    def callback(_, step, time, given):
        attachment.strength = 0.0
        return given

    with pytest.warns(VldebiasWarning, match=r"counts from its next call; .* attach with steps=\(0, 1\)"):
        assert torch.equal(tiny.draw(pipe, callback_on_step_end=callback), edited)
    assert torch.equal(tiny.draw(pipe), bare)
    attachment.strength = 1.0  # says nothing between calls


def test_an_edit_that_leaves_these_prompts_as_they_are_is_no_reason_to_refuse(monkeypatch):
    pipe = tiny.sd()
    bare = tiny.draw(pipe)
    attachment = debias(pipe, tiny.gender(), lam=1e6, steps=(0, 0.4))
    monkeypatch.setattr(type(attachment.projections["sequence"]), "__call__", lambda _, states, *rest: states.clone())
    assert torch.equal(tiny.draw(pipe), bare)


def test_stated_prompts_batches_and_negative_prompts_keep_their_rows():
    pipe = tiny.sd()
    prompts = [PLAIN, STATED, "a photo of a pilot"]
    call = {"negative_prompt": [PLAIN, "", ""], "num_images_per_prompt": 2}

    def images(**more):
        return tiny.draw(pipe, prompts, num_inference_steps=STEPS, **call | more)

    bare = images()
    with debias(pipe, tiny.gender(), lam=1e6, steps=(0, 0.4)):
        early = images()
    with debias(pipe, tiny.gender(), lam=1e6):
        whole = images()
    rows = [not torch.equal(a, b) for a, b in zip(early, bare, strict=True)]
    assert rows == [True, True, False, False, True, True]
    assert [not torch.equal(a, b) for a, b in zip(early, whole, strict=True)] == rows


def test_a_callers_own_embeddings_and_the_edits_of_another_thread():
    pipe = tiny.sd()
    bare = seen(pipe)
    with debias(pipe, tiny.gender(), lam=1e6, steps=(0, 0.4)):
        expected = seen(pipe)
        with torch.no_grad():
            mine, negative = pipe.encode_prompt(PLAIN, "cpu", 1, True)
        noise = {"prompt_embeds": mine, "negative_prompt_embeds": negative, "prompt": None}
        found = seen(pipe, **noise)
        assert all(equal(found, expected)), "what the attachment has given before"
        other = tiny.encode(tiny.sd(), "an old man")[0]
        assert not any(equal(seen(pipe, **noise | {"prompt_embeds": other}), bare)), "drawn as they are"


@pytest.mark.slow
def test_a_modular_pipeline_too():
    from test_modular import draw

    pipe = modular.make("StableDiffusionXL")
    bare = draw(pipe, num_inference_steps=4)
    with debias(pipe, tiny.gender(), lam=1e6) as attachment:
        edits, whole = attachment.projections, draw(pipe, num_inference_steps=4)
    with debias(pipe, edits, steps=(0, 0.5)):
        half = draw(pipe, num_inference_steps=4)
    with debias(pipe, edits, steps=(0, 1)):
        assert torch.equal(draw(pipe, num_inference_steps=4), whole)
    assert not torch.equal(half[0], whole[0])
    assert not torch.equal(half[0], bare[0])
    assert torch.equal(draw(pipe, num_inference_steps=4), bare)


def test_copies_and_carried_ones_have_the_window_and_no_trace_is_left():
    pipe = tiny.own(tiny.sd())
    hooks = len(pipe.unet._forward_pre_hooks)
    bare = seen(pipe)
    attachment = debias(pipe, tiny.gender(), lam=1e6, steps=(0, 0.4))
    expected = seen(pipe)
    assert "steps=(0.0, 0.4)" in attachment.line
    twin = copy.deepcopy(pipe)
    other = tiny.sd()
    other.text_encoder, other.unet = pipe.text_encoder, tiny.twin(pipe.unet)
    carried = attachment.carry_to(other)
    attachment.remove()
    assert all(equal(seen(pipe), bare))
    assert len(pipe.unet._forward_pre_hooks) == hooks
    for one in (twin, other):
        assert all(equal(seen(one), expected))
        assert attachment_of(one).settings["steps"] == (0.0, 0.4)
        attachment_of(one).remove()
        assert all(equal(seen(one), bare))
    assert carried.state == "removed"


@pytest.mark.parametrize("steps", [0.4, (0.4,), (0.5, 0.5), (0.5, 0.1), (-0.1, 1), (0, 2), "ab", (0, float("nan"))])
def test_a_window_that_is_none(steps):
    with pytest.raises(InvalidInputError, match="expected two shares of the denoising steps"):
        debias(tiny.sd(), tiny.gender(), steps=steps)


def test_what_has_no_steps_and_weights_that_are_the_same_at_each():
    from open_clip_tiny import MODELS, tokenizer_for

    model = next(iter(MODELS.values()))()
    with pytest.raises(UnsupportedHostError, match="steps= is for pipelines of diffusers"):
        debias(model, tiny.gender(), tokenizer=tokenizer_for(model), steps=(0, 0.4))
    pipe = tiny.sd()
    with debias(pipe, tiny.gender(), steps=(0, 0.4)) as attachment:
        with pytest.raises(UnsupportedHostError, match=r"weights are the same at every step"):
            attachment.merge()
        pipe.scheduler = None
    with pytest.raises(UnsupportedHostError, match="needs a scheduler and a denoiser"):
        debias(pipe, tiny.gender(), steps=(0, 0.4))


def test_a_denoiser_that_is_given_something_else_refuses_before_anything_is_drawn(monkeypatch):
    pipe = tiny.sd()
    debias(pipe, tiny.gender(), lam=1e6, steps=(0, 0.4))
    seam = pipe.encode_prompt
    with monkeypatch.context() as changed:
        changed.setattr(pipe, "encode_prompt", lambda *a, **k: tuple(x + 1 for x in seam(*a, **k)))
        with pytest.raises(UnsupportedHostError, match="is not given what encode_prompt returns but something made"):
            tiny.draw(pipe)
    attachment_of(pipe).remove()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")  # Mochi's
@pytest.mark.parametrize("name", DRAWINGS)
def test_every_family_draws_another_image_in_half_of_the_steps_or_refuses(name):
    """No silent no-op: what cannot be changed step by step says so; stated prompts stay byte by byte."""
    drawing = DRAWINGS[name]
    pipe = drawing.make(name)
    known = inspect.signature(type(pipe).__call__).parameters
    four = {"num_inference_steps": 4} if "num_inference_steps" in {*known} - {*drawing.call} else {}
    bare = drawing.draw(pipe, **four)
    edits = vldebias.fit_projections(pipe, tiny.gender(), lam=1e6)
    with debias(pipe, edits):
        whole = drawing.draw(pipe, **four)
    with debias(pipe, edits, steps=(0, 0.5)):
        half, why = None, ""
        try:
            half = drawing.draw(pipe, **four)
        except UnsupportedHostError as error:
            why = str(error)
    if half is None:
        assert "leave steps= away" in why
        return
    n = len(bare) // 2
    assert torch.equal(half[n:], bare[n:])
    for image in range(n):
        assert not torch.equal(half[image], bare[image])
        assert not torch.equal(half[image], whole[image])
