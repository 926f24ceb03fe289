"""The image side of transformers: every supported class on all its paths, folding, and what is refused by name."""

import copy
from typing import Any

import pytest
import torch
from open_clip_tiny import same
from torch import Tensor
from torch.nn.functional import normalize
from transformers_tiny import MODELS, Case

import vldebias
from vldebias.errors import AlreadyAttachedError, ProjectionMismatchError, UnsupportedHostError
from vldebias.hosts.transformers import WITH_IMAGES
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet

TEXT_ONLY = [name for name in MODELS if "Text" in name]
SEEING = [name for name in MODELS if name in WITH_IMAGES]
LINEAR = [name for name in SEEING if not name.startswith(("Siglip", "Align"))]


@pytest.fixture(params=SEEING)
def case(request: pytest.FixtureRequest) -> Case:
    torch.manual_seed(4)
    return Case(request.param, request)


def features(case: Case) -> Tensor:
    output = case.model.get_image_features(**case.pixels())
    return output if isinstance(output, Tensor) else output.pooler_output


def seen(case: Case) -> dict[str, Tensor]:
    """Every tensor that depends on the image embedding, by the public path that gives it."""
    inputs = {key: rows[:2] for key, rows in case.inputs().items()}  # as many as images: the loss pairs them
    output = case.model(**inputs, **case.pixels(), return_loss=True)
    found = {"features": features(case), "forward": output.image_embeds, "loss": output.loss}
    found |= {"image logits": output.logits_per_image, "text logits": output.logits_per_text}
    if case.name != "AltCLIPModel":  # its forward ignores return_dict in transformers 5
        found["tuple"] = case.model(**inputs, **case.pixels(), return_dict=False)[3]
    return found


@torch.no_grad()
def test_three_states_on_every_path(case: Case, gender: PromptSet, state_of: Any) -> None:
    before, base, texts = state_of(case.model), seen(case), case.features()
    attachment = case.debias(gender, side="image")
    attached = seen(case)
    for key in base:
        assert not torch.equal(base[key], attached[key]), key
    assert not torch.allclose(base["features"], attached["features"], rtol=1e-2, atol=1e-5)
    assert torch.equal(case.features(), texts)
    projection = attachment.projections["image"]
    assert projection.space == "transformers.joint"
    expected = projection(base["features"])
    torch.testing.assert_close(attached["features"], expected)
    torch.testing.assert_close(attached["forward"], normalize(expected, dim=-1), atol=1e-5, rtol=1e-4)
    if "tuple" in attached:
        torch.testing.assert_close(attached["tuple"], attached["forward"])
    scale = getattr(case.model, "logit_scale", None)
    factor = 1 / case.model.temperature if scale is None else scale.exp()
    logits = factor * attached["forward"] @ normalize(texts[:2], dim=-1).T
    logits = logits + getattr(case.model, "logit_bias", 0)
    torch.testing.assert_close(attached["image logits"], logits, atol=1e-4, rtol=1e-4)
    assert torch.equal(attached["image logits"].T, attached["text logits"])
    with attachment.disabled():
        assert same(seen(case), base)
    attachment.strength = 0
    assert same(seen(case), base)
    attachment.strength = 1
    assert same(seen(case), attached)
    attachment.remove()
    assert same(seen(case), base)
    assert state_of(case.model) == before


@torch.no_grad()
def test_both_sides(case: Case, gender: PromptSet, state_of: Any) -> None:
    before, x, z = state_of(case.model), features(case), case.features()
    with case.debias(gender, side="both", keep_stated=False) as attachment:
        projection = attachment.projections["joint"]
        assert attachment.projections["image"] is projection
        torch.testing.assert_close(features(case), projection(x))
        torch.testing.assert_close(case.features(), projection(z))
    assert state_of(case.model) == before


@torch.no_grad()
@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("side", ["image", "both"])
def test_merged_equals_attached(name: str, side: str, gender: PromptSet, tmp_path: Any, request: Any) -> None:
    case = Case(name, request)
    attachment = case.debias(gender, keep_stated=False, side=side, strength=0.5)
    attached, texts = seen(case), case.features()
    attachment.merge()
    case.model.save_pretrained(tmp_path)
    case.model = type(case.model).from_pretrained(tmp_path).eval()
    for key, value in seen(case).items():
        torch.testing.assert_close(value, attached[key], atol=1e-4, rtol=1e-4, msg=key)
    torch.testing.assert_close(case.features(), texts, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(set(SEEING) - set(LINEAR)))
