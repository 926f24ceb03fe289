"""Test calls with rewritten prompts that also pass the user's original texts."""

import json
import threading
from collections import Counter

import diffusers_tiny as tiny
import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline
from diffusers_tiny import CASES, modular

from vldebias.api import debias
from vldebias.errors import InvalidInputError

ORIGINAL = "a nurse and a chef"
REWRITTEN = "A woman, a nurse with her chart, talks to a chef."
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*trust_remote_code.*", "ignore:.*LoraLoaderMixin.*:FutureWarning"
)


def turned(people):
    """Return the rewritten prompt for an image, by simple replacement."""
    (_, nurse), (_, chef) = people
    words = {"female": ("woman", "her"), "male": ("man", "his")}[nurse]
    return "A {}, a nurse with {} chart, talks to a {} chef.".format(*words, chef)


@pytest.mark.parametrize("name", ["StableDiffusion", "StableDiffusionXL", "StableDiffusion3"])
def test_pictures_are_generated_from_the_rewritten_originals(name):
    make, call = tiny.FAMILIES[name]
    pipe = make()
    bare = make()
    with debias(pipe, "gender") as attachment, attachment.originals([ORIGINAL, "a car"]):
        drawn = tiny.draw(pipe, [REWRITTEN, "A man in a car"], num_images_per_prompt=4, **call)
        people = attachment.people
    texts = [turned(persons) for persons in people[:4]]
    assert len(set(texts)) == 4
    assert people[4:] == [()] * 4  # the user did not mention a person
    texts += ["A man in a car"] * 4
    assert torch.equal(drawn, tiny.draw(bare, texts, **call))


@pytest.mark.parametrize("originals", [[ORIGINAL], None])
def test_every_encoding_in_a_call_has_the_values_of_all_people(originals):
    """HunyuanDiT encodes a prompt with two encoders."""
    drawing = CASES["HunyuanDiT"]
    pipe = drawing.make(is_complete=True)
    with debias(pipe, "gender", method="balanced-prompts") as attachment:
        if originals is None:
            drawn = drawing.draw(pipe, [ORIGINAL])
        else:
            with attachment.originals(originals):
                drawn = drawing.draw(pipe, [REWRITTEN])
        written = attachment.last_call.written
    bare = drawing.draw(pipe, written, num_images_per_prompt=1)
    assert torch.equal(drawn, bare)


def test_a_modular_pipeline_supports_originals():
    pipe = modular("StableDiffusionXL")
    bare = tiny.draw_modular(modular("StableDiffusionXL"), ["A woman, a nurse."])
    attachment = debias(pipe, "gender", method="balanced-prompts")
    with attachment.originals("a nurse"):
        drawn = tiny.draw_modular(pipe, ["A man, a nurse."])
    is_woman = attachment.sampled == ["female"]
    assert torch.equal(drawn, bare) == is_woman


def test_records_contain_the_originals():
    records = []
    pipe = tiny.sd()
    with debias(pipe, "gender", on_call=records.append) as attachment:
        with attachment.originals([ORIGINAL]):
            tiny.draw(pipe, REWRITTEN, num_images_per_prompt=2)
        tiny.draw(pipe, REWRITTEN)
    assert records == attachment.calls
    assert records[0].originals == (ORIGINAL,) * 2
    assert records[0].prompts == (REWRITTEN,) * 2
    assert json.loads(records[0].to_json())["originals"] == [ORIGINAL] * 2
    assert records[1].originals is None


def test_originals_are_counted_independently_of_the_rewriter():
    pipe = tiny.sd()
    with debias(pipe, "gender") as attachment:
        values = []
        for number in range(8):
            with attachment.originals(["a nurse"]):
                attachment.rewrite([f"A woman, a nurse in room {number}."])
            values += attachment.sampled
        assert Counter(values) == {"female": 4, "male": 4}
        with attachment.originals(["a nurse"] * 4):
            attachment.rewrite([f"A nurse in room {n}." for n in range(4)], seeds=7)
        assert Counter(attachment.sampled) == {"female": 2, "male": 2}


@pytest.mark.parametrize("strength", [1.0, 0.0])
def test_a_wrong_number_of_originals_is_rejected(strength):
    pipe = tiny.sd()
    with debias(pipe, "gender") as attachment:
        attachment.strength = strength
        with attachment.originals([ORIGINAL]):
            with pytest.raises(InvalidInputError, match="got 1 originals for 2 prompts"):
                tiny.draw(pipe, [REWRITTEN] * 2)
            tiny.draw(pipe, REWRITTEN)
        assert attachment.last_call.originals == (ORIGINAL,)


def test_originals_apply_to_one_attachment_block_and_thread():
    first, second = tiny.sd(), tiny.sd()
    seen = []
    with debias(first, "gender") as one, debias(second, "gender") as other:

        def call_elsewhere():
            one.rewrite([REWRITTEN] * 2)
            seen.append(one.last_call.originals)

        with one.originals([ORIGINAL]), other.originals(["a nurse"]):
            one.rewrite([REWRITTEN])
            other.rewrite([REWRITTEN])
            assert one.last_call.originals == (ORIGINAL,)
            assert other.last_call.originals == ("a nurse",)
            thread = threading.Thread(target=call_elsewhere)
            thread.start()
            thread.join()
        one.rewrite([REWRITTEN])
        assert one.last_call.originals is None
    assert seen == [None]


def test_a_refiner_shows_the_same_people_as_the_base():
    base, refiner = tiny.sd(), tiny.sd(StableDiffusionImg2ImgPipeline)
    size = refiner.unet.config.sample_size * refiner.vae_scale_factor
    call = {"image": torch.zeros(1, 3, size, size), "num_inference_steps": 2}
    call |= {"output_type": "latent", "generator": torch.Generator().manual_seed(0)}
    with debias([base, refiner], "gender") as attachment:
        with attachment.originals([ORIGINAL]):
            tiny.draw(base, REWRITTEN)
        refined = refiner(REWRITTEN, **call).images
        (written,) = attachment.last_call.written
    assert written == turned(attachment.people[0])
    call["generator"] = torch.Generator().manual_seed(0)
    assert torch.equal(refined, refiner(written, **call).images)


def test_returned_embeddings_have_their_originals():
    pipe = tiny.sd()
    with debias(pipe, "gender") as attachment:
        with attachment.originals([ORIGINAL]):
            embeddings = pipe.encode_prompt(REWRITTEN, "cpu", 2, False)[0]
        tiny.draw(pipe, None, prompt_embeds=embeddings, guidance_scale=1.0)
        assert attachment.last_call.originals == (ORIGINAL,) * 2
        assert len(set(attachment.sampled)) == 2
