"""Every family of diffusers pipelines: three states, roles, and the table against the sources of diffusers."""

import ast
import inspect
import re
import textwrap
import warnings
from functools import cache

import diffusers_parts as parts
import diffusers_tiny as tiny
import pytest
import tiny_tokenizers
import torch

from vldebias.api import debias, fit_projections
from vldebias.errors import InvalidInputError, ProjectionMismatchError, UnsupportedHostError
from vldebias.hosts import diffusers_families as table
from vldebias.hosts.diffusers import Family, Part, list_pipelines, register_family

FAMILIES = pytest.mark.parametrize("name", tiny.FAMILIES)


def three_states(read, attachment):
    """Attached, disabled, attached again, removed."""
    states = [read()]
    with attachment.disabled():
        states.append(read())
    states.append(read())
    attachment.remove()
    return [*states, read()]


@FAMILIES
def test_the_whole_pipeline_in_three_states_and_at_strength_zero(name):
    make, call = tiny.FAMILIES[name]
    pipe = make()
    embedded, bare = tiny.encode(pipe), tiny.draw(pipe, **call)
    attachment = debias(pipe, tiny.gender(), strength=0.0)
    assert tiny.same(tiny.encode(pipe), embedded)
    assert torch.equal(tiny.draw(pipe, **call), bare)
    attachment.strength = 1.0
    attached, disabled, again, removed = three_states(lambda: tiny.draw(pipe, **call), attachment)
    assert not torch.equal(attached, bare)
    assert torch.equal(again, attached)
    assert torch.equal(disabled, bare)
    assert torch.equal(removed, bare)


def test_a_missing_role_and_a_foreign_space_are_refused():
    projections = fit_projections(tiny.sdxl(), tiny.gender())
    with pytest.raises(InvalidInputError, match=r"missing \['pooled'\]"):
        debias(tiny.sdxl(), {"sequence": projections["sequence"]})
    with pytest.raises(ProjectionMismatchError, match=r"space 'StableDiffusionXL\.sequence', here .*'Stable"):
        debias(tiny.sd(), projections["sequence"])


def test_text_to_image_and_inpainting_share_their_projections():
    from diffusers import StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline

    projection = fit_projections(tiny.sd(), tiny.gender())["sequence"]
    for pipe in (tiny.sd(StableDiffusionImg2ImgPipeline), tiny.sd(StableDiffusionInpaintPipeline)):
        assert debias(pipe, projection).projections["sequence"].space == "StableDiffusion.sequence"


def test_the_sd3_segments_are_clip_then_t5():
    pipe = tiny.sd3()
    bare = tiny.encode(pipe)[0]
    projections = debias(pipe, tiny.gender(), lam=1e6).projections
    assert set(projections) == {"sequence.clip", "sequence.t5", "pooled"}
    attached = tiny.encode(pipe)[0]
    assert torch.equal(attached[:, :77], projections["sequence.clip"](bare[:, :77]))
    assert torch.equal(attached[:, 77:], projections["sequence.t5"](bare[:, 77:]))
    assert not torch.allclose(attached[:, :77], projections["sequence.t5"](bare[:, :77]))
    assert attached[:, :77, 64:].abs().max() < 1e-9  # the padding of CLIP to the width of T5


def test_sd3_without_t5_has_no_role_for_it():
    pipe = tiny.sd3(text_encoder_3=None, tokenizer_3=None)
    attachment = debias(pipe, tiny.gender())
    assert set(attachment.projections) == {"sequence.clip", "pooled"}
    assert not tiny.encode(pipe)[0][:, 77:].any()


def test_the_refiner_has_only_the_second_encoder():
    from diffusers import StableDiffusionXLImg2ImgPipeline

    loaded = {"text_encoder": None, "tokenizer": None, "unet": parts.MODELS["refiner_unet"]()}
    pipe = tiny.sdxl(StableDiffusionXLImg2ImgPipeline, **loaded, requires_aesthetics_score=True)
    image = torch.rand(1, 3, 16, 16)

    def read():
        noise = torch.Generator().manual_seed(0)
        return pipe("a doctor", image=image, num_inference_steps=4, output_type="latent", generator=noise).images

    bare = read()
    attached, disabled, _, removed = three_states(read, debias(pipe, tiny.gender()))
    assert not torch.equal(attached, bare)
    assert torch.equal(disabled, bare)
    assert torch.equal(removed, bare)


