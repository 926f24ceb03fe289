import json
import shutil

import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from vldebias.errors import InvalidInputError
from vldebias.miniature import (
    AttributeNetwork,
    birds,
    load_clip,
    load_judge,
    load_pipeline,
    load_transformers_clip,
    portraits,
    weights_dir,
)
from vldebias.miniature.models import TEXT_FILE, load_text_tower, load_weights

TEXTS = ["A photo of a doctor.", "this is a WATERBIRD in the ocean", "", "a photo of a female web developer!"]


@pytest.fixture(scope="module")
def clip():
    return load_clip()


@pytest.fixture(scope="module")
def twin():
    return load_transformers_clip()


@pytest.fixture(scope="module")
def people():
    return portraits.sample(300, seed=70, balanced=True, life=portraits.STUDIO)


def features(output):
    """Newer transformers wrap what `get_text_features` gives."""
    return getattr(output, "pooler_output", output)


def test_what_ships_is_small():
    files = [path for path in weights_dir().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 30e6
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".gz", ".md"}


def test_clip_comes_as_open_clip_gives_it(clip):
    model, _, tokenizer = clip
    assert isinstance(model, open_clip.CLIP)
    assert not model.training
    assert isinstance(tokenizer, open_clip.SimpleTokenizer)
    with torch.no_grad():
        image, text, scale = model(torch.zeros(2, 3, 64, 64), tokenizer(TEXTS))
    width = model.text_projection.shape[1]
    assert image.shape == (2, width)
    assert text.shape == (4, width)
    assert scale > 1


