"""Test the sentence that asks an image editor to keep the person."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vldebias import keep_person
from vldebias.wording.keep import ASPECTS, asked_changes

EVERYTHING = "skin tone, facial features, apparent age and gender"


@pytest.mark.parametrize(
    "text",
    [
        "Put him in a navy suit",
        "Make the old man smile",
        "Make the jacket black",
        "Change the white shirt to a black one",
        "Move the man closer to the woman",
        "Make him hold a baby",
        "Show this woman as a firefighter",
        'Change the text on the sign to "Black Friday"',
        "Make the man's shirt match the woman's skirt",
        "Remove the shadow from her face",
        "Turn the man so that he faces the camera",
        "Make the sky darker",
    ],
)
def test_an_instruction_about_something_else_asks_to_keep_everything(text: str) -> None:
    kept = keep_person(text)
    assert kept.prompt == f"{text}; keep the person's {EVERYTHING} as in the photo"
    assert kept.reason is None


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Make her older", {"apparent age"}),
        ("Turn the singer's son into a grown man", {"gender", "apparent age"}),
        ("make the firefighter a woman", {"gender"}),
        ("Give him a tan", {"skin tone"}),
        ("Make the man black", {"skin tone"}),
        ("She should be Black", {"skin tone"}),
        ("Add wrinkles and grey hair", {"apparent age"}),
        ("Make my nose smaller", {"facial features"}),
        ("What if she had been born a boy?", {"gender", "apparent age"}),
        ("Brighten his face", {"skin tone", "facial features", "apparent age"}),
        ("Replace the tourist with an old woman", set(ASPECTS)),
        ("Turn him into Batman", set(ASPECTS)),
        ("make me look like George Clooney", set(ASPECTS)),
        ("anime style please", set(ASPECTS)),
    ],
)
def test_what_an_instruction_asks_to_change_is_left_out(text: str, asked: set[str]) -> None:
    assert asked_changes(text) == asked
    kept = keep_person(text)
    assert not any(aspect in kept.sentence for aspect in asked)
    assert kept.prompt == text + kept.sentence
    named = [aspect for aspect in ASPECTS if aspect in (kept.reason or "")]
    assert set(named) == asked


def test_features_are_not_kept_if_age_or_gender_changes() -> None:
    assert keep_person("Make her older").sentence == (
        "; keep the person's skin tone and gender as in the photo"
    )
    assert "facial features" in keep_person("Give him a tan").sentence


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "empty"), ("  ", "empty"), ("把背景换成海滩", "not in English")],
)
def test_other_texts_stay_unchanged_with_a_reason(text: str, reason: str) -> None:
    assert keep_person(text) == (text, "", reason)


def test_a_sentence_is_followed_by_a_sentence() -> None:
    assert keep_person("Add a hat.").prompt == (
        f"Add a hat. Keep the person's {EVERYTHING} as in the photo."
    )


@given(st.sampled_from(["Add a hat", "Add a hat.", "Make her older", "Swap the faces", "!"]))
def test_the_sentence_is_added_once(text: str) -> None:
    once = keep_person(text).prompt
    assert keep_person(once).prompt == once


@given(st.text(max_size=60))
def test_the_instruction_itself_never_changes(text: str) -> None:
    kept = keep_person(text)
    assert kept.prompt == text + kept.sentence
    assert kept.sentence or kept.reason


@pytest.mark.parametrize("person", ["man", "woman", "Black man", "old woman", "young Indian girl"])
def test_everybody_gets_the_same_words(person: str) -> None:
    kept = keep_person(f"Put the {person} in front of a library")
    assert kept.sentence == f"; keep the person's {EVERYTHING} as in the photo"
