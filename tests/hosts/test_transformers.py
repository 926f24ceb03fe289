"""transformers: every supported class on all its paths, the ids that the gate reads, folding, and what is refused."""

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers.utils import logging

import vldebias
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    ProjectionMismatchError,
    TruncatedPromptWarning,
    UnsupportedHostError,
    VldebiasError,
)
from vldebias.hosts.transformers import SUPPORTED, wrap
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

DIM = 24
PROMPTS = ["a photo of a doctor", "a photo of the manager", "a photo of a FEMALE doctor", "A WOMAN", "a pilot"]
STATED = [False, False, True, True, False]
LAYERS = {"hidden_size": 32, "intermediate_size": 37, "num_hidden_layers": 2, "num_attention_heads": 2}
VISION = {**LAYERS, "num_hidden_layers": 1, "image_size": 32, "patch_size": 16}
CLIP_IDS = {"vocab_size": 49408, "bos_token_id": 49406, "eos_token_id": 49407, "pad_token_id": 49407}


def clip_text(**more: Any) -> dict[str, Any]:
    return {**LAYERS, **CLIP_IDS, "max_position_embeddings": 77, "projection_dim": DIM, **more}


def make_clip(name: str = "CLIP", **text: Any) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(
        text_config=clip_text(**text), vision_config=VISION, projection_dim=DIM
    )
    return getattr(transformers, f"{name}Model")(config)


def make_clip_text(name: str = "CLIP", **text: Any) -> nn.Module:
    config = getattr(transformers, f"{name}TextConfig")(**clip_text(**text))
    return getattr(transformers, f"{name}TextModelWithProjection")(config)


def siglip_text() -> dict[str, Any]:
    return {**LAYERS, "vocab_size": 120, "max_position_embeddings": 64, "projection_size": 32, "pad_token_id": 1}


def make_siglip(name: str = "Siglip") -> nn.Module:
    vision = {**VISION, "num_patches": 4} if name == "Siglip2" else VISION
    config = getattr(transformers, f"{name}Config")(text_config=siglip_text(), vision_config=vision)
    return getattr(transformers, f"{name}Model")(config)


def make_siglip_text(name: str = "Siglip") -> nn.Module:
    return getattr(transformers, f"{name}TextModel")(getattr(transformers, f"{name}TextConfig")(**siglip_text()))


def make_chinese_clip() -> nn.Module:
    text = {**LAYERS, "vocab_size": 40, "max_position_embeddings": 52, "initializer_range": 0.3}
    config = transformers.ChineseCLIPConfig(text_config=text, vision_config=VISION, projection_dim=DIM)
    return transformers.ChineseCLIPModel(config)


def make_altclip() -> nn.Module:
    text = {**LAYERS, "vocab_size": 130, "max_position_embeddings": 40, "project_dim": 32, "pad_token_id": 1}
    config = transformers.AltCLIPConfig(text_config=text, vision_config=VISION, projection_dim=DIM)
    return transformers.AltCLIPModel(config)


def make_align() -> nn.Module:
    vision = {
        **{"image_size": 32, "kernel_sizes": [3], "in_channels": [32], "out_channels": [16], "strides": [1]},
        **{"num_block_repeats": [1], "expand_ratios": [1], "hidden_dim": 32, "depthwise_padding": []},
    }
    text = {**LAYERS, "vocab_size": 40, "initializer_range": 0.3}
    config = transformers.AlignConfig(text_config=text, vision_config=vision, projection_dim=32)
    return transformers.AlignModel(config)


MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "CLIPModel": (make_clip, "clip_tokenizer"),
    "CLIPTextModelWithProjection": (make_clip_text, "clip_tokenizer"),
    "MetaClip2Model": (lambda: make_clip("MetaClip2"), "clip_tokenizer"),
    "MetaClip2TextModelWithProjection": (lambda: make_clip_text("MetaClip2"), "clip_tokenizer"),
    "CLIPSegModel": (lambda: make_clip("CLIPSeg"), "clip_tokenizer"),
    "SiglipModel": (make_siglip, "siglip_tokenizer"),
    "SiglipTextModel": (make_siglip_text, "siglip_tokenizer"),
    "Siglip2Model": (lambda: make_siglip("Siglip2"), "siglip_tokenizer"),
    "Siglip2TextModel": (lambda: make_siglip_text("Siglip2"), "siglip_tokenizer"),
    "ChineseCLIPModel": (make_chinese_clip, "bert_tokenizer"),
    "AltCLIPModel": (make_altclip, "roberta_tokenizer"),
    "AlignModel": (make_align, "bert_tokenizer"),
}


