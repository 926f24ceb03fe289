"""Test transformers and open_clip models: all code paths, the gate, merging, and errors."""

import copy
import threading
from types import SimpleNamespace
from typing import Any

import open_clip
import pytest
import torch
import transformers
from models_tiny import (
    OPEN_CLIP,
    PROMPTS,
    STATED,
    TRANSFORMERS,
    OpenClip,
    Transformers,
    before_transformers_5,
    embedding,
    make,
    make_clip,
    make_hf,
)
from tiny_tokenizers import CLIP_IDS, bert_tokenizer, clip_tokenizer, hf_tokenizer, siglip_tokenizer
from torch import Tensor, nn
from transformers.utils import logging

import vldebias
from tests.tiny_llava import load_llava
from vldebias import miniature
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    TruncatedPromptWarning,
    UnsupportedHostError,
)
from vldebias.hosts.clip.open_clip import OpenClipHost
from vldebias.hosts.clip.transformers import TransformersHost
from vldebias.prompts import PromptSet, StatedWords


@pytest.fixture(params=TRANSFORMERS)
def case(request: pytest.FixtureRequest) -> Transformers:
    return Transformers(request.param)


@pytest.fixture
def clip() -> Transformers:
    return Transformers("CLIPModel")


@torch.no_grad()
def test_embeddings_used_for_fitting_match_the_model(case: Transformers, gender: PromptSet) -> None:
    host = TransformersHost(case.host, case.tokenizer)
    rows = host.embed(PROMPTS)
    assert (rows.dtype, rows.device.type) == (torch.float64, "cpu")
    assert host.dim("text") == rows.shape[1]
    expected = nn.functional.normalize(case.features().double(), dim=-1)
    torch.testing.assert_close(rows, expected, atol=1e-6, rtol=1e-5)
    for row, prompt in zip(rows, PROMPTS, strict=True):  # neither padding nor the batch matters
        torch.testing.assert_close(host.embed([prompt])[0], row, atol=1e-5, rtol=1e-4)
    with case.debias(gender):
        assert torch.equal(TransformersHost(case.host, case.tokenizer).embed(PROMPTS), rows)


def test_truncated_prompts_warn(case: Transformers) -> None:
    host = TransformersHost(case.host, case.tokenizer)
    (positions,) = {
        table.num_embeddings
        if table.padding_idx is None
        # RoBERTa numbers positions from the index after the padding token's.
        else table.num_embeddings - table.padding_idx - 1
        for name, table in case.host.named_modules()
        if isinstance(table, nn.Embedding) and "position" in name and "vision" not in name
    }
    reads = min(positions, case.tokenizer.model_max_length)
    special = host.count_tokens(["doctor"])[0] - 1
    logging.set_verbosity_error()
    host.embed([" ".join(["doctor"] * (reads - special))])
    message = rf"{reads} tokens.*\({reads + 1} tokens\)"
    with pytest.warns(TruncatedPromptWarning, match=message):
        rows = host.embed([" ".join(["doctor"] * (reads - special + 1))])
    assert rows.isfinite().all()


@pytest.mark.parametrize("whole_first", [True, False])
@pytest.mark.parametrize("family", ["siglip", "clip"])
def test_a_tower_can_only_be_attached_through_one_model(
    family: str, whole_first: bool, gender: PromptSet
) -> None:
    if family == "siglip":
        if before_transformers_5():
            pytest.skip("transformers 4 nests SigLIP's text tower, which is refused by itself")
        model = make("SiglipModel")
        tokenizer = siglip_tokenizer()
        text = model.text_model
    else:
        model = make("CLIPModel")
        tokenizer = clip_tokenizer()
        text = make("CLIPTextModelWithProjection")
        model.text_model = text.text_model
        model.text_projection = text.text_projection
    first, second = (model, text) if whole_first else (text, model)
    attachment = vldebias.debias(first, gender, tokenizer=tokenizer)
    with pytest.raises(AlreadyAttachedError, match=rf"{type(second).__name__} already has"):
        vldebias.debias(second, gender, tokenizer=tokenizer)
    attachment.remove()
    vldebias.debias(second, gender, tokenizer=tokenizer).remove()


@pytest.mark.parametrize("name", ["ChineseCLIPModel", "SiglipTextTransformer"])
def test_models_that_transformers_4_cannot_use_for_embeddings_are_rejected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers, "__version__", "4.57.6")
    bases = (nn.Module,)
    model = type(name, bases, {"__module__": "transformers.models", "config": SimpleNamespace()})()
    with pytest.raises(UnsupportedHostError, match=rf"^{name}: .*transformers 4"):
        TransformersHost(model, clip_tokenizer())


