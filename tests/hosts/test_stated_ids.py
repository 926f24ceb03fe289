# ruff: noqa: RUF001 (letters that look like others are what is tested)
"""Test that token ids give the same decisions as their decoded text."""

import random
from itertools import chain

import pytest
import torch

from tests.hosts import tiny_tokenizers as tiny
from vldebias.hosts.clip.words import StatedRows, word_table
from vldebias.miniature.tokenizer import make_clip_tokenizer
from vldebias.prompts import StatedWords, load_prompts

SETS = ("professions-gender", "professions-race", "age")
WORDS = tuple(chain(*(load_prompts(name).stated_words for name in SETS)))

# These words contain or resemble stated words or are separators.
NEIGHBOURS_TEXT = """
manager womenfolk mankind woman's women’s male-dominated human humane blackboard
whiteness Asia Asiatic caucasian-looking elder elderberry younger youngster man2 man_ _woman wo-man
wo man woman/man (man) "female" 'male' man, man. man; man! ﬁreman ｗｏｍａｎ ＭＡＮ mañ man\u0301
m\u0430n 男 男人 man男 ﻿man 𝐦𝐚𝐧 ªman woman🙂 🙂man man🙂woman 👩🏽‍🚒 man—woman man–woman ™man ½man
isn't n't man n't don't they're dark-skinned dark - skinned dark–skinned dark.skinned DARK   skinned
African-American african american middle-aged middle aged old-fashioned"""
PLAIN_TEXT = """
a an the photo of doctor nurse pilot chef engineer smiling at work in with and young
old person people city street red blue 3 2024 portrait, cinematic 8k . - , ' " # :"""
NEIGHBOURS = NEIGHBOURS_TEXT.split()
PLAIN = PLAIN_TEXT.split()


def cased(word: str, rng: random.Random) -> str:
    """Return a word in a usual or unusual casing."""
    strange = "".join(rng.choice((letter.upper(), letter.lower())) for letter in word)
    return rng.choice((word, word, word.lower(), word.upper(), word.title(), strange))


def prompts(count: int, seed: int) -> list[str]:
    """Return random prompts, some of them longer than a text tower reads."""
    rng = random.Random(seed)
    made = []
    for _ in range(count):
        length = rng.choice((1, 3, 6, 12, 60))
        words = rng.choices(PLAIN, k=length)
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            word = cased(rng.choice((*WORDS, *NEIGHBOURS)), rng)
            affixed = rng.choice((word, word, word + rng.choice("sx-'_,é"), "un" + word))
            words.insert(rng.randint(0, len(words)), affixed)
        if rng.random() < 0.1:
            words.append("".join(rng.choices("manwoelf '-\u0301éñß中ー한🙂\u200d", k=8)))
        made.append(rng.choice((" ", " ", " ", "  ", "-", "\n")).join(words))
    return made


def full_clip():
    """Return open_clip's tokenizer with the vocabulary it ships with."""
    return pytest.importorskip("open_clip").SimpleTokenizer()


def transformers_clip():
    """Return transformers' tokenizer class with the complete vocabulary of CLIP."""
    pytest.importorskip("transformers")
    tokenizer = full_clip()
    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.__getitem__)
    return make_clip_tokenizer(tokenizer.encoder, merges, model_max_length=77)


def miniature():
    """Return the tokenizer of the packaged model."""
    from vldebias.miniature import load_clip

    return load_clip()[2]


TOKENIZERS = {
    "CLIP of open_clip": full_clip,
    "CLIP of transformers": transformers_clip,
    "few merges of CLIP": tiny.open_clip_tokenizer,
    "few merges, transformers": tiny.clip_tokenizer,
    "miniature": miniature,
    "WordPiece": tiny.bert_tokenizer,
    "WordPiece in open_clip": tiny.hf_tokenizer,
    "SentencePiece": tiny.siglip_tokenizer,
    "unigram in lower case": tiny.roberta_tokenizer,
    "T5": tiny.t5_tokenizer,
    "BPE of Gemma": tiny.gemma_tokenizer,
    "byte level": tiny.chat_tokenizer,
}


def ids_of(tokenizer, texts: list[str]) -> torch.Tensor:
    """Return ids (n, at most 77) as a text tower receives them."""
    if hasattr(tokenizer, "context_length"):
        return tokenizer(texts)
    settings = {"padding": True, "truncation": True, "max_length": 77, "return_tensors": "pt"}
    return tokenizer(texts, **settings)["input_ids"]


def decode_of(tokenizer):
    """Return a function ids -> text that decodes like the hosts."""
    from vldebias.hosts.clip.open_clip import OpenClipHost

    if hasattr(tokenizer, "context_length"):
        host = object.__new__(OpenClipHost)
        host.tokenizer = tokenizer
        return host.decode
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))


def check(name: str, count: int, seed: int) -> None:
    tokenizer = TOKENIZERS[name]()
    decode = decode_of(tokenizer)
    gate = StatedWords(WORDS)
    ids = ids_of(tokenizer, prompts(count, seed))
    texts = [decode(tuple(row)) for row in ids.tolist()]
    expected = torch.tensor([bool(gate.find(text)) for text in texts])
    table = word_table(tokenizer, decode)
    assert table is not None
    rows = StatedRows(gate, lambda: table, lambda ids: [decode(tuple(r)) for r in ids.tolist()])
    stated = rows(ids)
    wrong = [texts[k] for k in (stated != expected).nonzero().flatten().tolist()]
    assert not wrong, (len(wrong), wrong[:5])
    assert 0.1 < float(expected.double().mean()) < 0.9
    # Decide again from the cache, and one row at a time.
    assert torch.equal(rows(ids), expected)
    assert [bool(rows(row[None])) for row in ids[:50]] == expected[:50].tolist()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_text_give_the_same_decisions(name):
    check(name, 200, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_and_text_give_the_same_decisions_on_many_prompts(name):
    """Most cases use the complete vocabulary of CLIP, which most models have."""
    check(name, 20_000 if name == "CLIP of open_clip" else 4_000, 1)


def test_clip_ids_of_english_prompts_are_decided_without_decoding():
    tokenizer = full_clip()
    table = word_table(tokenizer, decode_of(tokenizer))
    texts = [" ".join(prompt.split()) for prompt in prompts(2_000, 2) if prompt.isascii()]
    assert table is not None
    assert not table.unsure(table.facts(ids_of(tokenizer, texts))).any()


def test_a_tokenizer_that_decodes_differently_falls_back_to_its_text():
    tokenizer = tiny.clip_tokenizer()
    decode = decode_of(tokenizer)

    class Reversed:
        all_special_ids = tokenizer.all_special_ids

        def get_vocab(self):
            return tokenizer.get_vocab()

    def backwards(ids):
        return decode(ids)[::-1]

    assert word_table(Reversed(), backwards) is None
    gate = StatedWords(["man"])
    calls = []

    def texts(ids):
        calls.append(len(ids))
        return [backwards(tuple(row)) for row in ids.tolist()]

    rows = StatedRows(gate, lambda: None, texts)
    ids = ids_of(tokenizer, ["nam a", "a man", "nam a"])
    assert rows(ids).tolist() == [True, False, True]
    assert rows(ids).tolist() == [True, False, True]
    assert calls == [2]  # each row once
