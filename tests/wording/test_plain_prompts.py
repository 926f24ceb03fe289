"""Test plain prompts, as people type them into products: bare nouns, requests and typing errors."""

import pytest

from vldebias.wording import balance_prompts

FEMALE = {"female": 1.0, "male": 0.0}


def written(prompt: str) -> str:
    return balance_prompts(prompt, "gender", shares=FEMALE).prompts[0]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("a guide with hikers", "a female guide with hikers, both women and men"),
        (
            "a conductor and violinists on stage",
            "a female conductor and violinists, both women and men, on stage",
        ),
        ("a couple of bakers at dawn", "a couple of bakers, a woman and a man, at dawn"),
        (
            "a trainer praising his gymnasts",
            "a trainer praising his gymnasts, both women and men",
        ),
    ],
)
def test_a_group_behind_a_person_is_mixed(prompt: str, text: str) -> None:
    texts = balance_prompts([prompt] * 2, "gender", seed=0).prompts
    assert text in {option.replace(" male ", " female ") for option in texts} | {
        option.replace("a man and a woman", "a woman and a man") for option in texts
    }


def test_spanish_stays_spanish() -> None:
    text = written("dentista revisando a un paciente, luz de tarde")
    assert "mulher" not in text
    assert text != "dentista revisando a un paciente, luz de tarde"


@pytest.mark.parametrize(
    "prompt",
    ["a main character. A tall sailor with a hat"],
)
def test_a_person_who_may_be_described_again_has_one_value(prompt: str) -> None:
    text = balance_prompts(prompt, "age", shares={"old": 1.0}).prompts[0]
    assert text.count("old") <= 1


def test_the_age_of_a_little_child_is_known() -> None:
    prompts = ["a couple hugging their little daughter"] * 2
    assert balance_prompts(prompts, "age", seed=0).prompts == prompts


@pytest.mark.parametrize("group", ["vampire judges", "pirate captains", "a few passersby"])
def test_a_plural_behind_a_noun_is_a_group_and_no_verb(group: str) -> None:
    texts = balance_prompts([f"{group} on a quay"] * 2, "gender", seed=0).prompts
    assert texts == [f"{group}, both women and men, on a quay"] * 2
