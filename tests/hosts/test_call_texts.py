"""Test all texts of a call: several encoders, long texts, and embeddings instead of texts."""

import diffusers_tiny as tiny
import pytest
import torch

from vldebias import debias
from vldebias.errors import InvalidInputError, VldebiasWarning
from vldebias.hosts.pipelines.calls import characters_read, set_texts

SET = "professions-gender"
OPEN = "a photo of a doctor"
SCENE = "a quiet street at night"
SEVERAL = ["StableDiffusionXL", "StableDiffusion3", "Flux"]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def texts_of_encoding(monkeypatch):
    """Record the text arguments of the pipeline's `encode_prompt`."""
    kept = []

    def keep(call, texts):
        set_texts(call, texts)
        kept.append({name: value for name, value in call.items() if name.startswith("prompt")})

    monkeypatch.setattr("vldebias.hosts.pipelines.diffusers.set_texts", keep)
    return kept


def drawn(name, **changes):
    make, call = tiny.FAMILIES[name]
    pipe = make()
    return pipe, call | changes


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize(
    ("prompt", "prompt_2"),
    [(SCENE, "a photo of a{} doctor"), ("a photo of a{} doctor", "a{} doctor in a ward")],
)
def test_all_texts_about_the_subject_get_the_value_of_their_image(
    prompt, prompt_2, name, monkeypatch
):
    pipe, call = drawn(name, prompt_2=prompt_2.format(""), num_images_per_prompt=4)
    kept = texts_of_encoding(monkeypatch)
    attachment = debias(pipe, SET)
    tiny.draw(pipe, prompt.format(""), **call)
    assert sorted(attachment.sampled) == ["female", "female", "male", "male"]
    assert attachment.reasons == [None] * 4
    for argument, text in {"prompt": prompt, "prompt_2": prompt_2}.items():
        assert kept[0][argument] == [text.format(f" {value}") for value in attachment.sampled]


@pytest.mark.parametrize("name", SEVERAL)
def test_any_text_may_state_the_value(name, monkeypatch):
    pipe, call = drawn(name, prompt_2="a female doctor", num_images_per_prompt=2)
    kept = texts_of_encoding(monkeypatch)
    attachment = debias(pipe, SET)
    tiny.draw(pipe, OPEN, **call)
    assert attachment.sampled == [None, None]
    assert attachment.reasons == ["stated", "stated"]
    assert kept[0]["prompt"] == OPEN


@pytest.mark.parametrize("prompts", [[OPEN, None], [[OPEN]]])
def test_prompts_that_are_no_strings_are_named(prompts):
    pipe = tiny.sd()
    with debias(pipe, SET), pytest.raises(InvalidInputError, match="expected a string for each"):
        pipe(prompts, num_inference_steps=1)


def test_a_subject_that_no_encoder_reads_is_left_unchanged_and_not_counted():
    pipe, call = drawn("StableDiffusion", num_images_per_prompt=2)
    attachment = debias(pipe, SET, method="balanced-prompts")
    street = "a quiet street with lamps, " * 40
    tiny.draw(pipe, street + OPEN, **call)
    assert attachment.sampled == [None, None]
    assert attachment.reasons == ["truncated", "truncated"]
    for _ in range(2):
        tiny.draw(pipe, f"{OPEN}, {street}", **call)
        assert sorted(attachment.sampled) == ["female", "male"]
        assert attachment.reasons == [None, None]


def test_the_part_read_by_an_encoder_ends_at_a_word_boundary():
    pipe, _ = drawn("StableDiffusion")
    text = "streets and lamps and houses " * 40
    end = characters_read(pipe.tokenizer, None, text)
    assert 0 < end < len(text)
    assert text[end - 1 : end + 1].count(" ") or not text[end].isalnum()
    assert characters_read(pipe.tokenizer, None, "a street") == len("a street")


class SlowTokenizer:
    """A tokenizer without offsets, as in transformers 4."""

    is_fast = False

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.model_max_length = tokenizer.model_max_length

    def __call__(self, text, verbose):
        return self.tokenizer(text, verbose=verbose)


@pytest.mark.parametrize(
    "text",
    [
        "streets and lamps and houses " * 40,
        "street, lamp; (house) " * 40,
        "a street of " + "very" * 200 + " old houses",
        "an old street",
    ],
)
def test_the_part_read_by_an_encoder_is_the_same_without_token_offsets(text):
    pipe, _ = drawn("StableDiffusion")
    if not pipe.tokenizer.is_fast:
        pytest.skip("this release has no tokenizer to compare with")
    slow = SlowTokenizer(pipe.tokenizer)
    end = characters_read(pipe.tokenizer, None, text)
    assert text[: characters_read(slow, None, text)].strip() == text[:end].strip()


@pytest.mark.parametrize("images", [1, 3])
def test_embeddings_of_a_negative_prompt_are_repeated_per_image(images):
    pipe, call = drawn("StableDiffusion", num_images_per_prompt=images, guidance_scale=3.0)
    negative = pipe.encode_prompt("blurry", "cpu", 1, False)[0]
    noise = [torch.Generator().manual_seed(seed) for seed in range(images)]
    attachment = debias(pipe, SET)
    embedded = call | {"negative_prompt_embeds": negative, "generator": noise}
    pictures = tiny.draw(pipe, OPEN, **embedded)
    texts = [f"a photo of a {value} doctor" for value in attachment.sampled]
    attachment.remove()
    noise = [torch.Generator().manual_seed(seed) for seed in range(images)]
    alone = call | {"negative_prompt": ["blurry"] * images, "generator": noise}
    alone["num_images_per_prompt"] = 1
    assert torch.allclose(pictures, tiny.draw(pipe, texts, **alone), atol=1e-5)


def test_the_content_of_passed_embeddings_is_unknown():
    pipe, call = drawn("StableDiffusion", num_images_per_prompt=2)
    attachment = debias(pipe, SET)
    tiny.draw(pipe, OPEN, **call)
    assert len(attachment.sampled) == 2
    with attachment.disabled():
        embedded = pipe.encode_prompt(SCENE, "cpu", 1, False)[0]
        bare = tiny.draw(pipe, None, prompt_embeds=embedded, **call)
    with pytest.warns(VldebiasWarning, match=r"embeddings of vldebias\.balance_prompts"):
        assert torch.equal(tiny.draw(pipe, None, prompt_embeds=embedded, **call), bare)
    assert attachment.sampled == [None, None]
    assert attachment.reasons == ["embeddings", "embeddings"]
