"""Test the properties that every pipeline must have, classic or modular.

They specify what an attachment edits and what it leaves unchanged, that removal restores
everything, and that merged weights generate the same pictures. To add a class, add an entry to
diffusers.yaml.
"""

import copy
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import diffusers_tiny as tiny
import pytest
import torch
from diffusers_tiny import CASES, FAMILIES, MODULAR, NEGATIVE, PLAIN, STATED, VARIANTS, changed

from vldebias.api import debias
from vldebias.errors import UnsupportedHostError, VldebiasError
from vldebias.hosts.pipelines.calls import same_values

pytestmark = [
    # diffusers issues this warning about its own mixin.
    pytest.mark.filterwarnings("ignore:.*LoraLoaderMixin.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*trust_remote_code.*"),
    pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning"),  # Mochi
    # The text embeddings of random towers are close to each other.
    pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning"),
]
# test_pipelines.py tests that exactly these are rejected because of their text sides.
SERVED = [name for name in CASES if name not in ("BriaFibo", "HiDream", "HunyuanDiT")]


# Text sides encode prompts. They have no denoiser unless it is needed.


class TextSide(NamedTuple):
    make: Callable[[], Any]
    states: Callable[..., Any]
    """(pipe, **call) -> its output for the prompts PLAIN and STATED, by position or by name."""
    is_modular: bool = False


def family_states(pipe: Any, **call: Any) -> Any:
    return tiny.encode(pipe, [PLAIN, STATED], images=2, **call)


def case_states(case: Any, pipe: Any, **call: Any) -> Any:
    return case.encode(pipe, [PLAIN, STATED], images=2, **call)


def text_sides() -> dict[str, TextSide]:
    sides = {}
    for name, (make, call) in FAMILIES.items():
        sides[name] = TextSide(make, partial(family_states, **call))
    for name in SERVED:
        case = CASES[name]
        sides[f"{name}, text side"] = TextSide(case.make, partial(case_states, case))
    for name in MODULAR:
        make = partial(tiny.modular, name)
        sides[f"{name}, modular"] = TextSide(make, tiny.modular_states, is_modular=True)
    return sides


TEXT_SIDES = text_sides()
QUICK_MODULAR = ("Flux", "ErnieImage", "LTX", "QwenImage", "StableDiffusion3")


def is_slow(name: str) -> bool:
    return TEXT_SIDES[name].is_modular and name.split(",")[0] not in QUICK_MODULAR


def marked(names: Any, is_slow: Callable[[str], bool]) -> list[Any]:
    """Return names as parameters; the slow ones run in CI and with `make test-slow`."""
    return [pytest.param(name, marks=pytest.mark.slow if is_slow(name) else ()) for name in names]


@pytest.mark.parametrize("name", marked(TEXT_SIDES, is_slow))
@torch.no_grad()
def test_the_states_of_a_prompt_are_edited_and_nothing_else_changes(name: str) -> None:
    """PLAIN is edited; STATED names its value and is not. Afterwards, the edit is disabled, at
    strength 0, and removed."""
    side = TEXT_SIDES[name]
    pipe = side.make()
    bare = side.states(pipe)
    before = dict(vars(pipe))
    attachment = debias(pipe, tiny.gender(), method="cali", lam=1e6)
    edited = side.states(pipe)
    with attachment.disabled():
        assert same_values(side.states(pipe), bare)
    assert type(edited) is type(bare)
    assert_edited(name, bare, edited, attachment)
    attachment.strength = 0.0
    assert same_values(side.states(pipe), bare)
    attachment.remove()
    assert same_values(side.states(pipe), bare)
    assert vars(pipe).keys() == before.keys()
    modules = [part for part in pipe.components.values() if isinstance(part, torch.nn.Module)]
    assert not any(module._forward_pre_hooks for module in modules)


