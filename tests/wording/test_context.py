"""Test facts that fix a value: a listed word in the phrase or in the scene, or a date."""

import pytest

from vldebias.prompts import load_prompts, make_prompt_set
from vldebias.prompts.attribute import Attribute
from vldebias.wording import balance_prompts
from vldebias.wording.english.context import words_of_fact
from vldebias.wording.reasons import reason_in_words

SETS = {"gender": "gender", "origin": "race", "skin": "skin-tone", "age": "age"}


@pytest.mark.parametrize(
    ("kind", "prompt", "fact"),
    [
        ("gender", "a pregnant surgeon in a ward", "pregnant"),
        ("gender", "a Roman soldier", "Roman soldier"),
        ("gender", "a Zulu warrior", "a Zulu warrior"),
        ("gender", "a soldier on a bridge in 1916", "1916"),
        ("gender", "a knight in medieval armor", "medieval"),
        ("gender", "a goalkeeper in the Bundesliga", "Bundesliga"),
        ("origin", "a Kenyan runner", "Kenyan"),
        ("origin", "a clerk in the 1890s", "1890s"),
        ("skin", "a nurse with vitiligo", "vitiligo"),
        ("age", "a student at a high school", "student"),
        ("age", "a nurse in her forties", "her forties"),
    ],
)
def test_a_fact_leaves_the_prompt_unchanged_and_is_the_reason(kind, prompt, fact):
    assert balance_prompts(prompt, SETS[kind]).prompts == [prompt]
    assert words_of_fact(prompt, 0, len(prompt), kind) == fact


@pytest.mark.parametrize(
    ("kind", "prompt"),
    [
        ("gender", "a soldier in a snowy forest"),
        ("gender", "a warrior with an axe"),
        ("gender", "a German engineer at a desk"),
        ("gender", "a jazz singer in 1985"),
        ("origin", "an American nurse"),
        ("origin", "a tourist in Tokyo"),
        ("age", "a nurse next to a doctor"),
    ],
)
def test_an_ordinary_person_gets_a_value(kind, prompt):
    assert balance_prompts(prompt, SETS[kind]).prompts != [prompt]


@pytest.mark.parametrize(
    ("kind", "name"),
    [*SETS.items(), ("origin", "fairface-race"), ("gender", "celeba")],
)
def test_an_attribute_is_known_by_the_words_of_its_values(kind, name):
    assert Attribute(load_prompts(name), {}, "mixed").kind == kind


def test_a_prompt_that_is_fixed_is_left_unchanged_for_that_attribute_only():
    prompt = "a pregnant surgeon in a ward"
    assert balance_prompts(prompt, "gender").reasons == ["context: pregnant"]
    assert balance_prompts(prompt, "race").reasons == [None]


def test_the_words_that_fix_the_value_are_quoted_in_messages():
    assert reason_in_words("context: Roman soldier") == 'only one value fits "Roman soldier"'


def test_nothing_is_fixed_for_an_attribute_without_facts():
    blind = make_prompt_set(
        name="sight",
        attribute={"blind": ["blind"], "sighted": ["sighted"]},
        templates=["a photo of a {attribute} {concept}"],
        concepts=["cook", "nurse"],
    )
    assert balance_prompts("a pregnant surgeon in a ward", blind).reasons == [None]
