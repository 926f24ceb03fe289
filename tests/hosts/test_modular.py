"""Modular pipelines: attached, paused, removed; by a block from a folder; every class known or refused by name."""

import copy

import diffusers_tiny as tiny
import modular_tiny as modular
import pytest
import torch
from modular_tiny import COMPONENTS, PLAIN, STATED

import vldebias
from vldebias.api import debias
from vldebias.errors import AlreadyAttachedError, InvalidInputError, UnsupportedHostError
from vldebias.hosts import resolve
from vldebias.hosts.families_modular import BLOCKS
from vldebias.hosts.modular import DebiasPrompt, list_blocks

pytestmark = pytest.mark.filterwarnings("ignore:.*trust_remote_code.*")
QUICK = ("Flux", "ErnieImage", "LTX", "QwenImage", "QwenImage21", "StableDiffusion3")


def draw(pipe, prompts=(PLAIN, STATED), **call):
    """Latents (2, ...) of two steps, guided, from one seed."""
    small = {"num_inference_steps": 2, "height": 16, "width": 16, "output_type": "latent"}
    noise = torch.Generator().manual_seed(0)
    negative = ["old smiling person"] * len(prompts)
    return pipe(prompt=list(prompts), negative_prompt=negative, generator=noise, output="latents", **small | call)


def changed(one, other):
    """For each row: is it another one?"""
    return [not torch.equal(a, b) for a, b in zip(modular.rows(one), modular.rows(other), strict=True)]


def same(one, other):
    return one.keys() == other.keys() and not any(any(changed(one[key], other[key])) for key in one)


def fitted(pipe):
    return vldebias.fit_projections(pipe, tiny.gender(), lam=1e6)


def test_the_images_of_a_prompt_change_and_come_back():
    pipe = modular.make("StableDiffusionXL")
    bare, names = draw(pipe), list(pipe._blocks.sub_blocks)
    before = dict(vars(pipe))
    attachment = debias(pipe, tiny.gender(), lam=1e6)
    attached = draw(pipe)
    assert changed(attached, bare) == [True, False], "the second prompt states its gender"
    attachment.strength = 0.0
    assert torch.equal(draw(pipe), bare)
    attachment.strength = 1.0
    with attachment.disabled():
        assert torch.equal(draw(pipe), bare)
    assert torch.equal(draw(pipe), attached)
    with pytest.raises(AlreadyAttachedError, match="already carries"):
        debias(pipe, tiny.gender())
    attachment.remove()
    assert torch.equal(draw(pipe), bare)
    assert list(pipe._blocks.sub_blocks) == names
    assert vars(pipe) == before
    debias(pipe, tiny.gender(), lam=1e6, negative=True)
    assert changed(draw(pipe), bare) == [True, True]


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in COMPONENTS])
def test_what_every_class_reads_changes_and_comes_back(name):
    """Behind the block that encodes text; of a video with sound also behind what connects the text to both."""
    pipe = modular.make(name)
    bare = modular.read(pipe)
    attachment = debias(pipe, tiny.gender(), lam=1e6)
    attached = modular.read(pipe)
    glyphs = [
        key for key in bare if not any(bool(row.any()) for row in modular.rows(bare[key]))
    ]  # none in these prompts
    for key in bare:
        left_alone = "negative" in key or "mask" in key or "_ref_" in key or key in glyphs
        expected = [False] if left_alone else [True, False]
        assert changed(attached[key], bare[key]) in (expected, expected * 2), key
    attachment.strength = 0.0
    assert same(modular.read(pipe), bare)
    attachment.remove()
    assert same(modular.read(pipe), bare)


@pytest.mark.parametrize("load", ["own", "of the library"])
def test_a_block_from_a_folder_is_inserted_like_any(load, tmp_path):
    from diffusers import ModularPipelineBlocks

    first = modular.make("StableDiffusionXL")
    bare = draw(first)
    with debias(first, tiny.gender(), lam=1e6):
        attached = draw(first)
    DebiasPrompt(fitted(first)).save_pretrained(tmp_path)
    if load == "own":
        block = DebiasPrompt.from_pretrained(tmp_path)
    else:
        block = ModularPipelineBlocks.from_pretrained(str(tmp_path), trust_remote_code=True, edits=tmp_path)
    blocks = first.blocks
    blocks.sub_blocks.insert("mitigated", block, 1)
    pipe = modular.make("StableDiffusionXL", blocks)
    assert torch.equal(draw(pipe), attached)
    assert torch.equal(draw(first), bare)
    attachment = vldebias.attachment_of(pipe)
    attachment.strength = 0.0
    assert torch.equal(draw(pipe), bare)
    attachment.strength = 0.5
    half = draw(pipe)
    pipe._blocks.sub_blocks["mitigated"].save_pretrained(tmp_path / "half")
    assert DebiasPrompt.from_pretrained(tmp_path / "half").settings["strength"] == 0.5
    attachment.remove()
    assert torch.equal(draw(pipe), bare)
    assert list(pipe._blocks.sub_blocks) == list(first._blocks.sub_blocks)
    assert changed(half, bare) == [True, False]


