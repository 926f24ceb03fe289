"""Test that every pipeline class in the installed diffusers is attached or rejected, and some
special cases. Properties that all pipelines share are tested in test_pipeline_contract.py."""

import inspect
from importlib.metadata import version
from pathlib import Path

import diffusers
import diffusers_tiny as tiny
import pytest
import tiny_tokenizers
import torch
from diffusers_tiny import (
    CASES,
    MODULAR,
    PLAIN,
    STATED,
    classic_classes,
    modular,
    modular_classes,
    modular_states,
)

from vldebias.api import debias
from vldebias.errors import AlreadyAttachedError, InvalidInputError, UnsupportedHostError
from vldebias.hosts import resolve
from vldebias.hosts.pipelines.calls import BESIDE, EMBEDDING
from vldebias.hosts.pipelines.reading import needs_picture, picture_arguments
from vldebias.hosts.pipelines.source import NEGATIVE, parameters_of_call, source_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LoraLoaderMixin.*:FutureWarning", "ignore:.*trust_remote_code.*"
)


def why_not(kind):
    """Return why a class is unsupported according to its source, "" if it is supported, or "half"
    if only its prompts are."""
    try:
        source = source_of(kind)
    except UnsupportedHostError:
        return "another way"
    if source.calls - source.negatives > 1:
        return "half"
    for name in source.returns:
        is_known = EMBEDDING.match(name) or BESIDE.search(name) or NEGATIVE.match(name)
        is_stacked = "llama3" in name  # one tensor for each layer
        if is_stacked or not is_known:
            return "half"
    return ""


def test_every_class_in_this_release_is_attached_or_rejected_by_name():
    reasons = {name: why_not(cls) for name, cls in classic_classes().items()}
    for reason in ("another way", "half"):
        refused = {name for name in reasons if reasons[name] == reason}
        assert refused == set(tiny.TABLE[reason].split()) & reasons.keys()
    served = list(reasons.values()).count("")
    assert served >= (147 if version("diffusers").startswith("0.35.") else 179)
    if version("diffusers").startswith("0.42."):
        page = Path(__file__).parents[2] / "docs" / "explanation" / "pipelines.md"
        sentence = f"supports {served} of the {len(reasons)} pipeline classes in diffusers"
        assert sentence in page.read_text(encoding="utf-8")


def kind_of(pipeline_class):
    """Return whether a class only edits pictures, does so in some calls, or never does."""
    parameters = parameters_of_call(pipeline_class)
    components = inspect.signature(pipeline_class.__init__).parameters
    pictures = picture_arguments(parameters, components)
    if needs_picture(pipeline_class, parameters, pictures):
        return "only edits"
    return "edits per call" if pictures else "never edits"


def test_every_class_in_this_release_is_known_to_edit_pictures_or_to_generate_them():
    classes = {
        name: cls for name, cls in classic_classes().items() if why_not(cls) != "another way"
    }
    kinds = {name: kind_of(cls) for name, cls in classes.items()}
    for kind in ("only edits", "edits per call"):
        names = {name for name in kinds if kinds[name] == kind}
        assert names == set(tiny.TABLE[kind].split()) & kinds.keys()
    guided = {name for name in kinds if name.endswith(("ControlNet", "Adapter", "Control"))}
    assert "FluxControlNet" in guided
    guided -= {"AnimateDiffVideoToVideoControlNet", "EasyAnimateControl"}
    assert {kinds[name] for name in guided} == {"never edits"}


@pytest.mark.parametrize("name", ["BriaFibo", "HiDream", "HunyuanDiT"])
def test_tiny_pipelines_are_rejected_for_the_reason_in_their_source(name):
    """All others are supported, see test_pipeline_contract.py."""
    assert why_not(type(CASES[name].make()))
    with pytest.raises(UnsupportedHostError):
        resolve(CASES[name].make()).roles  # noqa: B018 - it is read to be found out


def test_the_sd3_segments_are_clip_followed_by_t5():
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


def test_sd3_without_t5_has_no_role_for_it_and_its_zeros_are_unchanged():
    pipe = tiny.sd3(text_encoder_3=None, tokenizer_3=None)
    attachment = debias(pipe, tiny.gender(), method="cali")
    assert list(attachment.projections) == ["sequence.clip", "pooled"]
    assert not tiny.encode(pipe)[0][:, 77:].any()


def test_an_encoder_of_another_runtime_is_named():
    class OnnxModel:
        config = None

    pipe = tiny.sd()
    pipe.text_encoder = OnnxModel()
    with pytest.raises(UnsupportedHostError, match=r"not a torch module .*is a OnnxModel"):
        debias(pipe, tiny.gender(), method="cali")


