"""Test image towers: their features match the model's own, and every change to a tower changes the
digest."""

import copy
from typing import Any

import models_tiny
import numpy as np
import open_clip
import pytest
import torch
import transformers
from models_tiny import skip_lost
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize
from torchvision import transforms

from vldebias.errors import InvalidInputError, UnsupportedHostError
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.clip.transformers import WITH_IMAGES as TRANSFORMERS
from vldebias.miniature import load_clip
from vldebias.prompts import PromptSet


def processor_of(name: str, **changes: Any) -> Any:
    config = models_tiny.TRANSFORMERS[name]["processor"] | changes
    return getattr(transformers, config.pop("class"))(**config)


def pictures(n: int = 3) -> list[Image.Image]:
    """Return pictures of different sizes."""
    rng = np.random.default_rng(0)
    return [
        Image.fromarray(rng.integers(0, 256, (40 + 8 * i, 64, 3), dtype=np.uint8)) for i in range(n)
    ]


def plain(size: int = 32) -> transforms.Compose:
    return open_clip.image_transform(size, is_train=False)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_transformers_features_match_forward(name: str) -> None:
    skip_lost(name)
    model = models_tiny.made(name)
    processor = processor_of(name)
    encoder = image_encoder(model, processor)
    features = encoder.encode(pictures())
    inputs = {
        k: v for k, v in processor(images=pictures(), return_tensors="pt").items() if k != "labels"
    }
    ids = torch.tensor([[3, 5, 7, 2]])
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).image_embeds
    assert torch.allclose(normalize(features, dim=1), expected, atol=1e-5)
    assert not torch.allclose(expected[0], expected[1], atol=1e-3)
    # These are the features before normalisation.
    assert not torch.allclose(features.norm(dim=1), torch.ones(3), atol=1e-3)
    assert encoder.fingerprint is not None


@pytest.mark.parametrize("name", models_tiny.OPEN_CLIP)
def test_open_clip_features_match_forward(name: str) -> None:
    torch.manual_seed(1)
    model = models_tiny.OPEN_CLIP[name]()
    preprocess = plain()
    features = image_encoder(model, preprocess).encode(pictures())
    pixels = torch.stack([preprocess(image) for image in pictures()])
    with torch.no_grad():
        assert torch.allclose(features, model.encode_image(pixels, normalize=False), atol=1e-5)
        output = model(pixels)
        expected = output["image_features"] if isinstance(output, dict) else output[0]
    assert torch.allclose(normalize(features, dim=1), expected, atol=1e-5)
    assert not torch.allclose(features.norm(dim=1), torch.ones(3), atol=1e-3)


def test_features_stay_unedited_while_images_are_edited(gender: PromptSet) -> None:
    model = models_tiny.make_clip()
    encoder = image_encoder(model, plain())
    bare = encoder.encode(pictures())
    with models_tiny.OpenClip(model).debias(gender, side="image"):
        assert torch.equal(encoder.encode(pictures()), bare)


def digest(model: Any) -> str:
    return image_encoder(model, "unused".upper, preprocessing="same").digest


@pytest.mark.parametrize("name", ["CLIPModel", "AlignModel", "SiglipModel"])
def test_every_weight_and_buffer_of_the_tower_affects_the_digest(name: str) -> None:
    model = models_tiny.made(name)
    before = digest(model)
    fingerprint = image_encoder(model, print).fingerprint
    assert digest(copy.deepcopy(model)) == before
    towers = [
        model.vision_model,
        *([model.visual_projection] if hasattr(model, "visual_projection") else []),
    ]
    tensors = []
    for tower in towers:
        tensors += [*tower.parameters(), *tower.buffers()]
    assert len(tensors) > 16
    for tensor in tensors:
        kept = tensor.detach().clone()
        tensor.data.view(-1)[-1] += 1
        assert digest(model) != before
        tensor.data.copy_(kept)
    with torch.no_grad():
        for parameter in model.text_model.parameters():
            parameter.add_(1)
    assert digest(model) == before
    assert image_encoder(model, print).fingerprint == fingerprint
    with pytest.raises(InvalidInputError, match=rf"{name}: .* is on the meta device"):
        digest(model.to("meta"))


def test_module_classes_and_settings_affect_the_digest() -> None:
    """None of these changes a weight."""
    model = models_tiny.make_clip()
    block = model.visual.transformer.resblocks[0]
    digests = [digest(model)]
    block.mlp.gelu = nn.ReLU()
    digests.append(digest(model))
    block.mlp.gelu = nn.SiLU()  # the same settings as ReLU
    digests.append(digest(model))
    model.visual.ln_post.eps = 0.5
    digests.append(digest(model))
    model.visual.pool_type = "avg"
    digests.append(digest(model))
    model.train()
    model.eval()
    assert len(set(digests)) == 5
    assert digest(model) == digests[-1]


def greyed(image: Image.Image) -> Tensor:
    return transforms.functional.to_tensor(image.convert("L").convert("RGB"))


DESCRIBED = [
    lambda: plain(32),
    lambda: plain(40),
    lambda: greyed,
    lambda: processor_of("CLIPModel"),
    lambda: processor_of("CLIPModel", do_normalize=False),
    lambda: load_clip()[1],
]


def test_preprocessing_descriptions_are_distinct_and_stable() -> None:
    def describe(build):
        return image_encoder(models_tiny.make_clip(), build()).preprocessing

    texts = [describe(build) for build in DESCRIBED]
    assert len(set(texts)) == len(texts)
    assert texts == [describe(build) for build in DESCRIBED]
    assert not any("0x" in text for text in texts)
    assert texts[2] == "<function greyed>"


@pytest.mark.parametrize(
    "preprocess",
    [lambda image: greyed(image), transforms.Compose([transforms.Lambda(greyed)])],
    ids=["lambda", "transforms.Lambda"],
)
def test_unidentifiable_preprocessing_is_rejected(preprocess: Any) -> None:
    model = models_tiny.make_clip()
    with pytest.raises(InvalidInputError, match="preprocessing="):
        image_encoder(model, preprocess)
    assert (
        image_encoder(model, preprocess, preprocessing="grey, version 1").preprocessing
        == "grey, version 1"
    )


def test_missing_image_towers_and_pixels_are_rejected() -> None:
    with pytest.raises(UnsupportedHostError, match="SiglipTextModel: no image tower"):
        image_encoder(models_tiny.made("SiglipTextModel"), plain())
    for made, message in (
        (lambda image: image, "got Image"),
        (lambda image: greyed(image)[None], r"got \(1, 3, 40, 6"),
    ):
        with pytest.raises(
            InvalidInputError,
            match=rf"preprocess: expected a tensor \(3, h, w\) for an image, {message}",
        ):
            image_encoder(models_tiny.make_clip(), made, preprocessing="mine").encode(pictures(1))
