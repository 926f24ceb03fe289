"""Balanced prompts in other languages: own sentences, and laws for all tables."""

import json
import re
from pathlib import Path

import pytest

from eval.languages import measure_rated
from vldebias import balance_prompts
from vldebias.prompts import load_prompts, make_prompt_set
from vldebias.prompts.attribute import Attribute
from vldebias.wording import languages
from vldebias.wording.languages import (
    CODES,
    language_of,
    load_language,
    register_language,
    unregister_language,
)
from vldebias.wording.languages.table import Table

HERE = Path(__file__).parent
GENDER = Attribute(load_prompts("gender"), {})
UNSPACED = ("ja", "ko", "zh")  # languages with words for age and race


def labelled(code):
    """Return (label, prompt, text of a woman, text of a man) for all sentences in a language."""
    rows = []
    for line in (HERE / "languages" / f"{code}.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            label, prompt, *texts = line.split(" | ")
            rows.append((label, prompt, *texts))
    return rows


def both(prompt):
    """Return a prompt with a woman and with a man."""
    texts = []
    for value in ("female", "male"):
        shares = {name: float(name == value) for name in ("female", "male")}
        texts += balance_prompts(prompt, "gender", shares=shares).prompts
    return tuple(texts)


@pytest.mark.parametrize("code", CODES)
def test_plain_prompts_get_both_values(code):
    written = {prompt: both(prompt) for label, prompt, *_ in labelled(code) if label == "open"}
    expected = {row[1]: row[2:] for row in labelled(code) if row[0] == "open"}
    assert written == expected
    assert len(written) > 40


@pytest.mark.parametrize("code", CODES)
def test_other_prompts_are_left_unchanged_with_their_reason(code):
    wrong = []
    rows = [row for row in labelled(code) if row[0] != "open"]
    for label, prompt in rows:
        balanced = balance_prompts(prompt, "gender", seed=0)
        if balanced.prompts != [prompt] or balanced.reasons[0].split(":")[0] != label:
            wrong.append((label, prompt, balanced.prompts, balanced.reasons))
    assert not wrong
    assert {"stated", "no person", "not plain"} <= {label for label, _ in rows}


@pytest.mark.parametrize("code", CODES)
def test_prompts_are_read_by_their_language_and_what_was_written_is_stated(code):
    for label, prompt, *texts in labelled(code):
        if label != "open":
            continue
        assert language_of(prompt).code == code, prompt
        for text in texts:
            assert balance_prompts(text, "gender").reasons == ["stated"], text


def filled(frame, noun):
    """Return a frame with a noun, without a letter of the noun for each "<"."""
    return re.sub("~(<*)", lambda match: noun[: len(noun) - len(match[1])], frame)


@pytest.mark.parametrize("code", CODES)
def test_every_noun_in_a_frame_is_written_and_read_as_stated(code):
    table = load_language(code)
    number_of_nouns = 0
    wrong = []
    for name, nouns in table.lists.items():
        frames = table.entries(name.replace("noun", "frame")) + table.entries(
            name.replace("noun", "bare")
        )
        if not name.startswith("noun-") or not frames:
            continue
        for entry in nouns:
            number_of_nouns += 1
            first, *others = entry.split("/")
            assert len(others) <= 2, entry
            forms = (first, *others, first, first)[:3]
            # Over all nouns, these are all frames. "Joven" in "un joven médico" is a noun, too.
            frames_of_noun = [
                frame for frame in frames if not re.search("jove[mn]_|jove[mn] ", frame)
            ]
            frame = frames_of_noun[number_of_nouns % len(frames_of_noun)]
            parts = frame.replace("{}", "").split("/")
            prompt, *texts = map(filled, parts, forms)
            persons = table.find(prompt, GENDER)
            if isinstance(persons, str) or [person.reason for person in persons] != [""]:
                wrong.append((prompt, persons))
                continue
            written = [
                table.write(prompt, [(persons[0], GENDER, value)])[0].text
                for value in ("female", "male")
            ]
            # A word alone may be a thing: "pompière".
            stating = [text for text in texts if text not in table.entries("not-stated")]
            if written != texts or not all(table.states(text, GENDER) for text in stating):
                wrong.append((prompt, written, texts))
    assert not wrong
    assert number_of_nouns >= 100


def test_a_table_that_is_not_in_the_default_is_detected_but_leaves_prompts_unchanged(
    tmp_path, monkeypatch
):
    prompt = "Ein Arzt im Krankenhaus"
    assert both(prompt) != (prompt, prompt)
    text = (Path(languages.__file__).parent / "de.txt").read_text(encoding="utf-8")
    (tmp_path / "de.txt").write_text(text.replace("default: yes", "default: no"), "utf-8")
    table = Table(tmp_path / "de.txt")
    monkeypatch.setattr(languages, "load_language", lambda code: table)
    balanced = balance_prompts(prompt, "gender")
    assert (balanced.prompts, balanced.reasons) == ([prompt], ["language: German"])


def test_a_language_of_another_package_is_a_table():
    prompt = "een foto van een dokter en een leraar"
    assert balance_prompts(prompt, "gender").reasons == ["language: Dutch"]
    register_language(Table(HERE / "nl.txt"))
    try:
        written = set(balance_prompts([prompt] * 12, "gender", seed=0).prompts)
        person = both("een persoon op straat")
        prompts = ["een vrouwelijke dokter", "een foto zonder een dokter", "een moede kok"]
        reasons = balance_prompts(prompts, "gender").reasons
        age = balance_prompts(prompt, "age").reasons
    finally:
        unregister_language("nl")
    assert written == {
        "een foto van een vrouwelijke dokter en een lerares",
        "een foto van een vrouwelijke dokter en een mannelijke leraar",
        "een foto van een mannelijke dokter en een lerares",
        "een foto van een mannelijke dokter en een mannelijke leraar",
    }
    assert person == ("een vrouw op straat", "een man op straat")
    assert reasons == ["stated", "not plain", "not plain"]
    assert age == ["form"]
    assert balance_prompts(prompt, "gender").reasons == ["language: Dutch"]


# ---- detection of the language


@pytest.mark.parametrize(
    ("threshold", "low", "high", "outside"),
    [("_SURE", 0.5, 0.8, 0.9), ("_LIKELY", 0.5, 0.7, 0.4), ("_ENGLISH_SHARE", 0.6, 1.0, 0.4)],
)
def test_no_labelled_prompt_hangs_on_the_last_digit_of_a_threshold(
    threshold, low, high, outside, monkeypatch
):
    rows = [row for code in languages._LATIN for row in labelled(code)]
    prompts = [prompt for label, prompt, *_ in rows if label == "open"]
    expected = list(map(language_of, prompts))
    for value in (low, high):
        monkeypatch.setattr(languages, threshold, value)
        assert list(map(language_of, prompts)) == expected
    monkeypatch.setattr(languages, threshold, outside)
    assert list(map(language_of, prompts)) != expected


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
        ("red hat, CEO", "English"),
        ("an elderly care worker", "English"),
        ("a bag weaver", "English"),
        ("写真、医者", "Japanese"),
        ("運転手", "Japanese"),
        ("写真、医生", "Chinese"),
        ("医者和病人", "Chinese"),  # a part of a clause says nothing
        ("医者，照片", "Chinese"),
    ],
)
def test_the_language_is_that_of_the_person(prompt, name):
    assert language_of(prompt).name == name


