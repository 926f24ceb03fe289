"""Test the packaged models: they load in both libraries, read the packaged pictures, and reject
other weights."""

import numpy as np
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.transformers_clip import load_transformers_clip
from vldebias.errors import InvalidInputError
from vldebias.miniature import (
    AttributeNetwork,
    load_clip,
    load_judge,
    load_pipeline,
    open_world,
    weights_dir,
    words,
)
from vldebias.miniature.architectures import NARROW
from vldebias.miniature.models import load_weights

TEXTS = [
    "A photo of a doctor.",
    "this is a WATERBIRD in the ocean",
    "",
    "a photo of a female web developer!",
]


@pytest.fixture(scope="module")
def clip():
    return load_clip()


@pytest.fixture(scope="module")
def people():
    """Return 300 portraits and their pixels (300, 3, 64, 64) in [0, 1]."""
    data = open_world("portraits", n=300)
    return data, pixels(data)


def pixels(data):
    return (
        torch.from_numpy(np.stack([np.asarray(data.read(i)) for i in range(len(data))])).permute(
            0, 3, 1, 2
        )
        / 255
    )


def features(output):
    """Return text features, which newer versions of transformers wrap in an output object."""
    return getattr(output, "pooler_output", output)


def test_packaged_models_are_small():
    files = [
        path
        for folder in ("weights", "worlds")
        for path in (weights_dir().parent / folder).rglob("*")
        if path.is_file()
    ]
    assert sum(path.stat().st_size for path in files) < 26e6
    assert {path.suffix for path in files} <= {
        ".safetensors",
        ".json",
        ".gz",
        ".md",
        ".webp",
        ".csv",
    }


def test_features_and_logits_agree_between_the_two_libraries(clip, people):
    """Padding follows the end token and the tower is causal, so the amount of padding does not
    matter."""
    model, preprocess, tokenizer = clip
    assert isinstance(model, open_clip.CLIP)
    assert not model.training
    twin, other_tokenizer, processor = load_transformers_clip()
    pictures = [people[0].read(i) for i in range(5)]
    seen = torch.stack([preprocess(picture) for picture in pictures])
    ids = tokenizer(TEXTS)
    with torch.no_grad():
        images = features(twin.get_image_features(**processor(pictures, return_tensors="pt")))
        assert torch.allclose(model.encode_image(seen), images, atol=1e-5)
        for padding in ("max_length", True):
            texts = other_tokenizer(TEXTS, padding=padding, truncation=True, return_tensors="pt")
            assert torch.allclose(
                model.encode_text(ids), features(twin.get_text_features(**texts)), atol=1e-5
            )
            logits = twin(**texts, pixel_values=seen).logits_per_image
            assert torch.allclose(model.get_logits(seen, ids)[0], logits, atol=1e-3)


def test_preprocess_reads_pictures_and_tensors_of_any_size(clip):
    _, preprocess, _ = clip
    picture = Image.new("RGBA", (50, 70), (255, 0, 255, 255))
    tensor = torch.tensor([1.0, 0.0, 1.0]).view(3, 1, 1).expand(3, 50, 70)
    for image in (picture, tensor, 2 * tensor):
        assert torch.allclose(preprocess(image), 2 * tensor[:, :1, :1].expand(3, 64, 64) - 1)
    stripes = torch.arange(192).remainder(2).expand(3, 192, 192).float()
    assert preprocess(stripes).abs().max() < 0.1  # averaged to grey
    with pytest.raises(InvalidInputError, match=r"got a tensor \(64, 64\)"):
        preprocess(torch.zeros(64, 64))


def test_clip_recognises_what_the_pictures_show(clip, people):
    model, preprocess, tokenizer = clip
    data, shown = people
    with torch.no_grad():
        images = model.encode_image(torch.stack([preprocess(x) for x in shown]), normalize=True)
        classes = model.encode_text(
            tokenizer([f"A photo of a {p}." for p in words.PROFESSIONS]), normalize=True
        )
    right = (images @ classes.T).argmax(dim=1).numpy() == data.column("profession").codes
    assert right[data.column("duty").codes == 0].mean() > 0.6  # chance level: 0.01


