"""Test the image side of image-text models: all code paths, three states, merging, both sides, and
errors."""

import copy

import pytest
import torch
from models_tiny import (
    PROMPTS,
    STATED,
    TRANSFORMERS,
    WITH_IMAGE_TOWER,
    OpenClip,
    Transformers,
    equal_outputs,
    make_clip,
    tokenizer_for,
)
from torch import Tensor, nn
from torch.nn.functional import normalize

import vldebias
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    ProjectionMismatchError,
    UnsupportedHostError,
)
from vldebias.hosts import resolve
from vldebias.prompts import PromptSet

KINDS = pytest.mark.parametrize("name", ["open_clip:clip", "transformers:CLIPModel"])
# Classes whose towers end in different layers.
EVERY = pytest.mark.parametrize("name", [name for name in WITH_IMAGE_TOWER if "timm-" not in name])
BOTH = (
    "open_clip:clip",
    "open_clip:coca",
    "open_clip:timm",
    "transformers:CLIPModel",
    "transformers:SiglipModel",
)
TEXT_ONLY = [name for name in TRANSFORMERS if "Text" in name]


@torch.no_grad()
@EVERY
def test_every_image_code_path_is_edited_in_three_states(name: str, gender: PromptSet) -> None:
    subject = WITH_IMAGE_TOWER[name]()
    model = subject.host
    before = subject.state()
    base = subject.seen()
    texts = subject.outputs()
    rows = subject.rows()["text"]
    attachment = subject.debias(gender, side="image")
    assert list(attachment.projections) == ["image"]
    attached = subject.seen()
    projection = attachment.projections["image"]
    assert projection.space == f"{name.partition(':')[0]}.text"
    expected = projection(base["features"])
    assert not torch.allclose(base["features"], attached["features"], rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(attached["features"], expected)
    for key in base:
        assert not torch.equal(base[key], attached[key]), key
        if "logits" not in key and key not in ("features", "loss"):
            torch.testing.assert_close(
                attached[key], normalize(expected, dim=-1), atol=1e-5, rtol=1e-4, msg=key
            )
    for key, tensor in subject.outputs().items():
        assert torch.equal(tensor, texts[key]) is ("logits" not in key), key  # texts are unchanged
    if "image logits" in attached:
        factor = model.logit_scale.exp() if hasattr(model, "logit_scale") else 1 / model.temperature
        unit = normalize(rows[: attached["image logits"].shape[1]], dim=-1)
        bias = getattr(model, "logit_bias", None)
        logits = factor * normalize(expected, dim=-1) @ unit.T + (0 if bias is None else bias)
        torch.testing.assert_close(attached["image logits"], logits, atol=1e-4, rtol=1e-4)
        assert torch.equal(attached["image logits"].T, attached["text logits"])
    with attachment.disabled():
        assert equal_outputs(subject.seen(), base)
    attachment.strength = 0
    assert equal_outputs(subject.seen(), base)
    attachment.strength = 1
    assert equal_outputs(subject.seen(), attached)
    attachment.remove()
    assert equal_outputs(subject.seen(), base)
    assert subject.state() == before


@torch.no_grad()
@KINDS
def test_both_sides_use_one_projection(name: str, gender: PromptSet) -> None:
    subject = WITH_IMAGE_TOWER[name]()
    before = subject.state()
    x = subject.seen()["features"]
    z = subject.rows()["text"]
    with subject.debias(
        gender, side="both", keep_stated=False, method="cali", lam=20.0
    ) as attachment:
        projection = attachment.projections["text"]
        assert attachment.projections["image"] is projection
        both = subject.seen()["features"] @ subject.rows()["text"].T
    squared = projection.matrix().float() @ projection.matrix().float()
    torch.testing.assert_close(both, x @ squared @ z.T, atol=1e-4, rtol=1e-3)
    assert subject.state() == before


@torch.no_grad()
def test_images_never_count_as_stated(gender: PromptSet, images: Tensor) -> None:
    """The gate only applies to prompts, not to images."""
    model = make_clip()
    ids = tokenizer_for(model)(PROMPTS)
    x = model.encode_image(images)
    z = model.encode_text(ids)
    with OpenClip(model).debias(gender, side="both"):
        attached = model.encode_image(images)
        texts = model.encode_text(ids)
    assert [torch.equal(bare, edited) for bare, edited in zip(z, texts, strict=True)] == STATED
    assert (attached != x).any(dim=1).all()
    for side in ("text", "image", "both"):
        with OpenClip(model).debias(gender, side=side) as attachment:
            assert attachment.stated(["a woman"]) == [side != "image"]


@pytest.mark.parametrize(
    ("name", "side"),
    [*((name, "image") for name in WITH_IMAGE_TOWER), *((n, "both") for n in BOTH)],
)
def test_merged_equals_attached_or_is_rejected(name: str, side: str, gender: PromptSet) -> None:
    subject = WITH_IMAGE_TOWER[name]()
    before = subject.state()
    weights = copy.deepcopy(subject.host.state_dict())
    attachment = subject.debias(gender, keep_stated=False, strength=0.5, side=side)
    with torch.no_grad():
        attached = subject.seen()
        texts = subject.outputs()
    if not subject.merges_images:
        kind = r"(AvgPool2d|MultiheadAttentionPoolingHead|Sequential)"
        with pytest.raises(UnsupportedHostError, match=rf"image tower is a .*{kind}; expected"):
            attachment.merge()
        assert attachment.state == "attached"
        assert all(
            torch.equal(value, weights[key]) for key, value in subject.host.state_dict().items()
        )
        return
    attachment.merge()
    assert subject.state() == before
    with torch.no_grad():
        for now, then in ((subject.seen(), attached), (subject.outputs(), texts)):
            for key, value in now.items():
                torch.testing.assert_close(value, then[key], atol=1e-4, rtol=1e-4, msg=key)
    state = subject.host.state_dict()
    changed = {
        key.split(".")[0] for key, value in state.items() if not torch.equal(value, weights[key])
    }
    assert any(key.startswith("visual") for key in changed)
    assert (len(changed) == 1) is (side == "image")
    with pytest.raises(AlreadyAttachedError, match="already contain a merged projection"):
        subject.debias(gender)


@pytest.mark.parametrize("side", [None, "both"])
def test_a_host_rereads_its_model_after_images_are_merged(
    side: str | None, gender: PromptSet
) -> None:
    """The host also rereads its model if the edit is attached to a copy of the host with other
    sides."""
    subject = OpenClip(make_clip())
    host = resolve(subject.host, tokenizer=subject.tokenizer)
    attachment = vldebias.debias(host, gender, method="cali", side=side)
    bare = host.embed(["a photo of a nurse"])
    attachment.merge()
    merged = host.embed(["a photo of a nurse"])
    assert not torch.allclose(merged, bare)
    fresh = resolve(subject.host, tokenizer=subject.tokenizer)
    assert torch.equal(merged, fresh.embed(["a photo of a nurse"]))
    assert host.fingerprint("text") == fresh.fingerprint("text")


def test_a_text_tower_has_no_image_side(gender: PromptSet) -> None:
    headless = Transformers("SiglipModel")
    del headless.host.vision_model.head
    headless.host.vision_model.use_head = False
    for subject in (*map(Transformers, TEXT_ONLY), headless):
        for side in ("image", "both"):
            with pytest.raises(UnsupportedHostError, match="needs an image tower"):
                subject.debias(gender, side=side)
    with pytest.raises(InvalidInputError, match="side: expected one of"):
        headless.debias(gender, side="left")


@KINDS
def test_all_sides_allow_only_one_attachment(name: str, gender: PromptSet, age: PromptSet) -> None:
    subject = WITH_IMAGE_TOWER[name]()
    for first, second in (
        ("text", "image"),
        ("image", "text"),
        ("image", "image"),
        ("both", "image"),
    ):
        with (
            subject.debias(gender, side=first),
            pytest.raises(AlreadyAttachedError, match="already has"),
        ):
            subject.debias(age, side=second)
    another = WITH_IMAGE_TOWER[name]()
    tower = "visual" if hasattr(subject.host, "visual") else "visual_projection"
    # This is the same tower in a different model.
    setattr(another.host, tower, getattr(subject.host, tower))
    with (
        subject.debias(gender, side="image"),
        pytest.raises(AlreadyAttachedError, match="already has"),
    ):
        another.debias(age, side="both")


def shifted(model: nn.Module, tower: nn.Module) -> nn.Module:
    """Return a copy of `model` whose `tower` has different weights."""
    changed = copy.deepcopy(model)
    names = {id(module): name for name, module in model.named_modules()}
    with torch.no_grad():
        for parameter in changed.get_submodule(names[id(tower)]).parameters():
            parameter.add_(0.1)
    return changed


def test_projections_for_other_image_towers_are_rejected(gender: PromptSet) -> None:
    model = make_clip()
    known = {"tokenizer": tokenizer_for(model)}
    projection = vldebias.fit_projections(model, gender, **known).only
    seeing = shifted(model, model.visual)
    reading = shifted(model, model.transformer)
    # The image tower does not matter for a text edit.
    vldebias.debias(seeing, projection, **known).remove()
    for side in ("image", "both"):
        vldebias.debias(copy.deepcopy(model).half(), projection, side=side, **known).remove()
        with pytest.raises(ProjectionMismatchError, match=r"CLIP: .*different image tower.*again"):
            vldebias.debias(seeing, projection, side=side, **known)
        with pytest.raises(ProjectionMismatchError, match=r"CLIP: .*fitted on different weights"):
            vldebias.debias(reading, projection, side=side, **known)
    # An edit fitted on a text tower alone has no image fingerprint, so its text is compared.
    unknown = projection.with_provenance(image_fingerprint=None)
    vldebias.debias(seeing, unknown, side="image").remove()
