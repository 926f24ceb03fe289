"""open_clip: one hook for all paths, three states, the gate, folding, and what is refused."""

import open_clip
import pytest
import torch
from models_tiny import (
    DIM,
    OPEN_CLIP,
    PROMPTS,
    STATED,
    TEXT,
    VISION,
    OpenClip,
    make_clip,
    make_hf,
    same,
    state_of,
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


@pytest.fixture(params=OPEN_CLIP)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return OPEN_CLIP[request.param]()


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


class Routed(open_clip.CLIP):
    """Code in which `encode_text` goes through a private method."""

    def _encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
        return open_clip.CLIP.encode_text(self, text, normalize)

    def encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
        return self._encode_text(text, normalize)

    def get_logits(self, image: Tensor, text: Tensor) -> tuple[Tensor, Tensor]:
        features = self._encode_text(text, normalize=True)
        logits = self.encode_image(image, normalize=True) @ features.T
        return logits, logits.T


@torch.no_grad()
def test_a_private_method_is_projected_once(gender: PromptSet, images: Tensor) -> None:
    model = Routed(DIM, VISION, TEXT).eval()
    before, base = state_of(dict(model.named_modules())), OpenClip(model).outputs()
    with OpenClip(model).debias(gender, keep_stated=False) as attachment:
        found = OpenClip(model).outputs()
        assert torch.equal(found["encode_text"], attachment.projections["joint"](base["encode_text"]))
        assert all(not torch.allclose(found[key], base[key], atol=1e-3) for key in base)
    assert same(OpenClip(model).outputs(), base)
    assert state_of(dict(model.named_modules())) == before


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
    with pytest.raises(UnsupportedHostError, match=r"VisionTransformer: expected one of .*CLIP, CustomTextCLIP, CoCa"):
        vldebias.debias(model.visual, gender)
    with pytest.raises(UnsupportedHostError, match=r"DataParallel: (?s:.*)the model inside"):
        vldebias.debias(nn.DataParallel(model), gender)
    with pytest.raises(UnsupportedHostError, match=r"OptimizedModule: (?s:.*)the model inside"):
        vldebias.debias(torch.compile(model), gender)
    model.compile()
    with pytest.raises(UnsupportedHostError, match=r"CLIP: the model was compiled in place.*\.merge\(\) and compile"):
        vldebias.debias(model, gender)


@torch.no_grad()
def test_a_method_that_was_replaced_on_the_instance_is_edited_and_comes_back(gender: PromptSet) -> None:
    model = make_clip()
    ids, own = tokenizer_for(model)(PROMPTS), model.encode_text
    model.encode_text = mine = lambda tokens, normalize=False: own(tokens, normalize=normalize) * 2
    with OpenClip(model).debias(gender, keep_stated=False) as attachment:
        torch.testing.assert_close(model.encode_text(ids), attachment.projections["joint"](2 * own(ids)))
    assert model.encode_text is mine
