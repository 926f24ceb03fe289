"""The image side of open_clip: one seam for all paths, three states, folding, both sides at once, what is refused."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import open_clip
import open_clip_tiny
import pytest
import torch
from open_clip_tiny import DIM, MODELS, PROMPTS, STATED, TEXT, debias, intermediates, make_clip, same, tokenizer_for
from torch import Tensor, nn
from torch.nn.functional import normalize

import vldebias
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    ProjectionMismatchError,
    UnsupportedHostError,
    VldebiasError,
)
from vldebias.hosts import resolve
from vldebias.hosts.images import image_encoder
from vldebias.miniature import load_pipeline
from vldebias.projection import CalibratedProjection
from vldebias.prompts import PromptSet


def make_resnet() -> nn.Module:
    vision = {"layers": (1, 1, 1, 1), "width": 8, "head_width": 16, "image_size": 32}
    return open_clip.CLIP(DIM, vision, TEXT).eval()


def make_timm(proj: str) -> nn.Module:
    vision = {"timm_model_name": "resnet10t", "timm_proj": proj, "timm_pool": "avg", "image_size": 32}
    return open_clip.CLIP(DIM, vision, TEXT).eval()


TOWERS: dict[str, Callable[[], nn.Module]] = {
    **{name: MODELS[name] for name in ("clip", "custom", "hf-mlp", "coca")},
    "resnet": make_resnet,
    "timm-linear": lambda: make_timm("linear"),
    "timm-mlp": lambda: make_timm("mlp"),
}


def seen(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Every tensor that depends on the image embedding, by the public path that gives it."""
    found = {
        "encode_image": model.encode_image(images, normalize=False),
        "normalized": model.encode_image(images, normalize=True),
        "default": model.encode_image(images),
    }
    output = model(images)
    if isinstance(output, dict):
        return found | {"forward": output["image_features"], "private": model._encode_image(images)[0]}
    ids = tokenizer_for(model)(PROMPTS)
    found |= {"forward": model(images, ids)[0], "image only": output[0]}
    found["image logits"], found["text logits"] = model.get_logits(images, ids)
    model.output_dict = True
    found["dict"] = model(images, ids)["image_features"]
    model.output_dict = False
    return found


