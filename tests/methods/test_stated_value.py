"""A value drawn for each image and stated in its prompt: each image is that of the prompt that states its value."""

import inspect
import sys
from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import FAMILIES, encode, sd, sdxl

from vldebias import Attachment, debias, fit_projections, load_prompts
from vldebias.edit import Rows
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import TextTable
from vldebias.hosts.diffusers import diffusers_host
from vldebias.methods import Problem, StatedValue, load_edit
from vldebias.methods.rivals.wording import rewrite_prompt
from vldebias.methods.shares import Shares

SET, TONES = load_prompts("professions-gender"), load_prompts("skin-tone")
WORDS = {value: words[0] for value, words in TONES.attributes.items()}
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
    return [
        prompt if value is None else rewrite_prompt(prompt, value) for prompt, value in zip(each, values, strict=True)
    ]


@pytest.mark.parametrize("value", ["male", "female"])
def test_with_one_value_alone_every_image_is_that_of_the_stated_prompt_bit_for_bit(value: str) -> None:
    pipe = sd()
    stated = [rewrite_prompt(prompt, value) for prompt in PROMPTS[:2]]
    expected = drawn(pipe, [*stated, PROMPTS[2]], num_images_per_prompt=2)
    shares = {"male": 0.0, "female": 0.0, value: 1.0}
    with debias(pipe, SET, method=StatedValue(shares)) as attachment:
        assert torch.equal(drawn(pipe, PROMPTS, num_images_per_prompt=2), expected)
        assert attachment.drawn == [value] * 4 + [None] * 2


@pytest.mark.parametrize(("made", "generator"), [(sd, "none"), (sd, "one"), (sd, "list"), (sdxl, "list")])
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
    host = diffusers_host(pipe)
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


@pytest.mark.parametrize("sets", [[SET], [SET, TONES]])
def test_it_draws_what_steering_draws(sets: list[Any]) -> None:
    """By call and by seed, for any shares: one draw, realised in another way."""
    pipe, told, prompts = sd(), {}, PROMPTS[: 4 - len(sets)]
    for method in ("steer", "stated-value"):
        with debias(pipe, sets, method=method) as attachment:
            calls = []
            for seed in (0, 0, 1):
                attachment.seed = seed
                for _ in range(2):
                    pipe.encode_prompt(prompts, "cpu", 3, False)
                    calls.append(attachment.drawn)
            attachment.generators(SEEDS[: len(prompts)])
            pipe.encode_prompt(prompts, "cpu", 1, False)
            assert attachment.drawn == attachment.values(prompts, SEEDS[: len(prompts)])
            told[method] = [*calls, attachment.drawn]
    assert told["steer"] == told["stated-value"]
    assert told["steer"][0:2] == told["steer"][2:4]


