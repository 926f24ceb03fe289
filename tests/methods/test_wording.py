"""Test alternative wordings of a prompt and their mean; attaching them is tested in tests/hosts."""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

from vldebias import load_prompts
from vldebias.errors import InvalidInputError
from vldebias.hosts import TextTable
from vldebias.methods import Diagnostics, Problem, get_method
from vldebias.methods.baselines.wording import rewrite_prompt

SET = load_prompts("professions-gender")
NURSE = "A photo of a nurse."
STATED = "A photo of a female nurse."


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
def test_words_are_inserted_into_a_prompt(prompt: str, words: str, expected: str) -> None:
    assert rewrite_prompt(prompt, words) == expected


def test_the_attribute_is_derived_from_the_set_name() -> None:
    with pytest.raises(InvalidInputError, match=r"people.*method 'suffix'"):
        get_method("suffix").words(replace(SET, name="people"))
    assert get_method("suffix").words(load_prompts("skin-tone")) == ("{text} of any skin tone",)


def test_wordings_are_averaged_and_embeddings_without_prompts_are_rejected() -> None:
    host = TextTable({"a photo": [1.0, 0.0]})
    edit = Problem(host, SET).fit("each-value", "text")
    assert edit.wordings(NURSE) == ("A photo of a male nurse.", STATED)
    z = torch.ones(1, 5, 2)
    wordings = torch.stack([torch.zeros(1, 5, 2), torch.full((1, 5, 2), 4.0)], 1)
    torch.testing.assert_close(edit.combined(z, wordings, 1.0), torch.full((1, 5, 2), 2.0))
    torch.testing.assert_close(edit.combined(z, wordings, 0.5), torch.full((1, 5, 2), 1.5))
    large = torch.full((1, 2), 6e4).half()
    got = edit.combined(large, torch.tensor([[[1.0, 0.0], [3.0, 0.0]]]).half(), 1.0, unit=True)
    assert torch.equal(got, torch.tensor([[65504.0, 0.0]]).half())  # 84,853 without the limit
    assert edit(z, 0.0) is z
    with pytest.raises(InvalidInputError, match="attach it with vldebias"):
        edit(z[:, 0])
    with pytest.raises(InvalidInputError, match=r"\(\.\.\., 2\)"):
        edit(torch.ones(3))
    with pytest.raises(InvalidInputError, match="expected one attribute, got 2"):
        Problem(host, [SET, load_prompts("skin-tone")]).fit("each-value", "text")
    with pytest.raises(InvalidInputError, match="rewrites prompts"):
        Diagnostics.from_edit(host, "text", edit, SET)


def test_a_table_of_texts_averages_the_wordings_it_contains() -> None:
    stated = ("A photo of a male nurse.", STATED)
    rows = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    table = TextTable(dict(zip((NURSE, *stated), rows, strict=True)))
    changed = table.under([NURSE], "text", Problem(table, SET).fit("each-value", "text"))
    torch.testing.assert_close(changed[0], normalize(table.embed(stated).mean(0), dim=0))
    with pytest.raises(InvalidInputError, match="A photo of a nurse of any gender"):
        table.under([NURSE], "text", Problem(table, SET).fit("suffix", "text"))
