"""Other wordings in the place of a pipeline's prompt: the states are those of the wordings, or their mean."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import sd, sdxl

from vldebias import debias, load_prompts
from vldebias.edit import Rows
from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts import TextTable
from vldebias.methods import Problem, Suffix, get_method

SET = load_prompts("professions-gender")
NURSE = "A photo of a nurse."
STATED = "A photo of a female nurse."
WORDED = {
    "suffix": "A photo of a nurse of any gender.",
    "entigen": "A photo of a nurse if all individuals can be a nurse irrespective of their gender.",
}


def drawn(pipe: Any, prompt: str) -> Tensor:
    pipe.set_progress_bar_config(disable=True)
    noise = torch.Generator().manual_seed(0)
    size = {"height": 16, "width": 16, "output_type": "pt"}
    return pipe(prompt, generator=noise, num_inference_steps=2, guidance_scale=3.0, **size).images


def states(pipe: Any, prompt: str) -> list[Tensor]:
    with torch.no_grad():
        return [x for x in pipe.encode_prompt(prompt, device="cpu", num_images_per_prompt=1,
                                              do_classifier_free_guidance=False) if x is not None]  # fmt: skip


@pytest.mark.parametrize("method", list(WORDED))
def test_a_wording_draws_what_its_prompt_draws_bit_for_bit(method: str) -> None:
    pipe = sd()
    expected, bare, stated = drawn(pipe, WORDED[method]), drawn(pipe, NURSE), drawn(pipe, STATED)
    with debias(pipe, SET, method=method):
        assert torch.equal(drawn(pipe, NURSE), expected)
        assert torch.equal(drawn(pipe, STATED), stated)  # left alone
    assert torch.equal(drawn(pipe, NURSE), bare)
    assert not torch.equal(expected, bare)


@pytest.mark.parametrize("made", [sd, sdxl])
def test_each_value_is_the_mean_of_the_states_at_every_place(made: Any) -> None:
    pipe = made()
    values = [states(pipe, f"A photo of a {value} nurse.") for value in ("male", "female")]
    bare = states(pipe, NURSE)
    with debias(pipe, SET, method="each-value") as attachment:
        for own, *both in zip(states(pipe, NURSE), *values, strict=True):
            torch.testing.assert_close(own, (both[0] + both[1]) / 2)
        attachment.strength = 0.5
        for own, start, *both in zip(states(pipe, NURSE), bare, *values, strict=True):
            torch.testing.assert_close(own, start / 2 + (both[0] + both[1]) / 4)


def test_the_attribute_is_that_of_the_set_or_is_given() -> None:
    other = replace(SET, name="people")
    with pytest.raises(InvalidInputError, match=r"people: method 'entigen' says the attribute, expected a name that"):
        get_method("entigen").words(other)
    assert get_method("suffix").words(load_prompts("skin-tone")) == ("{text} of any skin tone",)
    assert Suffix("gender").words(other) == ("{text} of any gender",)
    assert Suffix("gender").settings() == {"attribute": "gender"}


def test_where_states_cannot_be_put_in_the_place_of_others_it_is_said() -> None:
    host = TextTable({NURSE: [1.0, 0.0]})
    host.generative = host.masked = True
    with pytest.raises(UnsupportedHostError, match=r"a mask goes with them, .* write the words into the prompts"):
        Problem.of(host, SET).fit("suffix", "joint")
    edit = Problem.of(TextTable({"a photo": [1.0, 0.0]}), SET).fit("suffix", "joint")
    rows = Rows((NURSE,), embed=lambda texts: torch.ones(1, 2), states=lambda texts: torch.ones(len(texts), 5, 2))
    assert torch.equal(edit(torch.zeros(1, 5, 2), rows=rows), torch.ones(1, 5, 2))
    with pytest.raises(InvalidInputError, match=r"have states \(1, 5, 2\), the prompts \(1, 4, 2\); write the words"):
        edit(torch.zeros(1, 4, 2), rows=rows)
    for nothing in (torch.zeros(0, 5, 2), torch.zeros(0, 2)):
        for none in (Rows((), embed=rows.embed), Rows((), embed=rows.embed, states=rows.states)):
            assert edit(nothing, rows=none) is nothing