def assert_edited(name: str, bare: Any, edited: Any, attachment: Any) -> None:
    """Check that each prompt state equals the output of the fitted edit, and that every other
    output is unchanged."""
    is_modular = TEXT_SIDES[name].is_modular
    edited_keys = set()
    for part in attachment.host.parts:
        key = part.name if is_modular else part.place
        edited_keys.add(key)
        edit = attachment.projections[part.role]
        olds = tiny.rows(bare[key])
        news = tiny.rows(edited[key])
        for i, (old, new) in enumerate(zip(olds, news, strict=True)):
            if i >= len(olds) // 2:
                assert torch.equal(new, old), "the second prompt states its value"
                continue
            assert not torch.equal(new, old)
            assert_row_is_edited(name, old, new, part, edit)
    for key in bare if is_modular else range(len(bare)):
        if key in edited_keys or (is_modular and key.startswith("negative")):
            continue
        if is_modular and key.startswith("connector"):
            # In a video with sound, the layers that connect the text to picture and sound follow
            # the edited states.
            assert changed(edited[key], bare[key]) == [True, False]
        else:
            assert same_values(edited[key], bare[key]), key


def assert_row_is_edited(name: str, old: Any, new: Any, part: Any, edit: Any) -> None:
    """Check rows of shape (tokens, d), (tokens, layers, d) or (d,).

    The edit treats a token's layers as one vector."""
    if old.ndim == 3:
        old = old.flatten(-2)
        new = new.flatten(-2)
    start = 0
    if name.startswith("QwenImageEdit"):  # its template has a placeholder for an image
        start = int((old != new).any(-1).int().argmax())
    if old.ndim == 2:
        old = old[part.tokens]
        new = new[part.tokens]
    torch.testing.assert_close(new[start:], edit(old)[start:], atol=1e-4, rtol=1e-4)


def negative_is_slow(name: str) -> bool:
    return name not in FAMILIES


@pytest.mark.parametrize(
    "name",
    marked([name for name in TEXT_SIDES if not TEXT_SIDES[name].is_modular], negative_is_slow),
)
def test_the_states_of_a_negative_prompt_change_only_on_request(name: str) -> None:
    """Pictures are tested below. Modular pipelines encode the negative prompt in a separate
    block."""
    side = TEXT_SIDES[name]
    pipe = side.make()
    if "negative_prompt" not in inspect.signature(pipe.encode_prompt).parameters:
        # For the two calls of Flux see test_diffusers.py; for the pictures of all families see
        # below.
        pytest.skip(f"{type(pipe).__name__}.encode_prompt takes no negative prompt")

    def guided_states() -> Any:
        # A new list each time, because Z-Image modifies it.
        return side.states(pipe, do_classifier_free_guidance=True, negative_prompt=[NEGATIVE] * 2)

    bare = guided_states()
    attach = partial(debias, pipe, tiny.gender(), method="cali", lam=1e6)
    with attach():
        edited = guided_states()
    with attach(negative=True) as attachment:
        with_negative = guided_states()
    for part in attachment.host.parts:
        assert not same_values(edited[part.place], bare[part.place])
        assert same_values(edited[part.twin], bare[part.twin])
        assert same_values(with_negative[part.place], edited[part.place])
        assert not same_values(with_negative[part.twin], bare[part.twin])


# Whole pipelines, from prompts to latents.


class Whole(NamedTuple):
    make: Callable[[], Any]
    draw: Callable[..., torch.Tensor]
    """(pipe, prompts) -> latents grouped by prompt and guided by a negative prompt."""
    is_slow: bool = True
    is_guided: bool = True
    must_merge: bool = False


def draw_family(call: Any, pipe: Any, prompts: Any = (PLAIN, STATED)) -> torch.Tensor:
    guided = {"negative_prompt": [NEGATIVE] * len(prompts), "guidance_scale": 3.0}
    if type(pipe).__name__ == "FluxPipeline":
        guided["true_cfg_scale"] = 2.0
    return tiny.draw(pipe, list(prompts), **guided | call)


def draw_case(case: Any, pipe: Any, prompts: Any = (PLAIN, STATED), **call: Any) -> torch.Tensor:
    return case.draw(pipe, prompts, **call)


# The cases of `texts` that can be merged, and all families except SD3, where one layer reads two
# roles.
MERGED = [
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
]
UNGUIDED = ("Flux2", "SanaSprint", "LTX2DFR")


