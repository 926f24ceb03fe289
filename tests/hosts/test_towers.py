"""Test towers for training: their features and gradients match the model's own, and they can be
saved or say why not."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import models_tiny
import open_clip
import pytest
import test_images
import tiny_tokenizers
import torch
from models_tiny import skip_lost, skip_without_folders
from PIL import Image
from torch import Tensor, nn
from torchvision import transforms

import vldebias
from vldebias.errors import (
    AlreadyAttachedError,
    InvalidInputError,
    TruncatedPromptWarning,
    UnsupportedHostError,
)
from vldebias.hosts.clip.images import image_encoder
from vldebias.hosts.clip.towers import CONFIG, WEIGHTS, Towers
from vldebias.hosts.clip.transformers import WITH_IMAGES as TRANSFORMERS
from vldebias.hosts.loading import load_host
from vldebias.prompts import PromptSet

CAPTIONS = [
    "a photo of a man",
    "a photo of the old manager",
    "a woman",
    "a photo of the young female nurse",
]
PATCHES = "Siglip2Model"
NAMES = [*models_tiny.OPEN_CLIP, *(name for name in TRANSFORMERS if name != PATCHES)]


def build(name: str) -> Towers:
    skip_lost(name)
    if name in models_tiny.OPEN_CLIP:
        torch.manual_seed(1)
        model = models_tiny.OPEN_CLIP[name]()
        return Towers(model, models_tiny.tokenizer_for(model), test_images.plain())
    torch.manual_seed(1)
    model = models_tiny.made(name)
    return Towers(model, models_tiny.tokenizer_for(model), test_images.processor_of(name))


@pytest.fixture(params=NAMES)
def towers(request: pytest.FixtureRequest) -> Towers:
    return build(request.param)


def slow_text(model: Any, tokens: Mapping[str, Tensor]) -> Tensor:
    """Encode with full padding, by the model's own method."""
    if "text" in tokens:
        return model.encode_text(tokens["text"], normalize=False)
    output = model.get_text_features(**tokens)
    return output if isinstance(output, Tensor) else output.pooler_output


def test_image_features_match_the_encoder(towers: Towers) -> None:
    pixels = torch.stack([towers.prepare(image) for image in test_images.pictures()])
    expected = image_encoder(towers.model, towers.preprocess).encode(test_images.pictures())
    features = towers.image(pixels)
    assert features.requires_grad
    assert torch.allclose(features, expected, atol=1e-5)
    assert not torch.allclose(features[0], features[1], atol=1e-3)


@pytest.mark.filterwarnings("ignore::vldebias.errors.TruncatedPromptWarning")
@pytest.mark.parametrize("captions", [CAPTIONS, [CAPTIONS[2], "a photo of the man " * 150]])
def test_text_features_match_those_with_full_padding(towers: Towers, captions: list[str]) -> None:
    """Compare values and gradients in double precision, for short and truncated captions."""
    model = towers.model.double()
    tokens = towers.tokenize(captions)
    try:
        slow = slow_text(model, tokens)
    except RuntimeError as error:  # masks of transformers 4 are in single precision
        pytest.skip(f"this release does not run in double precision: {error}")
    quick = towers.text(tokens)
    # Its softmax is always in single precision.
    exact = 1e-6 if type(model).__name__ == "AlignModel" else 1e-12
    assert torch.allclose(quick, slow, atol=exact)
    parameters = [p for p in model.parameters() if p.is_floating_point()]
    weights = torch.randn_like(slow)
    sums = ((features * weights).sum() for features in (quick, slow))
    both = (torch.autograd.grad(total, parameters, allow_unused=True) for total in sums)
    for trimmed, padded in zip(*both, strict=True):
        assert (trimmed is None) == (padded is None)
        assert trimmed is None or torch.allclose(trimmed, padded, atol=100 * exact)


@pytest.mark.parametrize("is_own_class", [False, True])
def test_the_tower_of_clip_skips_padding_unless_a_class_overrides_it(is_own_class: bool) -> None:
    class Mine(open_clip.CLIP):
        def encode_text(self, text: Tensor, normalize: bool = False) -> Tensor:
            return super().encode_text(text, normalize) * 2

    model = (
        Mine(24, models_tiny.VISION, models_tiny.TEXT) if is_own_class else models_tiny.make_clip()
    )
    towers = Towers(model, models_tiny.tokenizer_for(model), test_images.plain())
    seen = []
    model.token_embedding.register_forward_pre_hook(
        lambda module, args: seen.append(args[0].shape[-1])
    )
    tokens = towers.tokenize(CAPTIONS)
    features = towers.text(tokens)
    assert seen[0] == (
        77 if is_own_class else max(_tokens(towers, caption) for caption in CAPTIONS)
    )
    assert torch.allclose(features, slow_text(model, tokens), atol=1e-5)


