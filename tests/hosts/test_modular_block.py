"""Test the block for Modular Diffusers, loaded from its folder as it would be from the hub."""

import warnings
from pathlib import Path

import diffusers_tiny as tiny
import pytest
import torch
from diffusers.utils import dynamic_modules_utils

from vldebias.errors import InvalidInputError

FOLDER = Path(__file__).parents[2] / "apps" / "modular"
SMALL = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "latent"}
OUTPUTS = ["prompt", "assigned_values", "reasons", "latents"]


@pytest.fixture(autouse=True)
def modules(monkeypatch, tmp_path):
    """Copy loaded code to a temporary folder instead of the user's."""
    monkeypatch.setattr(dynamic_modules_utils, "HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")


def loaded(**settings):
    blocks = pytest.importorskip("diffusers.modular_pipelines").ModularPipelineBlocks
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return blocks.from_pretrained(str(FOLDER), trust_remote_code=True, **settings)
        except RuntimeError as error:
            if "dictionary changed size" not in str(error):
                raise
            pytest.skip("from_pretrained of this diffusers takes no settings of a block")


def pipeline(block):
    blocks = tiny.modular("StableDiffusionXL").blocks
    blocks.sub_blocks.insert("balance_prompts", block, 0)
    return tiny.modular("StableDiffusionXL", blocks)


def called(pipe, prompt, **inputs):
    noise = torch.Generator().manual_seed(0)
    return pipe(prompt=prompt, generator=noise, output=OUTPUTS, **SMALL, **inputs)


def test_prompts_are_balanced_before_the_text_encoder():
    pipe = pipeline(loaded(seed=0))
    made = called(pipe, "A photo of a nurse.", num_images_per_prompt=4)
    assert sorted(made["assigned_values"]) == ["female", "female", "male", "male"]
    values = made["assigned_values"]
    assert made["prompt"] == [f"A photo of a {value} nurse." for value in values]
    # The images equal those of a pipeline without the block for these prompts.
    plain = tiny.modular("StableDiffusionXL")
    noise = torch.Generator().manual_seed(0)
    expected = plain(prompt=made["prompt"], generator=noise, output="latents", **SMALL)
    assert torch.equal(made["latents"], expected)


def test_values_stay_even_over_calls_and_stated_prompts_are_unchanged():
    pipe = pipeline(loaded(seed=1))
    values = [called(pipe, "A nurse.")["assigned_values"][0] for _ in range(4)]
    assert sorted(values) == ["female", "female", "male", "male"]
    stated = called(pipe, ["A male nurse.", "A red chair."], num_images_per_prompt=2)
    assert stated["prompt"] == ["A male nurse."] * 2 + ["A red chair."] * 2
    assert stated["reasons"] == ["stated", "stated", "no person", "no person"]


def test_second_prompts_get_the_same_value_and_negative_prompts_are_unchanged():
    pipe = pipeline(loaded(attribute="age", seed=0))
    made = pipe(
        prompt="A nurse.",
        prompt_2="A nurse in a ward.",
        negative_prompt=["a man"],
        num_images_per_prompt=2,
        output=["prompt_2", "prompt", "negative_prompt"],
        **SMALL,
    )
    for first, second in zip(made["prompt"], made["prompt_2"], strict=True):
        word = first.split()[1]
        assert word in ("young", "old")
        assert second.split()[1] == word
    assert made["negative_prompt"] == ["a man", "a man"]


def test_settings_are_checked_when_the_block_is_created():
    assert loaded(shares={"female": 1.0, "male": 0.0}).inputs[0].name == "prompt"
    with pytest.raises(InvalidInputError, match="shares"):
        loaded(shares={"female": 2.0, "male": 0.0})
    with pytest.raises(InvalidInputError, match="gendre"):
        loaded(attribute="gendre")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"prompt": []}, r"prompt: .* got \[\]"),
        ({"prompt": 3}, "prompt: .* got 3"),
        ({"prompt": ["A nurse.", 3]}, "prompt: .* got .*3"),
        ({"prompt": "A nurse.", "num_images_per_prompt": 0}, "num_images_per_prompt: .* got 0"),
        ({"prompt": "A nurse.", "num_images_per_prompt": 1.5}, "num_images_per_prompt: .* got 1.5"),
        ({"prompt": ["A nurse.", "A cook."], "prompt_2": ["A nurse."]}, "'prompt_2': 1"),
    ],
)
def test_invalid_prompts_and_numbers_of_images_are_rejected(inputs, message):
    with pytest.raises(InvalidInputError, match=message):
        called(pipeline(loaded(seed=0)), **inputs)
