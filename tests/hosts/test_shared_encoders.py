"""A text encoder that is called outside of the pipeline that carries the attachment, and copies of what is attached."""

import copy
import gc
import pickle
import warnings
import weakref

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import VldebiasError, VldebiasWarning


def _from_pipe(pipe):
    return type(pipe).from_pipe(pipe)


def _components(pipe):
    return type(pipe)(**pipe.components, requires_safety_checker=False)


def _image_to_image(pipe):
    from diffusers import StableDiffusionImg2ImgPipeline

    return StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)


@pytest.mark.parametrize("make", [_from_pipe, _components, _image_to_image])
def test_it_is_said_once_with_the_line_to_write(make):
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender(), method="cali")
    other = make(pipe)
    bare = tiny.encode(tiny.sd())
    with pytest.warns(VldebiasWarning, match=r"debias\(other, attachment\.projections\)"):
        assert tiny.same(tiny.encode(other), bare)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiny.encode(other)
        tiny.encode(pipe)
        with debias(other, attachment.projections):
            assert tiny.same(tiny.encode(other), tiny.encode(pipe))


def test_what_is_meant_and_what_reads_for_a_fit_say_nothing():
    pipe = tiny.sd()
    other = _components(pipe)
    attachment = debias(pipe, tiny.gender(), method="cali")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        debias(other, tiny.gender(), method="cali").remove()
        with attachment.disabled():
            tiny.encode(other)
        attachment.strength = 0
        tiny.encode(other)
        attachment.remove()
        tiny.encode(other)


def test_an_attachment_that_is_gone_leaves_no_hook_and_keeps_nothing_alive():
    pipe = tiny.sd()
    encoder, kept = pipe.text_encoder, weakref.ref(pipe)
    debias(pipe, tiny.gender(), method="cali")
    assert encoder._forward_pre_hooks
    del pipe
    gc.collect()
    assert kept() is None
    assert not encoder._forward_pre_hooks


@pytest.mark.parametrize("method", ["cali", "balanced-prompts"])
def test_an_attached_pipeline_that_is_copied_or_pickled_refuses_in_words(method):
    pipe = tiny.sd()
    attachment = debias(pipe, tiny.gender() if method == "cali" else "gender", method=method)
    for way in (copy.deepcopy, pickle.dumps):
        with pytest.raises(VldebiasError, match="remove"):
            way(pipe)
    with pytest.raises(VldebiasError, match="copied or pickled"):
        copy.deepcopy(attachment)
    attachment.remove()
    twin = copy.deepcopy(pipe)
    assert torch.equal(tiny.encode(twin)[0], tiny.encode(pipe)[0])


def test_an_encoder_that_is_compiled_is_not_broken_by_it():
    pipe = tiny.sd()
    debias(pipe, tiny.gender(), method="cali")
    expected = tiny.encode(pipe)
    pipe.text_encoder = torch.compile(pipe.text_encoder, backend="eager")
    assert tiny.same(tiny.encode(pipe), expected)
