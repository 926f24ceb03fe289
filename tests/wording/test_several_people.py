"""Test several people in one picture: each gets a separate value."""

import itertools
from collections import Counter

import pytest

from vldebias.wording import Balancer, balance_prompts
from vldebias.wording.english.people import find_persons

PAIR = "a doctor and a nurse"
VALUES = ("female", "male")


def values_of(people):
    """Return the values of the people in an image."""
    return tuple(value for _, value in people)


@pytest.mark.parametrize("seed", range(5))
def test_the_values_of_several_people_are_crossed_evenly(seed):
    out = balance_prompts([PAIR] * 4, "gender", seed=seed)
    assert set(map(values_of, out.people)) == set(itertools.product(VALUES, VALUES))
    for prompt, people in zip(out.prompts, out.people, strict=True):
        (doctor, first), (nurse, second) = people
        assert (doctor, nurse) == ("doctor", "nurse")
        assert prompt == f"a {first} doctor and a {second} nurse"
    assert out.values == [people[0][1] for people in out.people]


@pytest.mark.parametrize("share", [0.25, 0.5, 0.9])
def test_shares_hold_for_each_person_over_calls_of_one_image(share):
    balancer = Balancer("gender", shares={"female": share, "male": 1 - share}, seed=1)
    images = [balancer.next([PAIR]).people[0] for _ in range(40)]
    for person in range(2):
        counts = Counter(image[person][1] for image in images)
        assert counts["female"] == pytest.approx(40 * share, abs=1)


def test_values_of_several_people_by_index_are_even_and_stateless():
    balancer = Balancer("gender", seed=3)
    images = [balancer.at(PAIR, index) for index in (5, 4, 7, 6)]
    assert {values_of(image.people[0]) for image in images} == set(
        itertools.product(VALUES, VALUES)
    )
    assert balancer.at(PAIR, 4) == images[1]


def test_a_stated_person_does_not_affect_the_others():
    out = balance_prompts("a nurse and a male patient", ["gender", "age"], seed=0)
    (nurse, patient) = out.people[0]
    assert None not in nurse[1]
    assert patient[1][0] is None
    assert patient[1][1] is not None


def test_the_first_four_people_get_a_value():
    prompt = "a chef, a waiter, a guest, a singer and a driver"
    out = balance_prompts(prompt, "gender", seed=0)
    assert [noun for noun, _ in out.people[0]] == ["chef", "waiter", "guest", "singer"]


def test_strength_is_the_share_of_images_and_not_of_people():
    out = Balancer("gender", seed=0, strength=0.5).next([PAIR] * 8)
    assert Counter(map(len, out.people)) == {0: 4, 2: 4}
    assert Counter(out.reasons) == {None: 4, "strength": 4}


def test_a_person_has_the_same_value_in_all_texts_of_an_image():
    texts = [[PAIR, "a nurse, soft light"]] * 4
    written, balanced = Balancer("gender", seed=0).next_texts(texts)
    for (first, second), people in zip(written, balanced.people, strict=True):
        doctor, nurse = values_of(people)
        assert first == f"a {doctor} doctor and a {nurse} nurse"
        assert second == f"a {nurse} nurse, soft light"


def test_given_values_are_inserted_next_to_each_person():
    balancer = Balancer("gender")
    assert balancer.write([PAIR], [["female", "male"]]) == ["a female doctor and a male nurse"]
    assert balancer.write([PAIR], [["female"]]) == ["a female doctor and a nurse"]
    assert balancer.write([PAIR], [[None, "male"]]) == ["a doctor and a male nurse"]
    assert balancer.write([PAIR], ["female"]) == ["a female doctor and a nurse"]
    assert balancer.write([PAIR], [None]) == [PAIR]


@pytest.mark.parametrize("prompt", [PAIR, "a nurse and a male patient", "five engineers"])
@pytest.mark.parametrize("sets", ["gender", ["gender", "age"]])
def test_the_people_in_a_result_reproduce_its_prompts(sets, prompt):
    balancer = Balancer(sets, seed=0)
    out = balancer.next([prompt] * 4)
    values = [list(values_of(people)) for people in out.people]
    assert balancer.write([prompt] * 4, values) == out.prompts


def test_facts_are_not_looked_up_for_people_who_do_not_get_a_value(monkeypatch):
    read = []
    monkeypatch.setattr(
        "vldebias.wording.english.reading.words_of_fact",
        lambda text, start, end, kind: read.append(text[start:end]) or "",
    )
    nouns = ["cook", "waiter", "guest", "singer"]
    prompt = " and ".join(f"a {noun}" for noun in [*nouns, "driver", "judge", "pilot", "nurse"])
    out = balance_prompts(prompt, "gender", seed=0)
    assert [noun for noun, _ in out.people[0]] == nouns
    assert [text.split()[-1] for text in read] == nouns


def test_a_general_noun_takes_the_value_next_to_those_of_other_attributes() -> None:
    both = balance_prompts("Portrait of a person", ["gender", "age"], seed=0)
    assert both.prompts[0] in {
        f"Portrait of {word} {noun}" for word in ("a young", "an old") for noun in ("woman", "man")
    }


@pytest.mark.parametrize(
    ("caption", "n_people"),
    [
        ("a portrait of a sailor, soft light", 1),
        ("a dog trainer with a puppy", 1),
        ("a fox warrior on a hill", 0),
        ("a statue of a sailor", 0),
    ],
)
def test_people_in_captions_are_found_apart_from_animals_and_statues(caption, n_people):
    assert len(find_persons(caption)) == n_people
