"""A pipeline that shares the text encoders of an attached one draws without its edit, and says so once."""

import copy
import gc
import pickle
import threading
import warnings

import diffusers_tiny as tiny
import pytest
import torch

import vldebias
from vldebias.api import debias
from vldebias.errors import VldebiasWarning
from vldebias.hosts import resolve

PLAIN = "a photo of a doctor"


def _from_pipe(pipe):
    return type(pipe).from_pipe(pipe)


def _image_to_image(pipe):
    from diffusers import StableDiffusionImg2ImgPipeline

    return StableDiffusionImg2ImgPipeline.from_pipe(pipe)


def _components(pipe):
    return type(pipe)(**pipe.components, requires_safety_checker=False)


def _auto(pipe):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # diffusers warns of its own imports
        from diffusers import AutoPipelineForImage2Image
    return AutoPipelineForImage2Image.from_pipe(pipe)


def _hooks(pipe):
    encoders = [getattr(pipe, name) for name in ("text_encoder", "text_encoder_2") if hasattr(pipe, name)]
    return [hook for encoder in encoders for hook in encoder._forward_pre_hooks.values()]


@pytest.mark.filterwarnings("ignore:.*safety checker:UserWarning")
@pytest.mark.parametrize("make", [_from_pipe, _image_to_image, _components, _auto])
def test_the_line_that_it_names_carries_the_edit_over(make):
    pipe = tiny.sd()
    bare = tiny.encode(pipe)[0]
    attachment = debias(pipe, tiny.gender(), strength=0.5, keep_stated=False)
    attached = tiny.encode(pipe)[0]
    other = make(pipe)
    with pytest.warns(VldebiasWarning, match=r"shares its text encoders with a StableDiffusionPipeline") as said:
        assert torch.equal(tiny.encode(other)[0], bare)
    assert len(said) == 1
    assert torch.equal(tiny.encode(other)[0], bare)
    line = str(said[0].message).split("have it here too: ")[1].split("; to draw")[0]
    assert line == "vldebias.debias(other, attachment.projections, keep_stated=False, strength=0.5)"
    second = eval(line, {"vldebias": vldebias, "other": other, "attachment": attachment})
    assert torch.equal(tiny.encode(other)[0], attached)
    assert torch.equal(tiny.encode(pipe)[0], attached)
    attachment.remove()
    assert torch.equal(tiny.encode(other)[0], attached)
    assert torch.equal(tiny.encode(pipe)[0], bare)  # as asked for
    second.remove()
    assert not _hooks(pipe)


def test_a_call_of_the_other_pipeline_warns_as_well():
    pipe = tiny.sdxl()
    debias(pipe, tiny.gender(), negative=True)
    other = _from_pipe(pipe)
    other.set_progress_bar_config(disable=True)
    with pytest.warns(VldebiasWarning, match=r"debias\(other, attachment\.projections, negative=True\)") as said:
        tiny.draw(other)
    assert len(said) == 1, "of two encoders, two branches and two steps"


def test_what_is_meant_says_nothing():
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender())
    other = _from_pipe(pipe)
    ids = pipe.tokenizer([PLAIN], return_tensors="pt").input_ids
    pipe.text_encoder(ids)  # whoever calls the encoder by hand asked for what it gives
    tiny.encode(pipe)
    resolve(other).embed([PLAIN], "sequence")
    with attachment.disabled():
        tiny.encode(other)
    with attachment.using(method="none"):
        tiny.encode(other)
    with attachment.using(strength=0.0):
        tiny.encode(other)
    attachment.strength = 0.0
    tiny.encode(other)
    attachment.strength = 1.0
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        thread = threading.Thread(target=tiny.encode, args=(other,))
        with attachment.disabled():  # in this thread alone
            thread.start()
            thread.join()
    assert len(said) == 1
    attachment.remove()
    tiny.encode(_from_pipe(pipe))


def test_an_attachment_that_is_gone_leaves_no_hook():
    pipe = tiny.sd()
    encoder = pipe.text_encoder
    before = dict(encoder._forward_pre_hooks)
    debias(pipe, tiny.gender())
    assert len(encoder._forward_pre_hooks) == len(before) + 1
    del pipe
    gc.collect()
    assert dict(encoder._forward_pre_hooks) == before


def test_copies_and_pickles_of_the_encoder_alone_are_silent():
    pipe = tiny.sd()
    debias(pipe, tiny.gender())
    ids = pipe.tokenizer([PLAIN], return_tensors="pt").input_ids
    expected = pipe.text_encoder(ids)[0]
    for encoder in (copy.deepcopy(pipe.text_encoder), pickle.loads(pickle.dumps(pipe.text_encoder))):
        assert torch.equal(encoder(ids)[0], expected)
        tiny.encode(tiny.sd(text_encoder=encoder))


def test_a_copy_of_the_pipeline_warns_of_its_own_neighbours():
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender())
    twin = copy.deepcopy(pipe)
    attachment.remove()
    assert not _hooks(pipe)
    tiny.encode(_from_pipe(pipe))
    tiny.encode(twin)
    with pytest.warns(VldebiasWarning, match="shares its text encoders"):
        tiny.encode(_from_pipe(twin))
    vldebias.attachment_of(twin).remove()
    assert not _hooks(twin)
    twin_of_removed = copy.deepcopy(twin)
    assert vldebias.attachment_of(twin_of_removed) is None


@pytest.mark.slow
def test_a_compiled_encoder_is_not_broken_by_it():
    pipe = tiny.sd()
    debias(pipe, tiny.gender())
    expected = tiny.encode(pipe)[0]
    pipe.text_encoder = torch.compile(pipe.text_encoder, backend="eager", fullgraph=True)
    torch.testing.assert_close(tiny.encode(pipe)[0], expected)
