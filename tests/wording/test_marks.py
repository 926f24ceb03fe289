"""Test `find=`: a mark says who is shown, and lifts the doubts of the rules but nothing else."""

import re

import pytest

from tests.refusals import refused
from vldebias.errors import VldebiasWarning
from vldebias.wording import Balancer, balance_prompts

WEAVER = "a Quorvian weaver"  # left by the rules: "not plain"


def marked(prompt, *nouns, attribute="gender", images=4, **options):
    """Balance copies of a prompt in which the nouns are marked."""
    return balance_prompts(
        [prompt] * images,
        attribute,
        find=lambda text: [text.index(noun) for noun in nouns],
        seed=0,
        **options,
    )


@pytest.mark.parametrize(
    ("prompt", "noun", "results"),
    [
        (WEAVER, "weaver", {"a female Quorvian weaver", "a male Quorvian weaver"}),
        ("a Quorvian person", "person", {"a Quorvian woman", "a Quorvian man"}),
        ("AN ODD (pilot:1.2), ZORB", "pilot", None),
        ("best quality zorb art warrior", "warrior", None),
        ("Zorb, a firefighter's face", "firefighter", None),
    ],
)
def test_a_mark_lifts_doubts(prompt, noun, results):
    assert set(balance_prompts([prompt] * 2, "gender").prompts) == {prompt}
    written = set(marked(prompt, noun).prompts)
    words = [(v.upper() if prompt.isupper() else v) for v in ("female", "male")]
    expected = {re.sub(noun, f"{word} {noun}", prompt) for word in words}
    assert written == (results or expected)


@pytest.mark.parametrize(
    ("prompt", "noun", "reason"),
    [
        ("a Quorvian pregnant weaver", "weaver", "context"),
        ("a Quorvian weaver named Ada Lovelace", "weaver", "named"),
        ("a Quorvian family of four", "family", "not plain"),
        ("the Quorvian police at a gate, weaver", "police", "not plain"),
        ("an audience of Quorvian weavers", "audience", "not plain"),
        ("the Quorvian bones of a human knee", "human", "no person"),
        ('a Zorb sign that says "weaver", pilots', "weaver", "not plain"),
    ],
)
@pytest.mark.parametrize("people", ["mixed", "same"])
def test_facts_names_lettering_and_bodies_of_people_are_left(prompt, noun, reason, people):
    out = marked(prompt, noun, people=people)
    assert set(out.prompts) == {prompt}
    assert all(given.startswith(reason) for given in out.reasons)


def test_marked_groups_are_mixed_and_marked_people_independent():
    (group,) = marked("five Quorvian weavers in a hall", "weavers", images=1).prompts
    assert re.fullmatch(r"five .* weavers, (three|two) \w+ and (three|two) \w+, in a hall", group)
    (team,) = marked("a Quorvian team in a hall, pilots", "team", images=1).prompts
    assert team == "a Quorvian team, both women and men, in a hall, pilots"
    pairs = marked("a Zorb baker and a Florb potter", "baker", "potter").people
    assert {tuple(value for _, value in image) for image in pairs} == {
        (first, second) for first in ("female", "male") for second in ("female", "male")
    }


def test_only_doubtful_prompts_with_a_word_for_a_person_are_asked_about_once():
    asked = []

    def find(prompt):
        asked.append(prompt)

    prompts = [WEAVER, "a nurse", "a woman", "a lake", "a pregnant nurse", "ein Quorvischer Weber"]
    prompts += ["change the nurse's coat", "no weavers, a Quorvian hall", WEAVER]
    balancer = Balancer(["gender", "age"], find=find, seed=0)
    out = balancer.next(prompts)
    balancer.next(prompts)
    # Under age, more prompts are doubtful than under gender.
    assert asked.count(WEAVER) == 1
    assert not {"a nurse", "a lake", *prompts[5:8]} & set(asked)
    by_rules = Balancer(["gender", "age"], seed=0).next(prompts)
    assert out.reasons == by_rules.reasons
    assert out.prompts == by_rules.prompts


