"""Test the text side of some families: the end of a prompt, templates, images, layers, and
alternative wordings. Properties that all families share are tested in test_pipeline_contract.py."""

from copy import copy
from functools import cache
from itertools import product

import diffusers_tiny as tiny
import pytest
import torch
from diffusers_tiny import CASES, PLAIN, STATED
from torch.nn.functional import normalize

from vldebias.api import debias, fit_projections
from vldebias.errors import InvalidInputError
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.miniature import load_clip

# diffusers issues this warning about its own mixin.
pytestmark = pytest.mark.filterwarnings("ignore:.*LoraLoaderMixin.*:FutureWarning")
REFUSED = ("BriaFibo", "HiDream", "HunyuanDiT")


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@cache
def fitted(name):
    """Return the edits of a family, whose pipelines share their weights."""
    return fit_projections(CASES[name].make(), tiny.gender())


@cache
def host_of(name):
    """Return a family's host, shared by all tests that do not change it."""
    return DiffusersHost(CASES[name].make())


ENDS = [
    name
    for name, case in CASES.items()
    if name not in REFUSED and (case.end is not None or case.padded == "left")
]


@pytest.mark.parametrize("name", ENDS)
def test_the_fitted_state_is_at_the_end_of_the_prompt(name):
    """The reference is the token that ends the turn, found in the ids of the encoder."""
    case = CASES[name]
    prompt = "a young pilot, smiling at work"
    host = host_of(name)
    pipe = host.pipe
    part = next(part for part in host.parts if part.role.startswith("sequence"))
    encoder_calls = []
    hook = pipe.text_encoder.register_forward_pre_hook(
        lambda m, args, kw: encoder_calls.append(
            (kw.get("input_ids", *args[:1]), kw.get("attention_mask"))
        ),
        with_kwargs=True,
    )
    result = host.call([prompt])
    hook.remove()
    ids, mask = encoder_calls[0]
    real = ids[0] if mask is None else ids[0][mask[0] != 0]
    tokenizer = getattr(pipe.tokenizer, "tokenizer", pipe.tokenizer)
    if case.end is None:
        behind = 0
        assert tokenizer.decode(real).endswith(prompt)
    else:
        end = (real == tokenizer.convert_tokens_to_ids(case.end)).nonzero().max()
        behind = len(real) - 1 - int(end)
        assert tokenizer.decode(real[:end]).rstrip().endswith(prompt)
    (states,) = tiny.rows(result[part.place])
    if states.ndim == 3:  # the layers of a token as one vector
        states = states.flatten(-2)
    # The prompt was either padded or truncated.
    candidates = [
        len(states) - 1 - behind,
        len(states) - 1 - behind - (len(ids[0]) - len(real)),
    ]
    expected = [normalize(states[i].double(), dim=-1) for i in candidates if i >= 0]
    row = host.embed([prompt], part.role)[0]
    assert min(float((row - candidate).abs().max()) for candidate in expected) < 1e-6


OF_DIFFERENT_LENGTH = ["a pilot", "an old stone bridge", "a young pilot at work", "two dogs"]


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_the_row_of_a_prompt_does_not_depend_on_its_batch(name):
    """The reference is each prompt in a separate call."""
    host = host_of(name)
    if not host.reads_batches:
        return  # it encodes each prompt in a separate call
    alone = copy(host)
    vars(alone)["reads_batches"] = False
    expected = alone.read(OF_DIFFERENT_LENGTH, host.roles[0])
    together = host.read(OF_DIFFERENT_LENGTH, host.roles[0])
    assert together.keys() >= expected.keys()
    for key, row in expected.items():
        torch.testing.assert_close(together[key], row, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "is_together"),
    [
        pytest.param(tiny.sd, True, id="padded to one length"),
        pytest.param(tiny.sd3, True, id="three encoders, each padded to one length"),
        pytest.param(CASES["QwenImage"].make, False, id="padded to the longest of a call"),
    ],
)
def test_prompts_are_batched_if_their_padding_is_the_same(make, is_together, monkeypatch):
    pipe = make()
    host = DiffusersHost(pipe)
    assert host.reads_batches is is_together
    role = host.roles[0]
    sizes = []
    encode = host.encode

    def recorded(prompts, *positional, **options):
        sizes.append(len(prompts))
        return encode(prompts, *positional, **options)

    monkeypatch.setattr(host, "encode", recorded)
    host.read([f"photo {i}" for i in range(20)], role)
    assert sizes == ([16, 16] if is_together else [1] * 20)