@pytest.mark.parametrize("padding", ["max_length", True])
def test_features_and_logits_of_the_twins_agree(clip, twin, people, padding):
    """Padding follows the end token, and the tower is causal, so that how much there is does not matter."""
    model, preprocess, tokenizer = clip
    other, other_tokenizer, processor = twin
    pictures = [Image.fromarray((x.permute(1, 2, 0) * 255).byte().numpy()) for x in people.images[:5]]
    pixels, ids = torch.stack([preprocess(picture) for picture in pictures]), tokenizer(TEXTS)
    texts = other_tokenizer(TEXTS, padding=padding, truncation=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.allclose(model.encode_text(ids), features(other.get_text_features(**texts)), atol=1e-5)
        images = features(other.get_image_features(**processor(pictures, return_tensors="pt")))
        assert torch.allclose(model.encode_image(pixels), images, atol=1e-5)
        logits = other(**texts, pixel_values=pixels).logits_per_image
        assert torch.allclose(model.get_logits(pixels, ids)[0], logits, atol=1e-3)


def test_preprocess_reads_pictures_and_tensors_of_any_size(clip):
    _, preprocess, _ = clip
    picture = Image.new("RGBA", (50, 70), (255, 0, 0, 255))
    expected = torch.tensor([1.0, -1.0, -1.0]).view(3, 1, 1).expand(3, 64, 64)
    assert torch.allclose(preprocess(picture), expected)
    tensor = torch.zeros(3, 50, 70)
    tensor[0] = 1
    assert torch.allclose(preprocess(tensor), expected)
    with pytest.raises(InvalidInputError, match=r"got a tensor \(64, 64\)"):
        preprocess(torch.zeros(64, 64))


def test_clip_reads_what_the_renderer_drew(clip, people):
    model, preprocess, tokenizer = clip
    with torch.no_grad():
        pixels = torch.stack([preprocess(x) for x in people.images])
        classes = model.encode_text(tokenizer([f"A photo of a {p}." for p in portraits.PROFESSIONS]), normalize=True)
        read = (model.encode_image(pixels, normalize=True) @ classes.T).argmax(dim=1)
    assert (read == people.profession).double().mean() > 0.8  # chance: 0.01


def test_clip_mistakes_birds_in_front_of_the_wrong_background(clip):
    """The bias that the world of birds is there for: rare groups are read much worse than frequent ones."""
    model, preprocess, tokenizer = clip
    world = birds.sample(400, seed=71, balanced=True)
    prompts = [f"This is a picture of a {name}." for name in birds.CLASSES]
    with torch.no_grad():
        classes = model.encode_text(tokenizer(prompts), normalize=True)
        pixels = torch.stack([preprocess(x) for x in world.images])
        right = (model.encode_image(pixels, normalize=True) @ classes.T).argmax(dim=1) == world.label
    frequent = world.label == world.background
    assert right[frequent].double().mean() - right[~frequent].double().mean() > 0.2


def test_pipeline_reads_a_text_tower_of_its_own_or_that_of_the_clip(twin, tmp_path):
    pipeline, own = load_pipeline(), load_weights(weights_dir() / TEXT_FILE)
    for name, tensor in pipeline.text_encoder.state_dict().items():
        assert torch.equal(tensor, own[f"text_model.{name.removeprefix('text_model.')}"]), name
    assert pipeline.tokenizer.pad_token_id == 0
    for path in weights_dir().glob("*.*"):
        if path.name != TEXT_FILE:
            shutil.copy(path, tmp_path)
    theirs = twin[0].text_model.state_dict()
    for name, tensor in load_text_tower(tmp_path)[0].state_dict().items():
        assert torch.equal(tensor, theirs[name.removeprefix("text_model.")]), name


def test_pipeline_draws_the_same_picture_for_the_same_seed():
    pipeline = load_pipeline()

    def draw(seed):
        source = torch.Generator().manual_seed(seed)
        return pipeline("A photo of a chef.", num_inference_steps=2, generator=source, output_type="pt").images

    one, again, other = draw(0), draw(0), draw(1)
    assert one.shape == (1, 3, 64, 64)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_judge_reads_portraits(people):
    judge = load_judge()
    assert isinstance(judge, AttributeNetwork)
    seen = judge.predict(people.images)
    for name, least in (("profession", 0.9), ("gender", 0.97), ("tone", 0.9), ("age", 0.9)):
        assert (seen[name] == getattr(people, name)).double().mean() > least, name
        assert torch.allclose(seen[f"{name}_probabilities"].sum(dim=1), torch.ones(300), atol=1e-5)
    with pytest.raises(InvalidInputError, match=r"reads images \(n, 3, 64, 64\) in \[0, 1\], got \(3, 64, 64\)"):
        judge.predict(torch.zeros(3, 64, 64))


def test_another_build_is_found_through_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("VLDEBIAS_MINIATURE", str(tmp_path))
    assert weights_dir() == tmp_path
    with pytest.raises(InvalidInputError, match=r"no tokenizer at .*; build one with `python -m eval.miniature --out "):
        load_clip()
    with pytest.raises(InvalidInputError, match=r"no weights at .*judge.safetensors; build them with"):
        load_judge(tmp_path)
    monkeypatch.setenv("VLDEBIAS_MINIATURE", str(tmp_path / "missing"))
    with pytest.raises(InvalidInputError, match="VLDEBIAS_MINIATURE must name a folder made by"):
        load_clip()


def test_weights_of_another_edition_are_refused(tmp_path):
    for path in weights_dir().glob("*"):
        if path.is_file():
            shutil.copy(path, tmp_path)
    weights = load_weights(tmp_path / "judge.safetensors")
    weights["features.0.weight"] = torch.zeros(32, 3, 5, 5)
    save_file(weights, tmp_path / "judge.safetensors")
    told = r"judge.safetensors holds the weights of another edition: 1 do not fit, features.0.weight first; build"
    with pytest.raises(InvalidInputError, match=told):
        load_judge(tmp_path)
    weights.pop("features.0.weight")
    save_file(weights, tmp_path / "judge.safetensors")
    with pytest.raises(InvalidInputError, match="1 do not fit"):
        load_judge(tmp_path)


def test_cards_carry_the_measured_numbers():
    metrics = json.loads((weights_dir() / "metrics.json").read_text())
    clip_card = (weights_dir() / "cards" / "clip.md").read_text()
    diffusion_card = (weights_dir() / "cards" / "diffusion.md").read_text()
    assert f"{metrics['birds']['none']['worst group']['mean']:.3f}" in clip_card
    assert f"{metrics['generation']['none']['discrepancy']['mean']:.3f}" in diffusion_card
    for card in (clip_card, diffusion_card):
        assert "Cartoon people are cartoon people" in card