def test_every_supported_class_is_tested() -> None:
    assert set(MODELS) == set(SUPPORTED)


class Case:
    """A model with its tokenizer and all the ways in which its text embedding can be had."""

    def __init__(self, name: str, request: pytest.FixtureRequest) -> None:
        make, tokenizer = MODELS[name]
        self.name = name
        self.make = make
        self.model = make().eval()
        self.tokenizer = request.getfixturevalue(tokenizer)
        with torch.no_grad():  # the usual initial weights make all prompts nearly the same
            for parameter in self.model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.1)
            for module in self.model.modules():
                if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0  # as from_pretrained has it

    def inputs(self, prompts: list[str] = PROMPTS) -> dict[str, Tensor]:
        padding = {"padding": "max_length", "max_length": 64} if "Siglip" in self.name else {"padding": True}
        texts = [prompt.lower() if "Siglip" in self.name else prompt for prompt in prompts]
        batch = self.tokenizer(texts, return_tensors="pt", **padding)
        return {key: batch[key] for key in ("input_ids", "attention_mask")}

    def pixels(self) -> dict[str, Tensor]:
        if not self.name.startswith("Siglip2"):
            return {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32).sin()}
        patches = torch.linspace(-1, 1, 2 * 4 * 768).reshape(2, 4, 768).sin()
        ones = torch.ones(2, 4, dtype=torch.long)
        return {"pixel_values": patches, "pixel_attention_mask": ones, "spatial_shapes": ones[:, :2] * 2}

    def features(self, **more: Any) -> Tensor:
        """The embedding before it is normalised, by the shortest path."""
        call = getattr(self.model, "get_text_features", self.model)
        output = call(**{**self.inputs(), **more})
        if isinstance(output, Tensor):
            return output
        return output.text_embeds if "text_embeds" in output else output.pooler_output

    def outputs(self) -> dict[str, Tensor]:
        """Every tensor that depends on the text embedding, by the public path that gives it."""
        found = {"features": self.features()}
        ids = self.inputs()["input_ids"]
        if not hasattr(self.model, "get_text_features"):
            found["positional"] = self.model(ids)[1 if "Siglip" in self.name else 0]
            found["tuple"] = self.model(**self.inputs(), return_dict=False)[1 if "Siglip" in self.name else 0]
            return found
        output = self.model(**self.inputs(), **self.pixels())
        found |= {"positional": self.model.get_text_features(ids).pooler_output, "forward": output.text_embeds}
        found |= {"image logits": output.logits_per_image, "text logits": output.logits_per_text}
        if self.name != "AltCLIPModel":  # its forward ignores return_dict in transformers 5
            found["tuple"] = self.model(**self.inputs(), **self.pixels(), return_dict=False)[2]
        return found

    def debias(self, prompts: Any, **more: Any) -> vldebias.Attachment:
        return vldebias.debias(self.model, prompts, tokenizer=self.tokenizer, **more)


@pytest.fixture(params=MODELS)
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param, request)


@pytest.fixture
def clip(request: pytest.FixtureRequest) -> Case:
    return Case("CLIPModel", request)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.equal(one[key], other[key]) for key in one)


@torch.no_grad()
def test_three_states_on_every_path(case: Case, gender: PromptSet, state_of: Any) -> None:
    before, base = state_of(case.model), case.outputs()
    attachment = case.debias(gender)
    attached = case.outputs()
    for key in base:
        assert not torch.allclose(base[key], attached[key], atol=1e-3), key
    with attachment.disabled():
        assert same(case.outputs(), base)
    assert same(case.outputs(), attached)
    attachment.remove()
    assert same(case.outputs(), base)
    assert state_of(case.model) == before
    attachment.remove()
    assert state_of(case.model) == before


