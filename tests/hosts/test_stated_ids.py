"""Test that rows of token ids give the same decisions as the prompts that they encode."""

import random
from itertools import chain

import pytest
import torch

from tests.hosts import tiny_tokenizers as tiny
from vldebias.hosts.clip.stated import StatedRows
from vldebias.miniature.tokenizer import make_clip_tokenizer
from vldebias.prompts import StatedWords, load_prompts

SETS = ("professions-gender", "professions-race", "age")
WORDS = tuple(chain(*(load_prompts(name).stated_words for name in SETS)))

PLAIN = """
a an the photo of doctor nurse pilot chef engineer smiling at work in with and young
old person people city street red blue portrait, cinematic"""


def prompts(count: int) -> list[str]:
    """Return random prompts of which about half contain a stated word, in any casing."""
    rng = random.Random(0)
    made = []
    for _ in range(count):
        words = rng.choices(PLAIN.split(), k=rng.choice((1, 3, 6)))
        if rng.random() < 0.5:
            word = rng.choice(WORDS)
            cased = rng.choice((word, word.upper(), word.title(), word + ",", word + "'s"))
            words.insert(rng.randint(0, len(words)), cased)
        made.append(" ".join(words))
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


@pytest.mark.parametrize("name", TOKENIZERS)
def test_ids_give_the_same_decisions_as_the_prompts_they_encode(name):
    tokenizer = TOKENIZERS[name]()
    decode = decode_of(tokenizer)
    gate = StatedWords(WORDS)
    texts = prompts(200)
    expected = [bool(gate.find(text)) for text in texts]
    rows = StatedRows(gate, lambda ids: [decode(tuple(row)) for row in ids.tolist()])
    ids = ids_of(tokenizer, texts)
    stated = rows(ids).tolist()
    assert [text for text, a, b in zip(texts, stated, expected, strict=True) if a != b] == []
    assert 0.3 < sum(expected) / len(texts) < 0.9
    # Decide again from the cache.
    assert rows(ids).tolist() == expected


def test_a_row_is_decoded_once_however_often_it_returns():
    calls = []

    def texts(ids):
        calls.append(ids.tolist())
        return ["a man" if row[0] == 1 else "a nurse" for row in ids.tolist()]

    rows = StatedRows(StatedWords(["man"]), texts)
    ids = torch.tensor([[1, 2], [3, 4], [1, 2]])
    assert rows(ids).tolist() == [True, False, True]
    assert rows(ids[1:]).tolist() == [False, True]
    assert calls == [[[1, 2], [3, 4]]]