@torch.no_grad()
def test_ids_are_discarded_after_use(clip: Transformers, gender: PromptSet) -> None:
    """Embeddings passed directly to the head belong to no prompt, in particular not to the previous
    ones."""
    pooled = torch.randn(len(PROMPTS), 32)
    base = clip.host.text_projection(pooled)
    with clip.debias(gender):
        clip.features()
        assert (clip.host.text_projection(pooled) != base).any(dim=1).all()


@torch.no_grad()
def test_threads_do_not_mix_up_their_prompts(clip: Transformers, gender: PromptSet) -> None:
    """A second thread encodes its prompts between the tower and the head of the first."""
    stated = clip.inputs(["a woman"])
    unstated = clip.inputs(["a doctor"])
    base = [embedding(clip.host.get_text_features(**inputs)) for inputs in (stated, unstated)]
    features: list[Tensor] = []

    def encode_in_thread() -> None:
        with torch.no_grad():
            features.append(embedding(clip.host.get_text_features(**unstated)))

    def interrupt(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=encode_in_thread)
            thread.start()
            thread.join()

    with clip.debias(gender):
        handle = clip.host.text_projection.register_forward_pre_hook(interrupt)
        stated_row = embedding(clip.host.get_text_features(**stated))
        handle.remove()
    assert torch.equal(stated_row, base[0])
    assert not torch.allclose(features[0], base[1], atol=1e-3)


def test_a_saved_edit_fits_both_classes_of_a_checkpoint(
    clip: Transformers, gender: PromptSet, tmp_path: Any
) -> None:
    clip.host.save_pretrained(tmp_path / "model")
    with clip.debias(gender, keep_stated=False) as attachment:
        expected = clip.features()
        loaded = attachment.projections["text"]
    # No tokenizer is needed because no ids are decoded.
    with vldebias.debias(clip.host, loaded, keep_stated=False):
        assert torch.equal(clip.features(), expected)
    text = transformers.CLIPTextModelWithProjection.from_pretrained(tmp_path / "model").eval()
    with vldebias.debias(text, loaded, keep_stated=False):
        torch.testing.assert_close(text(**clip.inputs()).text_embeds, expected)


def test_merged_and_saved_weights_are_not_edited_again(
    clip: Transformers, gender: PromptSet, tmp_path: Any
) -> None:
    clip.host.save_pretrained(tmp_path / "before")
    clip.debias(gender, method="cali", strength=0.5, keep_stated=False).merge()
    clip.host.save_pretrained(tmp_path / "after")
    note = r"already contain a merged projection: tiny-gender \(cali\) at strength 0\.5\. Load"
    for dtype in (torch.float32, torch.bfloat16):
        again = transformers.CLIPModel.from_pretrained(tmp_path / "after").to(dtype)
        with pytest.raises(AlreadyAttachedError, match=note):
            vldebias.debias(again, gender, tokenizer=clip.tokenizer)
    before = transformers.CLIPModel.from_pretrained(tmp_path / "before")
    vldebias.debias(before, gender, tokenizer=clip.tokenizer).remove()


def test_the_tokenizer_of_the_checkpoint_is_found(
    clip: Transformers, gender: PromptSet, tmp_path: Any
) -> None:
    clip.host.save_pretrained(tmp_path)
    loaded = transformers.CLIPModel.from_pretrained(tmp_path)
    with pytest.raises(InvalidInputError, match=rf"no tokenizer in .{tmp_path}.*pass tokenizer="):
        vldebias.debias(loaded, gender)
    clip.tokenizer.save_pretrained(tmp_path)
    with vldebias.debias(loaded, gender) as attachment:
        assert attachment.projections["text"].model_id == str(tmp_path)
        assert not attachment.stated(["a doctor"])[0]


def test_missing_and_wrong_tokenizers_are_rejected(clip: Transformers, gender: PromptSet) -> None:
    bare = copy.deepcopy(bert_tokenizer())
    bare.pad_token = None
    for tokenizer in (None, "openai/clip", bare):
        with pytest.raises(InvalidInputError, match="tokenizer"):
            vldebias.debias(clip.host, gender, tokenizer=tokenizer)
    cased = siglip_tokenizer()
    ids = TransformersHost(clip.host, cased).tokenize(["A DOCTOR"])["input_ids"].tolist()
    assert ids == cased(["A DOCTOR"])["input_ids"] != cased(["a doctor"])["input_ids"]
    processor = SimpleNamespace(tokenizer=clip.tokenizer)
    vldebias.debias(clip.host, gender, tokenizer=processor).remove()