@pytest.fixture(params=TOWERS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(3)
    return TOWERS[request.param]()


@torch.no_grad()
def test_three_states_on_every_path(model: nn.Module, gender: PromptSet, images: Tensor, state_of: Any) -> None:
    before, base, texts = state_of(model), seen(model, images), open_clip_tiny.outputs(model, images)
    attachment = debias(model, gender, side="image")
    assert list(attachment.projections) == ["image"]
    attached = seen(model, images)
    assert all(not torch.allclose(base[key], attached[key], atol=1e-5, rtol=1e-2) for key in base)
    now = open_clip_tiny.outputs(model, images)
    for key in texts:
        assert torch.equal(now[key], texts[key]) is ("logits" not in key), key  # texts are as they were
    expected = attachment.projections["image"](base["encode_image"])
    assert torch.equal(attached["encode_image"], expected)
    for key in {"normalized", "forward", "image only", "dict", "private"} & attached.keys():
        assert torch.equal(attached[key], normalize(expected, dim=-1)), key
    if "image logits" in attached:
        logits = model.logit_scale.exp() * normalize(expected, dim=-1) @ texts["normalized"].T
        torch.testing.assert_close(attached["image logits"], logits + (model.logit_bias or 0))
        assert torch.equal(attached["image logits"].T, attached["text logits"])
    with attachment.disabled():
        assert same(seen(model, images), base)
    attachment.strength = 0
    assert same(seen(model, images), base)
    attachment.strength = 1
    assert same(seen(model, images), attached)
    attachment.remove()
    assert same(seen(model, images), base)
    assert state_of(model) == before
    attachment.remove()
    assert state_of(model) == before


@torch.no_grad()
def test_the_tokens_of_a_captioner_stay(gender: PromptSet, images: Tensor) -> None:
    model = MODELS["coca"]()
    ids = tokenizer_for(model)(PROMPTS[:1])[[0] * len(images)]
    base, captions = model._encode_image(images), model(images, ids)["logits"]
    with debias(model, gender, side="both"):
        attached = model._encode_image(images)
        assert torch.equal(model(images, ids)["logits"], captions)
    assert torch.equal(attached[1], base[1])
    assert not torch.allclose(attached[0], base[0], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["clip", "custom"])
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("side", ["image", "both"])
def test_intermediates_agree(kind: str, unit: bool, side: str, gender: PromptSet, images: Tensor) -> None:
    model = MODELS[kind]()
    asked = {"normalize": unit, "output_logits": True}
    base = intermediates(model, images, **asked)
    ids = tokenizer_for(model)(PROMPTS)
    with debias(model, gender, side=side) as attachment:
        found = intermediates(model, images, **asked)
        torch.testing.assert_close(found["image_features"], model.encode_image(images, normalize=unit))
        torch.testing.assert_close(found["text_features"], model.encode_text(ids, normalize=unit))
        if unit:
            torch.testing.assert_close(found["image_logits"], model.get_logits(images, ids)[0])
            torch.testing.assert_close(found["text_logits"], found["image_logits"].T)
        alone = model.forward_intermediates(images, normalize=unit)
        torch.testing.assert_close(alone["image_features"], found["image_features"])
        assert "image_features" not in intermediates(model, images, intermediates_only=True)
        attachment.strength = 0
        again = intermediates(model, images, **asked)
    assert not torch.allclose(found["image_features"], base["image_features"], atol=1e-3)
    assert torch.equal(found["text_features"], base["text_features"]) is (side == "image")
    assert not torch.allclose(found["image_logits"], base["image_logits"], atol=1e-3)
    for key in ("image_features", "text_features", "image_logits", "text_logits"):
        assert torch.equal(again[key], base[key])


@torch.no_grad()
def test_both_sides_carry_one_projection(gender: PromptSet, images: Tensor, state_of: Any) -> None:
    model = make_clip()
    before, ids = state_of(model), tokenizer_for(model)(PROMPTS)
    z, x = model.encode_text(ids), model.encode_image(images)
    with debias(model, gender, side="both", keep_stated=False, method="cali", lam=20.0) as attachment:
        assert attachment.projections["joint"] is attachment.projections["image"]
        assert attachment.projections["joint"].space == "open_clip.joint"
        both = model.encode_image(images) @ model.encode_text(ids).T
    squared = attachment.projections["joint"].matrix().float() @ attachment.projections["joint"].matrix().float()
    torch.testing.assert_close(both, x @ squared @ z.T, atol=1e-5, rtol=1e-4)
    assert state_of(model) == before


@torch.no_grad()
def test_images_state_nothing(gender: PromptSet, images: Tensor) -> None:
    """The gate leaves stated prompts alone and has no say over images."""
    model = make_clip()
    ids = tokenizer_for(model)(PROMPTS)
    x, z = model.encode_image(images), model.encode_text(ids)
    with debias(model, gender, side="both"):
        attached = model.encode_image(images)
        texts = model.encode_text(ids)
    assert [torch.equal(one, other) for one, other in zip(z, texts, strict=True)] == STATED
    assert (attached != x).any(dim=1).all()
    for side, told in (("text", "stated kept"), ("image", "stated not kept"), ("both", "stated kept")):
        with debias(model, gender, side=side) as attachment:
            assert f", {told}, attached)" in repr(attachment)
            assert attachment.stated(["a woman"]) == [side != "image"]
            projection = next(iter(attachment.projections.values()))
        with vldebias.debias(model, projection, side=side) as attachment:
            assert attachment.stated(["a woman"]) == [side != "image"]


@torch.no_grad()
@pytest.mark.parametrize(("side", "strength"), [("image", 1.0), ("both", 0.5)])
def test_merged_equals_attached(
    model: nn.Module, side: str, strength: float, gender: PromptSet, images: Tensor, state_of: Any
) -> None:
    before, weights = state_of(model), copy.deepcopy(model.state_dict())
    attachment = debias(model, gender, keep_stated=False, strength=strength, side=side)
    attached, texts = seen(model, images), open_clip_tiny.outputs(model, images)
    attachment.merge()
    assert state_of(model) == before
    for key, value in seen(model, images).items():
        torch.testing.assert_close(value, attached[key], atol=1e-5, rtol=1e-4)
    for key, value in open_clip_tiny.outputs(model, images).items():
        torch.testing.assert_close(value, texts[key], atol=1e-5, rtol=1e-4)
    changed = {key.split(".")[0] for key, value in model.state_dict().items() if not torch.equal(value, weights[key])}
    assert "visual" in changed
    assert (len(changed) == 1) is (side == "image")
    with pytest.raises(VldebiasError, match="part of the weights since merge"):
        attachment.remove()
    with pytest.raises(AlreadyAttachedError, match="its weights hold a projection since merge"):
        debias(model, gender)


@pytest.mark.parametrize("side", ["image", "both"])
def test_merging_both_changes_all_or_nothing(side: str, gender: PromptSet) -> None:
    model = make_timm("")  # the classifier of the trunk makes the embedding, and the head has nothing
    attachment = debias(model, gender, side=side)
    weights = copy.deepcopy(model.state_dict())
    with pytest.raises(
        UnsupportedHostError, match=r"CLIP: the image tower ends in torch.*Sequential; expected a torch"
    ):
        attachment.merge()
    assert attachment.state == "attached"
    assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())


