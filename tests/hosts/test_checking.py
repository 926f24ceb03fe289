"""`vldebias debias --check`: right of a sound host, wrong of one that leaves a trace, told where it cannot be tried."""

import warnings

import diffusers_tiny as tiny
import pytest

from tests.fewer import few
from vldebias.evaluation.variants import check
from vldebias.hosts import Attachment
from vldebias.hosts.loading import Loaded, load_host
from vldebias.prompts import load_prompts

PROMPTS = few(load_prompts("professions-gender"), 10)
CALL = {"num_inference_steps": 2, "height": 16, "width": 16}
RIGHT = [
    "the same twice", "attached: changed", "strength 0: as without", "disabled: as without", "attached again: the same",
    "removed: as without", "saved and loaded: the same", "merged: as attached",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _narrow():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tiny models are narrow, and merging moves the empty prompt
        yield


def found(pipe):
    return {one.name: one for one in check(Loaded(pipe, "tiny"), PROMPTS, **CALL)}


def test_a_sound_pipeline():
    told = found(tiny.own(tiny.sd()))
    assert all(told[name].right for name in RIGHT)


def test_weights_that_cannot_hold_it_and_a_call_that_needs_more():
    told = found(tiny.sd3())
    assert told["merged: as attached"].right is None
    assert "cannot merge" in told["merged: as attached"].note
    from diffusers import StableDiffusionImg2ImgPipeline

    told = found(tiny.own(tiny.sd(StableDiffusionImg2ImgPipeline)))
    assert told["drawn"].right is None
    assert told["removed: as without"].right
    assert told["merged: as attached"].right is None


def test_a_trace_that_is_left_is_found(monkeypatch):
    monkeypatch.setattr(Attachment, "remove", lambda self: None)
    told = {}
    for one in check(Loaded(tiny.sd(), "tiny"), PROMPTS, **CALL):
        told[one.name] = one
        if one.name == "removed: as without":
            break
    assert [name for name, one in told.items() if one.right is False] == ["removed: as without"]


def test_a_sound_model():
    told = check(load_host("miniature"), few(load_prompts("fairface-gender"), 10))
    assert [one.name for one in told if one.right] == RIGHT