def test_missing_encoders_are_rejected_by_name():
    with pytest.raises(UnsupportedHostError, match="text encoders"):
        debias(tiny.sd(text_encoder=None, tokenizer=None), tiny.gender(), method="cali")
    with pytest.raises(UnsupportedHostError, match=r"vldebias\.hosts\.custom"):
        resolve(tiny.sd(type("NoPromptPipeline", (type(tiny.sd()),), {"encode_prompt": None})))


def test_prompts_are_padded_as_in_a_call():
    """T5 reads its padding, so an edit is fitted on states padded as in a call."""
    pipe = tiny.flux()
    length = inspect.signature(type(pipe).__call__).parameters["max_sequence_length"].default
    states = tiny.encode(pipe, "a doctor", max_sequence_length=length)[0][0]
    ids = tiny_tokenizers.t5_tokenizer()("a doctor").input_ids
    expected = torch.nn.functional.normalize(states[len(ids) - 1].double(), dim=-1)
    torch.testing.assert_close(resolve(pipe).embed(["a doctor"], "sequence")[0], expected)


@pytest.mark.parametrize("make", [tiny.sdxl, tiny.sd3])
def test_a_different_layer_is_a_different_space_and_is_rejected(make):
    pipe = make()
    attachment = debias(pipe, tiny.gender(), method="cali")
    with pytest.raises(InvalidInputError, match="clip_skip"):
        tiny.encode(pipe, clip_skip=1)
    with attachment.disabled():
        tiny.encode(pipe, clip_skip=1)
    assert tiny.equal_tensors(tiny.encode(pipe, clip_skip=0), tiny.encode(pipe))


REFUSED = set(tiny.TABLE["modular refused"].split())


def test_a_modular_pipeline_is_attached_once_and_its_blocks_can_be_copied():
    pipe = modular("StableDiffusionXL")
    names = list(pipe._blocks.sub_blocks)
    bare = tiny.draw_modular(pipe)
    attachment = debias(pipe, tiny.gender(), method="cali")
    with pytest.raises(AlreadyAttachedError, match="already has"):
        debias(pipe, tiny.gender(), method="cali")
    copied = modular("StableDiffusionXL", pipe.blocks)
    assert torch.equal(tiny.draw_modular(copied), bare), (
        "a copy of the blocks belongs to another pipeline"
    )
    attachment.remove()
    assert list(pipe._blocks.sub_blocks) == names


@pytest.mark.parametrize("name", ["StableDiffusionXL", "StableDiffusion3", "Flux"])
def test_a_modular_pipeline_uses_the_same_embeddings_as_the_classic_one(name):
    # The unmodified class, so prompts are padded to the length of its blocks.
    cls = getattr(diffusers, tiny.TABLE["pipelines"][name]["class"])
    classic = resolve(tiny.FAMILIES[name][0](cls))
    block = resolve(modular(name))
    assert block.roles == classic.roles
    for role in block.roles:
        torch.testing.assert_close(
            block.embed([PLAIN, STATED], role), classic.embed([PLAIN, STATED], role)
        )


def test_every_class_is_attached_or_rejected():
    known = set(modular_classes())
    assert known - set(MODULAR) == REFUSED & known
    in_table = set(" ".join(tiny.TABLE["modular"]).split())
    assert len(in_table) >= 32
    for name in sorted(REFUSED & known):
        # This pipeline reads an image first.
        why = ".*fails for a single prompt" if name.startswith("QwenImageEdit") else ""
        with pytest.raises(UnsupportedHostError, match=name + why):
            resolve(modular_classes()[name]())
    absent = sorted(in_table - set(MODULAR))
    if absent:
        pytest.skip(f"diffusers {version('diffusers')} has no {absent}; the others passed")


def test_a_single_block_pipeline_can_be_attached():
    from diffusers.modular_pipelines.stable_diffusion_xl.encoders import (
        StableDiffusionXLTextEncoderStep,
    )

    pipe = modular("StableDiffusionXL", StableDiffusionXLTextEncoderStep())
    bare = pipe(prompt=PLAIN, output="prompt_embeds")
    with debias(pipe, tiny.gender(), method="cali"):
        assert not torch.equal(pipe(prompt=PLAIN, output="prompt_embeds"), bare)
    assert torch.equal(pipe(prompt=PLAIN, output="prompt_embeds"), bare)


def test_image_tokens_are_unchanged(monkeypatch):
    """Image tokens are all up to the last one in `image_pad_mask`."""
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
            InvalidInputError, match="expected 'prompt_embeds' from the block that encodes text"
        ):
            modular_states(pipe, ["no states"])
    stay = (attached == bare).all(-1)
    padding = ~bare.any(-1)
    assert stay[:3].all()
    assert torch.equal(stay[3:], padding[3:])
    assert not padding[3]