def test_one_attachment_whatever_the_sides(gender: PromptSet, age: PromptSet) -> None:
    model = make_clip()
    for first, second in (("text", "image"), ("image", "text"), ("image", "image"), ("both", "image")):
        with debias(model, gender, side=first), pytest.raises(AlreadyAttachedError, match="CLIP already carries"):
            debias(model, age, side=second)
    other = MODELS["custom"]()
    other.visual = model.visual  # the same tower through another door
    with debias(model, gender, side="image"), pytest.raises(AlreadyAttachedError, match="already carries"):
        debias(other, age, side="image")
    with debias(model, gender, side="image"):
        debias(other, age).remove()  # its texts are its own


@torch.no_grad()
def test_a_deep_copy_has_an_attachment_of_its_own(gender: PromptSet, images: Tensor) -> None:
    model = make_clip()
    base = model.encode_image(images)
    attachment = debias(model, gender, side="image")
    twin = copy.deepcopy(model)
    assert torch.equal(twin.encode_image(images), model.encode_image(images))
    assert not torch.equal(twin.encode_image(images), base)
    twin.visual.proj.zero_()  # its own weights are at work, not those of the original
    assert not twin.encode_image(images).any()
    twin = copy.deepcopy(model)
    for side in ("text", "image", "both"):
        with pytest.raises(AlreadyAttachedError, match="CLIP already carries"):
            debias(twin, gender, side=side)
    with pytest.raises(VldebiasError, match="CLIP: a model cannot be pickled while a projection is attached"):
        pickle.dumps(model)
    attachment.remove()
    assert not torch.equal(twin.encode_image(images), base)
    own = vldebias.attachment_of(twin)
    assert own is not None
    own.remove()
    assert torch.equal(twin.encode_image(images), base)
    debias(twin, gender, side="image").remove()
    assert "encode_image" not in vars(twin)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype, gender: PromptSet, images: Tensor) -> None:
    model = make_clip().to(dtype)
    base = model.encode_image(images.to(dtype))
    with debias(model, gender, side="image") as attachment:
        found = model.encode_image(images.to(dtype))
    expected = attachment.projections["image"](base.double())
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=torch.finfo(dtype).eps * 4, rtol=1e-2)


def test_gradients_flow_through_the_projection(gender: PromptSet, images: Tensor) -> None:
    model = make_clip()
    weights = torch.randn(DIM)
    with debias(model, gender, side="image") as attachment:
        (model.encode_image(images) @ weights).sum().backward()
        gradient = model.visual.proj.grad.clone()
        model.zero_grad()
        with attachment.disabled():
            matrix = attachment.projections["image"].matrix().float()
            ((model.encode_image(images) @ matrix.T) @ weights).sum().backward()
    torch.testing.assert_close(gradient, model.visual.proj.grad)


@torch.no_grad()
def test_a_saved_projection_attaches_on_either_side(gender: PromptSet, images: Tensor, tmp_path: Any) -> None:
    model = make_clip()
    with debias(model, gender, side="image") as attachment:
        expected = model.encode_image(images)
        attachment.projections["image"].save_pretrained(tmp_path)
    loaded = CalibratedProjection.from_pretrained(tmp_path)
    assert loaded.space == "open_clip.joint"
    assert loaded.provenance.image_fingerprint == resolve(model).image_fingerprint() is not None
    ids = tokenizer_for(model)(PROMPTS[:1])
    with debias(model, gender, keep_stated=False):
        text = model.encode_text(ids)
    given: list[Any] = [loaded, {"image": loaded}, {"joint": loaded}]
    for projections in given:
        with vldebias.debias(model, projections, side="image") as attachment:
            assert list(attachment.projections) == ["image"]
            torch.testing.assert_close(model.encode_image(images), expected)
        with vldebias.debias(model, projections, side="both", keep_stated=False) as attachment:
            assert list(attachment.projections) == ["joint", "image"]
            torch.testing.assert_close(model.encode_image(images), expected)
            torch.testing.assert_close(model.encode_text(ids), text)


