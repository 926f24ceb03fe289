"""Every pipeline class of the installed diffusers, classic and modular: attached or refused; and
three states."""

import inspect
import warnings
from functools import cache, partial

import diffusers
import diffusers_tiny as tiny
import pytest
import tiny_tokenizers
import torch
from diffusers.modular_pipelines import PipelineState
from diffusers_tiny import CASES, PLAIN, STATED

from vldebias.api import debias
from vldebias.errors import AlreadyAttachedError, InvalidInputError, UnsupportedHostError
from vldebias.hosts import resolve
from vldebias.hosts.pipelines.calls import BESIDE, EMBEDDING, same_values
from vldebias.hosts.pipelines.source import NEGATIVE, source_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LoraLoaderMixin.*:FutureWarning", "ignore:.*trust_remote_code.*"
)


def classes():
    """Pipelines with an `encode_prompt`, by name without "Pipeline" at its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffusers warns of its own imports
        found = {}
        for name in dir(diffusers):
            if "Pipeline" in name and not name.startswith(("Flax", "Onnx")):
                try:
                    if hasattr(getattr(diffusers, name), "encode_prompt"):
                        found[name.removesuffix("Pipeline")] = getattr(diffusers, name)
                except (ImportError, RuntimeError):  # of a library that is not installed
                    continue
    return found


def why_not(kind):
    """Why the source of a class says that it cannot be served; "" where it can, "half" where only
    its prompts can."""
    try:
        source = source_of(kind)
    except UnsupportedHostError:
        return "another way"
    unknown = [
        n
        for n in source.returns
        if not (EMBEDDING.match(n) or BESIDE.search(n) or NEGATIVE.match(n))
    ]
    stacked = [n for n in source.returns if "llama3" in n]  # one tensor for each layer
    several = source.calls - source.negatives > 1
    return "half" if unknown or several or stacked else ""


def test_every_class_of_this_release_is_attached_or_refused_by_its_name():
    found = {name: why_not(kind) for name, kind in classes().items()}
    for how in ("another way", "half"):
        assert {name for name, why in found.items() if why == how} == set(
            tiny.TABLE[how].split()
        ) & set(found)
    assert sum(not why for why in found.values()) >= 179


def test_what_the_tiny_ones_are_refused_for_is_what_the_sources_say():
    refused = set()
    for name, case in CASES.items():
        try:
            resolve(case.make()).roles  # noqa: B018 - it is read to be found out
        except UnsupportedHostError:
            refused.add(name)
        except pytest.skip.Exception:  # the installed release has no such class
            continue
    assert refused == {"BriaFibo", "HiDream", "HunyuanDiT"}


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_the_whole_pipeline_in_three_states_and_at_strength_zero(name):
    make, call = tiny.FAMILIES[name]
    pipe = make()
    attach = partial(debias, pipe, tiny.gender(), method="cali")
    assert not torch.equal(*tiny.three_states(pipe, partial(tiny.draw, pipe, **call), attach))


def test_the_sd3_segments_are_clip_then_t5():
    pipe = tiny.sd3()
    bare = tiny.encode(pipe, **tiny.T5_LENGTH)[0]
    attachment = debias(pipe, tiny.gender(), method="cali")
    attached = tiny.encode(pipe, **tiny.T5_LENGTH)[0]
    torch.testing.assert_close(
        attached[:, :77], attachment.projections["sequence.clip"](bare[:, :77])
    )
    torch.testing.assert_close(
        attached[:, 77:], attachment.projections["sequence.t5"](bare[:, 77:])
    )


def test_sd3_without_t5_has_no_role_for_it_and_zeros_stay():
    pipe = tiny.sd3(text_encoder_3=None, tokenizer_3=None)
    attachment = debias(pipe, tiny.gender(), method="cali")
    assert list(attachment.projections) == ["sequence.clip", "pooled"]
    assert not tiny.encode(pipe)[0][:, 77:].any()


def test_missing_encoders_are_refused_by_name():
    with pytest.raises(UnsupportedHostError, match="text encoders"):
        debias(tiny.sd(text_encoder=None, tokenizer=None), tiny.gender(), method="cali")
    with pytest.raises(UnsupportedHostError, match=r"vldebias\.hosts\.custom"):
        resolve(tiny.sd(type("NoPromptPipeline", (type(tiny.sd()),), {"encode_prompt": None})))


def test_padding_is_as_long_as_in_a_call():
    """T5 reads its padding: an edit is fitted on states as a call of the pipeline makes them."""
    pipe = tiny.flux()
    length = inspect.signature(type(pipe).__call__).parameters["max_sequence_length"].default
    states = tiny.encode(pipe, "a doctor", max_sequence_length=length)[0][0]
    ids = tiny_tokenizers.t5_tokenizer()("a doctor").input_ids
    expected = torch.nn.functional.normalize(states[len(ids) - 1].double(), dim=-1)
    torch.testing.assert_close(resolve(pipe).embed(["a doctor"], "sequence")[0], expected)


@pytest.mark.parametrize("make", [tiny.sdxl, tiny.sd3])
def test_an_earlier_layer_is_another_space_and_refused(make):
    pipe = make()
    attachment = debias(pipe, tiny.gender(), method="cali")
    with pytest.raises(InvalidInputError, match="clip_skip"):
        tiny.encode(pipe, clip_skip=1)
    with attachment.disabled():
        tiny.encode(pipe, clip_skip=1)
    assert tiny.same(tiny.encode(pipe, clip_skip=0), tiny.encode(pipe))


QUICK = ("Flux", "ErnieImage", "LTX", "QwenImage", "Krea2", "StableDiffusion3")
REFUSED = set(tiny.TABLE["modular refused"].split())


@cache
@tiny.quiet()
def modular_classes():
    """Every modular pipeline class of the installed diffusers that has blocks of its own, by
    name."""
    found = {
        name: getattr(diffusers, name)
        for name in dir(diffusers)
        if name.endswith("ModularPipeline")
    }
    short = {name.removesuffix("ModularPipeline"): cls for name, cls in sorted(found.items())}
    return {name: cls for name, cls in short.items() if getattr(cls, "default_blocks_name", None)}


MODULAR = {name: entry for names, entry in tiny.TABLE["modular"].items() for name in names.split()}
MODULAR = {name: entry for name, entry in MODULAR.items() if name in modular_classes()}
"""Class names without "ModularPipeline" at their ends -> their components, or their family; those
of this release."""


@tiny.quiet()
def modular(name, blocks=None):
    """A new modular pipeline of a class with its own blocks, or of given ones."""
    entry = MODULAR[name]
    family = MODULAR[name].get("family", name)
    if "text_encoder" in entry:
        parts = {key: tiny.builder(one)() for key, one in entry.items()}
    elif family in tiny.FAMILIES:
        parts = tiny.FAMILIES[family][0]().components
    else:
        parts = CASES[family].parts() | {key: make() for key, make in CASES[family].drawing.items()}
        parts = {key: part for key, part in parts.items() if key not in ("guider", "scheduler")}
    pipe = modular_classes()[name]() if blocks is None else blocks.init_pipeline()
    diffusers.utils.logging.set_verbosity_error()
    pipe.update_components(
        **{k: one for k, one in parts.items() if k in pipe.component_names and one is not None}
    )
    return pipe


def modular_states(pipe, prompts=(PLAIN, STATED), **call):
    """The state after the block that encodes text and what stands behind it, before anything is
    drawn."""
    single = "WanAnimate2" in type(pipe).__name__ or "Flux3" in type(pipe).__name__
    states = []
    for prompt in prompts if single else [list(prompts)]:
        state = PipelineState()
        defaults = {given.name: given.default for given in pipe._blocks.inputs if given.name}
        for name, value in (defaults | call | {"prompt": prompt}).items():
            state.set(name, value)
        steps = pipe._blocks.sub_blocks["text_encoder"]
        images = {
            "resize",
            "get_image_prompt",
        } & steps.sub_blocks.keys()  # they look at an image beside the text
        for step in (
            [one for n, one in steps.sub_blocks.items() if n not in images] if images else [steps]
        ):
            step(pipe, state)
        states.append(
            {
                name: value
                for name, value in state.values.items()
                if "embeds" in name and value is not None
            }
        )
    return {key: [state[key] for state in states] for key in states[0]} if single else states[0]


def draw(pipe, prompts=(PLAIN, STATED), **call):
    """Latents (2, ...) of two steps, guided, from one seed."""
    small = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "latent"}
    noise = torch.Generator().manual_seed(0)
    negative = ["old smiling person"] * len(prompts)
    return pipe(
        prompt=list(prompts),
        negative_prompt=negative,
        generator=noise,
        output="latents",
        **small | call,
    )


def changed(one, other):
    """For each row: is it another one?"""
    return [not torch.equal(a, b) for a, b in zip(tiny.rows(one), tiny.rows(other), strict=True)]


def test_the_images_of_a_prompt_change_and_come_back():
    pipe = modular("StableDiffusionXL")
    names = list(pipe._blocks.sub_blocks)
    attach = partial(debias, pipe, tiny.gender(), lam=1e6, method="cali")
    bare, attached = tiny.three_states(pipe, partial(draw, pipe), attach)
    assert changed(attached, bare) == [True, False], "the second prompt states its gender"
    attachment = attach()
    with pytest.raises(AlreadyAttachedError, match="already carries"):
        debias(pipe, tiny.gender(), method="cali")
    copied = modular("StableDiffusionXL", pipe.blocks)
    assert torch.equal(draw(copied), bare), "a copy of the blocks is of another pipeline"
    attachment.remove()
    assert list(pipe._blocks.sub_blocks) == names
    attach(negative=True)
    assert changed(draw(pipe), bare) == [True, True]


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MODULAR]
)
def test_what_every_class_reads_changes_and_comes_back(name):
    """Behind the block that encodes text; of a video with sound also behind what connects the text
    to both."""
    pipe = modular(name)
    bare = modular_states(pipe)
    attachment = debias(pipe, tiny.gender(), lam=1e6, method="cali")
    attached = modular_states(pipe)
    edited = [part.name for part in attachment.host.parts]
    for key in bare:
        expected = [True, False] if key in edited else [False, False]
        if key.startswith("connector"):
            expected = [True, False]
        assert key.startswith("negative") or changed(attached[key], bare[key]) == expected, key
    with attachment.disabled():
        assert same_values(modular_states(pipe), bare)
    attachment.remove()
    assert same_values(modular_states(pipe), bare)


@pytest.mark.parametrize("name", ["StableDiffusionXL", "StableDiffusion3", "Flux"])
def test_it_reads_what_the_classic_pipeline_reads(name):
    classic = resolve(tiny.FAMILIES[name][0]())
    block = resolve(modular(name))
    assert block.roles == classic.roles
    for role in block.roles:
        torch.testing.assert_close(
            block.embed([PLAIN, STATED], role), classic.embed([PLAIN, STATED], role)
        )


def test_every_class_is_attached_or_refused():
    known = set(modular_classes())
    assert known - set(MODULAR) == REFUSED & known
    assert len(MODULAR) >= 32
    for name in sorted(REFUSED & known):
        why = (
            ".*fails on a prompt alone" if name.startswith("QwenImageEdit") else ""
        )  # which reads an image first
        with pytest.raises(UnsupportedHostError, match=name + why):
            resolve(modular_classes()[name]())


def test_a_pipeline_of_one_block_is_attached():
    from diffusers.modular_pipelines.stable_diffusion_xl.encoders import (
        StableDiffusionXLTextEncoderStep,
    )

    pipe = modular("StableDiffusionXL", StableDiffusionXLTextEncoderStep())
    bare = pipe(prompt=PLAIN, output="prompt_embeds")
    with debias(pipe, tiny.gender(), method="cali"):
        assert not torch.equal(pipe(prompt=PLAIN, output="prompt_embeds"), bare)
    assert torch.equal(pipe(prompt=PLAIN, output="prompt_embeds"), bare)


def test_tokens_of_an_image_stay(monkeypatch):
    """What `image_pad_mask` says, up to the last of them."""
    pipe = modular("QwenImage21")
    kind = type(resolve(pipe).block)
    run = kind.__call__

    def with_image(block, components, state):
        components, state = run(block, components, state)
        if state.get("prompt") == ["no states"]:
            state.set("prompt_embeds", None)
            return components, state
        mask = torch.zeros_like(state.get("prompt_embeds")[..., 0])
        mask[:, 1:3] = 1
        state.set("image_pad_mask", mask)
        return components, state

    monkeypatch.setattr(kind, "__call__", with_image)
    bare = modular_states(pipe)["prompt_embeds"][0]
    with debias(pipe, tiny.gender(), method="cali", lam=1e6):
        attached = modular_states(pipe)["prompt_embeds"][0]
        with pytest.raises(
            InvalidInputError, match="got a prompt, but its block gave no 'prompt_embeds'"
        ):
            modular_states(pipe, ["no states"])
    stay = (attached == bare).all(-1)
    padding = ~bare.any(-1)
    assert stay[:3].all()
    assert torch.equal(stay[3:], padding[3:])
    assert not padding[3]