@torch.no_grad()
def test_every_path_gives_the_projected_embedding(case: Case, gender: PromptSet) -> None:
    base = case.outputs()
    with case.debias(gender, keep_stated=False) as attachment:
        attached = case.outputs()
    projection = attachment.projections["joint"]
    assert projection.space == "transformers.joint"
    for key in ("features", "positional"):
        torch.testing.assert_close(attached[key], projection(base[key]))
    normalized = nn.functional.normalize(projection(base["features"]), dim=-1)
    if "forward" in attached:
        torch.testing.assert_close(attached["forward"], normalized, atol=1e-5, rtol=1e-4)
        assert torch.equal(attached["image logits"].T, attached["text logits"])
    if "tuple" in attached:
        torch.testing.assert_close(attached["tuple"], attached["forward" if "forward" in attached else "features"])


@torch.no_grad()
def test_stated_prompts_are_left_alone(case: Case, gender: PromptSet) -> None:
    base = case.outputs()
    with case.debias(gender):
        attached = case.outputs()
    for key in ("features", "positional"):
        assert [torch.equal(*rows) for rows in zip(base[key], attached[key], strict=True)] == STATED, key


@torch.no_grad()
def test_strength(case: Case, gender: PromptSet) -> None:
    base = case.outputs()
    attachment = case.debias(gender, keep_stated=False, strength=0)
    assert same(case.outputs(), base)
    attachment.strength = 1
    full = case.features()
    assert not torch.allclose(full, base["features"], atol=1e-3)
    attachment.strength = 0.5
    torch.testing.assert_close(case.features(), (base["features"] + full) / 2, atol=1e-5, rtol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("strength", [1.0, 0.5])
def test_merged_equals_attached(case: Case, strength: float, gender: PromptSet, state_of: Any, tmp_path: Any) -> None:
    before = state_of(case.model)
    attachment = case.debias(gender, keep_stated=False, strength=strength)
    attached = case.outputs()
    attachment.merge()
    assert state_of(case.model) == before
    merged = case.outputs()
    for key in attached:
        torch.testing.assert_close(merged[key], attached[key], atol=1e-5, rtol=1e-4, msg=key)
    case.model.save_pretrained(tmp_path)
    case.model = type(case.model).from_pretrained(tmp_path).eval()
    assert same(case.outputs(), merged)
    with pytest.raises(VldebiasError, match="part of the weights since merge"):
        attachment.remove()


@torch.no_grad()
def test_embeddings_for_fitting(case: Case, gender: PromptSet) -> None:
    host = wrap(case.model, case.tokenizer)
    rows = host.embed(PROMPTS)
    assert (rows.dtype, rows.device.type) == (torch.float64, "cpu")
    assert host.dim("joint") == rows.shape[1]
    expected = nn.functional.normalize(case.features().double(), dim=-1)
    torch.testing.assert_close(rows, expected, atol=1e-6, rtol=1e-5)
    for one, prompt in zip(rows, PROMPTS, strict=True):  # neither padding nor company shows
        torch.testing.assert_close(host.embed([prompt])[0], one, atol=1e-5, rtol=1e-4)
    with case.debias(gender):
        assert torch.equal(wrap(case.model, case.tokenizer).embed(PROMPTS), rows)


def test_long_prompts_warn(case: Case) -> None:
    host = wrap(case.model, case.tokenizer)
    limit = {"Chinese": 52, "AltCLIP": 38, "Siglip": 64, "Align": 512}
    reads = next((n for prefix, n in limit.items() if case.name.startswith(prefix)), 77)
    special = host.token_counts(["doctor"])[0] - 1
    logging.set_verbosity_error()
    host.embed([" ".join(["doctor"] * (reads - special))])
    message = rf"{case.name} reads {reads} tokens; the rest of 'doctor .*\({reads + 1} tokens\) is cut off"
    with pytest.warns(TruncatedPromptWarning, match=message):
        rows = host.embed([" ".join(["doctor"] * (reads - special + 1))])
    assert rows.isfinite().all()


def test_the_head_is_not_a_module_of_ours(clip: Case, gender: PromptSet) -> None:
    keys = list(clip.model.state_dict())
    names = [name for name, _ in clip.model.named_modules()]
    with clip.debias(gender):
        assert list(clip.model.state_dict()) == keys
        assert [name for name, _ in clip.model.named_modules()] == names


def test_with_restores_after_an_exception(clip: Case, gender: PromptSet, state_of: Any) -> None:
    before = state_of(clip.model)
    with pytest.raises(KeyError), clip.debias(gender):
        {}["an error of the user's"]
    assert state_of(clip.model) == before
    assert vldebias.attachment_of(clip.model) is None


def test_second_attachment_is_refused(clip: Case, gender: PromptSet, age: PromptSet) -> None:
    attachment = clip.debias(gender)
    assert vldebias.attachment_of(clip.model) is attachment
    attached = clip.features()
    with pytest.raises(AlreadyAttachedError, match=r"CLIPModel already carries .*tiny-gender.*\.remove\(\).*list"):
        clip.debias(age)
    assert torch.equal(clip.features(), attached)
    attachment.remove()
    clip.debias(age).remove()


@pytest.mark.parametrize("whole_first", [True, False])
def test_one_tower_has_one_door(
    whole_first: bool, gender: PromptSet, siglip_tokenizer: Any, clip_tokenizer: Any
) -> None:
    siglip = make_siglip()
    text = make_clip_text()
    clip = make_clip()
    clip.text_model, clip.text_projection = text.text_model, text.text_projection
    for doors, tokenizer in (((siglip, siglip.text_model), siglip_tokenizer), ((clip, text), clip_tokenizer)):
        first, second = doors if whole_first else doors[::-1]
        attachment = vldebias.debias(first, gender, tokenizer=tokenizer)
        with pytest.raises(AlreadyAttachedError, match=rf"{type(second).__name__} already carries"):
            vldebias.debias(second, gender, tokenizer=tokenizer)
        attachment.remove()
        vldebias.debias(second, gender, tokenizer=tokenizer).remove()


def test_a_pipeline_with_this_encoder_is_refused(clip_tokenizer: Any, gender: PromptSet) -> None:
    """A pipeline shares its text encoders; a model that is owned may not be among them."""
    from vldebias.attachment import Attachment

    text = make_clip_text()

    class Pipeline:
        name = "Pipeline"
        owned: tuple[object, ...] = ()
        shared = (text,)

        def install(self, apply: Any) -> Callable[[], None]:
            return lambda: None

        def merge(self, projections: Any, strength: float) -> None: ...

    with (
        vldebias.debias(text, gender, tokenizer=clip_tokenizer),
        pytest.raises(AlreadyAttachedError, match="Pipeline already carries"),
    ):
        Attachment(Pipeline(), {})


@torch.no_grad()
def test_two_sets_are_solved_jointly(clip: Case, gender: PromptSet, age: PromptSet) -> None:
    results = []
    for sets in ([gender, age], [age, gender]):
        with clip.debias(sets):
            results.append(clip.features())
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-4)
    with clip.debias(gender):
        assert not torch.allclose(clip.features(), results[0], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, clip: Case, gender: PromptSet) -> None:
    clip.model.to(dtype)
    base = clip.features()
    with clip.debias(gender, keep_stated=False) as attachment:
        found = clip.features()
        assert found.dtype == dtype
        expected = attachment.projections["joint"](base.double())
        torch.testing.assert_close(found.double(), expected, atol=torch.finfo(dtype).eps * 4, rtol=1e-2)
        attachment.merge()
    assert clip.model.text_projection.weight.dtype == dtype
    torch.testing.assert_close(clip.features(), found, atol=0.1, rtol=0.1)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_flow_through_the_projection(checkpointing: bool, clip: Case, gender: PromptSet) -> None:
    model = clip.model.train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    weights = torch.randn(DIM)
    with clip.debias(gender, keep_stated=False) as attachment:
        (clip.features() @ weights).sum().backward()
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        model.zero_grad()
        with attachment.disabled():
            matrix = attachment.projections["joint"].matrix().float()
            (clip.features() @ matrix.T @ weights).sum().backward()
    assert "text_projection.weight" in found
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, atol=1e-4, rtol=1e-3)


