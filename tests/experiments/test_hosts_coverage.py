"""What the coverage of pipelines says of a class is what is drawn with it."""

import diffusers
import pytest
import torch

from eval.experiments import hosts_coverage, hosts_drawn
from eval.experiments.hosts_drawn import DRAWN, SILENT, UNTRIED, Tried

pytestmark = pytest.mark.filterwarnings("ignore::vldebias.errors.VldebiasWarning")  # of tiny encoders and of asking


class Deaf(diffusers.StableDiffusionPipeline):
    """Of a known family, asks `encode_prompt` and draws something else: a silent no-op."""

    def __call__(self, prompt=None, generator=None):
        self.encode_prompt(prompt, "cpu", 1, False)
        nothing = torch.zeros(1, 77, 32)
        given = {"prompt_embeds": nothing, "negative_prompt_embeds": nothing, "output_type": "latent"}
        return super().__call__(num_inference_steps=2, height=16, width=16, generator=generator, **given)


class Needy(diffusers.StableDiffusionPipeline):
    """Asks for a component that no tiny pipeline has."""

    def __init__(self, depth_estimator, **components):
        super().__init__(**components)


def test_a_class_is_drawn_silent_or_left_out_with_the_reason():
    assert hosts_drawn.classic(diffusers.StableDiffusionImg2ImgPipeline) == Tried(DRAWN)
    assert hosts_drawn.classic(diffusers.StableDiffusionControlNetPipeline) == Tried(DRAWN)
    assert hosts_drawn.classic(Deaf) == Tried(SILENT)
    assert hosts_drawn.classic(Needy) == Tried(UNTRIED, "needs depth_estimator")


def test_classes_that_are_not_tried_are_those_of_one_that_is_by_their_source(monkeypatch):
    monkeypatch.setattr(hosts_drawn, "classic", lambda cls: Tried(UNTRIED, "no") if cls is Needy else Tried(DRAWN))
    rows = [
        {"class": cls.__name__, "cls": cls, "kind": "classic", "how": "attached"}
        for cls in (Needy, diffusers.StableDiffusionPipeline)
    ]
    found = hosts_coverage.tried(rows)
    assert found["Needy"] == Tried(hosts_coverage.AS_DRAWN, "no; its encode_prompt is that of StableDiffusionPipeline")
    assert hosts_coverage.tried(rows[:1])["Needy"] == Tried(UNTRIED, "no")


@pytest.mark.parametrize("name", ["Sana", "Flux"])
def test_what_asking_finds_draws_as_the_table_does_or_is_refused(name):
    assert hosts_coverage.asked(name).how == ("same" if name == "Sana" else "refused")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:In CPU autocast:UserWarning")  # Mochi's
@pytest.mark.parametrize("name", hosts_drawn.families())
def test_so_it_is_for_every_family(name):
    found = hosts_coverage.asked(name)
    assert found.how in ("same", "refused"), found