def test_clip_mistakes_birds_in_front_of_the_wrong_background(clip):
    """The bird world was designed for this bias: rare groups are classified much worse than
    frequent ones."""
    model, preprocess, tokenizer = clip
    flock = open_world("birds", n=400)
    prompts = [f"This is a picture of a {name}." for name in words.CLASSES]
    with torch.no_grad():
        classes = model.encode_text(tokenizer(prompts), normalize=True)
        images = model.encode_image(
            torch.stack([preprocess(x) for x in pixels(flock)]), normalize=True
        )
    label = flock.column("label").codes
    right = (images @ classes.T).argmax(dim=1).numpy() == label
    frequent = label == flock.column("place").codes
    assert right[frequent].mean() - right[~frequent].mean() > 0.2


def test_the_pipeline_has_its_own_text_tower_and_a_seed_determines_the_picture(capsys):
    pipeline = load_pipeline()
    text_weights = load_weights(weights_dir() / "text.safetensors")
    config = pipeline.text_encoder.config
    tokenizer = pipeline.tokenizer
    assert (config.hidden_size, config.bos_token_id) == (NARROW.text, tokenizer.bos_token_id)
    for name, tensor in pipeline.text_encoder.state_dict().items():
        assert torch.equal(
            tensor, text_weights[f"text_model.{name.removeprefix('text_model.')}"]
        ), name
    sources = [torch.Generator().manual_seed(seed) for seed in (0, 0, 1)]
    how = {"num_inference_steps": 2, "output_type": "pt"}
    picture, again, other_picture = (
        pipeline("A photo of a chef.", generator=source, **how).images for source in sources
    )
    assert picture.shape == (1, 3, 64, 64)
    assert (pipeline.config.requires_safety_checker, *capsys.readouterr()) == (False, "", "")
    assert torch.equal(picture, again)
    assert not torch.equal(picture, other_picture)


def test_the_judge_recognises_birds_and_their_places():
    judge = load_judge()
    flock = open_world("birds", n=300)
    assert isinstance(judge, AttributeNetwork)
    seen = judge.predict(pixels(flock))
    assert (seen["world"] == words.WORLDS.index("birds")).double().mean() > 0.95
    assert (seen["species"].numpy() == flock.column("species").codes).mean() > 0.95
    assert (
        (seen["place"].numpy() >= len(words.PLACES) // 2) == flock.column("place").codes
    ).mean() > 0.95
    assert torch.allclose(seen["species_probabilities"].sum(dim=1), torch.ones(300), atol=1e-5)
    with pytest.raises(InvalidInputError, match=r"\(n, 3, 64, 64\).*got \(3, 64, 64\)"):
        judge.predict(torch.zeros(3, 64, 64))


def test_the_judge_recognises_the_people_that_the_pipeline_generates():
    judge = load_judge()
    pipeline = load_pipeline()
    for code, gender in enumerate(words.GENDERS):
        source = torch.Generator().manual_seed(0)
        call = {
            "num_inference_steps": 8,
            "guidance_scale": 3.0,
            "generator": source,
            "output_type": "pt",
        }
        seen = judge.predict(pipeline([f"A photo of a {gender} chef."] * 6, **call).images)
        assert (seen["gender"] == code).double().mean() > 0.8
        assert (seen["profession"] == words.PROFESSIONS.index("chef")).double().mean() > 0.8


def test_a_different_build_is_found_through_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("VLDEBIAS_MINIATURE", str(tmp_path))
    assert weights_dir() == tmp_path
    with pytest.raises(InvalidInputError, match="no tokenizer at"):
        load_clip()
    with pytest.raises(InvalidInputError, match=r"no weights at .*judge.safetensors"):
        load_judge(tmp_path)
    monkeypatch.setenv("VLDEBIAS_MINIATURE", str(tmp_path / "missing"))
    with pytest.raises(InvalidInputError, match="VLDEBIAS_MINIATURE"):
        load_clip()


def test_weights_of_a_different_version_are_rejected(tmp_path):
    weights = load_weights(weights_dir() / "judge.safetensors")
    # The integers count batches.
    assert {weight.dtype for weight in weights.values()} == {
        torch.float32,
        torch.int64,
    }
    for change in ({"features.0.weight": torch.zeros(32, 3, 5, 5)}, {}):
        weights.pop("features.0.weight")
        save_file(weights | change, tmp_path / "judge.safetensors")
        with pytest.raises(
            InvalidInputError,
            match=r"judge.safetensors.* 1 do not match, such as features.0.weight",
        ):
            load_judge(tmp_path)
        weights |= {"features.0.weight": torch.zeros(0)}