@pytest.mark.parametrize("eos", [CLIP_IDS - 1, 2])
def test_prompts_padded_with_the_end_token_are_supported(eos: int) -> None:
    """Old CLIP configs have 2 as the end token, in which case the tower pools the first of the
    largest ids."""
    assert clip_tokenizer().pad_token_id == clip_tokenizer().eos_token_id == CLIP_IDS - 1
    model = make("CLIPTextModelWithProjection", eos_token_id=eos)
    host = TransformersHost(model, clip_tokenizer())
    short = "a doctor"
    alone = host.embed([short])
    torch.testing.assert_close(
        host.embed([short, "a photo of " * 6])[:1], alone, atol=1e-6, rtol=1e-5
    )
    ids = clip_tokenizer()(
        [short], padding="max_length", max_length=77, return_tensors="pt"
    ).input_ids
    assert host.texts(ids) == [short]


def test_unsupported_classes_are_rejected(clip: Transformers, gender: PromptSet) -> None:
    blip = type("BlipModel", (transformers.BlipModel,), {"__init__": nn.Module.__init__})()
    another = make_clip()
    text = clip.host.text_model
    for model, compiled, *modules in (
        (clip.host, text, text, blip),
        (another, another, another.visual),
    ):
        for host in (*modules, nn.DataParallel(model), torch.compile(model)):
            with pytest.raises(UnsupportedHostError, match=type(host).__name__):
                vldebias.debias(host, gender)
        compiled.compile()
        with pytest.raises(UnsupportedHostError, match="compiled in place"):
            vldebias.debias(model, gender)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_are_supported_or_rejected(clip: Transformers, gender: PromptSet) -> None:
    """LoRA inside the tower is part of the embedding. LoRA on the head must be merged before an
    edit can be folded in."""
    import peft

    plain = copy.deepcopy(clip.host)
    wrapped = peft.get_peft_model(
        clip.host, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False)
    )
    with pytest.raises(UnsupportedHostError, match=r"PeftModel: .*model\.get_base_model\(\)"):
        vldebias.debias(wrapped, gender, tokenizer=clip.tokenizer)
    clip.host = wrapped.get_base_model()
    base = clip.features()
    with clip.debias(gender, keep_stated=False) as attachment:
        torch.testing.assert_close(clip.features(), attachment.projections["text"](base))
    adapted = peft.LoraConfig(target_modules=["text_projection"], init_lora_weights=False)
    clip.host = peft.get_peft_model(plain, adapted).get_base_model()
    base = clip.features()
    with clip.debias(gender, keep_stated=False) as attachment:
        torch.testing.assert_close(clip.features(), attachment.projections["text"](base))
        with pytest.raises(UnsupportedHostError, match=r"is a peft\..*Linear; expected"):
            attachment.merge()


# This warning is about the adapter of a parameter without a module.
@pytest.mark.filterwarnings("ignore:The following device_map keys:UserWarning")
@pytest.mark.filterwarnings("ignore:.*offloaded, so they have no fingerprint")
@torch.no_grad()
def test_a_model_on_two_devices_and_disk_is_supported(gender: PromptSet, tmp_path: Any) -> None:
    """As with `device_map`, but with the CPU and the disk instead of two GPUs."""
    from accelerate import dispatch_model

    clip = Transformers("CLIPModel")
    base = clip.features()
    device_map = {
        "text_model": "disk",
        "vision_model": "cpu",
        "text_projection": "cpu",
        "visual_projection": "cpu",
    }
    device_map |= {"logit_scale": "cpu"}
    clip.host = dispatch_model(clip.host, device_map, main_device="cpu", offload_dir=str(tmp_path))
    assert next(clip.host.text_model.parameters()).is_meta
    torch.testing.assert_close(clip.features(), base)
    base = clip.features()
    with clip.debias(gender, keep_stated=False) as attachment:
        torch.testing.assert_close(clip.features(), attachment.projections["text"](base))
        with attachment.disabled():
            assert torch.equal(clip.features(), base)
    assert torch.equal(clip.features(), base)