def whole_pipelines() -> dict[str, Whole]:
    pipelines = {}
    for name, (make, call) in FAMILIES.items():
        must_merge = name != "StableDiffusion3"
        draw = partial(draw_family, call)
        pipelines[name] = Whole(make, draw, is_slow=False, must_merge=must_merge)
    for name in SERVED:
        case = CASES[name]
        pipelines[f"{name}, whole"] = Whole(
            partial(case.make, is_complete=True),
            partial(draw_case, case),
            is_guided=name not in UNGUIDED,
            must_merge=name in MERGED,
        )
    return pipelines


def other_classes() -> dict[str, Whole]:
    """Return a modular pipeline and further classes of the families above."""
    make = partial(tiny.modular, "StableDiffusionXL")
    pipelines = {"StableDiffusionXL, modular": Whole(make, tiny.draw_modular, is_slow=False)}
    for name, (family, call) in VARIANTS.items():
        case = CASES[family]
        make = partial(case.make, is_complete=True, pipeline=name)
        pipelines[name] = Whole(make, partial(draw_case, case, **call))
    return pipelines


WHOLE = whole_pipelines()
WITH_OTHER_CLASSES = WHOLE | other_classes()
GUIDED = [name for name, case in WHOLE.items() if case.is_guided]


def over_pipelines(names: Any) -> Any:
    parameters = marked(names, lambda name: WITH_OTHER_CLASSES[name].is_slow)
    return pytest.mark.parametrize("name", parameters)


@over_pipelines(WITH_OTHER_CLASSES)
def test_the_pictures_of_a_prompt_change_until_removal(name: str) -> None:
    """The second prompt states its value, so its pictures must be byte-identical. This also shows
    that the negative prompt, the order and all other inputs are unchanged."""
    case = WITH_OTHER_CLASSES[name]
    pipe = case.make()
    attach = partial(debias, pipe, tiny.gender(), method="cali", lam=1e6)
    bare, attached = tiny.three_states(pipe, partial(case.draw, pipe), attach)
    assert bare.isfinite().all()
    half = len(bare) // 2
    assert changed(attached, bare) == [True] * half + [False] * half


@over_pipelines(
    [name for name in (*WHOLE, "StableDiffusionXL, modular") if WITH_OTHER_CLASSES[name].is_guided]
)
def test_the_negative_prompt_changes_on_request(name: str) -> None:
    """This validates the test above: an edited negative prompt would change the pictures of the
    stated prompt."""
    case = WITH_OTHER_CLASSES[name]
    pipe = case.make()
    bare = case.draw(pipe, [STATED])
    debias(pipe, tiny.gender(), method="cali", lam=1e6, negative=True)
    assert all(changed(case.draw(pipe, [STATED]), bare))


@over_pipelines(WHOLE)
def test_a_merged_pipeline_generates_the_same_pictures(name: str) -> None:
    """Merge into a copy of the denoiser, or raise an error with advice.

    Like merged weights, the attachment edits both guidance branches and stated prompts. P is not
    symmetric, so that W P differs from W P^T.
    """
    case = WHOLE[name]
    pipe = case.make()
    attachment = debias(
        pipe, tiny.gender(), method="orth-cali", lam=1e6, negative=True, keep_stated=False
    )
    expected = case.draw(pipe, [STATED])
    with attachment.disabled():
        bare = case.draw(pipe, [STATED])
    assert not torch.equal(expected, bare)
    for component in ("transformer", "unet"):
        if getattr(pipe, component, None) is not None:
            setattr(pipe, component, copy.deepcopy(getattr(pipe, component)))
    try:
        attachment.merge()
    except UnsupportedHostError as error:
        assert not case.must_merge, error  # noqa: PT017 - it is one of two ways to end
        assert attachment.state == "attached"
        assert torch.equal(case.draw(pipe, [STATED]), expected)
        return
    merged = case.draw(pipe, [STATED])
    # Equal up to rounding, relative to the change by the edit.
    assert (merged - expected).norm() < 1e-2 * (expected - bare).norm()
    assert attachment.state == "merged"
    assert "encode_prompt" not in vars(pipe)
    with pytest.raises(VldebiasError, match=r"merge\(\) made the projection part of the weights"):
        attachment.remove()