def test_truncated_captions_are_reported_once(towers: Towers) -> None:
    reads = towers._host.context_length
    count = towers.tokenize
    words = ["man"] * (reads - 2)
    fits = " ".join(words if _tokens(towers, " ".join(words)) == reads else [*words, "man"])
    assert _tokens(towers, fits) == reads
    count([fits, *CAPTIONS])  # no warning, since it just fits
    with pytest.warns(TruncatedPromptWarning, match=rf"{reads} tokens; 2 of 5 captions"):
        tokens = count([fits + " man", *CAPTIONS[:3], fits * 3])
    assert next(iter(tokens.values())).shape == (5, reads)
    count([fits + " man"])  # it does not warn a second time


def _tokens(towers: Towers, caption: str) -> int:
    """Return tokens including start and end."""
    tokenizer = towers.tokenizer
    if isinstance(tokenizer, open_clip.SimpleTokenizer):
        return len(tokenizer.encode(caption)) + 2
    return len(tokenizer(caption)["input_ids"])


@pytest.mark.parametrize("name", NAMES)
def test_pixels_are_resized_and_normalised_by_mean_and_std(name: str) -> None:
    towers = build(name)
    image = test_images.pictures(1)[0].resize(towers.size)
    values = transforms.functional.to_tensor(image)
    mean, std = (torch.tensor(part)[:, None, None] for part in (towers.mean, towers.std))
    if name == "AlignModel":  # its processor crops the centre of a larger resized image
        values = transforms.functional.to_tensor(Image.new("RGB", towers.size, (9, 99, 199)))
        image = Image.new("RGB", towers.size, (9, 99, 199))
    assert torch.allclose(towers.prepare(image), (values - mean) / std, atol=1e-3)


SMALL = transforms.Resize((32, 32))
TENSOR = transforms.ToTensor()


@pytest.mark.parametrize(
    "steps",
    [
        [TENSOR],  # keeps the size of the image
        [SMALL, transforms.Grayscale(), TENSOR],
        [SMALL, transforms.functional.invert, TENSOR],
        [transforms.Pad(8), SMALL, TENSOR],
        [SMALL, TENSOR, torch.sqrt],
    ],
)
def test_preprocessing_that_augmentation_cannot_reproduce_is_rejected(steps: list[Any]) -> None:
    model = models_tiny.make_clip()
    with pytest.raises(InvalidInputError, match="converted plain images to shapes"):
        Towers(model, models_tiny.tokenizer_for(model), transforms.Compose(steps))


def test_parameters_are_split_between_the_towers(towers: Towers) -> None:
    def gradients(features: Tensor, parts: tuple[Any, ...]) -> int:
        parameters = []
        for part in parts:
            parameters += [part] if isinstance(part, nn.Parameter) else part.parameters()
        slopes = torch.autograd.grad(
            features.sum(), parameters, allow_unused=True, retain_graph=True
        )
        return sum(gradient is not None for gradient in slopes)

    image = towers.image(torch.randn(2, 3, *towers.size))
    text = towers.text(towers.tokenize(CAPTIONS))
    assert gradients(image, towers.image_parts) > 10
    assert gradients(text, towers.text_parts) > 10
    assert gradients(image, towers.text_parts) == 0
    assert gradients(text, towers.image_parts) == 0
    assert gradients(image, towers.heads) + gradients(text, towers.heads) > 0


def logits(model: Any, towers: Towers) -> Tensor:
    pixels = torch.ones(1, 3, *towers.size)
    tokens = towers.tokenize(CAPTIONS)
    if "text" in tokens:
        return model.get_logits(pixels, tokens["text"])[0] - (
            0 if model.logit_bias is None else model.logit_bias
        )
    output = model(pixel_values=pixels, **tokens)
    return output.logits_per_image - getattr(model, "logit_bias", torch.zeros(()))


@pytest.mark.parametrize("name", ["clip", "hf-mlp", "CLIPModel", "AlignModel", "SiglipModel"])
def test_cosines_are_divided_by_the_temperature(name: str) -> None:
    towers = build(name)
    with torch.no_grad():
        first = logits(towers.model, towers)
        towers.set_temperature(0.02)
        second = logits(towers.model, towers)
    assert torch.allclose(second * 0.02, first * towers.temperature, atol=1e-5)
    assert second.abs().max() > 1e-3
    towers.set_temperature(0.02, bias=-3.5)  # ignored for a model without a bias
    again = Towers(towers.model, towers.tokenizer, towers.preprocess)
    assert again.temperature == pytest.approx(0.02)
    assert again.bias == (None if towers.bias is None else -3.5)


@pytest.mark.filterwarnings("ignore::vldebias.errors.ClassSignalWarning")
@pytest.mark.parametrize("name", ["clip", "CLIPModel"])
def test_an_attached_model_is_rejected(name: str, gender: PromptSet) -> None:
    towers = build(name)
    tokens = towers.tokenize(CAPTIONS)
    expected = towers.text(tokens)
    attachment = vldebias.debias(towers.model, gender, method="cali", tokenizer=towers.tokenizer)
    with pytest.raises(AlreadyAttachedError, match=r"Attachment.*\.remove\(\)"):
        Towers(towers.model, towers.tokenizer, towers.preprocess)
    assert torch.equal(towers.text(tokens), expected)  # towers created earlier do not detect it
    assert not torch.allclose(slow_text(towers.model, tokens), expected, atol=1e-3)
    attachment.remove()
    Towers(towers.model, towers.tokenizer, towers.preprocess)