def test_sprint_pipelines_return_no_negative_branch():
    from diffusers import SanaSprintPipeline, SCMScheduler

    pipe = tiny.sana(SanaSprintPipeline, scheduler=SCMScheduler())
    bare = tiny.encode(pipe)
    debias(pipe, tiny.gender(), negative=True)
    attached = tiny.encode(pipe)
    assert not torch.equal(attached[0], bare[0])
    assert torch.equal(attached[1], bare[1])


def test_missing_encoders_are_refused_by_name():
    with pytest.raises(UnsupportedHostError, match=r"FluxPipeline: text_encoder_2 is not loaded.*prompt_embeds"):
        debias(tiny.flux(text_encoder_2=None, tokenizer_2=None), tiny.gender())


# ---- classes that are not listed -----------------------------------------------------------------------------


def _pipeline_class(base, name, **members):
    return type(name, (base,), members)


def test_a_subclass_belongs_to_the_family_of_its_base():
    from diffusers import StableDiffusionPipeline

    pipe = tiny.sd(_pipeline_class(StableDiffusionPipeline, "MyPipeline"))
    assert debias(pipe, tiny.gender()).projections["sequence"].space == "StableDiffusion.sequence"


def test_an_unlisted_pipeline_is_refused_in_three_lines_with_the_nearest_name():
    from diffusers import StableDiffusionInstructPix2PixPipeline

    pipe = tiny.sd(StableDiffusionInstructPix2PixPipeline)
    with pytest.raises(UnsupportedHostError) as refusal:
        debias(pipe, tiny.gender())
    lines = str(refusal.value).splitlines()
    assert len(lines) == 3
    assert lines[0] == (
        f"StableDiffusionInstructPix2PixPipeline: not among the {len(list_pipelines())} pipelines that are known; the "
        "nearest is StableDiffusionXLInstructPix2PixPipeline."
    )
    assert "register_family(Family(...))" in lines[1]
    assert "vldebias.hosts.custom" in lines[2]


def test_a_pipeline_that_cannot_be_served_says_why():
    assert not set(table.REFUSED) & set(list_pipelines())
    for name, reason in table.REFUSED.items():
        with pytest.raises(UnsupportedHostError, match=f"^{name}: .*{re.escape(reason)}"):
            table.family_of(type(name, (), {})())


def test_a_subclass_that_returns_something_else_is_refused():
    from diffusers import StableDiffusionPipeline

    def encode_prompt(self, prompt, device=None):
        return {"prompt_embeds": None}

    pipe = tiny.sd(_pipeline_class(StableDiffusionPipeline, "Odd", encode_prompt=encode_prompt))
    with pytest.raises(UnsupportedHostError, match=r"Odd: expected a tensor .* at place 0 .* got NoneType; .*register"):
        debias(pipe, tiny.gender())


@pytest.fixture
def own_table(monkeypatch):
    monkeypatch.setattr(table, "_FAMILIES", list(table._FAMILIES))


def _acme():
    """A pipeline of nobody's: returns the negative branch first, and speaks of `text`."""
    from diffusers import DiffusionPipeline

    class AcmePipeline(DiffusionPipeline):
        def __init__(self, text_encoder, tokenizer):
            super().__init__()
            self.register_modules(text_encoder=text_encoder, tokenizer=tokenizer)

        def encode_prompt(self, prompt, negative_prompt="", prompt_embeds=None):
            def states(texts):
                texts = [texts] if isinstance(texts, str) else texts
                ids = self.tokenizer(texts, padding="max_length", return_tensors="pt").input_ids
                return self.text_encoder(ids).last_hidden_state

            return states(negative_prompt), states(prompt)

        def __call__(self, prompt):
            return self.encode_prompt(prompt)

    return AcmePipeline(parts.clip(), tiny_tokenizers.clip_tokenizer())


@pytest.mark.usefixtures("own_table")
def test_a_family_of_ones_own():
    pipe = _acme()
    with pytest.raises(UnsupportedHostError, match="AcmePipeline: not among"):
        debias(pipe, tiny.gender())
    register_family(Family(name="Acme", pipelines=("AcmePipeline",), parts=(Part(role="text", index=1, negative=0),)))
    with torch.no_grad():
        bare = pipe("a doctor")
        attachment = debias(pipe, tiny.gender())
        negative, positive = pipe("a doctor")
    assert torch.equal(negative, bare[0])
    assert torch.equal(positive, attachment.projections["text"](bare[1]))
    assert attachment.projections["text"].space == "Acme.text"


