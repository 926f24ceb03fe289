"""What visitors send to the demo is checked before any model sees it."""

from typing import Any
from urllib.parse import parse_qsl

import pytest
from compare_parts import ODD_PROMPTS, mitigation, module
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from vldebias.errors import InvalidInputError, VldebiasError
from vldebias.prompts import load_prompts

settings = module("settings")


@pytest.mark.parametrize("kind", ODD_PROMPTS)
def test_odd_prompts_have_a_message(kind: str) -> None:
    prompt, told = ODD_PROMPTS[kind]
    with pytest.raises(InvalidInputError, match=told):
        settings.Drawing.of(prompt, 1, 0, 2, 3.0)


@given(st.text(max_size=400))
def test_a_text_is_checked_or_refused(text: str) -> None:
    try:
        found = settings.check_text(text, "prompt")
    except InvalidInputError:
        assert (
            not [letter for letter in text if not letter.isspace() and letter >= " " and letter != "\x7f"]
            or len(text) > 300
        )
        return
    assert 0 < len(found) <= 300
    assert settings.check_text(found, "prompt") == found  # what passed once passes again, unchanged


@refused(
    ((None, 1, 0, 2, 3.0), "prompt: expected a text, got NoneType"),
    (("x", 17, 0, 2, 3.0), "pictures: expected a number from 1 to 16, got 17"),
    (("x", 0, 0, 2, 3.0), "pictures: expected a number from 1"),
    (("x", 1.5, 0, 2, 3.0), "pictures: expected a whole number, got 1.5"),
    (("x", 1, -1, 2, 3.0), "seed: expected a number from 0"),
    (("x", 1, None, 2, 3.0), "seed: expected a number from 0 to .* got None"),
    (("x", 1, 0, 101, 3.0), "steps: expected a number from 1 to 100, got 101"),
    (("x", 1, 0, 2, float("nan")), "guidance: expected a number from 0 to 30, got nan"),
    (("x", True, 0, 2, 3.0), "pictures: expected a number from 1 to 16, got True"),
    (("x", 1, 0, 2, 3.0, "cali"), "beside: expected at most 2 of none, .* got 'cali'"),
    (("x", 1, 0, 2, 3.0, [["cali"]]), "beside: expected at most 2 of none"),
)
def test_a_drawing_out_of_range_is_refused_by_name(values: tuple[Any, ...]) -> None:
    settings.Drawing.of(*values)


@refused(
    (([], ""), "attributes: none is chosen"),
    ((["gender", "../../etc/passwd"],), "attributes: expected some of gender, .* got"),
    ((["gender"], "", "magic"), "method: expected one of none, orth, orth-cali, .* got 'magic'"),
    ((["gender"], "", "cali", -1), "lambda: expected a number from 0"),
    ((["gender"], "", "cali", "many"), "lambda: expected a number, or nothing for the paper's, got 'many'"),
    ((["gender"], "", "cali", "nan"), "lambda: expected a number from 0"),
    ((["gender"], "", "cali", None, 1.2), "strength: expected a number from 0 to 1, got 1.2"),
    ((["gender"], "just one"), "own words: expected 2 to 24 different lines, got 1"),
    ((["gender"], "a:\nb: c"), "own words: expected 'value: word, other word', each value once, got 'a:'"),
    ((["gender"], "a: b\na: c"), "each value once, got 'a: c'"),
    ((["gender"], ["a", "b"]), "own words: expected lines of text, got list"),
    ((5,), "attributes: expected some of gender, .* got 5"),
    (([["gender"]],), "attributes: expected some of gender, .* got"),
    (({"gender": 1},), "attributes: expected some of gender, .* got"),
    ((["gender"], "", ["cali"]), r"method: expected one of none, .* got \['cali'\]"),
    ((["gender"], "", "cali", [1]), "lambda: expected a number from 0"),
    ((["gender"], "", "cali", None, "much"), "strength: expected a number from 0 to 1, got 'much'"),
    error=VldebiasError,
)
def test_a_mitigation_that_is_not_on_offer_is_refused_by_name(values: tuple[Any, ...]) -> None:
    settings.Mitigation.of(*values)


@pytest.mark.parametrize(
    ("given", "found"), [(None, None), ("", None), (" ", None), ("50", 50.0), (0, 0.0), (2.5, 2.5)]
)
def test_an_empty_lambda_is_the_preset(given: object, found: float | None) -> None:
    assert mitigation(lam=given).lam == found