def test_models_that_take_patches_are_rejected() -> None:
    with pytest.raises(UnsupportedHostError, match=r"Siglip2Model: .*patches.*as SiglipModel"):
        build(PATCHES)


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register the config in open_clip."""
    for name, config in models_tiny.TABLE["open_clip"].items():
        monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, name, config)


def small(preprocess: Any = None, tokenizer: Any = None, **settings: Any) -> Towers:
    torch.manual_seed(1)
    model, _, default_preprocess = open_clip.create_model_and_transforms("small", **settings)
    return Towers(
        model.eval(), tokenizer or open_clip.SimpleTokenizer(), preprocess or default_preprocess
    )


@pytest.mark.parametrize("kind", ["clip", "words", "CLIPModel"])
def test_a_saved_model_is_loaded_by_its_library(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind != "CLIPModel":
        skip_without_folders()
    # The text tower comes from a transformers config, whose weights are not available.
    if kind == "words":
        models_tiny.make_hf().text.config.save_pretrained(tmp_path / "bert")
        text = {"text_cfg": {"hf_model_name": str(tmp_path / "bert"), "hf_proj_type": "mlp"}}
        monkeypatch.setitem(
            open_clip.factory._MODEL_CONFIGS,
            "small",
            models_tiny.TABLE["open_clip"]["small"] | text,
        )
        towers = small(tokenizer=tiny_tokenizers.hf_tokenizer(), pretrained_hf=False)
    else:
        looks = {"image_mean": (0.4, 0.5, 0.6), "image_interpolation": "bilinear"}
        towers = small(force_quick_gelu=True, **looks) if kind == "clip" else build(kind)
    folder = tmp_path / "saved"
    name = "small/tag" if kind == "words" else "small-words"
    towers.check_saving(towers.model.state_dict(), name=name)
    folder.mkdir()
    towers.save(towers.model.state_dict(), folder, name=name)
    loaded = load_host(str(folder))
    again = Towers(loaded.host, loaded.tokenizer, loaded.preprocess)
    pixels = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32).sin()
    assert torch.allclose(again.image(pixels), towers.image(pixels), atol=1e-6)
    assert torch.allclose(
        again.text(again.tokenize(CAPTIONS)), towers.text(towers.tokenize(CAPTIONS)), atol=1e-6
    )
    assert (again.size, again.mean, again.std) == (towers.size, towers.mean, towers.std)
    assert again.temperature == pytest.approx(towers.temperature)
    if kind != "CLIPModel":
        wrote = json.loads((folder / CONFIG).read_text())["model_cfg"]
        assert wrote["quick_gelu"] == (kind == "clip")
        assert wrote["text_cfg"].get("hf_tokenizer_name") == (name if kind == "words" else None)
    if kind == "clip":
        assert load_host("small", str(folder / WEIGHTS)).name == f"small/{folder / WEIGHTS}"


def test_a_release_that_cannot_load_folders_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    towers = small()
    (tmp_path / CONFIG).write_text("{}")
    monkeypatch.setattr(open_clip, "__version__", "2.32.0")
    refusal = r"open_clip 2\.32\.0 cannot load.*open_clip_torch 3"
    with pytest.raises(UnsupportedHostError, match=refusal):
        towers.check_saving(towers.model.state_dict(), name="small")
    for name in (str(tmp_path), f"local-dir:{tmp_path}"):
        with pytest.raises(UnsupportedHostError, match=refusal):
            load_host(name)


def test_models_that_cannot_be_saved_are_rejected() -> None:
    skip_without_folders()
    small_towers = small()
    hugging = build("CLIPModel")
    preprocess = test_images.plain()
    sharper = transforms.Compose(
        [preprocess, lambda x: x * 1.02 - 0.02 * x.mean((1, 2), keepdim=True)]
    )
    # A processor contains an image processor and a tokenizer.
    unsaved = SimpleNamespace(image_processor=hugging.preprocess)
    Towers(hugging.model, hugging.tokenizer, unsaved).check_saving({}, name="any")
    for towers, name, refusal in (
        (small_towers, "somewhere", "'somewhere' is not an open_clip architecture"),
        (small_towers, "small-wide", "not the architecture of the model"),
        (small_towers, "small-last", "features for texts differ"),
        (build("clip"), "small", "its own vocabulary"),
        (Towers(hugging.model, hugging.tokenizer, preprocess), "any", "Compose cannot be saved"),
        (small(sharper), "small", r"preprocess: .* differ by up to 0\.0\d"),
    ):
        with pytest.raises(InvalidInputError, match=refusal):
            towers.check_saving(towers.model.state_dict(), name=name)
