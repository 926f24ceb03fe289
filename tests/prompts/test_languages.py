"""Balanced prompts in other languages: labelled prompts of our own, and laws of all languages."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.prompts.dutch import Dutch
from vldebias import balance_prompts
from vldebias.prompts import make_prompt_set
from vldebias.prompts.languages import (
    CODES,
    language_of,
    register_language,
    unregister_language,
)

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "languages"
IMAGES = 12
# A cook who is named can be of a stated gender as well; without a person the language may be open.
REASONS = {
    "stated": ("stated", "named"),
    "named": ("named", "stated"),
    "none": ("no person", "language"),
    "group": ("group",),
    "context": ("context",),
}
READ = [code for code in CODES if code != "en"]


def labelled(code):
    rows = []
    for line in (FOLDER / f"{code}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            label, prompt, *texts = [part.strip() for part in line.split(" | ")]
            rows.append((label, prompt, tuple(texts)))
    return rows


@pytest.mark.parametrize("code", READ)
def test_open_prompts_are_written_with_both_values(code):
    missed = []
    for label, prompt, texts in labelled(code):
        if label != "open":
            continue
        balanced = balance_prompts([prompt] * IMAGES, "gender", seed=0)
        written = set(balanced.prompts)
        is_mixed = any(isinstance(value, Mapping) for value in balanced.values)
        is_written = prompt not in written and (is_mixed or len(written) > 1)
        if not is_written or not set(texts) <= written:
            missed.append((prompt, sorted(written)))
    assert not missed


@pytest.mark.parametrize("code", READ)
def test_what_states_names_or_shows_nobody_is_left_alone(code):
    wrong = []
    for label, prompt, _ in labelled(code):
        if label == "open":
            continue
        balanced = balance_prompts(prompt, "gender", seed=0)
        if balanced.prompts != [prompt] or not balanced.reasons[0].startswith(REASONS[label]):
            wrong.append((label, prompt, balanced.prompts, balanced.reasons))
    assert not wrong


@pytest.mark.parametrize("code", READ)
def test_sets_of_labelled_prompts_have_enough_of_each_kind(code):
    rows = labelled(code)
    assert len(rows) >= 60
    assert {"open", "stated", "named", "none", "group", "context"} <= {row[0] for row in rows}


@pytest.mark.parametrize("code", READ)
def test_every_prompt_is_read_by_its_language(code):
    for label, prompt, _ in labelled(code):
        if label == "open":
            assert language_of(prompt).code == code, prompt


@pytest.mark.parametrize("code", READ)
def test_what_was_written_is_stated_and_left_alone(code):
    for label, prompt, _ in labelled(code):
        if label != "open":
            continue
        for text in set(balance_prompts([prompt] * IMAGES, "gender", seed=0).prompts):
            again = balance_prompts(text, "gender", seed=0)
            assert again.prompts == [text], prompt


@pytest.mark.parametrize("code", READ)
def test_age_and_gender_are_written_together(code):
    written = 0
    for label, prompt, _ in labelled(code):
        if label != "open":
            continue
        ages = balance_prompts([prompt] * IMAGES, ["gender", "age"], seed=0)
        for text, (gender, age) in zip(ages.prompts, ages.values, strict=True):
            assert (text == prompt) == (gender is None and age is None)
        written += ages.values[0][1] is not None
    assert written >= 10


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("A nurse in 東京, film grain", "English"),
        ("一位护士, masterpiece, best quality, 4k, highly detailed", "Chinese"),
        ("een dokter in het ziekenhuis", "Dutch"),
        ("Лікар у лікарні", "Ukrainian"),
        ("پزشک در بیمارستان", "Persian"),
        ("Rio de Janeiro carnival dancer", "English"),
        ("doctor, 4k", "English"),
    ],
)
def test_the_language_is_that_of_the_person(prompt, name):
    assert language_of(prompt).name == name


def test_a_language_that_is_not_read_is_named():
    balanced = balance_prompts("een dokter in het ziekenhuis", "gender")
    assert balanced.reasons == ["language: Dutch"]


def test_a_set_of_ones_own_gives_its_words():
    attribute = {"blind": ["blind"], "sighted": ["sighted"]}
    words = {"blind": "blind", "sighted": "sehend"}
    bare = make_prompt_set("sight", attribute, ["cook"], adjectives={v: v for v in attribute})
    assert balance_prompts("Ein Arzt im Krankenhaus", bare).reasons == ["no word"]
    adjectives = {value: value for value in attribute}
    made = make_prompt_set(
        "sight", attribute, ["cook"], adjectives=adjectives, languages={"de": words}
    )
    written = set(balance_prompts(["Ein Arzt im Krankenhaus"] * 2, made, seed=0).prompts)
    assert written == {"Ein blinder Arzt im Krankenhaus", "Ein sehender Arzt im Krankenhaus"}
    assert balance_prompts("Ein blind Arzt", made).reasons == ["stated"]


def test_markup_stays_as_it_is():
    prompt = "<lora:film:0.8> (ein Arzt:1.2) im Krankenhaus, masterpiece"
    written = set(balance_prompts([prompt] * 4, "gender", seed=0).prompts)
    assert written == {
        "<lora:film:0.8> (eine Ärztin:1.2) im Krankenhaus, masterpiece",
        "<lora:film:0.8> (ein männlicher Arzt:1.2) im Krankenhaus, masterpiece",
    }


def test_an_eleventh_language_is_a_class():
    prompt = "een foto van een dokter en een kok"
    assert balance_prompts(prompt, "gender").reasons == ["language: Dutch"]
    register_language(Dutch())
    try:
        written = set(balance_prompts([prompt] * 12, "gender", seed=0).prompts)
        stated = balance_prompts("een vrouwelijke dokter", "gender").reasons
        no_word = balance_prompts(prompt, "age").reasons
    finally:
        unregister_language("nl")
    assert written == {
        "een foto van een vrouwelijke dokter en een vrouwelijke kok",
        "een foto van een vrouwelijke dokter en een mannelijke kok",
        "een foto van een mannelijke dokter en een vrouwelijke kok",
        "een foto van een mannelijke dokter en een mannelijke kok",
    }
    assert (stated, no_word) == (["stated"], ["no word"])
    assert balance_prompts(prompt, "gender").reasons == ["language: Dutch"]


def test_the_rating_says_what_the_page_says():
    lines = (ROOT / "eval/results/languages/rating_300.jsonl").read_text(encoding="utf-8")
    rows = [json.loads(line) for line in lines.splitlines()]
    right = sum(row["right"] for row in rows)
    page = (ROOT / "docs/how-to/languages.md").read_text(encoding="utf-8")
    assert len(rows) == 300
    assert f"{right} are right" in page
