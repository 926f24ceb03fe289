"""Whole pipelines of every family, from prompts to latents: attached, paused, removed, merged."""

import copy
from functools import partial

import diffusers_tiny as tiny
import pytest
from diffusers_tiny import CASES, PLAIN, STATED, VARIANTS
from test_pipelines import changed

from vldebias.api import debias
from vldebias.errors import UnsupportedHostError

SERVED = [name for name in CASES if name not in ("BriaFibo", "HiDream", "HunyuanDiT")]
EVERY = pytest.mark.parametrize("name", SERVED)
GUIDED = [name for name in SERVED if name not in ("Flux2", "SanaSprint", "LTX2DFR")]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore:.*LoraLoaderMixin.*:FutureWarning"
    ),  # diffusers, of its own mixin
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),  # Mochi
    # the texts of random towers are near each other
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
]


def comes_back(pipe, draw):
    """Two images of each of two prompts, guided by a negative prompt: the second prompt states its
    gender.

    So its images, and with them the negative prompt, the order of images and what else is read,
    stay byte by byte.
    """
    attach = partial(debias, pipe, tiny.gender(), method="cali", lam=1e6)
    bare, attached = tiny.three_states(pipe, partial(draw, pipe), attach)
    assert bare.isfinite().all()
    half = len(bare) // 2
    assert changed(attached, bare) == [True] * half + [False] * half


@EVERY
def test_the_images_of_a_prompt_change_and_come_back(name):
    comes_back(CASES[name].make(whole=True), CASES[name].draw)


@pytest.mark.parametrize("pipeline", VARIANTS)
def test_so_do_those_of_another_class_of_the_family(pipeline):
    name, call = VARIANTS[pipeline]
    comes_back(CASES[name].make(True, pipeline), partial(CASES[name].draw, **call))


@pytest.mark.parametrize("name", GUIDED)
def test_the_negative_prompt_changes_where_that_is_asked_for(name):
    """The control of the test above: images of the stated prompt would show a negative prompt that
    was projected."""
    drawing = CASES[name]
    pipe = drawing.make(whole=True)
    bare = drawing.draw(pipe, [STATED])
    debias(pipe, tiny.gender(), method="cali", lam=1e6, negative=True)
    assert all(changed(drawing.draw(pipe, [STATED]), bare))


MERGED = (
    "Bria",
    "Kolors",
    "Kandinsky5Image",
    "CogView4",
    "Flux2",
    "Wan",
    "CogVideoX",
    "Latte",
    "LTX",
    "Mochi",
    "Allegro",
    "HunyuanVideo",
    "HunyuanImage",
    "EasyAnimate",
    "Kandinsky3",
    "PRX",
    "MotifVideo",
)


@EVERY
def test_merged_draws_what_the_attachment_draws(name):
    """Into a copy of the denoiser; or a refusal that says what to do instead."""
    drawing = CASES[name]
    pipe = drawing.make(whole=True)
    attachment = debias(
        pipe, tiny.gender(), method="orth-cali", lam=1e6, negative=True, keep_stated=False
    )
    expected = drawing.draw(pipe, [PLAIN])
    with attachment.disabled():
        bare = drawing.draw(pipe, [PLAIN])
    for component in ("transformer", "unet"):
        if getattr(pipe, component, None) is not None:
            setattr(pipe, component, copy.deepcopy(getattr(pipe, component)))
    try:
        attachment.merge()
    except UnsupportedHostError as error:
        assert name not in MERGED, error  # noqa: PT017 - it is one of two ways to end
        return
    merged = drawing.draw(pipe, [PLAIN])
    assert (merged - expected).norm() < 1e-2 * (expected - bare).norm()