@pytest.mark.usefixtures("own_table")
def test_registering_refuses_names_that_are_taken():
    part = Part(role="sequence", index=0)
    with pytest.raises(InvalidInputError, match=r"\['FluxPipeline'\] is in the table already"):
        register_family(Family(name="New", pipelines=("FluxPipeline",), parts=(part,)))
    with pytest.raises(InvalidInputError, match=r"\['Flux'\] is in the table already"):
        register_family(Family(name="Flux", pipelines=("NewPipeline",), parts=(part,)))
    with pytest.raises(InvalidInputError, match=r"different roles, got \['sequence', 'sequence'\]"):
        register_family(Family(name="New", pipelines=("NewPipeline",), parts=(part, part)))


# ---- the table against the sources of the installed diffusers -------------------------------------------------


@cache
def _method(name, method):
    import diffusers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # modules next to the one that is asked for warn at import
        cls = getattr(diffusers, name, None)
    if cls is None or not issubclass(cls, diffusers.DiffusionPipeline):  # a stand-in where a library is missing
        return None
    function = inspect.unwrap(getattr(cls, method))
    return inspect.signature(function), ast.parse(textwrap.dedent(inspect.getsource(function)))


def _returned(tree):
    values = [node.value for node in ast.walk(tree) if isinstance(node, ast.Return)]
    assert len({len(value.elts) for value in values}) == 1
    return [ast.unparse(element).partition(" if ")[0] for element in values[0].elts]


@pytest.mark.slow
def test_the_table_is_that_of_the_sources():
    """All its pipelines that are installed: places of what `encode_prompt` returns, and how `__call__` asks for it."""
    installed, wrong = 0, []
    for family in table._FAMILIES:
        for name in family.pipelines:
            if (encode := _method(name, "encode_prompt")) is None:
                continue
            installed += 1
            try:
                _check_places(family, *encode)
                _check_calls(family, name, encode[0])
            except (AssertionError, KeyError, IndexError, StopIteration) as error:
                wrong.append(f"{name}: {type(error).__name__} {error}")
    assert installed > 100
    assert not wrong, "\n".join(wrong)


def _check_places(family, signature, tree):
    returned = _returned(tree)
    brought = [p for p in signature.parameters if "embeds" in p and not p.startswith("negative")]
    for part in family.parts:
        # some take a pooled vector along only together with the sequence
        own = f"pooled_{part.given}" if part.role == "pooled" and part.given == "prompt_embeds" else part.given
        assert returned[part.index] == own
        assert part.negative is None or returned[part.negative] == f"negative_{own}"
        assert part.mask is None or ("mask" in returned[part.mask] and "negative" not in returned[part.mask])
        assert part.given in signature.parameters or not brought
        assert part.negative is None or f"negative_{part.given}" in signature.parameters or not brought
        assert part.layered or "clip_skip" not in signature.parameters or len(family.parts) > 1
        assert part.when is None or part.when[0] in signature.parameters
    if not family.twice:
        twins = {i for i, x in enumerate(returned) if x.startswith("negative") and not x.endswith(("mask", "ids"))}
        assert twins == {part.negative for part in family.parts} - {None}
    assert set(family.texts) <= set(signature.parameters)


def _check_calls(family, name, signature):
    """`twice` rests on this: the second call passes the negative embeddings in the place of the others, or none."""
    _, tree = _method(name, "__call__")
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "self.encode_prompt"]
    names = list(signature.parameters)[1:]
    bound = [
        dict(zip(names, map(ast.unparse, call.args), strict=False))
        | {k.arg: ast.unparse(k.value) for k in call.keywords}
        for call in calls
    ]
    given = family.parts[0].given
    prompts = [call["prompt"] for call in bound]
    assert "negative_prompt" not in prompts[0]
    assert bound[0].get(given) in (given, "None", None)
    if len(bound) == 1:
        return
    assert len(bound) == 2
    if family.twice:
        assert prompts[1] == "negative_prompt"
        assert bound[1].get(given) in (f"negative_{given}", None)
    else:  # one call per encoder
        which = {part.when for part in family.parts}
        assert {(n, ast.literal_eval(call[n])) for call in bound for n in call if (n, 0) in which} == which
