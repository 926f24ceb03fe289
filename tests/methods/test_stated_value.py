"""A value drawn for each image and stated in its prompt: each image is that of the prompt that states its value."""

import inspect
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import FAMILIES, encode, sd, sdxl

from vldebias import Attachment, debias, load_prompts
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import TextTable
from vldebias.hosts.diffusers import wrap
from vldebias.methods import Problem, StatedValue, load_edit
from vldebias.methods.rivals.wording import worded

SET = load_prompts("professions-gender")
PROMPTS = ["A photo of a nurse.", "A photo of a engineer.", "A photo of a female nurse."]
SEEDS = [3, 4, 5]


def drawn(pipe: Any, prompts: list[str], generator: str = "list", **call: Any) -> Tensor:
    """Images from the same noise at every call, however the pipeline is given it."""
    images = len(prompts) * call.get("num_images_per_prompt", 1)
    torch.manual_seed(0)
    own = {"none": None, "one": torch.Generator().manual_seed(0)}
    noise = own[generator] if generator in own else [torch.Generator().manual_seed(i) for i in range(images)]
    call |= {"height": 16, "width": 16, "output_type": "pt", "num_inference_steps": 2, "guidance_scale": 3.0}
    return pipe(prompts, generator=noise, **call).images


def stating(attachment: Attachment, prompts: list[str]) -> list[str]:
    """The prompt of each image of the last call, with the value that was drawn for it."""
    values = attachment.drawn
    each = [prompt for prompt in prompts for _ in range(len(values) // len(prompts))]
    return [prompt if value is None else worded(prompt, value) for prompt, value in zip(each, values, strict=True)]


@pytest.mark.parametrize("made", [sd, sdxl])
def test_three_states(made: Any) -> None:
    pipe = made()
    bare = drawn(pipe, PROMPTS)
    attachment = debias(pipe, SET, method="stated-value")
    attachment.seeds = SEEDS
    attached = drawn(pipe, PROMPTS)
    assert [torch.equal(a, b) for a, b in zip(attached, bare, strict=True)] == [False, False, True]
    with attachment.disabled():
        assert torch.equal(drawn(pipe, PROMPTS), bare)
    attachment.seeds = SEEDS
    assert torch.equal(drawn(pipe, PROMPTS), attached)
    attachment.remove()
    assert torch.equal(drawn(pipe, PROMPTS), bare)
    with debias(pipe, SET, method="stated-value") as again:
        again.seeds = SEEDS
        assert torch.equal(drawn(pipe, PROMPTS), attached)
    assert "encode_prompt" not in vars(pipe)


@pytest.mark.parametrize("value", ["male", "female"])
def test_with_one_value_alone_every_image_is_that_of_the_stated_prompt_bit_for_bit(value: str) -> None:
    pipe = sd()
    stated = [worded(prompt, value) for prompt in PROMPTS[:2]]
    expected = drawn(pipe, [*stated, PROMPTS[2]], num_images_per_prompt=2)
    shares = {"male": 0.0, "female": 0.0, value: 1.0}
    with debias(pipe, SET, method=StatedValue(shares)) as attachment:
        assert torch.equal(drawn(pipe, PROMPTS, num_images_per_prompt=2), expected)
        assert attachment.drawn == [value] * 4 + [None] * 2


@pytest.mark.parametrize("made", [sd, sdxl])
@pytest.mark.parametrize("generator", ["none", "one", "list"])
def test_each_image_is_that_of_the_prompt_that_states_what_was_drawn_for_it(made: Any, generator: str) -> None:
    pipe = made()
    with debias(pipe, SET, method="stated-value") as attachment:
        found = drawn(pipe, PROMPTS, generator, num_images_per_prompt=4)
        prompts = stating(attachment, PROMPTS)
    assert [Counter(attachment.drawn[i : i + 4]) for i in (0, 4)] == [{"male": 2, "female": 2}] * 2
    assert attachment.drawn[8:] == [None] * 4
    torch.testing.assert_close(found, drawn(pipe, prompts, generator), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_states_of_a_call_are_those_of_the_stated_prompts_or_it_is_refused(family: str) -> None:
    pipe = FAMILIES[family][0]()
    host = wrap(pipe)
    assert host.masked == (family in {"Chroma", "PixArt", "Sana"})
    if host.masked:
        with pytest.raises(UnsupportedHostError, match="a mask goes with them"):
            debias(pipe, SET, method="stated-value")
        return
    length = inspect.signature(type(pipe).__call__).parameters.get("max_sequence_length")
    call = {} if length is None else {"max_sequence_length": length.default}
    with debias(pipe, SET, method="stated-value") as attachment:
        found = encode(pipe, PROMPTS, **call)
        prompts = stating(attachment, PROMPTS)
        if call:
            with pytest.raises(InvalidInputError, match=r"the other wordings have states .* write the words into the"):
                encode(pipe, PROMPTS, max_sequence_length=40)
    expected = encode(pipe, prompts, **call)
    for part in host._parts:
        torch.testing.assert_close(found[part.index], expected[part.index])


def test_it_draws_what_steering_draws() -> None:
    """By call and by seed, for any shares: one draw, realised in another way."""
    pipe, told = sd(), {}
    for method in ("steer", "stated-value"):
        with debias(pipe, SET, method=method) as attachment:
            calls = []
            for seed in (0, 0, 1):
                attachment.seed = seed
                for _ in range(2):
                    pipe.encode_prompt(PROMPTS, "cpu", 3, False)
                    calls.append(attachment.drawn)
            attachment.generators(SEEDS)
            pipe.encode_prompt(PROMPTS, "cpu", 1, False)
            assert attachment.drawn == attachment.values(PROMPTS, SEEDS)
            told[method] = [*calls, attachment.drawn]
    assert told["steer"] == told["stated-value"]
    assert told["steer"][0:2] == told["steer"][2:4]


def test_strength_is_between() -> None:
    pipe = sd()

    def states(prompt: str) -> Tensor:
        return pipe.encode_prompt(prompt, "cpu", 1, False)[0]

    with torch.no_grad(), debias(pipe, SET, method=StatedValue({"male": 1.0, "female": 0.0})) as attachment:
        stated = states(PROMPTS[0])
        attachment.strength = 0.0
        bare = states(PROMPTS[0])
        attachment.strength = 0.5
        torch.testing.assert_close(states(PROMPTS[0]), (bare + stated) / 2)


def test_it_is_saved_with_its_shares(tmp_path: Path) -> None:
    host = TextTable({"a photo": [1.0, 0.0]})
    host.generative = True
    edit = Problem.of(host, SET).fit(StatedValue({"male": 0.3, "female": 0.7}, stratify=10), "joint")
    loaded: Any = load_edit(edit.save_pretrained(tmp_path))
    assert (loaded.words, loaded.stratify, loaded.method) == (("male", "female"), 10, "stated-value")
    assert dict(zip(loaded.shares.names, loaded.shares.shares, strict=True)) == {"male": 0.3, "female": 0.7}


@pytest.mark.parametrize(
    ("method", "prompts", "masked", "error", "message"),
    [
        ({}, SET, True, UnsupportedHostError, r"'stated-value' puts .*a mask goes with them, .* write the words into"),
        ({}, [SET, load_prompts("skin-tone")], False, InvalidInputError, "expected one attribute whose values are put"),
        ({"shares": {"male": 1.0}}, SET, False, InvalidInputError, r"expected one for each of \['male', 'female'\]"),
    ],
)
def test_what_it_refuses(method: Any, prompts: Any, masked: bool, error: type[Exception], message: str) -> None:
    host = TextTable({"a photo": [1.0, 0.0]})
    host.generative, host.masked = True, masked
    with pytest.raises(error, match=message):
        Problem.of(host, prompts).fit(StatedValue(**method), "joint")


def test_what_a_call_refuses() -> None:
    with pytest.raises(InvalidInputError, match="stratify: expected a number of images, at least 1, or None, got 0"):
        StatedValue(stratify=0)
    pipe = sd()
    with pytest.raises(InvalidInputError, match="gives an image its value by its prompt; leave negative=False"):
        debias(pipe, SET, method="stated-value", negative=True)
    with debias(pipe, SET, method="stated-value") as attachment:
        attachment.seeds = [1, 2]
        with pytest.raises(InvalidInputError, match="2 seeds for 3 images; expected one for each"):
            drawn(pipe, PROMPTS)
        edit = attachment.projections["sequence"]
        with pytest.raises(InvalidInputError, match="'stated-value' reads prompts in other words, and needs the model"):
            edit(torch.zeros(1, 4, edit.dim))