def test_a_template_inside_the_prompts_does_not_reach_the_gate():
    """Z-Image writes its chat template into the list of prompts; "user" is not a word of the
    prompt."""
    case = CASES["ZImage"]
    pipe = case.make()
    attachment = debias(pipe, fitted("ZImage"))
    seen = []
    find = attachment.gate.find
    attachment.gate = type(
        "Gate", (), {"find": lambda self, text: seen.append(text) or find(text)}
    )()
    case.encode(pipe, [PLAIN, STATED])
    assert seen == [PLAIN, STATED]


@pytest.mark.parametrize("name", ["QwenImageEdit", "QwenImageEditPlus"])
def test_tokens_that_show_the_image_stay_unchanged(name):
    case = CASES[name]
    pipe = case.make()
    image = [object()]
    prompts = [PLAIN, "a young pilot, smiling at work"]
    bare, mask = case.encode(pipe, prompts, image=image)
    attachment = debias(pipe, fitted(name))
    attached, _ = case.encode(pipe, prompts, image=image)
    tokenizer = pipe.tokenizer
    turn = len(tokenizer("<|im_end|>\n<|im_start|>assistant\n").input_ids)
    for i, prompt in enumerate(prompts):
        length = int(mask[i].sum())
        start = length - turn - len(tokenizer(prompt).input_ids)
        assert torch.equal(attached[i, :start], bare[i, :start])
        expected = attachment.projections["sequence"](bare[i, start:])
        torch.testing.assert_close(attached[i, start:], expected, atol=1e-4, rtol=1e-4)
        assert not torch.equal(attached[i, start], bare[i, start])


def test_layers_other_than_the_fitted_ones_are_rejected():
    """Other layers may have the same width, but they are a different space."""
    case = CASES["Flux2Klein"]
    pipe = case.make()
    debias(pipe, fitted("Flux2Klein"))
    with pytest.raises(InvalidInputError, match="text_encoder_out_layers"):
        case.encode(pipe, [PLAIN], text_encoder_out_layers=(1, 2, 3))
    case.encode(pipe, [PLAIN], text_encoder_out_layers=[9, 18, 27])


NURSE = "A photo of a nurse."
PERSON = "A photo of a female nurse."


def test_an_attached_model_encodes_additional_wordings_itself():
    model, _, tokenizer = load_clip()
    stated = [
        f"A photo of a {value} {job}."
        for job, value in product(("nurse", "pilot"), ("male", "female"))
    ]
    means = normalize(model.encode_text(tokenizer(stated)), dim=1).unflatten(0, (2, 2)).mean(1)
    prompts = tokenizer([NURSE, "A photo of a pilot."])
    bare = model.encode_text(prompts)
    with debias(model, "professions-gender", method="each-value", tokenizer=tokenizer):
        changed = model.encode_text(prompts)
    torch.testing.assert_close(
        normalize(changed, dim=1), normalize(means, dim=1), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(changed.norm(dim=1), bare.norm(dim=1))


def test_a_single_wording_is_bit_identical_to_its_prompt():
    pipe = tiny.sd()
    call = {"guidance_scale": 3.0, "negative_prompt": "old", "num_images_per_prompt": 2}
    texts = ("A photo of a nurse of any gender.", NURSE, PERSON)
    expected, bare, stated = (tiny.draw(pipe, text, **call) for text in texts)
    with debias(pipe, "professions-gender", method="suffix"):
        assert torch.equal(tiny.draw(pipe, NURSE, **call), expected)
        assert torch.equal(tiny.draw(pipe, PERSON, **call), stated)  # bit-identical
    assert torch.equal(tiny.draw(pipe, NURSE, **call), bare)
    assert not torch.equal(expected, bare)


@pytest.mark.parametrize("make", [tiny.sd, tiny.sdxl])
def test_each_value_averages_the_states_at_every_position(make):
    pipe = make()
    bare, *values = (
        tiny.encode(pipe, NURSE.replace(" a n", f" a {value}n"))
        for value in ("", "male ", "female ")
    )
    with debias(pipe, "professions-gender", method="each-value") as attachment:
        for strength in (1.0, 0.5):
            attachment.strength = strength
            for state, start, *both in zip(tiny.encode(pipe, NURSE), bare, *values, strict=True):
                if state is not None:
                    torch.testing.assert_close(
                        state, torch.lerp(start, (both[0] + both[1]) / 2, strength)
                    )


def test_wordings_of_a_different_length_are_rejected_without_padding():
    case = CASES["QwenImage"]
    pipe = case.make()
    message = r"'suffix': the wordings' states have shape \(1, \d+, \d+\), but the prompts'"
    with (
        debias(pipe, "professions-gender", method="suffix"),
        pytest.raises(InvalidInputError, match=message),
    ):
        case.encode(pipe, [NURSE])
