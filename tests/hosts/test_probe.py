"""A family that is found by asking, against the table of those that were looked up."""

import copy

import diffusers
import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import UnsupportedHostError, VldebiasWarning
from vldebias.hosts import attachment_of, resolve
from vldebias.hosts import diffusers_families as table
from vldebias.hosts.diffusers import DiffusersHost, Family, Part, list_families
from vldebias.hosts.probe import propose_family, registration

TABLE = {family.name: family for family in list_families()}
SEEN = pytest.mark.parametrize("name", ["StableDiffusion", "StableDiffusionXL", "AuraFlow", "Sana", "PixArt", "Chroma"])


@pytest.fixture
def nothing_listed(monkeypatch):
    monkeypatch.setattr(table, "_FAMILIES", [Family(name="Acme", pipelines=("AcmePipeline",), parts=(Part(),))])
    monkeypatch.setattr(table, "REFUSED", {})


@SEEN
def test_it_finds_what_the_table_says(name):
    pipe = tiny.FAMILIES[name][0]()
    found, known = propose_family(pipe), TABLE[name]
    assert found.twice == known.twice
    for one in ("role", "index", "negative", "mask"):
        assert [getattr(part, one) for part in found.parts] == [getattr(part, one) for part in known.parts], one
    mine, theirs = (DiffusersHost(pipe, family, negative=False) for family in (found, known))
    for role in mine.roles:
        prompts = ["a photo of a doctor", "an old man"]
        assert torch.equal(mine.embed(prompts, role), theirs.embed(prompts, role)), "the same state ends a prompt"


@SEEN
@pytest.mark.usefixtures("nothing_listed")
def test_what_nobody_listed_draws_as_if_it_were_listed(name, monkeypatch):
    make, call = tiny.FAMILIES[name]
    with monkeypatch.context() as listed:
        listed.setattr(table, "_FAMILIES", list(TABLE.values()))
        pipe = make()
        bare = tiny.draw(pipe, **call)
        with debias(pipe, tiny.gender(), lam=1e6):
            expected = tiny.draw(pipe, **call)
    pipe = make()
    with pytest.warns(
        VldebiasWarning, match=r"not listed; .* a family '\w+' with 'sequence' .*register_family\(Fam"
    ) as told:
        attachment = debias(pipe, tiny.gender(), lam=1e6)
    said = [str(one.message) for one in told if "not listed" in str(one.message)]
    assert len(said) == 1
    assert torch.equal(tiny.draw(pipe, **call), expected)
    attachment.strength = 0
    assert torch.equal(tiny.draw(pipe, **call), bare)
    twin = copy.deepcopy(pipe)
    attachment.remove()
    assert torch.equal(tiny.draw(pipe, **call), bare)
    resolve(pipe)  # says it once
    attachment_of(twin).strength = 1
    assert torch.equal(tiny.draw(twin, **call), expected)
    table.register_family(eval(said[0].partition(": register_family")[2], {"Family": Family, "Part": Part}))
    debias(make(), tiny.gender()).remove()  # and warns no more


def test_what_it_finds_changes_and_comes_back():
    pipe = tiny.aura()
    bare = tiny.encode(pipe)
    attachment = debias(DiffusersHost(pipe, propose_family(pipe), negative=False), tiny.gender())
    assert not torch.equal(tiny.encode(pipe)[0], bare[0])
    attachment.strength = 0.0
    assert tiny.same(tiny.encode(pipe), bare)
    attachment.remove()
    assert tiny.same(tiny.encode(pipe), bare)


def test_the_call_that_makes_it_permanent_says_the_same():
    found = propose_family(tiny.sdxl())
    assert eval(registration(found).removeprefix("register_family"), {"Family": Family, "Part": Part}) == found


def test_what_cannot_be_told_is_refused():
    with pytest.raises(
        UnsupportedHostError, match="text_encoder and text_encoder_2 read the prompt in different tokens"
    ):
        propose_family(tiny.flux())
    pipe = tiny.sd()
    pipe.encode_prompt = lambda text: text
    with pytest.raises(UnsupportedHostError, match="has no encode_prompt that takes `prompt`"):
        propose_family(pipe)


class Deaf(diffusers.StableDiffusionPipeline):
    """Asks `encode_prompt` and draws something else."""

    def __call__(self, prompt=None, num_inference_steps=2, generator=None, output_type="latent"):
        self.encode_prompt(prompt, "cpu", 1, False)
        nothing = torch.zeros(1, 77, 32)
        given = {"prompt_embeds": nothing, "negative_prompt_embeds": nothing, "output_type": output_type}
        return super().__call__(num_inference_steps=num_inference_steps, generator=generator, **given)


class Whispered(diffusers.StableDiffusionPipeline):
    """The prompt moves the noise too."""

    def __call__(self, prompt=None, num_inference_steps=2, generator=None, output_type="latent"):
        noise = torch.full((1, 4, 8, 8), float(len(prompt)))
        given = {"latents": noise, "height": 16, "width": 16, "output_type": output_type}
        return super().__call__(prompt, num_inference_steps=num_inference_steps, generator=generator, **given)


class Often(diffusers.StableDiffusionPipeline):
    """Asks for its prompt by turns."""

    others = ("a cat",)

    def __call__(self, prompt=None, num_inference_steps=2, generator=None, output_type="latent"):
        for one in self.others:
            self.encode_prompt(one, "cpu", 1, False)
        return super().__call__(prompt, num_inference_steps=num_inference_steps, generator=generator)


class Guided(Often):
    """Asks for an empty one by itself."""

    others = ("",)


class Drawn(diffusers.StableDiffusionPipeline):
    """Needs an image."""

    def __call__(self, prompt, image, num_inference_steps=2):
        return super().__call__(prompt)


@pytest.mark.usefixtures("nothing_listed")
@pytest.mark.parametrize(
    ("cls", "why"),
    [
        (Deaf, "its denoiser does not read what encode_prompt returns at place 0, 'sequence'"),
        (Whispered, "the prompt reaches its denoiser beside encode_prompt too"),
        (Often, "it calls encode_prompt 2 times for one prompt, in different ways"),
        (Guided, "it calls encode_prompt for another prompt too, beside the negative one of the same call"),
        (Drawn, "its call needs image beside the prompt, and cannot be tried"),
    ],
)
def test_a_silent_no_op_is_refused(cls, why):
    pipe = tiny.sd(cls)
    with pytest.raises(UnsupportedHostError, match=rf"{cls.__name__}: not among the 1 .* Asked what it returns: {why}"):
        debias(pipe, tiny.gender())
    assert "encode_prompt" not in vars(pipe)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["AltDiffusionPipeline", "StableDiffusionModelEditingPipeline"])
def test_pipelines_that_nobody_looked_into(name):
    cls = getattr(diffusers, name, None)
    if cls is None or not issubclass(cls, diffusers.DiffusionPipeline):
        pytest.skip(f"this release of diffusers has no {name}")
    pipe = tiny.sd(cls)
    bare = tiny.draw(pipe)
    with pytest.warns(VldebiasWarning, match=f"{name}: not listed"):
        attachment = debias(pipe, tiny.gender(), lam=1e6)
    assert not torch.equal(tiny.draw(pipe), bare)
    attachment.remove()
    assert torch.equal(tiny.draw(pipe), bare)