# ---- where and how values are written


@pytest.mark.parametrize(
    ("prompt", "woman", "man"),
    [
        # The spelling of the prompt is kept.
        ("ein arzt im haus", "eine ärztin im haus", "ein männlicher arzt im haus"),
        ("EIN ARZT IM HAUS", "EINE ÄRZTIN IM HAUS", "EIN MÄNNLICHER ARZT IM HAUS"),
        ("L’infirmier sourit", "L’infirmière sourit", "L’infirmier homme sourit"),
        # Markup stays as it is.
        (
            "<lora:film:0.8> (ein Arzt:1.2) im Krankenhaus, masterpiece",
            "<lora:film:0.8> (eine Ärztin:1.2) im Krankenhaus, masterpiece",
            "<lora:film:0.8> (ein männlicher Arzt:1.2) im Krankenhaus, masterpiece",
        ),
        ("Ein {gender} Arzt", "Ein weiblich Arzt", "Ein männlich Arzt"),
        # A capital with two lower-case characters moves no offset.
        ("서 있İ는 의사, 자연광", "서 있İ는 여성 의사, 자연광", "서 있İ는 남성 의사, 자연광"),
        # The word behind the noun agrees.
        ("un médico sentado", "una médica sentada", "un médico varón sentado"),
        ("una persona sentada", "una mujer sentada", "un hombre sentado"),
        ("شخص يقرأ كتابا", "امرأة تقرأ كتابا", "رجل يقرأ كتابا"),
        # A stated person leaves another one open.
        (
            "Eine Lehrerin hilft einem Schüler",
            "Eine Lehrerin hilft einer Schülerin",
            "Eine Lehrerin hilft einem männlichen Schüler",
        ),
        ("女服务员和厨师", "女服务员和女厨师", "女服务员和男厨师"),
    ],
)
def test_values_are_written_in_the_form_of_the_prompt(prompt, woman, man):
    assert both(prompt) == (woman, man)