@pytest.mark.parametrize("side", ["image", "both"])
def test_heads_that_are_not_linear_are_not_folded(name: str, side: str, gender: PromptSet, request: Any) -> None:
    case = Case(name, request)
    attachment = case.debias(gender, side=side)
    weights = copy.deepcopy(case.model.state_dict())
    kind = "AvgPool2d" if name == "AlignModel" else "MultiheadAttentionPoolingHead"
    with pytest.raises(UnsupportedHostError, match=rf"{name}: the image tower ends in .*{kind}; expected a torch.nn.L"):
        attachment.merge()
    assert attachment.state == "attached"
    assert all(torch.equal(value, weights[key]) for key, value in case.model.state_dict().items())


@pytest.mark.parametrize("name", TEXT_ONLY)
@pytest.mark.parametrize("side", ["image", "both"])
def test_a_text_tower_has_no_image_side(name: str, side: str, gender: PromptSet, request: Any) -> None:
    case = Case(name, request)
    with pytest.raises(UnsupportedHostError, match=rf"{name}: side='{side}' needs an image tower .*use side='text'"):
        case.debias(gender, side=side)
    case.debias(gender).remove()


def test_siglip_without_a_pooling_head_is_refused(gender: PromptSet, request: Any) -> None:
    case = Case("SiglipModel", request)
    del case.model.vision_model.head
    case.model.vision_model.use_head = False
    with pytest.raises(UnsupportedHostError, match="SiglipModel: side='image' needs an image tower"):
        case.debias(gender, side="image")


def test_one_attachment_whatever_the_sides(gender: PromptSet, age: PromptSet, request: Any) -> None:
    case, other = Case("CLIPModel", request), Case("CLIPModel", request)
    for first, second in (("text", "image"), ("image", "text"), ("both", "image")):
        with case.debias(gender, side=first), pytest.raises(AlreadyAttachedError, match="CLIPModel already carries"):
            case.debias(age, side=second)
    other.model.visual_projection = case.model.visual_projection
    with case.debias(gender, side="image"), pytest.raises(AlreadyAttachedError, match="CLIPModel already carries"):
        other.debias(age, side="both")


@torch.no_grad()
def test_a_deep_copy_has_an_attachment_of_its_own(gender: PromptSet, request: Any) -> None:
    case, twin = Case("CLIPModel", request), Case("CLIPModel", request)
    base = features(case)
    for side in ("text", "image"):
        with case.debias(gender, side=side):
            twin.model = copy.deepcopy(case.model)
            for again in ("text", "image"):
                with pytest.raises(AlreadyAttachedError, match="CLIPModel already carries"):
                    twin.debias(gender, side=again)
        assert torch.equal(features(twin), base) is (side == "text")
        own = vldebias.attachment_of(twin.model)
        assert own is not None
        own.remove()
        assert torch.equal(features(twin), base)


@torch.no_grad()
def test_a_part_that_is_copied_alone_follows_the_original(gender: PromptSet, request: Any) -> None:
    case, other = Case("CLIPModel", request), Case("CLIPModel", request)
    other.model = copy.deepcopy(case.model)
    base = features(case)
    attachment = case.debias(gender, side="image")
    attached = features(case)
    other.model.visual_projection = copy.deepcopy(case.model.visual_projection)
    assert torch.equal(features(other), attached)
    for side in ("text", "image"):
        with pytest.raises(AlreadyAttachedError, match="a part of this model is a copy from one that carries"):
            other.debias(gender, side=side)
    attachment.remove()
    assert torch.equal(features(other), base)
    other.debias(gender, side="image").remove()


def test_the_tower_of_images_is_compared(gender: PromptSet, tmp_path: Any, request: Any) -> None:
    case = Case("CLIPModel", request)
    vldebias.fit_projection(case.model, gender, tokenizer=case.tokenizer).save_pretrained(tmp_path)
    mine = CalibratedProjection.from_pretrained(tmp_path)
    for side in ("text", "image", "both"):
        case.debias(mine, side=side).remove()
    with torch.no_grad():
        for parameter in case.model.vision_model.parameters():
            parameter.mul_(1.1)
    case.debias(mine).remove()
    with pytest.raises(ProjectionMismatchError, match=r"CLIPModel: .*fitted beside another image tower"):
        case.debias(mine, side="both")
