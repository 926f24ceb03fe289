"""Groups: the persons in one picture get different values, and the shares hold over images."""

import itertools
import json
import re
from collections import Counter

import pytest

from vldebias.wording import Balancer, balance_prompts

NUMBERS = ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven"]
NUMBERS += ["twelve"]
WORDS = {"a woman": ("female", 1), "a man": ("male", 1)}
WORDS |= {"one woman": ("female", 1), "one man": ("male", 1)}
for size, number in enumerate(NUMBERS, 2):
    WORDS |= {f"{number} women": ("female", size), f"{number} men": ("male", size)}


def written_counts(prompt: str) -> dict[str, int]:
    """Return the numbers of women and men that a prompt states."""
    mentions = re.findall(r"\b(?:a|[a-z]+) (?:women|men|woman|man)\b", prompt)
    return dict(WORDS[text] for text in mentions if text in WORDS)


@pytest.mark.parametrize("size", range(2, 13))
@pytest.mark.parametrize("digits", [False, True])
def test_a_counted_group_is_mixed_and_even_over_four_images(size, digits):
    number = str(size) if digits else NUMBERS[size - 2]
    out = balance_prompts([f"{number} engineers in a meeting room"] * 4, "gender")
    total = Counter()
    for prompt, value in zip(out.prompts, out.values, strict=True):
        assert prompt.startswith(f"{number} engineers, ")
        assert prompt.endswith(", in a meeting room")
        assert written_counts(prompt) == value
        assert sum(value.values()) == size
        assert abs(value["female"] - value["male"]) <= 1
        total.update(value)
    assert total == {"female": 2 * size, "male": 2 * size}
    assert out.reasons == [None] * 4


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7, 0.95])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_shares_hold_over_the_persons_of_many_images(share, size):
    shares = {"female": share, "male": 1 - share}
    balancer = Balancer("gender", shares=shares, seed=3)
    women = 0
    for _ in range(100):
        (value,) = balancer.next([f"{NUMBERS[size - 2]} cooks at a stove"]).values
        counts = {value: size} if isinstance(value, str) else value
        women += counts.get("female", 0)
    assert abs(women - 100 * share * size) <= 1


@pytest.mark.parametrize(
    ("prompt", "result"),
    [
        ("a team of doctors at work", "a team of doctors, both women and men, at work"),
        ("Nurses on a night shift.", "Nurses, both women and men, on a night shift."),
        ("several people, in the rain", "several people, both women and men, in the rain"),
        ("children in the mud", "children, both girls and boys, in the mud"),
        ("doctors and nurses in a hall", "doctors and nurses, both women and men, in a hall"),
        ("nurses and dogs in a hall", "nurses, both women and men, and dogs in a hall"),
        ("twenty dancers", "twenty dancers, both women and men"),
        ("a team in a meeting room", "a team, both women and men, in a meeting room"),
        ("the film crew on a beach", "the film crew, both women and men, on a beach"),
        ("LAWYERS IN A COURT", "LAWYERS, BOTH WOMEN AND MEN, IN A COURT"),
    ],
)
def test_an_uncounted_group_shows_both(prompt, result):
    out = balance_prompts(prompt, "gender")
    assert out.prompts == [result]
    assert out.values == [{"female": None, "male": None}]


@pytest.mark.parametrize(
    ("prompt", "attribute"),
    [
        ("a couple having breakfast", "gender"),
        ("a family on a hike", "gender"),
        ("a rock band on stage", "gender"),
        ("a crowd at a concert", "gender"),
        ("a crowd of commuters", "gender"),
        ("an audience in a theatre", "gender"),
        ("twins on a swing", "gender"),
        ("a basketball team on a court", "gender"),
        ("grandparents on a porch with their grandchildren", "gender"),
        ("five engineers in a meeting room", "race"),
        ("five engineers in a meeting room", "age"),
        ("five engineers in a meeting room", "skin-tone"),
    ],
)
def test_couples_families_and_other_attributes_of_groups_are_left_unchanged(prompt, attribute):
    out = balance_prompts(prompt, attribute)
    assert (out.prompts, out.values, out.reasons) == ([prompt], [None], ["not plain"])


def test_with_one_value_the_whole_group_has_it():
    shares = {"female": 1, "male": 0}
    out = balance_prompts(["five engineers", "a team of doctors"], "gender", shares=shares)
    assert out.prompts == ["five female engineers", "a team of female doctors"]
    assert out.values == ["female", "female"]


def test_groups_says_what_happens_to_them():
    prompts = ["two doctors in a hall"] * 4
    uniform = balance_prompts(prompts, "gender", people="same")
    assert Counter(uniform.values) == {"female": 2, "male": 2}
    assert set(uniform.prompts) == {"two female doctors in a hall", "two male doctors in a hall"}
    leave = balance_prompts(prompts, "gender", people="leave")
    assert (leave.prompts, set(leave.reasons)) == (prompts, {"not plain"})
    left_unchanged = balance_prompts("two doctors", "gender", shares={"female": 1}, people="leave")
    assert left_unchanged.reasons == ["not plain"]


def test_a_mixture_keeps_its_place_beside_other_sets():
    out = balance_prompts(["three cooks in a kitchen"] * 4, ["age", "gender"])
    for prompt, (age, gender), reasons in zip(out.prompts, out.values, out.reasons, strict=True):
        assert age is None
        assert written_counts(prompt) == gender
        assert reasons == ("not plain", None)


def test_values_can_be_counted_written_to_json_and_written_again():
    out = balance_prompts(["five engineers in a room", "a nurse"] * 4, "gender", seed=1)
    assert sum(Counter(out.values).values()) == 8
    assert json.loads(json.dumps(out.values)) == out.values
    balancer = Balancer("gender")
    again = balancer.write(["five engineers in a room", "a nurse"] * 4, out.values)
    assert again == out.prompts
    mixture = out.values[0]
    assert balancer.write(["five cooks", "four cooks", "a cook"], [mixture] * 3)[1:] == [
        "four cooks",
        "a cook",
    ]


def test_numbers_belong_to_the_noun_behind_them():
    prompts = [
        "two cars and three engineers in a garage",
        "a photo of five very tired engineers",
        "a group of 4 students",
        "two or three cooks at a stove",
    ]
    sizes = []
    for value in balance_prompts(prompts, "gender", seed=0).values:
        counts = list(value.values())
        sizes.append(None if None in counts else sum(counts))
    assert sizes == [3, 5, 4, None]


def test_the_order_of_a_pair_alternates():
    out = balance_prompts(["two doctors in a hall"] * 4, "gender", seed=0)
    orders = Counter(tuple(value) for value in out.values)
    assert orders == dict.fromkeys(itertools.permutations(["female", "male"]), 2)
