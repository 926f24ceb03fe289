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
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    ProjectionMismatchError,
    VldebiasError,
    VldebiasWarning,
)
from vldebias.hosts import resolve
from vldebias.hosts.following import check_followed

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


SHARING = pytest.mark.parametrize("make", [_from_pipe, _image_to_image, _components, _auto])
UNSAFE = pytest.mark.filterwarnings("ignore:.*safety checker:UserWarning")


@UNSAFE
@SHARING
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


@UNSAFE
@SHARING
def test_an_edit_that_follows_is_carried_over_when_the_other_is_made(make):
    from diffusers import DiffusionPipeline

    before = DiffusionPipeline.register_modules
    pipe = tiny.sd()
    bare = tiny.encode(pipe)[0]
    attachment = debias(pipe, tiny.gender(), strength=0.5, keep_stated=False, follow=True)
    attached = tiny.encode(pipe)[0]
    other = make(pipe)
    assert torch.equal(tiny.encode(other)[0], attached), "already the first call"
    carried = vldebias.attachment_of(other)
    assert carried is not attachment
    assert carried.settings == attachment.settings
    tiny.encode(tiny.sd())
    assert vldebias.attachment_of(tiny.sd()) is None, "it has encoders of its own"
    attachment.remove()
    assert DiffusionPipeline.register_modules is before
    assert torch.equal(tiny.encode(other)[0], attached)
    carried.remove()
    assert torch.equal(tiny.encode(other)[0], bare)
    assert not _hooks(pipe)


def test_an_edit_that_follows_says_where_it_cannot():
    from diffusers import StableDiffusionLatentUpscalePipeline

    pipe = tiny.sd()
    parts = pipe.components | {"requires_safety_checker": False}
    with debias(pipe, tiny.gender(), follow=True):
        takes = ("vae", "text_encoder", "tokenizer", "unet", "scheduler")
        with pytest.warns(VldebiasWarning, match=r"follow=True: the edit cannot be carried over .*LatentUpscale"):
            StableDiffusionLatentUpscalePipeline(**{name: parts[name] for name in takes})
    with pytest.raises(InvalidInputError, match="follow=True: got a Linear; expected a diffusers pipeline"):
        check_followed(torch.nn.Linear(1, 1))


def test_what_is_carried_over_has_all_methods_and_a_life_of_its_own():
    pipe = tiny.sdxl()
    bare = tiny.encode(pipe)[0]
    attachment = debias(pipe, tiny.gender(), strength=0.5)
    attachment.add("strong", vldebias.fit_projections(pipe, tiny.gender(), lam=1e6))
    other = _from_pipe(pipe)
    carried = attachment.carry_to(other)
    assert {attachment, carried} <= set(vldebias.attachments())
    for method in ("default", "strong"):
        with attachment.using(method=method), carried.using(method=method):
            expected = tiny.encode(pipe)[0]
            assert not torch.equal(expected, bare)
            assert torch.equal(tiny.encode(other)[0], expected)
    with pytest.raises(AlreadyAttachedError):
        attachment.carry_to(other)
    attachment.remove()
    assert attachment not in vldebias.attachments()
    assert carried in vldebias.attachments()
    with pytest.raises(VldebiasError, match="cannot carry over an attachment that is removed"):
        attachment.carry_to(pipe)
    carried.remove()
    assert torch.equal(tiny.encode(other)[0], bare)


def test_other_weights_are_refused_and_copies_are_listed():
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender())
    other = tiny.own(tiny.sd())
    with torch.no_grad():
        next(other.text_encoder.parameters()).mul_(2)
    with pytest.raises(ProjectionMismatchError, match="other weights"):
        attachment.carry_to(other)
    twin = copy.deepcopy(pipe)
    attachment.remove()
    assert vldebias.attachment_of(twin) in vldebias.attachments()


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
