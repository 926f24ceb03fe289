"""Every pipeline class of the installed diffusers: attached or refused; and what holds for the classic ones."""

import inspect
import warnings

import diffusers_tiny as tiny
import pytest
import tiny_tokenizers
import torch
from diffusers_tiny import CASES

from vldebias.api import debias
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import resolve
from vldebias.hosts.pipelines import BESIDE, EMBEDDING, NEGATIVE, source_of

pytestmark = pytest.mark.filterwarnings("ignore:.*LoraLoaderMixin.*:FutureWarning")  # diffusers, of its own mixin
OTHER_WAYS = """
    AudioLDM2 BlipDiffusion BlipDiffusionControlNet BriaFibo2 CycleDiffusion DreamLite DreamLiteMobile ErnieImage
    LEditsPPPipelineStableDiffusion LEditsPPPipelineStableDiffusionXL LongCatAudioDiT StableDiffusionDiffEdit
    HunyuanVideoImageToVideo StableDiffusionGLIGEN StableDiffusionGLIGENTextImage StableUnCLIP VisualClozeGeneration
"""  # refused altogether: the prompt reaches the model by another way as well, or has no argument of its own
NO_EDIT = """
    BriaFibo BriaFiboEdit HiDreamImage HunyuanDiT HunyuanDiTControlNet HunyuanDiTPAG Ideogram4
"""  # their prompts can be balanced; what their encode_prompt returns cannot be edited whole


def classes():
    """Pipelines with an `encode_prompt`, by name without "Pipeline" at its end."""
    import diffusers

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
    """Why the source of a class says that it cannot be served; "" where it can, "half" where only its prompts can."""
    try:
        source = source_of(kind)
    except UnsupportedHostError:
        return "another way"
    unknown = [n for n in source.returns if not (EMBEDDING.match(n) or BESIDE.search(n) or NEGATIVE.match(n))]
    stacked = [n for n in source.returns if "llama3" in n]  # one tensor for each layer
    several = source.calls - source.negatives > 1
    return "half" if unknown or several or stacked else ""


def test_every_class_of_this_release_is_attached_or_refused_by_its_name():
    found = {name: why_not(kind) for name, kind in classes().items()}
    assert {name for name, why in found.items() if why == "another way"} == set(OTHER_WAYS.split()) & set(found)
    assert {name for name, why in found.items() if why == "half"} == set(NO_EDIT.split()) & set(found)
    assert sum(not why for why in found.values()) >= 179


def test_what_the_tiny_ones_are_refused_for_is_what_the_sources_say():
    refused = set()
    for name, case in CASES.items():
        try:
            resolve(case.make()).roles  # noqa: B018 - it is read to be found out
        except UnsupportedHostError:
            refused.add(name)
    assert refused == {"BriaFibo", "HiDream", "HunyuanDiT"}


# ---- whole pipelines -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tiny.FAMILIES)
def test_the_whole_pipeline_in_three_states_and_at_strength_zero(name):
    make, call = tiny.FAMILIES[name]
    pipe = make()
    bare, before = tiny.draw(pipe, **call), dict(vars(pipe))
    attachment = debias(pipe, tiny.gender(), method="cali")
    attached = tiny.draw(pipe, **call)
    assert not torch.equal(attached, bare)
    with attachment.disabled():
        assert torch.equal(tiny.draw(pipe, **call), bare)
    attachment.strength = 0
    assert torch.equal(tiny.draw(pipe, **call), bare)
    attachment.strength = 1
    assert torch.equal(tiny.draw(pipe, **call), attached)
    attachment.remove()
    assert torch.equal(tiny.draw(pipe, **call), bare)
    assert vars(pipe) == before


def test_the_sd3_segments_are_clip_then_t5():
    pipe = tiny.sd3()
    bare = tiny.encode(pipe, **tiny.T5_LENGTH)[0]
    attachment = debias(pipe, tiny.gender(), method="cali")
    attached = tiny.encode(pipe, **tiny.T5_LENGTH)[0]
    torch.testing.assert_close(attached[:, :77], attachment.projections["sequence.clip"](bare[:, :77]))
    torch.testing.assert_close(attached[:, 77:], attachment.projections["sequence.t5"](bare[:, 77:]))


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
