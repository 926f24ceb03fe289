"""Test neutral words in place of stated values, in captions and alt texts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from vldebias import neutral_texts
from vldebias.cli import app
from vldebias.prompts.english.words import has_gendered
from vldebias.wording.english.text import read_text

CASES = (
    # nouns, with their article, number and capitals
    ("a man riding a wave on a surfboard", "a person riding a wave on a surfboard"),
    ("Two girls clasp hands.", "Two children clasp hands."),
    ("A MAN ON A BENCH", "A PERSON ON A BENCH"),
    ("A waitress and a fireman", "A server and a firefighter"),
    ("the man's hat", "the person's hat"),
    ("a group of businessmen", "a group of businesspeople"),
    ("a bride and groom cut their cake", "two newlyweds cut their cake"),
    # pronouns and the verb of their subject
    ("A woman and her dog", "A person and their dog"),
    ("A ball flies over her.", "A ball flies over them."),
    ("A man in his kitchen as he cooks", "A person in their kitchen as they cook"),
    ("she's smiling at herself", "they're smiling at themselves"),
    ("She was tired.", "They were tired."),
    ("A man has his or her hands up", "A person has their hands up"),
    # adjectives and nouns before a noun for a person
    ("a female cyclist", "a cyclist"),
    ("a female softball player", "a softball player"),
    ("A woman doctor", "A doctor"),
    ("an actress", "an actor"),
    ("Female skier.", "Skier."),
    ("a baby girl on a bed", "a baby on a bed"),
    ("Teenage boys play.", "Teenagers play."),
    ("a women's match", "a match"),
    # people who have the same description afterwards
    ("A man and a woman kissing", "Two people kissing"),
    ("The man and woman are here.", "The two people are here."),
    ("A man talks to a woman.", "A person talks to another person."),
    ("men and women in suits", "people in suits"),
    ("A little boy and girl", "Two little children"),
    ("A little boy and a woman", "A little child and a person"),
    # nouns that do not agree with the words before them
    ("A few girls wave.", "A few children wave."),
    ("A girls soccer game", "A soccer game"),
    # brackets
    ("[Boy at a window]", "[Child at a window]"),
)
KEPT = (
    "Ada and her dog",
    "Ada Smith, a mother of two, with her dog",
    "Jesse Waller works here. He's a Georgia man who knows his guns.",
    'a sign that says "men at work"',
    "A dog with his ball",
    "a king size bed",
    "a grandfather clock",
    "a doberman on a sofa",
    "a first baseman catches the ball",
    "a person with an old dog",
    "Eine Frau fährt Rad.",
    "",
)


@pytest.mark.parametrize(("text", "neutral"), CASES)
def test_genders_become_neutral_words(text: str, neutral: str) -> None:
    assert neutral_texts(text) == [neutral]


@pytest.mark.parametrize("text", KEPT)
def test_names_quotations_animals_and_things_stay(text: str) -> None:
    assert neutral_texts([text]) == [text]


def test_only_unnamed_people_become_neutral() -> None:
    assert neutral_texts("Ada and her brother watch a man.") == [
        "Ada and her sibling watch a person."
    ]


@pytest.mark.parametrize(
    ("attribute", "text", "neutral"),
    [
        ("age", "an old man and a young girl", "a man and a girl"),
        ("age", "a woman in her forties at a desk", "a woman at a desk"),
        ("race", "A black man with a white dog", "A man with a white dog"),
    ],
)
def test_words_for_other_attributes_are_removed(attribute: str, text: str, neutral: str) -> None:
    assert neutral_texts(text, attribute) == [neutral]


@given(st.lists(st.sampled_from([text for text, _ in CASES]), max_size=3))
def test_neutral_texts_state_no_gender_and_stay_the_same(texts: list[str]) -> None:
    first = neutral_texts(texts)
    assert not any(has_gendered(read_text(text).low) for text in first)
    assert neutral_texts(first) == first


def test_the_command_prints_neutral_and_original_texts() -> None:
    lines = "A man and his dog\nA dog\n"
    done = CliRunner().invoke(app, ["prompts", "neutral", "-"], input=lines)
    assert done.stdout.splitlines()[1] == "A person and their dog\tA man and his dog"
    assert "Changed 1 of 2 texts" in done.stderr
    listed = CliRunner().invoke(app, ["prompts", "neutral", "-", "--json"], input=lines)
    assert json.loads(listed.stdout)[1] == {"neutral": "A dog", "original": "A dog"}