@pytest.mark.parametrize(
    ("method", "prompts", "masked", "error", "message"),
    [
        ({}, SET, True, UnsupportedHostError, r"'stated-value' puts .*a mask goes with them, .* write the words into"),
        ({"shares": {"male": 1.0}}, [SET, TONES], False, InvalidInputError, r"expected one for each of \['male/pale',"),
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


# --- several attributes

# Texts with a place for what they leave open, and which values that is.
OPEN = {
    "A photo of a nurse.": ("A photo of a {tone} {gender} nurse.", "{gender}/{value}"),
    "A photo of an engineer.": ("A photo of a {tone} {gender} engineer.", "{gender}/{value}"),
    "A photo of a female nurse.": ("A photo of a {tone} female nurse.", "{value}"),
    "A photo of a dark-skinned nurse.": ("A photo of a dark-skinned {gender} nurse.", "{gender}"),
    "A photo of a pale woman.": ("A photo of a pale woman.", None),
}


def said(prompts: list[str], drawn: list[str | None]) -> list[str]:
    """What each image of a call should be the image of: every drawn value in words, every stated one as it stands."""
    expected = []
    for place, value in enumerate(drawn):
        text, name = OPEN[prompts[place * len(prompts) // len(drawn)]]
        fits = [
            text.format(tone=word, gender=gender)
            for gender in SET.attributes
            for tone, word in WORDS.items()
            if value == (name and name.format(gender=gender, value=tone))
        ]
        assert len(set(fits)) == 1, (text, value)
        expected.append(fits[0])
    return expected


@pytest.mark.parametrize("sets", [[SET, TONES], [TONES, SET]])
def test_each_image_is_that_of_the_prompt_that_states_both(sets: list[Any]) -> None:
    """The words stand as English has them, whichever set is named first; what a prompt states itself is kept."""
    pipe, prompts = sd(), list(OPEN)
    with debias(pipe, sets, method="stated-value") as attachment:
        found = drawn(pipe, prompts, num_images_per_prompt=2)
        values = [
            value and "/".join(sorted(value.split("/"), key=list(WORDS).__contains__)) for value in attachment.drawn
        ]
    assert [value is None for value in values] == [False] * 8 + [True] * 2
    torch.testing.assert_close(found, drawn(pipe, said(prompts, values)), rtol=1e-4, atol=1e-4)


def test_of_the_images_of_a_call_each_combination_and_each_open_value_has_its_share() -> None:
    pipe, prompts = sd(), list(OPEN)[1:]
    with debias(pipe, [SET, TONES], method="stated-value") as attachment:
        calls = []
        for seed in (7, 7, 8):
            attachment.seed = seed
            pipe.encode_prompt(prompts, "cpu", 20, False)
            calls.append(attachment.drawn)
        by_prompt = [Counter(calls[0][i : i + 20]) for i in range(0, 80, 20)]
        pipe.encode_prompt(prompts[1], "cpu", 3, False)
        few = attachment.drawn
    genders = list(SET.attributes)
    assert by_prompt[0] == {f"{gender}/{tone}": 2 for gender in genders for tone in WORDS}
    assert by_prompt[1:] == [dict.fromkeys(WORDS, 4), dict.fromkeys(genders, 10), {None: 20}]
    assert calls[0] == calls[1] != calls[2]
    assert len(set(few)) == 3, "three images of a prompt that states its gender have three tones"


def test_by_seed_each_block_has_the_shares_whatever_else_a_call_holds() -> None:
    pipe, prompts, seeds = sd(), list(OPEN), list(range(30, 40))
    with debias(pipe, [SET, TONES], method=StatedValue(stratify=10)) as attachment:
        whole = {prompt: attachment.values([prompt] * 10, seeds) for prompt in prompts}
        attachment.generators([seeds[i % 10] for i in range(50)])
        pipe.encode_prompt(prompts, "cpu", 10, False)
        assert attachment.drawn == [value for prompt in prompts for value in whole[prompt]]
        mixed = attachment.values([prompts[i % 5] for i in range(10)], seeds)
    assert mixed == [whole[prompts[i % 5]][i] for i in range(10)]
    genders = list(SET.attributes)
    assert set(whole[prompts[0]]) == {f"{gender}/{tone}" for gender in genders for tone in WORDS}
    assert Counter(whole[prompts[2]]) == dict.fromkeys(WORDS, 2)
    assert Counter(whole[prompts[3]]) == dict.fromkeys(genders, 5)
    assert whole[prompts[4]] == [None] * 10


def test_stated_values_that_are_not_kept_are_drawn_too() -> None:
    pipe, prompt = sd(), "A photo of a female nurse."
    method = StatedValue([{"male": 1.0, "female": 0.0}, {tone: float(tone == "tan") for tone in WORDS}])
    expected = drawn(pipe, ["A photo of a tan male female nurse."])
    fitted = fit_projections(pipe, [SET, TONES], method=method)
    for given, how in [([SET, TONES], method), (fitted, None)]:
        with debias(pipe, given, method=how, keep_stated=False) as attachment:
            assert torch.equal(drawn(pipe, [prompt]), expected)
            assert attachment.drawn == attachment.values([prompt], [0]) == ["male/tan"]


def test_shares_over_some_attributes_are_sums_over_the_others() -> None:
    values = [list(SET.attributes), list(WORDS)]
    joint = {f"{g}/{t}": (i + 1) / 55 for i, (g, t) in enumerate((g, t) for g in values[0] for t in values[1])}
    shares = Shares.of(values, joint)
    assert shares.over([0, 1], values) == shares
    assert shares.over([0], values).shares == pytest.approx((15 / 55, 40 / 55))
    assert shares.over([1], values).shares == pytest.approx([(2 * i + 7) / 55 for i in range(5)])
    assert shares.over([], values) == Shares(((),), ("",), (1.0,))


def test_several_attributes_are_saved_and_a_part_of_them_is_refused(tmp_path: Path) -> None:
    host = TextTable({"a photo": [1.0, 0.0]})
    host.generative = True
    edit: Any = Problem.of(host, [SET, TONES]).fit("stated-value", "joint")
    loaded: Any = load_edit(edit.save_pretrained(tmp_path))
    assert (loaded.attributes, loaded.shares, loaded.provenance) == (edit.attributes, edit.shares, edit.provenance)
    with pytest.raises(InvalidInputError, match=r"expected one of every combination of \[2\] values, got"):
        type(edit).build({}, edit.settings() | {"attributes": edit.settings()["attributes"][:1]}, edit.provenance)


def test_a_value_of_several_words_follows_the_noun_with_the_others_before_it() -> None:
    host = TextTable({"a photo": [1.0, 0.0]})
    host.generative = True
    shares = {"Female/East Asian/old": 1.0}
    names = [list(part.attributes) for part in load_prompts("fairface").parts]
    shares |= {"/".join(one): 0.0 for one in product(*names) if "/".join(one) not in shares}
    edit: Any = Problem.of(host, "fairface").fit(StatedValue(shares), "joint")
    rows = Rows(("A photo of a judge.", "A photo of a female judge."), numbers=(0.5, 0.5))
    assert edit.draw(rows) == ["Female/East Asian/old", "East Asian/old"]
    assert edit.wordings(rows) == [("A photo of an old female judge, East Asian.",)] * 2