def shifted(model: nn.Module, tower: nn.Module) -> nn.Module:
    """A copy of `model` whose `tower` has other weights."""
    other = copy.deepcopy(model)
    names = {id(module): name for name, module in model.named_modules()}
    with torch.no_grad():
        for parameter in other.get_submodule(names[id(tower)]).parameters():
            parameter.add_(0.1)
    return other


def test_foreign_projections_are_refused(gender: PromptSet) -> None:
    model = make_clip()
    mine = vldebias.fit_projection(model, gender)
    seeing, reading = shifted(model, model.visual), shifted(model, model.transformer)
    vldebias.debias(seeing, mine).remove()  # prompts alone: the image tower has no say over texts
    for side in ("image", "both"):
        vldebias.debias(copy.deepcopy(model).half(), mine, side=side).remove()
        with pytest.raises(ProjectionMismatchError, match=r"CLIP: .*fitted beside another image tower.*fit again"):
            vldebias.debias(seeing, mine, side=side)
        with pytest.raises(ProjectionMismatchError, match=r"CLIP: .*fitted on other weights"):
            vldebias.debias(reading, mine, side=side)
    wide = CalibratedProjection.fit(torch.randn(3, 2, DIM + 1))
    with pytest.raises(ProjectionMismatchError, match="has dim 25, 'image' has 24"):
        vldebias.debias(model, wide, side="image")
    unknown = mine.stamped(image_fingerprint=None)  # fitted on a text tower alone: its texts are compared
    vldebias.debias(seeing, unknown, side="image").remove()
    with pytest.raises(ProjectionMismatchError, match="fitted on other weights"):
        vldebias.debias(reading, unknown, side="image")


def test_what_was_fitted_on_images_belongs_to_their_tower(gender: PromptSet) -> None:
    model = make_clip()
    means = vldebias.fit_projection(model, gender, method="cali").stamped(method="cali+equalise", uses_images=True)
    vldebias.debias(model, means).remove()
    with pytest.raises(ProjectionMismatchError, match="fitted beside another image tower"):
        vldebias.debias(shifted(model, model.visual), means)


def test_what_is_refused(gender: PromptSet, images: Tensor) -> None:
    model = make_clip()
    with pytest.raises(InvalidInputError, match=r"side: expected one of text, image, both, got 'images'"):
        debias(model, gender, side="images")
    pipe = load_pipeline()
    for side in ("image", "both"):
        message = rf"StableDiffusionPipeline: side='{side}' needs an image tower that shares a space with the texts"
        with pytest.raises(UnsupportedHostError, match=message):
            vldebias.debias(pipe, gender, side=side)
    model.encode_image = lambda image, normalize=False: image
    with pytest.raises(UnsupportedHostError, match=r"CLIP: `encode_image` of this instance was replaced by .*lambda"):
        debias(model, gender, side="image")
    debias(model, gender).remove()  # the text side does not mind
    model.compile()
    with pytest.raises(UnsupportedHostError, match="CLIP: the model was compiled in place"):
        debias(model, gender, side="image")


def upright(image: Any) -> Tensor:
    return torch.as_tensor(image, dtype=torch.float32).reshape(3, 32, 32)


def test_features_that_are_kept_are_never_projected(gender: PromptSet) -> None:
    model = make_clip()
    encoder = image_encoder(model, upright)
    pixels = [{"pixel_values": torch.randn(1, 3, 32, 32)} for _ in range(3)]
    bare, digest = encoder.embed(pixels), encoder.digest
    for side in ("image", "both"):
        with debias(model, gender, side=side) as attachment:
            for call in (lambda: encoder.embed(pixels), lambda: encoder.digest):
                with pytest.raises(AlreadyAttachedError, match=r"CLIP: its images are projected by Attachment\(CLIP"):
                    call()
            with attachment.disabled():
                assert torch.equal(encoder.embed(pixels), bare)
                assert encoder.digest == digest
            copied = copy.deepcopy(model)
            twin = image_encoder(copied, upright)
            with pytest.raises(AlreadyAttachedError, match="its images are projected by"):
                twin.embed(pixels)
            with vldebias.attachment_of(copied).disabled():
                assert torch.equal(twin.embed(pixels), bare)
                assert twin.digest == digest
    assert torch.equal(encoder.embed(pixels), bare)
    debias(model, gender, side="image").merge()
    assert image_encoder(model, upright).digest != digest  # other weights, other features
    assert not torch.equal(encoder.embed(pixels), bare)
