"""open_clip: one hook for all paths, three states, the gate, folding, and what is refused."""

import open_clip
import pytest
import torch
from models_tiny import (
    OPEN_CLIP,
    PROMPTS,
    STATED,
    OpenClip,
    make_clip,
    make_hf,
    tokenizer_for,
)
from tiny_tokenizers import bert_tokenizer
from torch import Tensor, nn

import vldebias
from vldebias.errors import (
    InvalidInputError,
    TruncatedPromptWarning,
    UnsupportedHostError,
)
from vldebias.hosts.open_clip import OpenClipHost
from vldebias.prompts import PromptSet, StatedWords


@torch.no_grad()
@pytest.mark.parametrize("kind", ["clip", "custom"])
def test_intermediates_are_refused_and_come_back(kind: str, gender: PromptSet, images: Tensor) -> None:
    model = OPEN_CLIP[kind]()
    bare = model.forward_intermediates(images)["image_features"]
    with OpenClip(model).debias(gender) as attachment:
        with pytest.raises(UnsupportedHostError, match="forward_intermediates"):
            model.forward_intermediates(images)
        with attachment.disabled():
            assert torch.equal(model.forward_intermediates(images)["image_features"], bare)
        attachment.strength = 0
        assert torch.equal(model.forward_intermediates(images)["image_features"], bare)
    assert torch.equal(model.forward_intermediates(images)["image_features"], bare)


@pytest.mark.parametrize("text", ["a male-dominated room!!", "don't   PANIC — a woman's café", "25-year-old man", "!"])
def test_ids_are_read_back_as_the_text(text: str) -> None:
    host = OpenClipHost(make_clip(vocab_size=49408))
    (read,) = host.texts(open_clip.SimpleTokenizer()([text]))
    words = StatedWords(["man", "woman", "year-old", "panic"])
    assert "".join(read.split()) == "".join(text.lower().split())
    assert words.find(read) == words.find(text)


def test_tokenizers(gender: PromptSet) -> None:
    with pytest.raises(InvalidInputError, match=r"vocabulary 1000 .*pass tokenizer=open_clip\.get_tokenizer"):
        vldebias.debias(make_clip(vocab_size=1000), gender)
    with pytest.raises(InvalidInputError, match=r"expected what open_clip\.get_tokenizer.* returns, got function"):
        vldebias.debias(make_clip(), gender, tokenizer=open_clip.tokenize)
    vldebias.debias(make_clip(vocab_size=49408), gender).remove()


def test_a_hugging_face_tokenizer_reads_for_the_gate(gender: PromptSet) -> None:
    tokenizer = object.__new__(open_clip.tokenizer.HFTokenizer)
    vars(tokenizer).update(
        tokenizer=bert_tokenizer(),
        context_length=12,
        clean_fn=open_clip.tokenizer.get_clean_fn("whitespace"),
        strip_sep_token=False,
        tokenizer_mode="",
    )
    model = make_hf()
    ids = tokenizer(PROMPTS[:3])
    base = model.encode_text(ids)
    with vldebias.debias(model, gender, tokenizer=tokenizer):
        attached = model.encode_text(ids)
        with pytest.warns(TruncatedPromptWarning, match=r"12 tokens.*\(13 tokens\)"):
            OpenClipHost(model, tokenizer).embed(["a photo of " * 3 + "a doctor"])
    assert [torch.equal(one, other) for one, other in zip(base, attached, strict=True)] == STATED[:3]


def test_what_is_refused(gender: PromptSet) -> None:
    model = make_clip()
    for wrapped in (model.visual, nn.DataParallel(model), torch.compile(model)):
        with pytest.raises(UnsupportedHostError, match=type(wrapped).__name__):
            vldebias.debias(wrapped, gender)
    model.compile()
    with pytest.raises(UnsupportedHostError, match="compiled in place"):
        vldebias.debias(model, gender)


@torch.no_grad()
def test_a_method_that_was_replaced_on_the_instance_is_edited_and_comes_back(gender: PromptSet) -> None:
    model = make_clip()
    ids, own = tokenizer_for(model)(PROMPTS), model.encode_text
    model.encode_text = mine = lambda tokens, normalize=False: own(tokens, normalize=normalize) * 2
    with OpenClip(model).debias(gender, keep_stated=False) as attachment:
        torch.testing.assert_close(model.encode_text(ids), attachment.projections["joint"](2 * own(ids)))
    assert model.encode_text is mine
