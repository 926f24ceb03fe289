"""Test prompts as people write them for image generators, by kind of mistake."""

import re

import pytest

from vldebias.wording import balance_prompts


def changed(prompt: str, attribute: str = "gender") -> list[str]:
    """Return the changed versions of a prompt, of which there are none if it stays unchanged."""
    balanced = balance_prompts([prompt] * 4, attribute, seed=0).prompts
    return [text for text in balanced if text != prompt]


def reason(prompt: str, attribute: str = "gender") -> str:
    return balance_prompts(prompt, attribute, seed=0).reasons[0]


@pytest.mark.parametrize(
    "prompt",
    [
        "a florist behind a counter --n a king, blurry --w 640 --s 30",
        "portrait of a potter --n girl, extra fingers --d 7",
        "a guard at a gate --n an old sailor, a clerk",
    ],
)
def test_nothing_is_written_into_the_negative_prompt_of_sd_scripts(prompt: str) -> None:
    negative = prompt.split("--n", 1)[1]
    texts = changed(prompt)
    assert texts
    assert {text.split("--n", 1)[1] for text in texts} == {negative}


def test_the_prompts_for_the_faces_repeat_the_values_of_the_people() -> None:
    prompt = "a cook and a singer on a stage [SEP] close-up of a cook [SEP] close-up of a singer"
    texts = changed(prompt)
    assert len(set(texts)) > 1
    for text in texts:
        values = {noun: set(re.findall(rf"(\w+) {noun}", text)) for noun in ("cook", "singer")}
        assert [len(words) for words in values.values()] == [1, 1]


def test_a_tag_for_a_girl_is_a_person_for_race() -> None:
    assert changed("1girl, raincoat, umbrella", "race")
    assert reason("1girl, raincoat, umbrella") == "stated"


def test_the_same_person_in_other_words_stays_unchanged() -> None:
    assert not changed("a policeman on a horse, the rider waves")


def test_a_giant_before_another_adjective_is_a_size() -> None:
    assert not changed("a giant smooth vase in a garden")
    assert changed("a giant smiling at a village")


@pytest.mark.parametrize("attribute", ["race", "age"])
def test_plurals_and_possessives_of_gendered_and_young_nouns(attribute: str) -> None:
    assert reason("tired businessmen on a train", attribute) == "not plain"
    assert reason("a child's face at a window", "age") == "stated"


def test_a_woman_in_json_is_latina() -> None:
    shares = {
        value: float(value == "Latino") for value in ("White", "Black", "Asian", "Indian", "Latino")
    }
    balanced = balance_prompts('{"subject": "a woman"}', "race", shares=shares)
    assert balanced.prompts == ['{"subject": "a Latina woman"}']