def test_copies_carry_it_and_let_go_of_it_alone():
    pipe = modular.make("StableDiffusionXL")
    bare = draw(pipe)
    attachment = debias(pipe, tiny.gender(), lam=1e6)
    attached = draw(pipe)
    twin = copy.deepcopy(pipe)
    other = modular.make("StableDiffusionXL", pipe.blocks)
    attachment.remove()
    for copied in (twin, other):
        assert torch.equal(draw(copied), attached)
        assert vldebias.attachment_of(copied) is not attachment
        vldebias.attachment_of(copied).remove()
        assert torch.equal(draw(copied), bare)
    assert torch.equal(draw(pipe), bare)


@pytest.mark.parametrize("name", ["StableDiffusionXL", "StableDiffusion3", "Flux"])
def test_it_reads_what_the_classic_pipeline_reads(name):
    classic = tiny.FAMILIES[name][0]()
    one, other = resolve(modular.make(name)), resolve(classic)
    assert one.roles == other.roles
    for role in one.roles:
        assert one.space(role) == other.space(role)
        assert torch.equal(one.embed([PLAIN, "an old man"], role), other.embed([PLAIN, "an old man"], role))
    debias(modular.make(name), vldebias.fit_projections(classic, tiny.gender()))


def test_every_class_is_known_or_refused_with_a_reason():
    found = modular.classes()
    refused = [name for name in found if name.removesuffix("ModularPipeline") not in COMPONENTS]
    assert len(found) - len(refused) == len(COMPONENTS) >= 25
    for name in refused:
        with pytest.raises(UnsupportedHostError, match=f"{name}: (?!none of its blocks is known)"):
            resolve(found[name]())


def test_what_is_not_served_says_why():
    from diffusers import ModularPipelineBlocks, SequentialPipelineBlocks

    class Own(ModularPipelineBlocks):
        pass

    own = SequentialPipelineBlocks.from_blocks_dict({"own": Own()}).init_pipeline()
    with pytest.raises(UnsupportedHostError, match=r"ModularPipeline: none of its blocks is known .*\(Own\)"):
        debias(own, "gender")
    text = modular.make("Flux", modular.make("Flux").blocks.sub_blocks["text_encoder"])
    with pytest.raises(UnsupportedHostError, match="it consists of one block, FluxTextEncoderStep"):
        debias(text, tiny.gender())
    assert {"FluxTextEncoderStep", "Flux3TextEncoderStep"} <= set(list_blocks())


def test_a_block_that_cannot_act_raises():
    pipe = modular.make("Flux")
    edits = fitted(pipe)
    for block, place, why in (
        (DebiasPrompt(edits), 0, "insert it right behind .* FluxTextEncoderStep"),
        (DebiasPrompt(), 1, "it has no edits"),
        (DebiasPrompt({"sequence": edits["sequence"]}), 1, r"missing \['pooled'\]"),
    ):
        blocks = pipe.blocks
        blocks.sub_blocks.insert("mitigated", block, place)
        other = modular.make("Flux", blocks)
        with pytest.raises(InvalidInputError, match=why):
            other(prompt=PLAIN, num_inference_steps=1)
    blocks = pipe.blocks
    blocks.sub_blocks.insert("mitigated", DebiasPrompt(edits), 1)
    with pytest.raises(AlreadyAttachedError, match="a block DebiasPrompt stands in it already"):
        debias(modular.make("Flux", blocks), tiny.gender())
    with pytest.raises(InvalidInputError, match="no edits to save"):
        DebiasPrompt().save_pretrained("nowhere")


def test_a_folder_without_edits_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"no debias_prompt\.json or no edits"):
        DebiasPrompt.from_pretrained(tmp_path)


@pytest.mark.skipif("QwenImage21" not in COMPONENTS, reason="this release of diffusers has no QwenImage21")
def test_tokens_of_an_image_stay():
    """The mask of the block says which tokens show an image; those up to the last of them are left alone."""
    pipe = modular.make("QwenImage21")
    host = resolve(pipe)
    places = {name: place for place, name in enumerate(host._known.outputs)}
    states = torch.randn(1, 5, 16)
    shown = torch.tensor([[False, True, True, False, False]])
    result = [None] * len(places)
    result[places["prompt_embeds"]], result[places["image_pad_mask"]] = states, shown
    now = host.project(lambda role, rows, texts: rows + 1, tuple(result), {}, second=False, readings={})
    moved = (now[places["prompt_embeds"]] != states).all(-1)
    assert moved.tolist() == [[False, False, False, True, True]]


def test_every_output_of_the_table_is_one_of_its_block():
    import diffusers.modular_pipelines as library

    inside = {}
    for cls in modular.classes().values():
        leaves = [getattr(library, cls.default_blocks_name)()]
        while leaves:
            block = leaves.pop()
            inside[type(block).__name__] = {one.name for one in block.intermediate_outputs}
            leaves += block.sub_blocks.values()
    for block in BLOCKS:
        for name in [
            one for one in block.classes if one in inside or len(COMPONENTS) >= 32
        ]:  # older releases lack some
            assert set(block.outputs) <= inside[name], name
            negative = {n.removeprefix("negative_") for n in inside[name] if n.startswith("negative_")}
            assert {block.outputs[part.index] for part in block.family.parts if part.negative is None}.isdisjoint(
                negative
            )
