"""The text side of every family: what is projected, by a naive twin, and that nothing else changes."""

import copy
from functools import cache

import diffusers_tiny as tiny
import pytest
import torch
from diffusers_text import CASES, encode

from vldebias.api import debias, fit_projections
from vldebias.errors import InvalidInputError
from vldebias.hosts.diffusers import diffusers_host, list_families

PLAIN, STATED = "a photo of a doctor", "a photo of a female nurse"
NEGATIVE = "old smiling person"
pytestmark = pytest.mark.filterwarnings("ignore:.*LoraLoaderMixin.*:FutureWarning")  # diffusers, of its own mixin
EVERY = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


@cache
def fitted(name):
    """Edits of a family, which its pipelines share with their weights."""
    return fit_projections(CASES[name].make(), tiny.gender())


def rows(value, part):
    """A part by image: (tokens, d) or (d,) of each; layers side by side."""
    if part.stack is not None:
        layers = list(value) if isinstance(value, list) else list(value.movedim(part.stack, 0))
        return [torch.cat([layer[i] for layer in layers], dim=-1) for i in range(len(layers[0]))]
    return [row for entry in value for row in (entry if isinstance(entry, list) else [entry])]


def flat(value):
    """All tensors in what `encode_prompt` returned, in their order."""
    if isinstance(value, (list, tuple)):
        return [tensor for entry in value for tensor in flat(entry)]
    return [] if value is None else [value]


def same(one, other):
    return type(one) is type(other) and tiny.same(flat(one), flat(other))


def parts_of(pipe, asked):
    """The parts that a call with these arguments returns."""
    return [p for p in diffusers_host(pipe)._parts if p.when is None or asked.get(p.when[0], 0) == p.when[1]]


def calls_of(case):
    """One per encoder where they take turns."""
    family = next(f for f in list_families() if case.pipeline in f.pipelines)
    return [dict([when]) if when else {} for when in dict.fromkeys(part.when for part in family.parts)]


def test_every_family_has_a_case():
    assert {f.name for f in list_families()} == set(CASES) | set(tiny.FAMILIES) | {"SanaSprint"}
    assert all(case.pipeline in next(f.pipelines for f in list_families() if f.name == n) for n, case in CASES.items())


@EVERY
def test_the_rows_of_the_prompt_are_projected_and_nothing_else_changes(name):
    case = CASES[name]
    pipe = case.make()

    def read():
        return [encode(pipe, case, [PLAIN, STATED], images=2, **call) for call in calls_of(case)]

    def unchanged():
        return all(same(one, other) for one, other in zip(read(), bare, strict=True))

    bare = read()
    before = dict(vars(pipe))
    attachment = debias(pipe, fitted(name))
    projected = read()
    with attachment.disabled():
        assert unchanged()
    for call, old, new in zip(calls_of(case), bare, projected, strict=True):
        assert type(old) is type(new)
        held = parts_of(pipe, call)
        for part in held:
            edit = attachment.projections[part.role]
            one, other = rows(old[part.index], part), rows(new[part.index], part)
            images = len(one) // 2
            for i, (a, b) in enumerate(zip(one, other, strict=True)):
                if i < images:
                    # the template of Qwen-Image-Edit holds the place of an image
                    start = int((a != b).any(-1).int().argmax()) if part.beside_image else 0
                    torch.testing.assert_close(b[start:], edit(a)[start:], atol=1e-4, rtol=1e-4)
                    assert not torch.equal(a, b)
                else:
                    assert torch.equal(a, b)
        left = [i for i in range(len(old)) if i not in {part.index for part in held}]
        assert all(tiny.same(flat(old[i]), flat(new[i])) for i in left)
    attachment.strength = 0.0
    assert unchanged()
    attachment.remove()
    assert unchanged()
    assert vars(pipe).keys() == before.keys()
    assert all(not module._forward_pre_hooks for module in diffusers_host(pipe)._encoders)


TWINS = [n for n in CASES if any(p.negative is not None for f in list_families() if f.name == n for p in f.parts)]


