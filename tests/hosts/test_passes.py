"""Test that all passes of a picture, base and refiner, use the same value."""

from collections import Counter

import diffusers_tiny as tiny
import pytest
import torch
from diffusers import StableDiffusionImg2ImgPipeline

from vldebias.api import debias
from vldebias.errors import AlreadyAttachedError, InvalidInputError, VldebiasWarning
from vldebias.hosts import attachment_of
from vldebias.methods import Balanced

OPEN = "A photo of a nurse."
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")


def pipelines():
    return tiny.sd(), tiny.sd(StableDiffusionImg2ImgPipeline)


def refine(refiner, prompts, images=1):
    size = refiner.unet.config.sample_size * refiner.vae_scale_factor
    picture = torch.zeros(len(prompts), 3, size, size)
    refiner(prompts, image=picture, num_inference_steps=2, output_type="latent")


def texts_read(pipe, monkeypatch):
    read = []
    original = pipe.tokenizer.__class__.__call__

    def call(self, text, *args, **options):
        read.append(text)
        return original(self, text, *args, **options)

    monkeypatch.setattr(pipe.tokenizer.__class__, "__call__", call)
    return read


@pytest.mark.parametrize("prompt", [OPEN, "a nurse and a chef"])
def test_base_and_refiner_show_the_same_people(prompt, monkeypatch):
    base, refiner = pipelines()
    attachment = debias([base, refiner], "gender")
    read = texts_read(refiner, monkeypatch)
    for _ in range(6):
        tiny.draw(base, prompt, num_images_per_prompt=2, generator=None)
        record = attachment.last_call
        read.clear()
        refine(refiner, [prompt] * 2)
        assert list(record.written) in read
        assert attachment.last_call is record
    assert len(attachment.calls) == 6
    assert Counter(v for call in attachment.calls for v in call.values) == {"female": 6, "male": 6}
    assert attachment_of(refiner).log is attachment.log


def test_a_refiner_can_be_attached_later():
    base, refiner = pipelines()
    attachment = debias(base, "gender", method=Balanced(seed=1))
    follower = debias(refiner, attachment)
    tiny.draw(base, OPEN)
    refine(refiner, [OPEN])
    assert follower.sampled == attachment.sampled
    assert follower.seed == attachment.seed
    with pytest.warns(VldebiasWarning, match="no earlier pass"):
        refine(refiner, ["A photo of a doctor."])
    assert len(attachment.calls) == 2


def test_all_passes_are_disabled_scaled_and_removed_together():
    base, refiner = pipelines()
    attachment = debias([base, refiner], "gender")
    follower = attachment_of(refiner)
    with attachment.disabled():
        assert follower.state == "disabled"
    attachment.strength = 0.5
    assert follower.strength == 0.5
    attachment.remove()
    assert follower.state == "removed"
    assert attachment_of(refiner) is None
    with debias(base, "gender") as again:
        debias(refiner, again).remove()
        assert again.state == "attached"


def test_unsuitable_later_passes_are_rejected_and_nothing_remains_attached():
    base, refiner = pipelines()
    with pytest.raises(InvalidInputError, match="inserts values into prompts"):
        debias([base, refiner], "gender", method="cali")
    assert attachment_of(base) is None
    with pytest.raises(AlreadyAttachedError):
        debias([base, base], "gender")
    assert attachment_of(base) is None
    with pytest.raises(InvalidInputError, match="empty list"):
        debias([], "gender")
    removed = debias(base, "gender")
    removed.remove()
    with pytest.raises(InvalidInputError, match="removed; attach"):
        debias(refiner, removed)
