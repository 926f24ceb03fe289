"""Test which texts state a value, in all languages in which prompts can be balanced."""

from __future__ import annotations

import pickle
import unicodedata
from pathlib import Path

import pytest

from vldebias.prompts import load_prompts
from vldebias.wording.languages import CODES
from vldebias.wording.stated import StatedValues

SENTENCES = Path(__file__).parent / "languages"
# Sentences in which somebody else's value is stated, so that the text states one.
OTHERS = {
    "la presidenta con un periodista",
    "la dottoressa visita un paziente",
    "女性医師が患者を診察する",
    "Врач и медсестра в палате",
    "女性のウェイターとコック",
    "女服务员和厨师在后院抽烟",
}


def stated_gender() -> StatedValues:
    gender = load_prompts("gender")
    return StatedValues(gender.stated_words, [gender])


@pytest.mark.parametrize("code", CODES)
def test_forms_that_state_a_gender_are_found_and_generic_forms_are_not(code: str) -> None:
    stated = stated_gender()
    number_of_forms = 0
    for line in (SENTENCES / f"{code}.txt").read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        label, text, *forms = (part.strip() for part in line.split("|"))
        if label == "stated":
            assert stated.find(text), text
        if label == "open":
            assert stated.find(text) == (text in OTHERS), text
            for form in forms:
                number_of_forms += 1
                assert stated.find(form), form
    assert number_of_forms > 30


@pytest.mark.parametrize(
    "text",
    [
        *("roupa feminina", "uma roupa feminina", "ropa femenina", "abbigliamento femminile"),
        *(
            "vêtements pour femmes",
            "женская одежда",
            "女装",
            "女性の服",
            "여성 의류",
            "ملابس نسائية",
        ),
        *("eine Ärztin", "Ärztin", "médica", "enfermera", "infirmière", "dottoressa", "여의사"),
        *("Frau", "femme", "mujer", "mulher", "женщина", "女人", "女性", "여자", "امرأة"),
        *("uomo", "homme", "homem", "Geschäftsmann", "мужчина", "男人", "남자", "رجل"),
        unicodedata.normalize("NFD", "eine Ärztin"),
    ],
)
def test_queries_of_a_few_words_state_a_gender(text: str) -> None:
    assert stated_gender().find(text)


@pytest.mark.parametrize(
    "text",
    [
        *("Arzt", "médecin", "médico", "enfermero", "infirmier", "dottore", "врач", "医生", "医者"),
        *("의사", "طبيب", "un médecin dans son bureau", "ropa roja", "un coche rojo", "赤い車"),
    ],
)
def test_queries_without_a_stated_gender_are_open(text: str) -> None:
    assert not stated_gender().find(text)


def test_english_texts_state_a_value_by_words_rules_and_names() -> None:
    stated = stated_gender()
    for text in ("a woman", "his dog", "two sons", "a bearded barista", "two nuns", "Marie Curie"):
        assert stated.find(text), text
    for text in ("a doctor", "two doctors", "a red car"):
        assert not stated.find(text), text


def test_other_attributes_have_their_own_words() -> None:
    race = load_prompts("race")
    stated = StatedValues(race.stated_words, [race])
    assert stated.find("eine asiatische Ärztin")
    assert not stated.find("eine Ärztin")
    combined = load_prompts("fairface")
    assert StatedValues(combined.stated_words, [combined]).find("eine Ärztin")


def test_sets_that_cannot_be_balanced_only_have_their_words() -> None:
    birds = load_prompts("waterbirds")
    stated = StatedValues(birds.stated_words, [birds])
    assert stated.find("a bird on the beach")
    assert not stated.find("a woman with a bird")


def test_recognition_can_be_pickled() -> None:
    copied = pickle.loads(pickle.dumps(stated_gender()))
    assert copied.find("eine Ärztin")
    assert not copied.find("ein Arzt")
