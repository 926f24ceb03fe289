"""open_clip: one seam for all paths, three states, the gate, folding, and what is refused."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import open_clip
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import vldebias
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    ProjectionMismatchError,
    TruncatedPromptWarning,
    UnsupportedHostError,
    VldebiasError,
)
from vldebias.hosts.open_clip import OpenClipHost, wrap
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet
from vldebias.stated import StatedWords

VISION: dict[str, Any] = {"layers": 1, "width": 32, "head_width": 16, "patch_size": 16, "image_size": 32}
TEXT: dict[str, Any] = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
PROMPTS = ["a photo of a doctor", "a photo of the manager", "a photo of a FEMALE doctor", "A WOMAN, smiling", "a human"]
STATED = [False, False, True, True, False]
DIM = 24


def make_clip(**more: Any) -> nn.Module:
    return open_clip.CLIP(DIM, VISION, {**TEXT, **more}, init_logit_bias=-1.0).eval()


def make_custom(dim: int = DIM, **more: Any) -> nn.Module:
    return open_clip.CustomTextCLIP(dim, VISION, {**TEXT, **more}).eval()


def make_hf(proj: str = "mlp") -> nn.Module:
    """A CustomTextCLIP whose text tower is a Hugging Face model, made from a config."""
    from open_clip.hf_model import HFTextEncoder
    from transformers import BertConfig

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 37}
    config = BertConfig(vocab_size=49408, initializer_range=0.3, **sizes)
    model = make_custom()
    width = 32 if proj == "identity" else DIM
    model.text = HFTextEncoder("", width, config, proj_type=None if proj == "identity" else proj)
    return model.eval()


def make_coca() -> nn.Module:
    text = {**TEXT, "context_length": 76, "embed_cls": True, "output_tokens": True}
    decoder = {"context_length": 76, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    vision = {**VISION, "attentional_pool": True, "attn_pooler_heads": 2, "output_tokens": True}
    model = open_clip.CoCa(32, decoder, text, vision).eval()
    for parameter in (model.text.text_projection, model.text_decoder.text_projection):
        nn.init.normal_(parameter, std=0.2)
    return model


def with_bias(model: nn.Module) -> nn.Module:
    """open_clip starts the bias of its head at zero, where a fold that forgets it goes unnoticed."""
    nn.init.normal_(getattr(model, "text", model).text_projection.bias)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "clip": make_clip,
    "clip-linear": lambda: with_bias(make_clip(proj_bias=True)),
    "custom": make_custom,
    "custom-linear": lambda: with_bias(make_custom(proj_bias=True)),
    "custom-identity": lambda: make_custom(32, proj_type="none"),
    "hf-mlp": make_hf,
    "hf-linear": lambda: make_hf("linear"),
    "coca": make_coca,
}
FOLDABLE = [name for name in MODELS if name != "custom-identity"]


def tokenizer_for(model: nn.Module) -> Any:
    return tokenizer_of_length(min(77, model.context_length))


@cache
def tokenizer_of_length(length: int) -> Any:
    return open_clip.SimpleTokenizer(context_length=length)


def outputs(model: nn.Module, images: Tensor, prompts: list[str] = PROMPTS) -> dict[str, Tensor]:
    """Every tensor that depends on the text, by the public path that gives it."""
    ids = tokenizer_for(model)(prompts)
    if isinstance(model, open_clip.CoCa):  # its captions belong to their images one by one
        images = images[[0] * len(prompts)]
    found = {
        "encode_text": model.encode_text(ids, normalize=False),
        "normalized": model.encode_text(ids, normalize=True),
        "default": model.encode_text(text=ids),
    }
    both = model(images, ids)
    if isinstance(both, dict):
        return found | {"forward": both["text_features"]}
    found |= {"forward": both[1], "text only": model(text=ids)[1]}
    for key, logits in zip(("image logits", "text logits"), model.get_logits(images, ids), strict=True):
        found[key] = logits
    model.output_dict = True
    found["dict"] = model(images, ids)["text_features"]
    model.output_dict = False
    return found


def intermediates(model: nn.Module, images: Tensor, **more: Any) -> dict[str, Tensor]:
    ids = tokenizer_for(model)(PROMPTS)
    return model.forward_intermediates(images, ids, text_output_fmt="NLC", **more)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


def debias(model: nn.Module, prompts: Any, **more: Any) -> vldebias.Attachment:
    return vldebias.debias(model, prompts, tokenizer=tokenizer_for(model), **more)


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    return MODELS[request.param]()


@torch.no_grad()
def test_three_states_on_every_path(model: nn.Module, gender: PromptSet, images: Tensor, state_of: Any) -> None:
    before, base = state_of(model), outputs(model, images)
    attachment = debias(model, gender)
    attached = outputs(model, images)
    assert all(not torch.allclose(base[key], attached[key], atol=1e-3) for key in base)
    with attachment.disabled():
        assert same(outputs(model, images), base)
    assert same(outputs(model, images), attached)
    attachment.remove()
    assert same(outputs(model, images), base)
    assert state_of(model) == before
    attachment.remove()
    assert state_of(model) == before


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
@pytest.mark.parametrize("normalize", [True, False])
def test_intermediates_agree(kind: str, normalize: bool, gender: PromptSet, images: Tensor) -> None:
    model = MODELS[kind]()
    asked = {"normalize": normalize, "output_logits": True}
    base = intermediates(model, images, **asked)
    with debias(model, gender) as attachment:
        found = intermediates(model, images, **asked)
        expected = model.encode_text(tokenizer_for(model)(PROMPTS), normalize=normalize)
        torch.testing.assert_close(found["text_features"], expected)
        assert torch.equal(found["text_features"][STATED], base["text_features"][STATED])
        if normalize:
            logits, _ = model.get_logits(images, tokenizer_for(model)(PROMPTS))
            torch.testing.assert_close(found["image_logits"], logits)
            torch.testing.assert_close(found["text_logits"], logits.T)
        assert "text_features" not in intermediates(model, images, intermediates_only=True)
        assert "text_features" not in model.forward_intermediates(images)
        attachment.strength = 0
        again = intermediates(model, images, **asked)
    for key in ("text_features", "image_logits", "text_logits"):
        assert not torch.equal(found[key], base[key])
        assert torch.equal(again[key], base[key])


@torch.no_grad()
def test_strength(gender: PromptSet, images: Tensor) -> None:
    model = make_clip()
    base = outputs(model, images)
    attachment = debias(model, gender, keep_stated=False, strength=0)
    assert same(outputs(model, images), base)
    attachment.strength = 1
    full = outputs(model, images)["encode_text"]
    assert not torch.allclose(full, base["encode_text"], atol=1e-3)
    attachment.strength = 0.5
    torch.testing.assert_close(outputs(model, images)["encode_text"], (base["encode_text"] + full) / 2)


def test_with_restores_after_an_exception(gender: PromptSet, state_of: Any) -> None:
    model = make_clip()
    before = state_of(model)
    with pytest.raises(KeyError), debias(model, gender):
        {}["an error of the user's"]
    assert state_of(model) == before
    assert vldebias.attachment_of(model) is None


def test_second_attachment_is_refused(gender: PromptSet, age: PromptSet) -> None:
    model = make_custom()
    attachment = debias(model, gender)
    assert vldebias.attachment_of(model) is attachment
    ids = tokenizer_for(model)(PROMPTS)
    attached = model.encode_text(ids)
    with pytest.raises(AlreadyAttachedError, match=r"CustomTextCLIP already carries .*tiny-gender.*\.remove\(\).*list"):
        debias(model, age)
    other = make_custom()
    other.text = model.text  # the same tower through another door
    with pytest.raises(AlreadyAttachedError, match="already carries"):
        debias(other, age)
    assert torch.equal(model.encode_text(ids), attached)
    attachment.remove()
    debias(model, age).remove()


@torch.no_grad()
def test_stated_prompts_are_left_alone(model: nn.Module, gender: PromptSet) -> None:
    ids = tokenizer_for(model)(PROMPTS)
    base = model.encode_text(ids)
    with debias(model, gender):
        attached = model.encode_text(ids)
    unchanged = [torch.equal(one, other) for one, other in zip(base, attached, strict=True)]
    assert unchanged == STATED


@torch.no_grad()
def test_keep_stated_can_be_turned_off(gender: PromptSet) -> None:
    model = make_clip()
    ids = tokenizer_for(model)(PROMPTS)
    base = model.encode_text(ids)
    with debias(model, gender, keep_stated=False):
        assert (model.encode_text(ids) != base).any(dim=1).all()


@pytest.mark.parametrize("text", ["a male-dominated room!!", "don't   PANIC — a woman's café", "25-year-old man", "!"])
def test_ids_are_read_back_as_the_text(text: str) -> None:
    host = wrap(make_clip())
    (read,) = host.texts(open_clip.SimpleTokenizer()([text]))
    words = StatedWords(["man", "woman", "year-old", "panic"])
    assert "".join(read.split()) == "".join(text.lower().split())
    assert words.find(read) == words.find(text)


@torch.no_grad()
def test_two_sets_are_solved_jointly(gender: PromptSet, age: PromptSet) -> None:
    model = make_clip()
    ids = tokenizer_for(model)(PROMPTS)
    results = []
    for sets in ([gender, age], [age, gender]):
        with debias(model, sets) as attachment:
            results.append(model.encode_text(ids))
    assert attachment.projections["joint"].prompts == "tiny-age+tiny-gender"
    torch.testing.assert_close(*results)
    with debias(model, gender):
        assert not torch.allclose(model.encode_text(ids), results[0], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("kind", FOLDABLE)
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_merged_equals_attached(
    kind: str, strength: float, gender: PromptSet, images: Tensor, state_of: Any, tmp_path: Any
) -> None:
    from safetensors.torch import load_file, save_file

    model = MODELS[kind]()
    before = state_of(model)
    attachment = debias(model, gender, keep_stated=False, strength=strength)
    attached = outputs(model, images)
    attachment.merge()
    assert state_of(model) == before
    assert attachment.state == "merged"
    merged = outputs(model, images)
    for key in attached:
        torch.testing.assert_close(merged[key], attached[key], atol=1e-5, rtol=1e-5)
    save_file({key: value.clone() for key, value in model.state_dict().items()}, tmp_path / "merged.safetensors")
    fresh = MODELS[kind]()
    fresh.load_state_dict(load_file(tmp_path / "merged.safetensors"))
    assert same(outputs(fresh, images), merged)
    with pytest.raises(VldebiasError, match="part of the weights since merge"):
        attachment.remove()


@pytest.mark.parametrize("make", [lambda: make_custom(32, proj_type="none"), lambda: make_hf("identity")])
def test_merge_needs_a_linear_end(make: Callable[[], nn.Module], gender: PromptSet) -> None:
    model = make()
    attachment = debias(model, gender)
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(UnsupportedHostError, match=r"CustomTextCLIP: the text tower ends in .*(NoneType|Identity)"):
        attachment.merge()
    assert attachment.state == "attached"
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, gender: PromptSet) -> None:
    model = make_custom().to(dtype)
    ids = tokenizer_for(model)(PROMPTS)
    base = model.encode_text(ids)
    with debias(model, gender, keep_stated=False) as attachment:
        found = model.encode_text(ids)
        expected = attachment.projections["joint"](base.double())
    assert found.dtype == dtype
    assert attachment.projections["joint"].left.dtype == torch.float64
    torch.testing.assert_close(found.double(), expected, atol=torch.finfo(dtype).eps * 4, rtol=1e-2)
    attachment = debias(model, gender, keep_stated=False)
    attachment.merge()
    assert model.text.text_projection.dtype == dtype
    torch.testing.assert_close(model.encode_text(ids), found, atol=0.1, rtol=0.1)


def test_gradients_flow_through_the_projection(gender: PromptSet) -> None:
    model = make_clip().train()
    ids = tokenizer_for(model)(PROMPTS)
    with debias(model, gender, keep_stated=False) as attachment:
        weights = torch.randn(DIM)
        (model.encode_text(ids) @ weights).sum().backward()
        gradient = model.text_projection.grad.clone()
        model.zero_grad()
        with attachment.disabled():
            ((model.encode_text(ids) @ attachment.projections["joint"].matrix().float().T) @ weights).sum().backward()
    torch.testing.assert_close(gradient, model.text_projection.grad)
    assert all(p.requires_grad for p in model.parameters())


def test_fitting_leaves_modes_and_gradients_alone(gender: PromptSet) -> None:
    model = make_clip().train()
    model.transformer.eval()
    modes = [module.training for module in model.modules()]
    debias(model, gender).remove()
    assert [module.training for module in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())


def test_embeddings_for_fitting_are_never_projected(gender: PromptSet) -> None:
    model = make_clip()
    bare = wrap(model).embed(PROMPTS)
    assert bare.dtype == torch.float64
    assert bare.device.type == "cpu"
    torch.testing.assert_close(bare.norm(dim=1), torch.ones(len(PROMPTS), dtype=torch.float64))
    with debias(model, gender):
        assert torch.equal(wrap(model).embed(PROMPTS), bare)


def test_fitting_inside_other_modes(gender: PromptSet) -> None:
    """What surrounds the call, autocast or inference mode, neither blurs the fit nor freezes the factors."""
    model = make_clip()
    expected = vldebias.fit_projection(model, gender)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = vldebias.fit_projection(model, gender)
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
    host = wrap(make_clip())
    prompts = [f"a photo of {n} doctors" for n in range(70)]
    rows = host.embed(prompts)
    assert rows.shape == (70, DIM)
    torch.testing.assert_close(rows[-1:], host.embed(prompts[-1:]), atol=1e-6, rtol=1e-6)
    with pytest.raises(InvalidInputError, match="CLIP: expected at least one prompt"):
        host.embed([])


def test_long_prompts_warn(gender: PromptSet) -> None:
    host = wrap(make_clip())
    host.embed(["doctor " * 75])  # 77 with start and end
    with pytest.warns(TruncatedPromptWarning, match=r"CLIP reads 77 tokens; the rest of 'doctor .*\(78 tokens\)"):
        host.embed(["a photo", "doctor " * 76])


def test_a_shorter_model_cuts_its_prompts() -> None:
    model = make_clip(context_length=8)
    host = wrap(model, open_clip.SimpleTokenizer())
    assert host.embed(["a photo of a doctor"]).shape == (1, DIM)
    with pytest.warns(TruncatedPromptWarning, match="CLIP reads 8 tokens"):
        host.embed(["a photo of a doctor and a nurse"])


def test_deepcopy_follows_the_attachment(gender: PromptSet) -> None:
    model = make_clip()
    ids = tokenizer_for(model)(PROMPTS)
    base = model.encode_text(ids)
    attachment = debias(model, gender)
    twin = copy.deepcopy(model)
    assert torch.equal(twin.encode_text(ids), model.encode_text(ids))
    with torch.no_grad():
        twin.text_projection.zero_()  # its own weights are at work, not those of the original
    assert not twin.encode_text(ids)[0].any()
    with pytest.raises(AlreadyAttachedError, match="CLIP: this model is a copy of one that carries an attachment"):
        debias(copy.deepcopy(model), gender)
    twin = copy.deepcopy(model)
    attachment.remove()
    assert torch.equal(twin.encode_text(ids), base)
    debias(twin, gender).remove()
    assert "encode_text" not in vars(twin)


def test_pickling_is_refused_while_attached(gender: PromptSet) -> None:
    model = make_clip()
    attachment = debias(model, gender)
    with pytest.raises(VldebiasError, match=r"CLIP: a model cannot be pickled .*\.remove\(\) or \.merge\(\)"):
        pickle.dumps(model)
    assert model.state_dict().keys() == make_clip().state_dict().keys()
    attachment.remove()
    assert pickle.loads(pickle.dumps(model)).text_projection.shape == (32, DIM)


def test_nothing_keeps_a_model_alive(gender: PromptSet) -> None:
    model = make_clip()
    debias(model, gender)
    attachment = vldebias.attachment_of(model)
    assert attachment is not None
    assert attachment.state == "attached"
    gone = weakref.ref(model)
    del model, attachment
    gc.collect()
    assert gone() is None


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
def test_a_private_method_is_projected_once(gender: PromptSet, images: Tensor, state_of: Any) -> None:
    model = Routed(DIM, VISION, TEXT).eval()
    before, base = state_of(model), outputs(model, images)
    with debias(model, gender, keep_stated=False) as attachment:
        found = outputs(model, images)
        assert torch.equal(found["encode_text"], attachment.projections["joint"](base["encode_text"]))
        assert all(not torch.allclose(found[key], base[key], atol=1e-3) for key in base)
    assert same(outputs(model, images), base)
    assert state_of(model) == before


def test_a_saved_projection_attaches_without_a_tokenizer(gender: PromptSet, tmp_path: Any) -> None:
    model = make_clip(context_length=32)
    ids = open_clip.SimpleTokenizer(context_length=32)(PROMPTS)
    with debias(model, gender, keep_stated=False) as attachment:
        expected = model.encode_text(ids)
        attachment.projections["joint"].save_pretrained(tmp_path)
    loaded = CalibratedProjection.from_pretrained(tmp_path)
    assert loaded.space == "open_clip.joint"
    with vldebias.debias(model, loaded, keep_stated=False):
        torch.testing.assert_close(model.encode_text(ids), expected)
    with (
        vldebias.debias(model, loaded),
        pytest.raises(InvalidInputError, match=r"context length 32 .* pass tokenizer=open_clip\.get_tokenizer"),
    ):
        model.encode_text(ids)  # here a text has to be read


def test_foreign_projections_are_refused(gender: PromptSet) -> None:
    model = make_clip()
    mine = vldebias.fit_projection(model, gender)
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in changed.transformer.parameters():
            parameter.add_(0.1)
    with pytest.raises(ProjectionMismatchError, match=r"CLIP: .*fitted on other weights.*fit again"):
        vldebias.debias(changed, mine)
    seeing = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in seeing.visual.parameters():
            parameter.add_(0.1)
    vldebias.debias(seeing, mine).remove()  # the vision tower has no say
    from dataclasses import replace

    with pytest.raises(ProjectionMismatchError, match=r"space 'transformers\.joint', here it is 'open_clip\.joint'"):
        vldebias.debias(model, replace(mine, space="transformers.joint"))
    wide = CalibratedProjection.fit(torch.randn(3, 2, DIM + 1))
    with pytest.raises(ProjectionMismatchError, match="has dim 25, 'joint' has 24"):
        vldebias.debias(model, wide)
    half = copy.deepcopy(model).half()
    vldebias.debias(half, mine).remove()  # the same checkpoint in another precision


def test_tokenizers(gender: PromptSet) -> None:
    with pytest.raises(InvalidInputError, match=r"vocabulary 1000 .*pass tokenizer=open_clip\.get_tokenizer"):
        vldebias.debias(make_clip(vocab_size=1000), gender)
    with pytest.raises(InvalidInputError, match=r"expected what open_clip\.get_tokenizer.* returns, got function"):
        vldebias.debias(make_clip(), gender, tokenizer=open_clip.tokenize)
    vldebias.debias(make_clip(), gender).remove()


def test_a_hugging_face_tokenizer_reads_for_the_gate(gender: PromptSet, bert_tokenizer: Any) -> None:
    tokenizer = object.__new__(open_clip.tokenizer.HFTokenizer)
    vars(tokenizer).update(
        tokenizer=bert_tokenizer,
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
            wrap(model, tokenizer).embed(["a photo of " * 3 + "a doctor"])
    assert [torch.equal(one, other) for one, other in zip(base, attached, strict=True)] == STATED[:3]


def test_what_is_refused(gender: PromptSet) -> None:
    model = make_clip()
    with pytest.raises(UnsupportedHostError, match=r"VisionTransformer: expected one of .*CLIP, CustomTextCLIP, CoCa"):
        vldebias.debias(model.visual, gender)
    with pytest.raises(UnsupportedHostError, match=r"DataParallel: .*the model inside"):
        vldebias.debias(nn.DataParallel(model), gender)
    with pytest.raises(UnsupportedHostError, match=r"OptimizedModule: .*the model inside"):
        vldebias.debias(torch.compile(model), gender)
    model.compile()
    with pytest.raises(UnsupportedHostError, match=r"CLIP: the model was compiled in place.*\.merge\(\) and compile"):
        vldebias.debias(model, gender)
    patched = make_clip()
    fitted = vldebias.fit_projection(patched, gender)
    patched.encode_text = lambda text, normalize=False: text
    with pytest.raises(UnsupportedHostError, match=r"CLIP: `encode_text` of this instance was replaced by .*lambda"):
        vldebias.debias(patched, fitted, keep_stated=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_torchscript_is_refused(gender: PromptSet) -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(UnsupportedHostError, match="RecursiveScriptModule"):
        vldebias.debias(scripted, gender)
    with pytest.raises(UnsupportedHostError, match=r"TorchScript model has its calls fixed.*jit=False"):
        wrap(scripted)


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
