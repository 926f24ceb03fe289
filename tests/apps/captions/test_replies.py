"""Test that replies of chat models are read without what surrounds them."""

import json
from pathlib import Path

import pytest

from apps.captions.table import opened_table, texts_of_cell


@pytest.mark.parametrize(
    "reply",
    [
        "A man",
        "USER: <image> Is it a man or a woman? ASSISTANT: A man",
        "user\nIs it a man or a woman?\nassistant\nA man",
        "[INST] Is it a man or a woman? [/INST] A man",
        "<think>A woman? No, a beard.</think>\n\nA man",
        "A woman? No, a beard.\n</think>A man",
        '{"gender": "A man"}',
        '```json\n{"gender": "A man"}\n```',
        '{"reason": "unlike a woman, he has a beard", "answer": "A man"}',
    ],
)
def test_only_the_reply_is_read(reply: str) -> None:
    assert texts_of_cell(reply, is_answer=True) == ["A man"]


@pytest.mark.parametrize("text", ["A man.", "A sign that says {no}", '{"a": "x", "b": "y"}', "[1]"])
def test_other_texts_are_unchanged(text: str) -> None:
    assert texts_of_cell(text) == [text]


def test_lists_of_captions_by_image_number_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"42": ["a cook"], "7": ["a man", "a dog"]}))
    table = opened_table(tmp_path / "a.json")
    assert table.column("image").to_pylist() == ["42", "7"]
    assert table.column("caption").to_pylist() == [["a cook"], ["a man", "a dog"]]