@pytest.mark.parametrize("name", TWINS)
def test_the_negative_prompt_beside_it_stays(name):
    case = CASES[name]
    pipe = case.make()

    def read(call):
        guided = {"do_classifier_free_guidance": True, "guidance_scale": 3.0}
        return encode(pipe, case, [PLAIN], negative_prompt=[NEGATIVE], **guided | call)  # Z-Image writes into the lists

    for call in calls_of(case):
        bare = read(call)
        with debias(pipe, fitted(name)):
            plain = read(call)
        with debias(pipe, fitted(name), negative=True) as attachment:
            both = read(call)
        for part in parts_of(pipe, call):
            assert not tiny.same(flat(plain[part.index]), flat(bare[part.index]))
            assert tiny.same(flat(plain[part.negative]), flat(bare[part.negative]))
            edit = attachment.projections[part.role]
            for a, b in zip(rows(bare[part.negative], part), rows(both[part.negative], part), strict=True):
                torch.testing.assert_close(b, edit(a), atol=1e-4, rtol=1e-4)


# ---- where a prompt ends ---------------------------------------------------------------------------------------

ENDS = [name for name, case in CASES.items() if case.end is not None or case.padded == "left"]


@pytest.mark.parametrize("name", ENDS)
def test_the_state_that_is_fitted_is_that_of_the_end_of_the_prompt(name):
    """Oracle: the ids that the encoder was given, searched for the token that ends the turn."""
    case, prompt = CASES[name], "a young pilot, smiling at work"
    pipe = case.make()
    host = diffusers_host(pipe)
    part = next(part for part in host._parts if part.template)
    given = []
    encoder = getattr(pipe, part.encoders[0])
    hook = encoder.register_forward_pre_hook(
        lambda m, args, kw: given.append((kw.get("input_ids", *args[:1]), kw.get("attention_mask"))), with_kwargs=True
    )
    arguments = host._arguments([prompt], None)
    result = pipe.encode_prompt(**arguments)
    hook.remove()
    ids, mask = given[-1]
    real = ids[0] if mask is None else ids[0][mask[0] != 0]
    tokenizer = getattr(pipe.tokenizer, "tokenizer", pipe.tokenizer)
    if case.end is None:
        behind = 0
        assert tokenizer.decode(real).endswith(prompt)
    else:
        end = (real == tokenizer.convert_tokens_to_ids(case.end)).nonzero().max()
        behind = len(real) - 1 - int(end)
        assert tokenizer.decode(real[:end]).rstrip().endswith(prompt)
    whole = rows(result[part.index], part)[0]
    padding = (
        0 if mask is None or isinstance(result[part.index], list) or case.padded != "right" else len(ids[0]) - len(real)
    )
    if part.mask is not None and result[part.mask] is None:
        padding = 0
    row = whole[len(whole) - 1 - padding - behind]
    expected = torch.nn.functional.normalize(row.double(), dim=-1)
    torch.testing.assert_close(host.embed([prompt], part.role)[0], expected)


def test_prompts_of_one_length_have_no_mask_and_the_same_states():
    """Qwen-Image gives None in the place of a mask where nothing is padded."""
    case = CASES["QwenImage"]
    pipe = case.make()
    assert encode(pipe, case, [PLAIN])[1] is None
    assert encode(pipe, case, [PLAIN, STATED + ", smiling"])[1] is not None
    host = diffusers_host(pipe)
    together = host.embed([PLAIN, STATED, "a cook"], "sequence")
    alone = torch.stack([diffusers_host(pipe).embed([prompt], "sequence")[0] for prompt in (PLAIN, STATED, "a cook")])
    assert torch.equal(together, alone)


def test_a_template_put_into_the_list_of_prompts_does_not_reach_the_gate():
    """Z-Image writes its chat into the list that it was given; "user" is no word of the prompt."""
    case = CASES["ZImage"]
    pipe = case.make()
    attachment = debias(pipe, fitted("ZImage"))
    seen = []
    placed = attachment._methods["default"]
    match = placed.gate.match
    placed.gate = type("Gate", (), {"match": lambda self, text: seen.append(text) or match(text)})()
    encode(pipe, case, [PLAIN, STATED])
    assert seen == [PLAIN, STATED]


# ---- a second call for the negative prompt ---------------------------------------------------------------------


class EnoughError(Exception):
    """Raised where encoding is over."""