def test_fitting_leaves_modes_and_gradients_alone(clip: Case, gender: PromptSet) -> None:
    clip.model.train()
    clip.model.text_model.eval()
    modes = [module.training for module in clip.model.modules()]
    clip.debias(gender).remove()
    assert [module.training for module in clip.model.modules()] == modes
    assert all(p.grad is None for p in clip.model.parameters())


@torch.no_grad()
def test_text_without_ids_counts_as_not_stated(request: pytest.FixtureRequest, gender: PromptSet) -> None:
    case = Case("AlignModel", request)
    ids = case.inputs()["input_ids"]
    embeds = case.model.text_model.get_input_embeddings()(ids)
    mask = case.inputs()["attention_mask"]

    def from_embeds() -> Tensor:
        return case.model.get_text_features(inputs_embeds=embeds, attention_mask=mask).pooler_output

    base = from_embeds()
    torch.testing.assert_close(base, case.features())
    with case.debias(gender):
        case.model.text_model(input_ids=ids, attention_mask=mask)  # ids that never reach the head are not kept
        found = from_embeds()
        assert [torch.equal(*rows) for rows in zip(base, case.features(), strict=True)] == STATED
    assert (found != base).any(dim=1).all()


@torch.no_grad()
def test_ids_are_forgotten_once_used(clip: Case, gender: PromptSet) -> None:
    """Embeddings that are given to the head itself belong to no prompt, least of all to the last ones."""
    pooled = torch.randn(len(PROMPTS), 32)
    base = clip.model.text_projection(pooled)
    with clip.debias(gender):
        clip.features()
        assert (clip.model.text_projection(pooled) != base).any(dim=1).all()


