"""Test that pipelines that edit images ask to keep the person, only if requested."""

import diffusers_tiny as tiny
import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline
from diffusers_tiny import CASES, modular, modular_states

from vldebias import debias, keep_person
from vldebias.methods import Balanced

PROMPT = "Put him in a suit"
KEPT = keep_person(PROMPT).prompt
pytestmark = pytest.mark.filterwarnings("ignore:.*LoraLoaderMixin.*:FutureWarning")


def edited(pipe, prompts, **options):
    size = pipe.unet.config.sample_size * pipe.vae_scale_factor
    image = tiny.picture().resize((size, size))
    return tiny.draw(pipe, prompts, image=[image] * len(prompts), strength=0.9, **options)


def test_an_editing_pipeline_gets_the_sentence_and_nothing_else_changes():
    pipe = tiny.sd(StableDiffusionImg2ImgPipeline)
    bare = {text: edited(pipe, [text]) for text in (PROMPT, KEPT)}
    attachment = debias(pipe, "gender", method=Balanced(keep_person=True))
    assert torch.equal(edited(pipe, [PROMPT]), bare[KEPT])
    record = attachment.last_call
    assert record.written == (KEPT,) * len(record.written)
    assert set(record.values) == {None}
    assert set(record.reasons) == {"edit"}
    attachment.strength = 0
    assert torch.equal(edited(pipe, [PROMPT]), bare[PROMPT])
    attachment.strength = 1
    with attachment.disabled():
        assert torch.equal(edited(pipe, [PROMPT]), bare[PROMPT])
    attachment.remove()
    assert torch.equal(edited(pipe, [PROMPT]), bare[PROMPT])


def test_the_reason_names_what_an_instruction_asks_to_change():
    pipe = tiny.sd(StableDiffusionImg2ImgPipeline)
    with debias(pipe, "gender", method=Balanced(keep_person=True)) as attachment:
        edited(pipe, ["Make her older", "Swap the faces"], num_images_per_prompt=1)
        older, swapped = attachment.last_call.written
        assert older == keep_person("Make her older").prompt
        assert swapped == "Swap the faces"
        assert attachment.reasons == [
            "edit: asks to change apparent age",
            "edit: asks to change skin tone, facial features, apparent age and gender",
        ]


@pytest.mark.parametrize("keep", [False, True])
def test_calls_without_an_image_are_balanced_as_before(keep):
    case = CASES["Flux2Klein"]
    pipe = case.make(is_complete=True)
    method = Balanced(seed=0, keep_person=keep)
    image = {"image": tiny.picture().resize((64, 64))}
    with debias(pipe, "gender", method=method) as attachment:
        case.draw(pipe, ["A photo of a nurse."] * 2, num_images_per_prompt=1)
        assert attachment.sampled == ["male", "female"]
        case.draw(pipe, [PROMPT], **image)
        assert set(attachment.last_call.written) == {KEPT if keep else PROMPT}


def test_without_the_option_an_editing_pipeline_is_balanced_as_before():
    pipe = tiny.sd(StableDiffusionImg2ImgPipeline)
    with debias(pipe, "gender", method=Balanced(seed=0)) as attachment:
        edited(pipe, ["A photo of a nurse."] * 2, num_images_per_prompt=1)
        assert sorted(attachment.sampled) == ["female", "male"]


def test_every_text_of_an_image_gets_the_sentence_of_all_its_texts():
    attachment = debias(tiny.sd(), "gender", method=Balanced(seed=0, keep_person=True))
    texts = {"prompt": ["Make her older", "a nurse"], "prompt_2": ["in a park", "a nurse"]}
    written = attachment.rewrite_texts(texts, edits=[True, False])
    sentence = keep_person("Make her older").sentence
    assert [column[0] for column in written.values()] == [
        f"Make her older{sentence}",
        f"in a park{sentence}",
    ]
    assert written["prompt"][1] == written["prompt_2"][1] != "a nurse"


def test_a_modular_pipeline_asks_to_keep_the_person():
    pipe = modular("Flux2Klein")
    with debias(pipe, "gender", method=Balanced(keep_person=True)) as attachment:
        modular_states(pipe, [PROMPT], image=tiny.picture().resize((64, 64)))
        assert attachment.last_call.written == (KEPT,)