def test_every_attribute_on_offer_has_a_prompt_set() -> None:
    for attribute, name in settings.ATTRIBUTES.items():
        assert mitigation(attribute).sets == (load_prompts(name),)


def test_own_words_make_pairs_and_are_stated_words() -> None:
    own = mitigation(words="with glasses: bespectacled\nclear-eyed")
    assert own.names == ("gender", "own words")
    made = own.sets[-1]
    assert tuple(made.attributes) == ("with glasses", "clear-eyed")
    assert made.pairs[0] == ("A photo of a bespectacled actor.", "A photo of a clear-eyed actor.")
    assert own.stated("a Bespectacled doctor") == ("bespectacled",)


def test_the_gate_names_the_words_and_can_be_opened() -> None:
    assert mitigation("gender").stated("A photo of a female doctor.") == ("female",)
    assert mitigation("gender").stated("A photo of a doctor.") == ()
    assert mitigation("gender", keep_stated=False).stated("A photo of a female doctor.") == ()
    assert mitigation("age").stated("A photo of a female doctor.") == ()


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert settings.check_text("a \ud83d doctor", "prompt") == "a ? doctor"


def test_lines_are_different_and_counted() -> None:
    assert settings.check_lines("a\n\n b \na", "class prompts", 2) == ("a", "b")
    with pytest.raises(
        InvalidInputError, match="class prompts: expected 2 to 24 different lines, got 1; write one per"
    ):
        settings.check_lines("a\na", "class prompts", 2)
    with pytest.raises(InvalidInputError, match="class prompts: 1,000 lines"):
        settings.check_lines("a\n" * 1000, "class prompts", 2)
    with pytest.raises(InvalidInputError, match="expected a text, got int"):
        settings.check_lines(["a", 3], "class prompts", 2)


# ---- settings in an address ---------------------------------------------------------------------------------------

USUAL = settings.Drawing("A photo of a doctor.", 6, 0, 20, 3.0)


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"attributes": ["gender", "age"], "method": "orth", "lam": 12.5, "strength": 0.25},
        {"attributes": [], "words": 'a: b&c=d\nit\'s: "#?"', "keep_stated": False},
    ],
)
def test_a_link_holds_all_settings(how: dict[str, Any]) -> None:
    drawing = settings.Drawing("👩 & a doctor?", 3, 7, 11, 0.5, ("cali", "steer"))
    mitigation = settings.Mitigation.of(**({"attributes": ["gender"]} | how))
    query = dict(parse_qsl(settings.link(drawing, mitigation), keep_blank_values=True))
    assert settings.from_link(query, USUAL) == (drawing, mitigation)


def test_a_link_may_say_a_part_of_them_or_nothing() -> None:
    assert settings.from_link({"__theme": "dark"}, USUAL) is None
    drawing, mitigation = settings.from_link({"seed": "5", "__theme": "dark"}, USUAL)
    assert drawing == settings.Drawing("A photo of a doctor.", 6, 5, 20, 3.0)
    assert mitigation == settings.Mitigation.of(["gender"])


@refused(
    ({"number": "many"}, "number: expected a number, got 'many'"),
    ({"number": "17"}, "pictures: expected a number from 1 to 16, got 17"),
    ({"steps": "nan"}, "steps: expected a number from 1 to 100, got nan"),
    ({"seed": "1e99"}, "seed: expected a number from 0"),
    ({"prompt": "a" * 400}, "the most is 300"),
    ({"attributes": "../x"}, "attributes: expected some of gender"),
    ({"attributes": ""}, "attributes: none is chosen"),
    ({"method": "x"}, "method: expected one of"),
    ({"lam": "x"}, "lambda: expected a number"),
    ({"strength": "2"}, "strength: expected a number from 0 to 1, got 2"),
    ({"keep_stated": "no"}, "keep_stated: expected 0 or 1, got 'no'"),
    ({"words": "one"}, "own words: expected 2 to 24"),
    ({"beside": "cali,orth,steer"}, "beside: expected at most 2 of none, .*"),
    ({"beside": "../x"}, "beside: expected at most 2 of none, .* got"),
)
def test_what_a_link_says_is_checked(query: dict[str, str]) -> None:
    settings.from_link(query, USUAL)
