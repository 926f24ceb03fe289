"""Test that notebooks show results as tables, and that no part of them is interpreted as markup."""

import json
import re
import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import vldebias
from vldebias.miniature import load_pipeline
from vldebias.utils.markup import SHOWN, code_span, html_table, printable


@given(st.lists(st.tuples(st.text(max_size=9), st.integers()), max_size=2 * SHOWN))
def test_a_table_shows_all_rows_unless_it_is_long(rows: list[Any]) -> None:
    html = html_table("title", ("text", "number"), rows)
    assert html.count("<table") == html.count("</table>") == 1
    assert html.count("<tr>") == 1 + min(len(rows), SHOWN)
    assert html.count("<td") == 2 * min(len(rows), SHOWN)
    assert (f"{len(rows) - SHOWN} more rows" in html) == (len(rows) > SHOWN)


def test_the_content_of_a_cell_is_not_markup() -> None:
    html = html_table("<b>", ("<i>",), [("<script>",), (None,)])
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    assert "None" not in html


def test_balanced_prompts_show_what_was_inserted_and_why_others_are_unchanged() -> None:
    texts = ["A photo of a doctor", "A red <b>chair</b>", "a female nurse"]
    balanced = vldebias.balance_prompts(texts, "gender", seed=0)
    html = balanced._repr_html_()
    for part in (balanced.prompts[0], balanced.values[0], *filter(None, balanced.reasons)):
        assert part in html
    assert "&lt;b&gt;chair" in html
    assert "1 of 3 prompts changed, seed 0" in html


def test_a_prompt_set_shows_its_values_with_their_words() -> None:
    prompts = vldebias.load_prompts("gender")
    html = prompts._repr_html_()
    for value, words in prompts.attributes.items():
        assert value in html
        assert ", ".join(words) in html
    assert prompts.hash[:12] in html


def test_an_attachment_shows_the_values_of_the_last_call() -> None:
    with vldebias.debias(load_pipeline(), "gender") as attachment:
        attachment.rewrite(["A photo of a doctor."] * 4 + ["A red chair."])
        html = attachment._repr_html_()
    counts = [f"last call, {value}" for value in ("male", "female")]
    for word in (*counts, "left unchanged", "seed", "attached"):
        assert word in html


@given(st.text(st.characters(exclude_categories=[])))
def test_printable_text_contains_escapes_instead_of_control_characters(text: str) -> None:
    shown = printable(text)
    kinds = {unicodedata.category(letter) for letter in shown if letter not in "\n\t"}
    assert kinds.isdisjoint({"Cc", "Cs"})
    if "\\" not in text and '"' not in text:
        escaped = shown.replace("\n", r"\n").replace("\t", r"\t")
        # JSON would combine two surrogate escapes into a single character.
        expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
        assert json.loads(f'"{escaped}"') in {text, expected}


@given(st.text("ab` \n<#[]()", max_size=12))
def test_no_text_can_end_a_code_span(text: str) -> None:
    span = code_span(text)
    assert "\n" not in span
    fence, inside = re.fullmatch(r"(`+)(.*?)\1", span).groups()  # type: ignore[union-attr]
    assert fence not in re.findall("`+", inside)
    assert inside.split() == text.split()