@torch.no_grad()
def test_threads_do_not_mix_their_prompts(clip: Case, gender: PromptSet) -> None:
    """A second thread reads its prompts between the tower and the head of the first."""
    stated, unstated = clip.inputs(["a woman"]), clip.inputs(["a doctor"])
    base = [clip.model.get_text_features(**one).pooler_output for one in (stated, unstated)]
    found: list[Tensor] = []

    def other() -> None:
        with torch.no_grad():
            found.append(clip.model.get_text_features(**unstated).pooler_output)

    def interrupt(*_: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    with clip.debias(gender):
        handle = clip.model.text_projection.register_forward_pre_hook(interrupt)
        mine = clip.model.get_text_features(**stated).pooler_output
        handle.remove()
    assert torch.equal(mine, base[0])
    assert not torch.allclose(found[0], base[1], atol=1e-3)


def test_deepcopy_follows_the_attachment(clip: Case, gender: PromptSet) -> None:
    base = clip.features()
    attachment = clip.debias(gender)
    attached = clip.features()
    original, clip.model = clip.model, copy.deepcopy(clip.model)
    assert torch.equal(clip.features(), attached)
    with pytest.raises(AlreadyAttachedError, match="CLIPModel: this model is a copy of one that carries an attach"):
        clip.debias(gender)
    attachment.remove()
    assert torch.equal(clip.features(), base)
    with clip.debias(gender):
        torch.testing.assert_close(clip.features(), attached)
    assert vldebias.attachment_of(original) is None


def test_pickling_is_refused_while_attached(clip: Case, gender: PromptSet) -> None:
    attachment = clip.debias(gender)
    with pytest.raises(VldebiasError, match=r"CLIPModel: a model cannot be pickled .*\.remove\(\) or \.merge\(\)"):
        pickle.dumps(clip.model)
    attachment.remove()
    pickle.dumps(clip.model)


def test_nothing_keeps_a_model_alive(clip_tokenizer: Any, gender: PromptSet) -> None:
    model = make_clip()
    vldebias.debias(model, gender, tokenizer=clip_tokenizer)
    assert vldebias.attachment_of(model) is not None
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_a_saved_projection_serves_both_classes_of_a_checkpoint(clip: Case, gender: PromptSet, tmp_path: Any) -> None:
    clip.model.save_pretrained(tmp_path / "model")
    with clip.debias(gender, keep_stated=False) as attachment:
        expected = clip.features()
        attachment.projections["joint"].save_pretrained(tmp_path / "projection")
    loaded = CalibratedProjection.from_pretrained(tmp_path / "projection")
    with vldebias.debias(clip.model, loaded, keep_stated=False):  # no tokenizer: there is nothing to read
        assert torch.equal(clip.features(), expected)
    text = transformers.CLIPTextModelWithProjection.from_pretrained(tmp_path / "model").eval()
    with vldebias.debias(text, loaded, keep_stated=False):
        torch.testing.assert_close(text(**clip.inputs()).text_embeds, expected)


def test_foreign_projections_are_refused(clip: Case, gender: PromptSet) -> None:
    mine = vldebias.fit_projection(clip.model, gender, tokenizer=clip.tokenizer)
    changed, seeing = copy.deepcopy(clip.model), copy.deepcopy(clip.model)
    with torch.no_grad():
        for parameter in changed.text_model.encoder.parameters():
            parameter.mul_(1.1)
        for parameter in seeing.vision_model.parameters():
            parameter.mul_(1.1)
    with pytest.raises(ProjectionMismatchError, match=r"CLIPModel: .*fitted on other weights.*fit again"):
        vldebias.debias(changed, mine)
    vldebias.debias(seeing, mine).remove()  # the vision tower has no say
    vldebias.debias(copy.deepcopy(clip.model).bfloat16(), mine).remove()  # nor has the precision
    with pytest.raises(ProjectionMismatchError, match=r"belongs to space 'open_clip\.joint'"):
        vldebias.debias(clip.model, replace(mine, space="open_clip.joint"))
    wide = CalibratedProjection.fit(torch.randn(3, 2, 32))
    with pytest.raises(ProjectionMismatchError, match="has dim 32, 'joint' has 24"):
        vldebias.debias(clip.model, wide)


def test_the_tokenizer_of_the_checkpoint_is_found(clip: Case, gender: PromptSet, tmp_path: Any) -> None:
    clip.model.save_pretrained(tmp_path)
    loaded = transformers.CLIPModel.from_pretrained(tmp_path)
    with pytest.raises(InvalidInputError, match=rf"CLIPModel: found no tokenizer in '{tmp_path}' .*pass tokenizer="):
        vldebias.debias(loaded, gender)
    clip.tokenizer.save_pretrained(tmp_path)
    with vldebias.debias(loaded, gender) as attachment:
        assert attachment.projections["joint"].model_id == str(tmp_path)
        assert not attachment.stated(["a doctor"])[0]


def test_tokenizers(clip: Case, gender: PromptSet, bert_tokenizer: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"CLIPModel: .*which checkpoint it came from; pass tokenizer="):
        vldebias.debias(clip.model, gender)
    with pytest.raises(InvalidInputError, match="expected a transformers tokenizer or processor, got str"):
        vldebias.debias(clip.model, gender, tokenizer="openai/clip")
    bare = copy.deepcopy(bert_tokenizer)
    bare.pad_token = None
    with pytest.raises(InvalidInputError, match="has no padding token, so it cannot make batches"):
        vldebias.debias(clip.model, gender, tokenizer=bare)
    processor = SimpleNamespace(tokenizer=clip.tokenizer)
    vldebias.debias(clip.model, gender, tokenizer=processor).remove()


@pytest.mark.parametrize("eos", [49407, 2])
def test_padding_with_the_end_token(eos: int, clip_tokenizer: Any) -> None:
    """Old CLIP configs name 2 as the end token, and the tower then takes the first of the largest ids."""
    assert clip_tokenizer.pad_token_id == clip_tokenizer.eos_token_id == 49407
    model = make_clip_text(eos_token_id=eos).eval()
    host = wrap(model, clip_tokenizer)
    short = "a doctor"
    alone = host.embed([short])
    torch.testing.assert_close(host.embed([short, "a photo of " * 6])[:1], alone, atol=1e-6, rtol=1e-5)
    ids = clip_tokenizer([short], padding="max_length", max_length=77, return_tensors="pt").input_ids
    assert host.texts(ids) == [short]


def test_what_is_refused(clip: Case, gender: PromptSet) -> None:
    listed = r"Supported transformers models are CLIPModel, CLIPTextModelWithProjection, .*AlignModel"
    with pytest.raises(
        UnsupportedHostError, match=rf"CLIPTextModel: .*load CLIPTextModelWithProjection or CLIPModel.*{listed}"
    ):
        vldebias.debias(clip.model.text_model, gender)
    with pytest.raises(UnsupportedHostError, match=rf"CLIPVisionModel\. {listed}"):
        vldebias.debias(clip.model.vision_model, gender)
    with pytest.raises(UnsupportedHostError, match=r"DataParallel: .*the model inside"):
        vldebias.debias(nn.DataParallel(clip.model), gender)
    with pytest.raises(UnsupportedHostError, match=r"OptimizedModule: .*the model inside"):
        vldebias.debias(torch.compile(clip.model), gender)
    clip.model.text_model.compile()
    with pytest.raises(UnsupportedHostError, match=r"CLIPModel: the model was compiled in place"):
        vldebias.debias(clip.model, gender)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters(clip: Case, gender: PromptSet) -> None:
    """LoRA inside the tower is part of what is projected; on the head it has to be merged before folding."""
    import peft

    plain = copy.deepcopy(clip.model)
    wrapped = peft.get_peft_model(clip.model, peft.LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    with pytest.raises(UnsupportedHostError, match=r"PeftModel: pass the model inside, model\.get_base_model\(\)"):
        vldebias.debias(wrapped, gender, tokenizer=clip.tokenizer)
    clip.model = wrapped.get_base_model()
    base = clip.features()
    with clip.debias(gender, keep_stated=False) as attachment:
        torch.testing.assert_close(clip.features(), attachment.projections["joint"](base))
    adapted = peft.LoraConfig(target_modules=["text_projection"], init_lora_weights=False)
    clip.model = peft.get_peft_model(plain, adapted).get_base_model()
    base = clip.features()
    with clip.debias(gender, keep_stated=False) as attachment:
        torch.testing.assert_close(clip.features(), attachment.projections["joint"](base))
        with pytest.raises(UnsupportedHostError, match=r"ends in peft\..*Linear; expected a torch\.nn\.Linear"):
            attachment.merge()


@torch.no_grad()
def test_a_tuple_cannot_be_fitted_on(clip: Case, gender: PromptSet) -> None:
    base = clip.features()
    projection = vldebias.fit_projection(clip.model, gender, tokenizer=clip.tokenizer)
    clip.model.config.return_dict = False
    with pytest.raises(InvalidInputError, match=r"CLIPModel: .*got a tuple; set model\.config\.return_dict = True"):
        clip.debias(gender)
    with clip.debias(projection, keep_stated=False):
        torch.testing.assert_close(clip.model.get_text_features(**clip.inputs())[1], projection(base))


class OldClip(transformers.CLIPModel):
    """`get_text_features` of transformers 4, which returns the tensor itself."""

    def get_text_features(self, input_ids: Any, attention_mask: Any = None, position_ids: Any = None) -> Tensor:
        return super().get_text_features(input_ids, attention_mask, position_ids).pooler_output


def test_transformers_4_and_subclasses(clip: Case, gender: PromptSet) -> None:
    old = OldClip(clip.model.config).eval()
    old.load_state_dict(clip.model.state_dict())
    base, expected = clip.features(), wrap(clip.model, clip.tokenizer).embed(PROMPTS)
    assert torch.equal(wrap(old, clip.tokenizer).embed(PROMPTS), expected)
    with vldebias.debias(old, gender, tokenizer=clip.tokenizer, keep_stated=False) as attachment:
        found = old.get_text_features(**clip.inputs())
        torch.testing.assert_close(found, attachment.projections["joint"](base))


@torch.no_grad()
def test_offloaded_weights(clip: Case, gender: PromptSet) -> None:
    """Weights that come from memory layer by layer: projected as ever, but there is nothing to fold into."""
    from accelerate import cpu_offload

    with clip.debias(gender):
        expected = clip.features()
    cpu_offload(clip.model, execution_device=torch.device("cpu"))
    assert clip.model.text_projection.weight.is_meta
    base = clip.features()
    with clip.debias(gender) as attachment:
        torch.testing.assert_close(clip.features(), expected)
        with pytest.raises(UnsupportedHostError, match=r"on meta; expected plain .* not offloaded"):
            attachment.merge()
    assert torch.equal(clip.features(), base)


def test_a_tower_may_serve_two_heads(clip: Case, gender: PromptSet, clip_tokenizer: Any) -> None:
    """The same encoder under two heads makes two embeddings, each with its own attachment."""
    text = make_clip_text()
    text.text_model = clip.model.text_model
    base = clip.features()
    with clip.debias(gender), vldebias.debias(text.eval(), gender, tokenizer=clip_tokenizer):
        attached = clip.features()
        text(**clip.inputs())
        assert torch.equal(clip.features(), attached)
    assert torch.equal(clip.features(), base)


def test_quantized_heads_are_not_folded(clip: Case, gender: PromptSet) -> None:
    attachment = clip.debias(gender)
    head = clip.model.text_projection
    head.weight = nn.Parameter(head.weight.mul(100).to(torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedHostError, match=r"weights of type Parameter, torch\.int8 .*expected plain floating"):
        attachment.merge()
    assert attachment.state == "attached"
