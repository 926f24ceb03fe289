"""open_clip: one seam for all paths, three states, the gate, folding, and what is refused."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import open_clip
import pytest
import torch
from open_clip_tiny import (
    DIM,
    MODELS,
    PROMPTS,
    STATED,
    TEXT,
    VISION,
    debias,
    intermediates,
    make_clip,
    make_custom,
    make_hf,
    make_whole,
    outputs,
    same,
    tokenizer_for,
)
from subjects import state_of
from tiny_tokenizers import bert_tokenizer, open_clip_tokenizer
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import vldebias
from vldebias.errors import (
    InvalidInputError,
    TruncatedPromptWarning,
    UnsupportedHostError,
)
from vldebias.hosts.open_clip import OpenClipHost, open_clip_host
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet
from vldebias.prompts.stated_words import StatedWords


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return MODELS[request.param]()


@torch.no_grad()
def test_every_path_gives_the_projected_embedding(model: nn.Module, gender: PromptSet, images: Tensor) -> None:
    base = outputs(model, images)
    attachment = debias(model, gender, keep_stated=False)
    attached = outputs(model, images)
    expected = attachment.projections["joint"](base["encode_text"])
    normalized = nn.functional.normalize(expected, dim=-1)
    assert torch.equal(attached["encode_text"], expected)
    for key in {"normalized", "forward", "text only", "dict"} & attached.keys():
        assert torch.equal(attached[key], normalized)
    if "image logits" in attached:
        logits = model.logit_scale.exp() * model.encode_image(images, normalize=True) @ normalized.T
        torch.testing.assert_close(attached["image logits"], logits + (model.logit_bias or 0))
        assert torch.equal(attached["image logits"].T, attached["text logits"])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["clip", "custom"])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("side", ["text", "image", "both"])
def test_intermediates_agree(kind: str, unit: bool, side: str, gender: PromptSet, images: Tensor) -> None:
    model = MODELS[kind]()
    asked = {"normalize": unit, "output_logits": True}
    base, ids = intermediates(model, images, **asked), tokenizer_for(model)(PROMPTS)
    with debias(model, gender, side=side) as attachment:
        found = intermediates(model, images, **asked)
        torch.testing.assert_close(found["image_features"], model.encode_image(images, normalize=unit))
        torch.testing.assert_close(found["text_features"], model.encode_text(ids, normalize=unit))
        if unit:
            torch.testing.assert_close(found["image_logits"], model.get_logits(images, ids)[0])
            torch.testing.assert_close(found["text_logits"], found["image_logits"].T)
        alone = model.forward_intermediates(images, normalize=unit)
        torch.testing.assert_close(alone["image_features"], found["image_features"])
        assert "text_features" not in alone
        for key in ("text_features", "image_features"):
            assert key not in intermediates(model, images, intermediates_only=True)
        attachment.strength = 0
        again = intermediates(model, images, **asked)
    assert torch.equal(found["image_features"], base["image_features"]) is (side == "text")
    assert torch.equal(found["text_features"], base["text_features"]) is (side == "image")
    if side != "image":
        assert torch.equal(found["text_features"][STATED], base["text_features"][STATED])
    assert not torch.allclose(found["image_logits"], base["image_logits"], atol=1e-3)
    for key in ("image_features", "text_features", "image_logits", "text_logits"):
        assert torch.equal(again[key], base[key])


@pytest.mark.parametrize("text", ["a male-dominated room!!", "don't   PANIC — a woman's café", "25-year-old man", "!"])
def test_ids_are_read_back_as_the_text(text: str) -> None:
    host = open_clip_host(make_whole())
    (read,) = host.texts(open_clip.SimpleTokenizer()([text]))
    words = StatedWords(["man", "woman", "year-old", "panic"])
    assert "".join(read.split()) == "".join(text.lower().split())
    assert words.find(read) == words.find(text)


def test_ids_are_read_back_row_by_row() -> None:
    host, texts = open_clip_host(make_whole()), ["a doctor", "a nurse", "a baker"]
    ids = open_clip.SimpleTokenizer()(texts)
    assert [text.strip() for text in host.texts(ids)] == texts
    with torch.no_grad():
        assert torch.equal(host.features(host.tokens(texts)), host.model.encode_text(ids)), "of their own lengths"


def test_another_process_gets_a_host_that_has_read_texts() -> None:
    host = open_clip_host(make_whole())
    texts = host.texts(open_clip.SimpleTokenizer()(["a doctor"]))
    sent = pickle.loads(pickle.dumps(host))
    assert sent.texts(open_clip.SimpleTokenizer()(["a doctor"])) == texts
    assert torch.equal(sent.embed(["a nurse"], "joint"), host.embed(["a nurse"], "joint"))


@pytest.mark.parametrize("make", [lambda: make_custom(32, proj_type="none"), lambda: make_hf("identity")])
def test_merge_needs_a_linear_end(make: Callable[[], nn.Module], gender: PromptSet) -> None:
    model = make()
    attachment = debias(model, gender)
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedHostError, match=r"CustomTextCLIP: the text tower ends in .*(NoneType|Identity)"):
        attachment.merge()
    assert attachment.state == "attached"
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def test_fitting_inside_other_modes(gender: PromptSet) -> None:
    """What surrounds the call, autocast or inference mode, neither blurs the fit nor freezes the factors."""
    model = make_clip()
    expected = vldebias.fit_projection(model, gender, tokenizer=tokenizer_for(model))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = vldebias.fit_projection(model, gender, tokenizer=tokenizer_for(model))
    assert torch.equal(found.left, expected.left)
    with torch.inference_mode():
        attachment = debias(model, gender)
    model.encode_text(tokenizer_for(model)(PROMPTS)).sum().backward()
    assert model.text_projection.grad.any()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ids = tokenizer_for(model)(PROMPTS[:2])
        found = model.encode_text(ids)
        with attachment.disabled():
            base = model.encode_text(ids)
    assert torch.equal(found, attachment.projections["joint"](base))


def test_batches_do_not_show(gender: PromptSet) -> None:
    host = open_clip_host(make_clip(), open_clip_tokenizer())
    prompts = [f"a photo of {n} doctors" for n in range(70)]
    rows = host.embed(prompts)
    assert rows.shape == (70, DIM)
    torch.testing.assert_close(rows[-1:], host.embed(prompts[-1:]), atol=1e-6, rtol=1e-6)


@torch.no_grad()
def test_a_batch_without_rows_stays_one(gender: PromptSet) -> None:
    model = make_clip()
    with debias(model, gender):
        assert model.encode_text(open_clip_tokenizer()(["a doctor"])[:0]).shape == (0, DIM)


def test_long_prompts_warn(gender: PromptSet) -> None:
    host = open_clip_host(make_clip(), open_clip_tokenizer())
    host.embed(["doctor " * 75])  # 77 with start and end
    with pytest.warns(TruncatedPromptWarning, match=r"CLIP reads 77 tokens; the rest of 'doctor .*\(78 tokens\)"):
        host.embed(["a photo", "doctor " * 76])


def test_a_shorter_model_cuts_its_prompts() -> None:
    model = make_clip(context_length=8)
    host = open_clip_host(model, open_clip_tokenizer())
    assert host.embed(["a photo of a doctor"]).shape == (1, DIM)
    with pytest.warns(TruncatedPromptWarning, match="CLIP reads 8 tokens"):
        host.embed(["a photo of a doctor and a nurse"])
    long = [f"a photo of a doctor and of {i} nurses" for i in range(5)]
    with pytest.warns(TruncatedPromptWarning, match=r"and of 2 nurses' \(\d+ tokens\); and 2 more is cut off"):
        host.embed(long)


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
    before, base = state_of(dict(model.named_modules())), outputs(model, images)
    with debias(model, gender, keep_stated=False) as attachment:
        found = outputs(model, images)
        assert torch.equal(found["encode_text"], attachment.projections["joint"](base["encode_text"]))
        assert all(not torch.allclose(found[key], base[key], atol=1e-3) for key in base)
    assert same(outputs(model, images), base)
    assert state_of(dict(model.named_modules())) == before


def test_a_saved_projection_attaches_without_a_tokenizer(gender: PromptSet, tmp_path: Any) -> None:
    model = make_whole(context_length=32)
    ids = open_clip.SimpleTokenizer(context_length=32)(PROMPTS)
    with vldebias.debias(model, gender, tokenizer=open_clip.SimpleTokenizer(context_length=32), keep_stated=False) as a:
        expected = model.encode_text(ids)
        a.projections["joint"].save_pretrained(tmp_path)
    loaded = CalibratedProjection.from_pretrained(tmp_path)
    assert loaded.space == "open_clip.joint"
    with vldebias.debias(model, loaded, keep_stated=False):
        torch.testing.assert_close(model.encode_text(ids), expected)
    with (
        vldebias.debias(model, loaded),
        pytest.raises(InvalidInputError, match=r"context length 32 .* pass tokenizer=open_clip\.get_tokenizer"),
    ):
        model.encode_text(ids)  # here a text has to be read


class Splits:
    """A tokenizer whose ids nobody could read back."""

    context_length = 77

    def __call__(self, texts: Any) -> Any:
        return [text.split() for text in texts]


def test_tokenizers(gender: PromptSet) -> None:
    with pytest.raises(InvalidInputError, match=r"vocabulary 1000 .*pass tokenizer=open_clip\.get_tokenizer"):
        vldebias.debias(make_clip(vocab_size=1000), gender)
    with pytest.raises(InvalidInputError, match=r"expected what open_clip\.get_tokenizer.* returns, got function"):
        vldebias.debias(make_clip(), gender, tokenizer=open_clip.tokenize)
    with pytest.raises(InvalidInputError, match=r"expected what open_clip\.get_tokenizer.* returns, got Splits"):
        vldebias.debias(make_clip(), gender, tokenizer=Splits())
    vldebias.debias(make_whole(), gender).remove()


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
        with pytest.warns(TruncatedPromptWarning, match=r"reads 12 tokens; .*\(13 tokens\)"):
            open_clip_host(model, tokenizer).embed(["a photo of " * 3 + "a doctor"])
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
    patched = make_clip()
    fitted = vldebias.fit_projection(patched, gender, tokenizer=tokenizer_for(patched))
    patched.encode_text = lambda text, normalize=False: text
    with pytest.raises(UnsupportedHostError, match=r"CLIP: `encode_text` of this instance was replaced by .*lambda"):
        vldebias.debias(patched, fitted, keep_stated=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_torchscript_is_refused(gender: PromptSet) -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(UnsupportedHostError, match="RecursiveScriptModule"):
        vldebias.debias(scripted, gender)
    with pytest.raises(UnsupportedHostError, match=r"TorchScript model has its calls fixed.*jit=False"):
        open_clip_host(scripted)


@torch.no_grad()
def test_the_overhead_is_two_thin_products(gender: PromptSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 n d rank multiplications, and no text is read without a gate."""
    model = make_clip()
    ids = tokenizer_for(model)(PROMPTS)

    def flops() -> int:
        with FlopCounterMode(display=False) as counter:
            model.encode_text(ids)
        return counter.get_total_flops()

    base = flops()
    with debias(model, gender, keep_stated=False) as attachment:
        monkeypatch.setattr(OpenClipHost, "texts", None)
        projection = attachment.projections["joint"]
        assert projection.rank < DIM
        assert flops() - base == 2 * 2 * len(PROMPTS) * DIM * projection.rank
