"""A family that is found by asking, against the table of those that were looked up."""

import diffusers_tiny as tiny
import pytest
import torch

from vldebias.api import debias
from vldebias.errors import UnsupportedHostError
from vldebias.hosts.diffusers import DiffusersHost, Family, Part, list_families
from vldebias.hosts.probe import propose_family, registration

TABLE = {family.name: family for family in list_families()}


@pytest.mark.parametrize("name", ["StableDiffusion", "StableDiffusionXL", "AuraFlow", "Sana", "PixArt"])
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