def test_a_failure_leaves_its_prompt_says_so_and_is_asked_about_again():
    asked = []

    def find(prompt):
        asked.append(prompt)
        if len(asked) == 1:
            raise TimeoutError("HTTP 504")
        return prompt.index("weaver")

    balancer = Balancer("gender", find=find, seed=0)
    with pytest.warns(VldebiasWarning, match=r"TimeoutError: HTTP 504 \(no answer for 1 of 1"):
        out = balancer.next(["a nurse", WEAVER])
    assert out.reasons == [None, "find: TimeoutError: HTTP 504"]
    assert balancer.next([WEAVER]).reasons == [None]
    assert asked == [WEAVER] * 2


def test_all_answers_for_a_long_list_are_kept_during_its_call(monkeypatch):
    monkeypatch.setattr("vldebias.wording.balance._MOST", 2)
    asked = []
    balance_prompts(
        [f"a Quorvian{'o' * i} weaver" for i in range(5)],
        "gender",
        find=lambda prompt: asked.append(prompt),
    )
    assert len(asked) == 5


@refused(
    (True, "find: got True for 'a Quorvian weaver'; expected the offset of the first letter"),
    ("weaver", "find: got 'weaver'"),
    (-1, "find: got -1"),
    (17, "find: got 17"),
    ([11, 12], r"find: got \[11, 12\]"),  # inside a word
    (0, "find: got 0"),
)
def test_marks_that_are_not_at_a_noun_are_refused(answer):
    balance_prompts([WEAVER], "gender", find=lambda prompt: answer)


def test_one_of_two_people_gets_no_value_alone():
    one = "a Zorb runner passes another in a hall"
    assert set(marked(one, "runner").prompts) == {one}
    two = "one person sings, another person dances"
    assert (
        len(set(balance_prompts([two] * 4, "gender", find=lambda _: [4, 26], seed=0).prompts)) == 4
    )


def test_a_mark_on_an_absent_person_changes_nothing():
    prompt = "a Zorb pilot without a weaver"
    assert set(marked(prompt, "pilot").prompts) != {prompt}
    assert set(marked(prompt, "weaver").prompts) == {prompt}


# ---- placeholders


@pytest.mark.parametrize(
    ("prompt", "result", "reason"),
    [
        ("a {gender} person in a park", "a woman in a park", None),
        ("an {gender} dragon", "a female dragon", None),
        ("A photo, {gender}, smiling", "A photo, female, smiling", None),
        ("A {gender} nurse. {gender}, smiling", "A female nurse. female, smiling", None),
        ("a {gender} nurse beside a man", "a female nurse beside a man", None),
        ("a {gender} engineer and his dog", "an engineer and his dog", "stated"),
        ("an {gender} king", "a king", "stated"),
        ("a {gender} pregnant nurse", "a pregnant nurse", "context: pregnant"),
        ("a {gender} CEO named Alex Smith", "a CEO named Alex Smith", "named"),
    ],
)
def test_a_placeholder_is_a_mark_and_is_removed_if_its_person_is_not_open(prompt, result, reason):
    out = balance_prompts(prompt, "gender", shares={"female": 1})
    assert (out.prompts, out.reasons) == ([result], [reason])


def test_placeholders_mix_groups_and_give_people_independent_values():
    out = balance_prompts(["a {gender} cook and a {gender} waiter"] * 4, "gender", seed=0)
    assert len(set(out.prompts)) == 4
    same = balance_prompts(["a {gender} cook. The {gender} cook smiles"] * 2, "gender", seed=0)
    assert {text.count("female") for text in same.prompts} == {0, 2}
    assert balance_prompts("a {gender} team", "gender").prompts == ["a team, both women and men"]
    (both,) = balance_prompts("a {age} {gender} nurse", ["gender", "age"], seed=0).people
    assert [noun for noun, _ in both] == ["nurse"]


@pytest.mark.parametrize("name", ["{age}", "{sex}", "{gendr}", "$gender", "[gender]"])
def test_a_placeholder_that_nobody_fills_is_warned_about(name):
    with pytest.warns(VldebiasWarning, match=re.escape(f"{name} in ") + ".*balances: gender"):
        balance_prompts(f"a {name} welder", "gender")


def test_weights_and_variables_of_other_tools_are_not_warned_about():
    for name in ("{detailed}", "{{gender}}", "${gender}", "[[gender]]", "$10"):
        balance_prompts(f"a {name} welder", "gender")
