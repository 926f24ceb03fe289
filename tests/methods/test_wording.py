"""Other wordings in the place of a prompt: of a model's embeddings, and of a pipeline's states."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

from diffusers_tiny import sd, sdxl

from vldebias import debias, load_prompts
from vldebias.errors import InvalidInputError
from vldebias.hosts import TextTable
from vldebias.methods import Diagnostics, Problem, get_method
from vldebias.methods.baselines.wording import rewrite_prompt

SET = load_prompts("professions-gender")
NURSE, STATED = "A photo of a nurse.", "A photo of a female nurse."


@pytest.mark.parametrize(
    ("prompt", "words", "expected"),
    [
        ("A photo of a nurse.", "female", "A photo of a female nurse."),
        ("A photo of a engineer", "male", "A photo of a male engineer"),
        ("An engineer.", "male", "A male engineer."),
        ("a picture of the young man", "old", "a picture of the old young man"),
        ("This is a bird.", "in a forest", "This is a bird, in a forest."),
        ("a doctor", "Asian", "an Asian doctor"),
        ("A photo of administrative assistant", "man", "A photo of administrative assistant, man"),
        ("nurses", "male or female", "nurses, male or female"),
        ("the old", "male", "the male old"),
    ],
)
def test_words_are_put_into_a_prompt(prompt: str, words: str, expected: str) -> None:
    assert rewrite_prompt(prompt, words) == expected


def test_the_attribute_is_that_of_the_set_or_is_given() -> None:
    with pytest.raises(InvalidInputError, match=r"people.*method 'suffix'"):
        get_method("suffix").words(replace(SET, name="people"))
    assert get_method("suffix").words(load_prompts("skin-tone")) == ("{text} of any skin tone",)


def test_wordings_are_averaged_and_embeddings_alone_are_refused() -> None:
    host = TextTable({"a photo": [1.0, 0.0]})
    edit = Problem(host, SET).fit("each-value", "joint")
    assert edit.wordings(NURSE) == ("A photo of a male nurse.", STATED)
    z, each = torch.ones(1, 5, 2), torch.stack([torch.zeros(1, 5, 2), torch.full((1, 5, 2), 4.0)], 1)
    torch.testing.assert_close(edit.combined(z, each, 1.0), torch.full((1, 5, 2), 2.0))
    torch.testing.assert_close(edit.combined(z, each, 0.5), torch.full((1, 5, 2), 1.5))
    assert edit(z, 0.0) is z
    with pytest.raises(InvalidInputError, match="attach it with vldebias"):
        edit(z[:, 0])
    with pytest.raises(InvalidInputError, match=r"\(\.\.\., 2\)"):
        edit(torch.ones(3))
    with pytest.raises(InvalidInputError, match="expected one attribute, got 2"):
        Problem(host, [SET, load_prompts("skin-tone")]).fit("each-value", "joint")
    with pytest.raises(InvalidInputError, match="rewrites prompts"):
        Diagnostics.of(host, "joint", edit, SET)


def test_a_table_of_texts_gives_the_mean_of_those_it_holds() -> None:
    stated = ("A photo of a male nurse.", STATED)
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    table = TextTable(dict(zip((NURSE, *stated), rows, strict=True)))
    changed = table.under([NURSE], "joint", Problem(table, SET).fit("each-value", "joint"))
    torch.testing.assert_close(changed[0], normalize(table.embed(stated).mean(0), dim=0))
    with pytest.raises(InvalidInputError, match="A photo of a nurse of any gender"):
        table.under([NURSE], "joint", Problem(table, SET).fit("suffix", "joint"))


def test_an_attached_model_reads_the_wordings_itself() -> None:
    from vldebias.miniature import load_clip

    model, _, tokenizer = load_clip()
    with torch.no_grad():
        stated = [f"A photo of a {value} {job}." for job in ("nurse", "pilot") for value in ("male", "female")]
        rows = normalize(model.encode_text(tokenizer(stated)), dim=1).unflatten(0, (2, 2)).mean(1)
        with debias(model, SET, method="each-value", tokenizer=tokenizer):
            changed = normalize(model.encode_text(tokenizer([NURSE, "A photo of a pilot."])), dim=1)
    torch.testing.assert_close(changed, normalize(rows, dim=1), atol=1e-5, rtol=0)


def drawn(pipe: Any, prompt: str) -> Tensor:
    pipe.set_progress_bar_config(disable=True)
    noise, size = torch.Generator().manual_seed(0), {"height": 16, "width": 16, "output_type": "pt"}
    return pipe(prompt, generator=noise, num_inference_steps=2, guidance_scale=3.0, **size).images


def states(pipe: Any, prompt: str) -> list[Tensor]:
    how = {"device": "cpu", "num_images_per_prompt": 1, "do_classifier_free_guidance": False}
    with torch.no_grad():
        return [x for x in pipe.encode_prompt(prompt, **how) if x is not None]


def test_a_wording_generates_what_its_prompt_generates_bit_for_bit() -> None:
    pipe = sd()
    expected, bare, stated = (drawn(pipe, text) for text in ("A photo of a nurse of any gender.", NURSE, STATED))
    with debias(pipe, SET, method="suffix"):
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
