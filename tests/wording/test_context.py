"""Test facts in a prompt that fix a value: each rule on its own examples."""

import pytest

from tests.wording.look_alikes import LOOK_ALIKES
from vldebias.prompts import load_prompts, make_prompt_set
from vldebias.prompts.attribute import Attribute
from vldebias.wording import balance_prompts
from vldebias.wording.english.context import KINDS, RULES, find_rules
from vldebias.wording.english.people import find_subjects
from vldebias.wording.reasons import reason_in_words

SETS = {"gender": "gender", "origin": "race", "skin": "skin-tone", "age": "age"}
NAMES = [f"{rule.kind}: {rule.fixed}" for rule in RULES]


def rules_of(prompt, kind):
    """Return the rules of the given kind that apply to a prompt, or None if it has no subject."""
    subjects = find_subjects(prompt)
    if isinstance(subjects, str):
        return None
    subject = subjects[0]
    return find_rules(prompt, subject.start, subject.end, kind)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_each_rule_applies_to_its_example(rule):
    assert rule in rules_of(rule.fixed, rule.kind)
    assert balance_prompts(rule.fixed, SETS[rule.kind]).prompts == [rule.fixed]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_no_rule_applies_to_a_prompt_that_looks_like_its_example(rule):
    assert rules_of(LOOK_ALIKES[rule.fixed], rule.kind) == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [*SETS.items(), ("origin", "fairface-race"), ("gender", "celeba")],
)
def test_an_attribute_is_known_by_the_words_of_its_values(kind, name):
    assert Attribute(load_prompts(name), {}, "mixed").kind == kind


def test_a_prompt_that_is_fixed_is_left_unchanged_for_that_attribute_only():
    prompt = "a Catholic bishop blessing the crowd"
    assert balance_prompts(prompt, "gender").reasons == ["context: Catholic bishop"]
    assert balance_prompts(prompt, "race").reasons == [None]
    assert [kind for kind in KINDS if find_rules(prompt, 2, 17, kind)] == ["gender"]


@pytest.mark.parametrize(
    ("prompt", "name", "reason"),
    [
        ("a pregnant surgeon in a ward", "gender", "context: pregnant"),
        ("a soldier on a bridge in 1916", "gender", "context: soldier ... 1916"),
        ("a goalkeeper in the Bundesliga", "age", "context: goalkeeper ... Bundesliga"),
        # Either word alone would fix the value.
        ("un prêtre catholique à l'autel", "gender", "context: prêtre catholique"),
        ("カトリックの司祭", "gender", "context: 司祭"),
    ],
)
def test_a_reason_names_the_words_that_fix_the_value(prompt, name, reason):
    assert balance_prompts(prompt, name).reasons == [reason]


def test_the_words_that_fix_the_value_are_quoted_in_messages():
    assert reason_in_words("context: soldier ... 1916") == 'only one value fits "soldier ... 1916"'


def test_nothing_is_fixed_for_an_attribute_without_facts():
    blind = make_prompt_set(
        name="sight",
        attribute={"blind": ["blind"], "sighted": ["sighted"]},
        templates=["a photo of a {attribute} {concept}"],
        concepts=["cook", "nurse"],
    )
    assert balance_prompts("a Catholic bishop blessing the crowd", blind).reasons == [None]