def encoded_by_call(pipe, case, **call):
    """The variables of `pipe(...)` once both prompts are encoded."""

    from diffusers import FlowMatchEulerDiscreteScheduler

    def stop(*args, **kwargs):
        raise EnoughError

    pipe.prepare_latents = stop
    pipe.scheduler = FlowMatchEulerDiscreteScheduler()
    pipe.check_inputs = lambda *args, **kwargs: None
    with pytest.raises(EnoughError) as stopped:
        pipe(**call)
    frames = [entry.frame for entry in stopped.traceback]
    return next(
        frame for frame in frames if frame.code.name == "__call__" and frame.f_locals.get("self") is pipe
    ).f_locals


TWICE = {
    "QwenImage": {"true_cfg_scale": 3.0},
    "Flux2Klein": {"guidance_scale": 3.0, "max_sequence_length": 64},
    "Kandinsky5Image": {"guidance_scale": 3.0, "height": 1024, "width": 1024},
    "HunyuanVideo": {"true_cfg_scale": 3.0},
}


@pytest.mark.parametrize(("name", "negative"), [*((name, NEGATIVE) for name in TWICE), ("QwenImage", PLAIN)])
def test_the_negative_prompt_of_a_second_call_stays(name, negative):
    case = CASES[name]
    pipe = case.make()
    key = diffusers_host(pipe)._parts[0].given
    call = {"prompt": PLAIN, "negative_prompt": negative} | TWICE[name]
    if name == "Flux2Klein":  # its negative prompt is the empty one
        del call["negative_prompt"]
    bare = encoded_by_call(pipe, case, **call)
    bare = {n: bare[n] for n in (key, f"negative_{key}")}
    with debias(pipe, fitted(name)) as attachment:
        plain = encoded_by_call(pipe, case, **call)
        torch.testing.assert_close(plain[key], attachment.projections["sequence"](bare[key]), atol=1e-4, rtol=1e-4)
        assert torch.equal(plain[f"negative_{key}"], bare[f"negative_{key}"])
        assert not torch.equal(plain[key], bare[key])
    with debias(pipe, fitted(name), negative=True) as attachment:
        both = encoded_by_call(pipe, case, **call)
        twin = attachment.projections["sequence"](bare[f"negative_{key}"])
        torch.testing.assert_close(both[f"negative_{key}"], twin, atol=1e-4, rtol=1e-4)


# ---- images beside the prompt ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["QwenImageEdit", "QwenImageEditPlus"])
def test_what_shows_the_image_is_left_alone(name):
    case = CASES[name]
    pipe = case.make()
    image = [object()]
    prompts = [PLAIN, "a young pilot, smiling at work"]
    bare, mask = encode(pipe, case, prompts, image=image)
    attachment = debias(pipe, fitted(name))
    attached, _ = encode(pipe, case, prompts, image=image)
    tokenizer = pipe.tokenizer
    turn = len(tokenizer("<|im_end|>\n<|im_start|>assistant\n").input_ids)
    for i, prompt in enumerate(prompts):
        length = int(mask[i].sum())
        start = length - turn - len(tokenizer(prompt).input_ids)
        assert torch.equal(attached[i, :start], bare[i, :start])
        torch.testing.assert_close(
            attached[i, start:], attachment.projections["sequence"](bare[i, start:]), atol=1e-4, rtol=1e-4
        )
        assert not torch.equal(attached[i, start], bare[i, start])


def test_a_copy_of_the_pipeline_watches_encoders_of_its_own():
    case = CASES["QwenImageEdit"]
    pipe = case.make()
    debias(pipe, fitted("QwenImageEdit"))
    expected, _ = encode(pipe, case, [PLAIN], image=[object()])
    twin = copy.deepcopy(pipe)
    pipe.text_encoder = None
    assert torch.equal(encode(twin, case, [PLAIN], image=[object()])[0], expected)


# ---- other layers than were fitted -----------------------------------------------------------------------------


def test_other_layers_than_were_fitted_are_refused():
    """They may well have the same width, and are another space."""
    case = CASES["Flux2Klein"]
    pipe = case.make()
    attachment = debias(pipe, fitted("Flux2Klein"))
    with pytest.raises(InvalidInputError, match=r"text_encoder_out_layers=\(9, 18, 27\).*got \(1, 2, 3\)"):
        encode(pipe, case, [PLAIN], text_encoder_out_layers=(1, 2, 3))
    with attachment.disabled():
        encode(pipe, case, [PLAIN], text_encoder_out_layers=(1, 2, 3))
    encode(pipe, case, [PLAIN], text_encoder_out_layers=[9, 18, 27])