@pytest.mark.parametrize(
    "prompt",
    [
        "eine*r Lehrer*in an der Tafel",
        "un/a médico/a en el hospital",
        "un·e infirmier·ère dans un couloir",
        "ein <lora:film:1> Arzt",  # the markup would be lost
        "ein *Arzt im Haus",
        "un(e) avocat(e) au tribunal",
        "Ein müder Arzt im Krankenhaus",
        "un infirmier très fatigué",
        "Un médico en la calle, vestido de azul",
        "Пекарь, вышедший из дома",
        "врач, на которого смотрит собака",
        "Ein Arzt, der auf dem Mond steht",
        "طبيب متعب يجلس في ممر المستشفى",
        "Ein Notenwart und ein Geiger",  # the first one is not listed
        "скрипач и неизвестновед играют",  # nor is the second one
        "Un médico conversa con Brad",
        "Eine Leiter an der Wand",  # no article of the noun for a person
    ],
)
def test_what_is_not_plain_is_left_unchanged(prompt):
    balanced = balance_prompts(prompt, "gender")
    assert balanced.prompts == [prompt]
    assert balanced.reasons[0] in ("not plain", "named", "language", "no person")


@pytest.mark.parametrize("code", CODES)
def test_age_and_race_are_only_written_where_nothing_has_to_agree(code):
    prompts = [row[1] for row in labelled(code) if row[0] == "open"]
    for attribute in ("age", "race"):
        balanced = balance_prompts(prompts, attribute, seed=0)
        written = sum(value is not None for value in balanced.values)
        if code in UNSPACED:
            assert written > len(prompts) // 2
        else:
            assert set(balanced.reasons) == {"form"}


def test_several_values_are_written_together():
    prompts = ["一位医生", "若い医者", "한 의사"]
    balanced = balance_prompts(prompts, ["gender", "age"], seed=0)
    assert balanced.prompts[0] in {
        "一位年轻的女医生",
        "一位年轻的男医生",
        "一位年长的女医生",
        "一位年长的男医生",
    }
    assert balanced.reasons[1] == (None, "stated")
    assert balanced.prompts[2] in {
        f"한 {age} {gender} 의사" for age in ("젊은", "나이 든") for gender in ("여성", "남성")
    }


def test_age_is_written_beside_a_stated_gender():
    assert set(balance_prompts(["一位女医生"] * 2, "age", seed=0).prompts) == {
        "一位年轻的女医生",
        "一位年长的女医生",
    }