@pytest.mark.slow
@torch.no_grad()
def test_a_model_compiled_and_called_before_attaching_is_edited_or_rejected(
    gender: PromptSet,
) -> None:
    """Regression test: compiled code does not look for new hooks, so the edit used to be ignored
    silently."""
    clip = Transformers("CLIPModel")
    base = clip.features()
    compiled = torch.compile(clip.host.get_text_features, backend="eager")
    torch.testing.assert_close(embedding(compiled(**clip.inputs())), base)
    for strength in (1.0, 0.5):
        with clip.debias(gender, keep_stated=False, strength=strength) as attachment:
            expected = attachment.projections["text"](base, strength)
            torch.testing.assert_close(embedding(compiled(**clip.inputs())), expected)
        torch.testing.assert_close(embedding(compiled(**clip.inputs())), base)
    torch.compiler.reset()


@torch.no_grad()
@pytest.mark.parametrize("kind", ["clip", "custom"])
def test_intermediates_are_rejected_until_removal(
    kind: str, gender: PromptSet, images: Tensor
) -> None:
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


@pytest.mark.parametrize(
    "text", ["a male-dominated room!!", "don't   PANIC — a woman's café", "25-year-old man", "!"]
)
def test_ids_are_decoded_to_their_text(text: str) -> None:
    host = OpenClipHost(make_clip(vocab_size=49408))
    (read,) = host.texts(open_clip.SimpleTokenizer()([text]))
    words = StatedWords(["man", "woman", "year-old", "panic"])
    assert "".join(read.split()) == "".join(text.lower().split())
    assert words.find(read) == words.find(text)


def test_tokenizers_of_open_clip_are_decoded(gender: PromptSet) -> None:
    with pytest.raises(InvalidInputError, match=r"vocabulary 1000 .*loaded with the model"):
        vldebias.debias(make_clip(vocab_size=1000), gender)
    with pytest.raises(InvalidInputError, match=r"from open_clip\.get_tokenizer.*, got function"):
        vldebias.debias(make_clip(), gender, tokenizer=open_clip.tokenize)
    with pytest.raises(InvalidInputError, match=r"ids below 2562, the vocabulary size of CLIP"):
        vldebias.debias(make_clip(), gender, tokenizer=open_clip.SimpleTokenizer())
    vldebias.debias(make_clip(vocab_size=49408), gender).remove()


def test_the_gate_supports_a_hugging_face_tokenizer(gender: PromptSet) -> None:
    tokenizer = hf_tokenizer()
    model = make_hf()
    ids = tokenizer(PROMPTS[:3])
    assert OpenClipHost(model, tokenizer).texts(ids) == [prompt.lower() for prompt in PROMPTS[:3]]
    base = model.encode_text(ids)
    with vldebias.debias(model, gender, tokenizer=tokenizer):
        attached = model.encode_text(ids)
        with pytest.warns(TruncatedPromptWarning, match=r"12 tokens.*\(13 tokens\)"):
            OpenClipHost(model, tokenizer).embed(["a photo of " * 3 + "a doctor"])
    assert [
        torch.equal(bare, edited) for bare, edited in zip(base, attached, strict=True)
    ] == STATED[:3]


@pytest.mark.parametrize("library", ["open_clip", "transformers"])
def test_a_fitted_edit_is_rejected_without_the_tokenizer_that_finds_stated_prompts(
    library: str, clip: Transformers, gender: PromptSet
) -> None:
    if library == "open_clip":
        # It has its own vocabulary, so CLIP's tokenizer does not match.
        model, _, tokenizer = miniature.load_clip()
    else:
        model, tokenizer = clip.host, clip.tokenizer
    edit = vldebias.fit_projections(model, gender, method="cali", tokenizer=tokenizer).only
    with pytest.raises(InvalidInputError, match="pass tokenizer="):
        vldebias.debias(model, edit)
    # Nothing was attached. Edits of all texts or of images do not need a tokenizer.
    vldebias.debias(model, edit, keep_stated=False).remove()
    vldebias.debias(model, edit, side="image").remove()
    vldebias.debias(model, edit, tokenizer=tokenizer).remove()


def test_models_that_write_are_refused_with_the_commands_that_measure_them(
    gender: PromptSet,
) -> None:
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    blip = transformers.BlipConfig(text_config=small, vision_config=small)
    qwen = transformers.Qwen2VLConfig(
        text_config={**small, "intermediate_size": 16, "num_key_value_heads": 2},
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 16, "num_heads": 2},
    )
    models = (
        transformers.BlipForConditionalGeneration(blip),
        transformers.Qwen2VLForConditionalGeneration(qwen),
        load_llava()[0],
    )
    for model in models:
        with pytest.raises(UnsupportedHostError, match=r"wrong genders .* more frequent") as error:
            vldebias.debias(model, gender)
        assert "`vldebias eval captions` or `vldebias eval vqa`" in str(error.value)
