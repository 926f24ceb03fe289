"""Test that the packaged vocabulary gives the same ids in both libraries."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vldebias.errors import InvalidInputError
from vldebias.miniature import tokenizer, weights_dir

TEXTS = [
    "A photo of a Security Guard.",
    "THIS IS A PICTURE OF A WATERBIRD in the ocean",
    "wow! !!? (no) 42 % -- don't",
    "brown-skinned, dark-skinned",
    "café naïve Übergröße 東京 😀",
    "  two   spaces\tand\nlines  ",
    "x" * 80,
    "",
]


@pytest.fixture(scope="module")
def twins():
    return tokenizer.open_clip_tokenizer(weights_dir()), tokenizer.transformers_tokenizer(
        weights_dir()
    )


def ids(twins, texts):
    ours, theirs = twins
    return ours(texts), theirs(
        texts, padding="max_length", truncation=True, return_tensors="pt"
    ).input_ids


def test_both_libraries_return_the_same_ids(twins):
    ids_of_open_clip, ids_of_transformers = ids(twins, TEXTS)
    assert ids_of_open_clip.shape == (len(TEXTS), tokenizer.CONTEXT_LENGTH)
    assert torch.equal(ids_of_open_clip, ids_of_transformers)
    ours, theirs = twins
    row = ours(["a photo"])[0]
    assert row.tolist()[4:] == [0] * (tokenizer.CONTEXT_LENGTH - 4)
    assert row.max() == row[3] == theirs.eos_token_id == ours.vocab_size - 1
    assert (theirs.pad_token_id, len(theirs)) == (0, ours.vocab_size)


@settings(max_examples=40, deadline=None)
@given(
    text=st.text(
        st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="&<>_"), max_size=30
    )
)
def test_both_libraries_agree_on_any_plain_text(twins, text):
    # `&`, `<` and `>` are excluded, because open_clip decodes HTML entities and transformers does
    # not.
    assert torch.equal(*ids(twins, [text]))


def test_files_are_identical_between_builds(tmp_path):
    merges = tokenizer.load_merges(weights_dir())
    for name in ("one", "two"):
        tokenizer.save_tokenizer(merges, tmp_path / name)
    first, two = ((tmp_path / name / tokenizer.MERGES_FILE).read_bytes() for name in ("one", "two"))
    assert first == two
    assert first[4:8] == bytes(4)  # no time stamp
    assert tokenizer.load_merges(tmp_path / "one") == merges
    with pytest.raises(InvalidInputError, match="no tokenizer at"):
        tokenizer.open_clip_tokenizer(tmp_path)