@pytest.mark.filterwarnings("ignore::vldebias.errors.UnseenValueWarning")
def test_a_set_of_ones_own_gives_its_words_where_nothing_has_to_agree():
    attribute = {"blind": ["blind"], "sighted": ["sighted"]}
    adjectives = {value: value for value in attribute}
    words = {"zh": {"blind": "失明的", "sighted": "视力正常的"}}
    made = make_prompt_set("sight", attribute, ["cook"], adjectives=adjectives, languages=words)
    written = set(balance_prompts(["一位医生在医院"] * 2, made, seed=0).prompts)
    assert written == {"一位失明的医生在医院", "一位视力正常的医生在医院"}
    assert balance_prompts("一位失明的医生", made).reasons == ["stated"]
    bare = make_prompt_set("sight", attribute, ["cook"], adjectives=adjectives)
    assert balance_prompts(["一位医生", "ein Arzt"], bare).reasons == ["no word", "form"]
    genders = {value: [value] for value in ("female", "male", "nonbinary")}
    own = {"zh": {"female": "女", "male": "男", "nonbinary": "非二元性别的"}}
    third = make_prompt_set("genders", genders, ["cook"], languages=own)
    assert "一位非二元性别的医生" in balance_prompts(["一位医生"] * 3, third, seed=0).prompts


def test_a_date_or_a_fact_leaves_a_prompt_unchanged():
    prompts = ["ein Soldat im Jahr 1916", "un astronaute en 2016", "一位武士"]
    reasons = balance_prompts(prompts, "gender").reasons
    assert reasons[:2] == ["context: 1916", None]


@pytest.mark.parametrize("number", ["²", "①", "1" * 5000])
@pytest.mark.parametrize("prompt", ["{} врача", "{} Ärzte", "{} médicos", "{}名医生", "의사 {} 명"])
def test_what_is_a_digit_and_no_number_of_persons_raises_nothing(prompt, number):
    balanced = balance_prompts([prompt.format(number)] * 2, "gender", seed=0)
    assert all(number in text for text in balanced.prompts)


@pytest.mark.parametrize(
    ("person", "woman", "other"),
    [
        ("ein Arzt im Krankenhaus, ", "eine Ärztin im Krankenhaus, ", "ein Haus, "),
        ("一位医生在医院，", "一位女医生在医院，", "房子，"),
    ],
)
def test_what_no_encoder_reads_of_a_long_prompt_is_left_as_it_is(person, woman, other):
    rest = other * 2000
    (prompt,) = balance_prompts(person + rest, "gender", shares={"female": 1}).prompts
    assert prompt == woman + rest
    assert balance_prompts(rest + person, "gender").prompts == [rest + person]


# ---- stated values


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("eine Ärztin und ein Junge", ["female", "male"]),
        ("una enfermera", ["female"]),
        ("un médico", []),
        ("位女医生", ["female"]),
        ("男性の医者", ["male"]),
        ("женщина-врач", ["female"]),
    ],
)
def test_values_that_words_state_are_found(text, values):
    assert sorted(language_of(text).stated_values(text, GENDER)) == values


# ---- ratings


def test_rates_count_changes_plain_prompts_and_requests_for_no_people(tmp_path):
    rows = [
        {"kind": "plain", "texts": {"female": "a", "male": "b"}, "right": True},
        {"kind": "plain", "texts": None, "right": None},
        {"kind": "other", "texts": {"female": "a", "male": "b"}, "right": False},
        {"kind": "no people", "texts": None, "right": None},
    ]
    path = tmp_path / "ratings.jsonl"
    lines = [json.dumps(row | {"language": "de", "prompt": "p", "rater": "r"}) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    (part,) = measure_rated(path)
    shares = {row.metric: row.value for row in part.rows if row.subset == "de"}
    assert shares == pytest.approx(
        {"wrong_changes": 1 / 2, "plain_written": 1 / 2, "no_people_changed": 0}
    )
